"""Sensitivity of decision and expected cost: derivatives by column, switches of values, attribution, shadow prices.

A derivative is exact where the core has one, and otherwise the difference of two answers to perturbed contexts:
contexts in which a planner would have changed one column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.datasets.encoding import ContextColumn, ContextEncoding
from app.datasets.parsing import category_text, is_number
from app.prescriptions.context import PreparedRequest, json_numbers
from app.problems.schemas import outcome_names
from bco_core import deadlines
from bco_core.errors import InvalidInput
from bco_core.explain.attribution import attribute
from bco_core.explain.derivatives import Slopes, slopes
from bco_core.prescribe import prescribe
from bco_core.problems.base import Status
from bco_core.scenarios import Scenarios

Json = dict[str, Any]

BASELINE = "the history's mean context; of a category, the shares of its values"
MOST_SWITCHES = 12
# Step of a difference, as a share of the column's range in the history.
_STEP = 0.05
# Share of the remaining time that decisions for perturbed contexts may take.
_SHARE = 0.8


@dataclass(frozen=True)
class Perturbation:
    """Another ``value`` in a ``column`` of the context with this number, and its ``label`` in an answer."""

    number: int
    column: str
    value: Any
    label: str

    def apply(self, context: Sequence[Any], names: Sequence[str]) -> list[Any]:
        return [self.value if name == self.column else old for name, old in zip(names, context, strict=True)]


def is_flag(profile: dict[str, Any]) -> bool:
    """Tell whether a numeric column is a flag by its profile: every value in the history is zero or one."""
    return profile.get("distinct") == 2 and (profile.get("minimum"), profile.get("maximum")) == (0.0, 1.0)


def amounts(encoding: ContextEncoding, columns: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the numeric columns that are no flags, and their positions in an encoded context."""
    flags = {profile["name"] for profile in columns if is_flag(profile)}
    positions, at = {}, 0
    for column in encoding.columns:
        if column.categories is None and column.name not in flags:
            positions[column.name] = at
        at += column.width
    return positions


def entries(encoding: ContextEncoding) -> dict[str, list[int]]:
    """Return the entries of an encoded context by column; features of time and past belong to the time column."""
    positions, at = {}, 0
    for column in encoding.columns:
        positions[column.name] = list(range(at, at + column.width))
        at += column.width
    if encoding.lookback is not None:
        name = encoding.lookback.time.name
        positions[name] = list(range(at, at + encoding.lookback.recipe.width))
    return positions


def step_of(profile: dict[str, Any]) -> float:
    """Return the step of a difference by a column's profile."""
    return _STEP * float(profile["maximum"] - profile["minimum"]) or 1.0


def steps(
    encoding: ContextEncoding, number: int, context: Sequence[Any], columns: Sequence[dict[str, Any]]
) -> list[Perturbation]:
    """Return each amount a step up, then a step down; missing values have none."""
    profiles = {profile["name"]: profile for profile in columns}
    perturbations = []
    for name in amounts(encoding, columns):
        value = context[encoding.names.index(name)]
        if is_number(value):
            step = step_of(profiles[name])
            perturbations += [
                Perturbation(number, name, value + step, "up"),
                Perturbation(number, name, value - step, "down"),
            ]
    return perturbations


def switchable(encoding: ContextEncoding, columns: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns that are switched: categories, flags and the time."""
    numeric = amounts(encoding, columns)
    names = [column.name for column in encoding.columns if column.name not in numeric]
    return names + ([encoding.lookback.time.name] if encoding.lookback is not None else [])


def switches(
    encoding: ContextEncoding, number: int, context: Sequence[Any], columns: Sequence[dict[str, Any]]
) -> list[Perturbation]:
    """Return other categories, flipped flags, and the next and previous period."""
    numeric = amounts(encoding, columns)
    perturbations = []
    for column in encoding.columns:
        value = context[encoding.names.index(column.name)]
        if column.categories is not None:
            own = _category(column, value)
            others = [category for category in column.categories if category != own][:MOST_SWITCHES]
            perturbations += [Perturbation(number, column.name, other, other) for other in others]
        elif column.name not in numeric and is_number(value):
            perturbations.append(Perturbation(number, column.name, not value, str(not value).lower()))
    if encoding.lookback is not None:
        time, clock = encoding.lookback.time, encoding.lookback.recipe.clock
        own_value = context[encoding.names.index(time.name)]
        periods, refused = time.periods(clock, [own_value])
        for period in () if refused else (int(periods[0]) + 1, int(periods[0]) - 1):
            text = clock.text(period)
            value = int(text) if time.format == "period" else text
            perturbations.append(Perturbation(number, time.name, value, text))
    return perturbations


def _category(column: ContextColumn, value: Any) -> str | None:
    """Return the category of a value; the last one, for all others, if the value has none of its own."""
    text = None if value is None else category_text(value)
    categories = column.categories or ()
    return text if text in categories or not column.other else categories[-1]


def sensitivities(
    prepared: PreparedRequest,
    contexts: Sequence[Sequence[Any]],
    matrix: Tensor,
    decisions: Tensor,
    expected: Sequence[float | None],
    atoms: Scenarios,
) -> list[Json]:
    """Return a ``SensitivityAnswer`` for each of B contexts.

    ``contexts`` are values in column order, ``matrix`` (B, width) the same encoded; ``decisions`` (B, d_z),
    ``expected`` costs and ``atoms`` are those of the answer.
    """
    row, loaded, problem, draws = prepared.row, prepared.loaded, prepared.problem, prepared.draws
    exact: list[Slopes | None] = []
    perturbations: list[Perturbation] = []
    for number, context in enumerate(contexts):
        deadlines.check()
        exact.append(slopes(loaded.posterior, problem, matrix[number], prepared.options, draws, decisions[number]))
        if exact[-1] is None:
            perturbations += steps(loaded.encoding, number, context, row.columns)
        perturbations += switches(loaded.encoding, number, context, row.columns)
    answers: list[dict[Perturbation, Tensor]] = [{} for _ in contexts]
    for one, answer in zip(perturbations, _answers(prepared, contexts, perturbations), strict=True):
        answers[one.number][one] = answer
    own = torch.tensor([torch.nan if cost is None else cost for cost in expected], dtype=torch.float64)
    base = torch.cat([decisions, own[:, None]], dim=1)
    parts = []
    for number, context in enumerate(contexts):
        costs = (
            []
            if decisions[number].isnan().any()
            else problem.prices(decisions[number], atoms.outcomes[number], atoms.weights)
        )
        parts.append(
            {
                "derivatives": _derivatives(prepared, context, exact[number], answers[number]),
                "switches": _switches(prepared, base[number], answers[number]),
                "attribution": _attribution(prepared, matrix[number]),
                "prices": [{"rule": place(row.problem, price.where), "price": price.value} for price in costs],
            }
        )
    return parts


def _answers(
    prepared: PreparedRequest, contexts: Sequence[Sequence[Any]], perturbations: list[Perturbation]
) -> list[Tensor]:
    """Return decision and expected cost (d_z + 1,) by perturbation; NaN for those refused, or that take too long."""
    encoding = prepared.loaded.encoding
    answers = torch.full((len(perturbations), len(prepared.loaded.decisions) + 1), torch.nan, dtype=torch.float64)
    if perturbations:
        rows = [one.apply(contexts[one.number], encoding.names) for one in perturbations]
        encoded = encoding.encode_rows(rows, prepared.past)
        usable = torch.from_numpy(encoded.usable)
        if len(usable):
            answers[usable] = _decide(prepared, torch.from_numpy(encoded.matrix)[usable])
    return list(answers)


def _decide(prepared: PreparedRequest, matrix: Tensor) -> Tensor:
    """Return decisions and expected costs (B, d_z + 1) for encoded contexts (B, width)."""
    posterior, options, left = prepared.loaded.posterior, prepared.options, _SHARE * deadlines.seconds_left()
    try:
        prescribed = prescribe(posterior, prepared.problem, matrix, options, prepared.draws, time_limit_seconds=left)
    except InvalidInput:
        # One of the contexts is too far from the history for a prediction; decide for each alone.
        if len(matrix) == 1:
            return torch.full((1, len(prepared.loaded.decisions) + 1), torch.nan, dtype=torch.float64)
        return torch.cat([_decide(prepared, one) for one in matrix.split(1)])
    answers = torch.cat([prescribed.decisions, prescribed.costs.mean[:, None]], dim=1)
    # A decision cut off by the time limit cannot be compared with one that was not.
    answers[[status is Status.TIME_LIMIT for status in prescribed.status]] = torch.nan
    return answers


def _named(prepared: PreparedRequest, change: Tensor) -> Json:
    """Name the changes (d_z + 1,) of a decision and its expected cost."""
    *decision, cost = json_numbers(change)
    return {"decision": dict(zip(prepared.loaded.decisions, decision, strict=True)), "expected_cost": cost}


def _derivatives(
    prepared: PreparedRequest, context: Sequence[Any], exact: Slopes | None, answers: dict[Perturbation, Tensor]
) -> Json:
    row, loaded = prepared.row, prepared.loaded
    profiles = {column["name"]: column for column in row.columns}
    perturbed = {(one.column, one.label): answer for one, answer in answers.items()}
    derivatives = {}
    for name, at in amounts(loaded.encoding, row.columns).items():
        method, step, change = None, None, torch.full((len(loaded.decisions) + 1,), torch.nan, dtype=torch.float64)
        if context[loaded.encoding.names.index(name)] is not None:
            if exact is not None:
                method, change = "exact", torch.cat([exact.decision[:, at], exact.cost[at : at + 1]])
            elif (name, "up") in perturbed:
                method, step = "difference", step_of(profiles[name])
                change = (perturbed[name, "up"] - perturbed[name, "down"]) / (2 * step)
        derivatives[name] = {"method": method, "step": step} | _named(prepared, change)
    return derivatives


def _switches(prepared: PreparedRequest, base: Tensor, answers: dict[Perturbation, Tensor]) -> Json:
    """Return changes by column and value. Of the next and previous period, the first that can be decided for is in."""
    encoding = prepared.loaded.encoding
    time = None if encoding.lookback is None else encoding.lookback.time.name
    changes: dict[str, Json] = {name: {} for name in switchable(encoding, prepared.row.columns)}
    for one, answer in answers.items():
        values = changes.get(one.column)
        if values is not None and (one.column != time or (not values and not answer.isnan().all())):
            values[one.label] = _named(prepared, answer - base)
    return changes


def _attribution(prepared: PreparedRequest, context: Tensor) -> Json:
    columns = entries(prepared.loaded.encoding)
    shares = attribute(prepared.loaded.posterior, context, list(columns.values()), prepared.draws)
    names = outcome_names(prepared.row.problem)
    parts = (shares.base, shares.contributions.T, shares.prediction, shares.residual)
    return {
        "method": shares.method,
        "baseline": BASELINE,
        "outcomes": {
            name: {
                "base": base,
                "contributions": dict(zip(columns, contributions, strict=True)),
                "prediction": prediction,
                "residual": residual,
            }
            for name, base, contributions, prediction, residual in zip(names, *map(json_numbers, parts), strict=True)
        },
    }


def place(spec: Json, where: Sequence[str | int]) -> str:
    """Return a place in a specification by the names of patches: ``items/loaves/maximum_order``, ``rows/row 1``."""
    words: list[str] = []
    at: Any = spec
    for step in where:
        known = isinstance(at, list) if isinstance(step, int) else isinstance(at, dict) and step in at
        at = at[step] if known else None
        name = at.get("name") if isinstance(at, dict) else at
        unnamed = f"row {step + 1}" if isinstance(step, int) and words[-1] in ("decision_rows", "rows") else str(step)
        words.append(name if isinstance(step, int) and isinstance(name, str) else unnamed)
    return "/".join(words)
