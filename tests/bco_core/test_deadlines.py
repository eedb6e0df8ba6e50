"""Deadlines: one limit covers every solve in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bco_core import deadlines
from bco_core.data import Sample
from bco_core.distributions import FAMILIES, Mixture
from bco_core.errors import OutOfTime
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.predictors.registry import build_predictor
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.base import Status
from bco_core.problems.linear import two_stage as linear
from bco_core.problems.registry import build_problem
from tests.support.hard_searches import market_split

HARD = build_problem(market_split())
# Longest work allowed between two checks of the clock. Without a limit these searches take minutes.
PATIENCE = 2.0


def posterior(outcomes: int) -> Posterior:
    contexts = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    predictor = build_predictor("linear", Sample(contexts, contexts.expand(-1, outcomes).contiguous()))
    loc = 0.3 * torch.randn(2, predictor.dim, generator=torch.Generator().manual_seed(1))
    mixture = Mixture(FAMILIES["laplace"], torch.tensor([0.5, 0.5]), loc, torch.full_like(loc, 0.2))
    return Posterior(predictor, mixture, mixture.sample(40, torch.Generator().manual_seed(2)), 2)


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the processor time, so that other processes do not count."""
    began = time.process_time()
    found = act()
    return found, time.process_time() - began


@pytest.mark.parametrize("policy", POLICIES)
def test_a_hard_search_returns_its_best_decision_at_the_time_limit(policy: str) -> None:
    options = PrescribeOptions(policy, scenarios=5)
    contexts = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    found, seconds = timed(lambda: prescribe(posterior(1), HARD, contexts, options, time_limit_seconds=1.0))
    assert seconds < 1.5 + PATIENCE
    assert found.status == [Status.TIME_LIMIT] * 2
    assert (found.gaps > 1e-3).all()
    for decisions in (found.decisions, found.map_decisions):
        assert torch.equal(decisions, decisions.round())
        assert ((decisions >= 0) & (decisions <= 1)).all()
    assert found.costs.mean.isfinite().all()


@pytest.mark.slow
def test_contexts_share_the_time_limit_so_that_each_gets_a_decision() -> None:
    contexts = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    options = PrescribeOptions("map", scenarios=3)
    found = prescribe(posterior(1), HARD, contexts, options, time_limit_seconds=5.0)
    assert found.decisions.isfinite().all()


def test_an_outer_deadline_ends_a_search_without_its_own_limit() -> None:
    outcomes = torch.zeros(1, 1, 1, dtype=torch.float64)

    def search() -> None:
        with deadlines.until(time.monotonic() + 0.3), pytest.raises(OutOfTime):
            HARD.prescribe(outcomes, torch.ones(1, dtype=torch.float64))

    assert timed(search)[1] < 0.3 + PATIENCE


def test_a_quick_deadline_starts_no_integer_search() -> None:
    problem = build_problem(market_split(rows=2, columns=4))
    outcomes, weights = torch.zeros(1, 2, 1, dtype=torch.float64), torch.full((2,), 0.5, dtype=torch.float64)
    problem.prescribe(outcomes, weights)
    with deadlines.until(time.monotonic() + 600, quick=True):
        problem.relaxation.prescribe(outcomes, weights)
        with pytest.raises(OutOfTime, match="quick"):
            problem.prescribe(outcomes, weights)


PORTFOLIO = {
    "assets": [{"name": f"asset {number}"} for number in range(30)],
    "factors": {"loadings": [[0.01 * (number % 7)] for number in range(30)], "residual_variances": [1e-4] * 30},
}
SHIPMENT = {
    "kind": "shipment",
    "sources": [{"name": f"s{i}", "order_cost": 5 + i, "emergency_cost": 90 + i} for i in range(6)],
    "destinations": [f"d{i}" for i in range(8)],
    "transport_costs": [[1 + (i * j) % 5 for j in range(8)] for i in range(6)],
}


@pytest.mark.parametrize("policy", ["averaged", "bcp"])
@pytest.mark.parametrize(
    "spec",
    [
        SHIPMENT,
        PORTFOLIO | {"kind": "mean_variance_portfolio"},
        PORTFOLIO | {"kind": "return_constrained_portfolio", "target_return": 0.01},
    ],
    ids=lambda spec: str(spec["kind"]),
)
def test_large_calls_end_at_their_deadline(spec: dict[str, Any], policy: str) -> None:
    problem = build_problem(spec)
    known = posterior(problem.outcome_dim)
    contexts = torch.rand(20_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = PrescribeOptions(policy, scenarios=500, seed=1)
    prescribe(known, problem, contexts[:2], options)

    def give_up() -> None:
        with deadlines.until(time.monotonic() + 0.7), pytest.raises(OutOfTime):
            prescribe(known, problem, contexts, options)

    assert timed(give_up)[1] < 0.7 + PATIENCE


def test_the_check_for_complete_recourse_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = market_split(rows=60, columns=300)  # seconds of searching on any machine
    for row in spec["rows"]:
        row["sense"] = ">="
    # Recourse is incomplete, so worst cases are searched, each by an integer program.
    spec["recourse"] = [one | {"maximum": 1e6} for one in spec["recourse"]]
    spec["decision_rows"] = [
        {"coefficients": row["decisions"], "sense": "<=", "limit": row["constant"]} for row in spec["rows"]
    ]
    monkeypatch.setattr(linear, "CHECK_SECONDS", 0.5)
    built, seconds = timed(lambda: build_problem(spec))
    assert built.decision_dim == 300
    assert seconds < 0.5 + PATIENCE
    with deadlines.until(time.monotonic() + 0.2), pytest.raises(OutOfTime):
        build_problem(spec)


def test_nested_deadlines_keep_the_earlier_one() -> None:
    assert deadlines.seconds_left() == math.inf
    with deadlines.until(time.monotonic() + 100):
        with deadlines.until(time.monotonic() + 1000):
            assert 0 < deadlines.seconds_left() <= 100
        with deadlines.until(time.monotonic() - 1), pytest.raises(OutOfTime):
            deadlines.check()
        deadlines.check()
    assert deadlines.seconds_left() == math.inf
