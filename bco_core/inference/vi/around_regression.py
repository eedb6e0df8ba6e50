"""A linear model's Gibbs posterior of a surrogate, around a Bayesian regression: R members as one batch.

With X the rows' features and a constant, Y the outcomes in units of their spread, G = X'X/n, Θ₀ the regression of Y on
X and Σ the covariance of its errors, prior and posterior of the matrix Θ are

    ρ_0 = N(Θ₀, τ² G⁻¹ ⊗ diag Σ),    q = N(M, τ² G⁻¹ ⊗ Σ̃),    Σ̃ = .95 Σ + .05 diag Σ,

and M minimises, with κ = 1/(λn),

    E_q[mean loss] + κ/(2τ²) tr[(M − Θ₀)' G (M − Θ₀) diag(Σ)⁻¹].

q's width is the regression's own, so only M is learned. A row's prediction under q is Gaussian around its mean, so
noise is drawn for predictions, not for Θ, in pairs of opposite sign, and kept for some steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bco_core.distributions import MatrixGaussian
from bco_core.gibbs import GibbsTarget
from bco_core.inference.vi.variational import TracePoint, VariationalFit
from bco_core.problems.surrogate import Surrogate
from bco_core.regression import ridge
from bco_core.solvers.linear_form import Array

STEPS = 50
_NOISE_STEPS = 5
_RATE = 0.055
# What the regression's errors are taken to be at least, as shares of the outcomes' variances.
_LEAST_ERROR, _LEAST_VARIANCE = 1e-3, 0.1
_OWN = 0.05
# With fewer rows for each column the regression is shrunk.
_ROWS_A_COLUMN = 5
_JITTER = 1e-6
# A narrower member is a regression as it is.
_LEAST_WIDTH = 1e-3
# A bend shows in errors left out one by one where fitting it makes them smaller by so many standard errors.
_CLEAR_BEND = 1.0


@dataclass(frozen=True)
class Regression:
    """Of R members: X (R, n, a), Θ₀ (R, a, d_y), G (R, a, a) and Σ (R, d_y, d_y)."""

    inputs: Array
    theta: Array
    gram: Array
    errors: Array

    @staticmethod
    def of(target: GibbsTarget, rows: Tensor) -> Regression:
        """Fitted to rows (R, n) of the sample."""
        inputs, wanted = (one[rows.numpy()] for one in _seen(target))
        count, width = inputs.shape[1:]
        across = inputs.transpose(0, 2, 1)
        gram = across @ inputs / count + _JITTER * np.eye(width)
        if count >= _ROWS_A_COLUMN * width:
            theta = np.linalg.solve(gram, across @ wanted / count)
        else:
            each = zip(torch.from_numpy(inputs[..., :-1]), torch.from_numpy(wanted), strict=True)
            theta = np.stack([ridge(x, y).numpy() for x, y in each])
        left = wanted - inputs @ theta
        variance = wanted.var(axis=1)
        least = _LEAST_ERROR * np.maximum(variance, _LEAST_VARIANCE * variance.mean(axis=1, keepdims=True))
        errors = left.transpose(0, 2, 1) @ left / count + np.eye(wanted.shape[2]) * np.maximum(least, 1e-12)[:, None]
        return Regression(inputs, theta, gram, errors)


def _seen(target: GibbsTarget) -> tuple[Array, Array]:
    """Features with a constant (n, a), and the outputs (n, d_y) that would predict the outcomes."""
    features = target.encoded(torch.float64)
    wanted = target.predictor.wanted(target.sample.outcomes, features).numpy()
    inputs = features[:, : target.predictor.widths[0]].numpy()
    return np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1), wanted


def fit_around(
    target: GibbsTarget, rows: Tensor, widths: Tensor, kl_weight: float, generator: torch.Generator
) -> VariationalFit:
    """Members of rows (R, n) with widths τ (R,), zero for the regression as it is."""
    start = Regression.of(target, rows)
    own = np.diagonal(start.errors, axis1=1, axis2=2)
    between = (1 - _OWN) * start.errors + _OWN * np.eye(own.shape[1]) * own[:, None]
    by_columns = np.asarray(np.linalg.cholesky(between), dtype=np.float64)
    # G = LL', so that L'⁻¹ is a factor of G⁻¹.
    by_rows: Array = np.linalg.inv(np.linalg.cholesky(start.gram)).transpose(0, 2, 1)
    theta, trace = start.theta.copy(), list[TracePoint]()
    moving = np.flatnonzero(widths.numpy() > 0)
    if len(moving):
        some = Regression(start.inputs[moving], theta[moving], start.gram[moving], start.errors[moving])
        factors = by_rows[moving], by_columns[moving]
        theta[moving], trace = _descend(
            target, rows[moving], some, factors, widths.numpy()[moving], kl_weight, generator
        )
    by_rows = by_rows * np.maximum(widths.numpy(), _JITTER)[:, None, None]
    mixture = MatrixGaussian.of(*(torch.from_numpy(one).float() for one in (theta, by_rows, by_columns)))
    return VariationalFit(mixture, [STEPS] * len(rows), [True] * len(rows), trace)


def go_on(
    target: GibbsTarget, old: MatrixGaussian, as_prior: bool, kl_weight: float, generator: torch.Generator
) -> MatrixGaussian:
    """What becomes of one member when it learns from the target's rows: around it, or around their own regression."""
    inputs, _ = _seen(target)
    rows, (by_rows, by_columns) = torch.arange(len(inputs))[None], (old.by_rows[:1], old.by_columns[:1])
    factors = by_rows.double().numpy(), by_columns.double().numpy()
    if not as_prior:
        # Its width is what its factor has beside the regression's own.
        width = np.sqrt(np.square(inputs @ factors[0][0]).sum() / inputs.size)
        fit = fit_around(target, rows, torch.tensor([width if width > _LEAST_WIDTH else 0.0]), kl_weight, generator)
        mixture = fit.mixture
        assert isinstance(mixture, MatrixGaussian)  # noqa: S101
        return mixture
    precision = np.linalg.inv(factors[0] @ factors[0].transpose(0, 2, 1))
    theta = old.loc[:1].double().numpy().reshape(1, inputs.shape[1], -1)
    start = Regression(inputs[None], theta, precision, factors[1] @ factors[1].transpose(0, 2, 1))
    found, _ = _descend(target, rows, start, factors, np.ones(1), kl_weight, generator)
    return MatrixGaussian.of(torch.from_numpy(found).float(), by_rows, by_columns)


def _descend(
    target: GibbsTarget,
    rows: Tensor,
    start: Regression,
    factors: tuple[Array, Array],
    widths: Array,
    kl_weight: float,
    generator: torch.Generator,
) -> tuple[Array, list[TracePoint]]:
    """The members' M (R, a, d_y), and how they came there; numbers are many and small, and NumPy wakes no threads."""
    problem, predictor, known = target.problem, target.predictor, target.hindsight
    if not isinstance(problem, Surrogate) or known is None:
        raise RuntimeError("only problems with a surrogate are learned around a regression")
    (members, count), outcome_dim = rows.shape, predictor.outcome_dim
    scale = (predictor.outcomes.scale * predictor.features.shrink).numpy()
    nothing = torch.zeros(1, predictor.dim, dtype=torch.float64)
    offset = predictor.unclipped(nothing, target.encoded(torch.float64))[0].numpy()[rows.numpy()]
    twice = rows[:, None].expand(-1, 2, -1).reshape(-1)
    outcomes, seen = target.sample.outcomes[twice].numpy(), known.rows(twice)
    across = start.inputs.transpose(0, 2, 1)
    own = np.diagonal(start.errors, axis1=1, axis2=2)
    pull = kl_weight / (widths[:, None] ** 2 * own)[:, None]
    spread = widths[:, None] * np.sqrt(np.square(start.inputs @ factors[0]).sum(axis=2))
    descent, trace = _Adam(start.theta), []
    predictions = np.empty((members, 2, count, outcome_dim))
    for step in range(STEPS):
        if step % _NOISE_STEPS == 0:
            drawn = torch.randn(count, outcome_dim, generator=generator, dtype=torch.float64).numpy()
            noise = drawn @ factors[1].transpose(0, 2, 1) * spread[:, :, None] * scale
        mean = start.inputs @ descent.value * scale + offset
        np.add(mean, noise, out=predictions[:, 0])
        np.subtract(mean, noise, out=predictions[:, 1])
        losses, slope = problem.loss_and_slope(predictions.reshape(-1, outcome_dim), outcomes, seen)
        by_output = slope.reshape(predictions.shape).sum(axis=1) * (scale / (2 * count * target.cost_scale))
        moved = descent.value - start.theta
        back = start.gram @ moved * pull
        divergence = 0.5 * float((moved * back).sum()) / (members * kl_weight)
        trace.append(TracePoint(step + 1, float(losses.mean()), divergence, None, float(widths.mean())))
        descent.step(across @ by_output + back, step)
    return descent.average, trace


class _Adam:
    """Adam from a value (R, a, d_y) with a rate that falls to zero; ``average`` is that of the last half of steps."""

    def __init__(self, value: Array) -> None:
        self.value, self.average = value.copy(), np.zeros_like(value)
        self._first, self._second = np.zeros_like(value), np.zeros_like(value)

    def step(self, gradient: Array, number: int) -> None:
        self._first += 0.1 * (gradient - self._first)
        self._second += 0.001 * (np.square(gradient) - self._second)
        size = np.sqrt(self._second / (1 - 0.999 ** (number + 1))) + 1e-8
        rate = 0.5 * _RATE * (1 + math.cos(math.pi * number / STEPS))
        self.value = self.value - rate * self._first / (1 - 0.9 ** (number + 1)) / size
        if number >= STEPS // 2:
            self.average += self.value / (STEPS - STEPS // 2)


def bends(target: GibbsTarget) -> bool:
    """Whether outcomes bend where the regression is straight: the square of what it fits, as one more column, makes
    errors that are left out one by one clearly smaller, in the mean over outcomes (after Ramsey's test)."""
    inputs, wanted = _seen(target)
    if len(inputs) <= inputs.shape[1] + 1:
        return False
    fitted = inputs @ Regression.of(target, torch.arange(len(inputs))[None]).theta[0]
    basis = np.linalg.qr(inputs).Q
    room = 1 - np.square(basis).sum(axis=1, keepdims=True)
    # Of the column beside the others, only what they leave of it adds to the fit and to the leverage.
    column = np.square(fitted - fitted.mean(axis=0))
    column = column - basis @ (basis.T @ column)
    size = np.sqrt(np.square(column).sum(axis=0))
    share = np.where(size > 1e-6 * math.sqrt(len(inputs)), column / np.maximum(size, 1e-300), 0.0)
    left = wanted - basis @ (basis.T @ wanted)
    bent = left - share * (share * left).sum(axis=0)
    straight = np.square(left / np.maximum(room, 1e-9))
    curved = np.square(bent / np.maximum(room - np.square(share), 1e-9))
    gain = ((straight - curved) / np.maximum(straight.mean(axis=0), 1e-300)).mean(axis=1)
    return bool(gain.mean() > _CLEAR_BEND * gain.std() / math.sqrt(len(gain)))
