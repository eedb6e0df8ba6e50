"""The plan of a fold mixture: rows, folds and settings, derived from the task, its options and its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bco_core.data import Folds, Sample, block_folds, evenly, fold_numbers, forward_folds, make_folds
from bco_core.distributions import FAMILIES
from bco_core.errors import InvalidInput
from bco_core.features.base import Features
from bco_core.features.registry import FEATURES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.method import Task
from bco_core.inference.options import AutoOptions, ViOptions
from bco_core.inference.vi.hyperparameters import Configuration
from bco_core.inference.vi.variational import VariationalOptions
from bco_core.predictors.registry import build_predictor
from bco_core.timeline import blocks

# With fewer rows one process is faster than several that share the work.
SHARED_ROWS = 8000
# Rows that a pilot learns from, and rows that it is judged by.
_PILOT_ROWS, _PILOT_HELD_OUT = 3000, 1000


class LearningSettings(NamedTuple):
    """Variational options and, for each kind of predictor, the scale of its prior and the competing configurations,
    none where the caller chose the settings."""

    variational: VariationalOptions
    prior_scales: dict[str, float]
    sweeps: dict[str, tuple[Configuration, ...]]


@dataclass(frozen=True)
class MixturePlan:
    """``rows`` of the task's sample are learned from, ``scaling`` of these scale the predictors, and ``judged`` of
    these may be used by a certificate. ``generator`` continues after the plan's own draws.

    ``folds`` are the members' rows. Where rows have a time, ``forward`` are the folds of members that learn from
    earlier rows only, for judgement.
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
        """Whether the work is large enough to be shared between processes."""
        return len(self.task.sample) >= SHARED_ROWS and len(self.folds.train) > 1

    @property
    def judging(self) -> Folds:
        """The folds of the members that are judged: forward in time where rows have one."""
        return self.forward or self.folds

    @property
    def pilot(self) -> Folds:
        """Some rows of one judged member, the last with time, on which configurations compete."""
        one = _fewer(self.judging[-1:] if self.forward else self.judging[:1])
        return Folds(one.train, one.validation[:, evenly(one.validation.shape[1], _PILOT_HELD_OUT)])

    @property
    def beside_boosted(self) -> MixturePlan:
        """The plan for networks that compete with a boosted rule: they learn from as many rows as a pilot."""
        return replace(self, folds=_fewer(self.folds), forward=None if self.forward is None else _fewer(self.forward))

    @property
    def kl_weight(self) -> float:
        return float(self.settings.variational.kl_weight)

    @cached_property
    def sample(self) -> Sample:
        """The rows that are learned from."""
        return self.task.sample if len(self.rows) == len(self.task.sample) else self.task.sample.rows(self.rows)

    @cached_property
    def features(self) -> Features:
        """Features fitted to the scaling rows or, where they use outcomes, to all rows, one fold at a time."""
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
        """The plan for members on boosted features: with time, the first block has none."""
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
    """Return a plan for ``members`` that learn from up to ``most`` rows; ``boosts`` if some use boosted features."""
    options: AutoOptions | ViOptions = task.options
    generator = torch.Generator().manual_seed(options.seed)
    rows = _thin_rows(task.sample, most, options.seed)
    sample = task.sample if len(rows) == len(task.sample) else task.sample.rows(rows)
    scaling, judged = _set_aside(len(rows), generator) if options.certify else (torch.arange(len(rows)), None)
    timeline, forward = sample.timeline, None
    folds = make_folds(len(rows), members, generator)
    if timeline is not None:
        try:
            forward = forward_folds(timeline, needed=int(boosts))
            folds = block_folds(timeline, torch.arange(len(rows)), members)
        except InvalidInput:
            # Too short to be split in time: it is judged as if it had none.
            forward = None
    return MixturePlan(task, generator, rows, scaling, judged, folds, forward, settle(folds))


def _thin_rows(sample: Sample, most: int | None, seed: int) -> Tensor:
    """Return up to ``most`` rows in their order: at random or, with time, evenly spread over it."""
    count = len(sample)
    if most is None or count <= most:
        return torch.arange(count)
    if sample.timeline is not None:
        # Neighbours in time belong to different series: an integer stride would pick the same series again and again.
        order = sample.timeline.periods.argsort(stable=True)
        return order[evenly(count, most)].sort().values
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


def _set_aside(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a tenth of the rows, at least five, to scale predictors with, and the rest for the certificate."""
    shuffled = torch.randperm(rows, generator=generator)
    few = max(5, rows // 10)
    return shuffled[:few], shuffled[few:]
