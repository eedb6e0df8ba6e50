"""Write a specification of kind ``linear`` as free MPS, with the description that restores it on import."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\](),#-]*")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.\[\](),#-]+")
# A line of a section must not begin like another section.
_RESERVED = {
    *("NAME", "ROWS", "COLUMNS", "RHS", "RANGES", "BOUNDS", "OBJSENSE", "OBJSECT", "OBJNAME", "ENDATA", "MARKER"),
    *("MAX", "MIN", "MAXIMIZE", "MINIMIZE", "SOS", "SETS", "QUADOBJ", "QMATRIX", "QSECTION", "QCMATRIX", "CSECTION"),
    *("INDICATORS", "LAZYCONS", "USERCUTS", "GENCONS", "MODELCUTS", "DELAYEDROWS", "FREE", "BND", "OBJ"),
}
PARTS = ("decisions", "recourse")
_SENSES = {"<=": "L", ">=": "G", "=": "E"}


def write_mps(spec: Json, title: str, values: Mapping[str, float]) -> tuple[str, Json]:
    """Return free MPS and its description. Uncertain numbers are written at given outcome values, 0 by default."""
    writer = _Writer(spec, {outcome["name"]: values.get(outcome["name"], 0.0) for outcome in spec["outcomes"]})
    body = list(writer.body())
    return "\n".join([*writer.comments(title), *body, "ENDATA", ""]), writer.description(title)


class _Writer:
    def __init__(self, spec: Json, at: dict[str, float]) -> None:
        self.spec, self.at = spec, at
        # Decisions and recourse may share names; columns of a file may not.
        self.variables = [(part, variable) for part in PARTS for variable in spec.get(part) or []]
        names = [variable["name"] for _, variable in self.variables]
        codes = dict(enumerate(_file_names(names, "column")))
        self.codes = {(part, names[place]): codes[place] for place, (part, _) in enumerate(self.variables)}
        self.rows = spec.get("rows") or []
        self.row_names = [row.get("name") or f"row {index + 1}" for index, row in enumerate(self.rows)]
        self.row_codes = _file_names(self.row_names, "row")
        self.objective = next(name for name in _numbered("cost") if name not in set(self.row_codes))
        self.entries: list[Json] = []

    def _value(self, number: Any, row: str | None, column: str | None) -> float:
        """Return the value of a number for the file; record an uncertain one for the description."""
        if not isinstance(number, Mapping):
            return float(number)
        constant, outcomes = float(number.get("constant") or 0.0), dict(number.get("outcomes") or {})
        if not outcomes:
            return constant
        self.entries.append({"row": row, "column": column, "outcomes": outcomes, "constant": constant})
        return constant + sum(float(factor) * self.at[name] for name, factor in outcomes.items())

    def body(self) -> Iterator[str]:
        yield "NAME model FREE"
        yield from ("OBJSENSE", "    MAX") if self.spec.get("sense") == "maximize" else ()
        yield from ("ROWS", f" N {self.objective}")
        yield from (f" {_SENSES[row['sense']]} {code}" for row, code in zip(self.rows, self.row_codes, strict=True))
        yield from self._columns()
        yield "RHS"
        for row, code in zip(self.rows, self.row_codes, strict=True):
            limit = self._value(row["limit"], code, None)
            if limit:
                yield f" RHS {code} {limit!r}"
        yield "BOUNDS"
        for part, variable in self.variables:
            yield from _bounds(variable, self.codes[part, variable["name"]])

    def _columns(self) -> Iterator[str]:
        within: dict[str, list[tuple[str, float]]] = {code: [] for code in self.codes.values()}
        for row, code in zip(self.rows, self.row_codes, strict=True):
            for part in PARTS:
                for name, number in (row.get(part) or {}).items():
                    column = self.codes[part, name]
                    value = self._value(number, code, column)
                    if value:
                        within[column].append((code, value))
        yield "COLUMNS"
        whole = False
        for count, (part, variable) in enumerate(self.variables):
            if variable.get("integer", False) != whole:
                whole = not whole
                yield f" MARKER{count} 'MARKER' '{'INTORG' if whole else 'INTEND'}'"
            code = self.codes[part, variable["name"]]
            yield f" {code} {self.objective} {self._value(variable.get('cost', 0.0), None, code)!r}"
            yield from (f" {code} {row} {value!r}" for row, value in within[code])
        if whole:
            yield " MARKERZ 'MARKER' 'INTEND'"

    def comments(self, title: str) -> Iterator[str]:
        yield f"* {_one_line(title)}"
        yield "* Numbers that depend on outcomes; the file has them at these values:"
        for outcome in self.spec["outcomes"]:
            yield f"*   {_one_line(outcome['name'])} = {self.at[outcome['name']]!r}"
        for entry in self.entries:
            terms = " + ".join(f"{factor!r} {_one_line(name)}" for name, factor in entry["outcomes"].items())
            where = f"{entry['column'] or 'right-hand side'} in {entry['row'] or self.objective}"
            yield f"*   {where}: {entry['constant']!r} + {terms}"
        yield "* The address of this file with ?part=description has them as JSON, to import it again."

    def description(self, title: str) -> Json:
        described = {
            "name": title,
            "decisions": [code for (part, _), code in self.codes.items() if part == "decisions"],
            "outcomes": self.spec["outcomes"],
            "entries": self.entries,
            "columns": {code: name for (_, name), code in self.codes.items() if code != name},
            "rows": {code: name for name, code in zip(self.row_names, self.row_codes, strict=True) if code != name},
        }
        gaps = {name: self.spec[name] for name in ("relative_gap", "absolute_gap") if self.spec.get(name) is not None}
        return described | gaps


def _bounds(variable: Json, code: str) -> Iterator[str]:
    lower, upper, whole = variable.get("minimum", 0.0), variable.get("maximum"), variable.get("integer", False)
    if lower is not None and lower == upper:
        yield f" FX BND {code} {float(lower)!r}"
    elif lower is None and upper is None:
        yield f" FR BND {code}"
    else:
        if lower is None:
            yield f" MI BND {code}"
        elif lower != 0 or whole or (upper is not None and upper <= 0):
            yield f" LO BND {code} {float(lower)!r}"
        if upper is not None:
            yield f" UP BND {code} {float(upper)!r}"
        elif whole:
            # Without it, readers take an integer for a binary.
            yield f" PL BND {code}"


def _file_names(names: Sequence[str], what: str) -> list[str]:
    """Return unique names that MPS can hold, unchanged where possible."""
    plain = {name for name in names if _is_plain(name)}
    taken: set[str] = set()
    result = []
    for name in names:
        code = name
        if name not in plain or name in taken:
            close = f"{what[0]}_{_UNUSUAL.sub('_', name)[:60].strip('_') or what}"
            code = next(free for free in _numbered(close) if free not in taken and free not in plain)
        taken.add(code)
        result.append(code)
    return result


def _is_plain(name: str) -> bool:
    return _PLAIN.fullmatch(name) is not None and name.upper() not in _RESERVED


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in range(2, 1_000_000))


def _one_line(text: str) -> str:
    return " ".join(text.split())
