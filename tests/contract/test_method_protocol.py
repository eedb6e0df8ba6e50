"""Contract of every inference method; its rows are in ``contract_tables``."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from app.posteriors.options import METHODS as API_METHODS
from bco_core.data import Arrays, Sample
from bco_core.errors import InvalidInput
from bco_core.inference.learn import METHODS, LearningPlan, learn
from bco_core.inference.options import OPTIONS, LearningOptions, make_options
from bco_core.posterior import Posterior, digest
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem
from tests.contract.contract_tables import (
    METHOD_ROWS,
    PROBLEM_ROWS,
    MethodRow,
    history_of,
)
from tests.support.seeds import seeded

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_registered_method_has_a_row_in_the_contract_and_a_schema_in_the_api() -> None:
    assert set(METHOD_ROWS) == set(METHODS) == set(OPTIONS) == set(API_METHODS)
    assert all(method.name == name for name, method in METHODS.items())
    assert {method.inference for method in METHODS.values()} == {"vi", "mh"}


@pytest.mark.parametrize("name", METHODS)
def test_the_api_offers_exactly_the_options_of_a_method_with_its_defaults(name: str) -> None:
    core = {one.name: one.default for one in fields(OPTIONS[name])}
    offered = {option: field.get_default() for option, field in API_METHODS[name].model_fields.items()}
    # Set elsewhere in a request, for all methods.
    for option in ("predictor", "policy", "seed"):
        del core[option]
    del offered["method"]
    assert offered == core


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def task(method: str, **changes: Any) -> tuple[DecisionProblem, Sample, LearningOptions]:
    row: MethodRow = METHOD_ROWS[method]
    problem = PROBLEM_ROWS[row.problem][0]
    options = {"method": method, "particles": 12, "seed": 5} | row.options | changes
    return build_problem(problem.spec), history_of(problem), make_options(**options)


def copied(arrays: Arrays) -> Arrays:
    """Copy arrays, as if sent to another process."""
    assert all(isinstance(values, np.ndarray) and values.dtype != object for values in arrays.values())
    return {name: np.array(values) for name, values in arrays.items()}


def assert_same_arrays(first: Arrays, second: Arrays) -> None:
    assert set(first) == set(second)
    for name, values in first.items():
        # NaN marks an unknown number and must agree in both.
        assert np.array_equal(values, second[name], equal_nan=values.dtype.kind == "f"), name


def assert_same_posterior(first: Posterior, second: Posterior) -> None:
    assert digest(*first.to_arrays()) == digest(*second.to_arrays())


def test_parts_computed_in_any_order_join_to_the_same_posterior(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 10)
    whole = learn(*task(method))
    parts = LearningPlan.of(*task(method)).split()
    assert len(parts) == METHOD_ROWS[method].parts
    assert all(part.work > 0 for part in parts)
    order = torch.randperm(len(parts), generator=seeded(26)).tolist()
    done = {place: copied(LearningPlan.of(*task(method)).work(copied(parts[place].data))) for place in order}
    joined = LearningPlan.of(*task(method)).join([done[place] for place in range(len(parts))])
    assert_same_posterior(joined.posterior, whole.posterior)
    assert joined.diagnostics == whole.diagnostics


def test_splitting_again_gives_the_same_parts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 10)
    first, again = (LearningPlan.of(*task(method)).split() for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.work == other.work
        assert_same_arrays(one.data, other.data)


def test_a_part_resumed_from_a_checkpoint_is_bit_identical(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 10)
    monkeypatch.setattr("bco_core.inference.mh.metropolis.CHECKPOINT_SECONDS", -1.0)
    learning, left = LearningPlan.of(*task(method)), []
    part = learning.split()[-1]
    done = learning.work(part.data, checkpoint=left.append)
    for stored in (part.data, *left):
        assert_same_arrays(learning.work(copied(stored)), done)


def test_a_method_is_reproduced_by_its_seed_and_differs_for_another(method: str) -> None:
    first, again, other = (learn(*task(method, seed=seed)) for seed in (5, 5, 6))
    assert_same_posterior(first.posterior, again.posterior)
    assert first.diagnostics == again.diagnostics
    assert not torch.equal(first.posterior.particles, other.posterior.particles)
    restored = Posterior.from_arrays(*first.posterior.to_arrays())
    assert_same_posterior(restored, first.posterior)


def test_diagnostics_hold_options_results_and_verdict_in_plain_json(method: str) -> None:
    diagnostics = learn(*task(method)).diagnostics
    assert (diagnostics.method, diagnostics.inference) == (method, METHODS[method].inference)
    assert diagnostics.inference_reason
    assert diagnostics.quality in ("ok", "warn", "bad")
    assert diagnostics.reason
    assert diagnostics.kl_weight * diagnostics.inverse_temperature == pytest.approx(1)
    plain = diagnostics.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_a_method_stores_the_requested_number_of_particles(method: str) -> None:
    posterior = learn(*task(method, particles=9)).posterior
    assert posterior.particles.shape == (9, posterior.predictor.dim)
    assert posterior.history is not None


def test_progress_never_falls(method: str) -> None:
    fractions: list[float] = []
    learn(*task(method), lambda fraction, message: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] <= fractions[-1] <= 1 + 1e-12


def test_a_gradient_method_is_refused_for_problems_without_gradients(method: str) -> None:
    row = PROBLEM_ROWS["return_constrained_portfolio"][0]
    problem, (_, _, options) = build_problem(row.spec), task(method)
    if METHODS[method].needs_gradient:
        with pytest.raises(InvalidInput, match="gradient"):
            LearningPlan.of(problem, history_of(row), options)
    else:
        assert LearningPlan.of(problem, history_of(row), options).method.name == method
