"""From a learned mixture to the posterior: diagnose on held-out rows, certify, draw particles, store a history."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bco_core.certificates import ModelClass, certify
from bco_core.data import FOLDS
from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.held_out import HISTORY_ROWS, PolicyResults, StoredHistory, autocorrelation, summarize
from bco_core.inference.method import Learned
from bco_core.inference.vi.cross_validation import OutOfFoldView
from bco_core.inference.vi.diagnostics import diagnose
from bco_core.inference.vi.plan import MixturePlan
from bco_core.inference.vi.variational import VariationalFit
from bco_core.posterior import Posterior
from bco_core.predictive_choice import choose_carrier
from bco_core.select import Table

CONFIDENCE = 0.95
# Squared errors shrink at most to a quarter, whatever the members' spread suggests.
_LEAST_GAIN = 0.25


@dataclass(frozen=True)
class Candidate:
    """A mixture in its predictor's space, its out-of-fold view ``out_of_fold``, and the tables of its selection.

    ``share`` is the weight of the network where two kinds of predictor were mixed, and ``shares`` the cost at each
    share; ``boosted_share`` is the weight of residual models of a boosted rule.
    """

    target: GibbsTarget
    mixture: Mixture
    classes: list[ModelClass]
    out_of_fold: OutOfFoldView
    fits: list[VariationalFit]
    kl_weight: float
    candidates: Table = field(default_factory=list)
    share: float | None = None
    shares: Table = field(default_factory=list)
    boosted_share: float | None = None


def make_posterior(
    plan: MixturePlan, candidate: Candidate, stored: StoredHistory, policy_results: PolicyResults
) -> Learned:
    """Return the posterior and its diagnostics on held-out rows."""
    options = plan.task.options
    diagnostics = diagnose(
        candidate.target,
        summarize(candidate.target, stored, policy_results, forward=plan.forward is not None),
        candidate.mixture,
        candidate.fits,
        candidate.kl_weight,
        policy=policy_results.policy,
        candidates=candidate.candidates,
        network_share=candidate.share,
        boosted_share=candidate.boosted_share,
        shares=candidate.shares,
        certificate=certify(candidate.classes, plan.judged, CONFIDENCE, options.particles, plan.generator),
    )
    particles = candidate.mixture.sample(options.particles, torch.Generator().manual_seed(options.seed))
    posterior = Posterior(candidate.target.predictor, candidate.mixture, particles, options.seed, stored.history)
    return Learned(posterior, diagnostics)


def keep_history(plan: MixturePlan, candidate: Candidate) -> StoredHistory:
    """Return out-of-fold predictions and outcomes of up to 1,000 rows, with the carrier that scores best on them."""
    target, rows = candidate.target, candidate.out_of_fold.rows
    order = autocorrelation(target.sample.outcomes[rows] - candidate.out_of_fold.scenarios.mean(), rows)
    rows = rows[torch.randperm(len(rows), generator=plan.generator)[:HISTORY_ROWS]]
    predictions, outcomes = candidate.out_of_fold.at(rows).scenarios.mean(), target.sample.outcomes[rows]
    shrink = _averaging_gain(plan, candidate, rows, outcomes - predictions)
    spread, features = target.predictor.outcomes.scale, target.features[rows]
    periods = None if plan.forward is None or target.sample.timeline is None else target.sample.timeline.periods[rows]
    choice = choose_carrier(predictions, outcomes, spread, features, shrink, target.problem, periods)
    return StoredHistory(choice.history, rows[choice.order], choice.table, order)


def _averaging_gain(plan: MixturePlan, candidate: Candidate, rows: Tensor, residuals: Tensor) -> Tensor:
    """Return the factor (d_y,) on errors (H, d_y) when all members predict instead of the few that held a row out.

    Members of a model class differ by a variance V, which averaging m of them divides by m.
    """
    if plan.forward is not None:
        # The members that predicted knew a shorter past, which averaging does not make up for.
        return torch.ones(residuals.shape[1], dtype=torch.float64)
    partitions = max(1, len(plan.folds.train) // FOLDS)
    removed = torch.zeros(residuals.shape[1], dtype=torch.float64)
    for part in candidate.classes:
        members = len(part.mixture.loc)
        if part.weight == 0 or members <= partitions:
            continue
        encoded = part.target.encoded(part.mixture.loc.dtype)[rows]
        between = part.target.predictor.predict_encoded(part.mixture.loc, encoded).var(dim=0).mean(dim=0)
        removed += part.weight**2 * between * (1 / partitions - 1 / members)
    whole = residuals.square().mean(dim=0).clamp_min(1e-300)
    return (1 - removed / whole).clamp(_LEAST_GAIN, 1.0).sqrt()
