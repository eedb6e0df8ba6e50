"""Choice of the chains' inverse temperature λn: given by the caller, or found by short pilot runs.

``settle``      raise λn until the traces of the decision loss settle (the paper's procedure, section 5.2).
``validation``  take the λn of least cost on rows set aside, among those whose decisions satisfy constraints often
                enough.
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

# λn of the scaled cost: each four times the one before.
LADDER = tuple(10.0 * 4.0**k for k in range(9))
PILOT = 600
_PILOT_DRAWS = 25
_DRIFT = 0.05


def find_temperature(
    target: GibbsTarget, plan: MetropolisOptions, starts: ChainStarts, options: MhOptions, progress: Progress
) -> np.ndarray[Any, Any]:
    """Return the temperatures tried, as rows of (λn, first figure, second figure, chosen).

    For ``settle`` the figures are the mean losses of the second and the last quarter of a short run; for ``validation``
    the cost and the feasibility on rows set aside.
    """
    level = options.inverse_temperature if options.kl_weight is None else 1 / options.kl_weight
    if level is not None:
        return np.array([[level, math.nan, math.nan, 1.0]])
    pilot = replace(plan, steps=PILOT, burn_in=PILOT - 1, stored_draws=1)
    if options.temperature == "validation":
        return _by_validation(target, pilot, options, progress)
    tried: list[list[float]] = []
    theta, foresight = starts.theta, perfect_cost(target.problem, target.sample.outcomes) / target.cost_scale
    for number, level in enumerate(LADDER):
        progress(0.2 + 0.8 * number / len(LADDER), f"trying an inverse temperature of {level:g}")
        colder = replace(pilot, inverse_temperature=level)
        chains = run_chains(target, colder, init_chains(target, colder, theta, options.seed))
        quarters = chains.info.risks.chunk(4)
        before, after = quarters[1].mean().item(), quarters[3].mean().item()
        # Relative to the possible gain, so that fixed costs do not matter.
        settled = abs(after - before) <= _DRIFT * abs(before - foresight)
        tried.append([level, before * target.cost_scale, after * target.cost_scale, float(settled)])
        if settled:
            break
    tried[-1][-1] = 1.0
    return np.array(tried)


def _by_validation(
    target: GibbsTarget, pilot: MetropolisOptions, options: MhOptions, progress: Progress
) -> np.ndarray[Any, Any]:
    """Run short chains on four fifths of the rows and judge their decisions on the last fifth."""
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
            stored_draws=_PILOT_DRAWS,
        )
        chains = run_chains(training, colder, init_chains(training, colder, starts.theta, options.seed))
        outcomes = held_out.sample.outcomes
        decisions = decide(target.problem, _scenarios(held_out, chains.info.draws.flatten(0, 1)), "bcp").decisions
        cost = target.problem.cost(decisions, outcomes).mean().item()
        feasibility = target.problem.feasible(decisions, outcomes).double().mean().item()
        tried.append([level, cost, feasibility, 0.0])
    # The cheapest of those that satisfy constraints often enough; else the one that satisfies them most often.
    goal = target.problem.confidence if isinstance(target.problem, UncertainConstraints) else 0.0
    enough = min(goal, max(row[2] for row in tried))
    min((row for row in tried if row[2] >= enough), key=lambda row: row[1])[-1] = 1.0
    return np.array(tried)


def _scenarios(target: GibbsTarget, theta: Tensor) -> Scenarios:
    outcomes = target.predictor.predict_encoded(theta, target.encoded(theta.dtype)).transpose(0, 1)
    return Scenarios.equal(outcomes, outcomes.mean(dim=1))
