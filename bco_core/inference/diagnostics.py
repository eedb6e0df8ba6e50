"""What held-out rows say of a posterior, and a verdict a planner can act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.baselines.saa import best_constant
from bco_core.data import Folds
from bco_core.evaluation import Estimate, estimate, paired_difference
from bco_core.gibbs import GibbsTarget
from bco_core.inference.variational import VariationalFit, member_scenarios
from bco_core.policies import POLICIES

VALIDATION_DRAWS = 64
FEW_ROWS = 50


@dataclass(frozen=True)
class Quality:
    """``ok``, ``warn`` or ``bad``, with the reason in a sentence."""

    verdict: str
    reason: str


def diagnose(
    target: GibbsTarget, folds: Folds, fit: VariationalFit, policy: str, generator: torch.Generator
) -> dict[str, Any]:
    """Held-out cost of every policy beside the best constant decision's, the learning trace, and the verdict."""
    costs = _held_out_costs(target, folds, fit, generator)
    constant = costs.pop("constant")
    gain = paired_difference(costs[policy], constant)
    quality = judge(len(target.sample), gain, all(fit.stopped_early))
    return {
        "quality": quality.verdict,
        "reason": quality.reason,
        "held_out_rows": len(constant),
        "held_out_cost": {name: asdict(estimate(values)) for name, values in costs.items()},
        "constant_decision_cost": asdict(estimate(constant)),
        "gain_over_constant": asdict(gain),
        "best_epochs": fit.best_epochs,
        "stopped_early": fit.stopped_early,
        "trace": [asdict(point) for point in fit.trace],
    }


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


def _held_out_costs(
    target: GibbsTarget, folds: Folds, fit: VariationalFit, generator: torch.Generator
) -> dict[str, Tensor]:
    """Cost of each policy on each held-out row, in the user's units, averaged over the members that held it out."""
    mixture = fit.mixture
    encoded = target.predictor.encode(target.sample.contexts, mixture.loc.dtype)
    noise = mixture.family.noise(
        (len(mixture.loc), VALIDATION_DRAWS, mixture.loc.shape[1]), generator, mixture.loc.dtype
    )
    scenarios = member_scenarios(target, folds.validation, encoded, mixture.loc, mixture.scale, noise)
    rows, place, times = folds.validation.flatten().unique(return_inverse=True, return_counts=True)
    outcomes = target.sample.outcomes

    def by_row(costs: Tensor) -> Tensor:
        averaged: Tensor = torch.zeros(len(rows), dtype=costs.dtype).index_add_(0, place, costs) / times
        return averaged

    held_out = outcomes[folds.validation.flatten()]
    costs = {
        name: by_row(target.problem.cost(policy(target.problem, scenarios, generator).decisions, held_out))
        for name, policy in POLICIES.items()
    }
    constant = best_constant(target.problem, outcomes).decisions
    return costs | {"constant": target.problem.cost(constant, outcomes[rows])}
