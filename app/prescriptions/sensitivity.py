"""How decision and expected cost move with the columns of a context, which of them drove it, and what rules cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from app.datasets.lookback import Past
from app.db.tables import PosteriorRow
from app.prescriptions.cache import Ready
from app.prescriptions.perturbations import Move, entries, numbers, step_of, steps, switchable, switches
from app.prescriptions.prescribe import listed
from app.problems.schemas import outcome_names
from bco_core import deadline
from bco_core.errors import InvalidInput
from bco_core.explain.attribution import attribute
from bco_core.explain.derivatives import Slopes, slopes
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.base import Status
from bco_core.scenarios import Scenarios

Json = dict[str, Any]

BASELINE = "the history's mean context; of a category, the shares of its values"

# Of the time that is left, what comparing decisions may take.
_SHARE = 0.8


def sensitivities(
    row: PosteriorRow,
    loaded: Ready,
    options: PrescribeOptions,
    draws: Tensor,
    past: Past | None,
    contexts: Sequence[Sequence[Any]],
    matrix: Tensor,
    decisions: Tensor,
    expected: Sequence[float | None],
    atoms: Scenarios,
) -> list[Json]:
    """In the shape of ``SensitivityAnswer``, for contexts by their values and encoded (B, width), their decisions
    (B, d_z), expected costs and scenarios."""
    exact: list[Slopes | None] = []
    moves: list[Move] = []
    for number, context in enumerate(contexts):
        deadline.check()
        exact.append(slopes(loaded.posterior, loaded.problem, matrix[number], options, draws, decisions[number]))
        if exact[-1] is None:
            moves += steps(loaded.encoding, number, context, row.columns)
        moves += switches(loaded.encoding, number, context, row.columns)
    moved: list[dict[Move, Tensor]] = [{} for _ in contexts]
    for move, answer in zip(moves, _answers(loaded, options, draws, past, contexts, moves), strict=True):
        moved[move.number][move] = answer
    own = torch.tensor([torch.nan if cost is None else cost for cost in expected], dtype=torch.float64)
    base = torch.cat([decisions, own[:, None]], dim=1)
    found = []
    for number, context in enumerate(contexts):
        costs = (
            []
            if decisions[number].isnan().any()
            else loaded.problem.prices(decisions[number], atoms.outcomes[number], atoms.weights)
        )
        found.append(
            {
                "derivatives": _derivatives(row, loaded, context, exact[number], moved[number]),
                "switches": _switched(row, loaded, base[number], moved[number]),
                "attribution": _attribution(row, loaded, matrix[number], draws),
                "prices": [{"rule": place(row.problem, price.where), "price": price.value} for price in costs],
            }
        )
    return found


def _answers(
    loaded: Ready,
    options: PrescribeOptions,
    draws: Tensor,
    past: Past | None,
    contexts: Sequence[Sequence[Any]],
    moves: list[Move],
) -> list[Tensor]:
    """Decision and expected cost (d_z + 1,) of each moved context; NaN for those that are refused, or take too long."""
    answers = torch.full((len(moves), len(loaded.decisions) + 1), torch.nan, dtype=torch.float64)
    if moves:
        moved = [move.apply(contexts[move.number], loaded.encoding.names) for move in moves]
        encoded = loaded.encoding.encode_rows(moved, past)
        usable = torch.from_numpy(encoded.usable)
        if len(usable):
            answers[usable] = _decided(loaded, options, draws, torch.from_numpy(encoded.matrix)[usable])
    return list(answers)


def _decided(loaded: Ready, options: PrescribeOptions, draws: Tensor, matrix: Tensor) -> Tensor:
    try:
        found = prescribe(
            loaded.posterior, loaded.problem, matrix, options, draws, solver_seconds=_SHARE * deadline.left()
        )
    except InvalidInput:
        # One of them is so far from the history that nothing can be predicted of it; others can.
        if len(matrix) == 1:
            return torch.full((1, len(loaded.decisions) + 1), torch.nan, dtype=torch.float64)
        return torch.cat([_decided(loaded, options, draws, one) for one in matrix.split(1)])
    answers = torch.cat([found.decisions, found.costs.mean[:, None]], dim=1)
    # What a time limit has cut off would be compared with what it has not.
    answers[[status is Status.TIME_LIMIT for status in found.status]] = torch.nan
    return answers


def _named(loaded: Ready, change: Tensor) -> Json:
    """Changes (d_z + 1,) of a decision and its expected cost."""
    *decision, cost = listed(change)
    return {"decision": dict(zip(loaded.decisions, decision, strict=True)), "expected_cost": cost}


def _derivatives(
    row: PosteriorRow, loaded: Ready, context: Sequence[Any], exact: Slopes | None, answers: dict[Move, Tensor]
) -> Json:
    profiles = {column["name"]: column for column in row.columns}
    beside = {(move.column, move.label): answer for move, answer in answers.items()}
    found = {}
    for name, at in numbers(loaded.encoding, row.columns).items():
        method, step, change = None, None, torch.full((len(loaded.decisions) + 1,), torch.nan, dtype=torch.float64)
        if context[loaded.encoding.names.index(name)] is not None:
            if exact is not None:
                method, change = "exact", torch.cat([exact.decision[:, at], exact.cost[at : at + 1]])
            elif (name, "up") in beside:
                method, step = "difference", step_of(profiles[name])
                change = (beside[name, "up"] - beside[name, "down"]) / (2 * step)
        found[name] = {"method": method, "step": step} | _named(loaded, change)
    return found


def _switched(row: PosteriorRow, loaded: Ready, base: Tensor, answers: dict[Move, Tensor]) -> Json:
    """By column and value. Of the two periods beside a context's, the later one that can be decided for is told."""
    lookback = loaded.encoding.lookback
    found: dict[str, Json] = {name: {} for name in switchable(loaded.encoding, row.columns)}
    for move, answer in answers.items():
        known = found.get(move.column)
        if known is None:
            continue
        timed = lookback is not None and move.column == lookback.time.name
        if not timed or (not known and not answer.isnan().all()):
            known[move.label] = _named(loaded, answer - base)
    return found


def _attribution(row: PosteriorRow, loaded: Ready, context: Tensor, draws: Tensor) -> Json:
    columns = entries(loaded.encoding)
    found = attribute(loaded.posterior, context, list(columns.values()), draws)
    parts = zip(
        listed(found.base), listed(found.contributions.T), listed(found.prediction), listed(found.residual), strict=True
    )
    return {
        "method": found.method,
        "baseline": BASELINE,
        "outcomes": {
            name: {
                "base": base,
                "contributions": dict(zip(columns, contributions, strict=True)),
                "prediction": prediction,
                "residual": residual,
            }
            for name, (base, contributions, prediction, residual) in zip(outcome_names(row.problem), parts, strict=True)
        },
    }


def place(spec: Json, where: Sequence[str | int]) -> str:
    """A place in a specification by the names that patches use: ``items/loaves/maximum_order``, ``rows/row 1``."""
    words: list[str] = []
    at: Any = spec
    for step in where:
        known = isinstance(at, list) if isinstance(step, int) else isinstance(at, dict) and step in at
        at = at[step] if known else None
        name = at.get("name") if isinstance(at, dict) else at
        unnamed = f"row {step + 1}" if isinstance(step, int) and words[-1] in ("decision_rows", "rows") else str(step)
        words.append(name if isinstance(step, int) and isinstance(name, str) else unnamed)
    return "/".join(words)
