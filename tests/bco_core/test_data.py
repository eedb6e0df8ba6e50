"""Samples, standardisation and folds."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bco_core.data import FOLDS, Sample, Standardizer, make_folds
from bco_core.errors import InvalidInput
from tests.support.seeds import seeded


def table(rows: int, columns: int, value: float = 1.0) -> Tensor:
    return torch.full((rows, columns), value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("contexts", "outcomes", "message"),
    [
        (table(3, 2)[:, 0], table(3, 1), "contexts must be a table of rows and columns, not 1-dimensional"),
        (table(3, 2), table(3, 1)[None], "outcomes must be a table of rows and columns, not 3-dimensional"),
        (table(3, 2).float(), table(3, 1), "contexts must be float64, not torch.float32"),
        (table(3, 2), table(3, 1).long(), "outcomes must be float64, not torch.int64"),
        (table(3, 2, math.nan), table(3, 1), "contexts contain missing or infinite numbers, or numbers beyond 1e+100"),
        (table(3, 2), table(3, 1, -math.inf), "outcomes contain missing or infinite numbers, or numbers beyond 1e+100"),
        (table(3, 2), table(2, 1), "3 contexts but 2 outcomes"),
        (table(0, 2), table(0, 1), "there are no rows"),
    ],
)
def test_an_unusable_sample_is_refused_with_the_reason(contexts: Tensor, outcomes: Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(message)}$"):
        Sample(contexts, outcomes)


def test_one_missing_number_among_many_is_found() -> None:
    outcomes = table(50, 3)
    outcomes[37, 2] = math.nan
    with pytest.raises(InvalidInput, match="outcomes contain missing"):
        Sample(table(50, 2), outcomes)


def test_rows_keeps_contexts_and_outcomes_paired_in_the_requested_order() -> None:
    sample = Sample(torch.arange(10.0).double().view(5, 2), 100 + torch.arange(5.0).double().view(5, 1))
    picked = sample.rows(torch.tensor([3, 0]))
    assert len(picked) == 2
    assert picked.contexts.tolist() == [[6, 7], [0, 1]]
    assert picked.outcomes.tolist() == [[103], [100]]


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 40),
    exponent=st.integers(-12, 12),
    shift=st.floats(-100, 100),
)
def test_standardised_columns_have_mean_zero_and_variance_one(
    seed: int, rows: int, exponent: int, shift: float
) -> None:
    unit = np.random.default_rng(seed).normal(size=(rows, 2)) + shift
    standardised = Standardizer.fit(torch.from_numpy(unit * 10.0**exponent)).apply(
        torch.from_numpy(unit * 10.0**exponent)
    )
    expected = (unit - unit.mean(axis=0)) / unit.std(axis=0)
    assert np.allclose(standardised.numpy(), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("magnitude", [1e12, 1.0, 1e-12])
def test_undo_restores_the_original_values_at_any_scale(magnitude: float) -> None:
    values = magnitude * torch.randn(30, 3, generator=seeded(1), dtype=torch.float64)
    standardizer = Standardizer.fit(values)
    assert torch.allclose(standardizer.undo(standardizer.apply(values)), values, rtol=1e-12, atol=1e-14 * magnitude)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -1.7e12, 1.1e-12])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_constant_column_keeps_scale_one_and_becomes_zero(value: float, rows: int) -> None:
    values = table(rows, 1, value)
    standardizer = Standardizer.fit(values)
    assert standardizer.scale.item() == 1
    assert standardizer.apply(values).abs().max().item() <= 1e-13 * abs(value)


def test_a_constant_column_leaves_its_neighbour_alone() -> None:
    varied = torch.randn(20, 1, generator=seeded(2), dtype=torch.float64)
    both = Standardizer.fit(torch.cat([table(20, 1, 0.1), varied], dim=1))
    assert both.scale[1] == Standardizer.fit(varied).scale[0]


def test_a_single_row_standardises_to_zero() -> None:
    row = torch.tensor([[3.0, -1e12, 1e-12]], dtype=torch.float64)
    assert Standardizer.fit(row).apply(row).tolist() == [[0, 0, 0]]


def test_a_small_spread_around_a_large_mean_is_not_treated_as_constant() -> None:
    values = 1e9 + torch.randn(200, 1, generator=seeded(3), dtype=torch.float64)
    assert 0.8 < Standardizer.fit(values).scale.item() < 1.2


@given(count=st.integers(FOLDS, 60), members=st.integers(1, 13), seed=st.integers(0, 2**32 - 1))
def test_every_member_learns_from_exactly_the_rows_it_does_not_hold_out(count: int, members: int, seed: int) -> None:
    folds = make_folds(count, members, seeded(seed))
    assert folds.validation.shape == (members, count // 5)
    assert folds.train.shape == (members, count - count // 5)
    for train, validation in zip(folds.train.tolist(), folds.validation.tolist(), strict=True):
        assert sorted(train + validation) == list(range(count))


@given(count=st.integers(FOLDS, 60), members=st.integers(1, 13), seed=st.integers(0, 2**32 - 1))
def test_within_a_partition_of_five_no_row_is_held_out_twice(count: int, members: int, seed: int) -> None:
    validation = make_folds(count, members, seeded(seed)).validation
    for partition in validation.split(5):
        held_out = partition.flatten().tolist()
        assert len(set(held_out)) == len(held_out)


def test_each_partition_of_five_is_shuffled_anew() -> None:
    validation = make_folds(50, 10, seeded(0)).validation
    first, second = ({frozenset(fold) for fold in part.tolist()} for part in validation.split(5))
    assert not first & second


def test_five_members_together_learn_from_every_row() -> None:
    folds = make_folds(23, 5, seeded(0))
    assert set(folds.train.flatten().tolist()) == set(range(23))


def test_folds_depend_on_the_seed_only() -> None:
    first, again, other = (make_folds(50, 7, seeded(seed)) for seed in (4, 4, 5))
    assert torch.equal(first.train, again.train)
    assert torch.equal(first.validation, again.validation)
    assert not torch.equal(first.validation, other.validation)


def test_one_member_is_a_random_eighty_twenty_split() -> None:
    folds = make_folds(50, 1, seeded(0))
    assert folds.train.shape == (1, 40)
    assert folds.validation.shape == (1, 10)
    assert folds.validation[0].tolist() != list(range(10))


def test_fewer_rows_than_folds_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidInput, match=r"^learning needs at least 5 rows, and there are 4$"):
        make_folds(4, 1, seeded(0))
    assert make_folds(5, 1, seeded(0)).validation.shape == (1, 1)


def test_a_slice_of_folds_is_the_folds_of_those_members() -> None:
    folds = make_folds(20, 7, seeded(0))
    later = folds[5:]
    assert torch.equal(later.train, folds.train[5:])
    assert torch.equal(later.validation, folds.validation[5:])
