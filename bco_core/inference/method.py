"""The shape that every inference method has: split → work → join.

``split`` cuts what there is to do into parts that may be computed anywhere, in any order; ``work`` computes one;
``join`` makes the posterior of what became of them. Where one process is sooner done alone, ``split`` gives no parts
and ``join`` does everything. What all of them agree on follows from the task: its rows, its options and its seed.
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

# Sees, now and then, a part to go on from.
Checkpoint = Callable[[Arrays], None]


class Part(NamedTuple):
    """A piece of work: its amount, comparable with that of the other parts, and what there is to do."""

    work: int
    data: Arrays


@dataclass(frozen=True)
class Task:
    """What there is to learn: ``options`` are those of the method."""

    problem: DecisionProblem
    sample: Sample
    options: Any


@dataclass(frozen=True)
class Learned:
    """What learning hands over."""

    posterior: Posterior
    diagnostics: Diagnostics


@dataclass(frozen=True)
class Method:
    """One inference method. ``inference`` is what it comes to, ``vi`` or ``mh``; ``reason`` says why it was used.

    ``vectors`` (options, rows) counts the parameter vectors that its posterior stores besides the particles; ``passes``
    (options, rows) the evaluations of every row that learning takes.
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
