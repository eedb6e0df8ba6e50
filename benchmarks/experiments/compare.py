"""Compare a method with its rivals in each cell of an experiment, on the runs that both have.

The strongest rival of a cell is the one with the least mean difference to the method. It is chosen on the same runs
that are shown, which favours the rivals: the best of several looks better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bco_core.estimates import Estimate, paired_difference

# Cost, gap or regret of each method, by run.
Values = Mapping[str, Mapping[Any, float]]


@dataclass(frozen=True)
class Comparison:
    """A method's mean and its difference from ``rival`` (negative is better), over the ``runs`` that have both."""

    rival: str
    ours: float
    difference: Estimate
    runs: int

    @property
    def won(self) -> bool:
        return self.difference.mean < 0

    @property
    def clear(self) -> bool:
        """Whether the difference is beyond two standard errors; never so for a single run."""
        return abs(self.difference.mean) > 2 * self.difference.standard_error

    def text(self, digits: str) -> str:
        """Return, say, ``-6 ± 0.58``, both formatted by ``digits``; one run has no standard error."""
        error = self.difference.standard_error
        return f"{self.difference.mean:+{digits}}" + (f" ± {error:{digits}}" if math.isfinite(error) else "")


def compare(values: Values, method: str, rival: str) -> Comparison | None:
    """Return the paired comparison, or None where no run has both."""
    both: list[Hashable] = sorted(values.get(method, {}).keys() & values.get(rival, {}).keys())
    if not both:
        return None
    ours, theirs = (torch.tensor([values[name][run] for run in both], dtype=torch.float64) for name in (method, rival))
    return Comparison(rival, ours.mean().item(), paired_difference(ours, theirs), len(both))


def strongest(values: Values, method: str, rivals: Sequence[str]) -> Comparison | None:
    """Return the comparison in which the method gains least, or None without any."""
    comparisons = [compare(values, method, rival) for rival in rivals]
    known = [one for one in comparisons if one is not None]
    return max(known, key=lambda one: one.difference.mean, default=None)


def tally(name: str, comparisons: Iterable[Comparison | None]) -> dict[str, int]:
    """Count the cells in which the method costs less and more than ``name``, and those beyond two standard errors."""
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
    """Return a line such as ``- the strongest baseline: won 5, tied 9, lost 2 of 16 cells``."""
    if f"cells_beside_{name}" not in figures:
        return ""
    cells, won, lost = (figures[f"cells_{key}_{name}"] for key in ("beside", "clearly_below", "clearly_above"))
    return f"- {title}: won {won}, tied {cells - won - lost}, lost {lost} of {cells} cells"


def counts(values: Values, methods: Iterable[str]) -> str:
    """Return the number of runs of the methods of a cell: ``10``, or ``3–10`` where they differ."""
    runs = {len(values[method]) for method in methods if method in values}
    return "–".join(str(number) for number in sorted({min(runs), max(runs)})) if runs else ""


def line(entries: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(entries)} |"
