"""What we would have decided: a posterior learned from what was known at the beginning of a split."""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.backtest.rules import Origin
from bco_core.inference.learn import learn
from bco_core.inference.options import LearningOptions
from bco_core.posterior import Posterior
from bco_core.prescribe import PrescribeOptions, decisions
from bco_core.problems.base import DecisionProblem
from bco_core.progress import Progress, no_progress, part_of

# Contexts are decided so many at a time that they meet about this many numbers.
_NUMBERS_AT_ONCE = 2_000_000


def learned_decisions(
    problem: DecisionProblem, origin: Origin, options: LearningOptions, progress: Progress = no_progress
) -> Tensor:
    """Decisions (m, d_z) for the judged rows of a split by a posterior learned from the known ones."""
    learned = learn(problem, origin.history, options, part_of(progress, 0.0, 0.9))
    asked = PrescribeOptions(policy=learned.diagnostics.policy)
    return decide_all(learned.posterior, problem, origin.contexts, asked, part_of(progress, 0.9, 1.0))


def decide_all(
    posterior: Posterior,
    problem: DecisionProblem,
    contexts: Tensor,
    options: PrescribeOptions,
    progress: Progress = no_progress,
) -> Tensor:
    """Decisions (m, d_z) for contexts (m, d_x), a few at a time."""
    found = []
    pieces = contexts.split(max(1, min(2_000, _NUMBERS_AT_ONCE // (options.scenarios * problem.outcome_dim))))
    for number, piece in enumerate(pieces):
        progress(number / len(pieces), "deciding")
        found.append(decisions(posterior, problem, piece, options))
    return torch.cat(found)
