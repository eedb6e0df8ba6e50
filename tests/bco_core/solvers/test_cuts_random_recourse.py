"""Cutting planes with random costs and technology against the extensive form in highspy."""

from __future__ import annotations

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bco_core.deadlines import Flag
from bco_core.solvers import cuts
from bco_core.solvers.cuts import CutSolution, FirstStage, RecourseScenarios, RiskOf, minimize_random
from bco_core.solvers.dual_simplex import OPTIMAL
from bco_core.solvers.linear_form import LinearProgram
from bco_core.solvers.random_recourse import RandomRecourse
from tests.bco_core.solvers.test_random_recourse import bounded_costs
from tests.support.programs import Array, Random, entries, random_program

SEEDS = st.integers(0, 10**9)
RISKS = st.sampled_from([RiskOf(0.0, 0.9), RiskOf(1.0, 0.9), RiskOf(0.5, 0.6), RiskOf(1.0, 0.0), RiskOf(0.3, 0.99)])


def in_time() -> Flag:
    return np.zeros(1, dtype=bool)


def by_highs(
    program: LinearProgram, stages: RecourseScenarios, lower: Array, upper: Array, risk: RiskOf
) -> tuple[str, float]:
    """Solve all scenarios as one program in z, η and, per scenario, x and its excess over η; return status and
    objective."""
    model = highspy.Highs()
    model.silent()
    inf, dim, columns = highspy.kHighsInf, len(lower), len(program.cost)
    own = columns + 1
    total = dim + 1 + own * len(stages.weights)
    goal, least, most = np.zeros(total), np.full(total, -inf), np.full(total, inf)
    least[:dim], most[:dim], goal[dim] = lower, upper, risk.weight
    rows, low, high = [], [], []
    for k, weight in enumerate(stages.weights):
        x, excess = dim + 1 + k * own + np.arange(columns), dim + 1 + k * own + columns
        least[x], most[x], least[excess] = program.lower, program.upper, 0.0
        goal[:dim] += (1 - risk.weight) * weight * stages.cost[k]
        goal[x] = (1 - risk.weight) * weight * stages.recourse_cost[k]
        goal[excess] = risk.weight * weight / (1 - risk.level)
        for i, sense in enumerate(program.senses):
            row = np.zeros(total)
            row[:dim], row[x] = stages.technology[k % len(stages.technology), i], program.matrix[i]
            rows.append(row)
            low.append(stages.limits[k, i] if sense >= 0 else -inf)
            high.append(stages.limits[k, i] if sense <= 0 else inf)
        if risk.weight:
            row = np.zeros(total)
            row[:dim], row[x], row[dim], row[excess] = -stages.cost[k], -stages.recourse_cost[k], 1.0, 1.0
            rows.append(row)
            low.append(0.0)
            high.append(inf)
    model.addVars(total, least, most)
    model.changeColsCost(total, np.arange(total, dtype=np.int32), goal)
    for row, at_least, at_most in zip(rows, low, high, strict=True):
        used = np.flatnonzero(row).astype(np.int32)
        model.addRow(at_least, at_most, len(used), used, row[used])
    model.run()
    return model.modelStatusToString(model.getModelStatus()), model.getInfo().objective_function_value


def box(lower: Array, upper: Array, begin: Array) -> FirstStage:
    rows = np.concatenate([np.eye(len(lower)), -np.eye(len(lower))])
    return FirstStage(np.zeros(len(lower)), rows, np.concatenate([lower, -upper]), begin, 0.0)


def risk_of(costs: Array, weights: Array, risk: RiskOf) -> float:
    """Return CVaR by its definition: the minimum over η, attained at some cost."""
    tail = min(float(eta + weights @ np.maximum(costs - eta, 0) / (1 - risk.level)) for eta in costs)
    return float((1 - risk.weight) * weights @ costs + risk.weight * tail)


def certified_objective(recourse: RandomRecourse, stages: RecourseScenarios, found: CutSolution, risk: RiskOf) -> float:
    """Return the objective of a solution, by certified recourse."""
    solved = recourse.solve(stages.recourse_cost, stages.limits - stages.technology @ found.decision)
    assert (solved.status == OPTIMAL).all()
    assert solved.certified.all()
    return risk_of(solved.value + stages.cost @ found.decision, stages.weights, risk)


def complete_program(rng: Random, rows: int, columns: int, plain: bool) -> LinearProgram:
    """Return a random program with shortage and excess variables in every row, so recourse is complete."""
    inner = random_program(rng, rows, columns, plain)
    return LinearProgram(
        np.zeros(columns + 2 * rows),
        np.concatenate([inner.matrix, np.eye(rows), -np.eye(rows)], axis=1),
        inner.senses,
        np.concatenate([inner.lower, np.zeros(2 * rows)]),
        np.concatenate([inner.upper, np.full(2 * rows, np.inf)]),
    )


def draw_scenarios(
    rng: Random, program: LinearProgram, decisions: int, count: int, plain: bool, certain: bool
) -> RecourseScenarios:
    rows = len(program.matrix)
    technology = entries(rng, (rows, decisions), plain)
    if not certain:
        technology = technology + entries(rng, (count, rows, decisions), plain) * (rng.random((rows, decisions)) < 0.5)
    weights = rng.random(count) + 0.01
    return RecourseScenarios(
        bounded_costs(rng, program, count, plain),
        2 * entries(rng, (count, rows), plain),
        technology if technology.ndim == 3 else technology[None],
        entries(rng, (1, decisions), plain) + 0.3 * entries(rng, (count, decisions), plain),
        weights / weights.sum(),
    )


@given(SEEDS, st.integers(1, 6), st.integers(1, 5), st.sampled_from([1, 2, 7, 25]), RISKS, st.booleans(), st.booleans())
def test_the_cuts_reach_the_optimum_of_the_extensive_form(
    seed: int, decisions: int, rows: int, count: int, risk: RiskOf, plain: bool, certain: bool
) -> None:
    """Costs, limits and (unless ``certain``) technology are random in every scenario; rows of all senses; ties if
    plain."""
    rng = np.random.default_rng(seed)
    program = complete_program(rng, rows, rows + 2, plain)
    stages = draw_scenarios(rng, program, decisions, count, plain, certain)
    lower, upper = -2.0 * np.ones(decisions), 3.0 * np.ones(decisions)
    recourse = RandomRecourse.of(program)
    found = minimize_random(recourse, stages, box(lower, upper, np.zeros(decisions)), risk, 1e-7, in_time())
    ended, truth = by_highs(program, stages, lower, upper, risk)
    assert ended == "Optimal"
    assert found.outcome == cuts.CONVERGED
    objective = certified_objective(recourse, stages, found, risk)
    assert objective == pytest.approx(truth, rel=1e-6, abs=1e-6)
    assert found.bound <= truth + 1e-6 * (1 + abs(truth))
    assert objective - found.bound <= 1.1e-7 * abs(objective) + 1e-8
    assert found.objective == pytest.approx(objective, rel=1e-8, abs=1e-8)


@given(SEEDS, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_decisions_that_leave_a_scenario_without_recourse_are_cut_off(
    seed: int, decisions: int, rows: int, plain: bool
) -> None:
    """Recourse is incomplete: some or all points may leave scenarios infeasible."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, rows, rows + 2, plain)
    stages = draw_scenarios(rng, program, decisions, 6, plain, False)
    lower, upper = -2.0 * np.ones(decisions), 3.0 * np.ones(decisions)
    recourse, risk = RandomRecourse.of(program), RiskOf(0.0, 0.5)
    found = minimize_random(recourse, stages, box(lower, upper, np.zeros(decisions)), risk, 1e-7, in_time())
    ended, truth = by_highs(program, stages, lower, upper, risk)
    if found.outcome == cuts.CONVERGED:
        assert ended == "Optimal"
        assert certified_objective(recourse, stages, found, risk) == pytest.approx(truth, rel=1e-6, abs=1e-6)
    elif found.outcome == cuts.NO_DECISION:
        assert ended != "Optimal"
    else:
        # Cases too close to infeasible for a proof are left to HiGHS.
        assert found.outcome == cuts.OPEN


def test_an_unbounded_scenario_is_reported_by_its_number() -> None:
    """The cost is unbounded if no row limits x."""
    program = LinearProgram(np.zeros(2), np.array([[1.0, -1.0]]), np.array([1]), np.zeros(2), np.full(2, np.inf))
    costs = np.array([[1.0, 0.0], [1.0, -0.5], [1.0, -1.5], [1.0, 0.0]])
    stages = RecourseScenarios(
        costs, np.ones((4, 1)), np.ones((1, 1, 1)), np.ones((4, 1)), np.array([0.25, 0.25, 0.25, 0.25])
    )
    first = box(np.zeros(1), np.ones(1), np.zeros(1))
    found = minimize_random(RandomRecourse.of(program), stages, first, RiskOf(0.0, 0.0), 1e-7, in_time())
    assert (found.outcome, found.scenario) == (cuts.BOUNDLESS, 2)
    # A scenario without weight has no effect, and the others keep their numbers.
    light = stages._replace(weights=np.array([0.5, 0.5, 0.0, 0.0]))
    assert minimize_random(RandomRecourse.of(program), light, first, RiskOf(0.0, 0.0), 1e-7, in_time()).outcome == 0
    late = stages._replace(weights=np.array([0.0, 0.5, 0.5, 0.0]))
    assert minimize_random(RandomRecourse.of(program), late, first, RiskOf(0.0, 0.0), 1e-7, in_time()).scenario == 2


def test_first_stage_costs_count_inside_the_risk() -> None:
    """One good costs 2 ± 2, another exactly 2.5, and one unit is needed: the mean takes the first, the worst case the
    second."""
    program = LinearProgram(np.zeros(1), np.ones((1, 1)), np.array([1]), np.zeros(1), np.full(1, np.inf))
    stages = RecourseScenarios(
        np.full((2, 1), 100.0),
        np.ones((2, 1)),
        np.ones((1, 1, 2)),
        np.array([[0.0, 2.5], [4.0, 2.5]]),
        np.array([0.5, 0.5]),
    )
    first = box(np.zeros(2), np.full(2, 5.0), np.zeros(2))
    recourse = RandomRecourse.of(program)
    mean = minimize_random(recourse, stages, first, RiskOf(0.0, 0.0), 1e-7, in_time())
    worst = minimize_random(recourse, stages, first, RiskOf(1.0, 0.5), 1e-7, in_time())
    np.testing.assert_allclose(mean.decision, [1.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(worst.decision, [0.0, 1.0], atol=1e-7)
    assert (mean.objective, worst.objective) == (pytest.approx(2.0), pytest.approx(2.5))


def test_equal_scenarios_count_as_one() -> None:
    rng = np.random.default_rng(11)
    program = complete_program(rng, 3, 5, False)
    one = draw_scenarios(rng, program, 3, 1, False, False)
    many = RecourseScenarios(*(np.repeat(part, 40, axis=0) for part in one[:-1]), np.full(40, 1 / 40))
    first = box(-np.ones(3), np.ones(3), np.zeros(3))
    for risk in (RiskOf(0.0, 0.0), RiskOf(1.0, 0.8)):
        single = minimize_random(RandomRecourse.of(program), one, first, risk, 1e-7, in_time())
        several = minimize_random(RandomRecourse.of(program), many, first, risk, 1e-7, in_time())
        assert several.objective == pytest.approx(single.objective, rel=2e-7, abs=1e-9)


@pytest.mark.parametrize("money", [1e-6, 1e9])
@pytest.mark.parametrize("amounts", [1e-5, 1e8])
def test_answers_are_invariant_to_units(money: float, amounts: float) -> None:
    rng = np.random.default_rng(4)
    program = complete_program(rng, 4, 5, False)
    stages = draw_scenarios(rng, program, 3, 30, False, False)
    scaled_program = LinearProgram(
        program.cost, program.matrix, program.senses, program.lower * amounts, program.upper * amounts
    )
    scaled = stages._replace(
        recourse_cost=stages.recourse_cost * money, limits=stages.limits * amounts, cost=stages.cost * money
    )
    lower, upper, begin = -2.0 * np.ones(3), 3.0 * np.ones(3), np.zeros(3)
    for risk in (RiskOf(0.0, 0.0), RiskOf(0.7, 0.8)):
        plain = minimize_random(RandomRecourse.of(program), stages, box(lower, upper, begin), risk, 1e-7, in_time())
        far = box(lower * amounts, upper * amounts, begin)
        other = minimize_random(RandomRecourse.of(scaled_program), scaled, far, risk, 1e-7, in_time())
        assert (plain.outcome, other.outcome) == (cuts.CONVERGED, cuts.CONVERGED)
        assert other.objective / (money * amounts) == pytest.approx(plain.objective, rel=1e-6)


def test_a_search_out_of_time_reports_it() -> None:
    rng = np.random.default_rng(9)
    program = complete_program(rng, 3, 4, False)
    stages = draw_scenarios(rng, program, 2, 10, False, False)
    first = box(-np.ones(2), np.ones(2), np.zeros(2))
    found = minimize_random(RandomRecourse.of(program), stages, first, RiskOf(0.0, 0.0), 1e-7, np.ones(1, dtype=bool))
    assert found.outcome == cuts.STOPPED
    assert found.bound == -np.inf
