"""A linear model in the making: every part remembers the place in the planner's own description that it comes from.

A quantity that may be uncertain is a number, the name of the outcome column that holds it, or
``{"constant": c, "outcomes": {column: factor}}``. Left out, it is the outcome column that is called as its owner is.
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
    """The parts of a linear model, and for each of them where it comes from."""

    sense: str = "minimize"
    gaps: Spec = field(default_factory=dict)
    parts: dict[str, list[Spec]] = field(default_factory=lambda: {part: [] for part in MAXIMUM_PARTS})
    places: dict[str, list[Where]] = field(default_factory=lambda: {part: [] for part in MAXIMUM_PARTS})
    names: dict[str, dict[str, Where]] = field(default_factory=lambda: {part: {} for part in MAXIMUM_PARTS})

    def decide(self, name: str, where: Where, cost: Number = 0.0, **terms: Any) -> str:
        """A decision with its ``minimum``, ``maximum`` and ``integer``; the name it goes by."""
        return self._put("decisions", where, {"name": name, "cost": cost} | terms)

    def choose(self, name: str, where: Where, cost: Number = 0.0) -> str:
        """A decision between yes and no."""
        return self.decide(name, where, cost, maximum=1.0, integer=True)

    def later(self, name: str, where: Where, cost: Number = 0.0) -> str:
        """Something that is done once outcomes are known, at least zero of it."""
        return self._put("recourse", where, {"name": name, "cost": cost})

    def row(
        self,
        name: str,
        where: Where,
        decisions: dict[str, float],
        sense: str,
        limit: Number,
        recourse: dict[str, float] | None = None,
    ) -> None:
        """Σ decisions + Σ recourse (sense) limit; what has the factor zero is left out."""
        factors = {"decisions": decisions, "recourse": recourse or {}}
        kept = {part: {key: value for key, value in one.items() if value} for part, one in factors.items()}
        self._put("rows", where, {"name": name} | kept | {"sense": sense, "limit": limit})

    def quantity(self, value: Any, owner: str, where: Where, minimum: float | None = None) -> Number:
        """What a quantity is in the linear model; its columns become outcomes, ``minimum`` the least they count as."""
        if value is None or isinstance(value, str):
            return {"constant": 0.0, "outcomes": {self.outcome(value or owner, where, minimum): 1.0}}
        if not isinstance(value, dict):
            return number(value, where)
        terms = value.get("outcomes") or {}
        if not isinstance(terms, dict) or not set(value) <= {"constant", "outcomes"}:
            raise InvalidInput('write it as {"constant": number, "outcomes": {column: factor}}', where)
        factors = {
            self.outcome(column, (*where, "outcomes", column), minimum): number(factor, (*where, "outcomes", column))
            for column, factor in terms.items()
        }
        return {"constant": number(value.get("constant") or 0.0, (*where, "constant")), "outcomes": factors}

    def outcome(self, column: str, where: Where, minimum: float | None) -> str:
        """An outcome column that is there already, or a new one."""
        if column not in self.names["outcomes"]:
            return self._put("outcomes", where, {"name": column, "minimum": minimum})
        if minimum is not None:
            (entry,) = (entry for entry in self.parts["outcomes"] if entry["name"] == column)
            entry["minimum"] = minimum
        return column

    def spec(self) -> Spec:
        """The linear model as it can be sent to the service."""
        if not self.parts["outcomes"]:
            raise InvalidInput(
                "nothing here is uncertain; name the outcome column of at least one quantity instead of its number"
            )
        parts = {part: list(entries) for part, entries in self.parts.items()}
        return {"kind": "linear", "sense": self.sense} | parts | self.gaps

    def place(self, where: Where) -> Where:
        """Where something in the linear model comes from; the whole problem if that cannot be told."""
        part, *rest = where or ("",)
        known = self.places.get(str(part), [])
        at = rest[0] if rest else None
        return known[at] if isinstance(at, int) and at < len(known) else ()

    def _put(self, part: str, where: Where, entry: Spec) -> str:
        name, names = str(entry["name"]), self.names[part]
        if name in names:
            other = "/".join(map(str, names[name]))
            raise InvalidInput(f"this would be called '{name}', as {other} is already; choose other names", where)
        if len(names) >= MAXIMUM_PARTS[part]:
            raise InvalidInput(
                f"the problem is too large: it would have more than {MAXIMUM_PARTS[part]:,} {part}", where
            )
        names[name] = where
        self.parts[part].append(entry)
        self.places[part].append(where)
        return name


def number(value: Any, where: Where, least: float = -math.inf) -> float:
    """A finite number, at least ``least``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput("a finite number is needed here", where)
    if value < least:
        raise InvalidInput(f"this must be at least {least:g}", where)
    return float(value)


def never_negative(value: Number, where: Where, detail: str) -> None:
    """Refuse a quantity that can be below zero while its outcomes are not."""
    terms = [value] if isinstance(value, float) else [value["constant"], *value["outcomes"].values()]
    if min(terms) < 0:
        raise InvalidInput(detail, where)


def whole(value: Any, where: Where, least: int) -> int:
    """A whole number, at least ``least``."""
    found = number(value, where, least)
    if found != int(found):
        raise InvalidInput("a whole number is needed here", where)
    return int(found)


def given(part: Spec, name: str, where: Where, default: float | None = None, least: float = -math.inf) -> float:
    """The number that a part has under a name."""
    value = part.get(name)
    return number(default if value is None else value, (*where, name), least)


def several(spec: Spec, name: str, what: str) -> list[Any]:
    """A list that must not be empty."""
    found = spec.get(name) or []
    if not isinstance(found, list) or not found:
        raise InvalidInput(f"give at least one {what}", (name,))
    return found


def called(names: Iterable[Any], where: Callable[[int], Where]) -> list[str]:
    """Names that are given and all different."""
    found: dict[str, None] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InvalidInput("a name is needed here", where(index))
        if name in found:
            raise InvalidInput(f"'{name}' is there twice; names must be different", where(index))
        found[name] = None
    return list(found)


def named(spec: Spec, name: str, what: str) -> dict[str, Spec]:
    """The named parts of a list that must not be empty."""
    parts = several(spec, name, what)
    return dict(
        zip(called((part.get("name") for part in parts), lambda index: (name, index, "name")), parts, strict=True)
    )


def known(name: Any, among: Sequence[str] | dict[str, Any], where: Where, what: str) -> str:
    """A name that must be among others."""
    if name not in among:
        shown = ", ".join(list(among)[:10]) + (", …" if len(among) > 10 else "")
        raise InvalidInput(f"there is no {what} of this name; there are {shown}", where)
    return str(name)
