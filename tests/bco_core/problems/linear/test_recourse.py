"""The fast path of linear models with fixed recourse, against hand-built programs in HiGHS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_core import deadlines
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.build import build_linear
from bco_core.problems.linear.general import GeneralLinear
from bco_core.problems.linear.model import read_model
from bco_core.problems.linear.recourse import FixedRecourse
from bco_core.solvers import cuts, highs
from bco_core.solvers.cuts import RecourseScenarios, RiskOf
from bco_core.solvers.linear_form import LinearProgram
from bco_core.status import CUTS, GAP
from tests.bco_core.solvers.test_cuts_random_recourse import by_highs
from tests.support.programs import Array, Random

SEEDS = st.integers(0, 10**9)
DECISIONS, ROWS, OUTCOMES = 3, 4, 3
SENSES = ("<=", "=", ">=")


def number(rng: Random, scale: float = 1.0, uncertain: float = 0.6) -> Any:
    """Return a constant, or one plus terms in the outcomes."""
    constant = float(scale * rng.normal())
    if rng.random() > uncertain:
        return constant
    some = rng.choice(OUTCOMES, 2, replace=False)
    return {"constant": constant, "outcomes": {f"y{at}": float(0.3 * scale * rng.normal()) for at in some}}


def random_spec(rng: Random, integer: bool = False) -> dict[str, Any]:
    """Draw a model whose costs, limits and technology depend on outcomes.

    Each row has shortage and excess variables at uncertain prices. One row holds decisions only.
    """
    senses = rng.choice(SENSES, ROWS)
    mends = [
        {"name": f"{side}{i}", "cost": {"constant": 4.0 + i, "outcomes": {f"y{i % OUTCOMES}": 0.5}}}
        for i in range(ROWS)
        for side in ("short", "over")
    ]
    return {
        "decisions": [
            {"name": f"z{j}", "cost": number(rng), "minimum": -1, "maximum": 2, "integer": integer}
            for j in range(DECISIONS)
        ],
        "recourse": [
            *({"name": f"x{j}", "cost": number(rng), "minimum": -1, "maximum": 1.5} for j in range(3)),
            *mends,
        ],
        "outcomes": [{"name": f"y{at}", "minimum": -2, "maximum": 2} for at in range(OUTCOMES)],
        "rows": [
            {"decisions": {f"z{j}": 1.0 for j in range(DECISIONS)}, "sense": "<=", "limit": 2.5},
            *(
                {
                    "decisions": {f"z{j}": number(rng) for j in range(DECISIONS)},
                    "recourse": {f"x{j}": float(rng.normal()) for j in range(3)} | {f"short{i}": 1.0, f"over{i}": -1.0},
                    "sense": str(senses[i]),
                    "limit": number(rng, 2.0, 0.8),
                }
                for i in range(ROWS)
            ),
        ],
    }


def value(number: Any, outcome: Array) -> float:
    if isinstance(number, dict):
        return float(number["constant"] + sum(h * outcome[int(y[1:])] for y, h in number["outcomes"].items()))
    return float(number)


def build_by_hand(spec: dict[str, Any], atoms: Array) -> tuple[LinearProgram, RecourseScenarios]:
    """Build the recourse program and scenarios entry by entry; the first row is a recourse row."""
    z, x = [part["name"] for part in spec["decisions"]], [part["name"] for part in spec["recourse"]]
    rows = spec["rows"]
    program = LinearProgram(
        np.zeros(len(x)),
        np.array([[row.get("recourse", {}).get(name, 0.0) for name in x] for row in rows]),
        np.array([SENSES.index(row["sense"]) - 1 for row in rows]),
        np.array([part.get("minimum", 0.0) for part in spec["recourse"]], dtype=float),
        np.array([part.get("maximum", np.inf) for part in spec["recourse"]], dtype=float),
    )
    stages = RecourseScenarios(
        np.array([[value(part["cost"], y) for part in spec["recourse"]] for y in atoms]),
        np.array([[value(row["limit"], y) for row in rows] for y in atoms]),
        np.array([[[value(row["decisions"].get(name, 0.0), y) for name in z] for row in rows] for y in atoms]),
        np.array([[value(part["cost"], y) for part in spec["decisions"]] for y in atoms]),
        np.full(len(atoms), 1 / len(atoms)),
    )
    return program, stages


def build_fast(spec: dict[str, Any]) -> FixedRecourse:
    found = FixedRecourse.of(read_model(spec))
    assert found is not None
    return found


@given(SEEDS)
def test_costs_match_highs_pair_by_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = random_spec(rng)
    decisions, outcomes = rng.uniform(-1, 0.8, (8, DECISIONS)), rng.uniform(-2, 2, (8, OUTCOMES))
    costs = build_fast(spec).cost(torch.from_numpy(decisions), torch.from_numpy(outcomes))
    program, stages = build_by_hand(spec, outcomes)
    for at, z in enumerate(decisions):
        one = replace(program, cost=stages.recourse_cost[at])
        truth = highs.solve_program(one, stages.limits[at] - stages.technology[at] @ z).objective + stages.cost[at] @ z
        assert costs[at].item() == pytest.approx(truth, rel=1e-7, abs=1e-7)


@given(SEEDS)
def test_derivatives_match_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = build_fast(random_spec(rng))
    z = torch.from_numpy(rng.uniform(-1, 2, (5, DECISIONS))).requires_grad_()
    y = torch.from_numpy(rng.uniform(-2, 2, (5, OUTCOMES))).requires_grad_()
    stages.cost(z, y).sum().backward()  # type: ignore[no-untyped-call]
    step = 1e-6
    for tensor, other in ((z, y), (y, z)):
        assert tensor.grad is not None
        for column in range(tensor.shape[1]):
            ahead, behind = tensor.detach().clone(), tensor.detach().clone()
            ahead[:, column] += step
            behind[:, column] -= step
            still = other.detach()
            pair = [(moved, still) if tensor is z else (still, moved) for moved in (ahead, behind)]
            difference = (stages.cost(*pair[0]) - stages.cost(*pair[1])) / (2 * step)
            # A kink between the two points is possible, but unlikely in most of five draws.
            close = torch.isclose(difference, tensor.grad[:, column], rtol=1e-4, atol=1e-4)
            assert close.sum() >= 4


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([EXPECTATION, Risk(1.0, 0.8), Risk(0.4, 0.5)]))
def test_decisions_are_optimal_over_scenarios_with_a_proven_bound(seed: int, risk: Risk) -> None:
    rng = np.random.default_rng(seed)
    spec = random_spec(rng)
    atoms = rng.uniform(-2, 2, (15, OUTCOMES))
    program, stages = build_by_hand(spec, atoms)
    with deadlines.alarm(None) as rung:
        found = build_fast(spec).minimize(atoms, stages.weights, risk, GAP, 0.0, rung)
    lower, upper = np.full(DECISIONS, -1.0), np.full(DECISIONS, 2.0)
    _, truth = by_highs(program, stages, lower, upper, RiskOf(risk.cvar_weight, risk.cvar_level))
    assert found is not None
    assert (found.status, found.solver) == (Status.OPTIMAL, CUTS)
    assert found.objective == pytest.approx(truth, rel=1e-6, abs=1e-6)
    assert found.bound <= truth + 1e-7 * (1 + abs(truth))
    assert found.decision.sum() <= 2.5 + 1e-8


def test_non_finite_input_has_no_cost() -> None:
    stages = build_fast(random_spec(np.random.default_rng(0)))
    costs = stages.cost(torch.tensor([[0.0, 0.0, torch.nan], [0.0, 0.0, 0.0]]), torch.zeros(2, OUTCOMES))
    assert costs.isnan().tolist() == [True, False]


def test_a_row_without_recourse_holds_in_every_scenario() -> None:
    """y z ≥ 2 for y of 0.5, 1 and 4 requires z ≥ 4; with z ≤ 3 the problem is infeasible."""
    spec: dict[str, Any] = {
        "decisions": [{"name": "z", "cost": 1, "maximum": 10}],
        "recourse": [{"name": "x", "cost": {"outcomes": {"y": 1}}}],
        "outcomes": [{"name": "y"}],
        "rows": [
            {"decisions": {"z": {"outcomes": {"y": 1}}}, "sense": ">=", "limit": 2},
            {"decisions": {"z": 1}, "recourse": {"x": 1}, "sense": ">=", "limit": 5},
        ],
    }
    atoms, weights = np.array([[0.5], [1.0], [4.0]]), np.full(3, 1 / 3)
    with deadlines.alarm(None) as rung:
        found = build_fast(spec).minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung)
        assert found is not None
        assert found.decision == pytest.approx([5.0])
        cheap = spec | {"decisions": [{"name": "z", "cost": 5, "maximum": 10}]}
        least = build_fast(cheap).minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung)
        assert least is not None
        assert least.decision == pytest.approx([4.0])
        short = spec | {"decisions": [{"name": "z", "cost": 1, "maximum": 3}]}
        assert build_fast(short).minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung) is None
    costs = build_fast(spec).cost(torch.tensor([[4.0], [3.9]]), torch.tensor([[0.5], [0.5]]))
    assert costs.isinf().tolist() == [False, True]


@pytest.mark.parametrize("change", ["whole recourse", "random recourse matrix", "no recourse", "too large"])
def test_unsupported_models_are_left_to_the_general_path(change: str) -> None:
    spec = random_spec(np.random.default_rng(0))
    if change == "whole recourse":
        spec["recourse"][0]["integer"] = True
    elif change == "random recourse matrix":
        spec["rows"][1]["recourse"]["x0"] = {"constant": 1, "outcomes": {"y0": 1}}
    elif change == "no recourse":
        spec["recourse"] = []
        spec["rows"] = spec["rows"][:1]
    else:
        spec["recourse"] += [{"name": f"more{j}", "maximum": 1} for j in range(201)]
    assert FixedRecourse.of(read_model(spec)) is None


def test_integer_decisions_have_fast_costs_but_are_searched_elsewhere() -> None:
    spec = random_spec(np.random.default_rng(1), integer=True)
    stages = build_fast(spec)
    assert stages.cost(torch.ones(1, DECISIONS), torch.zeros(1, OUTCOMES)).isfinite().all()
    with deadlines.alarm(None) as rung:
        assert stages.minimize(np.zeros((1, OUTCOMES)), np.ones(1), EXPECTATION, GAP, 0.0, rung) is None


def test_a_decision_without_a_proving_bound_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel claims that the gap is closed, but the recomputed risk disagrees."""
    rng = np.random.default_rng(2)
    stages, atoms, weights = build_fast(random_spec(rng)), rng.uniform(-2, 2, (9, OUTCOMES)), np.full(9, 1 / 9)
    kernel = cuts.minimize_random

    def return_other_decision(*given: Any) -> cuts.CutSolution:
        found = kernel(*given)
        return found._replace(decision=np.clip(found.decision + 0.5, -1, 0.5))

    with deadlines.alarm(None) as rung:
        assert stages.minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung) is not None
        monkeypatch.setattr(cuts, "minimize_random", return_other_decision)
        assert stages.minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung) is None


def test_out_of_time_returns_the_best_decision_so_far_without_a_bound() -> None:
    rng = np.random.default_rng(2)
    stages, atoms, weights = build_fast(random_spec(rng)), rng.uniform(-2, 2, (9, OUTCOMES)), np.full(9, 1 / 9)
    with deadlines.alarm(0.0) as rung:
        found = stages.minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung)
    assert found is not None
    assert found.status is Status.TIME_LIMIT
    assert np.isnan(found.bound)
    costs = stages.cost(torch.from_numpy(found.decision), torch.from_numpy(atoms))
    assert found.objective == pytest.approx(costs.mean().item())


def test_thousands_of_pairs_are_certified_without_highs() -> None:
    rng = np.random.default_rng(7)
    stages = build_fast(random_spec(rng))
    solved = stages.solve(rng.uniform(-1, 2, (5000, DECISIONS)), rng.uniform(-2, 2, (5000, OUTCOMES)))
    assert solved.certified.all()
    assert stages.recourse.fallbacks == 0


def test_the_general_problem_uses_the_fast_paths_derivatives_and_decisions() -> None:
    rng = np.random.default_rng(3)
    spec = random_spec(rng)
    problem, stages = build_linear(spec), build_fast(spec)
    assert isinstance(problem, GeneralLinear)
    y = torch.from_numpy(rng.uniform(-2, 2, (20, OUTCOMES)))
    slopes = []
    for cost in (problem.cost, stages.cost):
        z = torch.full((DECISIONS,), 0.3, dtype=torch.float64, requires_grad=True)
        cost(z, y).mean().backward()  # type: ignore[no-untyped-call]
        assert z.grad is not None
        slopes.append(z.grad)
    torch.testing.assert_close(*slopes)
    found = problem.prescribe(y[None], torch.full((20,), 0.05, dtype=torch.float64))
    assert (found.status, found.solvers) == ([Status.OPTIMAL], (CUTS,))
    torch.testing.assert_close(problem.cost(found.decisions, y).mean(), found.objective[0])
