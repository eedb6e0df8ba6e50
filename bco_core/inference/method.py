"""The protocol of inference methods: split → work → join.

``split`` divides the work into parts that may be computed anywhere, in any order; ``work`` computes one part; ``join``
makes the posterior from their results. Where one process alone is faster, ``split`` returns no parts and ``join`` does
everything. Everything that parts share is derived from the task: its rows, its options and its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bco_core.data import Arrays, Sample
from bco_core.inference.diagnostics import Diagnostics
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem
from bco_core.progress import Progress

# Receives, now and then, the state from which a part can resume.
Checkpoint = Callable[[Arrays], None]


class Part(NamedTuple):
    """One part: its amount of work, comparable between parts, and its input arrays."""

    work: int
    data: Arrays


@dataclass(frozen=True)
class Task:
    """The learning task; ``options`` are those of the method."""

    problem: DecisionProblem
    sample: Sample
    options: Any


@dataclass(frozen=True)
class Learned:
    """The result of learning: the posterior and its diagnostics."""

    posterior: Posterior
    diagnostics: Diagnostics


@dataclass(frozen=True)
class Method:
    """One inference method. ``inference`` is ``vi`` or ``mh``; ``reason`` says why the method is used.

    ``vectors(options, rows)`` is the number of parameter vectors that its posterior stores besides the particles;
    ``passes(options, rows)`` the number of evaluations of every row that learning needs.
    """

    name: str
    inference: str
    reason: str
    needs_gradient: bool
    split: Callable[[Task, Progress], list[Part]]
    work: Callable[[Task, Arrays, Progress, Checkpoint | None], Arrays]
    join: Callable[[Task, Sequence[Arrays], Progress], Learned]
    vectors: Callable[[Any, int], int]
    passes: Callable[[Any, int], float]
