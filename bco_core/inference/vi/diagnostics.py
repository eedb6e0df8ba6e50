"""Diagnostics of a mixture: costs on held-out rows, agreement of its members, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.diagnostics import Diagnostics, Quality, held_out_fields, judge_held_out
from bco_core.inference.held_out import HeldOutReport
from bco_core.inference.vi.variational import TracePoint, VariationalFit
from bco_core.problems.surrogate import loss_of
from bco_core.select import Table

_DISAGREEMENT = 0.5
_AGREEMENT_CONTEXTS = 200
_AGREEMENT_DRAWS = 16


@dataclass(frozen=True)
class Agreement:
    """Agreement of the members' predictions.

    ``r_hat`` compares the spread between members with the spread of draws within one, as for chains of a sampler, as a
    median over contexts and outcomes. Members learn from different rows, so it need not be near one: it shows how much
    of the posterior's spread comes from having several members. ``disagreement`` is the spread between members in units
    of the outcomes' spread. ``effective`` is the effective number of members, by their weights.
    """

    count: int
    effective: float
    r_hat: float | None
    disagreement: float
    moved_from_prior: float


@dataclass(frozen=True, kw_only=True)
class VariationalDiagnostics(Diagnostics):
    """Diagnostics of a mixture: agreement of its members and the course of learning."""

    members: Agreement
    network_share: float | None
    shares: Table
    boosted_share: float | None
    best_epochs: list[list[int]]
    stopped_early: bool
    trace: list[TracePoint]


def diagnose(
    target: GibbsTarget,
    held_out: HeldOutReport,
    mixture: Mixture,
    fits: list[VariationalFit],
    kl_weight: float,
    **fields: Any,
) -> VariationalDiagnostics:
    """Diagnose a mixture by the cost of its decisions on held-out rows; ``fields`` are passed on unchanged."""
    members, converged = agreement(target, mixture), all(all(fit.stopped_early) for fit in fits)
    quality = judge_held_out(len(target.sample), held_out) or _judge(members, converged, len(fits[0].mixture.loc) == 1)
    return VariationalDiagnostics(
        quality=quality.verdict,
        reason=quality.reason,
        kl_weight=kl_weight,
        inverse_temperature=1 / kl_weight,
        cost_scale=target.cost_scale,
        loss=loss_of(target.problem),
        members=members,
        best_epochs=[fit.best_epochs for fit in fits],
        stopped_early=converged,
        trace=fits[-1].trace,
        **held_out_fields(held_out),
        **fields,
    )


def _judge(members: Agreement, converged: bool, alone: bool) -> Quality:
    if alone:
        return Quality("warn", "the same rows chose the stopping time and the quality; learn five or more members")
    if members.disagreement > _DISAGREEMENT:
        return Quality("warn", "members disagree widely: more rows or a simpler predictor would help")
    if not converged:
        return Quality("warn", "learning reached its epoch limit while still improving; allow more epochs")
    return Quality("ok", "decisions clearly beat the best constant decision on held-out rows, and promises held there")


def agreement(target: GibbsTarget, mixture: Mixture) -> Agreement:
    """Return the agreement of members on up to 200 contexts of the history."""
    used = mixture.weights > 0
    loc, weights = mixture.loc[used], mixture.weights[used].double()
    generator = torch.Generator().manual_seed(0)
    picks = torch.randperm(len(target.sample), generator=generator)[:_AGREEMENT_CONTEXTS]
    noise = mixture.family.noise((len(loc), _AGREEMENT_DRAWS, loc.shape[1]), generator, loc.dtype)
    theta = mixture.around(used.nonzero().flatten().repeat_interleave(_AGREEMENT_DRAWS), noise.flatten(0, 1))
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
