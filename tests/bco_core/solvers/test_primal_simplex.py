"""The primal simplex oracle, the cheapest point of one polyhedron for many costs, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from bco_core.errors import InvalidInput
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.solvers.primal_simplex import FAILED, OPTIMAL, UNBOUNDED, Oracle
from tests.support.programs import random_program, reachable_limits


def by_scipy(program: LinearProgram, limits: Array, cost: Array) -> float:
    """Return the optimum, −∞ if unbounded."""
    signs = np.where(program.senses > 0, -1.0, 1.0)
    equal = program.senses == 0
    found = linprog(
        cost,
        A_ub=(program.matrix * signs[:, None])[~equal],
        b_ub=(limits * signs)[~equal],
        A_eq=program.matrix[equal],
        b_eq=limits[equal],
        bounds=np.stack([program.lower, program.upper], axis=1),
    )
    assert found.status in (0, 3)
    return float(found.fun) if found.status == 0 else -np.inf


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("plain", [False, True])
def test_random_programs_agree_with_scipy(seed: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, int(rng.integers(0, 9)), int(rng.integers(1, 12)), plain)
    limits = reachable_limits(rng, program, 1, plain)[0]
    oracle = Oracle.of(program, limits)
    other = rng.normal(size=(4, len(program.cost))) * (rng.random((4, len(program.cost))) < 0.7)
    costs = np.concatenate([program.cost + 0.1 * other, other, [program.cost, 0 * program.cost]])
    solved = oracle.solve(costs)
    truth = np.array([by_scipy(program, limits, cost) for cost in costs])
    assert solved.certified.all()
    assert np.array_equal(solved.status, np.where(np.isfinite(truth), OPTIMAL, UNBOUNDED))
    np.testing.assert_allclose(solved.objective, truth, rtol=1e-8, atol=1e-8)


def test_an_empty_polyhedron_is_refused() -> None:
    program = LinearProgram(np.ones(2), np.ones((2, 2)), np.array([1, -1]), np.zeros(2), np.full(2, np.inf))
    with pytest.raises(InvalidInput, match="no decision keeps"):
        Oracle.of(program, np.array([2.0, 1.0]))


def test_nan_costs_fail_without_affecting_others() -> None:
    program = LinearProgram(np.ones(2), np.ones((1, 2)), np.array([1]), np.zeros(2), np.full(2, np.inf))
    solved = Oracle.of(program, np.array([1.0])).solve(np.array([[1.0, 2.0], [np.nan, 1.0], [1.0, np.inf], [3.0, 2.0]]))
    assert solved.status.tolist() == [OPTIMAL, FAILED, FAILED, OPTIMAL]
    assert solved.certified.tolist() == [True, False, False, True]
    assert solved.objective[[0, 3]].tolist() == [1.0, 2.0]
