"""When rows of a history were made: what may be known at a decision, and what comes after what."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bco_core.errors import InvalidInput


@dataclass(frozen=True)
class Timeline:
    """The period (n,) of each row, counted in steps of the history's own spacing, and its series (n,), by number.

    Decisions are made ``lead`` periods ahead, and every ``season`` periods things are alike; 0 where there is no
    season. ``levels`` names, for each outcome, the context column that holds the level of its series as known then; it
    is empty where contexts hold none.
    """

    periods: Tensor
    series: Tensor
    lead: int = 1
    season: int = 0
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("periods", self.periods), ("series", self.series)):
            if values.dtype != torch.int64 or values.ndim != 1:
                raise InvalidInput(f"{name} must be a list of whole numbers")
        if len(self.periods) != len(self.series):
            raise InvalidInput(f"{len(self.periods)} periods but {len(self.series)} series")
        if self.lead < 1:
            raise InvalidInput("a decision is made at least one period ahead", ("lead",))

    def __len__(self) -> int:
        return len(self.periods)

    def rows(self, index: Tensor) -> Timeline:
        return replace(self, periods=self.periods[index], series=self.series[index])


# A history is cut into so many blocks of time, the first of which has no past to be judged from.
BLOCKS = 6
_FIRST_SHARE = 0.3


def blocks(timeline: Timeline) -> Tensor:
    """The block (n,) of every row: 0 for the first three tenths of the rows, then five of equal size.

    A period is never cut. Where there are few periods, a block may be empty.
    """
    shares = _FIRST_SHARE + (1 - _FIRST_SHARE) * torch.arange(BLOCKS - 1, dtype=torch.float64) / (BLOCKS - 1)
    ordered = timeline.periods.sort().values
    first = ordered[(shares * len(ordered)).round().long().clamp_max(len(ordered) - 1)]
    return torch.searchsorted(first, timeline.periods, right=True)


def known_before(timeline: Timeline, rows: Tensor) -> Tensor:
    """Which rows (n,) are known when the first of some rows, given as a mask (n,), is decided for."""
    return timeline.periods <= timeline.periods[rows].min() - timeline.lead


def apart(timeline: Timeline, rows: Tensor) -> Tensor:
    """Which rows (n,) are at least ``lead`` periods away from all of some rows in a block, given as a mask (n,)."""
    first, last = timeline.periods[rows].min(), timeline.periods[rows].max()
    return (timeline.periods <= first - timeline.lead) | (timeline.periods >= last + timeline.lead)
