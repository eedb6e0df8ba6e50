"""Scenarios as rows of a table, each equally likely: scenarios are repeated in proportion to their probability."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from app.child_processes import InvalidFile
from app.model_files.smps import Entry, IndependentGroup, entry_name

# Rows of the table; more would resolve probabilities finer than anybody means.
MOST_ROWS = 10_000
# Fewer rows leave no validation data for learning.
LEAST_ROWS = 200
SEED = 0


class ScenarioTable(NamedTuple):
    """Rows of values, their entries, the entries that never vary, and notes."""

    entries: list[Entry]
    rows: list[list[float]]
    constant: dict[Entry, float]
    notes: list[str]


def to_table(groups: list[IndependentGroup]) -> ScenarioTable:
    """Combine the realisations of all groups, or a seeded sample of them where there are too many."""
    fixed = {
        entry: group.realisations[0][1][index]
        for group in groups
        for index, entry in enumerate(group.entries)
        if len({values[index] for _, values in group.realisations}) == 1
    }
    entries = [entry for group in groups for entry in group.entries]
    if len(fixed) == len(entries):
        raise InvalidFile("every value in the file is the same in all scenarios, so there is nothing uncertain", _WHERE)
    count = math.prod(len(group.realisations) for group in groups)
    drawn, notes = _all(groups) if count <= MOST_ROWS else _sampled(groups, count)
    kept = [index for index, entry in enumerate(entries) if entry not in fixed]
    rows = [[row[index] for index in kept] for row in drawn]
    if fixed:
        notes.append(f"{len(fixed)} of the file's values never vary and are part of the model: {_listed(fixed)}")
    return ScenarioTable([entries[index] for index in kept], rows, fixed, notes)


_WHERE = ("scenarios",)


def _listed(entries: dict[Entry, float]) -> str:
    names = [f"'{entry_name(entry)}'" for entry in entries]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _all(groups: list[IndependentGroup]) -> tuple[list[list[float]], list[str]]:
    scenarios = []
    for parts in product(*(group.realisations for group in groups)):
        probability = math.prod((part[0] for part in parts), start=Fraction(1))
        scenarios.append((probability, [value for _, values in parts for value in values]))
    common = 1
    for probability, _ in scenarios:
        common = math.lcm(common, probability.denominator)
        if common > MOST_ROWS:
            break
    if common <= MOST_ROWS:
        rows = max(1, -(-LEAST_ROWS // common)) * common
        return _repeated([values for _, values in scenarios], [int(p * rows) for p, _ in scenarios]), []
    counts = _rounded([probability for probability, _ in scenarios], MOST_ROWS)
    missed = max(abs(count / MOST_ROWS - p) for count, (p, _) in zip(counts, scenarios, strict=True))
    note = f"probabilities are kept to {float(missed):.1g}: {MOST_ROWS} rows cannot hold them exactly"
    return _repeated([values for _, values in scenarios], counts), [note]


def _repeated(values: list[list[float]], counts: list[int]) -> list[list[float]]:
    return [row for row, count in zip(values, counts, strict=True) for _ in range(count)]


def _rounded(probabilities: list[Fraction], total: int) -> list[int]:
    """Round proportions to integers that sum to a total: the largest remainders are rounded up."""
    exact = [probability * total for probability in probabilities]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _sampled(groups: list[IndependentGroup], count: int) -> tuple[list[list[float]], list[str]]:
    """Repeat each group's realisations in proportion and join the groups at random."""
    # Not for secrets: the same file makes the same rows.
    shuffler = random.Random(SEED)  # noqa: S311
    rows: list[list[float]] = [[] for _ in range(MOST_ROWS)]
    for group in groups:
        counts = _rounded([probability for probability, _ in group.realisations], MOST_ROWS)
        column = _repeated([values for _, values in group.realisations], counts)
        shuffler.shuffle(column)
        for row, values in zip(rows, column, strict=True):
            row += values
    size = f"{count}" if count < 10**9 else f"{float(count):.1e}" if count < 10**300 else "more than 1e300"
    note = f"there are {size} scenarios; the data set is a sample of {MOST_ROWS} of them (seed {SEED})"
    return rows, [note]
