"""Warnings about a history: each appears for odd data and not for ordinary data."""

from __future__ import annotations

import time
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from app.datasets.parsing import RawTable, parse_rows
from app.datasets.profile import profile
from app.datasets.roles import ColumnRoles
from app.datasets.warnings import table_warnings
from app.demo import bakery_rows
from app.settings import Settings

N = 400
Table = dict[str, Any]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def days(count: int = N) -> list[str]:
    return [str(date(2022, 1, 1) + timedelta(days=index)) for index in range(count)]


def usual_history(seed: int = 0, count: int = N) -> Table:
    """Make an ordinary history: weather, a promotion, and demand that depends a little on both."""
    draw = generator(seed)
    weather, promotion = draw.normal(15, 5, count), draw.integers(0, 2, count)
    demand = np.round(100 + weather + 20 * promotion + draw.normal(0, 15, count))
    return {"weather": weather, "promotion": promotion.astype(float), "demand": demand}


def warnings_of(columns: Table, **roles: Any) -> list[str]:
    arrays = {name: pa.chunked_array([pa.array(values)]) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    raw = RawTable(arrays, rows, "file", lambda row, name: (("file",), f"row {row}"))
    return profile(raw, ColumnRoles(["demand"], None, [], **roles), Settings()).warnings


def warnings_over_time(demand: Any, when: list[str] | None = None) -> list[str]:
    return warnings_of({"day": when or days(len(demand)), "demand": demand}, time="day")


def with_values(values: Any, where: Any, to: Any) -> Any:
    values = np.array(values, dtype=float)
    values[where] = to
    return values


NEGATIVE, FAR, ZEROS, IDS = "are negative", "far from all others", "are zero", "like an id"
DETERMINES, EQUAL, COPIES, GAPS = "nearly determines", "equals outcome", "exact copies", "are missing"
STRETCH, CAPPED, DRIFT = "in a row: check that it was measured", "at its highest value", "since about"

U = usual_history()
SHOPS = [f"s{index % 8}" for index in range(N)]
WORKING = [day for day in days(600) if date.fromisoformat(day).weekday() < 5][:N]
LEVELS = generator(3).normal(100, 10, N)

ODD: dict[str, tuple[str, list[str]]] = {
    "negative demand": (NEGATIVE, warnings_of(U | {"demand": with_values(U["demand"], [3, 7], -2)})),
    "far outlier in demand": (FAR, warnings_of(U | {"demand": with_values(U["demand"], 5, 10_000)})),
    "far outlier in a context": (FAR, warnings_of(U | {"weather": with_values(U["weather"], 5, -999)})),
    "many zeros": (ZEROS, warnings_of(U | {"demand": with_values(U["demand"], slice(0, 160), 0)})),
    "row numbers": (IDS, warnings_of(U | {"row": np.arange(N) + 1.0})),
    "customer numbers": (IDS, warnings_of(U | {"id": generator(1).permutation(10_000)[:N].astype(float)})),
    "a name for every row": (IDS, warnings_of({"id": [f"c{index}" for index in range(60)], "demand": LEVELS[:60]})),
    "a context that is the outcome": (EQUAL, warnings_of(U | {"sold": U["demand"]})),
    "a context that determines the outcome": (DETERMINES, warnings_of(U | {"revenue": 2.5 * U["demand"] + 3})),
    "a category that determines the outcome": (
        DETERMINES,
        warnings_of(
            {"size": [f"{index % 5}x" for index in range(N)], "demand": [10.0 * (index % 5) for index in range(N)]}
        ),
    ),
    "copied rows": (COPIES, warnings_of({name: np.concatenate([values, values[:40]]) for name, values in U.items()})),
    "gaps": (GAPS, warnings_over_time(np.delete(LEVELS, slice(50, 60)), days()[:50] + days()[60:])),
    "a closed month of working days": (GAPS, warnings_over_time(LEVELS[:-20], WORKING[:100] + WORKING[120:])),
    "a constant stretch": (STRETCH, warnings_over_time(with_values(LEVELS, slice(100, 120), 90))),
    "capped sales": (CAPPED, warnings_over_time(np.minimum(np.round(generator(4).normal(100, 20, N)), 115))),
    "a step": (DRIFT, warnings_over_time(LEVELS + 30 * (np.arange(N) > 330))),
    "a trend": (DRIFT, warnings_over_time(LEVELS + 0.3 * np.arange(N))),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_data_gives_one_warning(name: str) -> None:
    words, warnings = ODD[name]
    assert len([sentence for sentence in warnings if words in sentence]) == 1, warnings


FINE: dict[str, list[str]] = {
    "the usual history": warnings_of(U),
    "returns, half of them negative": warnings_of(U | {"demand": generator(11).normal(0, 0.01, N)}),
    "heavy tails": warnings_of(U | {"demand": generator(12).lognormal(3, 0.8, N)}),
    "some zeros": warnings_of(U | {"demand": with_values(U["demand"], slice(0, 80), 0)}),
    "whole numbers that repeat": warnings_of(U | {"visitors": generator(1).integers(0, 500, N).astype(float)}),
    "shops": warnings_of(U | {"shop": SHOPS}),
    "a good context": warnings_of(U | {"forecast": U["demand"] + generator(2).normal(0, 5, N)}),
    "coarse rows that repeat": warnings_of({"shop": SHOPS, "demand": generator(5).integers(0, 9, N).astype(float)}),
    "every day": warnings_over_time(LEVELS),
    "working days": warnings_over_time(LEVELS, WORKING),
    "opening hours": warnings_over_time(
        LEVELS, [f"{day}T{hour:02}:00" for day in WORKING[:40] for hour in range(8, 18)]
    ),
    "few values that repeat": warnings_over_time(generator(6).integers(0, 3, N).astype(float) + 1),
    "small demand up to its maximum": warnings_over_time(generator(7).poisson(4, N).astype(float)),
    "seasons": warnings_over_time(LEVELS + 20 * np.sin(2 * np.pi * np.arange(N) / 7)),
    "few rows of anything": warnings_of({"id": np.arange(40.0), "demand": np.zeros(40)}),
}


@pytest.mark.parametrize("name", FINE)
def test_ordinary_data_gives_no_warning(name: str) -> None:
    mere = [sentence for sentence in FINE[name] if "only 40 rows" not in sentence and "same value" not in sentence]
    assert mere == []


def test_the_demo_history_has_no_warnings() -> None:
    raw = parse_rows(bakery_rows(1100), Settings())
    assert profile(raw, ColumnRoles(["croissants", "loaves"], None, []), Settings()).warnings == []


@pytest.mark.parametrize("seed", range(20))
def test_steady_demand_gives_no_drift_warning(seed: int) -> None:
    demand = generator(100 + seed).normal(100, 10, 800)
    assert warnings_over_time(demand) == []


def test_gaps_caps_and_drift_are_found_per_series() -> None:
    draw = generator(8)
    count = 12
    shop = np.repeat([f"s{index}" for index in range(count)], 200).tolist()
    when = days(200) * count
    level = np.repeat(draw.uniform(10, 1000, count), 200)
    demand = level * (1 + 0.2 * draw.normal(size=len(level)))
    assert warnings_of({"day": when, "shop": shop, "demand": demand}, time="day", series=["shop"]) == []
    capped = np.minimum(np.round(demand), np.round(1.1 * level))
    warnings = warnings_of({"day": when, "shop": shop, "demand": capped}, time="day", series=["shop"])
    assert any("of 12 series often exactly at its highest" in sentence for sentence in warnings)
    later = demand + level * 0.5 * (np.tile(np.arange(200), count) > 165)
    warnings = warnings_of({"day": when, "shop": shop, "demand": later}, time="day", series=["shop"])
    assert any(DRIFT in sentence for sentence in warnings)


def test_imputed_gaps_give_no_other_warning() -> None:
    weather: list[float | None] = U["weather"].tolist()
    weather[5] = None
    assert warnings_of(U | {"weather": weather}, missing="impute") == ["1 missing values of 'weather' are filled in"]


@pytest.mark.slow
def test_warnings_for_a_million_rows_take_seconds() -> None:
    rows, shops = 1_000_000, 500
    draw = generator()
    table = {f"x{index}": pa.array(draw.normal(size=rows)) for index in range(15)}
    table["shop"] = pa.array([f"s{index}" for index in range(shops)]).take(pa.array(np.repeat(np.arange(shops), 2000)))
    table["kind"] = pa.array(["a", "b", "c"]).take(pa.array(draw.integers(0, 3, rows)))
    table["when"] = pa.array(np.tile(np.arange(2000) * 86_400, shops)).cast(pa.timestamp("s"))
    table["demand"] = pa.array(draw.poisson(20, rows).astype(float))
    columns: list[dict[str, Any]] = [
        {"name": "when", "role": "time", "kind": "time", "unit": "day", "step": 1}
        | {"format": "iso date", "zone": "", "first": "1970-01-01", "last": "1975-06-23"},
        {"name": "shop", "role": "series", "kind": "key", "distinct": shops},
        {"name": "kind", "role": "context", "kind": "categorical", "categories": ["a", "b", "c"]},
    ]
    columns += [
        {"name": name, "role": "outcome" if name == "demand" else "context", "kind": "numeric", "distinct": rows - 1}
        for name in table
        if name.startswith("x") or name == "demand"
    ]
    whole = pa.table(table)
    for described in (columns, [column for column in columns if column["role"] in ("context", "outcome")]):
        began = time.process_time()
        assert table_warnings(whole, described) == []
        assert time.process_time() - began < 10
