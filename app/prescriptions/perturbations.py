"""Contexts with one column changed, as a planner would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.datasets.encoding import ContextColumn, ContextEncoding
from app.datasets.parsing import category_text, is_number

MOST_SWITCHES = 12
# Of a number's range in the history: how far it is moved to either side where there is no derivative.
_STEP = 0.05


@dataclass(frozen=True)
class Move:
    """A context, by its number, in which ``column`` has another ``value``; what that is called in an answer."""

    number: int
    column: str
    value: Any
    label: str

    def apply(self, context: Sequence[Any], names: Sequence[str]) -> list[Any]:
        return [self.value if name == self.column else old for name, old in zip(names, context, strict=True)]


def is_flag(profile: dict[str, Any]) -> bool:
    """Whether a column of numbers, by its profile, says yes or no: in the history it is one or zero."""
    return profile.get("distinct") == 2 and (profile.get("minimum"), profile.get("maximum")) == (0.0, 1.0)


def numbers(encoding: ContextEncoding, columns: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The columns that are amounts, by the profiles of ``columns``, and where they are in an encoded context."""
    flags = {profile["name"] for profile in columns if is_flag(profile)}
    found, at = {}, 0
    for column in encoding.columns:
        if column.categories is None and column.name not in flags:
            found[column.name] = at
        at += column.width
    return found


def entries(encoding: ContextEncoding) -> dict[str, list[int]]:
    """The entries of an encoded context that each column makes; what time and the past say belongs to the time."""
    found, at = {}, 0
    for column in encoding.columns:
        found[column.name] = list(range(at, at + column.width))
        at += column.width
    if encoding.lookback is not None:
        name = encoding.lookback.time.name
        found[name] = list(range(at, at + encoding.lookback.recipe.width))
    return found


def step_of(profile: dict[str, Any]) -> float:
    """How far a number is moved to either side, by the profile of its column."""
    return _STEP * float(profile["maximum"] - profile["minimum"]) or 1.0


def steps(
    encoding: ContextEncoding, number: int, context: Sequence[Any], columns: Sequence[dict[str, Any]]
) -> list[Move]:
    """Each amount a step up, then a step down; missing ones are left alone."""
    profiles = {profile["name"]: profile for profile in columns}
    moves = []
    for name in numbers(encoding, columns):
        value = context[encoding.names.index(name)]
        if is_number(value):
            step = step_of(profiles[name])
            moves += [Move(number, name, value + step, "up"), Move(number, name, value - step, "down")]
    return moves


def switchable(encoding: ContextEncoding, columns: Sequence[dict[str, Any]]) -> list[str]:
    """The columns that are switched: categories, what says yes or no, and the time."""
    amounts = numbers(encoding, columns)
    names = [column.name for column in encoding.columns if column.name not in amounts]
    return names + ([encoding.lookback.time.name] if encoding.lookback is not None else [])


def switches(
    encoding: ContextEncoding, number: int, context: Sequence[Any], columns: Sequence[dict[str, Any]]
) -> list[Move]:
    """Other categories, no for yes, and the periods after and before the context's own."""
    amounts = numbers(encoding, columns)
    moves = []
    for column in encoding.columns:
        value = context[encoding.names.index(column.name)]
        if column.categories is not None:
            own = _category(column, value)
            others = [category for category in column.categories if category != own][:MOST_SWITCHES]
            moves += [Move(number, column.name, other, other) for other in others]
        elif column.name not in amounts and is_number(value):
            moves.append(Move(number, column.name, not value, str(not value).lower()))
    if encoding.lookback is not None:
        time, clock = encoding.lookback.time, encoding.lookback.recipe.clock
        own_value = context[encoding.names.index(time.name)]
        periods, refused = time.periods(clock, [own_value])
        for period in () if refused else (int(periods[0]) + 1, int(periods[0]) - 1):
            text = clock.text(period)
            moves.append(Move(number, time.name, int(text) if time.format == "period" else text, text))
    return moves


def _category(column: ContextColumn, value: Any) -> str | None:
    """The category of a value; that of all others for one that has none of its own."""
    text = None if value is None else category_text(value)
    known = column.categories or ()
    return text if text in known or not column.other else known[-1]
