"""Two-stage linear problems: decisions, gradients, integers, time limits and specifications."""

from __future__ import annotations

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.policies import POLICIES, Terms, decide
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.scenarios import Scenarios
from bco_core.status import HIGHS
from benchmarks.experiments.shipment.data import draw_contexts, draw_sample, shipment_problem
from tests.support.programs import random_two_stage
from tests.support.seeds import seeded

SEEDS = st.integers(0, 10**9)
SHIPMENT = {
    "sources": [
        {"name": "north", "order_cost": 5.0, "emergency_cost": 100.0},
        {"name": "south", "order_cost": 6.0, "emergency_cost": 90.0, "maximum_order": 25.0},
    ],
    "destinations": ["a", "b", "c"],
    "transport_costs": [[1.0, 4.0, 2.5], [3.0, 1.5, 7.0]],
}


def equal(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def demands(*shape: int, seed: int = 0, level: float = 8.0) -> Tensor:
    return level * torch.rand(*shape, generator=seeded(seed), dtype=torch.float64) * 2


def trucks(whole: bool = True) -> TwoStageLinear:
    """Trucks of two sizes are hired now in whole numbers; a courier carries the rest."""
    return TwoStageLinear.from_spec(
        {
            "decisions": [
                {"name": "small", "cost": 4, "maximum": 6, "integer": whole},
                {"name": "large", "cost": 9, "maximum": 4, "integer": whole},
            ],
            "decision_rows": [{"coefficients": {"small": 1, "large": 1}, "sense": "<=", "limit": 7}],
            "outcomes": [{"name": "load", "minimum": 0}],
            "recourse": [{"name": "courier", "cost": 3}],
            "rows": [
                {
                    "recourse": {"courier": 1},
                    "decisions": {"small": 2, "large": 5},
                    "sense": ">=",
                    "outcomes": {"load": 1},
                }
            ],
        }
    )


# decisions and costs


@settings(max_examples=25)
@given(SEEDS, st.booleans())
def test_gradients_match_finite_differences_away_from_kinks(seed: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    problem = TwoStageLinear.from_spec(random_two_stage(rng, plain=plain))
    # General position: kinks lie on planes through integers.
    predictions, outcomes = (torch.from_numpy(rng.normal(size=(6, 2))).requires_grad_() for _ in range(2))
    decisions = problem.decide(predictions)
    step, size = 1e-6, 1e-6
    weight = torch.from_numpy(rng.normal(size=decisions.shape))
    (by_prediction,) = torch.autograd.grad((weight * decisions).sum(), predictions)
    moved = (decisions.detach() + 0.3 * torch.from_numpy(rng.normal(size=decisions.shape))).requires_grad_()
    by_decision, by_outcome = torch.autograd.grad(problem.cost(moved, outcomes).sum(), [moved, outcomes])
    with torch.no_grad():
        checks: list[tuple[Any, Tensor, Tensor]] = [
            (lambda y: (weight * problem.decide(y)).sum(-1), predictions, by_prediction),
            (lambda z: problem.cost(z, outcomes), moved, by_decision),
            (lambda y: problem.cost(moved, y), outcomes, by_outcome),
        ]
        for function, at, gradient in checks:
            for j in range(at.shape[1]):
                shift = torch.zeros(at.shape[1], dtype=torch.float64)
                shift[j] = step
                up, here, down = function(at + shift), function(at), function(at - shift)
                smooth = (up + down - 2 * here).abs() < 1e-3 * size
                torch.testing.assert_close(
                    gradient[smooth, j], ((up - down) / (2 * step))[smooth], rtol=1e-3, atol=1e-3
                )
                assert smooth.double().mean() > 0.5


def test_zero_demand_orders_nothing_and_costs_nothing() -> None:
    problem = TwoStageLinear.from_shipment(SHIPMENT)
    nothing = torch.zeros(4, 3, dtype=torch.float64)
    assert (problem.decide(nothing) == 0).all()
    assert (problem.cost(problem.decide(nothing), nothing) == 0).all()
    found = problem.prescribe(nothing[None], equal(4))
    assert (found.status, found.decisions.tolist(), found.objective.item()) == ([Status.OPTIMAL], [[0, 0]], 0)


def test_outcomes_are_clipped_to_their_bounds() -> None:
    problem = TwoStageLinear.from_shipment(SHIPMENT)
    below, at = torch.tensor([[-5.0, 2, 3]], dtype=torch.float64), torch.tensor([[0.0, 2, 3]], dtype=torch.float64)
    assert torch.equal(problem.decide(below), problem.decide(at))
    assert torch.equal(problem.cost(problem.decide(at), below), problem.cost(problem.decide(at), at))


def test_nan_outcomes_give_nan_and_leave_the_others_alone() -> None:
    problem = TwoStageLinear.from_shipment(SHIPMENT)
    outcomes = demands(3, 3)
    expected = problem.decide(outcomes)
    outcomes[1, 0] = math.nan
    decisions = problem.decide(outcomes)
    assert decisions[1].isnan().all()
    torch.testing.assert_close(decisions[[0, 2]], expected[[0, 2]])
    costs = problem.cost(decisions, outcomes)
    assert costs.isnan().tolist() == [False, True, False]
    assert problem.cost(expected, outcomes).isnan().tolist() == [False, True, False]


# prescriptions


def test_many_threads_prescribe_the_same_as_one() -> None:
    """On one shared problem whose basis pools are still learning."""
    alone, shared = shipment_problem(), shipment_problem()
    outcomes = demands(24, 20, 12, level=20)
    risks = [EXPECTATION, Risk(1.0, 0.9), Risk(0.4, 0.8)]
    work = list(itertools.product(outcomes.split(2), risks))
    expected = [alone.prescribe(part, equal(20), risk) for part, risk in work]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda job: shared.prescribe(job[0], equal(20), job[1]), work))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.status == theirs.status == [Status.OPTIMAL] * 2
        torch.testing.assert_close(ours.objective, theirs.objective, rtol=1e-7, atol=0)


def test_integer_decisions_match_enumeration() -> None:
    problem = trucks()
    outcomes, weights = demands(5, 6, 1, level=10), torch.tensor([1, 2, 3, 1, 2, 1], dtype=torch.float64) / 10
    everything = torch.tensor([(s, g) for s in range(7) for g in range(5) if s + g <= 7], dtype=torch.float64)
    costs = problem.cost(everything[:, None, None], outcomes)
    found = problem.prescribe(outcomes, weights)
    assert (found.status, found.solvers) == ([Status.OPTIMAL] * 5, (HIGHS,) * 5)
    best = (costs @ weights).amin(dim=0)
    torch.testing.assert_close(found.objective, best)
    torch.testing.assert_close((problem.cost(found.decisions[:, None], outcomes) @ weights), best)
    worst = problem.prescribe(outcomes, equal(6), Risk(1.0, 5 / 6))
    torch.testing.assert_close(worst.objective, costs.amax(dim=2).amin(dim=0))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_integers_where_required(policy: str) -> None:
    problem = trucks()
    outcomes = demands(4, 5, 1, level=10)
    found = decide(problem, Scenarios(outcomes, equal(5), outcomes[:, 0]), policy, Terms(seeded()))
    assert (found.decisions == found.decisions.round()).all()
    assert problem.feasible(found.decisions[:, None], outcomes).all()
    assert found.solvers == (HIGHS,) * 4
    relaxed = trucks(whole=False)
    torch.testing.assert_close(problem.decide(outcomes), relaxed.decide(outcomes))
    assert not (problem.decide(outcomes) == problem.decide(outcomes).round()).all()
    assert not problem.feasible(problem.decide(outcomes), outcomes).all()


def test_learning_uses_the_relaxation_of_integer_decisions() -> None:
    contexts = torch.randn(40, 2, generator=seeded(), dtype=torch.float64)
    sample = Sample(contexts, 10 + 3 * contexts[:, :1] + demands(40, 1, level=1))
    options = make_options(method="vi", predictor="linear", members=2, epochs=2, particles=8)
    whole, relaxed = (learn(trucks(integer), sample, options).posterior for integer in (True, False))
    assert torch.equal(whole.particles, relaxed.particles)


def test_results_cut_off_by_a_time_limit_are_reported() -> None:
    problem, outcomes = shipment_problem(), demands(3, 10, 12, level=20)
    found = problem.prescribe(outcomes, equal(10), time_limit_seconds=0.0)
    assert found.status == [Status.TIME_LIMIT] * 3
    assert all("mean outcome" in reason for reason in found.reasons)
    torch.testing.assert_close(found.decisions, problem.decide(outcomes.mean(dim=1)))
    assert problem.prescribe(outcomes, equal(10), time_limit_seconds=600.0).status == [Status.OPTIMAL] * 3


@pytest.mark.slow
def test_a_time_limit_stops_the_cuts_with_the_best_decision_so_far() -> None:
    problem, outcomes = shipment_problem(), demands(1, 20_000, 12, level=20)
    weights = equal(20_000)
    began = time.process_time()
    whole = problem.prescribe(outcomes, weights)
    seconds = time.process_time() - began
    began = time.process_time()
    found = problem.prescribe(outcomes, weights, time_limit_seconds=0.3 * seconds)
    assert time.process_time() - began < 0.8 * seconds
    assert (whole.status, found.status, found.solvers) == ([Status.OPTIMAL], [Status.TIME_LIMIT], whole.solvers)
    assert "time limit" in found.reasons[0]
    cost = problem.cost(found.decisions[:, None], outcomes).mean().item()
    assert found.objective.item() == pytest.approx(cost, rel=1e-9)
    simple = problem.cost(problem.decide(outcomes.mean(dim=1))[:, None], outcomes).mean().item()
    assert whole.objective.item() < cost <= simple


def test_a_time_limit_on_integers_gives_an_admissible_decision_or_none() -> None:
    rng = np.random.default_rng(1)
    items = 40
    problem = TwoStageLinear.from_spec(
        {
            "decisions": [
                {"name": f"z{j}", "cost": -float(rng.uniform(5, 9)), "maximum": 1, "integer": True}
                for j in range(items)
            ],
            "decision_rows": [
                {
                    "coefficients": {f"z{j}": float(rng.uniform(1, 9)) for j in range(items)},
                    "sense": "<=",
                    "limit": 60,
                }
                for _ in range(8)
            ],
            "outcomes": [{"name": "y"}],
            "recourse": [{"name": "x", "cost": 1}],
            "rows": [{"recourse": {"x": 1}, "decisions": {"z0": 1}, "sense": ">=", "outcomes": {"y": 1}}],
        }
    )
    outcomes = torch.randn(1, 200, 1, generator=seeded(), dtype=torch.float64)
    found = problem.prescribe(outcomes, equal(200), time_limit_seconds=0.02)
    assert found.status == [Status.TIME_LIMIT]
    assert "time limit" in found.reasons[0]
    admissible = problem.feasible(found.decisions, outcomes).all() if found.decisions.isfinite().all() else None
    assert admissible is None or bool(admissible)


# specifications


def test_a_shipment_equals_its_explicit_two_stage_problem() -> None:
    sources, places = SHIPMENT["sources"], SHIPMENT["destinations"]
    costs: Any = SHIPMENT["transport_costs"]
    spelled: dict[str, Any] = {
        "decisions": [
            {"name": s["name"], "cost": s["order_cost"], "maximum": s.get("maximum_order")}  # type: ignore[index,attr-defined]
            for s in sources
        ],
        "outcomes": [{"name": place, "minimum": 0} for place in places],
        "recourse": [
            *({"name": f"{i}{j}", "cost": costs[i][j]} for i in range(2) for j in range(3)),
            *({"name": f"rush{i}", "cost": (100, 90)[i]} for i in range(2)),
        ],
        "rows": [
            *(
                {"recourse": {f"{i}{j}": 1 for i in range(2)}, "sense": ">=", "outcomes": {place: 1}}
                for j, place in enumerate(places)
            ),
            *(
                {
                    "recourse": {f"rush{i}": 1} | {f"{i}{j}": -1 for j in range(3)},
                    "decisions": {("north", "south")[i]: 1},
                    "sense": ">=",
                }
                for i in range(2)
            ),
        ],
    }
    ready_made, by_hand = TwoStageLinear.from_shipment(SHIPMENT), TwoStageLinear.from_spec(spelled)
    outcomes = demands(30, 3)
    torch.testing.assert_close(ready_made.decide(outcomes), by_hand.decide(outcomes))
    orders = demands(30, 2, seed=1)
    torch.testing.assert_close(ready_made.cost(orders, outcomes), by_hand.cost(orders, outcomes))
    mine, theirs = (p.prescribe(outcomes[None], equal(30), Risk(0.5, 0.9)) for p in (ready_made, by_hand))
    torch.testing.assert_close(mine.objective, theirs.objective)


def test_names_of_a_shipment_may_be_similar() -> None:
    source = {"order_cost": 1, "emergency_cost": 3}
    spec = {
        "sources": [{"name": "a to b", **source}, {"name": "a", **source}, {"name": "emergency a", **source}],
        "destinations": ["c", "b to c", "a"],
        "transport_costs": [[1, 2, 3]] * 3,
    }
    assert TwoStageLinear.from_shipment(spec).decision_dim == 3


def with_changes(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "decisions": [{"name": "z", "cost": 3}],
        "outcomes": [{"name": "y"}],
        "recourse": [{"name": "x", "cost": 5}],
        "rows": [{"recourse": {"x": 1}, "decisions": {"z": 1}, "sense": ">=", "outcomes": {"y": 1}}],
    }
    return base | changes


ROW: dict[str, Any] = with_changes()["rows"][0]
BAD: dict[str, tuple[dict[str, Any], tuple[str | int, ...], str]] = {
    "no decisions": (with_changes(decisions=[]), ("decisions",), "empty"),
    "no rows": (with_changes(rows=[]), ("rows",), "empty"),
    "no name": (with_changes(recourse=[{"cost": 1}]), ("recourse", 0, "name"), "names"),
    "a name twice": (with_changes(outcomes=[{"name": "y"}] * 2), ("outcomes", 1, "name"), "unique"),
    "an unknown recourse": (
        with_changes(rows=[ROW | {"recourse": {"w": 1}}]),
        ("rows", 0, "recourse", "w"),
        "this name",
    ),
    "an unknown decision": (
        with_changes(rows=[ROW | {"decisions": {"y": 1}}]),
        ("rows", 0, "decisions", "y"),
        "this name",
    ),
    "an unknown outcome": (
        with_changes(rows=[ROW | {"outcomes": {"x": 1}}]),
        ("rows", 0, "outcomes", "x"),
        "this name",
    ),
    "not a number": (with_changes(rows=[ROW | {"constant": math.nan}]), ("rows", 0, "constant"), "finite"),
    "an infinite cost": (with_changes(decisions=[{"name": "z", "cost": math.inf}]), ("decisions", 0, "cost"), "finite"),
    "text for a number": (with_changes(recourse=[{"name": "x", "cost": "5"}]), ("recourse", 0, "cost"), "finite"),
    "no limit": (
        with_changes(decision_rows=[{"coefficients": {"z": 1}, "sense": "<="}]),
        ("decision_rows", 0, "limit"),
        "finite",
    ),
    "a wrong sense": (with_changes(rows=[ROW | {"sense": "<"}]), ("rows", 0, "sense"), "<="),
    "bounds that cross": (
        with_changes(decisions=[{"name": "z", "cost": 3, "minimum": 2, "maximum": 1}]),
        ("decisions", 0, "minimum"),
        "above",
    ),
    "too large": (with_changes(rows=[ROW] * 201), ("rows",), "too large"),
    "no decision is allowed": (
        with_changes(decision_rows=[{"coefficients": {"z": 1}, "sense": "<=", "limit": -1}]),
        ("decision_rows",),
        "no decision satisfies",
    ),
    "recourse that earns without limit": (
        with_changes(recourse=[{"name": "x", "cost": -5}]),
        ("recourse",),
        "fall without limit",
    ),
    "decisions that earn without limit": (
        with_changes(decisions=[{"name": "z", "cost": -5}]),
        ("decisions",),
        "fall without limit",
    ),
}


@pytest.mark.parametrize(("spec", "where", "says"), BAD.values(), ids=list(BAD))
def test_an_invalid_specification_is_refused_at_its_field(
    spec: dict[str, Any], where: tuple[str | int, ...], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        TwoStageLinear.from_spec(spec)
    assert refused.value.where == where


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"transport_costs": [[1.0, 4.0, 2.5]]}, ("transport_costs",)),
        ({"transport_costs": [[1.0, 4.0, 2.5], [1.0, 4.0]]}, ("transport_costs",)),
        ({"transport_costs": [[1.0, 4.0, 2.5], [1.0, 4.0, None]]}, ("transport_costs", 1, 2)),
        ({"destinations": ["a", "a", "c"]}, ("destinations",)),
        ({"sources": []}, ("sources",)),
        ({"sources": [{"name": "n", "order_cost": 1}]}, ("sources", 0, "emergency_cost")),
    ],
    ids=["rows", "columns", "number", "destinations", "sources", "emergency"],
)
def test_an_invalid_shipment_is_refused_at_its_field(changes: dict[str, Any], where: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        TwoStageLinear.from_shipment(SHIPMENT | changes)
    assert refused.value.where == where


# the shipment experiment's data


def test_the_shipment_data_process_is_stationary() -> None:
    contexts = draw_contexts(4000, 2, seeded(3))
    assert contexts.shape == (4000, 5)
    early, late = contexts[:1000, :3].std(dim=0), contexts[-1000:, :3].std(dim=0)
    assert (late / early < 2).all()
    assert contexts[:, :3].abs().max() < 60


def test_shipment_demand_is_non_negative_and_reproducible() -> None:
    first, again = draw_sample(50, 3, seeded(4)), draw_sample(50, 3, seeded(4))
    assert (first.contexts.shape, first.outcomes.shape) == ((50, 6), (50, 12))
    assert (first.outcomes >= 0).all()
    assert (first.outcomes > 0).any()
    assert torch.equal(first.outcomes, again.outcomes)
