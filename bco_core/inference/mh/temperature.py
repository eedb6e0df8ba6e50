"""How cold chains run: λn is the caller's, or found from short runs.

``settle``      the inverse temperature is raised until the traces of the decision loss settle (the paper's recipe,
                section 5.2).
``validation``  the cheapest on rows set aside, among those whose decisions keep their constraints often enough.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.data import make_folds
from bco_core.gibbs import GibbsTarget, perfect_cost
from bco_core.inference.mh.metropolis import MetropolisOptions, init_chains, run_chains
from bco_core.inference.mh.starts import ChainStarts, find_starts
from bco_core.inference.options import MhOptions
from bco_core.policies import decide
from bco_core.problems.base import UncertainConstraints
from bco_core.progress import Progress
from bco_core.scenarios import Scenarios

# λn of the scaled cost: each a factor four above the last.
LADDER = tuple(10.0 * 4.0**k for k in range(9))
PILOT = 600
_PILOT_DRAWS = 25
_DRIFT = 0.05


def find_temperature(
    target: GibbsTarget, plan: MetropolisOptions, starts: ChainStarts, options: MhOptions, progress: Progress
) -> np.ndarray[Any, Any]:
    """What was tried: rows of (λn, figure before, figure after, chosen).

    For ``settle`` the figures are the mean loss in the second and in the last quarter of a short run; for
    ``validation`` the cost and the feasibility on rows set aside.
    """
    given = options.inverse_temperature if options.kl_weight is None else 1 / options.kl_weight
    if given is not None:
        return np.array([[given, math.nan, math.nan, 1.0]])
    pilot = replace(plan, steps=PILOT, burn_in=PILOT - 1, kept=1)
    if options.temperature == "validation":
        return _by_validation(target, pilot, options, progress)
    tried: list[list[float]] = []
    theta, foresight = starts.theta, perfect_cost(target.problem, target.sample.outcomes) / target.cost_scale
    for number, level in enumerate(LADDER):
        progress(0.2 + 0.8 * number / len(LADDER), f"trying an inverse temperature of {level:g}")
        colder = replace(pilot, inverse_temperature=level)
        done = run_chains(target, colder, init_chains(target, colder, theta, options.seed))
        quarters = done.info.risks.chunk(4)
        before, after = quarters[1].mean().item(), quarters[3].mean().item()
        # Against what there is to lose, so that fixed costs and gains make no difference.
        settled = abs(after - before) <= _DRIFT * abs(before - foresight)
        tried.append([level, before * target.cost_scale, after * target.cost_scale, float(settled)])
        if settled:
            break
    tried[-1][-1] = 1.0
    return np.array(tried)


def _by_validation(
    target: GibbsTarget, pilot: MetropolisOptions, options: MhOptions, progress: Progress
) -> np.ndarray[Any, Any]:
    """Short runs on four fifths of the rows; the last fifth says how their decisions fare."""
    generator = torch.Generator().manual_seed(options.seed)
    folds = make_folds(len(target.sample), 1, generator)
    held_out, training = target.rows(folds.validation[0]), target.rows(folds.train[0])
    required = pilot.minimum_feasibility
    starts = find_starts(training, options.chains, required, generator)
    if required is not None:
        required = min(required, starts.feasibility.min().item())
        pilot = replace(pilot, keep_mean=bool(starts.keeps_mean.all()))
    tried = []
    for number, level in enumerate(LADDER[::2]):
        progress(0.2 + 0.8 * number / len(LADDER), f"trying an inverse temperature of {level:g}")
        colder = replace(
            pilot,
            inverse_temperature=level,
            minimum_feasibility=required,
            burn_in=PILOT // 2,
            kept=_PILOT_DRAWS,
        )
        done = run_chains(training, colder, init_chains(training, colder, starts.theta, options.seed))
        outcomes = held_out.sample.outcomes
        decisions = decide(target.problem, _scenarios(held_out, done.info.kept.flatten(0, 1)), "bcp").decisions
        cost = target.problem.cost(decisions, outcomes).mean().item()
        kept = target.problem.feasible(decisions, outcomes).double().mean().item()
        tried.append([level, cost, kept, 0.0])
    # The cheapest of those that keep their constraints often enough; else the one that keeps them most often.
    goal = target.problem.confidence if isinstance(target.problem, UncertainConstraints) else 0.0
    enough = min(goal, max(row[2] for row in tried))
    min((row for row in tried if row[2] >= enough), key=lambda row: row[1])[-1] = 1.0
    return np.array(tried)


def _scenarios(target: GibbsTarget, theta: Tensor) -> Scenarios:
    outcomes = target.predictor.predict_encoded(theta, target.encoded(theta.dtype)).transpose(0, 1)
    return Scenarios.equal(outcomes, outcomes.mean(dim=1))
