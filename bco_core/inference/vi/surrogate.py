"""Variational inference with a surrogate loss, such as SPO+, around a Bayesian regression; ``auto`` uses it where
decisions jump as predictions change.

The model is linear, and R members learn as one batch. With X the rows' features and a constant, Y the outcomes in units
of their spread, G = X'X/n, Θ₀ the regression of Y on X and Σ the covariance of its errors, prior and posterior of the
matrix Θ are

    ρ_0 = N(Θ₀, τ² G⁻¹ ⊗ diag Σ),    q = N(M, τ² G⁻¹ ⊗ Σ̃),    Σ̃ = .95 Σ + .05 diag Σ,

and M minimises equation (15) of the paper with the surrogate for the cost: with κ = 1/(λn),

    E_q[mean loss] + κ/(2τ²) tr[(M − Θ₀)' G (M − Θ₀) diag(Σ)⁻¹].

The covariance of q is that of the regression, so only M is learned. A row's prediction under q is Gaussian around its
mean, so noise is drawn for predictions, not for Θ, in pairs of opposite sign, and reused for some steps.

Members that hold out a fold or, with time, know only earlier rows, compete and are judged by the true cost of their
decisions on held-out rows; one member that learns from all rows with the winning settings is the posterior. The width τ
competes: how far the posterior may leave the regression, with zero for the regression itself. Where outcomes are
nonlinear and rows are many, a linear model of contexts and their products competes too. The first candidate is replaced
only for a clear gain: it is close to the regression where the regression fits well, and freer where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.certificates import ModelClass
from bco_core.data import FOLDS, Arrays, Folds
from bco_core.distributions import MatrixGaussian, Mixture
from bco_core.features.base import Features
from bco_core.features.products import PRODUCTS, products_width
from bco_core.features.standardized import STANDARDIZED
from bco_core.gibbs import GibbsTarget
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import AutoOptions
from bco_core.inference.vi.cross_validation import OUT_OF_FOLD_DRAWS, CandidateViews, OutOfFoldView, judge_nested
from bco_core.inference.vi.finalize import Candidate, keep_history, make_posterior
from bco_core.inference.vi.plan import LearningSettings, MixturePlan, make_plan
from bco_core.inference.vi.variational import TracePoint, VariationalFit, VariationalOptions
from bco_core.problems.surrogate import Surrogate
from bco_core.progress import Progress
from bco_core.regression import ridge
from bco_core.scenarios import Scenarios
from bco_core.select import select
from bco_core.solvers.linear_form import Array

STEPS = 50
_NOISE_STEPS = 5
_RATE = 0.055
# Lower bounds on the regression's error variance, as shares of the outcomes' variances.
_LEAST_ERROR, _LEAST_VARIANCE = 1e-3, 0.1
_OWN = 0.05
# With fewer rows for each column the regression is a ridge regression.
_ROWS_A_COLUMN = 5
_JITTER = 1e-6
# A narrower member counts as the regression itself.
_LEAST_WIDTH = 1e-3
# Standard errors by which leave-one-out errors must fall for outcomes to count as nonlinear.
_CLEAR_BEND = 1.0


@dataclass(frozen=True)
class BayesianRegression:
    """The regressions of R members: X (R, n, a), Θ₀ (R, a, d_y), G (R, a, a) and Σ (R, d_y, d_y)."""

    inputs: Array
    theta: Array
    gram: Array
    errors: Array

    @staticmethod
    def of(target: GibbsTarget, rows: Tensor) -> BayesianRegression:
        """Fit to rows (R, n) of the sample."""
        inputs, wanted = (one[rows.numpy()] for one in _inputs_and_outputs(target))
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
        return BayesianRegression(inputs, theta, gram, errors)


def _inputs_and_outputs(target: GibbsTarget) -> tuple[Array, Array]:
    """Return features with a constant (n, a), and the outputs (n, d_y) that predict the outcomes exactly."""
    features = target.encoded(torch.float64)
    wanted = target.predictor.wanted(target.sample.outcomes, features).numpy()
    inputs = features[:, : target.predictor.widths[0]].numpy()
    return np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1), wanted


def fit_around(
    target: GibbsTarget, rows: Tensor, widths: Tensor, kl_weight: float, generator: torch.Generator
) -> VariationalFit:
    """Fit members to rows (R, n) with widths τ (R,), zero for the regression itself."""
    start = BayesianRegression.of(target, rows)
    own = np.diagonal(start.errors, axis1=1, axis2=2)
    between = (1 - _OWN) * start.errors + _OWN * np.eye(own.shape[1]) * own[:, None]
    by_columns = np.asarray(np.linalg.cholesky(between), dtype=np.float64)
    # G = LL', so that L'⁻¹ is a factor of G⁻¹.
    by_rows: Array = np.linalg.inv(np.linalg.cholesky(start.gram)).transpose(0, 2, 1)
    theta, trace = start.theta.copy(), list[TracePoint]()
    moving = np.flatnonzero(widths.numpy() > 0)
    if len(moving):
        some = BayesianRegression(start.inputs[moving], theta[moving], start.gram[moving], start.errors[moving])
        factors = by_rows[moving], by_columns[moving]
        theta[moving], trace = _descend(
            target, rows[moving], some, factors, widths.numpy()[moving], kl_weight, generator
        )
    by_rows = by_rows * np.maximum(widths.numpy(), _JITTER)[:, None, None]
    mixture = MatrixGaussian.of(*(torch.from_numpy(one).float() for one in (theta, by_rows, by_columns)))
    return VariationalFit(mixture, [STEPS] * len(rows), [True] * len(rows), trace)


def continue_member(
    target: GibbsTarget, old: MatrixGaussian, as_prior: bool, kl_weight: float, generator: torch.Generator
) -> MatrixGaussian:
    """Update one member with the target's rows: around the member itself, or around the rows' own regression."""
    inputs, _ = _inputs_and_outputs(target)
    rows, (by_rows, by_columns) = torch.arange(len(inputs))[None], (old.by_rows[:1], old.by_columns[:1])
    factors = by_rows.double().numpy(), by_columns.double().numpy()
    if not as_prior:
        # Its width is the ratio of its factor to the regression's.
        width = np.sqrt(np.square(inputs @ factors[0][0]).sum() / inputs.size)
        fit = fit_around(target, rows, torch.tensor([width if width > _LEAST_WIDTH else 0.0]), kl_weight, generator)
        mixture = fit.mixture
        assert isinstance(mixture, MatrixGaussian)  # noqa: S101
        return mixture
    precision = np.linalg.inv(factors[0] @ factors[0].transpose(0, 2, 1))
    theta = old.loc[:1].double().numpy().reshape(1, inputs.shape[1], -1)
    start = BayesianRegression(inputs[None], theta, precision, factors[1] @ factors[1].transpose(0, 2, 1))
    matrix, _ = _descend(target, rows, start, factors, np.ones(1), kl_weight, generator)
    return MatrixGaussian.of(torch.from_numpy(matrix).float(), by_rows, by_columns)


def _descend(
    target: GibbsTarget,
    rows: Tensor,
    start: BayesianRegression,
    factors: tuple[Array, Array],
    widths: Array,
    kl_weight: float,
    generator: torch.Generator,
) -> tuple[Array, list[TracePoint]]:
    """Return the members' M (R, a, d_y) and the trace. NumPy is faster than torch for these many small arrays."""
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
    """Adam on a value (R, a, d_y) with a rate that falls to zero; ``average`` is the mean of the last half of steps."""

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


def is_nonlinear(target: GibbsTarget) -> bool:
    """Return whether outcomes are nonlinear in the features (after Ramsey's RESET test).

    They are if the squared fit as one more column clearly reduces leave-one-out errors, in the mean over outcomes.
    """
    inputs, wanted = _inputs_and_outputs(target)
    if len(inputs) <= inputs.shape[1] + 1:
        return False
    fitted = inputs @ BayesianRegression.of(target, torch.arange(len(inputs))[None]).theta[0]
    basis = np.linalg.qr(inputs).Q
    room = 1 - np.square(basis).sum(axis=1, keepdims=True)
    # Only the part of the new column that is orthogonal to the others adds to fit and leverage.
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


POSTERIOR_ROWS = 8000
# Rows for each column from which products of contexts compete.
_ROWS_A_PRODUCT = 10
# Number of predictions in one batch.
_NUMBERS_AT_ONCE = 20_000_000


class Strength(NamedTuple):
    """A named width τ: how far the posterior may leave the regression."""

    name: str
    width: float


FREE, HELD, LOOSE, REGRESSION = (
    Strength("free", 0.3),
    Strength("held", 0.1),
    Strength("loose", 0.7),
    Strength("none", 0.0),
)
STRAIGHT, BENT = (HELD, FREE, REGRESSION), (FREE, HELD, REGRESSION)
# From this many rows on the posterior may go far from the regression.
_MANY_ROWS = 400


@dataclass(frozen=True)
class _Competitor:
    """One candidate: its target and width, and members that hold rows out, with their views and costs there."""

    target: GibbsTarget
    strength: Strength
    fit: VariationalFit
    out_of_fold: OutOfFoldView
    costs: Tensor

    @property
    def label(self) -> dict[str, object]:
        features = self.target.predictor.features.kind
        name = "linear" if features == STANDARDIZED.name else f"linear on {features}"
        return {"predictor": name, "name": self.strength.name, "width": self.strength.width}


def allows_linear(options: AutoOptions) -> bool:
    """Return whether the options allow a linear model."""
    return options.predictor.kind in ("auto", "linear")


def _plan(task: Task) -> MixturePlan:
    options: AutoOptions = task.options

    def settle(folds: Folds) -> LearningSettings:
        return LearningSettings(
            VariationalOptions(kl_weight=_kl_weight(options, len(folds.train[0]))), {"linear": 1.0}, {}
        )

    members = FOLDS * max(1, (options.members or FOLDS) // FOLDS)
    return make_plan(task, members, settle, POSTERIOR_ROWS)


def _kl_weight(options: AutoOptions, rows: int) -> float:
    """Return κ as given, or 1/n: λ = 1 for scaled costs."""
    if options.inverse_temperature is not None:
        return 1 / options.inverse_temperature
    return options.kl_weight if options.kl_weight is not None else 1 / rows


def _split(task: Task, progress: Progress) -> list[Part]:
    return []


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    raise RuntimeError("this method has no parts")


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    target = plan.target("linear")
    bent = is_nonlinear(target)
    strengths: tuple[Strength, ...] = BENT if bent else STRAIGHT
    if bent and len(plan.sample) >= _MANY_ROWS:
        strengths += (LOOSE,)
    tried = _compete(plan, target, strengths)
    progress(0.5, "compared priors around the regression")
    products = _products(plan) if bent else None
    if products is not None:
        tried += _compete(plan, plan.target("linear", products), (FREE, HELD))
    choice = select([one.costs for one in tried], [one.label for one in tried])
    best = tried[choice.best]
    everything = torch.arange(len(plan.sample))[None]
    kl_weight = _kl_weight(task.options, len(plan.sample))
    final = fit_around(best.target, everything, torch.tensor([best.strength.width]).double(), kl_weight, plan.generator)
    progress(0.8, "judging decisions on rows held out")
    classes = [ModelClass(best.target, final.mixture, 1.0)]
    learned = Candidate(
        best.target,
        final.mixture,
        classes,
        best.out_of_fold,
        [_with_final_trace(best.fit, final)],
        kl_weight,
        choice.table,
    )
    stored = keep_history(plan, learned)
    views = CandidateViews(
        [one.out_of_fold for one in tried], [one.costs for one in tried], choice.best, best.out_of_fold
    )
    policy_results = judge_nested(best.target, [views], stored, plan.judging, plan.generator)
    return make_posterior(plan, learned, stored, policy_results.under(task.options.policy))


def _products(plan: MixturePlan) -> Features | None:
    """Return products of contexts where the caller left the choice open and there are enough rows."""
    options: AutoOptions = plan.task.options
    free = options.predictor.kind == "auto" and options.predictor.features == STANDARDIZED.name
    columns = products_width(plan.sample.contexts.shape[1])
    enough = plan.judging.train.shape[1] >= _ROWS_A_PRODUCT * columns
    return PRODUCTS.fit(plan.sample, torch.empty(0)) if free and enough else None


def _compete(plan: MixturePlan, target: GibbsTarget, strengths: Sequence[Strength]) -> list[_Competitor]:
    """Fit members of all widths, as one batch where memory allows, with their views of the rows they hold out."""
    folds = plan.judging
    members, rows = folds.train.shape
    kl_weight = _kl_weight(plan.task.options, rows)
    together = max(1, _NUMBERS_AT_ONCE // (2 * members * rows * target.predictor.outcome_dim))
    competitors: list[_Competitor] = []
    for first in range(0, len(strengths), together):
        some = strengths[first : first + together]
        widths = torch.tensor([one.width for one in some], dtype=torch.float64).repeat_interleave(members)
        fit = fit_around(target, folds.train.repeat(len(some), 1), widths, kl_weight, plan.generator)
        for number, strength in enumerate(some):
            own = torch.arange(number * members, (number + 1) * members)
            seen = _held_out(target, folds, fit.mixture, own, plan.generator)
            costs = _costs(target, seen)
            competitors.append(_Competitor(target, strength, fit, seen, costs))
    return competitors


def _held_out(
    target: GibbsTarget, folds: Folds, mixture: Mixture, members: Tensor, generator: torch.Generator
) -> OutOfFoldView:
    """Return the view of every row by draws of the member that did not see it, in pairs around its own prediction."""
    encoded, pairs = target.encoded(mixture.loc.dtype), OUT_OF_FOLD_DRAWS // 2
    noise = torch.randn(pairs, mixture.dim, generator=generator, dtype=mixture.loc.dtype)
    noise = torch.cat([noise, -noise, torch.zeros_like(noise[:1])])
    atoms, rows = [], []
    for member, held_out in zip(members.tolist(), folds.validation, strict=True):
        theta = mixture.around(torch.full((len(noise),), member), noise)
        atoms.append(target.predictor.predict_encoded(theta, encoded[held_out]).transpose(0, 1))
        rows.append(held_out)
    order, each = torch.cat(rows).sort(stable=True)
    # A row that several partitions hold out has draws of each.
    unique, counts = order.unique(return_counts=True)
    times = int(counts.min())
    first = counts.cumsum(0) - counts
    scenarios = torch.cat([torch.cat(atoms)[each[first + time]] for time in range(times)], dim=1)
    draws = scenarios.view(len(unique), times, -1, scenarios.shape[2])
    return OutOfFoldView(unique, Scenarios.equal(draws[:, :, :-1].flatten(1, 2), draws[:, 0, -1]))


def _costs(target: GibbsTarget, seen: OutOfFoldView) -> Tensor:
    """Return the cost (m,) of decisions for the mean prediction on each row of the view."""
    decisions = target.problem.decide(seen.scenarios.mean())
    return target.problem.cost(decisions, target.sample.outcomes[seen.rows])


def _with_final_trace(judged: VariationalFit, final: VariationalFit) -> VariationalFit:
    """Return the fit of the judged members with the trace of the final one."""
    return VariationalFit(judged.mixture, [STEPS], [True], final.trace)


def _vectors(options: AutoOptions, rows: int) -> int:
    return 2


def _passes(options: AutoOptions, rows: int) -> float:
    return 2.0 * STEPS * FOLDS * (len(BENT) + 2)


_REASON = "variational inference on a surrogate around a regression, because decisions jump as predictions change"
SURROGATE = Method("auto", "vi", _REASON, True, _split, _work, _join, _vectors, _passes)
