"""Evaluate: judge a caller's decisions over the scenarios of our own, the HTTP side of :mod:`bco_core.evaluate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor

from app.http.errors import InvalidRequest
from app.prescriptions.cache import PosteriorCache
from app.prescriptions.context import AnswerBody, PreparedRequest, PrescribeCall, json_numbers, prepare
from app.prescriptions.prescribe import decide_usable
from app.prescriptions.schemas import EVALUATED, REFUSED, EvaluateRequest
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core.evaluate import EvaluateResult
from bco_core.evaluate import evaluate as evaluate_decisions
from bco_core.prescribe import QUANTILES
from bco_core.problems.base import Breach
from bco_core.problems.registry import fix_decision

# Time to judge a decision, as a share of the time to make one.
_JUDGING = 0.05
_MOST_NAMED = 10
_LABELS = [str(level) for level in QUANTILES]

Json = dict[str, Any]


class _Alternatives(NamedTuple):
    """All alternatives of a call: names by context, decisions (N, d_z) with NaN for us to fill in, contexts (N,)."""

    names: list[list[str]]
    decisions: Tensor
    contexts: Tensor


def evaluate(
    cache: PosteriorCache, calls: Sequence[PrescribeCall], time_limit_seconds: float = math.inf
) -> list[AnswerBody | Exception]:
    """Answer an evaluate call, alone in its batch, in the shape of ``EvaluateAnswer``.

    Raises OutOfTime where it takes ``time_limit_seconds``, or the deadline in force has passed.
    """
    (call,) = calls
    request = call.request
    if not isinstance(request, EvaluateRequest):
        raise TypeError("only an evaluate request can be evaluated")
    _check(request)
    prepared = prepare(cache, calls, time_limit_seconds)
    names = prepared.loaded.decisions
    alternatives = _read(request, names)
    with call.within(time_limit_seconds):
        seconds = call.time_left(request.work)
        # Our decision and the free entries of each alternative get equal shares of the time.
        free = max(sum(None in map(one.decision.get, names) for one in each) for each in request.by_context())
        shares = 1 + free + _JUDGING * max(map(len, alternatives.names))
        ours = decide_usable(prepared, seconds / shares)
        usable = [number for number in range(len(ours)) if number not in prepared.encoded.refused]
        if not usable:
            raise prepared.all_refused(0, len(ours))
        evaluated = _judge(prepared, alternatives, ours, usable, call.time_left(request.work))
    header, warnings = prepared.header()
    header["warnings"] = warnings + prepared.summary(0, len(ours))
    header["evaluations"] = _evaluations(prepared, alternatives, ours, usable, evaluated)
    return [AnswerBody(prepared.row.id, prepared.row.digest, orjson.dumps(header))]


def _check(request: EvaluateRequest) -> None:
    """Refuse decisions that do not match the contexts, and more of them than a call may have."""
    settings, by_context = get_settings(), request.by_context()
    if request.include:
        raise InvalidRequest.at(("include",), "include belongs to prescribe; call it with the same contexts")
    place = "decisions" if request.alternatives is None else "alternatives"
    if len(by_context) != len(request.contexts):
        detail = f"there are {len(request.contexts)} contexts and decisions for {len(by_context)}; give as many"
        raise InvalidRequest.at((place,), detail)
    for number, each in enumerate(by_context):
        if not 0 < len(each) <= settings.max_alternatives:
            detail = f"a context has 1 to {settings.max_alternatives} alternatives (BCO_MAX_ALTERNATIVES)"
            raise InvalidRequest.at((place,) if request.decisions is None else (place, number), detail)
    if sum(map(len, by_context)) > settings.max_contexts:
        detail = f"at most {settings.max_contexts} decisions a call (BCO_MAX_CONTEXTS); send them in parts"
        raise InvalidRequest.at((place,), detail)


def _read(request: EvaluateRequest, names: list[str]) -> _Alternatives:
    """Read the alternatives of all contexts; 422 for a decision of an unknown name."""
    by_context = request.by_context()
    # Alternatives for all contexts are the same list: check it once.
    for context, each in enumerate(by_context if request.alternatives is None else by_context[:1]):
        for number, one in enumerate(each):
            for name in one.decision.keys() - set(names):
                raise InvalidRequest.at((*_place(request, context, number), name), _unknown(names))
    rows = [
        [math.nan if (value := one.decision.get(name)) is None else value for name in names]
        for each in by_context
        for one in each
    ]
    contexts = [context for context, each in enumerate(by_context) for _ in each]
    called = [[one.name or f"alternative {number}" for number, one in enumerate(each, start=1)] for each in by_context]
    return _Alternatives(called, torch.tensor(rows, dtype=torch.float64), torch.tensor(contexts))


def _place(request: EvaluateRequest, context: int, number: int) -> tuple[str | int, ...]:
    """Return the place of a decision in the request."""
    if request.decisions is None:
        return "alternatives", number, "decision"
    if isinstance(request.decisions[context], dict):
        return "decisions", context
    return "decisions", context, number, "decision"


def _unknown(names: list[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"there is no decision of this name; the decisions are {', '.join(names[:_MOST_NAMED])}{rest}"


def _judge(
    prepared: PreparedRequest, alternatives: _Alternatives, ours: list[Json], usable: list[int], seconds: float
) -> EvaluateResult:
    """Judge the alternatives of usable contexts, numbered among these."""
    place = torch.full((len(ours),), -1)
    place[usable] = torch.arange(len(usable))
    places = place[alternatives.contexts]
    own = [[math.nan if value is None else value for value in ours[number]["decision"].values()] for number in usable]
    return evaluate_decisions(
        prepared.loaded.posterior,
        prepared.problem,
        torch.from_numpy(prepared.encoded.matrix[usable]),
        torch.tensor(own, dtype=torch.float64),
        alternatives.decisions[places >= 0],
        places[places >= 0],
        lambda decision: fix_decision(prepared.problem, prepared.patched.spec, decision),
        prepared.options,
        prepared.draws,
        seconds,
    )


def _evaluations(
    prepared: PreparedRequest,
    alternatives: _Alternatives,
    ours: list[Json],
    usable: list[int],
    evaluated: EvaluateResult,
) -> list[Json]:
    """Return every context with its alternatives, in the shape of ``EvaluationAnswer``."""
    judged = set(usable)
    outcomes = outcome_names(prepared.patched.spec) if evaluated.service is not None else []
    of_usable = torch.tensor([context in judged for context in alternatives.contexts.tolist()])
    each = iter(_alternatives(prepared, evaluated, alternatives.decisions[of_usable], outcomes))
    our_levels = iter(_levels(evaluated.our_service, outcomes, len(usable)))
    answers = []
    for number, (own, names) in enumerate(zip(ours, alternatives.names, strict=True)):
        is_judged = number in judged
        answers.append(
            {
                "status": EVALUATED if is_judged else REFUSED,
                "reason": "" if is_judged else own["reason"],
                "ours": own | {"service_level": next(our_levels) if is_judged else None},
                "alternatives": [{"name": name} | next(each) for name in names] if is_judged else [],
                "warnings": own["warnings"],
            }
        )
    return answers


def _alternatives(
    prepared: PreparedRequest, evaluated: EvaluateResult, decisions: Tensor, outcomes: list[str]
) -> list[Json]:
    """Return every decision in the shape of ``AlternativeAnswer``, without its name."""
    names, spec = prepared.loaded.decisions, prepared.patched.spec

    def by_level(values: Tensor) -> list[Json]:
        return [dict(zip(_LABELS, row, strict=True)) for row in json_numbers(values)]

    columns: dict[str, list[Any]] = {
        "decision": [dict(zip(names, row, strict=True)) for row in json_numbers(evaluated.decisions)],
        "filled": [[name for name, free in zip(names, row, strict=True) if free] for row in decisions.isnan().tolist()],
        "status": evaluated.status,
        "reason": evaluated.reasons,
        "breaches": [[_sentence(breach, spec) for breach in broken] for broken in evaluated.breaches],
        "expected_cost": json_numbers(evaluated.costs.mean),
        "cost_quantiles": by_level(evaluated.costs.quantiles),
        "cvar_95": json_numbers(evaluated.costs.cvar),
        "feasibility": json_numbers(evaluated.feasibility),
        "service_level": _levels(evaluated.service, outcomes, len(evaluated.status)),
        "extra_cost": json_numbers(evaluated.extra_cost),
        "extra_cost_standard_error": json_numbers(evaluated.extra_cost_error),
        "extra_cost_quantiles": by_level(evaluated.extra_cost_quantiles),
        "worse_in": json_numbers(evaluated.worse_in),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _levels(shares: Tensor | None, outcomes: list[str], count: int) -> list[dict[str, float | None] | None]:
    if shares is None:
        return [None] * count
    return [dict(zip(outcomes, row, strict=True)) for row in json_numbers(shares)]


def _sentence(breach: Breach, spec: dict[str, Any]) -> str:
    """Return a breach with the name of the entry that it is about, which not every problem knows."""
    where: Any = breach.where
    entry = spec[where[0]][where[1]] if len(where) > 1 and isinstance(spec.get(where[0]), list) else {}
    name = entry.get("name") if isinstance(entry, dict) else None
    return breach.sentence if name is None or name in breach.sentence else f"{name}: {breach.sentence}"
