"""Write the specification of kind ``linear`` for a file's model and its description."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from app.child_processes import InvalidFile
from app.model_files.read_mps_lp import FileModel
from app.model_files.scenario_table import ScenarioTable
from app.model_files.smps import Entry, entry_name

Json = dict[str, Any]
CONSTANT = "constant"


class UncertainEntry(NamedTuple):
    """An entry that depends on outcomes, and where the request says so."""

    number: Json
    where: tuple[str | int, ...]


def write_specification(
    model: FileModel, description: Json, decided: list[str], table: ScenarioTable | None
) -> tuple[Json, list[str]]:
    """Return the specification and notes on it. ``decided`` are the first-stage columns."""
    renamed = _Renamed(model, description)
    entries = _described(model, description) if table is None else _varying(table)
    outcomes = description["outcomes"] if table is None else _bounded(table)
    now = set(decided)
    notes = list(model.notes)
    if model.free:
        notes.append(f"rows that bound nothing were left out: {', '.join(model.free[:5])}")
    variables: dict[bool, list[Json]] = {True: [], False: []}
    for index, name in enumerate(model.columns):
        variables[name in now].append(
            {
                "name": renamed.columns.get(name, name),
                "cost": _number(model.costs[index], entries.pop((name, None), None)),
                "minimum": _bound(model.lower[index]),
                "maximum": _bound(model.upper[index]),
                "integer": model.integer[index],
            }
        )
    offset = _number(model.offset, entries.pop((None, None), None))
    if offset != 0:
        taken = {variable["name"] for part in variables.values() for variable in part}
        name = next(name for name in _numbered(CONSTANT) if name not in taken)
        fixed = {"name": name, "cost": offset, "minimum": 1.0, "maximum": 1.0, "integer": False}
        variables[not variables[False]].append(fixed)
        notes.append(f"the constant of the objective is the cost of '{name}', which is always 1")
    rows = _rows(model, now, renamed, entries, notes)
    left = next(iter(entries.values()), None)
    if left is not None:
        raise InvalidFile("this row bounds nothing, so it is not part of the problem", left.where)
    gaps = {name: description[name] for name in ("relative_gap", "absolute_gap") if description.get(name) is not None}
    spec = {
        "kind": "linear",
        "sense": "maximize" if model.maximize else "minimize",
        "decisions": variables[True],
        "recourse": variables[False],
        "outcomes": outcomes,
        "rows": rows,
        **gaps,
    }
    return spec, notes


class _Renamed:
    """New names of columns and rows from the description."""

    def __init__(self, model: FileModel, description: Json) -> None:
        self.columns: dict[str, str] = description["columns"]
        self.rows: dict[str, str] = description["rows"]
        for part, known in (("columns", set(model.columns)), ("rows", set(model.rows))):
            for name in description[part]:
                if name not in known:
                    raise InvalidFile(f"the file has no {part[:-1]} of this name", ("description", part, name))


def _numbered(name: str) -> Any:
    yield name
    yield from (f"{name} {number}" for number in range(2, 1_000_000))


def first_stage_columns(model: FileModel, description: Json) -> list[str]:
    """Return the columns that a description lists as decided now; all of them by default."""
    named = description["decisions"]
    if named is None:
        return model.columns
    known, seen = set(model.columns), set()
    for index, name in enumerate(named):
        if name not in known:
            raise InvalidFile("the file has no column of this name", ("description", "decisions", index))
        if name in seen:
            raise InvalidFile("this column is listed twice", ("description", "decisions", index))
        seen.add(name)
    if not named:
        raise InvalidFile("name at least one column that is decided now", ("description", "decisions"))
    return list(named)


def _described(model: FileModel, description: Json) -> dict[Entry, UncertainEntry]:
    columns = set(model.columns)
    rows = {*(name for name in model.rows if name is not None), *model.free}
    result: dict[Entry, UncertainEntry] = {}
    for index, entry in enumerate(description["entries"]):
        where = ("description", "entries", index)
        row, column = entry["row"], entry["column"]
        if row == model.objective and row not in rows:
            row = None
        if row is not None and row not in rows:
            raise InvalidFile("the file has no row of this name; null stands for the objective", (*where, "row"))
        if column is not None and column not in columns:
            detail = "the file has no column of this name; null stands for the right-hand side"
            raise InvalidFile(detail, (*where, "column"))
        if (column, row) in result:
            raise InvalidFile("this entry is described twice", where)
        result[column, row] = UncertainEntry({"constant": entry["constant"], "outcomes": entry["outcomes"]}, where)
    return result


def _varying(table: ScenarioTable) -> dict[Entry, UncertainEntry]:
    varying = {entry: {"constant": 0.0, "outcomes": {entry_name(entry): _sign(entry)}} for entry in table.entries}
    fixed = {entry: {"constant": _sign(entry) * value, "outcomes": {}} for entry, value in table.constant.items()}
    return {entry: UncertainEntry(number, ("scenarios",)) for entry, number in (varying | fixed).items()}


def _sign(entry: Entry) -> float:
    """Return the sign of an entry: in MPS, a right-hand side of the objective is subtracted."""
    return -1.0 if entry == (None, None) else 1.0


def _bounded(table: ScenarioTable) -> list[Json]:
    """Return an outcome for each varying entry, bounded by its smallest and largest value."""
    return [
        {"name": entry_name(entry), "minimum": min(values), "maximum": max(values)}
        for entry, values in zip(table.entries, zip(*table.rows, strict=True), strict=True)
    ]


def _bound(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float, uncertain: UncertainEntry | None) -> float | Json:
    if uncertain is None:
        return value
    return uncertain.number if uncertain.number["outcomes"] else float(uncertain.number["constant"])


def _rows(
    model: FileModel, now: set[str], renamed: _Renamed, entries: dict[Entry, UncertainEntry], notes: list[str]
) -> list[Json]:
    by_row: dict[str | None, dict[str | None, UncertainEntry]] = {}
    for (column, of_row), entry in entries.items():
        by_row.setdefault(of_row, {})[column] = entry
    rows: list[Json] = []
    unbounded = []
    for index, name in enumerate(model.rows):
        lower, upper = model.row_lower[index], model.row_upper[index]
        if math.isinf(lower) and math.isinf(upper):
            unbounded.append(name or f"row {index + 1}")
            continue
        uncertain = {} if name is None else by_row.get(name, {})
        for varies in uncertain:
            del entries[varies, name]
        parts: dict[bool, Json] = {True: {}, False: {}}
        for place, value in model.entries[index].items():
            called = model.columns[place]
            parts[called in now][renamed.columns.get(called, called)] = _number(value, uncertain.pop(called, None))
        limit = uncertain.pop(None, None)
        for varies, entry in uncertain.items():
            parts[varies in now][renamed.columns.get(str(varies), str(varies))] = _number(0.0, entry)
        title = None if name is None else renamed.rows.get(name, name)
        for ending, sense, bound in _limits(lower, upper):
            if ending and limit is not None:
                detail = "this row has two limits; make it two rows to have one of them uncertain"
                raise InvalidFile(detail, limit.where)
            row: Json = {} if title is None else {"name": title + ending}
            row |= {"decisions": parts[True], "recourse": parts[False]}
            rows.append(row | {"sense": sense, "limit": _number(bound, limit)})
    if unbounded:
        notes.append(f"rows that bound nothing were left out: {', '.join(unbounded[:5])}")
    return rows


def _limits(lower: float, upper: float) -> list[tuple[str, str, float]]:
    if lower == upper:
        return [("", "=", lower)]
    if math.isinf(lower):
        return [("", "<=", upper)]
    if math.isinf(upper):
        return [("", ">=", lower)]
    return [(" at least", ">=", lower), (" at most", "<=", upper)]
