"""Parts that ``include`` adds to an answer: scenarios, outcomes, recourse, sensitivity, neighbours.

They describe the decision over the scenarios behind its costs, so that these costs can be recomputed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from app.datasets.service import as_json
from app.prescriptions.context import PreparedRequest, json_numbers
from app.prescriptions.neighbours import SearchableHistory
from app.prescriptions.sensitivity import sensitivities
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core import deadlines
from bco_core.explain.outcomes import cost_scenarios, summary
from bco_core.prescribe import QUANTILES
from bco_core.problems.base import SecondStage
from bco_core.scenarios import Scenarios

Json = dict[str, Any]

# Slack up to this, relative to the row's largest, is rounding.
_NO_SLACK = 1e-9


def add_parts(prepared: PreparedRequest, answers: list[Json], history: SearchableHistory | None) -> None:
    """Add the parts that a request includes to the answers of its contexts; ``history`` is for neighbours.

    A part is null where there is no prediction; its numbers are null where there is no decision.
    """
    include = set(prepared.request.include)
    for answer in answers:
        answer.update(dict.fromkeys(sorted(include)))
    usable = prepared.encoded.usable.tolist()
    if not usable or not include:
        return
    matrix = torch.from_numpy(prepared.encoded.matrix[usable])
    decisions = torch.tensor([_decision(answers[number]) for number in usable], dtype=torch.float64)
    atoms = cost_scenarios(prepared.loaded.posterior, matrix, prepared.options, prepared.draws)
    parts: dict[str, list[Any]] = {}
    names = outcome_names(prepared.row.problem)
    if "outcomes" in include:
        parts["outcomes"] = _outcomes(prepared, decisions, atoms, names)
    if "scenarios" in include:
        parts["scenarios"] = _scenarios(prepared, decisions, atoms, names)
    if "recourse" in include:
        parts["recourse"] = _recourses(prepared, decisions, atoms)
    if "sensitivity" in include:
        expected = [answers[number]["expected_cost"] for number in usable]
        contexts = [prepared.contexts[number] for number in usable]
        parts["sensitivity"] = sensitivities(prepared, contexts, matrix, decisions, expected, atoms)
    if history is not None:
        parts["neighbours"] = _neighbours(prepared, history, matrix, decisions, names)
    for name, each in parts.items():
        for number, part in zip(usable, each, strict=True):
            answers[number][name] = part


def _decision(answer: Json) -> list[float]:
    return [torch.nan if value is None else value for value in answer["decision"].values()]


def _outcomes(prepared: PreparedRequest, decisions: Tensor, atoms: Scenarios, names: list[str]) -> list[Json]:
    outcomes = summary(prepared.problem, decisions, atoms)
    served = torch.full_like(outcomes.mean, torch.nan) if outcomes.served is None else outcomes.served
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
        for one in zip(
            json_numbers(outcomes.mean),
            json_numbers(outcomes.deviation),
            json_numbers(outcomes.quantiles),
            json_numbers(served),
            strict=True,
        )
    ]


def _scenarios(prepared: PreparedRequest, decisions: Tensor, atoms: Scenarios, names: list[str]) -> list[Json]:
    costs = prepared.problem.cost(decisions[:, None], atoms.outcomes)
    weights = atoms.weights.tolist()
    return [
        {
            "weights": weights,
            "outcomes": dict(zip(names, outcomes.T.tolist(), strict=True)),
            "costs": json_numbers(cost),
        }
        for outcomes, cost in zip(atoms.outcomes, costs, strict=True)
    ]


def _recourses(prepared: PreparedRequest, decisions: Tensor, atoms: Scenarios) -> list[Json | None]:
    problem = prepared.problem
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
    """Return the recourse of a decision (d_z,) with total ``costs`` (K,); ``whole`` adds the plan of every scenario."""
    deadlines.check()
    plan = problem.recourse_plan(decision, outcomes)
    amounts = weights @ plan.amounts
    used = _share(plan.amounts != 0, weights)
    # Slack is compared with the row's largest in any scenario.
    binding = _share(plan.slack <= _NO_SLACK * (1 + plan.slack.amax(dim=0)), weights)
    # The first stage costs the rest, which is unknown in scenarios without feasible recourse.
    feasible = costs.isfinite()
    first = (
        float(weights[feasible] @ (costs - plan.costs)[feasible] / weights[feasible].sum()) if feasible.any() else None
    )
    spent = weights @ (plan.amounts * plan.unit_costs)
    described = zip(json_numbers(amounts), json_numbers(used), json_numbers(spent), strict=True)
    return {
        "first_stage_cost": first,
        "expected_cost": float(weights @ plan.costs) if feasible.all() else None,
        "expected": {
            name: {"amount": amount, "used_in": share, "cost": cost}
            for name, (amount, share, cost) in zip(problem.recourse_names, described, strict=True)
        },
        "rows": [
            {"name": name, "slack": slack, "binding_in": share}
            for name, slack, share in zip(
                problem.row_names, json_numbers(weights @ plan.slack), json_numbers(binding), strict=True
            )
        ],
        "plans": {
            "names": list(problem.recourse_names),
            "amounts": json_numbers(plan.amounts),
            "costs": json_numbers(plan.costs),
        }
        if whole
        else None,
    }


def _share(happens: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted share (m,), at most one, of scenarios in which events (K, m) happen."""
    return (weights @ happens.double()).clamp(max=1.0)


def _neighbours(
    prepared: PreparedRequest, history: SearchableHistory, matrix: Tensor, decisions: Tensor, names: list[str]
) -> list[Json]:
    rows, distances = history.neighbourhood.nearest(matrix, prepared.request.neighbours)
    outcomes = history.outcomes[rows]
    costs = prepared.problem.cost(decisions[:, None], outcomes)
    columns = [column for column in prepared.row.columns if column["name"] in prepared.loaded.encoding.names]
    answers = []
    for number in range(len(matrix)):
        nearest = as_json(history.table.take(rows[number].numpy()), prepared.row.columns)
        answers.append(
            {
                "of_rows": len(history),
                "rows": [
                    {
                        "distance": distance,
                        "context": {column["name"]: one[column["name"]] for column in columns},
                        "outcomes": dict(zip(names, happened, strict=True)),
                        "cost": cost,
                    }
                    for one, distance, happened, cost in zip(
                        nearest,
                        distances[number].tolist(),
                        outcomes[number].tolist(),
                        json_numbers(costs[number]),
                        strict=True,
                    )
                ],
            }
        )
    return answers
