"""A history as a sample of (context, outcome) rows, its folds, and its standardisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.timeline import BLOCKS, Timeline, apart, blocks, known_before

# Arrays by name, as they are stored or sent to other processes.
Arrays = dict[str, np.ndarray[Any, Any]]

FOLDS = 5
# Squares and sums of larger numbers may overflow; no planning quantity is near it.
LARGEST = 1e100


@dataclass(frozen=True)
class Sample:
    """n observations: contexts (n, d_x) and outcomes (n, d_y), both float64 and finite, and their timeline if any."""

    contexts: Tensor
    outcomes: Tensor
    timeline: Timeline | None = None

    def __post_init__(self) -> None:
        for name, values in (("contexts", self.contexts), ("outcomes", self.outcomes)):
            if values.ndim != 2:
                raise InvalidInput(f"{name} must be a table of rows and columns, not {values.ndim}-dimensional")
            if values.dtype != torch.float64:
                raise InvalidInput(f"{name} must be float64, not {values.dtype}")
            if not (values.abs() <= LARGEST).all():
                raise InvalidInput(f"{name} contain missing or infinite numbers, or numbers beyond {LARGEST:g}")
        if len(self.contexts) != len(self.outcomes):
            raise InvalidInput(f"{len(self.contexts)} contexts but {len(self.outcomes)} outcomes")
        if len(self.contexts) == 0:
            raise InvalidInput("there are no rows")
        if self.timeline is not None and len(self.timeline) != len(self.contexts):
            raise InvalidInput(f"{len(self.contexts)} contexts but {len(self.timeline)} times")

    def __len__(self) -> int:
        return len(self.contexts)

    def rows(self, index: Tensor) -> Sample:
        timeline = None if self.timeline is None else self.timeline.rows(index)
        return Sample(self.contexts[index], self.outcomes[index], timeline)

    def followed_by(self, other: Sample) -> Sample:
        return Sample(torch.cat([self.contexts, other.contexts]), torch.cat([self.outcomes, other.outcomes]))


@dataclass(frozen=True)
class Standardizer:
    """Column-wise (value − mean) / scale in float64; a constant column keeps scale 1."""

    mean: Tensor
    scale: Tensor

    @staticmethod
    def fit(values: Tensor) -> Standardizer:
        mean = values.mean(dim=0)
        scale = (values - mean).square().mean(dim=0).sqrt()
        # Rounding leaves a constant column with a tiny spread: compare with the column's own magnitude.
        constant = scale <= 1e-12 * values.abs().amax(dim=0)
        return Standardizer(mean, torch.where(constant, torch.ones_like(scale), scale))

    def apply(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.scale

    def undo(self, values: Tensor) -> Tensor:
        return values * self.scale + self.mean


@dataclass(frozen=True)
class Folds:
    """Rows that each member learns from, (R, n_train), and those that stop it early, (R, n_validation)."""

    train: Tensor
    validation: Tensor

    def __getitem__(self, members: slice) -> Folds:
        return Folds(self.train[members], self.validation[members])


def make_folds(count: int, members: int, generator: torch.Generator) -> Folds:
    """Give each of R members its own fifth of the rows for early stopping and the rest to learn from.

    Members are dealt from random five-fold partitions, so with R ≥ 5 every row is learned from; R = 1 is a plain
    80/20 split. All folds have the same size, which lets members train as one batch: the up to four rows that do not
    divide evenly stay in training.
    """
    size = count // FOLDS
    if size < 1:
        raise InvalidInput(f"learning needs at least {FOLDS} rows, and there are {count}")
    train, validation = [], []
    for member in range(members):
        fold = member % FOLDS
        if fold == 0:
            shuffled = torch.randperm(count, generator=generator)
        held_out = slice(fold * size, (fold + 1) * size)
        validation.append(shuffled[held_out])
        train.append(torch.cat([shuffled[: held_out.start], shuffled[held_out.stop :]]))
    return Folds(torch.stack(train), torch.stack(validation))


def fold_numbers(count: int, seed: int) -> Tensor:
    """Return a random fold from 0 to 4 for every row, (n,); sizes differ by at most one."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return torch.empty(count, dtype=torch.long).index_copy_(0, order, torch.arange(count) % FOLDS)


def block_folds(timeline: Timeline, rows: Tensor, members: int) -> Folds:
    """Make folds of rows (m,) that have a time: blocks of time, with a gap of ``lead`` periods around.

    Members beyond the first five get the same blocks again; they differ by their seeds.
    """
    own = timeline.rows(rows)
    order = own.periods.argsort(stable=True)
    train, validation = [], []
    for number in range(min(members, FOLDS)):
        held_out = torch.zeros(len(rows), dtype=torch.bool)
        held_out[order[number * len(rows) // FOLDS : (number + 1) * len(rows) // FOLDS]] = True
        train.append(rows[apart(own, held_out)])
        validation.append(rows[held_out])
    again = [number % len(train) for number in range(members)]
    return _of_one_size([train[number] for number in again], [validation[number] for number in again])


def forward_folds(timeline: Timeline, first: int = 0, needed: int = 0) -> Folds:
    """Make folds of members that learn from the past alone: each is judged on a block, from the third on.

    It learns from the blocks before, from ``first`` on, as far as they were known. A block is judged if block
    ``needed`` or a later one was known by then.
    """
    block = blocks(timeline)
    train, validation = [], []
    for number in range(2, BLOCKS):
        held_out = block == number
        if not held_out.any():
            continue
        past = known_before(timeline, held_out)
        if (past & (block >= needed)).sum() >= FOLDS:
            train.append((past & (block >= first)).nonzero().flatten())
            validation.append(held_out.nonzero().flatten())
    if not train:
        raise InvalidInput("the history has too few periods to be judged forward in time", ("sample",))
    return _of_one_size(train, validation)


def _of_one_size(train: list[Tensor], validation: list[Tensor]) -> Folds:
    """Make folds equally long, to train as one batch: repeat rows of shorter ones, thin longer held-out ones."""
    if any(not len(rows) for rows in train):
        raise InvalidInput("the history is too short for its lead: no row is known before a decision", ("lead",))
    most, least = max(map(len, train)), min(map(len, validation))
    longer = [rows[torch.arange(most) % len(rows)] for rows in train]
    return Folds(torch.stack(longer), torch.stack([rows[evenly(len(rows), least)] for rows in validation]))


def evenly(count: int, most: int) -> Tensor:
    """Return up to ``most`` of ``count`` places, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()
