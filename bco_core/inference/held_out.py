"""Costs of decisions on held-out rows, compared with baselines and with the predicted costs.

Every inference method provides, for the rows of its stored history, scenarios made without each row; the judgement that
follows is the same for all methods.
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
from bco_core.inference.forward import ForwardReport, constant_before, promised_tail, regression_before, report_forward
from bco_core.policies import POLICIES, RECOMMENDABLE, Terms, competing_policies, decide_over, first_policy
from bco_core.predictive import History, predictive_scenarios
from bco_core.problems.base import DecisionProblem, best_constant
from bco_core.regression import ridge
from bco_core.scenarios import Scenarios, expected_cost
from bco_core.select import Table, select

# Rows of the sample that are judged, and stored with the posterior for predictive scenarios.
HISTORY_ROWS = 1000
_ATOMS = 100
_RESIDUALS = 100
# Fewer neighbouring rows do not show whether rows are ordered in time.
_NEIGHBOURS = 30


@dataclass(frozen=True)
class StoredHistory:
    """The history to store with a posterior, its ``rows`` (H,) of the sample in its order, the table of carriers that
    competed, and ``order``, the correlation of neighbouring rows' errors."""

    history: History
    rows: Tensor
    carriers: Table
    order: float


@dataclass(frozen=True)
class PolicyResults:
    """Costs (H,) and decisions (H, d_z) of every policy on the rows of the history.

    ``policy_costs`` and ``policy_decisions`` are those of the policy that the other blocks of rows recommend; ``atoms``
    are predictive scenarios of each row, made without it.
    """

    costs: dict[str, Tensor]
    decisions: dict[str, Tensor]
    policy: str
    policy_costs: Tensor
    policy_decisions: Tensor
    atoms: Scenarios

    def under(self, policy: str | None) -> PolicyResults:
        """Return the same results with a policy of the caller's choice."""
        if policy is None:
            return self
        return replace(self, policy=policy, policy_costs=self.costs[policy], policy_decisions=self.decisions[policy])


@dataclass(frozen=True)
class Promise:
    """Expected and realised cost of decisions on held-out rows; ``ratio`` is expected over realised, with its standard
    error."""

    expected: Estimate
    realised: Estimate
    ratio: float
    standard_error: float


@dataclass(frozen=True)
class HeldOutReport:
    """Costs on held-out rows.

    ``cost`` of every policy; ``judged`` of the policy that other rows recommend; ``constant`` of the best constant
    decision and ``regression`` of plain regression on the same rows, with paired differences ``over_constant`` and
    ``over_regression``; ``promise`` compares expected with realised costs; ``order`` is the correlation of neighbouring
    rows' errors; ``beyond`` the number of rows with an outcome beyond the problem's stated bounds, counted as the
    bound.
    """

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
    forward: ForwardReport | None = None


def judge_policies(
    target: GibbsTarget,
    seen: Sequence[tuple[Tensor, Scenarios]],
    stored: StoredHistory,
    block: Tensor,
    generator: torch.Generator,
) -> PolicyResults:
    """Judge every policy over scenarios ``seen`` of groups of the history's rows, each with its places in the history.

    The recommended policy of a row is the one that the other blocks (H,) recommend.
    """
    problem, terms = target.problem, Terms(generator)
    outcomes, features = target.sample.outcomes[stored.rows], target.features[stored.rows]
    decisions = {name: torch.empty(len(block), problem.decision_dim, dtype=torch.float64) for name in POLICIES}
    atoms = torch.empty(len(block), _ATOMS, problem.outcome_dim, dtype=torch.float64)
    for places, scenarios in seen:
        predictive = predictive_scenarios(stored.history, scenarios.mean(), _ATOMS, features[places], own=places)
        atoms[places] = predictive.outcomes
        for name in POLICIES:
            decisions[name][places] = decide_over(problem, scenarios, predictive, name, terms).decisions.double()
    costs = {name: problem.cost(values, outcomes) for name, values in decisions.items()}
    results = PolicyResults(
        costs,
        decisions,
        "",
        *_by_recommended_policy(problem, costs, decisions, block),
        Scenarios.equal(atoms, atoms[:, 0]),
    )
    return replace(results, policy=_recommend(problem, costs, slice(None)))


def _by_recommended_policy(
    problem: DecisionProblem, costs: dict[str, Tensor], decisions: dict[str, Tensor], block: Tensor
) -> tuple[Tensor, Tensor]:
    own_costs, own_decisions = (values[first_policy(problem)].clone() for values in (costs, decisions))
    for number in block.unique().tolist():
        inside, outside = sides(block, number)
        name = _recommend(problem, costs, outside)
        own_costs[inside], own_decisions[inside] = costs[name][inside], decisions[name][inside]
    return own_costs, own_decisions


def _recommend(problem: DecisionProblem, costs: dict[str, Tensor], rows: Tensor | slice) -> str:
    """Return the cheapest policy; for a problem with promises over scenarios, the one that takes them into account."""
    if problem.promises:
        return policy_of_paper(problem)
    names = competing_policies(problem)
    return names[select([costs[name][rows] for name in names], [{} for _ in names]).best]


def policy_of_paper(problem: DecisionProblem) -> str:
    """Return BCP, the paper's policy, or the predictive policy for a problem with promises over scenarios."""
    return next(name for name in RECOMMENDABLE if POLICIES[name].predictive) if problem.promises else "bcp"


def sides(block: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return masks of the rows inside a block and outside it; a single block is both."""
    inside = block == number
    return inside, ~inside if (~inside).any() else inside


def summarize(
    target: GibbsTarget, stored: StoredHistory, results: PolicyResults, forward: bool = False
) -> HeldOutReport:
    """Summarise the judged rows; ``forward`` where they were predicted from earlier rows only."""
    problem, sample, costs = target.problem, target.sample.rows(stored.rows), results.policy_costs
    if forward:
        constant = constant_before(problem, target.sample, stored.rows)
        regression = regression_before(problem, target.sample, stored.rows)
    else:
        constant, regression = constant_costs(problem, sample.outcomes), regression_costs(problem, sample)
    expected = expected_cost(target.problem, results.policy_decisions, results.atoms)
    labels = [{"policy": name} for name in competing_policies(problem)]
    return HeldOutReport(
        rows=len(stored.rows),
        cost={name: estimate(values) for name, values in results.costs.items()},
        policies=select([results.costs[name] for name in competing_policies(problem)], labels).table,
        judged=estimate(costs),
        constant=estimate(constant),
        over_constant=paired_difference(costs, constant),
        regression=None if regression is None else estimate(regression),
        over_regression=None if regression is None else paired_difference(costs, regression),
        promise=compare_promise(expected, costs),
        calibration=calibrate(stored.history, target.features[stored.rows]),
        carriers=stored.carriers,
        order=stored.order,
        beyond=beyond_bounds(target.problem, target.sample.outcomes),
        forward=_forward(target, stored, results, expected) if forward else None,
    )


def _forward(target: GibbsTarget, stored: StoredHistory, results: PolicyResults, expected: Tensor) -> ForwardReport:
    tails = promised_tail(target.problem, results.policy_decisions, results.atoms)
    realised = results.policy_costs
    return report_forward(target.problem, target.sample, stored.rows, results.costs, realised, expected, tails)


def compare_promise(expected: Tensor, realised: Tensor) -> Promise:
    """Return the ratio of expected to realised mean cost (m,), with the delta method's standard error."""
    known = expected.isfinite() & realised.isfinite()
    expected, realised = expected[known], realised[known]
    if len(realised) == 0:
        return Promise(Estimate(math.nan, math.inf), Estimate(math.nan, math.inf), math.nan, math.inf)
    expected_mean, realised_mean = expected.mean().item(), realised.mean().item()
    if realised_mean == 0:
        return Promise(estimate(expected), estimate(realised), 1.0 if expected_mean == 0 else math.inf, 0.0)
    error = estimate(expected - expected_mean / realised_mean * realised).standard_error
    return Promise(estimate(expected), estimate(realised), expected_mean / realised_mean, error / abs(realised_mean))


def constant_costs(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """Return the cost (m,) of the best constant decision on each row, fitted without that row's fifth."""
    costs = torch.empty(len(outcomes), dtype=outcomes.dtype)
    for fold, others in _fifths(len(outcomes)):
        decision = best_constant(problem, outcomes[others] if others.any() else outcomes).decisions
        costs[fold] = problem.cost(decision, outcomes[fold])
    return costs


def regression_costs(problem: DecisionProblem, sample: Sample) -> Tensor | None:
    """Return the cost (m,) of ridge regression with decisions over its residuals, fitted without each row's fifth.

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
    """Return each fifth of the rows, in random order, and a mask of the others."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    result = []
    for fold in order.chunk(FOLDS):
        others = torch.ones(count, dtype=torch.bool)
        others[fold] = False
        result.append((fold, others))
    return result


def beyond_bounds(problem: DecisionProblem, outcomes: Tensor) -> int:
    """Return the number of rows (n, d_y) with an outcome that the problem counts as one of its stated bounds."""
    bounds = problem.counted_within
    return 0 if bounds is None else int(((outcomes < bounds[0]) | (outcomes > bounds[1])).any(dim=1).sum())


def autocorrelation(residuals: Tensor, rows: Tensor) -> float:
    """Return the correlation of residuals (m, d_y) of rows (m,) with those of the row before, the largest by outcome.

    Zero where too few of the rows are neighbours.
    """
    order = rows.argsort()
    following = rows[order].diff() == 1
    if following.sum() < _NEIGHBOURS:
        return 0.0
    centred = (residuals - residuals.mean(dim=0))[order]
    lagged = (centred[1:] * centred[:-1])[following].mean(dim=0)
    result: float = (lagged / centred.square().mean(dim=0).clamp_min(1e-300)).max().item()
    return result
