"""Periods of clocks, blocks of rows in time, and folds that use past rows only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_core.data import Sample, block_folds, evenly, forward_folds
from bco_core.errors import InvalidInput
from bco_core.timeline import BLOCKS, Clock, Timeline, apart, blocks, known_before


def timeline(periods: list[int], lead: int = 1) -> Timeline:
    when = torch.tensor(periods)
    return Timeline(when, torch.zeros_like(when), lead)


PERIODS = st.lists(st.integers(0, 400), min_size=1, max_size=300)


@settings(deadline=None)
@given(PERIODS)
def test_blocks_are_consecutive_and_never_split_a_period(periods: list[int]) -> None:
    when = timeline(periods)
    block = blocks(when)
    assert block.min() >= 0
    assert block.max() < BLOCKS
    order = when.periods.argsort(stable=True)
    assert (block[order].diff() >= 0).all()
    for period in set(periods):
        assert len(block[when.periods == period].unique()) == 1


def test_the_first_block_has_three_tenths_of_the_rows_and_the_rest_are_equal() -> None:
    assert blocks(timeline(list(range(1000)))).bincount().tolist() == [300, 140, 140, 140, 140, 140]


@settings(deadline=None)
@given(PERIODS, st.integers(1, 60))
def test_forward_folds_train_on_known_rows_and_test_on_the_next_block(periods: list[int], lead: int) -> None:
    when = timeline(periods, lead)
    try:
        folds = forward_folds(when)
    except InvalidInput:
        return
    for train, validation in zip(folds.train, folds.validation, strict=True):
        first, last = when.periods[validation].min(), when.periods[validation].max()
        assert when.periods[train].max() <= first - lead
        inside = (when.periods >= first) & (when.periods <= last)
        assert len(blocks(when)[inside].unique()) == 1
        assert len(validation.unique()) == len(validation)


def test_every_later_row_is_tested_once_and_trains_the_folds_after_it() -> None:
    when = timeline(list(range(1000)), lead=5)
    folds = forward_folds(when)
    assert folds.validation.shape == (4, 140)
    assert folds.validation.flatten().tolist() == list(range(440, 1000))
    assert [len(train.unique()) for train in folds.train] == [436, 576, 716, 856]
    later = forward_folds(when, first=1, needed=1)
    assert torch.equal(later.validation, folds.validation)
    assert [train.min().item() for train in later.train] == [300] * 4


def test_a_lead_longer_than_the_past_leaves_no_forward_fold() -> None:
    with pytest.raises(InvalidInput, match="too few periods"):
        forward_folds(timeline(list(range(50)), lead=60))
    # Boosted features have no first block, so a single other block may be all there is.
    with pytest.raises(InvalidInput, match="too few periods"):
        forward_folds(timeline(list(range(100)), lead=70), needed=1)


def test_block_folds_keep_a_gap_of_lead_on_both_sides() -> None:
    when = timeline(list(range(100)), lead=4)
    folds = block_folds(when, torch.arange(100), 7)
    assert folds.validation.shape == (7, 20)
    assert torch.equal(folds.validation[5], folds.validation[0])
    for train, validation in zip(folds.train, folds.validation, strict=True):
        gap = (train[:, None] - validation).abs().min()
        assert gap >= 4
    assert torch.equal(folds.validation[:5].flatten().sort().values, torch.arange(100))


def test_known_before_and_apart_respect_the_lead() -> None:
    when = timeline([0, 1, 2, 3, 4, 5, 6], lead=2)
    middle = torch.tensor([False, False, False, True, True, False, False])
    assert known_before(when, middle).tolist() == [True, True, False, False, False, False, False]
    assert apart(when, middle).tolist() == [True, True, False, False, False, False, True]


def test_an_invalid_timeline_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidInput, match="2 periods but 1 series"):
        Timeline(torch.arange(2), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="integers"):
        Timeline(torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="at least one period ahead"):
        timeline([1, 2], lead=0)
    with pytest.raises(InvalidInput, match="3 contexts but 2 times"):
        Sample(torch.ones(3, 1).double(), torch.ones(3, 1).double(), timeline([1, 2]))


def test_selected_rows_keep_their_times() -> None:
    sample = Sample(torch.ones(3, 1).double(), torch.ones(3, 1).double(), timeline([4, 5, 6]))
    kept = sample.rows(torch.tensor([2, 0])).timeline
    assert kept is not None
    assert kept.periods.tolist() == [6, 4]


def test_evenly_spaced_indices_include_the_first_and_the_last() -> None:
    assert evenly(10, 4).tolist() == [0, 3, 6, 9]
    assert evenly(3, 10).tolist() == [0, 1, 2]


def moments(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[s]")


@pytest.mark.parametrize(
    ("unit", "step", "first", "later", "apart"),
    [
        ("day", 1, "2024-02-28", "2024-03-01", 2),
        ("day", 2, "2024-01-01", "2024-01-05", 2),
        ("hour", 1, "2024-01-01T23:00", "2024-01-02T01:00", 2),
        ("minute", 15, "2024-01-01T00:05", "2024-01-01T01:05", 4),
        ("week", 1, "2024-01-01", "2024-01-15", 2),
        ("week", 2, "2024-01-03", "2024-01-31", 2),
        ("month", 1, "2023-11-01", "2024-02-01", 3),
        ("month", 3, "2023-11-01", "2024-05-01", 2),
    ],
)
def test_consecutive_periods_differ_by_one_and_begin_when_rows_do(
    unit: str, step: int, first: str, later: str, apart: int
) -> None:
    given = moments(first, later)
    clock = Clock.starting(unit, step, given[0])
    periods = clock.periods(given)
    assert periods[1] - periods[0] == apart
    assert clock.moments(periods).tolist() == given.tolist()
    assert clock.text(int(periods[0])) == first


def test_a_time_within_a_period_belongs_to_it() -> None:
    weekly = Clock.starting("week", 1, moments("2024-01-01")[0])
    assert np.ptp(weekly.periods(moments("2024-01-01", "2024-01-07"))) == 0
    assert np.ptp(weekly.periods(moments("2024-01-07", "2024-01-08"))) == 1
    daily = Clock.starting("day", 1, moments("2024-01-01T06:00")[0])
    assert np.ptp(daily.periods(moments("2024-01-02", "2024-01-02T23:59"))) == 0


def test_integers_are_periods_without_a_calendar() -> None:
    clock = Clock.starting("period", 5, 12)
    assert clock.periods(np.array([12, 17, 27])).tolist() == [2, 3, 5]
    assert clock.text(5) == "27"
    with pytest.raises(InvalidInput, match="no calendar"):
        clock.moments(np.array([1]))


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="minute, hour, day, week, month, period"):
        Clock("year")
