"""What held-out rows say of a posterior, and a verdict a planner can act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.data import FOLDS
from bco_core.evaluation import Estimate, estimate, paired_difference
from bco_core.families import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.mixture import OutOfFold
from bco_core.policies import POLICIES
from bco_core.problems.base import DecisionProblem
from bco_core.problems.constant import best_constant

FEW_ROWS = 50
_AGREEMENT_CONTEXTS = 200
_AGREEMENT_DRAWS = 16


@dataclass(frozen=True)
class Quality:
    """``ok``, ``warn`` or ``bad``, with the reason in a sentence."""

    verdict: str
    reason: str


def held_out_costs(target: GibbsTarget, seen: OutOfFold, generator: torch.Generator) -> dict[str, Tensor]:
    """Cost (m,) of every policy on the rows of ``seen``, in the user's units."""
    outcomes = target.sample.outcomes[seen.rows]
    return {
        name: target.problem.cost(policy(target.problem, seen.scenarios, generator).decisions, outcomes)
        for name, policy in POLICIES.items()
    }


def diagnose(
    target: GibbsTarget, seen: OutOfFold, costs: dict[str, Tensor], policy: str, mixture: Mixture, converged: bool
) -> dict[str, Any]:
    """Held-out costs beside the best constant decision's, how far members agree, and the verdict."""
    outcomes = target.sample.outcomes
    constant = constant_costs(target.problem, outcomes[seen.rows])
    gain = paired_difference(costs[policy], constant)
    quality = judge(len(target.sample), gain, converged)
    return {
        "quality": quality.verdict,
        "reason": quality.reason,
        "held_out_rows": len(seen.rows),
        "held_out_cost": {name: asdict(estimate(values)) for name, values in costs.items()},
        "constant_decision_cost": asdict(estimate(constant)),
        "gain_over_constant": asdict(gain),
        "members": agreement(target, mixture),
    }


def constant_costs(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """Cost (m,) of the best constant decision on each row, found without that row's fifth, as ours are."""
    order = torch.randperm(len(outcomes), generator=torch.Generator().manual_seed(0))
    costs = torch.empty(len(outcomes), dtype=outcomes.dtype)
    for fold in order.chunk(FOLDS):
        others = torch.ones(len(outcomes), dtype=torch.bool)
        others[fold] = False
        decision = best_constant(problem, outcomes[others] if others.any() else outcomes).decisions
        costs[fold] = problem.cost(decision, outcomes[fold])
    return costs


def judge(rows: int, gain: Estimate, converged: bool) -> Quality:
    """Turn the paired difference to the best constant decision (negative is better) into a verdict."""
    if gain.mean > gain.standard_error:
        return Quality("bad", "on held-out rows these decisions cost more than one constant decision for all contexts")
    if rows < FEW_ROWS:
        return Quality("warn", f"only {rows} rows of history: decisions may change much with a little more data")
    if gain.mean >= -gain.standard_error:
        return Quality("warn", "on held-out rows these decisions are no clear gain over one constant decision")
    if not converged:
        return Quality("warn", "learning reached its epoch limit while still improving; allow more epochs")
    return Quality("ok", "decisions beat the best constant decision on held-out rows, and learning converged")


def agreement(target: GibbsTarget, mixture: Mixture) -> dict[str, Any]:
    """How much the members' predictions differ, on up to 200 contexts of the history.

    ``r_hat`` compares the spread between members with the spread of draws within one, as for chains of a sampler; the
    median over contexts and outcomes. Members learn from different rows, so it need not be near one: it says how much
    of the posterior's spread comes from having several members. ``disagreement`` is the spread between members in units
    of the outcomes' own. ``effective`` is the number of equally weighted members that carry the same weight.
    """
    used = mixture.weights > 0
    loc, scale, weights = mixture.loc[used], mixture.scale[used], mixture.weights[used].double()
    generator = torch.Generator().manual_seed(0)
    picks = torch.randperm(len(target.sample), generator=generator)[:_AGREEMENT_CONTEXTS]
    noise = mixture.family.noise((len(loc), _AGREEMENT_DRAWS, loc.shape[1]), generator, loc.dtype)
    theta = (loc[:, None] + scale[:, None] * noise).flatten(0, 1)
    drawn = target.predictor.predict(theta, target.sample.contexts[picks]) / target.predictor.outcomes.scale
    drawn = drawn.view(len(loc), _AGREEMENT_DRAWS, len(picks), -1)
    within = drawn.var(dim=1).mean(dim=0)
    between = drawn.mean(dim=1).var(dim=0) if len(loc) > 1 else torch.zeros_like(within)
    r_hat = ((within * (1 - 1 / _AGREEMENT_DRAWS) + between) / within.clamp_min(1e-300)).sqrt()
    distance = (loc.abs() / target.prior_scale).mean(dim=1)
    return {
        "count": len(loc),
        "effective": (weights.sum() ** 2 / weights.square().sum()).item(),
        "r_hat": r_hat.median().item() if len(loc) > 1 else None,
        "disagreement": between.sqrt().median().item(),
        "moved_from_prior": ((distance * weights).sum() / weights.sum()).item(),
    }
