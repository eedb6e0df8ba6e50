"""Warn of what a data scientist would point out in a clean table before learning from it; refuse nothing.

Every check is a few passes over whole columns, so a million rows of 20 columns take seconds. Checks of order (gaps,
repeats, caps, drift) need a time column: the order of a file means nothing by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from app.datasets.times import (
    STRETCHES,
    SeriesOrder,
    TimeColumn,
    has_shifted,
    levels,
    order_rows,
    series_of,
    write_time,
)
from bco_core.arrays import Floats

# Fewer rows look odd in some way by mere chance.
FEWEST = 50


def table_warnings(table: pa.Table, columns: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each odd thing in a clean table with this profile."""
    if table.num_rows < FEWEST:
        return []
    numeric = {
        column["name"]: table.column(column["name"]).to_numpy()
        for column in columns
        if column["kind"] == "numeric" and column["role"] != "decision"
    }
    outcomes = [column["name"] for column in columns if column["role"] == "outcome"]
    sentences = []
    for name, values in numeric.items():
        sentences += _outliers(name, values)
    for name in outcomes:
        sentences += _negative(name, numeric[name]) + _zeros(name, numeric[name])
    sentences += _like_ids(table, columns, numeric) + _giveaways(table, columns, numeric, outcomes)
    time = TimeColumn.of(columns)
    if time is None:
        return sentences + _duplicates(table, columns)
    keys = [column["name"] for column in columns if column["role"] == "series"]
    history = order_rows(np.asarray(table.column(time.name).cast(pa.int64())), series_of(table, keys)[1], time)
    sentences += _gaps(history)
    for name in outcomes:
        ordered = numeric[name][history.order]
        sentences += _repeats(name, ordered, history) + _caps(name, ordered, history) + _drift(name, ordered, history)
    return sentences


# single columns


def _negative(name: str, values: Floats) -> list[str]:
    """Warn of a few negative values; where many are negative, they are meant."""
    negative = int((values < 0).sum())
    if not 0 < negative <= 0.05 * len(values):
        return []
    return [f"{negative} values of '{name}' are negative: if it is demand, these may be returns or corrections"]


def _zeros(name: str, values: Floats) -> list[str]:
    share = float((values == 0).mean())
    if not 0.3 < share < 1:
        return []
    return [f"{share:.0%} of the values of '{name}' are zero: check that they mean no demand, not no record"]


def _outliers(name: str, values: Floats) -> list[str]:
    """Warn of values ten quartile ranges out that are five times as far from the median as 98 % of the others."""
    values = values[~np.isnan(values)]
    if len(values) < FEWEST:
        return []
    cuts = np.quantile(values, [0.02, 0.25, 0.5, 0.75, 0.98], method="lower")
    low, first, middle, third, high = (float(cut) for cut in cuts)
    wide = 10 * (third - first)
    if not wide:
        return []
    far = (values > max(third + wide, middle + 5 * (high - middle))) | (
        values < min(first - wide, middle - 5 * (middle - low))
    )
    count = int(far.sum())
    if not count:
        return []
    furthest = values[far][np.abs(values[far] - middle).argmax()]
    return [f"{count} values of '{name}' are far from all others, such as {furthest:g}: check that they are right"]


def _like_ids(table: pa.Table, columns: list[dict[str, Any]], numeric: dict[str, Floats]) -> list[str]:
    sentences = []
    for column in columns:
        name = column["name"]
        if column["role"] != "context":
            continue
        if column["kind"] == "numeric":
            values = numeric[name]
            alone = column["distinct"] == len(values) and bool((values == np.floor(values)).all())
        else:
            alone = len(column["categories"]) >= 0.9 * table.num_rows
        if alone:
            sentences.append(
                f"context '{name}' has a different value in every row, like an id or a row number: it cannot help"
            )
    return sentences


def _giveaways(
    table: pa.Table, columns: list[dict[str, Any]], numeric: dict[str, Floats], outcomes: list[str]
) -> list[str]:
    """Warn of contexts that determine an outcome: they are often known only after it."""
    sentences = []
    for column in columns:
        if column["role"] != "context":
            continue
        name = column["name"]
        for outcome in outcomes:
            values = numeric[outcome]
            if column["kind"] == "numeric":
                equal = float((numeric[name] == values).mean())
                explained = _correlation(numeric[name], values) ** 2
            else:
                equal = 0.0
                few = len(column["categories"]) < len(values) / 10
                explained = _explained(table.column(name), values) if few else 0.0
            what = "equals" if equal > 0.99 and explained > 0.99 else "nearly determines" if explained > 0.998 else ""
            if what:
                sentences.append(f"context '{name}' {what} outcome '{outcome}': is it known when deciding?")
    return sentences


def _correlation(context: Floats, outcome: Floats) -> float:
    there = ~np.isnan(context)
    one, two = context[there] - context[there].mean(), outcome[there] - outcome[there].mean()
    size = float(np.sqrt((one @ one) * (two @ two)))
    return float(one @ two) / size if size > 0 else 0.0


def _explained(categories: pa.ChunkedArray, outcome: Floats) -> float:
    """Return the share of an outcome's variance that is between categories."""
    codes = np.asarray(categories.combine_chunks().dictionary_encode().indices)
    counts = np.bincount(codes)
    means = np.bincount(codes, outcome) / counts
    spread = float(((outcome - outcome.mean()) ** 2).sum())
    return 1 - float(((outcome - means[codes]) ** 2).sum()) / spread if spread > 0 else 0.0


def _duplicates(table: pa.Table, columns: list[dict[str, Any]]) -> list[str]:
    """Warn of repeated rows if chance makes far fewer: coarse columns repeat by themselves."""
    hashed = np.zeros(table.num_rows, dtype=np.uint64)
    drawn = np.random.default_rng(0)
    ways = 1.0
    for column in columns:
        if column["role"] == "decision":
            continue
        values = table.column(column["name"]).combine_chunks()
        if column["kind"] == "numeric":
            bits = (np.asarray(values.fill_null(0.0)) + 0.0).view(np.uint64)
            ways *= column["distinct"]
        else:
            bits = np.asarray(values.dictionary_encode().indices).astype(np.uint64)
            ways *= len(column["categories"])
        bits = (bits ^ (bits >> np.uint64(29))) * drawn.integers(1, 2**63, dtype=np.uint64)
        hashed = (hashed ^ bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    repeated = table.num_rows - len(np.unique(hashed))
    by_chance = table.num_rows**2 / (2 * ways)
    if repeated <= 1 + 10 * by_chance:
        return []
    return [f"{repeated} rows are exact copies of others: check that nothing was exported twice"]


# history time


def _gaps(history: SeriesOrder) -> list[str]:
    ahead = np.where(history.same_series, np.diff(history.periods) - 1, 0)
    ahead = np.maximum(ahead, 0)
    missing = int(ahead.sum())
    if not missing:
        return []
    units = f"{history.time.unit}s"
    each = units if history.time.step == 1 else f"steps of {history.time.step} {units}"
    share = missing / (missing + len(history.order))
    return [
        f"{missing} {each} between first and last rows are missing ({share:.1%}), up to {int(ahead.max())} in a row: "
        "check that nothing happened then"
    ]


def _repeats(name: str, ordered: Floats, history: SeriesOrder) -> list[str]:
    """Warn of the longest run of one value if chance would hardly make one as long."""
    same = (np.diff(ordered) == 0) & history.same_series
    if same.all() or not same.any():
        return []
    ends = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    lengths = ends[1::2] - ends[::2] + 1
    longest = int(lengths.max())
    _, counts = np.unique(ordered, return_counts=True)
    repeats = float(((counts / len(ordered)) ** 2).sum())
    if longest < 10 or len(ordered) * repeats ** (longest - 1) > 1e-3:
        return []
    value = ordered[ends[::2][lengths.argmax()]]
    return [f"'{name}' is {value:g} in {longest} rows in a row: check that it was measured, not carried forward"]


def _caps(name: str, ordered: Floats, history: SeriesOrder) -> list[str]:
    """Warn of series whose highest value occurs far more often than those just below: sales capped by stock."""
    order = np.lexsort((ordered, history.series))
    values, series = ordered[order], history.series[order]
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(values) != 0) | (np.diff(series) != 0)]))
    counts = np.diff(np.append(starts, len(values)))
    of = series[starts]
    last = np.flatnonzero(np.concatenate([np.diff(of) != 0, [True]]))
    distinct = np.diff(np.concatenate([[-1], last]))
    enough = last[distinct >= 10]
    rows = np.bincount(series)[of[enough]]
    below = np.maximum(counts[enough - 1], counts[enough - 2])
    capped = enough[(counts[enough] >= np.maximum(5, 0.05 * rows)) & (counts[enough] >= 3 * below)]
    if len(capped) <= 0.05 * len(last) and len(last) > 1:
        return []
    if not len(capped):
        return []
    many = f"in {len(capped)} of {len(last)} series " if len(last) > 1 else ""
    return [
        f"'{name}' is {many}often exactly at its highest value ({int(counts[capped].sum())} rows): sales limited "
        "by stock understate demand"
    ]


def _drift(name: str, ordered: Floats, history: SeriesOrder) -> list[str]:
    """Warn if the level of the last fifth of time differs from that before, by its scatter from stretch to stretch."""
    periods, level = levels(ordered, history)
    if len(periods) < 2 * STRETCHES:
        return []
    blocks = np.array([block.mean() for block in np.array_split(level, STRETCHES)])
    early, late = blocks[: -STRETCHES // 5], blocks[-STRETCHES // 5 :]
    if not has_shifted(early, late, float(level.std())):
        return []
    shift = float(late.mean() - early.mean())
    usual = float(ordered.mean())
    recent = history.moments[history.periods >= periods[-(len(periods) // 5)]]
    since = write_time(int(recent.min()), history.time.format)
    direction = "higher" if shift > 0 else "lower"
    return [
        f"'{name}' has been {abs(shift):.3g} {direction} since about {since} (its mean is {usual:.3g}): what was "
        "learned before may not hold"
    ]
