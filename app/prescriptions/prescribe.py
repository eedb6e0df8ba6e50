"""From encoded contexts to named decisions: those that can be decided for are, and others say why not."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from app import metrics
from app.datasets.encoding import EncodedContexts, Refusal
from app.db.tables import PosteriorRow
from app.http.errors import of_core
from app.prescriptions.cache import Ready
from app.prescriptions.schemas import REFUSED, PrescribeOptions
from bco_core.errors import InvalidInput
from bco_core.prescribe import QUANTILES, PrescribeResult
from bco_core.prescribe import PrescribeOptions as Options
from bco_core.prescribe import prescribe as prescribe_for
from bco_core.problems.base import Risk


def decide_usable(
    row: PosteriorRow,
    loaded: Ready,
    encoded: EncodedContexts,
    request: PrescribeOptions,
    theta: Tensor | None = None,
    seconds: float = math.inf,
    solver_seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """A prescription for each encoded context, or why there is none, with what is to be said of the context.

    Contexts of which nothing can be predicted are added to those that are refused.
    """
    far = far_from_history(loaded, encoded)

    def decided(numbers: list[int]) -> dict[int, dict[str, Any]]:
        contexts = torch.from_numpy(encoded.matrix[numbers])
        try:
            found = decide(row, loaded, contexts, request, theta, seconds, solver_seconds)
        except InvalidInput as error:
            blamed = [number for number in numbers if number in far]
            if error.where != ("contexts",) or not blamed:
                raise
            if len(numbers) == 1:
                encoded.refused[numbers[0]] = Refusal("", str(error))
                return {}
            # Only those far from the history can be to blame: each goes on alone, the others together.
            near = [number for number in numbers if number not in far]
            pieces = [[number] for number in blamed] + ([near] if near else [])
            return {number: one for piece in pieces for number, one in decided(piece).items()}
        return dict(zip(numbers, found, strict=True))

    usable = encoded.usable.tolist()
    answers = decided(usable) if usable else {}
    for number, why in encoded.refused.items():
        answers[number] = _refused(why, loaded.decisions)
    for number in {*far, *encoded.notes} - encoded.refused.keys():
        said = [known.warning() for column in far.get(number, ()) if (known := loaded.ranges[column]) is not None]
        answers[number]["warnings"] = encoded.notes.get(number, []) + said
    return [answers[number] for number in range(len(encoded.matrix))]


def _refused(why: Refusal, names: list[str]) -> dict[str, Any]:
    """In the shape of a prescription, a context for which there is none."""
    nothing = dict.fromkeys(names)
    return {
        "decision": nothing,
        "expected_cost": None,
        "cost_quantiles": {str(level): None for level in QUANTILES},
        "cvar_95": None,
        "status": REFUSED,
        "reason": why.sentence,
        "solver": "",
        "gap": None,
        "feasibility": None,
        "facts": None,
        "map": {"decision": nothing, "expected_cost": None},
        "hedging_gain": None,
        "warnings": [],
    }


def far_from_history(loaded: Ready, encoded: EncodedContexts) -> dict[int, list[int]]:
    """The columns by which usable rows lie beyond the history's range by more than that range, by row."""
    contexts = torch.from_numpy(encoded.matrix)
    beyond = (contexts < loaded.lowest) | (contexts > loaded.highest)
    found: dict[int, list[int]] = {}
    if beyond.any():
        for number, column in beyond.nonzero().tolist():
            if number not in encoded.refused:
                found.setdefault(number, []).append(column)
    return found


def decide(
    row: PosteriorRow,
    loaded: Ready,
    contexts: Tensor,
    request: PrescribeOptions,
    theta: Tensor | None = None,
    seconds: float = math.inf,
    solver_seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """A prescription for each encoded context (B, width), in the shape of ``PrescriptionAnswer``.

    ``theta`` (K, d) are the request's draws, if they are there already. Solvers stop with the best they have after
    ``solver_seconds``; the whole is given up after ``seconds``.
    """
    options = core_options(row, request)
    found = prescribe_for(loaded.posterior, loaded.problem, contexts, options, theta, seconds, solver_seconds)
    metrics.count_prescriptions(found.status, [solver or "formula" for solver in found.solvers])
    return _answers(found, loaded.decisions)


def core_options(row: PosteriorRow, request: PrescribeOptions) -> Options:
    policy = request.policy or (None if request.risk else row.policy)
    risk = Risk(**request.risk.model_dump()) if request.risk else None
    try:
        return Options(policy, request.alpha, request.scenarios, request.seed, request.costs_over, risk)
    except InvalidInput as error:
        raise of_core(error) from None


def _answers(found: PrescribeResult, names: list[str]) -> list[dict[str, Any]]:
    labels = [str(level) for level in QUANTILES]
    return [
        {
            "decision": dict(zip(names, decision, strict=True)),
            "expected_cost": mean,
            "cost_quantiles": dict(zip(labels, quantiles, strict=True)),
            "cvar_95": cvar,
            "status": status,
            "reason": reason,
            "solver": solver,
            "gap": gap,
            "feasibility": share,
            "facts": facts or None,
            "map": {"decision": dict(zip(names, other, strict=True)), "expected_cost": other_cost},
            "hedging_gain": gain,
            "warnings": [],
        }
        for decision, mean, quantiles, cvar, status, reason, solver, gap, share, facts, other, other_cost, gain in zip(
            listed(found.decisions),
            listed(found.costs.mean),
            listed(found.costs.quantiles),
            listed(found.costs.cvar),
            found.status,
            found.reasons,
            found.solvers,
            listed(found.gaps),
            listed(found.feasibility),
            found.facts,
            listed(found.map_decisions),
            listed(found.map_costs),
            listed(found.hedging_gain),
            strict=True,
        )
    ]


def listed(values: Tensor) -> list[Any]:
    """Plain numbers, with null for those that are not finite: JSON has no others."""
    plain: list[Any] = values.tolist()
    if torch.isfinite(values).all():
        return plain
    if values.ndim > 1:
        return [listed(row) for row in values]
    return [value if math.isfinite(value) else None for value in plain]
