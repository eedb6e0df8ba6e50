"""Forward validation in time: costs of decisions for later rows by members, and by baselines, that know only the past.

Members that learned up to one of several times decide for the block that follows
(:func:`bco_core.data.forward_folds`). Comparing predicted with realised costs there shows how reliable predicted costs
are, and how fast they age.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bco_core.data import FOLDS, Sample, Standardizer, evenly
from bco_core.estimates import Estimate, estimate
from bco_core.problems.base import DecisionProblem, best_constant
from bco_core.regression import ridge
from bco_core.scenarios import Scenarios
from bco_core.select import Table
from bco_core.timeline import Timeline, blocks, known_before

_SAME_SEASONS = 8
_RESIDUALS = 100
_DISTANCES = 4
_TAIL = 0.95


@dataclass(frozen=True)
class ForwardReport:
    """Costs of every policy on later rows.

    ``stretches`` has a line for each judged block of time, ``distances`` one for each range of periods since the last
    learned row: rows, realised and predicted cost, and the share of rows that cost more than the predicted 95 %
    quantile. ``season`` is the cost there of the best decision over the outcomes of the last eight same seasons.
    """

    cost: dict[str, Estimate]
    stretches: Table
    distances: Table
    season: Estimate | None

    @property
    def worst_tail(self) -> float:
        """The largest share above the predicted 95 % quantile in any stretch of time."""
        return float(max(line["above_95"] for line in self.stretches))


def report_forward(
    problem: DecisionProblem,
    sample: Sample,
    rows: Tensor,
    costs: dict[str, Tensor],
    realised: Tensor,
    expected: Tensor,
    tails: Tensor,
) -> ForwardReport:
    """Report on judged rows (H,): every policy's costs (H,), and the chosen one's realised and expected costs and
    tails."""
    timeline = sample.timeline
    if timeline is None:
        raise RuntimeError("only rows with a time can be judged forward")
    block, distance = blocks(timeline)[rows], distances(timeline)[rows]
    stretches = [
        {
            "from_period": int(timeline.periods[rows[inside]].min()),
            "to_period": int(timeline.periods[rows[inside]].max()),
        }
        | _line(realised[inside], expected[inside], tails[inside])
        for inside in (block == number for number in block.unique().tolist())
    ]
    edges = distance.double().quantile(torch.linspace(0, 1, _DISTANCES + 1, dtype=torch.float64)).long()
    by_distance = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (distance >= low) & (distance <= high)
        if inside.any():
            line = _line(realised[inside], expected[inside], tails[inside])
            by_distance.append({"from_distance": low, "to_distance": high} | line)
    season = season_costs(problem, sample, rows)
    return ForwardReport(
        {name: estimate(values) for name, values in costs.items()},
        stretches,
        by_distance,
        None if season is None else estimate(season),
    )


def _line(realised: Tensor, expected: Tensor, tails: Tensor) -> dict[str, object]:
    return {
        "rows": len(realised),
        "cost": asdict(estimate(realised)),
        "promised": expected.mean().item(),
        "above_95": (realised > tails).double().mean().item(),
    }


def distances(timeline: Timeline) -> Tensor:
    """Return the number of periods (n,) between each row and the last row known before its block; 0 in the first."""
    block = blocks(timeline)
    result = torch.zeros(len(timeline), dtype=torch.int64)
    for number in range(1, int(block.max()) + 1):
        inside = block == number
        if inside.any():
            known = timeline.periods[known_before(timeline, inside)]
            last = known.max() if len(known) else timeline.periods[inside].min() - timeline.lead
            result[inside] = timeline.periods[inside] - last
    return result


def promised_tail(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> Tensor:
    """Return the predicted 95 % quantile (H,) of the cost of decisions (H, d_z)."""
    return problem.cost(decisions[:, None], atoms.outcomes).quantile(_TAIL, dim=1)


def constant_before(problem: DecisionProblem, sample: Sample, rows: Tensor) -> Tensor:
    """Return the cost (H,) of the best constant decision for the outcomes known before each row's block."""
    costs = torch.empty(len(rows), dtype=torch.float64)
    for inside, past in _pasts(sample, rows):
        decision = best_constant(problem, sample.outcomes[past[evenly(len(past), 2000)]]).decisions
        costs[inside] = problem.cost(decision, sample.outcomes[rows[inside]])
    return costs


def regression_before(problem: DecisionProblem, sample: Sample, rows: Tensor) -> Tensor | None:
    """Return the cost (H,) of ridge regression and its residuals, fitted to rows known before each row's block."""
    costs = torch.empty(len(rows), dtype=torch.float64)
    for inside, past in _pasts(sample, rows):
        if len(past) < 4 * FOLDS:
            return None
        decisions = regression_after(problem, sample.rows(past), sample.contexts[rows[inside]])
        costs[inside] = problem.cost(decisions, sample.outcomes[rows[inside]])
    return costs


def regression_after(problem: DecisionProblem, known: Sample, contexts: Tensor) -> Tensor:
    """Return decisions (n, d_z) for contexts (n, d_x) by ridge regression on known rows and its residuals."""
    scale = Standardizer.fit(known.contexts)
    inputs = scale.apply(known.contexts)
    fitted = ridge(inputs, known.outcomes)
    residuals = known.outcomes - inputs @ fitted[:-1] - fitted[-1]
    atoms = residuals[residuals.sum(dim=1).argsort()[evenly(len(residuals), _RESIDUALS)]]
    predicted = scale.apply(contexts) @ fitted[:-1] + fitted[-1]
    scenarios = Scenarios.equal(predicted[:, None] + atoms, predicted)
    return problem.prescribe(scenarios.outcomes, scenarios.weights).decisions


def _pasts(sample: Sample, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return, for each block of some rows (H,), their places among these and the rows known before the block."""
    timeline = sample.timeline
    if timeline is None:
        raise RuntimeError("only rows with a time have a past")
    block = blocks(timeline)
    result = []
    for number in block[rows].unique().tolist():
        inside = (block[rows] == number).nonzero().flatten()
        result.append((inside, known_before(timeline, block == number).nonzero().flatten()))
    return result


def season_costs(problem: DecisionProblem, sample: Sample, rows: Tensor) -> Tensor | None:
    """Return the cost (m,) of deciding over the last eight known outcomes of the same series and season.

    None where there is no season, or most rows have no such outcome.
    """
    if sample.timeline is None or not sample.timeline.season:
        return None
    decisions, known = season_decisions(problem, sample, rows)
    if known.double().mean() < 0.5:
        return None
    return problem.cost(decisions, sample.outcomes[rows[known]])


def season_decisions(problem: DecisionProblem, sample: Sample, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return decisions (m, d_z) over the last eight outcomes of the same series and season, and a mask (H,) of the rows
    that have any."""
    timeline = sample.timeline
    if timeline is None:
        raise RuntimeError("only rows with a time have a season")
    span = int(timeline.periods.max() - timeline.periods.min()) + 1
    first = timeline.periods.min()
    key = timeline.series * span + (timeline.periods - first)
    ordered, order = key.sort()
    begin = -(-timeline.lead // timeline.season)
    back = torch.arange(begin, begin + _SAME_SEASONS) * timeline.season
    wanted = timeline.periods[rows, None] - first - back
    keys = timeline.series[rows, None] * span + wanted
    places = torch.searchsorted(ordered, keys).clamp_max(len(ordered) - 1)
    there = (ordered[places] == keys) & (wanted >= 0)
    known = there.any(dim=1)
    outcomes = sample.outcomes[order[places[known]]]
    weights = there[known].double()
    return problem.prescribe(outcomes, weights / weights.sum(dim=1, keepdim=True)).decisions, known
