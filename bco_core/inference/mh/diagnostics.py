"""Diagnostics of chains: R-hat and effective sample sizes, leave-one-out decisions, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.estimates import Estimate, estimate
from bco_core.gibbs import GibbsTarget
from bco_core.inference.diagnostics import CLEAR, FEW_ROWS, Diagnostics, Quality, judge_held_out
from bco_core.inference.held_out import HeldOutReport
from bco_core.inference.mh.metropolis import Chains, MetropolisOptions
from bco_core.inference.mh.thinning import probe_predictions
from bco_core.policies import decide
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem, UncertainConstraints
from bco_core.scenarios import Scenarios
from bco_core.select import Table

_ATOMS = 50


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out scenarios of some rows, their mean predictions (H, d_y), and the smallest effective sample size of
    any row's weights."""

    scenarios: Scenarios
    predictions: Tensor
    effective: float


def leave_one_out(target: GibbsTarget, rows: Tensor, draws: Tensor, inverse_temperature: float) -> LeaveOneOut:
    """Predict rows (H,) of the sample from draws (K, d) of the posterior of all rows, each row without itself.

    The Gibbs posterior is a product over rows, ρ_n ∝ ρ_0 Π_i exp(−λ c_i(θ)) with λ = λn/n, so the one without row i
    has weights ∝ exp(λ c_i(θ_k)) on the draws θ_k. Weights are truncated at √K times their mean (Ionides, 2008), so
    that a few draws that fit a row badly do not dominate.
    """
    held_out, count = target.rows(rows), len(draws)
    predictions = target.predictor.predict_encoded(draws, held_out.encoded(draws.dtype))
    costs = target.problem.cost(target.problem.decide(predictions), held_out.sample.outcomes) / target.cost_scale
    weight = inverse_temperature / len(target.sample) * costs
    share = (weight - weight.amax(dim=0)).exp()
    share = share.minimum(math.sqrt(count) * share.mean(dim=0))
    share = (share / share.sum(dim=0)).T
    mean = torch.einsum("hk,khy->hy", share, predictions)
    places = (torch.arange(_ATOMS, dtype=torch.float64) + 0.5) / _ATOMS
    chosen = torch.searchsorted(share.cumsum(dim=1), places.expand(len(rows), -1).contiguous()).clamp_max(count - 1)
    atoms = predictions.transpose(0, 1).gather(1, chosen[..., None].expand(-1, -1, predictions.shape[2]))
    effective = (1 / share.square().sum(dim=1)).min().item()
    return LeaveOneOut(Scenarios.equal(atoms, mean), mean, effective)


# The threshold of Vehtari et al. (2021), and a weaker one up to which chains nearly agree.
R_HAT, WEAK_R_HAT = 1.01, 1.1
FEW_DRAWS = 400
_TRACE_POINTS = 200
_FEASIBILITY_ROOM = 0.01


@dataclass(frozen=True)
class Convergence:
    """The largest rank-normalised split R-hat and the smallest bulk and tail ESS of some quantities (Vehtari et al.,
    2021); None where they are undefined."""

    r_hat: float | None
    ess_bulk: float | None
    ess_tail: float | None


@dataclass(frozen=True)
class ChainReport:
    """Mixing of the chains; losses in the user's units."""

    count: int
    steps: int
    burn_in: int
    draws: int
    acceptance: list[float]
    loss: Convergence
    predictions: Convergence
    between_over_within: float
    mean_loss: list[float]
    trace: Table
    rejected_unseen: list[float]
    rejected_early: list[float]


@dataclass(frozen=True)
class PriorReport:
    family: str
    scale: float


@dataclass(frozen=True)
class StartReport:
    """The shift of each start's predictions, in standard deviations, and its feasibility after the shift."""

    shift: list[float]
    feasibility: list[float]


@dataclass(frozen=True)
class LearnedRowsReport:
    """Cost of decisions for the learned rows, and how often these satisfy their constraints."""

    rows: int
    cost: Estimate
    feasibility: float
    chain_feasibility: list[float]
    required_feasibility: float | None
    not_optimal: float


@dataclass(frozen=True, kw_only=True)
class ChainDiagnostics(Diagnostics):
    """Diagnostics of chains: mixing, temperatures tried, and decisions on the learned rows."""

    temperatures: Table
    chains: ChainReport
    prior: PriorReport
    start: StartReport
    history: LearnedRowsReport
    held_out_feasibility: float
    effective_draws: float


def report_chains(chains: Chains, plan: MetropolisOptions, target: GibbsTarget) -> ChainReport:
    """Report how well the chains mixed, by predictions and loss."""
    info, scale = chains.info, target.cost_scale
    sampled = info.risks[plan.burn_in :]
    steps, count, _ = info.draws.shape
    probes = probe_predictions(target.predictor, info.draws.flatten(0, 1), target.sample.contexts).view(
        steps, count, -1
    )
    between = probes.mean(dim=0).std(dim=0) if count > 1 else torch.zeros(probes.shape[2])
    within = probes.std(dim=0).mean(dim=0) if steps > 1 else torch.ones(probes.shape[2])
    picks = torch.linspace(0, len(info.risks) - 1, min(_TRACE_POINTS, len(info.risks))).long()
    return ChainReport(
        count=count,
        steps=plan.steps,
        burn_in=plan.burn_in,
        draws=steps * count,
        acceptance=info.accepted[plan.burn_in :].double().mean(dim=0).tolist(),
        loss=convergence(sampled.T.numpy()[:, :, None]),
        predictions=convergence(probes.transpose(0, 1).numpy()),
        between_over_within=(between / within.clamp_min(1e-12)).median().item(),
        mean_loss=(sampled.mean(dim=0) * scale).tolist(),
        trace=[{"step": int(step) + 1, "loss": (info.risks[step] * scale).tolist()} for step in picks],
        rejected_unseen=(info.unseen.double() / plan.steps).tolist(),
        rejected_early=(info.early.double() / plan.steps).tolist(),
    )


def report_learned_rows(
    target: GibbsTarget, plan: MetropolisOptions, chains: Chains, posterior: Posterior
) -> LearnedRowsReport:
    """Report BCP's decisions on the rows that the chains learned from."""
    sample, particles = target.sample, posterior.particles
    outcomes = target.predictor.predict_encoded(particles, target.encoded(particles.dtype)).transpose(0, 1)
    prescription = decide(target.problem, Scenarios.equal(outcomes, outcomes.mean(dim=1)), "bcp")
    return LearnedRowsReport(
        rows=len(sample),
        cost=estimate(target.problem.cost(prescription.decisions, sample.outcomes)),
        feasibility=target.problem.feasible(prescription.decisions, sample.outcomes).double().mean().item(),
        chain_feasibility=(1 - chains.state.failures.double() / len(sample)).tolist(),
        required_feasibility=plan.minimum_feasibility,
        not_optimal=sum(status != "optimal" for status in prescription.status) / len(prescription.status),
    )


def temperature_table(ladder: np.ndarray[Any, Any], how: str) -> Table:
    """Return the inverse temperatures tried, with their figures."""
    judged = ("loss_before", "loss_after") if how == "settle" else ("cost", "feasibility")
    names = ("inverse_temperature", *judged, "chosen")
    return [
        {name: None if math.isnan(value) else value for name, value in zip(names, row, strict=True)}
        for row in ladder.tolist()
    ]


def convergence(values: np.ndarray[Any, Any]) -> Convergence:
    """Return the convergence of quantities (chains, draws, quantities), by arviz-stats."""
    # The import takes seconds, and only chains need it.
    from arviz_stats.base import array_stats  # type: ignore[attr-defined]

    stats: Any = array_stats
    draws = values.shape[1]
    moving = values.std(axis=(0, 1)) > 0
    if draws < 8 or not moving.any():
        return Convergence(None, None, None)
    axes = {"chain_axis": 0, "draw_axis": 1}
    values = values[:, :, moving]
    bulk = stats.ess(values, method="bulk", **axes)
    tail = stats.ess(values, method="tail", prob=(0.05, 0.95), **axes)
    worst = stats.rhat(values, method="rank", **axes)
    worst_figures = (np.max(worst), np.min(bulk), np.min(tail))
    return Convergence(*(float(value) if np.isfinite(value) else None for value in worst_figures))


def judge_chains(
    rows: int,
    report: ChainReport,
    plan: MetropolisOptions,
    problem: DecisionProblem,
    held_out: HeldOutReport,
    feasibility: float,
) -> Quality:
    """Return the verdict; ``feasibility`` is the share of held-out rows that satisfy uncertain constraints."""
    required = problem.confidence if isinstance(problem, UncertainConstraints) else None
    if min(report.acceptance) == 0:
        return Quality("bad", "a chain did not move after burn-in: allow more steps, or a lower inverse temperature")
    if required is not None and plan.minimum_feasibility is not None and plan.minimum_feasibility < required:
        return Quality(
            "bad",
            f"no model was found whose decisions satisfy their constraints in {required:.0%} of the history; "
            f"the chains require only {plan.minimum_feasibility:.1%}",
        )
    if required is not None:
        room = CLEAR * math.sqrt(required * (1 - required) / held_out.rows) + _FEASIBILITY_ROOM
        if feasibility < required - room:
            return Quality(
                "warn",
                f"on held-out rows decisions satisfy their constraints in {feasibility:.1%}, and {required:.0%} is "
                "required",
            )
        doubt = None
    else:
        doubt = judge_held_out(rows, held_out)
    if doubt is not None and doubt.verdict == "bad":
        return doubt
    return (
        _judge_mixing(report)
        or doubt
        or _few(rows)
        or Quality("ok", "the chains agree, and held-out rows confirm them")
    )


def _judge_mixing(report: ChainReport) -> Quality | None:
    worst = max((figures.r_hat or math.inf) for figures in (report.loss, report.predictions))
    if worst > WEAK_R_HAT:
        return Quality(
            "warn",
            f"chains disagree: R-hat is {worst:.2f}, and predictions differ {report.between_over_within:.1f} times as "
            "much between chains as within one, so each chain has seen only its own part of the posterior; more steps "
            "or chains help",
        )
    few = min((figures.ess_bulk or 0.0) for figures in (report.loss, report.predictions))
    if worst > R_HAT or few < FEW_DRAWS:
        return Quality(
            "warn",
            f"chains nearly agree: R-hat is {worst:.3f} ({R_HAT} is advised) and the effective sample size is "
            f"{few:.0f} ({FEW_DRAWS} is advised), enough for mean predictions but hardly for their tails; more steps "
            "help",
        )
    return None


def _few(rows: int) -> Quality | None:
    if rows >= FEW_ROWS:
        return None
    return Quality("warn", f"only {rows} rows of history: decisions may change much with a little more data")
