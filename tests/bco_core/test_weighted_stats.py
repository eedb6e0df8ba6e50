"""Weighted quantiles and CVaR against exact rational arithmetic and a linear program."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import cvxpy as cp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bco_core.weighted_stats import sort_atoms, sorted_cvar, weighted_quantile


def conditional_value_at_risk(values: Tensor, weights: Tensor, level: float) -> Tensor:
    """CVaR of values (B, K) with weights (K,) or (B, K): → (B,)."""
    return sorted_cvar(*sort_atoms(values, weights), level)


@dataclass(frozen=True)
class Atoms:
    """Integer values with integer weights for B contexts, so that exact arithmetic is possible."""

    values: list[list[int]]
    parts: list[list[int]]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        parts = torch.tensor(self.parts, dtype=torch.float64)
        return torch.tensor(self.values, dtype=torch.float64), parts / parts.sum(1, keepdim=True)


@st.composite
def atoms(draw: st.DrawFn) -> Atoms:
    count = draw(st.integers(1, 9))
    contexts = draw(st.integers(1, 3))
    values = st.lists(st.integers(-4, 4), min_size=count, max_size=count)
    parts = st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any)
    return Atoms([draw(values) for _ in range(contexts)], [draw(parts) for _ in range(contexts)])


def exact_quantile(values: list[int], parts: list[int], level: Fraction) -> int:
    reached = 0
    for value in sorted(set(values)):
        reached += sum(p for v, p in zip(values, parts, strict=True) if v == value)
        if reached >= level * sum(parts):
            return value
    raise AssertionError


def exact_cvar(values: list[int], parts: list[int], level: Fraction) -> Fraction:
    """Rockafellar and Uryasev: min over t of t + E[(X − t)⁺]/(1 − level), reached at an atom."""

    def bound(t: int) -> Fraction:
        excess = sum(p * max(v - t, 0) for v, p in zip(values, parts, strict=True))
        return t + Fraction(excess, sum(parts)) / (1 - level)

    return min(bound(t) for t in values)


@given(atoms(), st.lists(st.integers(1, 20), min_size=1, max_size=3))
def test_quantiles_equal_exact_rational_arithmetic_at_the_level(case: Atoms, twentieths: list[int]) -> None:
    values, weights = case.tensors
    levels = torch.tensor(twentieths, dtype=torch.float64) / 20
    quantiles = weighted_quantile(values[:, :, None].expand(-1, -1, len(levels)), weights, levels)
    expected = [
        [exact_quantile(v, p, Fraction(level, 20)) for level in twentieths]
        for v, p in zip(case.values, case.parts, strict=True)
    ]
    assert quantiles.tolist() == expected


@given(atoms(), st.integers(1, 19), st.booleans())
def test_shared_weights_equal_repeated_weights(case: Atoms, twentieths: int, equal: bool) -> None:
    parts = [1] * len(case.parts[0]) if equal else case.parts[0]
    values, _ = case.tensors
    weights = torch.tensor(parts, dtype=torch.float64) / sum(parts)
    level = Fraction(twentieths, 20)
    quantiles = weighted_quantile(values[:, :, None], weights, torch.tensor([twentieths / 20], dtype=torch.float64))
    assert quantiles.flatten().tolist() == [exact_quantile(v, parts, level) for v in case.values]
    cvar = conditional_value_at_risk(values, weights, twentieths / 20)
    expected = [float(exact_cvar(v, parts, level)) for v in case.values]
    assert cvar.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(atoms())
def test_each_column_has_its_own_order_and_level(case: Atoms) -> None:
    values, weights = case.tensors
    columns = torch.stack([values, -values], dim=2)
    quantiles = weighted_quantile(columns, weights, torch.tensor([0.25, 0.75], dtype=torch.float64))
    for row, v, p in zip(quantiles.tolist(), case.values, case.parts, strict=True):
        assert row == [exact_quantile(v, p, Fraction(1, 4)), exact_quantile([-x for x in v], p, Fraction(3, 4))]


@given(atoms())
def test_extreme_levels_give_the_smallest_and_largest_value_that_has_weight(case: Atoms) -> None:
    values, weights = case.tensors
    levels = torch.tensor([1e-9, 1 - 1e-9, 1.0], dtype=torch.float64)
    quantiles = weighted_quantile(values[:, :, None].expand(-1, -1, 3), weights, levels)
    for row, v, p in zip(quantiles.tolist(), case.values, case.parts, strict=True):
        weighty = [value for value, part in zip(v, p, strict=True) if part]
        assert row == [min(weighty), max(weighty), max(weighty)]


@pytest.mark.parametrize("count", [3, 7, 10, 49, 1000])
def test_k_of_n_equal_weights_reach_the_level_k_over_n_despite_rounding(count: int) -> None:
    values = torch.arange(count, dtype=torch.float64)[None, :, None]
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    levels = torch.tensor([k / count for k in range(1, count + 1)], dtype=torch.float64)
    for shared_or_not in (weights, weights[None]):
        quantiles = weighted_quantile(values.expand(1, count, count), shared_or_not, levels)
        assert quantiles.tolist() == [list(range(count))]


@given(atoms(), st.integers(0, 19))
def test_cvar_equals_the_exact_rockafellar_uryasev_minimum(case: Atoms, twentieths: int) -> None:
    values, weights = case.tensors
    cvar = conditional_value_at_risk(values, weights, twentieths / 20)
    expected = [float(exact_cvar(v, p, Fraction(twentieths, 20))) for v, p in zip(case.values, case.parts, strict=True)]
    assert cvar.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_cvar_equals_the_linear_program_on_irregular_weights() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(4, 30, generator=draw, dtype=torch.float64)
    weights = torch.rand(4, 30, generator=draw, dtype=torch.float64)
    weights /= weights.sum(1, keepdim=True)
    for level in (0.5, 0.9, 0.95):
        cvar = conditional_value_at_risk(values, weights, level)
        for value, weight, ours in zip(values.numpy(), weights.numpy(), cvar.tolist(), strict=True):
            threshold, excess = cp.Variable(), cp.Variable(30, nonneg=True)
            program = cp.Problem(cp.Minimize(threshold + weight @ excess / (1 - level)), [excess >= value - threshold])
            assert ours == pytest.approx(program.solve(solver=cp.HIGHS), rel=1e-9)


@given(atoms())
def test_cvar_goes_from_the_mean_at_level_zero_to_the_worst_value_near_one(case: Atoms) -> None:
    values, weights = case.tensors
    mean, worst = (conditional_value_at_risk(values, weights, level) for level in (0.0, 1 - 1e-9))
    assert torch.allclose(mean, (values * weights).sum(1), rtol=1e-12, atol=1e-12)
    for ours, v, p in zip(worst.tolist(), case.values, case.parts, strict=True):
        assert ours == pytest.approx(max(value for value, part in zip(v, p, strict=True) if part), abs=1e-6)


@pytest.mark.parametrize("level", [1e-9, 0.3, 0.95, 1 - 1e-9])
def test_a_single_atom_is_its_own_quantile_and_cvar(level: float) -> None:
    value, weight = torch.tensor([[-2.5]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    quantile = weighted_quantile(value[:, :, None], weight, torch.tensor([level], dtype=torch.float64))
    assert quantile.tolist() == [[-2.5]]
    assert conditional_value_at_risk(value, weight, level).tolist() == pytest.approx([-2.5], rel=1e-12)


@given(atoms())
def test_multiplying_all_weights_changes_nothing(case: Atoms) -> None:
    values, weights = case.tensors
    levels = torch.tensor([0.3], dtype=torch.float64)
    once, eightfold = (weighted_quantile(values[:, :, None], w, levels) for w in (weights, 8 * weights))
    assert torch.equal(once, eightfold)
    once, eightfold = (conditional_value_at_risk(values, w, 0.7) for w in (weights, 8 * weights))
    assert torch.equal(once, eightfold)
