"""``auto`` where decisions jump as predictions move: the posterior of the problem's surrogate around a regression.

Members that hold a fold out, or with time know the past alone, compete and are judged by what their decisions really
cost there; one that learns from all rows as the winner does is the posterior. What competes is how far the posterior
may leave the regression: its width τ, of which zero leaves it as it is. Where outcomes bend and rows are many, so does
a linear model of contexts and their products. The first is left only for a clear gain: a regression that fits as well
as a bent one decides as well as anything, and is held fast; one that does not is let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bco_core.certificates import ModelClass
from bco_core.data import FOLDS, Arrays, Folds
from bco_core.distributions import Mixture
from bco_core.features.base import Features
from bco_core.features.products import PRODUCTS, products_width
from bco_core.features.standardized import STANDARDIZED
from bco_core.gibbs import GibbsTarget
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import AutoOptions
from bco_core.inference.vi.around_regression import STEPS, bends, fit_around
from bco_core.inference.vi.finalize import Candidate, conclude, keep_history
from bco_core.inference.vi.nested_judging import Views, judge
from bco_core.inference.vi.out_of_fold import OUT_OF_FOLD_DRAWS, OutOfFold
from bco_core.inference.vi.plan import Plan, Settings, make_plan
from bco_core.inference.vi.variational import VariationalFit, VariationalOptions
from bco_core.progress import Progress
from bco_core.scenarios import Scenarios
from bco_core.select import select

POSTERIOR_ROWS = 8000
# Rows for each column from which on products of contexts compete.
_ROWS_A_PRODUCT = 10
# Numbers of predictions that are learned from at once.
_NUMBERS_AT_ONCE = 20_000_000


class Strength(NamedTuple):
    """How far the posterior may leave the regression: τ."""

    name: str
    width: float


FREE, HELD, LOOSE, REGRESSION = (
    Strength("free", 0.3),
    Strength("held", 0.1),
    Strength("loose", 0.7),
    Strength("none", 0.0),
)
STRAIGHT, BENT = (HELD, FREE, REGRESSION), (FREE, HELD, REGRESSION)
# From so many rows on the data may lead far from the regression.
_MANY_ROWS = 400


@dataclass(frozen=True)
class _Tried:
    """One candidate: its target, its strength, and members that hold rows out, with what they say and cost there."""

    target: GibbsTarget
    strength: Strength
    fit: VariationalFit
    seen: OutOfFold
    costs: Tensor

    @property
    def label(self) -> dict[str, object]:
        features = self.target.predictor.features.kind
        name = "linear" if features == STANDARDIZED.name else f"linear on {features}"
        return {"predictor": name, "name": self.strength.name, "width": self.strength.width}


def serves(options: AutoOptions) -> bool:
    """Whether the predictor asked for is a linear model, or any."""
    return options.predictor.kind in ("auto", "linear")


def _plan(task: Task) -> Plan:
    options: AutoOptions = task.options

    def settle(folds: Folds) -> Settings:
        return Settings(VariationalOptions(kl_weight=_kl_weight(options, len(folds.train[0]))), {"linear": 1.0}, {})

    members = FOLDS * max(1, (options.members or FOLDS) // FOLDS)
    return make_plan(task, members, settle, POSTERIOR_ROWS)


def _kl_weight(options: AutoOptions, rows: int) -> float:
    """κ as given or 1/n: λ is one over what there is to gain, the scale of costs."""
    if options.inverse_temperature is not None:
        return 1 / options.inverse_temperature
    return options.kl_weight if options.kl_weight is not None else 1 / rows


def _split(task: Task, progress: Progress) -> list[Part]:
    return []


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    raise RuntimeError("there is nothing to share here")


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    target = plan.target("linear")
    bent = bends(target)
    strengths: tuple[Strength, ...] = BENT if bent else STRAIGHT
    if bent and len(plan.sample) >= _MANY_ROWS:
        strengths += (LOOSE,)
    tried = _compete(plan, target, strengths)
    progress(0.5, "compared priors around the regression")
    products = _products(plan) if bent else None
    if products is not None:
        tried += _compete(plan, plan.target("linear", products), (FREE, HELD))
    choice = select([one.costs for one in tried], [one.label for one in tried])
    best = tried[choice.chosen]
    everything = torch.arange(len(plan.sample))[None]
    kl_weight = _kl_weight(task.options, len(plan.sample))
    final = fit_around(best.target, everything, torch.tensor([best.strength.width]).double(), kl_weight, plan.generator)
    progress(0.8, "judging decisions on rows held out")
    classes = [ModelClass(best.target, final.mixture, 1.0)]
    learned = Candidate(
        best.target, final.mixture, classes, best.seen, [_told(best.fit, final)], kl_weight, choice.table
    )
    kept = keep_history(plan, learned)
    views = Views([one.seen for one in tried], [one.costs for one in tried], choice.chosen, best.seen)
    judged = judge(best.target, [views], kept, plan.judging, plan.generator)
    return conclude(plan, learned, kept, judged.under(task.options.policy))


def _products(plan: Plan) -> Features | None:
    """Products of contexts, where the caller left the choice and there are rows enough."""
    options: AutoOptions = plan.task.options
    free = options.predictor.kind == "auto" and options.predictor.features == STANDARDIZED.name
    columns = products_width(plan.sample.contexts.shape[1])
    enough = plan.judging.train.shape[1] >= _ROWS_A_PRODUCT * columns
    return PRODUCTS.fit(plan.sample, torch.empty(0)) if free and enough else None


def _compete(plan: Plan, target: GibbsTarget, strengths: Sequence[Strength]) -> list[_Tried]:
    """Members of all strengths, as one batch where there is room, and what they say of the rows they hold out."""
    folds = plan.judging
    members, rows = folds.train.shape
    kl_weight = _kl_weight(plan.task.options, rows)
    together = max(1, _NUMBERS_AT_ONCE // (2 * members * rows * target.predictor.outcome_dim))
    found: list[_Tried] = []
    for first in range(0, len(strengths), together):
        some = strengths[first : first + together]
        widths = torch.tensor([one.width for one in some], dtype=torch.float64).repeat_interleave(members)
        fit = fit_around(target, folds.train.repeat(len(some), 1), widths, kl_weight, plan.generator)
        for number, strength in enumerate(some):
            own = torch.arange(number * members, (number + 1) * members)
            seen = _held_out(target, folds, fit.mixture, own, plan.generator)
            costs = _costs(target, seen)
            found.append(_Tried(target, strength, fit, seen, costs))
    return found


def _held_out(
    target: GibbsTarget, folds: Folds, mixture: Mixture, members: Tensor, generator: torch.Generator
) -> OutOfFold:
    """Every row by draws of the member that did not see it, in pairs whose mean is the member's own prediction."""
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
    return OutOfFold(unique, Scenarios.equal(draws[:, :, :-1].flatten(1, 2), draws[:, 0, -1]))


def _costs(target: GibbsTarget, seen: OutOfFold) -> Tensor:
    """What decisions for the mean prediction cost on each row of the view (m,)."""
    decisions = target.problem.decide(seen.scenarios.mean())
    return target.problem.cost(decisions, target.sample.outcomes[seen.rows])


def _told(judged: VariationalFit, final: VariationalFit) -> VariationalFit:
    """Members that were judged, and how the one that decides learned."""
    return VariationalFit(judged.mixture, [STEPS], [True], final.trace)


def _vectors(options: AutoOptions, rows: int) -> int:
    return 2


def _passes(options: AutoOptions, rows: int) -> float:
    return 2.0 * STEPS * FOLDS * (len(BENT) + 2)


_REASON = "variational inference on a surrogate around a regression, because decisions jump as predictions move"
SURROGATE = Method("auto", "vi", _REASON, True, _split, _work, _join, _vectors, _passes)
