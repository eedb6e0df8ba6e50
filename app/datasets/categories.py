"""Categories of a text column: all of them, or those seen often enough and one for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from app.http.errors import InvalidRequest
from app.settings import Settings

# What rare categories become, and those that are seen first when deciding.
OTHER = "other"
RARE = 2


def grouped(
    column: pa.ChunkedArray, name: str, rare_are_other: bool, settings: Settings
) -> tuple[pa.ChunkedArray, dict[str, Any], list[str]]:
    """The column with its rare categories grouped if so asked, its profile, and what is odd about it."""
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}
    if rare_are_other:
        kept = _frequent(counts, settings.max_categories)
        rare = sorted(counts.keys() - kept - {OTHER})
        column = with_other(column, kept)
        notes = [f"{len(rare)} rare categories of '{name}' became \"{OTHER}\""] if rare else []
        return column, {"kind": "categorical", "categories": [*kept, OTHER], "other": True}, notes
    if len(counts) > settings.max_categories:
        detail = (
            f"text column '{name}' has {len(counts)} different values, more than {settings.max_categories}; "
            "leave it out by listing the contexts you want, group its values, or send unseen=other"
        )
        raise InvalidRequest.at(("contexts",), detail)
    categories = sorted(counts)
    notes = [f"context '{name}' has the same value in every row and cannot help"] if len(counts) == 1 else []
    once = [category for category in categories if counts[category] == 1]
    if once and len(counts) > 1:
        notes.append(f"{len(once)} of the categories of '{name}' occur only once")
    return column, {"kind": "categorical", "categories": categories}, notes


def _frequent(counts: dict[str, int], most: int) -> list[str]:
    """Categories to keep beside "other", which takes a place too: the most frequent, none of them rare."""
    frequent = [name for name, count in counts.items() if count >= RARE and name != OTHER]
    frequent.sort(key=lambda name: (-counts[name], name))
    return sorted(frequent[: most - 1])


def with_other(column: pa.ChunkedArray, kept: Sequence[str]) -> pa.ChunkedArray:
    """The column with everything but some categories as "other"."""
    known = pc.is_in(column, pa.array(kept, pa.string()))
    return pc.if_else(known, column, OTHER)
