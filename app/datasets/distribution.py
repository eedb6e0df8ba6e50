"""What a data set looks like: how often its columns have which values. A few passes over each column, one at a time."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa

from app.datasets.distribution_schemas import (
    MOST_BINS,
    MOST_CATEGORIES,
    MOST_OUTCOMES,
    MOST_SERIES,
    ColumnDistribution,
    Distribution,
    HistoryOverTime,
    SeriesRows,
)
from app.datasets.over_time import over_time
from app.datasets.series import series_codes
from app.datasets.series_order import Whole, ordered
from app.datasets.service import MISSING, stored_units
from app.db.blobs import verified
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, DatasetRow
from app.http.errors import InvalidRequest, NotFoundError
from app.http.rows import find

# So many values tell whether there are few different ones.
_TELLING = 2_000


@dataclass(frozen=True)
class Asked:
    """What is to be told: over time of one series, of one outcome; the columns only, or what is over time only."""

    series: str | None = None
    outcome: str | None = None
    only: str | None = None


class Stored:
    """A revision of a data set as it is stored; columns are unpacked when they are asked for."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def table(self, *names: str) -> pa.Table:
        parts = [pq.read_table(io.BytesIO(chunk), columns=list(names)) for chunk in self._chunks]
        return stored_units(pa.concat_tables(parts))

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table(name).column(0)


def read(workspace: str, dataset_id: str, asked: Asked) -> Distribution:
    """How the newest revision of a data set is distributed; over time of one series if it is named."""
    with transaction() as session:
        row = find(session, DatasetRow, workspace, dataset_id)
        if row is None:
            raise NotFoundError(MISSING)
        chunk = DatasetChunkRow
        query = sa.select(chunk.data, chunk.sha256).where(chunk.dataset_id == row.id, chunk.revision <= row.revision)
        stored = Stored([verified(data, sha256) for data, sha256 in session.execute(query.order_by(chunk.seq))])
    keys = [column["name"] for column in row.columns if column["role"] == "series"]
    codes, names, counts = _series(stored, keys, row.rows)
    most = np.argsort(-counts, kind="stable")[:MOST_SERIES]
    return Distribution(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        rows=row.rows,
        revision=row.revision,
        columns=[_described(stored.column(one["name"]), one) for one in row.columns if asked.only != "over_time"],
        series_count=len(counts),
        series=[SeriesRows(series=names[place], rows=int(counts[place])) for place in most] if keys else [],
        over_time=_over_time(stored, row.columns, asked, codes, names),
    )


def _over_time(
    stored: Stored, columns: list[dict[str, Any]], asked: Asked, series: Whole, names: list[str]
) -> HistoryOverTime | None:
    """What the outcomes were over time; of those that are asked for, and of one series if it is named."""
    outcomes = _wanted(columns, asked.outcome)
    chosen = None if asked.series is None else np.flatnonzero(series == _number_of(asked.series, columns, names))
    if columns[0]["role"] != "time" or asked.only == "columns":
        return None
    numbers = np.asarray(stored.column(columns[0]["name"]).cast(pa.int64()))
    values = {name: stored.column(name).to_numpy() for name in outcomes}
    if chosen is not None:
        numbers, series = numbers[chosen], np.zeros(len(chosen), dtype=np.int64)
        values = {name: column[chosen] for name, column in values.items()}
    return over_time(ordered(numbers, series, columns[0]), values, asked.series)


def _wanted(columns: list[dict[str, Any]], outcome: str | None) -> list[str]:
    there = [column["name"] for column in columns if column["role"] == "outcome"]
    if outcome is None:
        return there[:MOST_OUTCOMES]
    if outcome not in there:
        raise InvalidRequest.at(("query", "outcome"), f"the data set has no such outcome; it has {_listed(there)}")
    return [outcome]


# series


def _series(stored: Stored, keys: list[str], rows: int) -> tuple[Whole, list[str], Whole]:
    """The series of each row, what series are called, and how many rows each has."""
    if not keys:
        return np.zeros(rows, dtype=np.int64), [], np.array([rows])
    table = stored.table(*keys)
    codes, count = series_codes(table, keys)
    _, first = np.unique(codes, return_index=True)
    texts = [table.column(key).take(pa.array(first)).combine_chunks() for key in keys]
    names: list[str] = pc.binary_join_element_wise(*texts, ", ").to_pylist()
    return codes, names, np.bincount(codes, minlength=count)


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


def _described(column: pa.ChunkedArray, profile: dict[str, Any]) -> ColumnDistribution:
    """How often a column with this profile has which values."""
    name, role, missing = profile["name"], profile["role"], column.null_count
    if pa.types.is_string(column.type):
        categories, counts, others = _frequent(column)
        return ColumnDistribution(
            name=name, role=role, categories=categories, counts=counts, others=others, missing=missing
        )
    numbers = np.asarray((column.cast(pa.int64()) if role == "time" else column).drop_null(), dtype=np.float64)
    edges, bins = histogram(numbers) if profile.get("unit") in (None, "period") else equally_wide(numbers)
    return ColumnDistribution(name=name, role=role, edges=edges, counts=bins, others=0, missing=missing)


def _frequent(column: pa.ChunkedArray) -> tuple[list[str], list[int], int]:
    """The most frequent texts of a column, how many rows have each, and how many have another."""
    found = pc.value_counts(column.drop_null())
    texts, counts = found.field("values"), np.asarray(found.field("counts"), dtype=np.int64)
    most = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    shown = counts[most]
    return texts.take(pa.array(most)).to_pylist(), shown.tolist(), int(counts.sum() - shown.sum())


def histogram(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float], list[int]]:
    """Edges and counts of at most so many bins: one for each value where these are few, else equally wide."""
    if not len(values):
        return [0.0, 1.0], [0]
    low, high = float(values.min()), float(values.max())
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-300):
        # As good as one value: there is nothing between the two that could be told apart.
        return [low - 0.5, high + 0.5], [len(values)]
    whole = high - low < 1e9 and abs(low) < 1e9 and bool((values == np.floor(values)).all())
    step = _step(values)
    if step and (high - low) / step < MOST_BINS - 0.5:
        # Few values: each stands in the middle of a bin.
        edges = low - step / 2 + step * np.arange(int((high - low) / step + 0.5) + 2)
        edges[-1] = max(edges[-1], high)
        return edges.tolist(), np.histogram(values, edges)[0].tolist()
    if whole:
        # Equally many whole numbers a bin: otherwise every other bin would have more for no reason.
        wide = -(-int(high - low + 1) // MOST_BINS)
        counts = np.bincount((values - low).astype(np.int64) // wide)
        return (low - 0.5 + wide * np.arange(len(counts) + 1.0)).tolist(), counts.tolist()
    return equally_wide(values)


def equally_wide(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float], list[int]]:
    """Edges and counts of bins of one width between the least value and the largest."""
    # By a number of bins instead of their edges nothing has to be sorted.
    counts, edges = np.histogram(values, MOST_BINS)
    return edges.tolist(), counts.tolist()


def _step(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The least difference between few different values; 0 if there are many."""
    if len(np.unique(values[:_TELLING])) > MOST_BINS:
        return 0.0
    distinct = np.unique(values)
    return float(np.diff(distinct).min()) if 1 < len(distinct) <= MOST_BINS else 0.0
