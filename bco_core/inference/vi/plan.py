"""What all parts of a mixture have in common, worked out from the rows, the options and the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bco_core.data import Folds, Sample, block_folds, evenly, fold_numbers, forward_folds, make_folds
from bco_core.errors import InvalidInput
from bco_core.families import FAMILIES
from bco_core.features.base import Features
from bco_core.features.registry import FEATURES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.method import Task
from bco_core.inference.options import AutoOptions, ViOptions
from bco_core.inference.vi.hyperparameters import Configuration
from bco_core.inference.vi.variational import VariationalOptions
from bco_core.predictors.registry import build_predictor
from bco_core.timeline import blocks

# Fewer rows are learned from sooner by one process than by workers that share the work.
SHARED_ROWS = 8000
# What a pilot learns from, and what it is judged by.
_PILOT_ROWS, _PILOT_HELD_OUT = 3000, 1000


class LearningSettings(NamedTuple):
    """How members learn, and for each kind of predictor its prior's scale and the configurations that compete: none
    where the caller chose."""

    variational: VariationalOptions
    prior_scales: dict[str, float]
    sweeps: dict[str, tuple[Configuration, ...]]


@dataclass(frozen=True)
class MixturePlan:
    """``generator`` goes on from here; ``rows`` are those of the task's that θ learns from, ``scaling`` those of them
    that predictors are scaled with, ``judged`` those that a certificate may be judged by.

    ``folds`` are what members learn from. Where rows have a time, ``forward`` are members that learn from the past
    alone, for judgement.
    """

    task: Task
    generator: torch.Generator
    rows: Tensor
    scaling: Tensor
    judged: Tensor | None
    folds: Folds
    forward: Folds | None
    settings: LearningSettings

    @property
    def shared(self) -> bool:
        """Whether there is enough to do for workers to share it."""
        return len(self.task.sample) >= SHARED_ROWS and len(self.folds.train) > 1

    @property
    def judging(self) -> Folds:
        """The members whose held-out rows decide: those that only know the past, where there is time."""
        return self.forward or self.folds

    @property
    def pilot(self) -> Folds:
        """Some rows of one of the judging members, with time the last, for configurations to compete on."""
        one = _fewer(self.judging[-1:] if self.forward else self.judging[:1])
        return Folds(one.train, one.validation[:, evenly(one.validation.shape[1], _PILOT_HELD_OUT)])

    @property
    def beside_boosted(self) -> MixturePlan:
        """The same for networks beside a boosted rule: they learn from as many rows as a pilot."""
        return replace(self, folds=_fewer(self.folds), forward=None if self.forward is None else _fewer(self.forward))

    @property
    def kl_weight(self) -> float:
        return float(self.settings.variational.kl_weight)

    @cached_property
    def sample(self) -> Sample:
        """The rows that θ learns from."""
        return self.task.sample if len(self.rows) == len(self.task.sample) else self.task.sample.rows(self.rows)

    @cached_property
    def features(self) -> Features:
        """Fitted to the rows to scale with or, where they see outcomes, to all rows, a fold at a time."""
        kind, options = FEATURES[self.task.options.predictor.features], self.task.options
        sample = self.sample if kind.sees_outcomes else self._scaling_rows
        return kind.fit(sample, fold_numbers(len(sample), options.seed))

    @property
    def _scaling_rows(self) -> Sample:
        return self.sample.rows(self.scaling)

    def target(self, kind: str, features: Features | None = None) -> GibbsTarget:
        layers = self.task.options.predictor.layers(kind)
        predictor = build_predictor(kind, self._scaling_rows, layers, features or self.features)
        family = FAMILIES[self.task.options.family]
        return make_target(self.task.problem, predictor, self.sample, family, self.settings.prior_scales[kind])

    @cached_property
    def boosted(self) -> MixturePlan:
        """The same for members that learn on boosted features: with time, the first block has none."""
        timeline = self.sample.timeline
        if timeline is None or self.forward is None:
            return self
        later = (blocks(timeline) > 0).nonzero().flatten()
        folds = block_folds(timeline, later, len(self.folds.train))
        return replace(self, folds=folds, forward=forward_folds(timeline, first=1, needed=1))


def _fewer(folds: Folds) -> Folds:
    return Folds(folds.train[:, evenly(folds.train.shape[1], _PILOT_ROWS)], folds.validation)


def make_plan(
    task: Task, members: int, settle: Callable[[Folds], LearningSettings], most: int | None = None, boosts: bool = False
) -> MixturePlan:
    """A plan for so many members to learn from up to ``most`` of the rows, some of them on boosted features."""
    options: AutoOptions | ViOptions = task.options
    generator = torch.Generator().manual_seed(options.seed)
    rows = _thinned(task.sample, most, options.seed)
    sample = task.sample if len(rows) == len(task.sample) else task.sample.rows(rows)
    scaling, judged = _set_aside(len(rows), generator) if options.certify else (torch.arange(len(rows)), None)
    timeline, forward = sample.timeline, None
    folds = make_folds(len(rows), members, generator)
    if timeline is not None:
        try:
            forward = forward_folds(timeline, needed=int(boosts))
            folds = block_folds(timeline, torch.arange(len(rows)), members)
        except InvalidInput:
            # Too short to be cut in time: it is judged as if it had none.
            forward = None
    return MixturePlan(task, generator, rows, scaling, judged, folds, forward, settle(folds))


def _thinned(sample: Sample, most: int | None, seed: int) -> Tensor:
    """Up to ``most`` rows, in their order: at random or, with time, evenly spread over it."""
    count = len(sample)
    if most is None or count <= most:
        return torch.arange(count)
    if sample.timeline is not None:
        # Neighbours in time are of different series: a whole-numbered stride would meet the same ones again and again.
        order = sample.timeline.periods.argsort(stable=True)
        return order[evenly(count, most)].sort().values
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


def _set_aside(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A tenth of the rows, at least five, to scale predictors with; and the rest, to judge by."""
    shuffled = torch.randperm(rows, generator=generator)
    few = max(5, rows // 10)
    return shuffled[:few], shuffled[few:]
