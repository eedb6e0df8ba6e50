"""The primal simplex oracle on hard programs: degenerate, cycling, badly scaled, redundant; and its guarantees."""

from __future__ import annotations

import threading
from time import monotonic, process_time

import numpy as np
import pytest
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.solvers import primal_simplex as primal_tableau_module
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.solvers.polyhedron import certify, polyhedron_of, proves_unbounded
from bco_core.solvers.primal_simplex import FAILED, OPTIMAL, UNBOUNDED, Oracle, OracleSolutions, VertexPool
from tests.bco_core.solvers.test_primal_simplex import by_scipy
from tests.support.programs import entries, random_program, reachable_limits

Case = tuple[LinearProgram, Array]


def program_of(matrix: object, sense: object, upper: object = np.inf, lower: object = 0.0) -> LinearProgram:
    array = np.array(matrix, dtype=float)
    count = array.shape[1]
    senses = np.broadcast_to(np.array(sense, dtype=np.int64), len(array)).copy()
    low, high = (np.broadcast_to(np.array(bound, dtype=float), count).copy() for bound in (lower, upper))
    return LinearProgram(np.zeros(count), array, senses, low, high)


def grid(side: int) -> Case:
    """Shortest paths from corner to corner: all rows are equalities and one is redundant."""
    nodes = np.arange(side * side).reshape(side, side)
    tails = np.concatenate([nodes[:, :-1].ravel(), nodes[:-1].ravel()])
    heads = np.concatenate([nodes[:, 1:].ravel(), nodes[1:].ravel()])
    matrix = np.zeros((side * side, len(tails)))
    matrix[tails, np.arange(len(tails))], matrix[heads, np.arange(len(tails))] = -1.0, 1.0
    limits = np.zeros(side * side)
    limits[0], limits[-1] = -1.0, 1.0
    return program_of(matrix, 0), limits


def transport(supplies: Array, demands: Array) -> Case:
    rows, columns = len(supplies), len(demands)
    matrix = np.concatenate([np.kron(np.eye(rows), np.ones(columns)), np.kron(np.ones(rows), np.eye(columns))])
    return program_of(matrix, 0), np.concatenate([supplies, demands])


def klee_minty(count: int) -> Case:
    matrix = np.eye(count)
    for i in range(count):
        matrix[i, :i] = 2.0 ** (i - np.arange(i) + 1)
    return program_of(matrix, -1), np.array([5.0**i for i in range(1, count + 1)])


BEALE: Case = (program_of([[0.25, -8, -1, 9], [0.5, -12, -0.5, 3], [0, 0, 1, 0]], -1), np.array([0.0, 0.0, 1.0]))
KUHN: Case = (program_of([[-2, -9, 1, 9], [1 / 3, 1, -1 / 3, -2], [2, 3, -1, -12]], -1), np.array([0.0, 0.0, 2.0]))
CASES: dict[str, Case] = {
    "grid": grid(4),
    "assignment": transport(np.ones(5), np.ones(5)),
    "transportation": transport(np.array([3.0, 5.0, 2.0]), np.array([2.0, 2.0, 3.0, 3.0])),
    "Beale": BEALE,
    "Kuhn": KUHN,
    "Klee-Minty": klee_minty(8),
    "box": (program_of(np.zeros((0, 4)), 1, upper=[1, 2, 3, 4], lower=[-1, 0, 1, 4]), np.zeros(0)),
    "one variable": (program_of([[2.0]], -1), np.array([6.0])),
    "fixed": (program_of([[1, 1, 1]], 0, upper=[1, 5, 5], lower=[1, 0, 0]), np.array([4.0])),
    "one point": (program_of([[1, 0], [0, 1], [1, 1]], 0), np.array([1.0, 2.0, 3.0])),
    "free": (program_of([[1, 1, 0], [1, -1, 0], [0, 1, 1]], [-1, -1, 0], lower=-np.inf), np.array([4.0, 2.0, 1.0])),
    "zero rows": (program_of([[0, 0], [1, 1], [0, 0]], [1, -1, 0]), np.array([-1.0, 2.0, 0.0])),
    "redundant": (program_of([[1, 1, 1], [2, 2, 2], [1, 0, 0], [3, 2, 2]], 0), np.array([3.0, 6.0, 1.0, 7.0])),
}


def assert_true(program: LinearProgram, limits: Array, costs: Array, solved: OracleSolutions) -> None:
    truth = np.array([by_scipy(program, limits, cost) for cost in costs])
    assert solved.certified.all()
    assert np.array_equal(solved.status, np.where(np.isfinite(truth), OPTIMAL, UNBOUNDED))
    size = 1 + np.abs(costs).max(axis=1, initial=0)
    np.testing.assert_allclose(solved.objective / size, truth / size, rtol=1e-9, atol=1e-9)
    found = solved.status == OPTIMAL
    values = solved.values[found]
    assert np.isnan(solved.values[~found]).all()
    assert ((values >= program.lower) & (values <= program.upper)).all()
    left = (values @ program.matrix.T - limits) * np.where(program.senses == 0, 1, program.senses)
    assert (np.where(program.senses == 0, np.abs(left), -left) <= 1e-9 * (1 + np.abs(limits))).all()


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_solves_hard_programs_without_highs(name: str) -> None:
    program, limits = CASES[name]
    rng = np.random.default_rng(1)
    count = program.matrix.shape[1]
    costs = np.concatenate(
        [
            rng.normal(size=(12, count)),
            rng.uniform(0.1, 1, (8, count)),
            rng.integers(-1, 2, (8, count)).astype(float),
            np.zeros((1, count)),
            -np.ones((1, count)),
            [np.resize([-0.75, 20, -0.5, 6], count), np.resize([-2.0, -3, 1, 12], count)],
        ]
    )
    oracle = Oracle.of(program, limits)
    assert_true(program, limits, costs, oracle.solve(costs))
    assert oracle.fallbacks == 0


@pytest.mark.parametrize("name", CASES)
def test_every_basis_can_start_every_cost(name: str) -> None:
    program, limits = CASES[name]
    costs = np.random.default_rng(2).normal(size=(12, program.matrix.shape[1]))
    oracle = Oracle.of(program, limits)
    first = oracle.solve(costs)
    pool = oracle._pool
    assert pool is not None
    for number in range(len(pool.vertices)):
        oracle._pool = VertexPool._make(part[number : number + 1] for part in pool)
        again = oracle.solve(costs)
        assert np.array_equal(again.status, first.status)
        assert again.certified.all()
        np.testing.assert_allclose(again.values, first.values, atol=1e-9)
    assert oracle.fallbacks == 0


def test_beales_example_does_not_cycle() -> None:
    program, limits = BEALE
    cost = np.array([[-0.75, 150.0, -0.02, 6.0]])
    matrix = np.array([[0.25, -60, -0.04, 9], [0.5, -90, -0.02, 3], [0, 0, 1, 0]])
    oracle = Oracle.of(LinearProgram(cost[0], matrix, program.senses, program.lower, program.upper), limits)
    solved = oracle.solve(cost)
    assert solved.objective[0] == pytest.approx(-0.05)
    assert solved.certified[0]
    assert oracle.fallbacks == 0


@pytest.mark.parametrize("seed", range(3))
def test_no_wrong_certificate_among_ten_thousand_costs(seed: int) -> None:
    """Against HiGHS's dual simplex method, with the kernel switched off, on programs of all kinds."""
    rng = np.random.default_rng([3, seed])
    solved_rows = fallbacks = 0
    for _ in range(25):
        plain = bool(rng.integers(2))
        program = random_program(rng, int(rng.integers(1, 14)), int(rng.integers(2, 22)), plain)
        limits = reachable_limits(rng, program, 1, plain)[0]
        costs = program.cost + entries(rng, (140, len(program.cost)), plain) * rng.choice([0.05, 1.0], (140, 1))
        oracle, referee = Oracle.of(program, limits), Oracle.of(program, limits)
        referee._pool = None
        solved, truth = oracle.solve(costs), referee.solve(costs)
        both = solved.certified & truth.certified
        assert np.array_equal(solved.status[both], truth.status[both])
        optimal = both & (truth.status == OPTIMAL)
        size = np.abs(costs * truth.values).sum(axis=1)[optimal] + np.abs(costs).max()
        assert (np.abs(solved.objective[optimal] - truth.objective[optimal]) <= 1e-8 * size).all()
        solved_rows += int(solved.certified.sum())
        fallbacks += oracle.fallbacks
    assert solved_rows >= 0.999 * 25 * 140
    assert fallbacks <= 0.01 * 25 * 140


@pytest.mark.parametrize("seed", range(10))
def test_units_from_1e_minus_6_to_1e6_are_solved(seed: int) -> None:
    rng = np.random.default_rng([4, seed])
    program = random_program(rng, 6, 10)
    limits = reachable_limits(rng, program, 1)[0]
    costs = program.cost + 0.1 * entries(rng, (20, 10), plain=False)
    plain = Oracle.of(program, limits).solve(costs)
    rows, units = 10.0 ** rng.uniform(-6, 6, 6), 10.0 ** rng.uniform(-6, 6, 10)
    scaled = LinearProgram(
        program.cost,
        program.matrix * rows[:, None] / units,
        program.senses,
        program.lower * units,
        program.upper * units,
    )
    solved = Oracle.of(scaled, limits * rows).solve(costs / units)
    assert solved.certified.all()
    assert np.array_equal(solved.status, plain.status)
    size = np.abs(costs * plain.values).sum(axis=1)
    finite = plain.status == OPTIMAL
    assert (np.abs(solved.objective[finite] - plain.objective[finite]) <= 1e-8 * (size[finite] + 1e-3)).all()


@pytest.mark.parametrize("factor", [1e-200, 1e-12, 1e12, 1e200])
def test_the_scale_of_costs_does_not_change_the_answer(factor: float) -> None:
    program, limits = grid(4)
    costs = np.random.default_rng(5).uniform(0, 1, (50, program.matrix.shape[1]))
    oracle = Oracle.of(program, limits)
    one, other = oracle.solve(costs), oracle.solve(costs * factor)
    assert other.certified.all()
    assert np.array_equal(one.values, other.values)


def test_one_huge_cost_among_small_ones_is_solved() -> None:
    program, limits = grid(4)
    costs = np.random.default_rng(6).uniform(0, 1, (50, program.matrix.shape[1]))
    costs[np.arange(50), np.arange(50) % 12] = 1e12
    oracle = Oracle.of(program, limits)
    solved = oracle.solve(costs)
    assert solved.certified.all()
    truth = [by_scipy(program, limits, np.minimum(cost, 1e3)) for cost in costs]
    np.testing.assert_allclose(solved.objective, truth, rtol=1e-9)


def test_the_answer_at_a_tie_depends_on_neither_start_nor_batch() -> None:
    program, limits = grid(5)
    rng = np.random.default_rng(7)
    costs = rng.integers(1, 3, (200, program.matrix.shape[1])).astype(float)
    alone = np.concatenate([Oracle.of(program, limits).solve(cost[None]).values for cost in costs])
    oracle = Oracle.of(program, limits)
    oracle.solve(rng.normal(size=(500, costs.shape[1])) + 2)
    order = rng.permutation(len(costs))
    assert np.array_equal(oracle.solve(costs[order]).values, alone[order])


def test_costs_of_another_program_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the program has"):
        Oracle.of(*grid(4)).solve(np.ones((3, 5)))


def test_nothing_is_certified_that_is_not_optimal() -> None:
    program, limits = grid(3)
    rng = np.random.default_rng(9)
    scaled = polyhedron_of(
        sparse.csr_array(program.matrix), program.senses, limits, program.lower, program.upper
    ).polyhedron
    count, room = program.matrix.shape[1], (np.empty(9), np.empty(9))
    cost: Array = rng.uniform(0.5, 1, (count,))
    best = Oracle.of(program, limits).solve(cost[None]).values[0]
    tree = np.linalg.lstsq(program.matrix.T[best > 0], cost[best > 0], rcond=None)[0]
    worse = Oracle.of(program, limits).solve(-cost[None]).values[0]
    for dual in (tree, np.zeros(9), rng.normal(size=9), np.full(9, np.nan)):
        assert not certify(scaled, cost, worse.copy(), dual.copy(), *room)
        assert not certify(scaled, cost, best + 1e-6, dual.copy(), *room)
    # The all-ones vector is no circulation, so it proves nothing.
    assert not proves_unbounded(scaled, -cost, np.ones(count), *room)


def test_programs_too_large_for_a_tableau_are_solved_by_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    program, limits = grid(4)
    costs = np.random.default_rng(10).uniform(0, 1, (30, program.matrix.shape[1]))
    expected = Oracle.of(program, limits).solve(costs)
    monkeypatch.setattr(primal_tableau_module, "_LARGEST", 10)
    oracle = Oracle.of(program, limits)
    solved = oracle.solve(costs)
    assert oracle.fallbacks == len(costs)
    assert solved.certified.all()
    np.testing.assert_allclose(solved.objective, expected.objective, rtol=1e-12)


def test_many_threads_get_the_same_answers_as_one() -> None:
    program, limits = grid(5)
    costs = np.random.default_rng(11).uniform(0, 1, (8, 400, program.matrix.shape[1]))
    expected = [Oracle.of(program, limits).solve(part).values for part in costs]
    oracle = Oracle.of(program, limits)
    found: list[Array | None] = [None] * 8

    def work(index: int) -> None:
        for part in np.split(costs[index], 20):
            oracle.solve(part)
        found[index] = oracle.solve(costs[index]).values

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one is not None and np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_vertex_pool_stays_bounded_without_duplicates() -> None:
    program, limits = grid(5)
    oracle = Oracle.of(program, limits)
    for seed in range(20):
        oracle.solve(np.random.default_rng(seed).uniform(0, 1, (300, program.matrix.shape[1])))
    assert oracle._pool is not None
    assert 1 < len(oracle._pool.vertices) <= primal_tableau_module.CAPACITY
    assert len(np.unique(oracle._pool.vertices, axis=0)) == len(oracle._pool.vertices)


@pytest.mark.slow
def test_a_deadline_ends_a_long_call() -> None:
    program, limits = grid(10)
    oracle = Oracle.of(program, limits)
    costs = np.random.default_rng(12).uniform(0, 1, (200_000, program.matrix.shape[1]))
    used = process_time()
    with pytest.raises(OutOfTime), deadlines.until(monotonic() + 0.3):
        oracle.solve(costs)
    assert process_time() - used < 3.0


def test_no_costs_give_no_answers() -> None:
    program, limits = grid(3)
    solved = Oracle.of(program, limits).solve(np.empty((0, program.matrix.shape[1])))
    assert solved.values.shape == (0, 12)
    assert solved.status.shape == (0,)


def test_nan_costs_fail_among_valid_ones() -> None:
    program, limits = grid(4)
    costs = np.random.default_rng(13).uniform(0, 1, (60, program.matrix.shape[1]))
    expected = Oracle.of(program, limits).solve(costs).values
    broken = costs.copy()
    broken[::7, 3], broken[1::7, 0], broken[2::7, 5] = np.nan, np.inf, -np.inf
    oracle = Oracle.of(program, limits)
    solved = oracle.solve(broken)
    fine = np.isfinite(broken).all(axis=1)
    assert np.array_equal(solved.status, np.where(fine, OPTIMAL, FAILED))
    assert np.array_equal(solved.certified, fine)
    assert oracle.fallbacks == 0
    assert np.array_equal(solved.values[fine], expected[fine])
    assert np.isnan(solved.objective[~fine]).all()
