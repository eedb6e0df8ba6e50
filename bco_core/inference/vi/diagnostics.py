"""What held-out rows say of a mixture, how far its members agree, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.distributions import Mixture
from bco_core.evaluation import Estimate, estimate, paired_difference
from bco_core.gibbs import GibbsTarget
from bco_core.inference.diagnostics import FEW_ROWS, Diagnostics, Quality, Table, constant_costs
from bco_core.inference.vi.out_of_fold import OutOfFold
from bco_core.inference.vi.variational import TracePoint, VariationalFit

_AGREEMENT_CONTEXTS = 200
_AGREEMENT_DRAWS = 16


@dataclass(frozen=True)
class Agreement:
    """How much the members' predictions differ.

    ``r_hat`` compares the spread between members with the spread of draws within one, as for chains of a sampler; the
    median over contexts and outcomes. Members learn from different rows, so it need not be near one: it says how much
    of the posterior's spread comes from having several members. ``disagreement`` is the spread between members in units
    of the outcomes' own. ``effective`` is the number of equally weighted members that carry the same weight.
    """

    count: int
    effective: float
    r_hat: float | None
    disagreement: float
    moved_from_prior: float


@dataclass(frozen=True, kw_only=True)
class VariationalDiagnostics(Diagnostics):
    """Held-out costs of every policy beside the best constant decision's, and how learning went."""

    held_out_rows: int
    held_out_cost: dict[str, Estimate]
    constant_decision_cost: Estimate
    gain_over_constant: Estimate
    members: Agreement
    policies: Table
    network_share: float | None
    shares: Table
    best_epochs: list[list[int]]
    stopped_early: bool
    trace: list[TracePoint]


def diagnose(
    target: GibbsTarget,
    seen: OutOfFold,
    costs: dict[str, Tensor],
    mixture: Mixture,
    fits: list[VariationalFit],
    policy: str,
    kl_weight: float,
    **told: Any,
) -> VariationalDiagnostics:
    """Judge a mixture by the held-out cost (m,) of each policy; ``told`` is handed on as it is."""
    constant = constant_costs(target.problem, target.sample.outcomes[seen.rows])
    gain = paired_difference(costs[policy], constant)
    converged = all(all(fit.stopped_early) for fit in fits)
    quality = judge(len(target.sample), gain, converged)
    return VariationalDiagnostics(
        quality=quality.verdict,
        reason=quality.reason,
        policy=policy,
        kl_weight=kl_weight,
        inverse_temperature=1 / kl_weight,
        cost_scale=target.cost_scale,
        held_out_rows=len(seen.rows),
        held_out_cost={name: estimate(values) for name, values in costs.items()},
        constant_decision_cost=estimate(constant),
        gain_over_constant=gain,
        members=agreement(target, mixture),
        best_epochs=[fit.best_epochs for fit in fits],
        stopped_early=converged,
        trace=fits[-1].trace,
        **told,
    )


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


def agreement(target: GibbsTarget, mixture: Mixture) -> Agreement:
    """How far members agree, on up to 200 contexts of the history."""
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
    return Agreement(
        count=len(loc),
        effective=(weights.sum() ** 2 / weights.square().sum()).item(),
        r_hat=r_hat.median().item() if len(loc) > 1 else None,
        disagreement=between.sqrt().median().item(),
        moved_from_prior=((distance * weights).sum() / weights.sum()).item(),
    )
