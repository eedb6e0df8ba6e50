"""A raw table checked and cleaned, and what its columns hold. What cannot be used is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets import columns
from app.datasets.categories import OTHER, grouped
from app.datasets.parsing import RawTable
from app.datasets.roles import Chosen, Roles, chosen_columns
from app.datasets.series import series_codes
from app.datasets.times import Times, first_duplicate, read_times, spacing, written
from app.datasets.validation_errors import Mistakes
from app.datasets.warnings import oddities
from app.http.errors import InvalidRequest
from app.settings import Settings

Numbers = np.ndarray[Any, np.dtype[np.int64]]

FEW_ROWS = 50


@dataclass(frozen=True)
class Clean:
    """What can be used of a raw table: columns in the order in which they are stored, and which rows they are.

    Numeric contexts keep their gaps where they are to be imputed, and decisions keep theirs; nothing else is missing.
    """

    table: pa.Table
    rows: Numbers
    missing: dict[str, int]
    times: Times | None
    notes: list[str]


@dataclass(frozen=True)
class Profiled:
    """A clean table, its columns' profile, and warnings."""

    table: pa.Table
    columns: list[dict[str, Any]]
    warnings: list[str]


def profile(raw: RawTable, roles: Roles, settings: Settings) -> Profiled:
    """Check and describe a raw table. Raises InvalidRequest naming the column, the row and the remedy."""
    chosen = chosen_columns(raw, roles, settings)
    kinds = dict.fromkeys(roles.categorical, "categorical")
    found = clean(raw, chosen, roles, kinds)
    if found.table.num_rows < 2:
        raise InvalidRequest.at((raw.whole,), "a data set needs at least 2 rows without missing values")
    _refuse_duplicates(raw, chosen, found)
    return described(found, chosen, roles, settings)


def clean(raw: RawTable, chosen: Chosen, roles: Roles, kinds: Mapping[str, str]) -> Clean:
    """Every column typed and gaps treated as the roles say; ``kinds`` has the contexts whose kind is known."""
    mistakes = Mistakes(raw)
    arrays: dict[str, pa.Array | None] = {}
    times = None
    if chosen.time is not None and columns.usable(raw, chosen.time, mistakes):
        times = read_times(raw.columns[chosen.time], chosen.time, mistakes)
        arrays[chosen.time] = None if times is None else times.values
    for name in chosen.series:
        arrays[name] = columns.key(raw, name, mistakes)
    for name in chosen.contexts:
        arrays[name] = columns.context(raw, name, kinds.get(name), mistakes)
    for name in chosen.outcomes:
        arrays[name] = columns.outcome(raw, name, mistakes)
    for name in chosen.decisions:
        arrays[name] = columns.outcome(raw, name, mistakes, "a decision")
    mistakes.refuse()
    table = pa.table(arrays)
    missing = {name: table.column(name).null_count for name in table.column_names}
    kept, notes = _complete_rows(raw, chosen, roles, table)
    if len(kept) < table.num_rows:
        table = table.take(pa.array(kept))
    if roles.unseen == "other":
        for index, name in enumerate(table.column_names):
            if missing[name] and name in chosen.contexts and pa.types.is_string(table.column(name).type):
                table = table.set_column(index, name, pc.fill_null(table.column(name), OTHER))
    return Clean(table, kept, missing, times, notes)


def _complete_rows(raw: RawTable, chosen: Chosen, roles: Roles, table: pa.Table) -> tuple[Numbers, list[str]]:
    """The rows that can be used as they are or once their gaps are filled in, and what is to be said of others."""
    needed = [name for name in table.column_names if name not in chosen.decisions]
    gaps = {name: table.column(name).null_count for name in needed if table.column(name).null_count}
    everything = np.arange(table.num_rows)
    if not gaps:
        return everything, []
    if roles.missing == "reject":
        _refuse_gaps(raw, table, gaps)
    filled_in = _filled_in(chosen, roles, table)
    whole = np.ones(table.num_rows, dtype=bool)
    for name in gaps:
        if name not in filled_in:
            whole &= np.asarray(table.column(name).is_valid())
    dropped = int((~whole).sum())
    notes = []
    if dropped and roles.missing == "drop":
        notes.append(f"{dropped} rows with missing values were dropped")
    elif dropped:
        lacking = ", ".join(f"'{name}'" for name in gaps if name not in filled_in)
        notes.append(f"{dropped} rows were dropped because they lack {lacking}: only context numbers are filled in")
    notes += [f"{count} missing values of '{name}' are filled in" for name, count in gaps.items() if name in filled_in]
    return everything[whole], notes


def _filled_in(chosen: Chosen, roles: Roles, table: pa.Table) -> set[str]:
    """Columns whose gaps do not cost the row: numeric contexts, and categories where the unknown is "other"."""
    if roles.missing != "impute":
        return set()
    numeric = {name for name in chosen.contexts if not pa.types.is_string(table.column(name).type)}
    return set(chosen.contexts) if roles.unseen == "other" else numeric


def _refuse_gaps(raw: RawTable, table: pa.Table, gaps: dict[str, int]) -> None:
    mistakes = Mistakes(raw)
    for name in gaps:
        mistakes.at(np.flatnonzero(np.asarray(table.column(name).is_null())).tolist(), name, "a value is missing")
    name = next(iter(gaps))
    _, words = raw.place(pc.index(pc.is_null(table.column(name)), True).as_py(), name)
    counts = ", ".join(f"{count} in '{column}'" for column, count in gaps.items())
    mistakes.refuse(
        f"missing values ({counts}; the first at {words}): fill them in, or send missing=drop to leave those rows out, "
        "or missing=impute to have context numbers filled in"
    )


def _refuse_duplicates(raw: RawTable, chosen: Chosen, found: Clean) -> None:
    if chosen.time is None or found.times is None:
        return
    numbers = np.asarray(found.table.column(chosen.time).cast(pa.int64()))
    pair = first_duplicate(numbers, series_codes(found.table, chosen.series)[0])
    if pair is None:
        return
    (where, words), (_, before) = (raw.place(int(found.rows[row]), chosen.time) for row in reversed(pair))
    what = "time and series" if chosen.series else "time"
    shown = written(int(numbers[pair[1]]), found.times.format)
    detail = f"{words}: the same {what} ({shown}) as {before}; each may occur once"
    if not chosen.series:
        detail += ", unless key columns tell series apart (series)"
    raise InvalidRequest.at(where, detail)


# what the columns hold


def described(found: Clean, chosen: Chosen, roles: Roles, settings: Settings) -> Profiled:
    """The profile of a clean table, its rare categories grouped if that was asked for, and warnings."""
    table, warnings = found.table, list(found.notes)
    if table.num_rows < FEW_ROWS:
        warnings.append(f"only {table.num_rows} rows: decisions learned from so few may change much with more data")
    entries = _timeline(found, chosen, settings)
    role_of = dict.fromkeys(chosen.contexts, "context") | dict.fromkeys(chosen.outcomes, "outcome")
    role_of |= dict.fromkeys(chosen.decisions, "decision")
    for name, role in role_of.items():
        column = table.column(name)
        if pa.types.is_string(column.type):
            column, entry, notes = grouped(column, name, roles.unseen == "other", settings)
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            entry, notes = _numeric(column, name, f"{role}s")
            if roles.missing == "impute" and role == "context":
                entry["median"] = float(np.median(column.drop_null().to_numpy()))
        entries.append({"name": name, "role": role, "missing": found.missing[name]} | entry)
        if role == "decision":
            gaps = column.null_count
            notes = [f"'{name}' does not say in {gaps} row(s) what was done; backtests leave these out"] if gaps else []
        warnings += notes
    return Profiled(table, entries, warnings + oddities(table, entries))


def _timeline(found: Clean, chosen: Chosen, settings: Settings) -> list[dict[str, Any]]:
    """The profile of the time column and of the keys."""
    if chosen.time is None or found.times is None:
        return []
    series, count = series_codes(found.table, chosen.series)
    if count > settings.max_series:
        detail = f"there are {count} series, more than {settings.max_series} (BCO_MAX_SERIES)"
        raise InvalidRequest.at(("series",), detail)
    numbers = np.asarray(found.table.column(chosen.time).cast(pa.int64()))
    written_as = found.times.format
    try:
        unit, step = spacing(numbers, series, written_as)
    except ValueError as error:
        raise InvalidRequest.at(("time",), str(error)) from None
    time = {
        "name": chosen.time,
        "role": "time",
        "kind": "time",
        "missing": found.missing[chosen.time],
        "format": written_as,
        "unit": unit,
        "step": step,
        "first": written(int(numbers.min()), written_as),
        "last": written(int(numbers.max()), written_as),
        "zone": found.times.zone,
    }
    keys = [
        {
            "name": name,
            "role": "series",
            "kind": "key",
            "missing": found.missing[name],
            "distinct": pc.count_distinct(found.table.column(name)).as_py(),
        }
        for name in chosen.series
    ]
    return [time, *keys]


def _numeric(column: pa.ChunkedArray, name: str, field: str) -> tuple[dict[str, Any], list[str]]:
    values = column.drop_null().to_numpy()
    if not len(values):
        raise InvalidRequest.at((field,), f"column '{name}' has no value in any row; list the {field} without it")
    low, high = float(values.min()), float(values.max())
    notes = [f"column '{name}' has the same value in every row"] if low == high else []
    return {
        "kind": "numeric",
        "minimum": low,
        "maximum": high,
        "mean": float(values.mean()),
        "std": float(values.std()),
        "distinct": len(np.unique(values)),
    }, notes
