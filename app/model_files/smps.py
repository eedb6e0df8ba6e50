"""Read the two files that SMPS adds to an MPS file: periods (.tim) and scenarios (.sto).

The reader is strict and bounded, and every refusal names its line. Fields are separated by blanks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from app.child_processes import InvalidFile
from app.model_files.read_mps_lp import LARGEST, FileModel

MOST_LINES = 2_000_000
# Realisations of all groups together, each times its entries.
MOST_VALUES = 2_000_000
# Tolerance of the sum of probabilities, which are often written in a few digits.
SLACK = Fraction(1, 1000)

# A random entry: its column, None for the right-hand side, and its row, None for the objective.
Entry = tuple[str | None, str | None]


class IndependentGroup(NamedTuple):
    """Entries that vary together, and their realisations: the probability of each, and the values of the entries."""

    entries: list[Entry]
    realisations: list[tuple[Fraction, list[float]]]


class SmpsLine(NamedTuple):
    number: int
    header: bool
    fields: list[str]


class _File:
    """Reader of lines that are neither blank nor comments."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where

    def lines(self) -> Iterator[SmpsLine]:
        for number, line in enumerate(self.text.split("\n"), start=1):
            if number > MOST_LINES:
                raise InvalidFile(f"the file has more than {MOST_LINES} lines", (self.where,))
            if line.strip() and not line.startswith("*"):
                fields = line.split()
                yield SmpsLine(number, line[0] not in " \t", fields)
                if line[0] not in " \t" and fields[0].upper() == "ENDATA":
                    return
        raise InvalidFile("the file ends without ENDATA; it seems to be cut off", (self.where,))

    def refusal(self, line: SmpsLine, sentence: str) -> InvalidFile:
        return InvalidFile(f"line {line.number}: {sentence}", (self.where,))

    def number(self, line: SmpsLine, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not abs(value) <= LARGEST:
            raise self.refusal(line, "a value is not a number between −1e12 and 1e12")
        return value

    def probability(self, line: SmpsLine, text: str) -> Fraction:
        try:
            # Digits as they are written, so that 0.1 is a tenth; an exponent would unfold to any length.
            value = Fraction(text) if len(text) <= 30 and "e" not in text.lower() else Fraction(float(text))
        except (ValueError, OverflowError, ZeroDivisionError):
            value = Fraction(-1)
        if not 0 <= value <= 1 or "/" in text:
            raise self.refusal(line, "a probability is not a number between 0 and 1")
        return value


# .tim


def read_periods(text: str, model: FileModel) -> tuple[list[str], list[str]]:
    """Return the first-stage columns and the names of the two periods."""
    file = _File(text, "time")
    section, periods = "", []
    for line in file.lines():
        word = line.fields[0].upper()
        if line.header and word in ("TIME", "PERIODS", "ENDATA"):
            section = word
            if word == "PERIODS" and "EXPLICIT" in map(str.upper, line.fields[1:]):
                raise file.refusal(line, "explicit periods are not read; name the first column and row of each period")
        elif line.header and word in ("ROWS", "COLUMNS"):
            raise file.refusal(line, "explicit periods are not read; name the first column and row of each period")
        elif section == "PERIODS" and len(line.fields) == 3:
            periods.append(line)
        else:
            raise file.refusal(line, "this is neither TIME, PERIODS nor a period: a column, a row and a name")
    if len(periods) != 2:
        raise InvalidFile(
            f"the file names {len(periods)} periods; two can be used: the decisions now, and the recourse once the "
            "outcome is known",
            ("time",),
        )
    places = {name: index for index, name in enumerate(model.columns)}
    rows = {model.objective, *model.rows}
    for line in periods:
        column, row, _ = line.fields
        if column not in places:
            raise file.refusal(line, f"the model has no column '{column}'")
        if row not in rows:
            raise file.refusal(line, f"the model has no row '{row}'")
    first, second = (places[line.fields[0]] for line in periods)
    if first != 0:
        raise file.refusal(periods[0], f"the first period must begin with the first column, '{model.columns[0]}'")
    if second == 0:
        raise file.refusal(periods[1], "the second period must begin after the first")
    return model.columns[:second], [line.fields[2] for line in periods]


# .sto


def read_groups(text: str, model: FileModel, periods: list[str]) -> list[IndependentGroup]:
    """Return the random entries, in groups that are independent of each other."""
    return _Stochastic(text, model, periods).read()


class _Stochastic(_File):
    def __init__(self, text: str, model: FileModel, periods: list[str]) -> None:
        super().__init__(text, "scenarios")
        self.model, self.periods = model, periods
        self.columns = {name: index for index, name in enumerate(model.columns)}
        self.rows = {name: index for index, name in enumerate(model.rows) if name is not None}
        self.values = 0
        self.independent: dict[Entry, list[tuple[Fraction, list[float]]]] = {}
        # A block's or a scenario's realisations, by name: probability, and the values that it gives.
        self.blocks: dict[str, list[tuple[Fraction, dict[Entry, float]]]] = {}
        self.scenarios: dict[str, tuple[Fraction, dict[Entry, float]]] = {}
        self.given: dict[Entry, float] | None = None

    def read(self) -> list[IndependentGroup]:
        section = ""
        for line in self.lines():
            if line.header:
                section = self._section(line)
                self.given = None
            elif section == "INDEP":
                self._independent(line)
            elif section == "BLOCKS":
                self._block(line)
            elif section == "SCENARIOS":
                self._scenario(line)
            else:
                raise self.refusal(line, "this is outside of a section: INDEP, BLOCKS or SCENARIOS, each DISCRETE")
        if self.scenarios and (self.independent or self.blocks):
            raise InvalidFile(
                "the file has scenarios and independent parts; it can have one or the other", ("scenarios",)
            )
        groups = [IndependentGroup([entry], result) for entry, result in self.independent.items()]
        groups += [self._completed(list(result)) for result in self.blocks.values()]
        if self.scenarios:
            groups.append(self._completed(list(self.scenarios.values())))
        if not groups:
            raise InvalidFile("the file says nothing that varies", ("scenarios",))
        self._check_entries(groups)
        return [self._normalised(group) for group in groups]

    def _section(self, line: SmpsLine) -> str:
        word, *rest = (field.upper() for field in line.fields)
        if word in ("STOCH", "ENDATA"):
            return word
        if word not in ("INDEP", "BLOCKS", "SCENARIOS"):
            raise self.refusal(line, f"the section {word[:40]} is not read; INDEP, BLOCKS and SCENARIOS are")
        if rest[:1] != ["DISCRETE"] and not (word == "SCENARIOS" and not rest):
            raise self.refusal(line, f"only discrete distributions are read: write {word} DISCRETE")
        if rest[1:] not in ([], ["REPLACE"]):
            raise self.refusal(line, "values replace those of the model; ADD and MULTIPLY are not read")
        return word

    def _independent(self, line: SmpsLine) -> None:
        if len(line.fields) not in (4, 5):
            raise self.refusal(line, "an independent value is a column, a row, a value, its period and its probability")
        if len(line.fields) == 5:
            self._check_period(line, line.fields[3])
        entry = self._entry(line, line.fields[0], line.fields[1])
        result = (self.probability(line, line.fields[-1]), [self.number(line, line.fields[2])])
        self._count(line, 1)
        self.independent.setdefault(entry, []).append(result)

    def _block(self, line: SmpsLine) -> None:
        if line.fields[0].upper() != "BL":
            self._values(line)
            return
        if len(line.fields) not in (3, 4):
            raise self.refusal(line, "a block is BL, its name, its period and its probability")
        if len(line.fields) == 4:
            self._check_period(line, line.fields[2])
        known = self.blocks.setdefault(line.fields[1], [])
        # Entries that a realisation leaves out are as in the first one of its block.
        self.given = dict(known[0][1]) if known else {}
        self._count(line, len(self.given))
        known.append((self.probability(line, line.fields[-1]), self.given))

    def _scenario(self, line: SmpsLine) -> None:
        if line.fields[0].upper() != "SC":
            self._values(line)
            return
        if len(line.fields) not in (4, 5):
            raise self.refusal(line, "a scenario is SC, its name, its parent, its probability and its period")
        _, name, parent, probability = line.fields[:4]
        if len(line.fields) == 5:
            self._check_period(line, line.fields[4])
        if name in self.scenarios:
            raise self.refusal(line, f"two scenarios are called '{name}'")
        # Entries that a scenario leaves out are as in its parent.
        if parent.strip("'\"").upper() == "ROOT":
            self.given = {}
        elif parent in self.scenarios:
            self.given = dict(self.scenarios[parent][1])
        else:
            raise self.refusal(line, f"the parent '{parent}' is neither ROOT nor a scenario before this one")
        self._count(line, len(self.given))
        self.scenarios[name] = (self.probability(line, probability), self.given)

    def _values(self, line: SmpsLine) -> None:
        if self.given is None or len(line.fields) not in (3, 5):
            raise self.refusal(line, "a value is a column, a row and a number, after the line that begins its group")
        for name, value in zip(line.fields[1::2], line.fields[2::2], strict=True):
            self.given[self._entry(line, line.fields[0], name)] = self.number(line, value)
            self._count(line, 1)

    def _count(self, line: SmpsLine, more: int) -> None:
        self.values += more
        if self.values > MOST_VALUES:
            raise self.refusal(line, f"the file has more than {MOST_VALUES} values")

    def _check_period(self, line: SmpsLine, name: str) -> None:
        if self.periods and name not in self.periods:
            raise self.refusal(line, f"there is no period '{name}' in the .tim file")

    def _entry(self, line: SmpsLine, column: str, row: str) -> Entry:
        if column not in self.columns and column not in self.model.rhs_names:
            if row in self.columns:
                raise self.refusal(line, "bounds of columns must be certain; make the bound a row of the model")
            raise self.refusal(line, f"the model has no column and no right-hand side '{column}'")
        if row == self.model.objective:
            return (column if column in self.columns else None), None
        if row not in self.rows:
            raise self.refusal(line, f"the model has no row '{row}'")
        return (column if column in self.columns else None), row

    def _completed(self, found: list[tuple[Fraction, dict[Entry, float]]]) -> IndependentGroup:
        """Give every realisation a value of every entry; missing ones are as in the model."""
        entries = list(dict.fromkeys(entry for _, values in found for entry in values))
        if len(entries) * len(found) > MOST_VALUES:
            raise InvalidFile(f"the file has more than {MOST_VALUES} values", ("scenarios",))
        return IndependentGroup(
            entries,
            [
                (probability, [values[entry] if entry in values else self._core(entry) for entry in entries])
                for probability, values in found
            ],
        )

    def _core(self, entry: Entry) -> float:
        column, row = entry
        if row is None:
            # A right-hand side of the objective is taken from it.
            return -self.model.offset if column is None else self.model.costs[self.columns[column]]
        place = self.rows[row]
        if column is not None:
            return self.model.entries[place].get(self.columns[column], 0.0)
        lower, upper = self.model.row_lower[place], self.model.row_upper[place]
        return lower if math.isfinite(lower) else upper

    def _check_entries(self, groups: list[IndependentGroup]) -> None:
        seen: set[Entry] = set()
        for group in groups:
            for entry in group.entries:
                if entry in seen:
                    raise InvalidFile(f"{entry_name(entry)} varies in two independent groups", ("scenarios",))
                seen.add(entry)

    def _normalised(self, group: IndependentGroup) -> IndependentGroup:
        total = sum((probability for probability, _ in group.realisations), Fraction(0))
        if abs(total - 1) > SLACK:
            what = entry_name(group.entries[0]) if group.entries else "a group"
            raise InvalidFile(f"the probabilities of {what} sum to {float(total):g}, not to 1", ("scenarios",))
        kept = [(probability / total, values) for probability, values in group.realisations if probability]
        return IndependentGroup(group.entries, kept)


def entry_name(entry: Entry) -> str:
    """Return the name of an entry's outcome."""
    column, row = entry
    if row is None:
        return "rhs of the objective" if column is None else f"cost of {column}"
    return f"rhs of {row}" if column is None else f"{column} in {row}"
