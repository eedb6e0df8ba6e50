"""Recourse with random costs, pair by pair, against HiGHS on the original program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bco_core.problems.base import Status
from bco_core.solvers import highs
from bco_core.solvers.dual_simplex import INFEASIBLE, OPTIMAL, UNBOUNDED
from bco_core.solvers.linear_form import LinearForm, LinearProgram
from bco_core.solvers.random_recourse import CAPACITY, RandomRecourse
from tests.support.programs import Array, entries, random_program, reachable_limits

SEEDS = st.integers(0, 10**9)


def bounded_costs(rng: np.random.Generator, program: LinearProgram, count: int, plain: bool) -> Array:
    """Return costs (count, columns) = W'π + d with signs that make every (π, d) dual feasible."""
    dual = entries(rng, (count, len(program.matrix)), plain)
    dual = np.where(program.senses == 0, dual, np.abs(dual) * program.senses)
    low, high = np.isfinite(program.lower), np.isfinite(program.upper)
    slack = np.abs(entries(rng, (count, len(program.cost)), plain))
    signs = np.where(low & high, rng.choice([-1.0, 1.0], len(low)), low.astype(float) - high.astype(float))
    return dual @ program.matrix + signs * slack


@given(SEEDS, st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_values_match_highs_and_have_a_certificate(seed: int, rows: int, columns: int, plain: bool) -> None:
    """Rows of all senses, all kinds of bounds; ``plain`` entries are small integers, so ties are common."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, rows, columns, plain)
    costs, limits = bounded_costs(rng, program, 40, plain), reachable_limits(rng, program, 40, plain)
    solved = RandomRecourse.of(program).solve(costs, limits)
    assert (solved.status == OPTIMAL).all()
    assert solved.certified.all()
    for at in range(40):
        truth = highs.solve_program(replace(program, cost=costs[at]), limits[at])
        assert truth.status is Status.OPTIMAL
        assert solved.value[at] == pytest.approx(truth.objective, rel=1e-6, abs=1e-6)
        x = solved.primal[at]
        assert costs[at] @ x == pytest.approx(solved.value[at], rel=1e-7, abs=1e-7)
        gap = program.matrix @ x - limits[at]
        assert (np.where(program.senses == 0, -np.abs(gap), gap * program.senses) >= -1e-7).all()
        assert (x >= program.lower - 1e-7).all()
        assert (x <= program.upper + 1e-7).all()


@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_status_matches_highs_for_any_costs_and_limits(seed: int, rows: int, columns: int) -> None:
    """Programs may be unbounded or infeasible: both are reported, and nothing cycles."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, rows, columns, plain=True)
    costs, limits = entries(rng, (20, columns), True), 2 * entries(rng, (20, rows), True)
    recourse = RandomRecourse.of(program)
    solved = recourse.solve(costs, limits)
    for at in range(20):
        truth = highs.solve_program(replace(program, cost=costs[at]), limits[at])
        if truth.status is Status.OPTIMAL:
            assert solved.status[at] == OPTIMAL
            assert solved.value[at] == pytest.approx(truth.objective, rel=1e-7, abs=1e-7)
        elif truth.status is Status.INFEASIBLE:
            # Unboundedness is proven by a direction, which does not depend on the rows' limits.
            assert solved.status[at] in (INFEASIBLE, UNBOUNDED)
        else:
            assert solved.status[at] == UNBOUNDED
            assert solved.value[at] == -np.inf


@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_duals_are_derivatives_by_the_limits(seed: int, rows: int, columns: int) -> None:
    """The value is convex in the limits and the duals are a subgradient: the tangent plane lies below."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, rows, columns)
    cost = np.repeat(bounded_costs(rng, program, 1, False), 30, axis=0)
    limits = reachable_limits(rng, program, 30)
    solved = RandomRecourse.of(program).solve(cost, limits)
    planes = solved.value[:, None] + np.einsum("ar,abr->ab", solved.dual, limits[None] - limits[:, None])
    assert (planes <= solved.value + 1e-6 * (1 + np.abs(planes) + np.abs(solved.value))).all()


def test_an_infeasible_answer_has_a_ray_that_proves_it() -> None:
    """x ≤ 3 cannot give x ≥ 5."""
    program = LinearProgram(np.zeros(1), np.ones((1, 1)), np.array([1]), np.zeros(1), np.full(1, 3.0))
    solved = RandomRecourse.of(program).solve(np.array([[2.0], [2.0], [-1.0]]), np.array([[2.0], [5.0], [2.0]]))
    assert solved.status.tolist() == [OPTIMAL, INFEASIBLE, OPTIMAL]
    assert solved.value.tolist() == [4.0, np.inf, -3.0]
    assert solved.certified.all()
    ray = solved.dual[1, 0]
    assert ray > 0
    assert ray * (5.0 - 3.0) > 0


@pytest.mark.parametrize("money", [1e-7, 1.0, 1e9])
@pytest.mark.parametrize("amounts", [1e-6, 1.0, 1e8])
def test_answers_are_invariant_to_units(money: float, amounts: float) -> None:
    """Each recourse column and row has its own units, with tiny or huge costs and amounts."""
    rng = np.random.default_rng(3)
    program = random_program(rng, 5, 7)
    costs, limits = bounded_costs(rng, program, 60, False), reachable_limits(rng, program, 60)
    plain = RandomRecourse.of(program).solve(costs, limits)
    by_row, by_column = 10.0 ** rng.integers(-4, 5, 5), 10.0 ** rng.integers(-4, 5, 7)
    scaled = LinearProgram(
        program.cost,
        program.matrix * by_row[:, None] / by_column,
        program.senses,
        program.lower * by_column * amounts,
        program.upper * by_column * amounts,
    )
    other = RandomRecourse.of(scaled).solve(money * costs / by_column, amounts * limits * by_row)
    assert other.certified.all()
    np.testing.assert_allclose(other.value, plain.value * money * amounts, rtol=1e-7, atol=1e-9 * money * amounts)


def test_the_pool_learns_starts_and_stays_bounded() -> None:
    rng = np.random.default_rng(5)
    program = random_program(rng, 8, 12)
    recourse = RandomRecourse.of(program)
    costs, limits = bounded_costs(rng, program, 3000, False), reachable_limits(rng, program, 3000)
    first = recourse.solve(costs, limits)
    assert 1 < len(recourse.pool.columns) <= CAPACITY
    again = recourse.solve(costs, limits)
    np.testing.assert_allclose(again.value, first.value, rtol=1e-9, atol=1e-9)
    assert first.certified.all()


def test_highs_solves_answers_without_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    program = random_program(rng, 4, 6)
    costs, limits = bounded_costs(rng, program, 12, False), reachable_limits(rng, program, 12)
    truth = RandomRecourse.of(program).solve(costs, limits)
    broken = RandomRecourse.of(program)
    rows = len(broken.form.matrix)
    # The start is no valid basis, so every answer from it fails.
    broken.pool = broken.pool._replace(inverse=np.full((1, rows, rows), np.nan))
    monkeypatch.setattr("bco_core.solvers.random_recourse.CAPACITY", 1)
    asked: list[LinearForm] = []
    by_highs = highs.solve_form

    def count_calls(form: LinearForm, rhs: Array) -> highs.FormAnswer:
        asked.append(form)
        return by_highs(form, rhs)

    monkeypatch.setattr(highs, "solve_form", count_calls)
    solved = broken.solve(costs, limits)
    assert len(asked) == broken.fallbacks == 12
    assert solved.certified.all()
    np.testing.assert_allclose(solved.value, truth.value, rtol=1e-7, atol=1e-9)
