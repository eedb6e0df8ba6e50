"""Stands in for the core's Learning until that lands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bco_core.data import Sample
from bco_core.inference.chains import DRAWS
from bco_core.inference.learn import LearningOptions, _inference, _plan, continue_part, learn
from bco_core.inference.mixture import members_for
from bco_core.inference.training import Progress
from bco_core.posterior import Arrays, Posterior
from bco_core.problems.base import DecisionProblem


class Part(NamedTuple):
    work: int
    data: Arrays


@dataclass(frozen=True)
class Diagnostics:
    found: dict[str, Any]

    @property
    def policy(self) -> str:
        return str(self.found["policy"])

    def to_json(self) -> dict[str, Any]:
        return self.found


@dataclass(frozen=True)
class Learned:
    posterior: Posterior
    diagnostics: Diagnostics


class _CutError(Exception):
    pass


@dataclass(frozen=True)
class Learning:
    problem: DecisionProblem
    sample: Sample
    options: LearningOptions

    @staticmethod
    def of(problem: DecisionProblem, sample: Sample, options: LearningOptions) -> Learning:
        return Learning(problem, sample, options)

    def split(self, progress: Progress) -> list[Part]:
        relaxed = self.problem.relaxation
        inference, _ = _inference(relaxed, self.options)
        if inference != "mh" and not _plan(relaxed, self.sample, self.options).dealt:
            return []
        found: list[Part] = []

        def deal(make: Callable[[], list[tuple[int, Arrays]]], _: Progress) -> list[Arrays]:
            found.extend(Part(*part) for part in make())
            raise _CutError

        try:
            learn(self.problem, self.sample, self.options, progress, deal)
        except _CutError:
            return found
        raise AssertionError

    def work(self, data: Arrays, progress: Progress, checkpoint: Callable[[Arrays], None]) -> Arrays:
        return continue_part(self.problem, self.sample, self.options, data, progress, checkpoint)

    def join(self, results: Sequence[Arrays], progress: Progress) -> Learned:
        deal = None if not results else (lambda _make, _progress: list(results))
        posterior, diagnostics = learn(self.problem, self.sample, self.options, progress, deal)
        return Learned(posterior, Diagnostics(diagnostics))


def effort(problem: DecisionProblem, options: LearningOptions, rows: int, columns: int) -> float:
    if options.method == "mh" or not problem.differentiable:
        return float(rows * columns * options.chains * options.steps)
    return float(rows * columns * options.epochs)


def stored_vectors(problem: DecisionProblem, options: LearningOptions, rows: int) -> int:
    if options.method == "mh" or not problem.differentiable:
        return max(DRAWS, options.particles)
    return 2 * (options.members or members_for(rows))
