"""Promises that every registered method of inference keeps; their rows are in ``contract_tables``."""

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
    seeded,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_every_registered_method_has_a_row_in_the_contract_and_a_schema_in_the_api() -> None:
    assert set(METHOD_ROWS) == set(METHODS) == set(OPTIONS) == set(API_METHODS)
    assert all(method.name == name for name, method in METHODS.items())
    assert {method.inference for method in METHODS.values()} == {"vi", "mh"}


@pytest.mark.parametrize("name", METHODS)
def test_the_api_offers_exactly_the_options_of_a_method_with_its_defaults(name: str) -> None:
    core = {one.name: one.default for one in fields(OPTIONS[name])}
    offered = {option: field.get_default() for option, field in API_METHODS[name].model_fields.items()}
    # What a request says elsewhere, for every method alike.
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


def carried(arrays: Arrays) -> Arrays:
    """As they arrive elsewhere: plain, and copies."""
    assert all(isinstance(values, np.ndarray) and values.dtype != object for values in arrays.values())
    return {name: np.array(values) for name, values in arrays.items()}


def assert_same_arrays(first: Arrays, second: Arrays) -> None:
    assert set(first) == set(second)
    for name, values in first.items():
        # Not a number is a number not known: the same in both.
        assert np.array_equal(values, second[name], equal_nan=values.dtype.kind == "f"), name


def assert_same_posterior(first: Posterior, second: Posterior) -> None:
    assert digest(*first.to_arrays()) == digest(*second.to_arrays())


def test_parts_computed_anywhere_in_any_order_join_to_what_learning_gives(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 10)
    whole = learn(*task(method))
    parts = LearningPlan.of(*task(method)).split()
    assert len(parts) == METHOD_ROWS[method].parts
    assert all(part.work > 0 for part in parts)
    order = torch.randperm(len(parts), generator=seeded(26)).tolist()
    done = {place: carried(LearningPlan.of(*task(method)).work(carried(parts[place].data))) for place in order}
    joined = LearningPlan.of(*task(method)).join([done[place] for place in range(len(parts))])
    assert_same_posterior(joined.posterior, whole.posterior)
    assert joined.diagnostics == whole.diagnostics


def test_splitting_again_gives_the_same_parts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 10)
    first, again = (LearningPlan.of(*task(method)).split() for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.work == other.work
        assert_same_arrays(one.data, other.data)


def test_a_part_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 10)
    monkeypatch.setattr("bco_core.inference.mh.metropolis.CHECKPOINT_SECONDS", -1.0)
    learning, left = LearningPlan.of(*task(method)), []
    part = learning.split()[-1]
    done = learning.work(part.data, checkpoint=left.append)
    for stored in (part.data, *left):
        assert_same_arrays(learning.work(carried(stored)), done)


def test_a_method_is_exactly_repeated_by_its_seed_and_differs_for_another(method: str) -> None:
    first, again, other = (learn(*task(method, seed=seed)) for seed in (5, 5, 6))
    assert_same_posterior(first.posterior, again.posterior)
    assert first.diagnostics == again.diagnostics
    assert not torch.equal(first.posterior.particles, other.posterior.particles)
    restored = Posterior.from_arrays(*first.posterior.to_arrays())
    assert_same_posterior(restored, first.posterior)


def test_a_method_tells_what_was_asked_what_it_came_to_and_a_verdict_in_plain_json(method: str) -> None:
    told = learn(*task(method)).diagnostics
    assert (told.method, told.inference) == (method, METHODS[method].inference)
    assert told.inference_reason
    assert told.quality in ("ok", "warn", "bad")
    assert told.reason
    assert told.kl_weight * told.inverse_temperature == pytest.approx(1)
    plain = told.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_a_method_keeps_the_particles_asked_for(method: str) -> None:
    posterior = learn(*task(method, particles=9)).posterior
    assert posterior.particles.shape == (9, posterior.predictor.dim)
    assert posterior.history is not None


def test_progress_never_falls(method: str) -> None:
    fractions: list[float] = []
    learn(*task(method), lambda fraction, message: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] <= fractions[-1] <= 1 + 1e-12


def test_a_method_that_needs_gradients_is_refused_where_there_are_none(method: str) -> None:
    row = PROBLEM_ROWS["return_constrained_portfolio"][0]
    problem, (_, _, options) = build_problem(row.spec), task(method)
    if METHODS[method].needs_gradient:
        with pytest.raises(InvalidInput, match="gradient"):
            LearningPlan.of(problem, history_of(row), options)
    else:
        assert LearningPlan.of(problem, history_of(row), options).method.name == method
