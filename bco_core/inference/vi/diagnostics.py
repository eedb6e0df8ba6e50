"""What held-out rows say of a mixture, how far its members agree, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.calibration import Calibration, calibrate
from bco_core.distributions import Mixture
from bco_core.evaluation import Estimate, estimate, paired_difference
from bco_core.gibbs import GibbsTarget
from bco_core.inference.diagnostics import FEW_ROWS, Diagnostics, Quality, constant_costs, regression_costs
from bco_core.inference.vi.judgement import Judged, Kept, promised_costs
from bco_core.inference.vi.variational import TracePoint, VariationalFit
from bco_core.select import Table

# A paired difference is clear beyond so many standard errors.
CLEAR = 2.0
_ORDERED = 0.25
_DISAGREEMENT = 0.5
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


@dataclass(frozen=True)
class Promise:
    """What decisions were expected to cost on held-out rows beside what they did; ``ratio`` is the one over the other,
    with its standard error."""

    expected: Estimate
    realised: Estimate
    ratio: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class VariationalDiagnostics(Diagnostics):
    """Held-out costs of every policy beside the best constant decision's, and how learning went."""

    held_out_rows: int
    held_out_cost: dict[str, Estimate]
    judged_cost: Estimate
    constant_decision_cost: Estimate
    gain_over_constant: Estimate
    regression_cost: Estimate | None
    gain_over_regression: Estimate | None
    promise: Promise
    calibration: Calibration
    carriers: Table
    order: float
    members: Agreement
    policies: Table
    network_share: float | None
    shares: Table
    best_epochs: list[list[int]]
    stopped_early: bool
    trace: list[TracePoint]


def diagnose(
    target: GibbsTarget,
    judged: Judged,
    kept: Kept,
    mixture: Mixture,
    fits: list[VariationalFit],
    kl_weight: float,
    **told: Any,
) -> VariationalDiagnostics:
    """Judge a mixture by what its decisions cost on held-out rows; ``told`` is handed on as it is."""
    problem, sample = target.problem, target.sample.rows(judged.rows)
    constant = constant_costs(problem, sample.outcomes)
    regression = regression_costs(problem, sample)
    gain = paired_difference(judged.recommended_costs, constant)
    beside = None if regression is None else paired_difference(judged.recommended_costs, regression)
    found = Findings(
        rows=len(target.sample),
        gain=gain,
        beside_regression=beside,
        converged=all(all(fit.stopped_early) for fit in fits),
        promise=_promise(promised_costs(target, judged), judged.recommended_costs),
        calibration=calibrate(kept.history, target.features[kept.rows]),
        order=_autocorrelation(kept),
        agreement=agreement(target, mixture),
        stopped_by_judged=len(fits[0].mixture.loc) == 1,
    )
    quality = judge(found)
    return VariationalDiagnostics(
        quality=quality.verdict,
        reason=quality.reason,
        policy=judged.recommended,
        kl_weight=kl_weight,
        inverse_temperature=1 / kl_weight,
        cost_scale=target.cost_scale,
        held_out_rows=len(judged.rows),
        held_out_cost={name: estimate(values) for name, values in judged.costs.items()},
        judged_cost=estimate(judged.recommended_costs),
        constant_decision_cost=estimate(constant),
        gain_over_constant=gain,
        regression_cost=None if regression is None else estimate(regression),
        gain_over_regression=beside,
        promise=found.promise,
        calibration=found.calibration,
        order=found.order,
        members=found.agreement,
        best_epochs=[fit.best_epochs for fit in fits],
        stopped_early=found.converged,
        trace=fits[-1].trace,
        **told,
    )


def _promise(expected: Tensor, realised: Tensor) -> Promise:
    """The ratio of two means over the same rows, with the delta method's standard error."""
    said, done = expected.mean(), realised.mean()
    ratio = (said / done).item() if done != 0 else math.nan
    error = (
        ((expected - ratio * realised).std() / done.abs() / math.sqrt(len(realised))).item() if done != 0 else math.nan
    )
    return Promise(estimate(expected), estimate(realised), ratio, error)


def _autocorrelation(kept: Kept) -> float:
    """The correlation of residuals with those of the row before, in the order of the rows; the largest by outcome."""
    order = kept.rows.argsort()
    residuals = (kept.history.outcomes - kept.history.predictions)[order]
    following = kept.rows[order].diff() == 1
    if following.sum() < 30:
        return 0.0
    centred = residuals - residuals.mean(dim=0)
    lagged = (centred[1:] * centred[:-1])[following].mean(dim=0)
    found: float = (lagged / centred.square().mean(dim=0).clamp_min(1e-300)).max().item()
    return found


@dataclass(frozen=True)
class Findings:
    """What a verdict rests on."""

    rows: int
    gain: Estimate
    beside_regression: Estimate | None
    converged: bool
    promise: Promise
    calibration: Calibration
    order: float
    agreement: Agreement
    stopped_by_judged: bool


def judge(found: Findings) -> Quality:
    """The verdict, worst news first. Differences are of paired costs, and negative is better."""
    gain, beside = found.gain, found.beside_regression
    if gain.mean > gain.standard_error:
        return Quality("bad", "on held-out rows these decisions cost more than one constant decision for all contexts")
    if found.rows < FEW_ROWS:
        return Quality("warn", f"only {found.rows} rows of history: decisions may change much with a little more data")
    if gain.mean >= -CLEAR * gain.standard_error:
        return Quality("warn", "on held-out rows these decisions are no clear gain over one constant decision")
    if beside is not None and beside.mean > CLEAR * beside.standard_error:
        return Quality(
            "warn", "on held-out rows plain regression with its residuals decides better: ask for other predictors"
        )
    if found.stopped_by_judged:
        return Quality(
            "warn", "one member is stopped and judged by the same rows, which flatters it; ask for five or more"
        )
    if found.order > _ORDERED:
        return Quality(
            "warn",
            f"errors of neighbouring rows go together (correlation {found.order:.2f}): these rows look ordered in "
            "time, and what they promise may not hold later; judge forward",
        )
    said = calibration_warning(found.calibration, found.promise)
    if said:
        return Quality("warn", said)
    if found.agreement.disagreement > _DISAGREEMENT:
        return Quality("warn", "members disagree widely: more rows, or a simpler predictor, would settle it")
    if not found.converged:
        return Quality("warn", "learning reached its epoch limit while still improving; allow more epochs")
    return Quality("ok", "decisions clearly beat the best constant decision on held-out rows, and their promises held")


def calibration_warning(calibration: Calibration, promise: Promise) -> str:
    """What is wrong with the promises, in a sentence; nothing if they held."""
    covered, rows = calibration.coverage["0.9"], calibration.rows
    room = 0.04 + 2 * math.sqrt(0.09 / max(rows, 1))
    if abs(covered - 0.9) > room:
        return f"promised ranges are off: the 90 % range of an outcome held {covered:.0%} of the held-out ones"
    if abs(promise.ratio - 1) > 0.15 + 2 * promise.standard_error:
        return (
            f"promised costs are off: on held-out rows they were {promise.ratio:.2f} times what decisions really cost"
        )
    return ""


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
