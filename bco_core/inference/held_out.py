"""What rows that were held out say of decisions: their costs, beside others' and beside what was promised.

Every method hands over, for the rows of the history it keeps, scenarios made without each row; what follows is alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bco_core.calibration import Calibration, calibrate
from bco_core.data import FOLDS, Sample, Standardizer
from bco_core.estimates import Estimate, estimate, paired_difference
from bco_core.gibbs import GibbsTarget
from bco_core.inference.forward import Forward, constant_before, look_forward, regression_before, tail_of
from bco_core.policies import POLICIES, RECOMMENDABLE, Terms, competing, decide_over, first_policy
from bco_core.predictive import History, predictive_scenarios
from bco_core.problems.base import DecisionProblem
from bco_core.problems.constant import best_constant
from bco_core.regression import ridge
from bco_core.scenarios import Scenarios, expected_cost
from bco_core.select import Table, select

# Rows of the sample that are judged, and kept with the posterior to carry outcomes from.
HISTORY_ROWS = 1000
_ATOMS = 100
_RESIDUALS = 100
# Fewer neighbouring rows do not tell whether rows are ordered in time.
_NEIGHBOURS = 30


@dataclass(frozen=True)
class Kept:
    """The history that a posterior keeps, which ``rows`` (H,) of the sample it is made of, in its order, the carriers
    that competed for it, and the correlation of neighbouring rows' errors."""

    history: History
    rows: Tensor
    carriers: Table
    order: float


@dataclass(frozen=True)
class Judged:
    """What policies do on the rows of the history: the cost (H,) and the decisions (H, d_z) of each, and of the one
    recommended, row by row without the row's own block; ``atoms`` are what may happen on each row, made without it."""

    costs: dict[str, Tensor]
    decisions: dict[str, Tensor]
    policy: str
    policy_costs: Tensor
    policy_decisions: Tensor
    atoms: Scenarios

    def under(self, policy: str | None) -> Judged:
        """The same with a policy of the caller's choice."""
        if policy is None:
            return self
        return replace(self, policy=policy, policy_costs=self.costs[policy], policy_decisions=self.decisions[policy])


@dataclass(frozen=True)
class Promise:
    """What decisions were expected to cost on held-out rows beside what they did; ``ratio`` is the one over the other,
    with its standard error."""

    expected: Estimate
    realised: Estimate
    ratio: float
    standard_error: float


@dataclass(frozen=True)
class HeldOut:
    """``cost`` of every policy, and of the recommended one where it is ``judged`` under what other rows would have
    recommended; the best constant decision's and plain regression's cost on the same rows, with paired differences;
    whether promises held; ``order``, the correlation of neighbouring rows' errors; ``beyond``, how many rows of the
    sample have an outcome beyond the bounds that the problem states, and are counted as the bound."""

    rows: int
    cost: dict[str, Estimate]
    policies: Table
    judged: Estimate
    constant: Estimate
    over_constant: Estimate
    regression: Estimate | None
    over_regression: Estimate | None
    promise: Promise
    calibration: Calibration
    carriers: Table
    order: float
    beyond: int
    forward: Forward | None = None


def judge_scenarios(
    target: GibbsTarget,
    seen: Sequence[tuple[Tensor, Scenarios]],
    kept: Kept,
    block: Tensor,
    generator: torch.Generator,
) -> Judged:
    """Judge every policy over scenarios that are given for groups of the history's rows, by their places in it.

    The policy of a row is the one that the other blocks (H,) recommend.
    """
    problem, terms = target.problem, Terms(generator)
    outcomes, features = target.sample.outcomes[kept.rows], target.features[kept.rows]
    decisions = {name: torch.empty(len(block), problem.decision_dim, dtype=torch.float64) for name in POLICIES}
    atoms = torch.empty(len(block), _ATOMS, problem.outcome_dim, dtype=torch.float64)
    for places, scenarios in seen:
        what = predictive_scenarios(kept.history, scenarios.mean(), _ATOMS, features[places], own=places)
        atoms[places] = what.outcomes
        for name in POLICIES:
            decisions[name][places] = decide_over(problem, scenarios, what, name, terms).decisions.double()
    costs = {name: problem.cost(values, outcomes) for name, values in decisions.items()}
    judged = Judged(
        costs, decisions, "", *_chosen(problem, costs, decisions, block), Scenarios.equal(atoms, atoms[:, 0])
    )
    return replace(judged, policy=_recommended(problem, costs, slice(None)))


def _chosen(
    problem: DecisionProblem, costs: dict[str, Tensor], decisions: dict[str, Tensor], block: Tensor
) -> tuple[Tensor, Tensor]:
    own_costs, own_decisions = (values[first_policy(problem)].clone() for values in (costs, decisions))
    for number in block.unique().tolist():
        inside, outside = sides(block, number)
        name = _recommended(problem, costs, outside)
        own_costs[inside], own_decisions[inside] = costs[name][inside], decisions[name][inside]
    return own_costs, own_decisions


def _recommended(problem: DecisionProblem, costs: dict[str, Tensor], rows: Tensor | slice) -> str:
    """The cheapest; of a problem that promises something of what may happen, the one that looks at it."""
    if problem.promises:
        return policy_of_paper(problem)
    names = competing(problem)
    return names[select([costs[name][rows] for name in names], [{} for _ in names]).chosen]


def policy_of_paper(problem: DecisionProblem) -> str:
    """What the paper decides by, unless the problem promises something of what may happen."""
    return next(name for name in RECOMMENDABLE if POLICIES[name].predictive) if problem.promises else "bcp"


def sides(block: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The rows inside a block and those outside; where there is only one block, it is both."""
    inside = block == number
    return inside, ~inside if (~inside).any() else inside


def summarize(target: GibbsTarget, kept: Kept, judged: Judged, forward: bool = False) -> HeldOut:
    """What the judged rows say; ``forward`` where they were decided for by who only knew the past."""
    problem, sample, costs = target.problem, target.sample.rows(kept.rows), judged.policy_costs
    if forward:
        constant = constant_before(problem, target.sample, kept.rows)
        regression = regression_before(problem, target.sample, kept.rows)
    else:
        constant, regression = constant_costs(problem, sample.outcomes), regression_costs(problem, sample)
    expected = expected_cost(target.problem, judged.policy_decisions, judged.atoms)
    labels = [{"policy": name} for name in competing(problem)]
    return HeldOut(
        rows=len(kept.rows),
        cost={name: estimate(values) for name, values in judged.costs.items()},
        policies=select([judged.costs[name] for name in competing(problem)], labels).table,
        judged=estimate(costs),
        constant=estimate(constant),
        over_constant=paired_difference(costs, constant),
        regression=None if regression is None else estimate(regression),
        over_regression=None if regression is None else paired_difference(costs, regression),
        promise=promise(expected, costs),
        calibration=calibrate(kept.history, target.features[kept.rows]),
        carriers=kept.carriers,
        order=kept.order,
        beyond=beyond_bounds(target.problem, target.sample.outcomes),
        forward=_forward(target, kept, judged, expected) if forward else None,
    )


def _forward(target: GibbsTarget, kept: Kept, judged: Judged, expected: Tensor) -> Forward:
    tails = tail_of(target.problem, judged.policy_decisions, judged.atoms)
    realised = judged.policy_costs
    return look_forward(target.problem, target.sample, kept.rows, judged.costs, realised, expected, tails)


def promise(expected: Tensor, realised: Tensor) -> Promise:
    """The ratio of two means over the same rows (m,), with the delta method's standard error."""
    known = expected.isfinite() & realised.isfinite()
    expected, realised = expected[known], realised[known]
    if len(realised) == 0:
        return Promise(Estimate(math.nan, math.inf), Estimate(math.nan, math.inf), math.nan, math.inf)
    said, done = expected.mean().item(), realised.mean().item()
    if done == 0:
        return Promise(estimate(expected), estimate(realised), 1.0 if said == 0 else math.inf, 0.0)
    off = estimate(expected - said / done * realised).standard_error
    return Promise(estimate(expected), estimate(realised), said / done, off / abs(done))


def constant_costs(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """Cost (m,) of the best constant decision on each row, found without that row's fifth, as ours are."""
    costs = torch.empty(len(outcomes), dtype=outcomes.dtype)
    for fold, others in _fifths(len(outcomes)):
        decision = best_constant(problem, outcomes[others] if others.any() else outcomes).decisions
        costs[fold] = problem.cost(decision, outcomes[fold])
    return costs


def regression_costs(problem: DecisionProblem, sample: Sample) -> Tensor | None:
    """Cost (m,) on each row of predicting by ridge regression and deciding over its residuals, without the row's fifth.

    None where there are too few rows for a regression.
    """
    if len(sample) < 4 * FOLDS:
        return None
    inputs = Standardizer.fit(sample.contexts).apply(sample.contexts)
    costs = torch.empty(len(sample), dtype=torch.float64)
    for fold, others in _fifths(len(sample)):
        fitted = ridge(inputs[others], sample.outcomes[others])
        predicted = inputs @ fitted[:-1] + fitted[-1]
        residuals = (sample.outcomes - predicted)[others]
        picks = torch.linspace(0, len(residuals) - 1, min(_RESIDUALS, len(residuals))).long()
        atoms = residuals[residuals.sum(dim=1).argsort()[picks]]
        scenarios = Scenarios.equal(predicted[fold][:, None] + atoms, predicted[fold])
        decisions = problem.prescribe(scenarios.outcomes, scenarios.weights).decisions
        costs[fold] = problem.cost(decisions, sample.outcomes[fold])
    return costs


def _fifths(count: int) -> list[tuple[Tensor, Tensor]]:
    """Each fifth of the rows, in random order, and a mask of the others."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    found = []
    for fold in order.chunk(FOLDS):
        others = torch.ones(count, dtype=torch.bool)
        others[fold] = False
        found.append((fold, others))
    return found


def beyond_bounds(problem: DecisionProblem, outcomes: Tensor) -> int:
    """How many rows (n, d_y) have an outcome that the problem counts as one of its stated bounds instead."""
    bounds = problem.counted_within
    return 0 if bounds is None else int(((outcomes < bounds[0]) | (outcomes > bounds[1])).any(dim=1).sum())


def autocorrelation(residuals: Tensor, rows: Tensor) -> float:
    """The correlation of the residuals (m, d_y) of some rows (m,) with those of the row before; the largest by outcome.

    Zero where too few of the rows are neighbours.
    """
    order = rows.argsort()
    following = rows[order].diff() == 1
    if following.sum() < _NEIGHBOURS:
        return 0.0
    centred = (residuals - residuals.mean(dim=0))[order]
    lagged = (centred[1:] * centred[:-1])[following].mean(dim=0)
    found: float = (lagged / centred.square().mean(dim=0).clamp_min(1e-300)).max().item()
    return found
