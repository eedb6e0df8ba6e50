"""The regular grid of a history."""

from __future__ import annotations

import numpy as np
import pytest

from bco_core.errors import InvalidInput
from bco_core.features.grid import MOST_CELLS, Grid


def test_rows_round_trip_through_a_grid_in_any_order() -> None:
    periods, series = np.array([5, 3, 9, 4]), np.array([1, 1, 0, 3])
    outcomes = np.array([[1.0], [2.0], [3.0], [4.0]])
    grid = Grid.of(periods, series, outcomes)
    assert grid.count == 4
    assert len(grid.values) == 1 + 3 + 0 + 1
    assert grid.first.tolist() == [9, 3, 0, 4]
    assert np.array_equal(grid.values[:, 0], [3.0, 2.0, np.nan, 1.0, 4.0], equal_nan=True)
    assert grid.last.tolist() == [9, 5, -1, 4]


def test_two_rows_of_a_series_at_one_time_are_refused() -> None:
    with pytest.raises(InvalidInput, match="same time"):
        Grid.of(np.array([1, 1]), np.array([0, 0]), np.zeros((2, 1)))


def test_a_grid_that_exceeds_the_memory_limit_is_refused_before_allocation() -> None:
    with pytest.raises(InvalidInput, match="wider spacing"):
        Grid.of(np.array([0, MOST_CELLS]), np.array([0, 0]), np.zeros((2, 1)))
    with pytest.raises(InvalidInput, match="wider spacing"):
        Grid.of(np.array([-(2**62), 2**62]), np.array([0, 0]), np.zeros((2, 1)))
