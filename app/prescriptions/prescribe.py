"""Prescribe: decide for the contexts of a prepared request, and name the numbers of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic
from typing import Any

import orjson
import torch
from torch import Tensor

from app import metrics
from app.datasets.encoding import Refusal
from app.http.errors import HttpError
from app.prescriptions.cache import PosteriorCache
from app.prescriptions.context import AnswerBody, PreparedRequest, PrescribeCall, json_numbers, prepare
from app.prescriptions.include import add_parts
from app.prescriptions.neighbours import cached_history
from app.prescriptions.schemas import REFUSED
from bco_core import deadlines
from bco_core.errors import BcoError, InvalidInput, OutOfTime
from bco_core.prescribe import QUANTILES, PrescribeResult
from bco_core.prescribe import prescribe as prescribe_for

# Share of the time for an answer with included parts that deciding may take.
_DECIDING_SHARE = 0.5
_LABELS = [str(level) for level in QUANTILES]


def prescribe(
    cache: PosteriorCache, calls: Sequence[PrescribeCall], time_limit_seconds: float = math.inf
) -> list[AnswerBody | Exception]:
    """Answer calls that share a batch key, each in the shape of ``PrescribeAnswer`` or with the error that refuses it.

    An error of one call does not touch the others. Raises OutOfTime where deciding takes ``time_limit_seconds``, or the
    deadline in force has passed.
    """
    try:
        return _prescribe(cache, calls, time_limit_seconds)
    except OutOfTime:
        raise
    except (HttpError, BcoError) as error:
        if len(calls) == 1:
            return [error]
    # One of the calls is to blame: each is answered by itself.
    return [answer for call in calls for answer in prescribe(cache, [call], time_limit_seconds)]


def _prescribe(
    cache: PosteriorCache, calls: Sequence[PrescribeCall], time_limit_seconds: float
) -> list[AnswerBody | Exception]:
    call, prepared = calls[0], prepare(cache, calls, time_limit_seconds)
    include, row = call.request.include, prepared.row
    with call.within(time_limit_seconds):
        seconds = call.time_left(len(prepared.encoded.matrix))
        deadline = monotonic() + seconds
        prescriptions = decide_usable(prepared, (_DECIDING_SHARE if include else 1.0) * seconds)
        if include:
            wants_history = "neighbours" in include
            history = cached_history(cache, row, prepared.loaded, prepared.past) if wants_history else None
            with deadlines.until(deadline):
                add_parts(prepared, prescriptions, history)
    header, warnings = prepared.header()
    answers: list[AnswerBody | Exception] = []
    end = 0
    for one in calls:
        first, end = end, end + len(one.request.contexts)
        if all(number in prepared.encoded.refused for number in range(first, end)):
            answers.append(prepared.all_refused(first, end))
        else:
            header["warnings"] = warnings + prepared.summary(first, end)
            header["prescriptions"] = prescriptions[first:end]
            # Exactly PrescribeAnswer; validating ten thousand prescriptions again would cost more than deciding.
            answers.append(AnswerBody(row.id, row.digest, orjson.dumps(header)))
    return answers


def decide_usable(prepared: PreparedRequest, time_limit_seconds: float = math.inf) -> list[dict[str, Any]]:
    """Return a prescription for each context in the shape of ``PrescriptionAnswer``, refusals included.

    Solvers stop with the best they have at the time limit. A context without a finite prediction is added to the
    refused ones.
    """
    encoded, far, names = prepared.encoded, prepared.far, prepared.loaded.decisions

    def decide_numbers(numbers: list[int]) -> dict[int, dict[str, Any]]:
        contexts = torch.from_numpy(encoded.matrix[numbers])
        try:
            answers = decide(prepared, contexts, time_limit_seconds)
        except InvalidInput as error:
            suspects = [number for number in numbers if number in far]
            if error.where != ("contexts",) or not suspects:
                raise
            if len(numbers) == 1:
                encoded.refused[numbers[0]] = Refusal("", str(error))
                return {}
            # Only contexts far from the history can be to blame: each is decided alone, the others together.
            near = [number for number in numbers if number not in far]
            pieces = [[number] for number in suspects] + ([near] if near else [])
            return {number: answer for piece in pieces for number, answer in decide_numbers(piece).items()}
        return dict(zip(numbers, answers, strict=True))

    usable = encoded.usable.tolist()
    answers = decide_numbers(usable) if usable else {}
    for number, refusal in encoded.refused.items():
        answers[number] = _refused(refusal, names)
    for number in {*far, *encoded.notes} - encoded.refused.keys():
        warnings = [warning for column in far.get(number, ()) for warning in prepared.warning(column)]
        answers[number]["warnings"] = encoded.notes.get(number, []) + warnings
    return [answers[number] for number in range(len(encoded.matrix))]


def _refused(refusal: Refusal, names: list[str]) -> dict[str, Any]:
    """Return a refused context in the shape of ``PrescriptionAnswer``."""
    nothing = dict.fromkeys(names)
    return {
        "decision": nothing,
        "expected_cost": None,
        "cost_quantiles": dict.fromkeys(_LABELS),
        "cvar_95": None,
        "status": REFUSED,
        "reason": refusal.sentence,
        "solver": "",
        "gap": None,
        "feasibility": None,
        "facts": None,
        "map": {"decision": nothing, "expected_cost": None},
        "hedging_gain": None,
        "warnings": [],
    }


def decide(prepared: PreparedRequest, contexts: Tensor, time_limit_seconds: float = math.inf) -> list[dict[str, Any]]:
    """Return a prescription for each encoded context (B, width), in the shape of ``PrescriptionAnswer``."""
    prescribed = prescribe_for(
        prepared.loaded.posterior, prepared.problem, contexts, prepared.options, prepared.draws, time_limit_seconds
    )
    metrics.count_prescriptions(prescribed.status, [solver or "formula" for solver in prescribed.solvers])
    return _answers(prescribed, prepared.loaded.decisions)


def _answers(prescribed: PrescribeResult, names: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "decision": dict(zip(names, decision, strict=True)),
            "expected_cost": mean,
            "cost_quantiles": dict(zip(_LABELS, quantiles, strict=True)),
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
            json_numbers(prescribed.decisions),
            json_numbers(prescribed.costs.mean),
            json_numbers(prescribed.costs.quantiles),
            json_numbers(prescribed.costs.cvar),
            prescribed.status,
            prescribed.reasons,
            prescribed.solvers,
            json_numbers(prescribed.gaps),
            json_numbers(prescribed.feasibility),
            prescribed.facts,
            json_numbers(prescribed.map_decisions),
            json_numbers(prescribed.map_costs),
            json_numbers(prescribed.hedging_gain),
            strict=True,
        )
    ]
