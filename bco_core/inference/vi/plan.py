"""What all parts of a mixture have in common, worked out from the rows, the options and the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bco_core.data import Folds, Sample, fold_numbers, make_folds
from bco_core.families import FAMILIES
from bco_core.features.base import Features
from bco_core.features.registry import FEATURES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.method import Task
from bco_core.inference.options import AutoOptions, ViOptions
from bco_core.inference.vi.recipes import Configuration
from bco_core.inference.vi.variational import VariationalOptions
from bco_core.predictors.registry import build_predictor

# Fewer rows are learned from sooner as one batch of all members than by workers that share them out.
SHARED_ROWS = 8000
# What a pilot learns from, and what it is judged by.
_PILOT_ROWS, _PILOT_HELD_OUT = 6400, 1000


class Settings(NamedTuple):
    """How members learn, and for each kind of predictor its prior's scale and the configurations that compete: none
    where the caller chose."""

    variational: VariationalOptions
    prior_scales: dict[str, float]
    sweeps: dict[str, tuple[Configuration, ...]]


@dataclass(frozen=True)
class Plan:
    """``generator`` goes on from here; ``scaling`` are the rows that predictors are scaled with, ``judged`` those that
    a certificate may be judged by."""

    task: Task
    generator: torch.Generator
    scaling: Tensor
    judged: Tensor | None
    folds: Folds
    settings: Settings

    @property
    def shared(self) -> bool:
        """Whether every member learns by itself, so that workers may share them."""
        return len(self.task.sample) >= SHARED_ROWS and len(self.folds.train) > 1

    @property
    def pilot(self) -> Folds:
        """Some of the first member's rows, for configurations to compete on before members are shared out; at most half
        of those it holds out, so that others remain to judge by."""
        one = self.folds[:1]
        few = min(_PILOT_HELD_OUT, one.validation.shape[1] // 2)
        return Folds(one.train[:, :_PILOT_ROWS], one.validation[:, :few])

    @property
    def kl_weight(self) -> float:
        return float(self.settings.variational.kl_weight)

    @cached_property
    def features(self) -> Features:
        """Fitted to the rows to scale with or, where they see outcomes, to all rows, a fold at a time."""
        kind, options = FEATURES[self.task.options.predictor.features], self.task.options
        sample = self.task.sample if kind.sees_outcomes else self._scaling_rows
        return kind.fit(sample, fold_numbers(len(sample), options.seed))

    @property
    def _scaling_rows(self) -> Sample:
        return self.task.sample.rows(self.scaling)

    def target(self, kind: str) -> GibbsTarget:
        task = self.task
        predictor = build_predictor(kind, self._scaling_rows, task.options.predictor.layers(kind), self.features)
        family = FAMILIES[task.options.family]
        return make_target(task.problem, predictor, task.sample, family, self.settings.prior_scales[kind])


def make_plan(task: Task, members: int, settle: Callable[[Folds], Settings]) -> Plan:
    options: AutoOptions | ViOptions = task.options
    rows, generator = len(task.sample), torch.Generator().manual_seed(options.seed)
    scaling, judged = _set_aside(rows, generator) if options.certify else (torch.arange(rows), None)
    folds = make_folds(rows, members, generator)
    return Plan(task, generator, scaling, judged, folds, settle(folds))


def _set_aside(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A tenth of the rows, at least five, to scale predictors with; and the rest, to judge by."""
    shuffled = torch.randperm(rows, generator=generator)
    few = max(5, rows // 10)
    return shuffled[:few], shuffled[few:]
