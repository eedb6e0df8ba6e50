"""Describe a data set for charts: frequencies of each column's values, and outcomes over time with gaps and shifts.

Columns are read one at a time, in a few passes each.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa

from app.datasets.schemas import (
    MOST_BINS,
    MOST_BUCKETS,
    MOST_CATEGORIES,
    MOST_GAPS,
    MOST_OUTCOMES,
    MOST_SERIES,
    MOST_SHIFTS,
    ColumnDistribution,
    DistributionAnswer,
    HistoryGap,
    HistoryOverTime,
    LevelShift,
    OutcomeOverTime,
    SeriesRows,
)
from app.datasets.service import MISSING, stored_units
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
from app.db.blobs import verify
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, DatasetRow
from app.http.errors import InvalidRequest, NotFoundError
from app.http.rows import find
from bco_core.arrays import Booleans, Floats, Integers
from bco_core.timeline import Clock

# Values that tell whether a column has few distinct ones.
_TELLING = 2_000


@dataclass(frozen=True)
class DistributionQuery:
    """Series and outcome to show over time; ``only`` leaves out the columns or the part over time."""

    series: str | None = None
    outcome: str | None = None
    only: str | None = None


class StoredChunks:
    """Stored chunks of a revision of a data set, from which single columns are unpacked."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def table(self, *names: str) -> pa.Table:
        parts = [pq.read_table(io.BytesIO(chunk), columns=list(names)) for chunk in self._chunks]
        return stored_units(pa.concat_tables(parts))

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table(name).column(0)


def read_distribution(workspace: str, dataset_id: str, query: DistributionQuery) -> DistributionAnswer:
    """Describe the newest revision of a data set."""
    with transaction() as session:
        row = find(session, DatasetRow, workspace, dataset_id)
        if row is None:
            raise NotFoundError(MISSING)
        chunk = DatasetChunkRow
        chunks = sa.select(chunk.data, chunk.sha256).where(chunk.dataset_id == row.id, chunk.revision <= row.revision)
        stored = StoredChunks([verify(data, sha256) for data, sha256 in session.execute(chunks.order_by(chunk.seq))])
    keys = [column["name"] for column in row.columns if column["role"] == "series"]
    codes, names, counts = _series(stored, keys, row.rows)
    most = np.argsort(-counts, kind="stable")[:MOST_SERIES]
    return DistributionAnswer(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        rows=row.rows,
        revision=row.revision,
        columns=[_describe_column(stored.column(one["name"]), one) for one in row.columns if query.only != "over_time"],
        series_count=len(counts),
        series=[SeriesRows(series=names[place], rows=int(counts[place])) for place in most] if keys else [],
        over_time=_over_time(stored, row.columns, query, codes, names),
    )


def _over_time(
    stored: StoredChunks, columns: list[dict[str, Any]], query: DistributionQuery, series: Integers, names: list[str]
) -> HistoryOverTime | None:
    """Describe the outcomes over time, of one series if the query names it."""
    outcomes = _wanted(columns, query.outcome)
    chosen = None if query.series is None else np.flatnonzero(series == _number_of(query.series, columns, names))
    time = TimeColumn.of(columns)
    if time is None or query.only == "columns":
        return None
    numbers = np.asarray(stored.column(time.name).cast(pa.int64()))
    values = {name: stored.column(name).to_numpy() for name in outcomes}
    if chosen is not None:
        numbers, series = numbers[chosen], np.zeros(len(chosen), dtype=np.int64)
        values = {name: column[chosen] for name, column in values.items()}
    return over_time(order_rows(numbers, series, time), values, query.series)


def _wanted(columns: list[dict[str, Any]], outcome: str | None) -> list[str]:
    there = [column["name"] for column in columns if column["role"] == "outcome"]
    if outcome is None:
        return there[:MOST_OUTCOMES]
    if outcome not in there:
        raise InvalidRequest.at(("query", "outcome"), f"the data set has no such outcome; it has {_listed(there)}")
    return [outcome]


# series


def _series(stored: StoredChunks, keys: list[str], rows: int) -> tuple[Integers, list[str], Integers]:
    """Return the series of each row, the names of the series, and the number of rows of each."""
    if not keys:
        return np.zeros(rows, dtype=np.int64), [], np.array([rows])
    all_keys, codes = series_of(stored.table(*keys), keys)
    names = [", ".join(map(str, key)) for key in all_keys]
    return codes, names, np.bincount(codes, minlength=len(names))


def _number_of(series: str, columns: list[dict[str, Any]], names: list[str]) -> int:
    keys = [column["name"] for column in columns if column["role"] == "series"]
    if not keys:
        raise InvalidRequest.at(("query", "series"), "the data set has no key columns, so it is one series")
    if series not in names:
        between = " with commas between" if len(keys) > 1 else ""
        what = f"write {', '.join(keys)}{between}, such as {names[0]}"
        raise InvalidRequest.at(("query", "series"), f"the data set has no such series; {what}")
    return names.index(series)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


# single columns


def _describe_column(column: pa.ChunkedArray, profile: dict[str, Any]) -> ColumnDistribution:
    """Count the values of a column with this profile."""
    name, role, missing = profile["name"], profile["role"], column.null_count
    if pa.types.is_string(column.type):
        categories, counts, others = _frequent(column)
        return ColumnDistribution(
            name=name, role=role, categories=categories, counts=counts, others=others, missing=missing
        )
    numbers = np.asarray((column.cast(pa.int64()) if role == "time" else column).drop_null(), dtype=np.float64)
    edges, bins = histogram(numbers) if profile.get("unit") in (None, "period") else _equal_bins(numbers)
    return ColumnDistribution(name=name, role=role, edges=edges, counts=bins, others=0, missing=missing)


def _frequent(column: pa.ChunkedArray) -> tuple[list[str], list[int], int]:
    """Return the most frequent texts of a column, the rows that have each, and the number of rows with another."""
    counted = pc.value_counts(column.drop_null())
    texts, counts = counted.field("values"), np.asarray(counted.field("counts"), dtype=np.int64)
    most = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    shown = counts[most]
    return texts.take(pa.array(most)).to_pylist(), shown.tolist(), int(counts.sum() - shown.sum())


def histogram(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float], list[int]]:
    """Return edges and counts of bins: one for each value where these are few, else bins of equal width."""
    if not len(values):
        return [0.0, 1.0], [0]
    low, high = float(values.min()), float(values.max())
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-300):
        # A single value, up to rounding.
        return [low - 0.5, high + 0.5], [len(values)]
    whole = high - low < 1e9 and abs(low) < 1e9 and bool((values == np.floor(values)).all())
    step = _step(values)
    if step and (high - low) / step < MOST_BINS - 0.5:
        # Few values: each in the middle of its own bin.
        edges = low - step / 2 + step * np.arange(int((high - low) / step + 0.5) + 2)
        edges[-1] = max(edges[-1], high)
        return edges.tolist(), np.histogram(values, edges)[0].tolist()
    if whole:
        # The same number of integers in each bin: otherwise some bins would have more for no reason.
        wide = -(-int(high - low + 1) // MOST_BINS)
        counts = np.bincount((values - low).astype(np.int64) // wide)
        return (low - 0.5 + wide * np.arange(len(counts) + 1.0)).tolist(), counts.tolist()
    return _equal_bins(values)


def _equal_bins(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float], list[int]]:
    """Return edges and counts of bins of equal width between the smallest value and the largest."""
    # Given a number of bins instead of edges, numpy does not sort.
    counts, edges = np.histogram(values, MOST_BINS)
    return edges.tolist(), counts.tolist()


def _step(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the smallest difference between few distinct values; 0 if there are many."""
    if len(np.unique(values[:_TELLING])) > MOST_BINS:
        return 0.0
    distinct = np.unique(values)
    return float(np.diff(distinct).min()) if 1 < len(distinct) <= MOST_BINS else 0.0


# outcomes over time

# Stretches next to a cut that are compared with all stretches on its longer side.
_NEXT_TO = STRETCHES // 5


def over_time(history: SeriesOrder, values: Mapping[str, Floats], series: str | None) -> HistoryOverTime:
    """Describe outcomes (n,) by name, in the order of the table, over time."""
    clock = Clock.starting(history.time.unit, history.time.step, int(history.moments.min()))
    periods = clock.periods(history.moments)
    begin = int(periods.min())
    width = -(-(int(periods.max()) - begin + 1) // MOST_BUCKETS)
    # numpy sorts 16-bit integers without comparisons.
    buckets = ((periods - begin) // width).astype(np.int16)
    order = np.argsort(buckets, kind="stable")
    used, starts = np.unique(buckets[order], return_index=True)
    rows = np.diff(np.append(starts, len(order)))
    return HistoryOverTime(
        series=series,
        times=[clock.text(begin + int(bucket) * width) for bucket in used],
        rows=rows.tolist(),
        periods=width,
        outcomes=[_outcome(name, column[history.order], history, order, starts) for name, column in values.items()],
        gaps=gaps(history),
    )


def _outcome(name: str, values: Floats, history: SeriesOrder, order: Integers, starts: Integers) -> OutcomeOverTime:
    bucketed = values[order]
    counts = np.diff(np.append(starts, len(values)))
    return OutcomeOverTime(
        name=name,
        mean=(np.add.reduceat(bucketed / np.repeat(counts, counts), starts)).tolist(),
        minimum=np.minimum.reduceat(bucketed, starts).tolist(),
        maximum=np.maximum.reduceat(bucketed, starts).tolist(),
        shifts=shifts(values, history),
    )


# gaps


def gaps(history: SeriesOrder) -> list[HistoryGap]:
    """Find spans in which more than half of the series lack rows, of those that have rows before and after.

    Time is a sequence of cells: one for each moment that has rows, and one between each two of them.
    """
    ahead = np.diff(history.periods)
    broken = np.flatnonzero(history.same_series & (ahead > 1))
    if not len(broken):
        return []
    moments, places = np.unique(history.moments, return_inverse=True)
    numbers = np.zeros(len(moments), dtype=np.int64)
    numbers[places] = history.periods
    ends = np.flatnonzero(np.append(~history.same_series, True))
    begins = np.append(0, ends[:-1] + 1)
    lacking = _covered(2 * places[broken] + 1, 2 * places[broken + 1], 2 * len(moments))
    expected = _covered(2 * places[begins], 2 * places[ends] + 1, 2 * len(moments))
    runs = [
        ((int(start) - 1) // 2, (int(end) + 1) // 2, int(lacking[start:end].max()))
        for start, end in _runs((lacking > 0) & (2 * lacking > expected))
    ]
    spans = [(int(numbers[last] - numbers[first]) - 1, first, last, series) for first, last, series in runs]
    longest = sorted(spans, reverse=True)[:MOST_GAPS]
    return [
        HistoryGap(
            after=write_time(int(moments[first]), history.time.format),
            before=write_time(int(moments[last]), history.time.format),
            periods=count,
            series=series,
        )
        for count, first, last, series in sorted(longest, key=lambda span: span[1])
        if count > 0
    ]


def _covered(starts: Integers, ends: Integers, size: int) -> Integers:
    """Count the spans [start, end) that cover each of ``size`` cells."""
    changes = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    covered: Integers = np.cumsum(changes)[:size]
    return covered


def _runs(chosen: Booleans) -> Integers:
    """Return start and end (k, 2) of each run of chosen cells."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.view(np.int8), [0]])))
    return edges.reshape(-1, 2)


# shifts


def shifts(values: Floats, history: SeriesOrder) -> list[LevelShift]:
    """Find times at which the level of an outcome (n,), in the order of the history, has changed, clearest first."""
    periods, level = levels(values, history)
    if len(periods) < 2 * STRETCHES:
        return []
    parts = np.array_split(np.arange(len(level)), STRETCHES)
    blocks = np.array([level[part].mean() for part in parts])
    spread, usual = float(level.std()), float(values.mean())
    candidates = []
    for cut in range(_NEXT_TO, STRETCHES - _NEXT_TO + 1):
        if cut < STRETCHES // 2:
            early, late = blocks[cut - _NEXT_TO : cut], blocks[cut:]
            longer, shorter = late, early
        else:
            early, late = blocks[:cut], blocks[cut : cut + _NEXT_TO]
            longer, shorter = early, late
        if has_shifted(longer, shorter, spread):
            shift = float(late.mean() - early.mean())
            clear = abs(shift) / (float(longer.std(ddof=1)) or 1e-300)
            candidates.append((clear, cut, float(early.mean()), float(late.mean())))
    clearest: list[tuple[float, int, float, float]] = []
    for one in sorted(candidates, reverse=True):
        if all(abs(one[1] - other[1]) >= _NEXT_TO for other in clearest) and len(clearest) < MOST_SHIFTS:
            clearest.append(one)
    return [
        LevelShift(since=_first_of(history, int(periods[parts[cut][0]])), before=usual + before, after=usual + after)
        for _, cut, before, after in clearest
    ]


def _first_of(history: SeriesOrder, period: int) -> str:
    moments = history.moments[history.periods == period]
    return write_time(int(moments.min()), history.time.format)
