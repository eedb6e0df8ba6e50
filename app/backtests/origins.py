"""A data set as it was known at the beginning of a split: categories, medians and features of rows before it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from app.datasets.encode_values import Whole
from app.datasets.times import written
from app.db.tables import DatasetRow
from app.posteriors import history
from app.posteriors.history import Features, RowPositions
from bco_core.backtest.rules import Origin
from bco_core.backtest.splits import Split


def origin_of(
    dataset: DatasetRow,
    table: pa.Table,
    split: Split,
    places: RowPositions | None,
    features: Features,
    outcomes: list[str],
    seed: int,
) -> tuple[Origin, Whole]:
    """A split as policies see it, and which rows (m,) of the table its judged ones are. Rows that could not have been
    decided for, such as those of a category that nobody had seen, are not among them."""
    known, judged = split.known.numpy(), split.judged.numpy()
    upto = np.sort(np.concatenate([known, judged]))
    if places is not None:
        # Rows that become known within the split are looked back on, though not learned from.
        upto = np.flatnonzero(places.periods <= places.periods[judged].max())
    past = table.take(pa.array(known))
    then = DatasetRow(
        columns=known_columns(dataset.columns, past),
        lead=dataset.lead,
        handling=dataset.handling,
        revision=dataset.revision,
    )
    found, kept = history.encode_rows(then, past, table.take(pa.array(upto)), features, outcomes, dataset.revision)
    rows = upto[kept]
    inside = np.isin(rows, judged)
    learned, decided = (torch.from_numpy(np.flatnonzero(mask)) for mask in (np.isin(rows, known), inside))
    return Origin(found.sample, learned, decided, seed), rows[inside]


def known_columns(columns: list[dict[str, Any]], past: pa.Table) -> list[dict[str, Any]]:
    """A data set's profile as these rows alone would have it: what encodings are made of."""
    return [column | _known(column, past.column(column["name"])) for column in columns]


def _known(column: dict[str, Any], values: pa.ChunkedArray) -> dict[str, Any]:
    if column["role"] == "time":
        bounds = pc.min_max(values.cast(pa.int64())).as_py()
        return {name: written(bounds[which], column["format"]) for name, which in (("first", "min"), ("last", "max"))}
    if column["role"] == "series":
        return {"distinct": pc.count_distinct(values).as_py()}
    if column["role"] == "context" and column.get("categories") is not None:
        seen = set(pc.unique(values).to_pylist())
        last = column["categories"][-1:] if column.get("other") else []
        return {"categories": [one for one in column["categories"] if one in seen or one in last]}
    if column["role"] == "context" and column.get("median") is not None:
        there = values.drop_null().to_numpy()
        return {"missing": values.null_count, "median": float(np.median(there)) if len(there) else 0.0}
    return {}
