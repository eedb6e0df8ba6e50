"""Baselines for a required return: each gives the scenarios that its decisions hedge over.

``enw``          exponential Nadaraya–Watson weights over the history's outcomes, and the same CVaR model as BCP. The
                 bandwidth is the cheapest that meets the constraint often enough on the history, leaving one row out.
``shifted``      five networks fitted to squared error; their mean prediction is lowered by the least constant with
                 which decisions for held-out rows meet the constraint often enough.
``penalties``    the heuristic of Mandi et al. (2025) as the paper uses it: from a squared-error fit, descend a mix of
                 two penalties until the constraint is met often enough on the history. One pushes a prediction down
                 along its own decision where that decision fails (IPL), the other up along the true optimum where the
                 prediction would forbid it (OPL).
``warm_starts``  the starts of the chains, without sampling, under the same CVaR model: the sampler must beat them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bco_core.baselines.predict_then_optimize import RegressionRule
from bco_core.data import FOLDS, Sample, make_folds
from bco_core.gibbs import GibbsTarget
from bco_core.inference.mh.starts import find_starts, fit_squared_error
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio

BANDWIDTHS = (0.2, 0.25, 0.3, 0.4, 0.7, 1.0, 2.0, 4.0)
# Rows that judge a bandwidth; more rows hardly change the choice.
_JUDGED_ROWS = 80
_SHIFTS = torch.linspace(-1, 4, 251, dtype=torch.float64)
_PENALTY_STEPS = 400
_PENALTY_RATE = 0.002
# Weight of failure against needless caution, and the margin in units of the outcomes' spread.
_AVERSION = 0.9
_MARGIN = 0.1


@dataclass(frozen=True)
class Hedge:
    """Scenarios (B, K, m) and their weights (B, K) or (K,) for each context; K = 1 is a point prediction."""

    outcomes: Tensor
    weights: Tensor


def enw(problem: ReturnConstrainedPortfolio, sample: Sample, contexts: Tensor) -> tuple[Hedge, float]:
    """Return the weighted history for contexts (B, d_x), and the chosen bandwidth."""
    rows = torch.arange(len(sample))[:_JUDGED_ROWS]
    best, choice = None, BANDWIDTHS[0]
    for bandwidth in BANDWIDTHS:
        weights = _weights(sample.contexts[rows], sample.contexts, bandwidth, leave_out=rows)
        outcomes = sample.outcomes.expand(len(rows), -1, -1)
        decisions = problem.prescribe(outcomes, weights).decisions
        kept = problem.feasible(decisions, sample.outcomes[rows]).double().mean().item()
        cost = problem.cost(decisions, sample.outcomes[rows]).mean().item()
        # Prefer enough feasibility, then low cost; if none has enough, prefer the highest feasibility.
        score = (min(kept, problem.confidence), -cost)
        if best is None or score > best:
            best, choice = score, bandwidth
    weights = _weights(contexts, sample.contexts, choice)
    return Hedge(sample.outcomes.expand(len(contexts), -1, -1), weights), choice


def _weights(at: Tensor, contexts: Tensor, bandwidth: float, leave_out: Tensor | None = None) -> Tensor:
    distance = torch.cdist(at, contexts)
    if leave_out is not None:
        distance[torch.arange(len(at)), leave_out] = torch.inf
    return torch.softmax(-distance / bandwidth, dim=1)


def shifted(
    problem: ReturnConstrainedPortfolio, target: GibbsTarget, contexts: Tensor, generator: torch.Generator
) -> Hedge:
    """Return point predictions of five folds, lowered as far as out-of-fold rows require."""
    folds = make_folds(len(target.sample), FOLDS, generator)
    theta = fit_squared_error(target, folds, generator)
    predictor, spread = target.predictor, target.predictor.outcomes.scale
    with torch.no_grad():
        seen = predictor.forward(theta, predictor.encode(target.sample.contexts)[folds.validation]).flatten(0, 1)
    outcomes = target.sample.outcomes[folds.validation.flatten()]
    shift = _least_shift(problem, seen, outcomes, spread)
    predictions = predictor.predict(theta, contexts).mean(dim=0) - shift * spread
    return Hedge(predictions[:, None], torch.ones(1, dtype=torch.float64))


def _least_shift(problem: ReturnConstrainedPortfolio, seen: Tensor, outcomes: Tensor, spread: Tensor) -> float:
    """Return the least shift of predictions (n, m), in spreads, whose decisions meet the constraint often enough."""
    for size in _SHIFTS.tolist():
        decisions = problem.decide(seen - size * spread)
        if problem.feasible(decisions, outcomes).double().mean() >= problem.confidence:
            break
    result: float = size
    return result


def regression_shifted(problem: ReturnConstrainedPortfolio, fitted: RegressionRule, contexts: Tensor) -> Hedge:
    """Return a regression's predictions, lowered as far as out-of-fold rows require."""
    history = fitted.history
    shift = _least_shift(problem, history.predictions, history.outcomes, history.spread)
    predictions = fitted.predictions(contexts) - shift * history.spread
    return Hedge(predictions[:, None], torch.ones(1, dtype=torch.float64))


def penalties(
    problem: ReturnConstrainedPortfolio,
    target: GibbsTarget,
    contexts: Tensor,
    generator: torch.Generator,
    repeats: int = 5,
) -> list[Hedge]:
    """Return the point predictions of each repetition; the caller may choose one, as the paper does."""
    predictor, sample = target.predictor, target.sample
    theta = fit_squared_error(target, make_folds(len(sample), repeats, generator), generator)
    encoded, spread = predictor.encode(sample.contexts), predictor.outcomes.scale.mean()
    ideal = problem.decide(sample.outcomes)
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(1, _PENALTY_STEPS + 1):
        value = theta.requires_grad_()
        predictions = predictor.forward(value, encoded)
        decisions = problem.decide(predictions)
        failed = problem.slack(decisions, sample.outcomes) < 0
        going = 1 - failed.double().mean(dim=1) < problem.confidence
        if not going.any():
            break
        promised = (problem.slack(decisions, predictions) / spread + _MARGIN) * failed
        forbidden = -problem.slack(ideal, predictions) / spread + _MARGIN
        failing = (softplus(promised, beta=5) * failed).sum(dim=1) / failed.sum(dim=1).clamp_min(1)
        cautious = softplus(forbidden, beta=5).mean(dim=1)
        loss = _AVERSION * failing + (1 - _AVERSION) * cautious
        (gradient,) = torch.autograd.grad(loss.sum(), value)
        theta = value.detach()
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.001)
        size = (second / (1 - 0.999**step)).sqrt() + 1e-8
        theta = torch.where(going[:, None], theta - _PENALTY_RATE * first / (1 - 0.9**step) / size, theta)
    each = predictor.predict(theta.detach(), contexts)
    return [Hedge(one[:, None], torch.ones(1, dtype=torch.float64)) for one in each]


def warm_starts(
    problem: ReturnConstrainedPortfolio, target: GibbsTarget, contexts: Tensor, chains: int, generator: torch.Generator
) -> Hedge:
    """Return the predictions of as many starts as there are chains."""
    starts = find_starts(target, chains, problem.confidence, generator)
    predictions = target.predictor.predict(starts.theta, contexts).transpose(0, 1)
    return Hedge(predictions, torch.full((chains,), 1 / chains, dtype=torch.float64))
