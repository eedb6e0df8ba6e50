"""Lag features against a plain loop over rows; no feature uses rows unknown at decision time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bco_core.errors import InvalidInput
from bco_core.features.grid import Grid
from bco_core.features.lags import QUANTILES, TimeRecipe, auto_recipe, make_features
from bco_core.timeline import Clock

Rows = dict[tuple[int, int], list[float]]


def grid_of(rows: Rows, count: int | None = None) -> Grid:
    """Return a grid from {(series, period): outcomes}."""
    keys = np.array(list(rows), dtype=np.int64).reshape(-1, 2)
    return Grid.of(keys[:, 1], keys[:, 0], np.array(list(rows.values())), count)


def features_at(recipe: TimeRecipe, rows: Rows, series: int, period: int, count: int | None = None) -> dict[str, float]:
    matrix, names = make_features(recipe, grid_of(rows, count), np.array([period]), np.array([series]))
    return dict(zip(names, matrix[0].tolist(), strict=True))


def plain_quantile(values: list[float], level: float) -> float:
    ordered = sorted(values)
    position = level * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def by_a_plain_loop(recipe: TimeRecipe, rows: Rows, series: int, period: int) -> dict[str, float]:
    """Compute the history columns directly from their definitions."""
    found = {}
    for number, outcome in enumerate(recipe.outcomes):
        known = {p: y[number] for (s, p), y in rows.items() if s == series and p <= period - recipe.lead}
        if not known:
            continue
        newest = max(known)
        recent = [known[p] for p in range(newest - recipe.level + 1, newest + 1) if p in known]
        level = sum(recent) / len(recent)
        found[f"{outcome} level"] = level
        for lag in recipe.lags:
            back = [lag + recipe.season * season for season in (1, 2, 3)] if recipe.season else []
            similar = [known[period - age] for age in back if period - age in known]
            otherwise = sum(similar) / len(similar) if similar else level
            found[f"{outcome} lag {lag}"] = known.get(period - lag, otherwise)
        windows = {f"of {width}": range(recipe.lead, recipe.lead + width) for width in recipe.windows}
        for season, count in recipe.same:
            begin = next(age for age in range(recipe.lead, recipe.lead + season) if age % season == 0)
            windows[f"of {count} every {season}"] = range(begin, begin + season * count, season)
        for window, ages in windows.items():
            values = [known[period - age] for age in ages if period - age in known] or [level]
            found[f"{outcome} mean {window}"] = sum(values) / len(values)
            for quantile in QUANTILES:
                found[f"{outcome} quantile {quantile:g} {window}"] = plain_quantile(values, quantile)
    return found


RECIPES = st.builds(
    lambda lead, lags, season, windows, same, level, outcomes: TimeRecipe(
        Clock("day"),
        lead,
        season,
        tuple(f"y{n}" for n in range(outcomes)),
        lags=tuple(lead + lag for lag in lags),
        windows=tuple(windows),
        same=tuple(same),
        level=level,
    ),
    st.integers(1, 4),
    st.lists(st.integers(0, 9), unique=True, max_size=3),
    st.sampled_from([0, 2, 3]),
    st.lists(st.integers(1, 6), unique=True, max_size=2),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), unique=True, max_size=2),
    st.integers(1, 8),
    st.integers(1, 2),
)


@st.composite
def histories(draw: st.DrawFn, outcomes: int) -> Rows:
    """Draw up to three series with gaps."""
    rows: Rows = {}
    for series in range(draw(st.integers(1, 3))):
        first = draw(st.integers(-5, 5))
        for period in draw(st.lists(st.integers(first, first + 14), unique=True, min_size=1, max_size=15)):
            rows[series, period] = [draw(st.integers(-1000, 1000)) / 8 for _ in range(outcomes)]
    return rows


@st.composite
def questions(draw: st.DrawFn) -> tuple[TimeRecipe, Rows, int, int]:
    """Draw a recipe, a history, and a series and period to compute features for."""
    recipe = draw(RECIPES)
    rows = draw(histories(len(recipe.outcomes)))
    return recipe, rows, draw(st.sampled_from(sorted(rows)))[0], draw(st.integers(-6, 30))


@given(questions())
def test_history_features_match_a_plain_loop(question: tuple[TimeRecipe, Rows, int, int]) -> None:
    recipe, rows, series, period = question
    found, expected = features_at(recipe, rows, series, period), by_a_plain_loop(recipe, rows, series, period)
    if not expected:
        assert all(math.isnan(value) for value in found.values())
    else:
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-9)


@given(questions(), st.data())
def test_rows_within_the_lead_and_other_series_change_no_feature(
    question: tuple[TimeRecipe, Rows, int, int], data: st.DataObject
) -> None:
    recipe, rows, series, period = question
    changed = {
        key: [1e6 + number for number, _ in enumerate(outcomes)]
        if key[0] != series or key[1] > period - recipe.lead
        else outcomes
        for key, outcomes in rows.items()
    }
    later = data.draw(st.lists(st.integers(period - recipe.lead + 1, period + 20), unique=True, max_size=5))
    changed |= {(series, at): [-1e6] * len(recipe.outcomes) for at in later}
    gone = {key: outcomes for key, outcomes in rows.items() if key[0] == series and key[1] <= period - recipe.lead}
    expected = features_at(recipe, rows, series, period)
    count = max(key[0] for key in rows) + 1
    assert features_at(recipe, changed, series, period) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    if gone:
        assert features_at(recipe, gone, series, period, count) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


@given(questions())
def test_the_newest_known_row_changes_the_level(question: tuple[TimeRecipe, Rows, int, int]) -> None:
    recipe, rows, series, period = question
    known = [key for key in rows if key[0] == series and key[1] <= period - recipe.lead]
    if known:
        changed = rows | {max(known): [value + 1000 for value in rows[max(known)]]}
        before, after = features_at(recipe, rows, series, period), features_at(recipe, changed, series, period)
        assert all(after[f"{name} level"] > before[f"{name} level"] for name in recipe.outcomes)


def test_each_lag_reads_the_value_of_that_age() -> None:
    rows: Rows = {(0, period): [float(period)] for period in range(100)}
    recipe = TimeRecipe(Clock("day"), 2, 7, ("y",), lags=(2, 3, 14), windows=(3,), same=((7, 2),), level=4)
    found = features_at(recipe, rows, 0, 101)
    assert [found[f"y lag {lag}"] for lag in (2, 3, 14)] == [99, 98, 87]
    assert found["y mean of 3"] == 98
    assert found["y mean of 2 every 7"] == (94 + 87) / 2
    assert found["y level"] == 97.5


def test_features_do_not_depend_on_other_rows_in_the_batch() -> None:
    rng = np.random.default_rng(1)
    periods, series = np.tile(np.arange(400), 5), np.repeat(np.arange(5), 400)
    outcomes = rng.gamma(2.0, 10.0, (2000, 2))
    outcomes_there = rng.random(2000) > 0.1
    grid = Grid.of(periods[outcomes_there], series[outcomes_there], outcomes[outcomes_there])
    recipe = auto_recipe(Clock("day", 1), 7, 400, outcomes=("a", "b"))
    together, _ = make_features(recipe, grid, periods, series)
    for row in range(0, 2000, 97):
        alone, _ = make_features(recipe, grid, periods[row : row + 1], series[row : row + 1])
        assert np.array_equal(alone[0], together[row], equal_nan=True)


def test_a_series_without_rows_takes_the_given_level() -> None:
    rows: Rows = {(0, period): [10.0] for period in range(30)}
    recipe = TimeRecipe(Clock("day"), 1, 7, ("y",), lags=(1, 7), windows=(3,))
    asked = np.array([30]), np.array([-1])
    assert np.isnan(make_features(recipe, grid_of(rows), *asked)[0]).all()
    assert (make_features(recipe, grid_of(rows), *asked, np.array([[4.0]]))[0] == 4).all()


# recipes


def test_a_recipe_round_trips_through_storage() -> None:
    recipe = auto_recipe(Clock("hour", 1), 24, 5000, outcomes=("load",), origin=3, holidays="DE")
    assert TimeRecipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("unit", "step", "lead", "periods", "season", "lags"),
    [
        ("day", 1, 1, 900, 7, {1, 2, 3, 7, 14, 21, 28}),
        ("day", 1, 7, 1826, 7, {7, 8, 9, 14, 21, 28, 364}),
        ("day", 1, 10, 365, 7, {10, 11, 12, 14, 21, 28, 35}),
        ("day", 1, 3, 10, 0, {3, 4, 5}),
        ("day", 2, 1, 300, 7, {1, 2, 3, 7, 14, 21, 28}),
        ("hour", 1, 24, 20_000, 168, {24, 25, 26, 48, 168, 336}),
        ("hour", 1, 1, 100, 24, {1, 2, 3, 24, 48}),
        ("minute", 15, 4, 5000, 672, {4, 5, 6, 96, 192, 672, 1344}),
        ("week", 1, 2, 200, 52, {2, 3, 4, 52}),
        ("month", 1, 1, 60, 12, {1, 2, 3, 12, 24}),
        ("period", 1, 2, 60, 0, {2, 3, 4}),
    ],
)
def test_the_auto_recipe_lags_by_seasons_from_the_lead_on(
    unit: str, step: int, lead: int, periods: int, season: int, lags: set[int]
) -> None:
    recipe = auto_recipe(Clock(unit, step), lead, periods)
    assert recipe.season == season
    assert lags <= set(recipe.lags)
    assert max(recipe.lags) <= max(periods // 2, lead)
    assert min(recipe.lags) == lead
    assert recipe.names[-1] == "outcome level"
    assert len(recipe.names) == recipe.width <= 80


def test_the_auto_recipe_stays_narrow_with_many_outcomes_and_keeps_every_level() -> None:
    recipe = auto_recipe(Clock("day", 1), 1, 900, outcomes=tuple(f"y{n}" for n in range(200)))
    assert recipe.width < 450
    assert [recipe.names[at] for at in recipe.levels] == [f"y{n} level" for n in range(200)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lags": (2,)}, "lags are from 3 to"),
        ({"lead": 0}, "at least one period ahead"),
        ({"windows": (0,)}, "windows hold 1 to"),
        ({"same": ((0, 3),)}, "same-season window"),
        ({"calendar": ("moon",)}, "parts of the calendar are weekday"),
        ({"holidays": "XX"}, "ISO codes"),
        ({"clock": Clock("period"), "calendar": ("weekday",)}, "times are integers"),
        ({"windows": tuple(range(1, 600))}, "columns"),
    ],
)
def test_invalid_recipes_are_refused(changes: dict[str, Any], sentence: str) -> None:
    recipe = TimeRecipe(Clock("day"), 3, 7, ("y",), lags=(3,))
    with pytest.raises(InvalidInput, match=sentence):
        replace(recipe, **changes)
