"""Starting points of the chains, and the choice of their predictor.

A chain of Algorithm 3 accepts only θ with F_n(θ) ≥ F_0, so its start must satisfy this: each chain is fitted to squared
error on rows of its own, and its predictions are then shifted by the smallest constant that reaches F_0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds, Sample, make_folds
from bco_core.distributions import FAMILIES
from bco_core.estimates import Estimate, estimate, paired_difference
from bco_core.features.base import Features
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.options import MhOptions
from bco_core.inference.training import TrainingOptions, by_autograd, train
from bco_core.inference.vi.warm_start import SquaredError, ridge_start
from bco_core.predictors.registry import AUTO, build_predictor
from bco_core.problems.base import DecisionProblem, UncertainConstraints

_SHIFTS = torch.linspace(0, 4, 161, dtype=torch.float64)
_FIT = TrainingOptions(epochs=300, patience=15, batch_size=64, learning_rate=0.003)


@dataclass(frozen=True)
class ChainStarts:
    """θ (C, d) with the smallest ``shift`` (C,), in standard deviations of the outcomes, that reaches F_0, its
    ``feasibility`` F_n, and whether its decisions satisfy their constraints on average, (C,)."""

    theta: Tensor
    shift: Tensor
    feasibility: Tensor
    keeps_mean: Tensor


def choose_predictor(
    problem: DecisionProblem, sample: Sample, options: MhOptions, features: Features | None = None
) -> tuple[str, list[Estimate]]:
    """Choose a linear model, in whose few dimensions chains move well, unless a network predicts clearly better.

    Both are fitted to squared error on five folds and compared on the rows each fold held out. Those rows also stopped
    the network early, which flatters it, so its gain must exceed two standard errors and a fiftieth of the error. The
    returned errors are those of the kinds in ``AUTO``, in order.
    """
    errors = []
    for kind in AUTO:
        generator = torch.Generator().manual_seed(options.seed)
        predictor = build_predictor(kind, sample, options.predictor.layers(kind), features)
        target = make_target(problem, predictor, sample, FAMILIES[options.family])
        folds = make_folds(len(sample), FOLDS, generator)
        theta = fit_squared_error(target, folds, generator)
        with torch.no_grad():
            validation = predictor.forward(theta, target.encoded(torch.float32)[folds.validation])
        surrogate = SquaredError(predictor.outcomes.scale)
        errors.append(surrogate.cost(validation, sample.outcomes[folds.validation]).flatten())
    gain = paired_difference(errors[1], errors[0])
    chosen = int(gain.mean < -max(2 * gain.standard_error, 0.02 * errors[0].mean().item()))
    return AUTO[chosen], [estimate(error) for error in errors]


def find_starts(target: GibbsTarget, chains: int, required: float | None, generator: torch.Generator) -> ChainStarts:
    """Return a start for each chain, fitted to squared error on its own random four fifths of the rows."""
    predictor, sample = target.predictor, target.sample
    folds = make_folds(len(sample), chains, generator)
    theta = fit_squared_error(target, folds, generator)
    if required is None:
        nothing = torch.zeros(chains, dtype=torch.float64)
        return ChainStarts(theta, nothing, torch.ones_like(nothing), nothing > 0)
    best_shift, best_share = torch.zeros(chains, dtype=torch.float64), torch.full((chains,), -2.0).double()
    encoded = target.encoded(theta.dtype)
    predictions = predictor.predict_encoded(theta, encoded)
    for sign in (-1.0, 1.0):
        for size in _SHIFTS.tolist():
            todo = best_share < required
            if not todo.any():
                break
            shifted = predictions[todo] + sign * size * predictor.outcomes.scale
            decisions = target.problem.decide(shifted)
            share = _feasible(target.problem, decisions, sample.outcomes).double().mean(dim=1)
            # A start that violates its constraints on average does not qualify, whatever F_0.
            share = torch.where(_keeps_mean(target.problem, decisions, sample.outcomes), share, share - 1)
            better = todo.clone()
            better[todo] = share > best_share[todo]
            best_shift[better] = sign * size
            best_share[better] = share[better[todo]]
    outputs = predictor.outcome_dim
    theta = theta.clone()
    theta[:, -outputs:] += best_shift[:, None].to(theta)
    # Clipping at zero and rounding of θ may change predictions: evaluate θ itself.
    decisions = target.problem.decide(predictor.predict_encoded(theta, encoded))
    share = _feasible(target.problem, decisions, sample.outcomes).double().mean(dim=1)
    return ChainStarts(theta, best_shift, share, _keeps_mean(target.problem, decisions, sample.outcomes))


def _feasible(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> Tensor:
    """Return whether each decision satisfies its constraints, as the chains test it."""
    if isinstance(problem, UncertainConstraints):
        return problem.slack(decisions, outcomes) >= 0
    return problem.feasible(decisions, outcomes)


def _keeps_mean(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> Tensor:
    """Return whether each start's decisions (C, n, d_z) satisfy their constraints on average, (C,)."""
    if not isinstance(problem, UncertainConstraints):
        return torch.zeros(len(decisions), dtype=torch.bool)
    return problem.slack(decisions, outcomes).mean(dim=1) >= 0


def fit_squared_error(target: GibbsTarget, folds: Folds, generator: torch.Generator) -> Tensor:
    """Return θ (R, d) of least squared error on each fold's training rows: ridge, or a network that starts from it."""
    predictor, sample = target.predictor, target.sample
    encoded = target.encoded()
    theta = predictor.initial(len(folds.train), generator).to(encoded)
    standardized = predictor.outcomes.apply(sample.outcomes)
    theta = ridge_start(predictor, encoded, standardized, folds.train, theta)
    if not predictor.is_network:
        return theta
    surrogate = SquaredError(predictor.outcomes.scale)

    def error(values: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        return surrogate.cost(predictor.forward(values[0], encoded[rows]), sample.outcomes[rows]).mean(dim=1)

    def judge(values: Tensor, members: Tensor) -> Tensor:
        with torch.no_grad():
            return error(values, folds.validation[members], members)

    return train(theta[None], folds.train, by_autograd(error), judge, _FIT, generator).value[0]
