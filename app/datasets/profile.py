"""Check and clean a raw table, and profile its columns. Unusable values are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets import columns
from app.datasets.columns import OTHER, group_categories
from app.datasets.parsing import RawTable
from app.datasets.roles import ColumnRoles, StoredColumns, choose_columns
from app.datasets.times import Times, first_duplicate, read_times, series_of, spacing, write_time
from app.datasets.validation_errors import Mistakes
from app.datasets.warnings import table_warnings
from app.http.errors import InvalidRequest
from app.settings import Settings
from bco_core.arrays import Integers

FEW_ROWS = 50


@dataclass(frozen=True)
class CleanTable:
    """Usable part of a raw table: columns in the order of storage, and the rows (n,) of the raw table.

    Numeric contexts that are to be imputed keep their gaps, and so do decisions; nothing else is missing.
    """

    table: pa.Table
    rows: Integers
    missing: dict[str, int]
    times: Times | None
    notes: list[str]


@dataclass(frozen=True)
class ProfiledTable:
    """A clean table, its columns' profile, and warnings."""

    table: pa.Table
    columns: list[dict[str, Any]]
    warnings: list[str]


def profile(raw: RawTable, roles: ColumnRoles, settings: Settings) -> ProfiledTable:
    """Check and describe a raw table. Raises InvalidRequest naming the column, the row and the remedy."""
    chosen = choose_columns(raw, roles, settings)
    kinds = dict.fromkeys(roles.categorical, "categorical")
    cleaned = clean(raw, chosen, roles, kinds)
    if cleaned.table.num_rows < 2:
        raise InvalidRequest.at((raw.whole,), "a data set needs at least 2 rows without missing values")
    _refuse_duplicates(raw, chosen, cleaned)
    return describe(cleaned, chosen, roles, settings)


def clean(raw: RawTable, chosen: StoredColumns, roles: ColumnRoles, kinds: Mapping[str, str]) -> CleanTable:
    """Type every column and treat gaps as the roles say; ``kinds`` has the contexts whose kind is known."""
    mistakes = Mistakes(raw)
    arrays: dict[str, pa.Array | None] = {}
    times = None
    if chosen.time is not None and columns.check_values(raw, chosen.time, mistakes):
        times = read_times(raw.columns[chosen.time], chosen.time, mistakes)
        arrays[chosen.time] = None if times is None else times.values
    for name in chosen.series:
        arrays[name] = columns.read_key(raw, name, mistakes)
    for name in chosen.contexts:
        arrays[name] = columns.read_context(raw, name, kinds.get(name), mistakes)
    for name in chosen.outcomes:
        arrays[name] = columns.read_numbers_column(raw, name, mistakes)
    for name in chosen.decisions:
        arrays[name] = columns.read_numbers_column(raw, name, mistakes, "a decision")
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
    return CleanTable(table, kept, missing, times, notes)


def _complete_rows(
    raw: RawTable, chosen: StoredColumns, roles: ColumnRoles, table: pa.Table
) -> tuple[Integers, list[str]]:
    """Return the rows that are complete, or will be once their gaps are filled in, and notes on the others."""
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


def _filled_in(chosen: StoredColumns, roles: ColumnRoles, table: pa.Table) -> set[str]:
    """Return the columns whose gaps are filled in: numeric contexts, and categories where unknown ones are "other"."""
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


def _refuse_duplicates(raw: RawTable, chosen: StoredColumns, cleaned: CleanTable) -> None:
    if chosen.time is None or cleaned.times is None:
        return
    numbers = np.asarray(cleaned.table.column(chosen.time).cast(pa.int64()))
    pair = first_duplicate(numbers, series_of(cleaned.table, chosen.series)[1])
    if pair is None:
        return
    (where, words), (_, before) = (raw.place(int(cleaned.rows[row]), chosen.time) for row in reversed(pair))
    what = "time and series" if chosen.series else "time"
    shown = write_time(int(numbers[pair[1]]), cleaned.times.format)
    detail = f"{words}: the same {what} ({shown}) as {before}; each may occur once"
    if not chosen.series:
        detail += ", unless key columns identify series (series)"
    raise InvalidRequest.at(where, detail)


# profiles


def describe(cleaned: CleanTable, chosen: StoredColumns, roles: ColumnRoles, settings: Settings) -> ProfiledTable:
    """Profile a clean table, with its rare categories grouped if the roles say so, and warn of oddities."""
    table, warnings = cleaned.table, list(cleaned.notes)
    if table.num_rows < FEW_ROWS:
        warnings.append(f"only {table.num_rows} rows: decisions learned from so few may change much with more data")
    entries = _profile_time(cleaned, chosen, settings)
    role_of = dict.fromkeys(chosen.contexts, "context") | dict.fromkeys(chosen.outcomes, "outcome")
    role_of |= dict.fromkeys(chosen.decisions, "decision")
    for name, role in role_of.items():
        column = table.column(name)
        if pa.types.is_string(column.type):
            column, entry, notes = group_categories(column, name, roles.unseen == "other", settings)
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            entry, notes = _profile_numbers(column, name, f"{role}s")
            if roles.missing == "impute" and role == "context":
                entry["median"] = float(np.median(column.drop_null().to_numpy()))
        entries.append({"name": name, "role": role, "missing": cleaned.missing[name]} | entry)
        if role == "decision":
            gaps = column.null_count
            notes = [f"'{name}' has no decision in {gaps} row(s); backtests leave these out"] if gaps else []
        warnings += notes
    return ProfiledTable(table, entries, warnings + table_warnings(table, entries))


def _profile_time(cleaned: CleanTable, chosen: StoredColumns, settings: Settings) -> list[dict[str, Any]]:
    """Profile the time column and the keys."""
    if chosen.time is None or cleaned.times is None:
        return []
    keys, series = series_of(cleaned.table, chosen.series)
    if len(keys) > settings.max_series:
        detail = f"there are {len(keys)} series, more than {settings.max_series} (BCO_MAX_SERIES)"
        raise InvalidRequest.at(("series",), detail)
    numbers = np.asarray(cleaned.table.column(chosen.time).cast(pa.int64()))
    written_as = cleaned.times.format
    try:
        unit, step = spacing(numbers, series, written_as)
    except ValueError as error:
        raise InvalidRequest.at(("time",), str(error)) from None
    time = {
        "name": chosen.time,
        "role": "time",
        "kind": "time",
        "missing": cleaned.missing[chosen.time],
        "format": written_as,
        "unit": unit,
        "step": step,
        "first": write_time(int(numbers.min()), written_as),
        "last": write_time(int(numbers.max()), written_as),
        "zone": cleaned.times.zone,
    }
    key_profiles = [
        {
            "name": name,
            "role": "series",
            "kind": "key",
            "missing": cleaned.missing[name],
            "distinct": pc.count_distinct(cleaned.table.column(name)).as_py(),
        }
        for name in chosen.series
    ]
    return [time, *key_profiles]


def _profile_numbers(column: pa.ChunkedArray, name: str, field: str) -> tuple[dict[str, Any], list[str]]:
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
