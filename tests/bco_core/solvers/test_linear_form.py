"""The standard form of linear programs: equivalence, scaling and validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from bco_core.errors import InvalidInput
from bco_core.solvers import highs
from bco_core.solvers.linear_form import LinearProgram, linear_form
from tests.support.programs import random_program, reachable_limits

SEEDS = st.integers(0, 10**9)


@given(SEEDS, st.integers(1, 6), st.integers(1, 7), st.booleans())
def test_the_standard_form_has_the_same_optimum_at_the_same_point(
    seed: int, rows: int, columns: int, plain: bool
) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, rows, columns, plain)
    form = linear_form(program)
    for limits in reachable_limits(rng, program, 2, plain):
        rhs, _ = form.rhs(limits)
        found = linprog(form.cost, A_ub=-form.matrix, b_ub=-rhs)
        truth = highs.solve_program(program, limits)
        assert found.fun + form.base_cost == pytest.approx(truth.objective, rel=1e-7, abs=1e-7)
        values = form.offset + form.by_column @ found.x
        assert program.cost @ values == pytest.approx(truth.objective, rel=1e-7, abs=1e-7)
        assert (values >= program.lower - 1e-7).all()
        assert (values <= program.upper + 1e-7).all()
        gap = program.matrix @ values - limits
        assert (np.where(program.senses >= 0, gap, 0) >= -1e-7).all()
        assert (np.where(program.senses <= 0, gap, 0) <= 1e-7).all()


@given(SEEDS)
def test_the_size_of_the_right_hand_side_bounds_its_terms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 4, 5)
    form = linear_form(program)
    rhs, size = form.rhs(rng.normal(size=(3, 4)))
    assert (np.abs(rhs) <= size * (1 + 1e-12)).all()


@given(SEEDS)
def test_scaling_brings_entries_near_one_without_rounding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 5, 6)
    rows, columns = 10.0 ** rng.uniform(-6, 6, 5), 10.0 ** rng.uniform(-6, 6, 6)
    scaled = replace(
        program,
        matrix=program.matrix * rows[:, None] * columns,
        cost=program.cost * columns,
        lower=program.lower / columns,
        upper=program.upper / columns,
    )
    form = linear_form(scaled)
    sizes = np.abs(form.matrix[form.matrix != 0])
    assert (
        sizes.max() / sizes.min()
        <= 64 * np.abs(program.matrix).max() / np.abs(program.matrix[program.matrix != 0]).min()
    )
    assert set(np.frexp(form.by_column[form.by_column != 0])[0]) <= {0.5, -0.5}


def test_coefficients_must_be_finite() -> None:
    one = np.ones(1)
    for cost, entry in ((np.nan, 1.0), (1.0, np.inf)):
        program = LinearProgram(cost * one, np.array([[entry]]), np.array([1]), 0 * one, one)
        with pytest.raises(InvalidInput, match="finite"):
            linear_form(program)
