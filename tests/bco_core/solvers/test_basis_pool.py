"""The basis pool against HiGHS on the original program, and against cvxpy with another solver."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_core.errors import InvalidInput
from bco_core.problems.base import Status
from bco_core.solvers import basis_pool, highs
from bco_core.solvers.basis_pool import FAILED, INFEASIBLE, OPTIMAL, BasisPool, PoolSolutions
from bco_core.solvers.linear_form import LinearForm, LinearProgram, linear_form
from tests.support.programs import Array, entries, random_program, reachable_limits, solve_by_cvxpy

SEEDS = st.integers(0, 10**9)


def pool_of(program: LinearProgram) -> BasisPool:
    form = linear_form(program)
    return BasisPool.of(form, np.arange(form.matrix.shape[1]))


def solve(pool: BasisPool, limits: Array, jacobian: bool = False) -> PoolSolutions:
    return pool.solve(*map(torch.from_numpy, pool.form.rhs(np.atleast_2d(limits))), jacobian=jacobian)


def values_of(pool: BasisPool, solved: PoolSolutions) -> Array:
    """Return the original program's variables (n, columns)."""
    found: Array = pool.form.offset + solved.primal @ pool.form.by_column.T
    return found


def is_ray(form: LinearForm, limits: Array, ray: Array) -> bool:
    """Whether σ proves that A x ≥ b, x ≥ 0 has no solution (Farkas)."""
    rhs, _ = form.rhs(limits)
    size = np.abs(ray).max()
    return bool((ray >= -1e-9 * size).all() and (ray @ form.matrix <= 1e-8 * size).all() and ray @ rhs > 0)


def assert_optimal(
    program: LinearProgram, limits: Array, values: Array, objective: float, value: float, room: float = 1e-9
) -> None:
    assert value == pytest.approx(objective, rel=room, abs=room)
    assert program.cost @ values == pytest.approx(objective, rel=room, abs=room)
    gap = program.matrix @ values - limits
    assert (np.where(program.senses >= 0, gap, 0) >= -1e-8).all()
    assert (np.where(program.senses <= 0, gap, 0) <= 1e-8).all()
    assert (values >= program.lower - 1e-8).all()
    assert (values <= program.upper + 1e-8).all()


@given(SEEDS, st.integers(1, 10), st.integers(1, 12), st.booleans(), st.booleans())
def test_every_answer_matches_highs(seed: int, rows: int, columns: int, plain: bool, repeated: bool) -> None:
    """Rows of all senses; free, fixed and boxed variables; negative costs; ties; duplicate rows; zero limits.

    Infeasibility comes with a Farkas proof.
    """
    rng = np.random.default_rng(seed)
    program = random_program(rng, rows, columns, plain)
    again = rng.integers(0, rows, 2 if repeated else 0)
    program = replace(
        program,
        matrix=np.concatenate([program.matrix, program.matrix[again]]),
        senses=np.concatenate([program.senses, program.senses[again]]),
    )
    everywhere = np.concatenate([3 * entries(rng, (2, rows), plain), np.zeros((1, rows))])
    limits = np.concatenate([reachable_limits(rng, program, 3, plain), everywhere[:, [*range(rows), *again]]])
    pool = pool_of(program)
    solved = solve(pool, limits)
    assert pool.fallbacks == 0
    assert (solved.status[:3] == OPTIMAL).all()
    for n, one in enumerate(limits):
        truth = highs.solve_program(program, one)
        if truth.status is Status.INFEASIBLE:
            assert solved.status[n] == INFEASIBLE
            assert solved.value[n] == np.inf
            assert np.isnan(solved.primal[n]).all()
            assert is_ray(pool.form, one, solved.dual[n])
        else:
            assert solved.status[n] == OPTIMAL
            value = solved.value[n] + pool.form.base_cost
            assert_optimal(program, one, values_of(pool, solved)[n], truth.objective, value)


@settings(max_examples=12)
@given(SEEDS, st.booleans())
def test_every_answer_matches_cvxpy(seed: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 5, 7, plain)
    (limits,) = reachable_limits(rng, program, 1, plain)
    pool = pool_of(program)
    value = solve(pool, limits).value[0] + pool.form.base_cost
    assert value == pytest.approx(solve_by_cvxpy(program, limits), rel=1e-6, abs=1e-6)


@settings(max_examples=15)
@given(
    SEEDS,
    st.sampled_from([1e-9, 1e-6, 1e9]),
    st.sampled_from([1e-6, 1.0, 1e9]),
    st.sampled_from([0, 3]),
    st.booleans(),
)
def test_answers_are_invariant_to_units(seed: int, amounts: float, money: float, spread: int, plain: bool) -> None:
    """Rescale each row and column: the answer is the same in the new units."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, 6, 8, plain)
    limits = np.concatenate([reachable_limits(rng, program, 3, plain), 3 * entries(rng, (2, 6), plain)])
    rows, columns = 10.0 ** rng.uniform(-spread, spread, 6), 10.0 ** rng.uniform(-spread, spread, 8)
    scaled = LinearProgram(
        program.cost * money * columns,
        program.matrix * rows[:, None] * columns,
        program.senses,
        program.lower * amounts / columns,
        program.upper * amounts / columns,
    )
    pool = pool_of(scaled)
    solved = solve(pool, limits * rows * amounts)
    assert pool.fallbacks == 0
    for n, one in enumerate(limits):
        truth = highs.solve_program(program, one)
        assert (solved.status[n] == INFEASIBLE) == (truth.status is Status.INFEASIBLE)
        if truth.status is Status.OPTIMAL:
            value = (solved.value[n] + pool.form.base_cost) / (money * amounts)
            assert value == pytest.approx(truth.objective, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("most", [1e4, 1e6, 1e9])
def test_a_huge_bound_costs_no_accuracy(most: float) -> None:
    """min 3x₁ + x₂, x₁ + x₂ ≥ y, x₂ ≤ 2 with upper bounds far away."""
    program = LinearProgram(
        np.array([3.0, 1.0, 0.5]),
        np.array([[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]]),
        np.array([1, 1]),
        np.zeros(3),
        np.array([most, 2.0, most]),
    )
    pool = pool_of(program)
    demands = np.linspace(1e-3, 5, 50)
    solved = solve(pool, np.stack([demands, np.zeros(50)], axis=1))
    np.testing.assert_allclose(solved.value, np.minimum(demands, 2) + 3 * np.maximum(demands - 2, 0), rtol=1e-9)


@given(SEEDS, st.booleans())
def test_derivatives_match_finite_differences_away_from_kinks(seed: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 4, 6, plain)
    # Limits in general position, away from kinks.
    limits = reachable_limits(rng, program, 1, plain) - 0.1 * program.senses * rng.random((1, 4))
    pool = pool_of(program)
    here = solve(pool, limits, jacobian=True)
    for row in range(4):
        step = np.zeros(4)
        step[row] = 1e-5
        up, down = solve(pool, limits + step), solve(pool, limits - step)
        if up.status[0] or down.status[0] or abs(up.value[0] + down.value[0] - 2 * here.value[0]) > 1e-10:
            continue
        slope = here.dual[0] @ pool.form.by_limit[:, row]
        assert slope == pytest.approx((up.value[0] - down.value[0]) / 2e-5, abs=1e-4)
        if np.abs(up.primal + down.primal - 2 * here.primal).max() < 1e-10:
            moved = here.jacobian[0] @ pool.form.by_limit[:, row]
            np.testing.assert_allclose(moved, (up.primal - down.primal)[0] / 2e-5, atol=1e-4)


def test_the_pool_stays_within_capacity_and_its_bases_change_no_answer() -> None:
    rng = np.random.default_rng(3)
    program = random_program(rng, 8, 14)
    limits = reachable_limits(rng, program, 600)
    fresh, taught = pool_of(program), pool_of(program)
    for part in np.array_split(rng.permutation(limits), 30):
        solve(taught, part)
    assert 10 < len(taught.bases.columns) <= basis_pool.CAPACITY
    assert len(np.unique(np.sort(taught.bases.columns, axis=1), axis=0)) == len(taught.bases.columns)
    first, second = solve(fresh, limits, jacobian=True), solve(taught, limits, jacobian=True)
    np.testing.assert_allclose(second.value, first.value, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(second.primal, first.primal, rtol=1e-8, atol=1e-8)
    one_by_one = np.array([solve(taught, one).value[0] for one in limits[:50]])
    np.testing.assert_allclose(one_by_one, first.value[:50], rtol=1e-10, atol=1e-10)


def test_a_full_pool_learns_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basis_pool, "CAPACITY", 5)
    rng = np.random.default_rng(3)
    program = random_program(rng, 8, 14)
    pool = pool_of(program)
    for _ in range(4):
        solve(pool, reachable_limits(rng, program, 100))
    assert len(pool.bases.columns) == 5


def test_many_threads_get_the_same_answers_as_one() -> None:
    rng = np.random.default_rng(4)
    program = random_program(rng, 8, 14)
    parts = np.array_split(reachable_limits(rng, program, 800), 40)
    alone, shared = pool_of(program), pool_of(program)
    expected = [solve(alone, part) for part in parts]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda part: solve(shared, part), parts))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(ours.primal, theirs.primal, rtol=1e-8, atol=1e-8)
    assert len(shared.bases.columns) <= basis_pool.CAPACITY


def test_highs_solves_programs_that_the_kernel_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    program = random_program(rng, 5, 8)
    limits = np.concatenate([reachable_limits(rng, program, 5), 3 * rng.normal(size=(5, 5))])
    expected = solve(pool_of(program), limits, jacobian=True)
    assert set(expected.status) == {OPTIMAL, INFEASIBLE}
    kernel = basis_pool._solve_all

    def gives_up(*arguments: Any) -> None:
        kernel(*arguments)
        answers = arguments[-1]
        answers.value[:], answers.status[:] = np.nan, FAILED

    monkeypatch.setattr(basis_pool, "_solve_all", gives_up)
    pool = pool_of(program)
    found = solve(pool, limits, jacobian=True)
    assert pool.fallbacks == 10
    assert found.status.tolist() == expected.status.tolist()
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.primal, expected.primal, atol=1e-9)
    # The last five are in general position, so their optimal basis is unique.
    np.testing.assert_allclose(found.jacobian[5:], expected.jacobian[5:], atol=1e-9)
    for n in np.flatnonzero(found.status == INFEASIBLE):
        assert is_ray(pool.form, limits[n], found.dual[n])


@pytest.mark.parametrize("error", [1e-6, 1e-3, 0.5])
def test_a_basis_with_an_inaccurate_inverse_gives_no_wrong_answer(error: float) -> None:
    """Whether the basis is optimal or pivots leave it."""
    rng = np.random.default_rng(7)
    program = random_program(rng, 6, 9)
    limits = reachable_limits(rng, program, 40)
    pool = pool_of(program)
    solve(pool, limits[:20])
    bases = pool.bases
    # The last field marks the bases that need no check.
    unchecked = {bases._fields[-1]: np.zeros(len(bases.columns), dtype=bool)}
    pool.bases = bases._replace(inverse=(1 + error) * bases.inverse, **unchecked)
    solved = solve(pool, limits)
    assert (solved.status == OPTIMAL).all()
    for n, one in enumerate(limits):
        value = solved.value[n] + pool.form.base_cost
        truth = highs.solve_program(program, one).objective
        # As accurate as a certificate requires of a perturbed inverse; the stated gap is ten times as wide.
        assert_optimal(program, one, values_of(pool, solved)[n], truth, value, room=1e-7)


def test_an_unbounded_cost_is_refused() -> None:
    program = LinearProgram(
        np.array([1.0, -1.0]), np.array([[1.0, 1.0]]), np.array([1]), np.zeros(2), np.array([np.inf, np.inf])
    )
    with pytest.raises(InvalidInput, match="can fall without limit"):
        pool_of(program)
    pool_of(replace(program, upper=np.array([np.inf, 5.0])))
    pool_of(replace(program, senses=np.array([-1])))
