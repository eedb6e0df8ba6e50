"""Split a history into known and judged rows: origins that roll over time, or random parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.inference.learn import MINIMUM_ROWS
from bco_core.timeline import Timeline

MOST_SPLITS = 50


@dataclass(frozen=True)
class Split:
    """Judged rows (m,), and rows (k,) that are known at the decision for the first of them."""

    known: Tensor
    judged: Tensor


def rolling(timeline: Timeline, count: int, share: float) -> list[Split]:
    """Judge the last ``share`` of the rows in ``count`` blocks of time, each by the rows known ``lead`` periods before.

    A period is never cut, so there may be fewer blocks.
    """
    ordered = timeline.periods.sort().values
    first = math.ceil((1 - share) * len(ordered))
    places = first + torch.arange(count) * (len(ordered) - first) // count
    starts = ordered[places.clamp_max(len(ordered) - 1)].unique().tolist()
    if starts[0] == ordered[0] and len(starts) > 1:
        starts = starts[1:]
    ends = [*starts[1:], int(ordered[-1]) + 1]
    splits = []
    for begin, end in zip(starts, ends, strict=True):
        known = timeline.periods <= begin - timeline.lead
        judged = (timeline.periods >= begin) & (timeline.periods < end)
        splits.append(Split(known.nonzero().flatten(), judged.nonzero().flatten()))
    _check(splits, len(ordered), math.ceil(MINIMUM_ROWS / (1 - share)) + timeline.lead)
    return splits


def random_parts(rows: int, count: int, seed: int) -> list[Split]:
    """Judge every row once, in one of ``count`` random parts, each by the rows of the others."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    part = torch.empty(rows, dtype=torch.int64).index_copy_(0, order, torch.arange(rows) * count // max(1, rows))
    numbers = range(count)
    splits = [Split((part != number).nonzero().flatten(), (part == number).nonzero().flatten()) for number in numbers]
    _check(splits, rows, max(count, math.ceil(MINIMUM_ROWS * count / max(1, count - 1))))
    return splits


def _check(splits: list[Split], rows: int, needed: int) -> None:
    known = min(len(split.known) for split in splits)
    if known < MINIMUM_ROWS or not all(len(split.judged) for split in splits):
        raise InvalidInput(
            f"of {rows} rows, {known} are known before the first that is judged, and learning needs {MINIMUM_ROWS}: "
            f"send more rows (about {max(needed, rows + 1)}), or ask for fewer splits or a smaller judged share",
            ("splits",),
        )
