"""A linear model under construction, whose every part knows its place in the planner's own specification.

A quantity that may be uncertain is a number, the name of the outcome column that holds it, or
``{"constant": c, "outcomes": {column: factor}}``. Left out, it is the outcome column named like its owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bco_core.errors import InvalidInput
from bco_core.problems.linear.model import MAXIMUM_PARTS

Spec = dict[str, Any]
Where = tuple[str | int, ...]
Number = float | dict[str, Any]


@dataclass
class ModelDraft:
    """The parts of a linear model, and the place of each in the planner's specification."""

    sense: str = "minimize"
    gaps: Spec = field(default_factory=dict)
    parts: dict[str, list[Spec]] = field(default_factory=lambda: {part: [] for part in MAXIMUM_PARTS})
    places: dict[str, list[Where]] = field(default_factory=lambda: {part: [] for part in MAXIMUM_PARTS})
    names: dict[str, dict[str, Where]] = field(default_factory=lambda: {part: {} for part in MAXIMUM_PARTS})

    def add_decision(self, name: str, where: Where, cost: Number = 0.0, **terms: Any) -> str:
        """Add a decision with its ``minimum``, ``maximum`` and ``integer``; return its name."""
        return self._put("decisions", where, {"name": name, "cost": cost} | terms)

    def add_choice(self, name: str, where: Where, cost: Number = 0.0) -> str:
        """Add a decision between yes and no; return its name."""
        return self.add_decision(name, where, cost, maximum=1.0, integer=True)

    def add_recourse(self, name: str, where: Where, cost: Number = 0.0) -> str:
        """Add a recourse variable of at least zero; return its name."""
        return self._put("recourse", where, {"name": name, "cost": cost})

    def add_row(
        self,
        name: str,
        where: Where,
        decisions: dict[str, float],
        sense: str,
        limit: Number,
        recourse: dict[str, float] | None = None,
    ) -> None:
        """Add the row Σ decisions + Σ recourse (sense) limit, without terms of factor zero."""
        factors = {"decisions": decisions, "recourse": recourse or {}}
        terms = {part: {key: value for key, value in one.items() if value} for part, one in factors.items()}
        self._put("rows", where, {"name": name} | terms | {"sense": sense, "limit": limit})

    def quantity(self, value: Any, owner: str, where: Where, minimum: float | None = None) -> Number:
        """Return a quantity as a number of the linear model; its columns become outcomes with this ``minimum``."""
        if value is None or isinstance(value, str):
            return {"constant": 0.0, "outcomes": {self.add_outcome(value or owner, where, minimum): 1.0}}
        if not isinstance(value, dict):
            return read_number(value, where)
        terms = value.get("outcomes") or {}
        if not isinstance(terms, dict) or not set(value) <= {"constant", "outcomes"}:
            raise InvalidInput('write it as {"constant": number, "outcomes": {column: factor}}', where)
        factors = {
            self.add_outcome(column, (*where, "outcomes", column), minimum): read_number(
                factor, (*where, "outcomes", column)
            )
            for column, factor in terms.items()
        }
        return {"constant": read_number(value.get("constant") or 0.0, (*where, "constant")), "outcomes": factors}

    def add_outcome(self, column: str, where: Where, minimum: float | None) -> str:
        """Add an outcome column unless it is there already; return its name."""
        if column not in self.names["outcomes"]:
            return self._put("outcomes", where, {"name": column, "minimum": minimum})
        if minimum is not None:
            (entry,) = (entry for entry in self.parts["outcomes"] if entry["name"] == column)
            entry["minimum"] = minimum
        return column

    def spec(self) -> Spec:
        """Return the specification of kind ``linear``."""
        if not self.parts["outcomes"]:
            raise InvalidInput(
                "nothing here is uncertain; name the outcome column of at least one quantity instead of its number"
            )
        parts = {part: list(entries) for part, entries in self.parts.items()}
        return {"kind": "linear", "sense": self.sense} | parts | self.gaps

    def place(self, where: Where) -> Where:
        """Return where a part of the linear model stands in the planner's specification; () if unknown."""
        part, *rest = where or ("",)
        places = self.places.get(str(part), [])
        at = rest[0] if rest else None
        return places[at] if isinstance(at, int) and at < len(places) else ()

    def _put(self, part: str, where: Where, entry: Spec) -> str:
        name, names = str(entry["name"]), self.names[part]
        if name in names:
            other = "/".join(map(str, names[name]))
            raise InvalidInput(f"'{name}' would be the name of this and of {other}; choose other names", where)
        if len(names) >= MAXIMUM_PARTS[part]:
            raise InvalidInput(
                f"the problem is too large: it would have more than {MAXIMUM_PARTS[part]:,} {part}", where
            )
        names[name] = where
        self.parts[part].append(entry)
        self.places[part].append(where)
        return name


def read_number(value: Any, where: Where, least: float = -math.inf) -> float:
    """Read a finite number of at least ``least``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput("this must be a finite number", where)
    if value < least:
        raise InvalidInput(f"this must be at least {least:g}", where)
    return float(value)


def check_not_negative(value: Number, where: Where, detail: str) -> None:
    """Refuse a quantity that can be negative while its outcomes are not."""
    terms = [value] if isinstance(value, float) else [value["constant"], *value["outcomes"].values()]
    if min(terms) < 0:
        raise InvalidInput(detail, where)


def read_integer(value: Any, where: Where, least: int) -> int:
    """Read an integer of at least ``least``."""
    value = read_number(value, where, least)
    if value != int(value):
        raise InvalidInput("this must be an integer", where)
    return int(value)


def read_field(part: Spec, name: str, where: Where, default: float | None = None, least: float = -math.inf) -> float:
    """Read the number in a field of a part."""
    value = part.get(name)
    return read_number(default if value is None else value, (*where, name), least)


def read_list(spec: Spec, name: str, what: str) -> list[Any]:
    """Read a list that must not be empty."""
    parts = spec.get(name) or []
    if not isinstance(parts, list) or not parts:
        raise InvalidInput(f"give at least one {what}", (name,))
    return parts


def read_names(names: Iterable[Any], where: Callable[[int], Where]) -> list[str]:
    """Read names that must be present and unique."""
    unique: dict[str, None] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InvalidInput("a name is needed here", where(index))
        if name in unique:
            raise InvalidInput(f"'{name}' appears twice; names must be unique", where(index))
        unique[name] = None
    return list(unique)


def read_named(spec: Spec, name: str, what: str) -> dict[str, Spec]:
    """Read the named parts of a list that must not be empty."""
    parts = read_list(spec, name, what)
    return dict(
        zip(read_names((part.get("name") for part in parts), lambda index: (name, index, "name")), parts, strict=True)
    )


def check_name(name: Any, among: Sequence[str] | dict[str, Any], where: Where, what: str) -> str:
    """Require a name to be one of those given."""
    if name not in among:
        listed = ", ".join(list(among)[:10]) + (", …" if len(among) > 10 else "")
        raise InvalidInput(f"no {what} has this name; there are {listed}", where)
    return str(name)
