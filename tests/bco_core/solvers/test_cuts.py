"""Cutting planes against the extensive form in HiGHS, and independently in cvxpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.two_stage import TwoStageLinear, solve_extensive
from bco_core.solvers import cuts
from bco_core.status import CUTS, HIGHS
from bco_core.weighted_stats import sort_atoms, sorted_cvar
from tests.support.programs import entries, random_two_stage, saa_by_cvxpy

SEEDS = st.integers(0, 10**9)
RISKS = st.sampled_from([EXPECTATION, Risk(1.0, 0.9), Risk(0.5, 0.6), Risk(1.0, 0.0), Risk(0.3, 0.99)])


def risk_of(costs: torch.Tensor, weights: torch.Tensor, risk: Risk) -> float:
    """(1 − w)·E + w·CVaR by the sorted tail."""
    tail = sorted_cvar(*sort_atoms(costs, weights), risk.cvar_level).item()
    return (1 - risk.cvar_weight) * float(costs @ weights) + risk.cvar_weight * tail


@given(SEEDS, st.integers(1, 8), st.integers(1, 6), st.sampled_from([1, 2, 7, 30]), RISKS, st.booleans(), st.booleans())
def test_the_cuts_reach_the_optimum_of_the_extensive_form(
    seed: int, decisions: int, rows: int, count: int, risk: Risk, plain: bool, alike: bool
) -> None:
    """One to eight decisions, free and bounded; rows of all senses in both stages; uneven weights; duplicate
    scenarios."""
    rng = np.random.default_rng(seed)
    problem = TwoStageLinear.from_spec(random_two_stage(rng, decisions, rows, plain=plain))
    atoms = 2 * entries(rng, (count, 2), plain)
    if alike:
        atoms[:] = atoms[0]
    weights = rng.random(count) + 0.01
    weights /= weights.sum()
    outcomes, shares = torch.from_numpy(atoms), torch.from_numpy(weights)
    found = problem.prescribe(outcomes[None], shares, risk)
    truth = solve_extensive(problem.stages, atoms, weights, risk, None)
    assert (found.status, found.solvers, found.reasons) == ([Status.OPTIMAL], (CUTS,), ("",))
    assert found.objective.item() == pytest.approx(truth.objective, rel=2e-7, abs=2e-7)
    assert problem.feasible(found.decisions, outcomes).all()
    costs = problem.cost(found.decisions, outcomes)
    assert risk_of(costs, shares, risk) == pytest.approx(found.objective.item(), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("seed", [0, 1, 4, 6])
def test_the_remaining_gap_with_many_scenarios_is_as_stated(seed: int) -> None:
    """Many scenarios make the objective nearly smooth, so cuts approach its optimum without reaching it."""
    rng = np.random.default_rng(seed)
    problem = TwoStageLinear.from_spec(random_two_stage(rng, 3, 4))
    atoms, weights = rng.normal(size=(400, 2)), np.full(400, 1 / 400)
    found = problem.prescribe(torch.from_numpy(atoms)[None], torch.from_numpy(weights))
    assert found.solvers == (CUTS,)
    truth = solve_extensive(problem.stages, atoms, weights, EXPECTATION, None)
    assert found.objective.item() == pytest.approx(truth.objective, rel=1.5e-7, abs=0)


@settings(max_examples=6)
@given(SEEDS, RISKS)
def test_the_cuts_reach_the_optimum_of_cvxpy(seed: int, risk: Risk) -> None:
    rng = np.random.default_rng(seed)
    spec = random_two_stage(rng)
    problem = TwoStageLinear.from_spec(spec)
    atoms, weights = rng.normal(size=(5, 2)), np.array([0.1, 0.3, 0.2, 0.15, 0.25])
    found = problem.prescribe(torch.from_numpy(atoms)[None], torch.from_numpy(weights), risk)
    truth = saa_by_cvxpy(spec, atoms, weights, risk.cvar_weight, risk.cvar_level)
    assert found.objective.item() == pytest.approx(truth, rel=1e-5, abs=1e-5)
    large = solve_extensive(problem.stages, atoms, weights, risk, None)
    assert large.objective == pytest.approx(truth, rel=1e-5, abs=1e-5)


@given(SEEDS, st.integers(1, 40), st.floats(0, 1), st.floats(0, 0.99))
def test_risk_weights_are_probabilities_that_give_the_sorted_tail(
    seed: int, count: int, cvar_weight: float, cvar_level: float
) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.integers(0, 9, count).astype(float), rng.random(count) + 1e-3
    weights /= weights.sum()
    shares = np.empty(count)
    cuts.risk_weights(values, weights, cvar_weight, cvar_level, rng.permutation(count), shares)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1)
    risk = Risk(cvar_weight, cvar_level)
    expected = risk_of(torch.from_numpy(values), torch.from_numpy(weights), risk)
    assert shares @ values == pytest.approx(expected, abs=1e-9)


def capped_problem(most: float | None = None) -> TwoStageLinear:
    """Order z; recourse covers at most two units of shortage, so the decision for the mean may be infeasible."""
    return TwoStageLinear.from_spec(
        {
            "decisions": [{"name": "z", "cost": 3, "maximum": most}],
            "outcomes": [{"name": "demand", "minimum": 0, "maximum": 10}],
            "recourse": [{"name": "x", "cost": 5, "maximum": 2}, {"name": "rest", "cost": 1}],
            "rows": [
                {"recourse": {"x": 1, "rest": -1}, "decisions": {"z": 1}, "sense": "=", "outcomes": {"demand": 1}}
            ],
        }
    )


def test_a_point_that_leaves_a_scenario_without_recourse_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.problems.linear.two_stage.check_recourse", lambda *_: None)
    problem = capped_problem()
    atoms = torch.tensor([[[1.0], [2.0], [9.0]]], dtype=torch.float64)
    weights = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
    found = problem.prescribe(atoms, weights)
    assert found.status == [Status.OPTIMAL]
    assert found.decisions.item() == pytest.approx(7)
    assert found.objective.item() == pytest.approx(21 + 0.5 * 6 + 0.4 * 5 + 0.1 * 10)
    assert problem.cost(found.decisions - 0.1, atoms)[0].isinf().tolist() == [False, False, True]


def test_infeasible_scenarios_are_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.problems.linear.two_stage.check_recourse", lambda *_: None)
    problem = capped_problem(most=5)
    atoms = torch.tensor([[[1.0], [9.0]], [[1.0], [6.0]]], dtype=torch.float64)
    found = problem.prescribe(atoms, torch.full((2,), 0.5, dtype=torch.float64))
    assert found.status == [Status.INFEASIBLE, Status.OPTIMAL]
    assert "recourse" in found.reasons[0]
    assert found.decisions[0].isnan().all()
    assert found.objective[0].isnan()
    assert found.decisions[1].item() == pytest.approx(4)


def test_highs_solves_what_the_cuts_leave_open_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    problem = TwoStageLinear.from_spec(random_two_stage(rng))
    atoms, weights = torch.from_numpy(rng.normal(size=(2, 6, 2))), torch.full((6,), 1 / 6, dtype=torch.float64)
    quick = problem.prescribe(atoms, weights)
    kernel = cuts.minimize
    monkeypatch.setattr(cuts, "minimize", lambda *a: (*kernel(*a)[:3], cuts.OPEN, 1))
    slow = problem.prescribe(atoms, weights)
    assert (quick.solvers, slow.solvers) == ((CUTS, CUTS), (HIGHS, HIGHS))
    assert slow.status == [Status.OPTIMAL] * 2
    torch.testing.assert_close(slow.objective, quick.objective, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("amounts", [1e-6, 1e9])
@pytest.mark.parametrize("money", [1e-6, 1e9])
def test_answers_are_invariant_to_units(amounts: float, money: float) -> None:
    rng = np.random.default_rng(8)
    costs = {"order": 5.0, "rush": 20.0, "left": 1.0}
    atoms = torch.from_numpy(rng.gamma(2.0, 10.0, (1, 40, 1)))
    weights = torch.full((40,), 1 / 40, dtype=torch.float64)

    def newsvendor(scale: float) -> TwoStageLinear:
        return TwoStageLinear.from_spec(
            {
                "decisions": [{"name": "order", "cost": scale * costs["order"]}],
                "outcomes": [{"name": "demand"}],
                "recourse": [{"name": name, "cost": scale * costs[name]} for name in ("rush", "left")],
                "rows": [
                    {
                        "recourse": {"rush": 1, "left": -1},
                        "decisions": {"order": 1},
                        "sense": "=",
                        "outcomes": {"demand": 1},
                    }
                ],
            }
        )

    for risk in (EXPECTATION, Risk(0.7, 0.8)):
        plain = newsvendor(1.0).prescribe(atoms, weights, risk)
        scaled = newsvendor(money).prescribe(amounts * atoms, weights, risk)
        assert scaled.status == [Status.OPTIMAL]
        torch.testing.assert_close(scaled.objective / (amounts * money), plain.objective, rtol=1e-6, atol=0)
