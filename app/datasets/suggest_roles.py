"""What the columns of a file may be, guessed from their names and values. People decide; this only saves them work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.inspection_schemas import Kind, Role
from app.datasets.parsing import RawTable
from app.datasets.schemas import Missing
from app.settings import Settings

Whole = np.ndarray[Any, np.dtype[np.int64]]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OUTCOME = _words(
    "demand sales sold sale qty quantity load y target outcome outcomes usage consumption units volume return returns "
    "absatz menge verkauf verkauft nachfrage bedarf verbrauch arrivals visits calls"
)
DECISION = _words("ordered stocked decision decided baked produced prepared planned dispatched bestellt gebacken")
# What is called so is known beforehand, whatever else its name says.
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
class Looked:
    """What a column holds: its kind, how many values are missing and different, and its numbers if it has any."""

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
        """The words of its name: ``unitsSold`` and ``units_sold`` alike."""
        return frozenset(re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).lower()))

    @property
    def numbers_rows(self) -> bool:
        """Whether it only says which row it is: 0, 1, 2 and so on."""
        if self.minimum is None or self.maximum is None or not self.whole or self.rows < _FEWEST:
            return False
        return self.distinct == self.rows and self.maximum - self.minimum == self.rows - 1

    @property
    def like_dates(self) -> bool:
        """Whether its numbers are dates without marks, such as 20240131."""
        low, high = self.minimum or 0, self.maximum or 0
        return self.whole and 19_000_101 <= low <= high <= 21_001_231 and bool(self.words & TIME)


@dataclass
class Suggested:
    """What each column seems to be and why, whose numbers are names, and what to do about gaps."""

    roles: dict[str, tuple[Role, str]] = field(default_factory=dict)
    categorical: set[str] = field(default_factory=set)
    missing: Missing = "reject"
    odd: list[str] = field(default_factory=list)

    def free(self, looked: Sequence[Looked]) -> list[Looked]:
        return [one for one in looked if one.name not in self.roles]


def suggest(raw: RawTable, looked: Sequence[Looked], outcomes: Sequence[str], settings: Settings) -> Suggested:
    """A role for every column; ``outcomes`` are those that are known already."""
    found = Suggested()
    _known(found, looked, outcomes)
    time = _time(found, looked)
    _by_name(found, looked, outcomes)
    if time is not None:
        _series(found, raw, looked, time, settings)
    _useless(found, looked, settings)
    if not outcomes:
        _last_numbers(found, looked)
    for one in found.free(looked):
        if one.kind == "numeric" and one.whole and 2 < one.distinct <= _FEW and one.words & NAMES:
            found.categorical.add(one.name)
            found.roles[one.name] = "context", "its numbers look like names of something"
        else:
            found.roles[one.name] = "context", "may be known when deciding"
    found.missing = _gaps(found, looked)
    return found


def _known(found: Suggested, looked: Sequence[Looked], outcomes: Sequence[str]) -> None:
    names = {one.name for one in looked}
    for name in outcomes:
        if name in names:
            found.roles[name] = "outcome", "the problem needs it"
        else:
            found.odd.append(
                f"the problem's outcome '{name}' is no column of this file; rename the column that holds it"
            )


def _time(found: Suggested, looked: Sequence[Looked]) -> Looked | None:
    """The column of times: dates if there are any, or numbers of periods that are called so."""
    dates = [one for one in found.free(looked) if one.kind == "time"]
    dates.sort(key=lambda one: (not one.words & TIME, one.missing))
    for other in dates[1:]:
        found.roles[other.name] = "left out", f"other dates than '{dates[0].name}'; there can be one time"
    if dates:
        found.roles[dates[0].name] = "time", "holds dates"
        return dates[0]
    for one in found.free(looked):
        if one.kind == "numeric" and one.like_dates:
            found.roles[one.name] = "left out", "looks like dates without marks"
            found.odd.append(
                f"'{one.name}' looks like dates without marks; write them as 2024-01-31 to use them as time"
            )
        elif one.kind == "numeric" and one.whole and one.words & PERIODS and one.distinct > 2 and not one.missing:
            found.roles[one.name] = "time", "numbers of periods, by its name"
            return one
    return None


def _by_name(found: Suggested, looked: Sequence[Looked], outcomes: Sequence[str]) -> None:
    for one in found.free(looked):
        if one.kind != "numeric" or one.distinct < 2:
            continue
        amount = {"order", "orders", "bestellung"} & one.words and {"qty", "quantity", "menge"} & one.words
        if one.words & DECISION or amount:
            found.roles[one.name] = "decision", "named like what was really done"
        elif not outcomes and one.words & OUTCOME and not one.words & BEFOREHAND:
            found.roles[one.name] = "outcome", "named like something that is not known when deciding"


def _useless(found: Suggested, looked: Sequence[Looked], settings: Settings) -> None:
    """Columns that cannot help, or that a data set would refuse."""
    for one in found.free(looked):
        reason = ""
        if one.kind == "empty":
            reason = "has no values"
        elif one.distinct == 1 and not one.missing:
            reason = "has the same value in every row"
        elif one.kind == "categorical" and one.distinct > settings.max_categories:
            reason = f"{one.distinct} different texts, more than {settings.max_categories}"
        elif one.kind == "categorical" and one.distinct >= 0.9 * one.rows and one.rows >= _FEWEST:
            reason = "another text in every row"
        elif one.numbers_rows or (one.whole and one.distinct == one.rows and "id" in one.words):
            reason = "another number in every row, like an id"
        if reason:
            found.roles[one.name] = "left out", reason


def _last_numbers(found: Suggested, looked: Sequence[Looked]) -> None:
    """Where nothing is called like an outcome: the amounts at the end, which are often what is to be planned for."""
    if any(role == "outcome" for role, _ in found.roles.values()):
        return
    free = [one for one in found.free(looked) if not one.words & BEFOREHAND or one is looked[-1]]
    amounts = [one for one in free if one.kind == "numeric" and one.distinct > min(_AMOUNTS, one.rows // 3)]
    if not amounts:
        amounts = [one for one in free if one.kind == "numeric"]
    if not amounts:
        found.odd.append("no column of numbers could be an outcome: what is not known yet when deciding")
        return
    last, block = amounts[-1], [amounts[-1]]
    places = {one.name: place for place, one in enumerate(looked)}
    for one in reversed(amounts[:-1]):
        alike = one.whole == last.whole and ((one.minimum or 0) >= 0) == ((last.minimum or 0) >= 0)
        if not alike or places[block[-1].name] - places[one.name] > 1 or len(block) == _MOST_GUESSED:
            break
        block.append(one)
    if len(block) == len(found.free(looked)) and not any(role == "time" for role, _ in found.roles.values()):
        block = block[:1]
    for one in block:
        found.roles[one.name] = "outcome", "a last column of numbers: say if it is something else"


def _gaps(found: Suggested, looked: Sequence[Looked]) -> Missing:
    """Fill in what can be filled in; drop rows where that is not enough."""
    lacking = [one for one in looked if one.missing and found.roles[one.name][0] not in ("decision", "left out")]
    if not lacking:
        return "reject"
    filled = all(one.kind == "numeric" and found.roles[one.name][0] == "context" for one in lacking)
    return "impute" if filled else "drop"


# series


def _series(found: Suggested, raw: RawTable, looked: Sequence[Looked], time: Looked, settings: Settings) -> None:
    """Key columns: the fewest with which each time occurs once."""
    if time.distinct >= time.rows - time.missing:
        return
    candidates = [one for one in found.free(looked) if _may_be_key(one, settings)]
    candidates.sort(key=lambda one: (not one.words & KEY, one.kind != "categorical"))
    codes = _codes(raw, [time, *candidates[:_MOST_KEYS]])
    for count in (1, 2, 3):
        for keys in combinations(candidates[:_MOST_KEYS], count):
            if _once([codes[time.name], *(codes[key.name] for key in keys)]):
                for key in keys:
                    found.roles[key.name] = "series", "tells series apart: with it, each time occurs once"
                return
    found.odd.append(f"times of '{time.name}' occur more than once, and no columns tell series apart")


def _may_be_key(one: Looked, settings: Settings) -> bool:
    """Texts, or whole numbers that are called so, of which each occurs a few times."""
    if not 2 <= one.distinct <= settings.max_series or 2 * one.distinct > one.rows or one.missing:
        return False
    return one.kind == "categorical" or (one.kind == "numeric" and one.whole and bool(one.words & KEY))


def _codes(raw: RawTable, looked: Sequence[Looked]) -> dict[str, Whole]:
    """Numbers for the values of some columns, in those rows that belong to the first times."""
    encoded = _encoded(raw, looked[0].name)
    often = np.cumsum(np.bincount(encoded))
    until = max(1, int(np.searchsorted(often, _TELLING, side="right")))
    rows = np.flatnonzero(encoded < until)[: 2 * _TELLING]
    return {one.name: _encoded(raw, one.name)[rows] for one in looked}


def _encoded(raw: RawTable, name: str) -> Whole:
    indices = pa.chunked_array([raw.columns[name].combine_chunks()]).dictionary_encode().combine_chunks().indices  # type: ignore[union-attr]
    return np.asarray(pc.fill_null(indices, 0), dtype=np.int64)


def _once(codes: Sequence[Whole]) -> bool:
    """Whether no combination occurs twice."""
    together = np.zeros(len(codes[0]), dtype=np.int64)
    for one in codes:
        together = np.unique(together * (int(one.max(initial=0)) + 1) + one, return_inverse=True)[1]
    return int(together.max(initial=-1)) + 1 == len(together)
