"""Suggest roles for the columns of a file from their names and values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import RawTable
from app.datasets.schemas import Kind, Missing, Role
from app.settings import Settings
from bco_core.arrays import Integers


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OUTCOME = _words(
    "demand sales sold sale qty quantity load y target outcome outcomes usage consumption units volume return returns "
    "absatz menge verkauf verkauft nachfrage bedarf verbrauch arrivals visits calls"
)
DECISION = _words("ordered stocked decision decided baked produced prepared planned dispatched bestellt gebacken")
# Words of values that are known beforehand, whatever else the name says.
BEFOREHAND = _words(
    "lag lagged last prev previous yesterday forecast predicted prediction avg average mean rolling price prices cost "
    "costs before vorwoche vortag preis prognose"
)
TIME = _words("date day time timestamp datetime moment when ds datum tag zeit woche week month monat")
PERIODS = _words("period periods t time step timestep")
KEY = _words(
    "shop store item sku product article location site branch region customer depot warehouse series key filiale "
    "artikel standort kunde plant station id code"
)
NAMES = _words("id code weekday dow zone class type category plz zip")

# Rows that tell whether keys and time occur once together.
_TELLING = 50_000
_MOST_KEYS = 8
_FEW = 40
# Fewer values are flags or classes, not amounts.
_AMOUNTS = 10
_MOST_GUESSED = 10
# Fewer rows may have a value each by mere chance.
_FEWEST = 20


@dataclass(frozen=True)
class ColumnFacts:
    """Kind of a column, numbers of missing and distinct values, and the range of its numbers."""

    name: str
    kind: Kind
    rows: int
    missing: int
    distinct: int
    minimum: float | None
    maximum: float | None
    whole: bool

    @property
    def words(self) -> frozenset[str]:
        """Words of its name: the same for ``unitsSold`` and ``units_sold``."""
        return frozenset(re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).lower()))

    @property
    def numbers_rows(self) -> bool:
        """Whether it only numbers the rows: 0, 1, 2 and so on."""
        if self.minimum is None or self.maximum is None or not self.whole or self.rows < _FEWEST:
            return False
        return self.distinct == self.rows and self.maximum - self.minimum == self.rows - 1

    @property
    def like_dates(self) -> bool:
        """Whether its numbers are dates without marks, such as 20240131."""
        low, high = self.minimum or 0, self.maximum or 0
        return self.whole and 19_000_101 <= low <= high <= 21_001_231 and bool(self.words & TIME)


@dataclass
class RoleSuggestions:
    """Role of each column with a reason, columns whose numbers are categories, and how to handle gaps."""

    roles: dict[str, tuple[Role, str]] = field(default_factory=dict)
    categorical: set[str] = field(default_factory=set)
    missing: Missing = "reject"
    odd: list[str] = field(default_factory=list)

    def free(self, facts: Sequence[ColumnFacts]) -> list[ColumnFacts]:
        return [one for one in facts if one.name not in self.roles]


def suggest_roles(
    raw: RawTable, facts: Sequence[ColumnFacts], outcomes: Sequence[str], settings: Settings
) -> RoleSuggestions:
    """Suggest a role for every column; ``outcomes`` are those of the problem, if it is known."""
    suggestions = RoleSuggestions()
    _assign_problem_outcomes(suggestions, facts, outcomes)
    time = _time(suggestions, facts)
    _by_name(suggestions, facts, outcomes)
    if time is not None:
        _series(suggestions, raw, facts, time, settings)
    _useless(suggestions, facts, settings)
    if not outcomes:
        _last_numbers(suggestions, facts)
    for one in suggestions.free(facts):
        if one.kind == "numeric" and one.whole and 2 < one.distinct <= _FEW and one.words & NAMES:
            suggestions.categorical.add(one.name)
            suggestions.roles[one.name] = "context", "its numbers look like labels"
        else:
            suggestions.roles[one.name] = "context", "may be known when deciding"
    suggestions.missing = _gaps(suggestions, facts)
    return suggestions


def _assign_problem_outcomes(
    suggestions: RoleSuggestions, facts: Sequence[ColumnFacts], outcomes: Sequence[str]
) -> None:
    names = {one.name for one in facts}
    for name in outcomes:
        if name in names:
            suggestions.roles[name] = "outcome", "the problem needs it"
        else:
            suggestions.odd.append(
                f"the problem's outcome '{name}' is not a column of this file; rename the column that holds it"
            )


def _time(suggestions: RoleSuggestions, facts: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """Find the time column: dates if there are any, or integers named like periods."""
    dates = [one for one in suggestions.free(facts) if one.kind == "time"]
    dates.sort(key=lambda one: (not one.words & TIME, one.missing))
    for other in dates[1:]:
        suggestions.roles[other.name] = "left out", f"other dates than '{dates[0].name}'; there can be one time"
    if dates:
        suggestions.roles[dates[0].name] = "time", "holds dates"
        return dates[0]
    for one in suggestions.free(facts):
        if one.kind == "numeric" and one.like_dates:
            suggestions.roles[one.name] = "left out", "looks like dates without marks"
            suggestions.odd.append(
                f"'{one.name}' looks like dates without marks; write them as 2024-01-31 to use them as time"
            )
        elif one.kind == "numeric" and one.whole and one.words & PERIODS and one.distinct > 2 and not one.missing:
            suggestions.roles[one.name] = "time", "named like numbers of periods"
            return one
    return None


def _by_name(suggestions: RoleSuggestions, facts: Sequence[ColumnFacts], outcomes: Sequence[str]) -> None:
    for one in suggestions.free(facts):
        if one.kind != "numeric" or one.distinct < 2:
            continue
        amount = {"order", "orders", "bestellung"} & one.words and {"qty", "quantity", "menge"} & one.words
        if one.words & DECISION or amount:
            suggestions.roles[one.name] = "decision", "named like a decision that was taken"
        elif not outcomes and one.words & OUTCOME and not one.words & BEFOREHAND:
            suggestions.roles[one.name] = "outcome", "named like something that is not known when deciding"


def _useless(suggestions: RoleSuggestions, facts: Sequence[ColumnFacts], settings: Settings) -> None:
    """Leave out columns that cannot help, or that a data set would refuse."""
    for one in suggestions.free(facts):
        reason = ""
        if one.kind == "empty":
            reason = "has no values"
        elif one.distinct == 1 and not one.missing:
            reason = "has the same value in every row"
        elif one.kind == "categorical" and one.distinct > settings.max_categories:
            reason = f"{one.distinct} different texts, more than {settings.max_categories}"
        elif one.kind == "categorical" and one.distinct >= 0.9 * one.rows and one.rows >= _FEWEST:
            reason = "a different text in every row"
        elif one.numbers_rows or (one.whole and one.distinct == one.rows and "id" in one.words):
            reason = "a different number in every row, like an id"
        if reason:
            suggestions.roles[one.name] = "left out", reason


def _last_numbers(suggestions: RoleSuggestions, facts: Sequence[ColumnFacts]) -> None:
    """Where no name suggests an outcome, take the amounts in the last columns, which often are the outcomes."""
    if any(role == "outcome" for role, _ in suggestions.roles.values()):
        return
    free = [one for one in suggestions.free(facts) if not one.words & BEFOREHAND or one is facts[-1]]
    amounts = [one for one in free if one.kind == "numeric" and one.distinct > min(_AMOUNTS, one.rows // 3)]
    if not amounts:
        amounts = [one for one in free if one.kind == "numeric"]
    if not amounts:
        suggestions.odd.append("no column of numbers could be an outcome: a quantity that is unknown when deciding")
        return
    last, block = amounts[-1], [amounts[-1]]
    places = {one.name: place for place, one in enumerate(facts)}
    for one in reversed(amounts[:-1]):
        alike = one.whole == last.whole and ((one.minimum or 0) >= 0) == ((last.minimum or 0) >= 0)
        if not alike or places[block[-1].name] - places[one.name] > 1 or len(block) == _MOST_GUESSED:
            break
        block.append(one)
    if len(block) == len(suggestions.free(facts)) and not any(role == "time" for role, _ in suggestions.roles.values()):
        block = block[:1]
    for one in block:
        suggestions.roles[one.name] = "outcome", "one of the last columns of numbers; change the role if it is wrong"


def _gaps(suggestions: RoleSuggestions, facts: Sequence[ColumnFacts]) -> Missing:
    """Suggest to fill in gaps where that suffices, and to drop rows elsewhere."""
    lacking = [one for one in facts if one.missing and suggestions.roles[one.name][0] not in ("decision", "left out")]
    if not lacking:
        return "reject"
    filled = all(one.kind == "numeric" and suggestions.roles[one.name][0] == "context" for one in lacking)
    return "impute" if filled else "drop"


# series


def _series(
    suggestions: RoleSuggestions, raw: RawTable, facts: Sequence[ColumnFacts], time: ColumnFacts, settings: Settings
) -> None:
    """Find key columns: the fewest with which each time occurs once."""
    if time.distinct >= time.rows - time.missing:
        return
    candidates = [one for one in suggestions.free(facts) if _may_be_key(one, settings)]
    candidates.sort(key=lambda one: (not one.words & KEY, one.kind != "categorical"))
    codes = _codes(raw, [time, *candidates[:_MOST_KEYS]])
    for count in (1, 2, 3):
        for keys in combinations(candidates[:_MOST_KEYS], count):
            if _once([codes[time.name], *(codes[key.name] for key in keys)]):
                for key in keys:
                    suggestions.roles[key.name] = "series", "identifies series: times are unique within each"
                return
    suggestions.odd.append(f"times of '{time.name}' occur more than once, and no columns identify series")


def _may_be_key(one: ColumnFacts, settings: Settings) -> bool:
    """Check for texts, or integers named like keys, whose values occur a few times each."""
    if not 2 <= one.distinct <= settings.max_series or 2 * one.distinct > one.rows or one.missing:
        return False
    return one.kind == "categorical" or (one.kind == "numeric" and one.whole and bool(one.words & KEY))


def _codes(raw: RawTable, facts: Sequence[ColumnFacts]) -> dict[str, Integers]:
    """Return codes of the values of some columns, in the rows of the first times."""
    encoded = _encoded(raw, facts[0].name)
    often = np.cumsum(np.bincount(encoded))
    until = max(1, int(np.searchsorted(often, _TELLING, side="right")))
    rows = np.flatnonzero(encoded < until)[: 2 * _TELLING]
    return {one.name: _encoded(raw, one.name)[rows] for one in facts}


def _encoded(raw: RawTable, name: str) -> Integers:
    indices = pa.chunked_array([raw.columns[name].combine_chunks()]).dictionary_encode().combine_chunks().indices  # type: ignore[union-attr]
    return np.asarray(pc.fill_null(indices, 0), dtype=np.int64)


def _once(codes: Sequence[Integers]) -> bool:
    """Check that no combination occurs twice."""
    together = np.zeros(len(codes[0]), dtype=np.int64)
    for one in codes:
        together = np.unique(together * (int(one.max(initial=0)) + 1) + one, return_inverse=True)[1]
    return int(together.max(initial=-1)) + 1 == len(together)
