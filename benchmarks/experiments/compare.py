"""A method beside its rivals in each cell of an experiment, on the runs that both have.

The strongest rival of a cell is the one that the method gains least over. It is found on the very runs that are shown,
which favours the rivals: the best of several looks better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bco_core.estimates import Estimate, paired_difference

# What each method reached, by run.
Values = Mapping[str, Mapping[Any, float]]


@dataclass(frozen=True)
class Comparison:
    """How much more a method costs than ``rival``, over the ``runs`` that have both: negative is better."""

    rival: str
    difference: Estimate
    runs: int

    @property
    def won(self) -> bool:
        return self.difference.mean < 0

    @property
    def clear(self) -> bool:
        """Whether the difference is beyond two standard errors, which one run never is."""
        return abs(self.difference.mean) > 2 * self.difference.standard_error

    def text(self, digits: str) -> str:
        """Such as ``-6 ± 0.58``, both formatted by ``digits``; one run has no standard error."""
        error = self.difference.standard_error
        return f"{self.difference.mean:+{digits}}" + (f" ± {error:{digits}}" if math.isfinite(error) else "")


def compare(values: Values, method: str, rival: str) -> Comparison | None:
    """None where no run has both."""
    ours, theirs = values.get(method, {}), values.get(rival, {})
    both: list[Hashable] = sorted(ours.keys() & theirs.keys())
    if not both:
        return None
    pair = (torch.tensor([one[run] for run in both], dtype=torch.float64) for one in (ours, theirs))
    return Comparison(rival, paired_difference(*pair), len(both))


def strongest(values: Values, method: str, rivals: Sequence[str]) -> Comparison | None:
    """Beside the rival over which it gains least; None where there is none."""
    found = [compare(values, method, rival) for rival in rivals]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.difference.mean, default=None)


def tally(name: str, comparisons: Iterable[Comparison | None]) -> dict[str, int]:
    """In how many cells the method costs less and more than ``name``, and in how many of them clearly so."""
    known = [one for one in comparisons if one is not None]
    if not known:
        return {}
    return {
        f"cells_beside_{name}": len(known),
        f"cells_below_{name}": sum(one.won for one in known),
        f"cells_clearly_below_{name}": sum(one.won and one.clear for one in known),
        f"cells_above_{name}": sum(not one.won for one in known),
        f"cells_clearly_above_{name}": sum(not one.won and one.clear for one in known),
    }


def sentence(title: str, name: str, figures: Mapping[str, Any]) -> str:
    """Such as ``- beside the strongest baseline: below in 9 of 16 cells (5 beyond two standard errors), ...``."""
    if f"cells_beside_{name}" not in figures:
        return ""
    cells, below, clearly_below, above, clearly_above = (
        figures[f"cells_{what}_{name}"] for what in ("beside", "below", "clearly_below", "above", "clearly_above")
    )
    return (
        f"- beside {title}: below in {below} of {cells} cells ({clearly_below} beyond two standard errors), "
        f"not below in {above} ({clearly_above} beyond two standard errors)"
    )


def counts(values: Values, methods: Iterable[str]) -> str:
    """How many runs stand behind the methods of a cell: ``10``, or ``3–10`` where they differ."""
    found = {len(values[method]) for method in methods if method in values}
    return "–".join(str(number) for number in sorted({min(found), max(found)})) if found else ""


def line(entries: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(entries)} |"
