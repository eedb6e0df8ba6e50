"""An answer opened: what may happen, what is done then, what moves the decision, and when it was like this.

Everything is told of the decisions that were found, over the scenarios that their costs are computed over, so that
anyone can compute these costs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.datasets.encoding import EncodedContexts
from app.datasets.lookback import Past
from app.datasets.service import as_json
from app.db.tables import PosteriorRow
from app.http.errors import InvalidRequest
from app.prescriptions.cache import Ready
from app.prescriptions.neighbours import Similar
from app.prescriptions.prescribe import core_options, listed
from app.prescriptions.schemas import PrescribeOptions
from app.prescriptions.sensitivity import sensitivities
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core import deadline
from bco_core.explain.outcomes import cost_scenarios, summary
from bco_core.policies import POLICIES
from bco_core.prescribe import QUANTILES
from bco_core.problems.base import SecondStage
from bco_core.scenarios import Scenarios

Json = dict[str, Any]

# What a plan leaves of a row, beside the amounts in it, that is rounding.
_NONE_LEFT = 1e-9
_RANDOM = (
    "policy {policy} draws a decision at random for each context, so there is nothing to compare; leave out "
    "sensitivity, or choose another policy"
)


@dataclass(frozen=True)
class Opening:
    """All that opening an answer takes: a posterior ready to prescribe, the request, its draws (K, d), what is looked
    back on, and the rows that neighbours are looked for in."""

    row: PosteriorRow
    loaded: Ready
    request: PrescribeOptions
    draws: Tensor
    past: Past | None = None
    similar: Similar | None = None


def check(row: PosteriorRow, request: PrescribeOptions, contexts: int, where: str, times: int = 1) -> None:
    """Refuse to open what would be too many numbers, ``times`` the limit of one answer, or random."""
    if not request.include:
        return
    outcomes, most = len(outcome_names(row.problem)), times * get_settings().max_included_numbers
    total = contexts * request.scenarios * outcomes
    if total > most:
        detail = (
            f"{contexts} contexts × {request.scenarios} scenarios × {outcomes} outcomes are {total} numbers, and with "
            f"include at most {most} are told (BCO_MAX_INCLUDED_NUMBERS); ask for fewer contexts or scenarios"
        )
        raise InvalidRequest.at((where,), detail)
    policy = core_options(row, request).chosen_policy
    if "sensitivity" in request.include and POLICIES[policy].random:
        raise InvalidRequest.at(("include",), _RANDOM.format(policy=policy))


def open_up(opening: Opening, contexts: Sequence[Sequence[Any]], encoded: EncodedContexts, answers: list[Json]) -> None:
    """Add to the answers for contexts, as lists of their values in order, what the request includes.

    Where there is no prediction, keys are null; numbers are null where there is no decision.
    """
    include, loaded = set(opening.request.include), opening.loaded
    for answer in answers:
        answer.update(dict.fromkeys(sorted(include)))
    usable = encoded.usable.tolist()
    if not usable or not include:
        return
    matrix = torch.from_numpy(encoded.matrix[usable])
    decisions = torch.tensor([_decision(answers[number]) for number in usable], dtype=torch.float64)
    options = core_options(opening.row, opening.request)
    atoms = cost_scenarios(loaded.posterior, matrix, options, opening.draws)
    parts: dict[str, list[Any]] = {}
    names = outcome_names(opening.row.problem)
    if "outcomes" in include:
        parts["outcomes"] = _outcomes(opening, decisions, atoms, names)
    if "scenarios" in include:
        parts["scenarios"] = _scenarios(opening, decisions, atoms, names)
    if "recourse" in include:
        parts["recourse"] = _recourses(opening, decisions, atoms)
    if "sensitivity" in include:
        expected = [answers[number]["expected_cost"] for number in usable]
        rows = [contexts[number] for number in usable]
        parts["sensitivity"] = sensitivities(
            opening.row, loaded, options, opening.draws, opening.past, rows, matrix, decisions, expected, atoms
        )
    if opening.similar is not None and "neighbours" in include:
        parts["neighbours"] = _neighbours(opening, opening.similar, matrix, decisions, names)
    for name, each in parts.items():
        for number, part in zip(usable, each, strict=True):
            answers[number][name] = part


def _decision(answer: Json) -> list[float]:
    return [torch.nan if value is None else value for value in answer["decision"].values()]


def _outcomes(opening: Opening, decisions: Tensor, atoms: Scenarios, names: list[str]) -> list[Json]:
    told = summary(opening.loaded.problem, decisions, atoms)
    served = torch.full_like(told.mean, torch.nan) if told.served is None else told.served
    labels = [str(level) for level in QUANTILES]
    return [
        {
            name: {
                "mean": mean,
                "standard_deviation": deviation,
                "quantiles": dict(zip(labels, quantiles, strict=True)),
                "service_level": level,
            }
            for name, mean, deviation, quantiles, level in zip(names, *one, strict=True)
        }
        for one in zip(listed(told.mean), listed(told.deviation), listed(told.quantiles), listed(served), strict=True)
    ]


def _scenarios(opening: Opening, decisions: Tensor, atoms: Scenarios, names: list[str]) -> list[Json]:
    costs = opening.loaded.problem.cost(decisions[:, None], atoms.outcomes)
    weights = atoms.weights.tolist()
    return [
        {"weights": weights, "outcomes": dict(zip(names, outcomes.T.tolist(), strict=True)), "costs": listed(cost)}
        for outcomes, cost in zip(atoms.outcomes, costs, strict=True)
    ]


def _recourses(opening: Opening, decisions: Tensor, atoms: Scenarios) -> list[Json | None]:
    problem = opening.loaded.problem
    if not isinstance(problem, SecondStage):
        return [None] * len(decisions)
    numbers = atoms.outcomes.shape[0] * atoms.outcomes.shape[1] * len(problem.recourse_names)
    whole = numbers <= get_settings().max_included_numbers
    costs = problem.cost(decisions[:, None], atoms.outcomes)
    return [
        None if decision.isnan().any() else _recourse(problem, decision, outcomes, atoms.weights, cost, whole)
        for decision, outcomes, cost in zip(decisions, atoms.outcomes, costs, strict=True)
    ]


def _recourse(
    problem: SecondStage, decision: Tensor, outcomes: Tensor, weights: Tensor, costs: Tensor, whole: bool
) -> Json:
    """Of one decision (d_z,), whose whole ``costs`` (K,) are known; ``whole`` tells the plan of every scenario."""
    deadline.check()
    plan = problem.recourse_plan(decision, outcomes)
    amounts = weights @ plan.amounts
    used = _share(plan.amounts != 0, weights)
    # Slack is judged beside the largest that the row leaves anywhere.
    binding = _share(plan.slack <= _NONE_LEFT * (1 + plan.slack.amax(dim=0)), weights)
    # What the first stage costs is the rest; where nothing mends a scenario, it is not known there.
    mended = costs.isfinite()
    first = float(weights[mended] @ (costs - plan.costs)[mended] / weights[mended].sum()) if mended.any() else None
    spent = weights @ (plan.amounts * plan.unit_costs)
    described = zip(listed(amounts), listed(used), listed(spent), strict=True)
    return {
        "first_stage_cost": first,
        "expected_cost": float(weights @ plan.costs) if mended.all() else None,
        "expected": {
            name: {"amount": amount, "used_in": share, "cost": cost}
            for name, (amount, share, cost) in zip(problem.recourse_names, described, strict=True)
        },
        "rows": [
            {"name": name, "slack": slack, "binding_in": share}
            for name, slack, share in zip(problem.row_names, listed(weights @ plan.slack), listed(binding), strict=True)
        ],
        "plans": {"names": list(problem.recourse_names), "amounts": listed(plan.amounts), "costs": listed(plan.costs)}
        if whole
        else None,
    }


def _share(happens: Tensor, weights: Tensor) -> Tensor:
    """The share (m,) of scenarios in which things happen, (K, m); rounding must not carry it past one."""
    return (weights @ happens.double()).clamp(max=1.0)


def _neighbours(opening: Opening, similar: Similar, matrix: Tensor, decisions: Tensor, names: list[str]) -> list[Json]:
    rows, distances = similar.neighbourhood.nearest(matrix, opening.request.neighbours)
    outcomes = similar.outcomes[rows]
    costs = opening.loaded.problem.cost(decisions[:, None], outcomes)
    asked = [column for column in opening.row.columns if column["name"] in opening.loaded.encoding.names]
    found = []
    for number in range(len(matrix)):
        told = as_json(similar.table.take(rows[number].numpy()), opening.row.columns)
        found.append(
            {
                "of_rows": len(similar),
                "rows": [
                    {
                        "distance": distance,
                        "context": {column["name"]: one[column["name"]] for column in asked},
                        "outcomes": dict(zip(names, happened, strict=True)),
                        "cost": cost,
                    }
                    for one, distance, happened, cost in zip(
                        told,
                        distances[number].tolist(),
                        outcomes[number].tolist(),
                        listed(costs[number]),
                        strict=True,
                    )
                ],
            }
        )
    return found
