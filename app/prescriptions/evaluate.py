"""From named decisions to what they would cost: the HTTP side of :mod:`bco_core.evaluate`."""

from __future__ import annotations

import math
from typing import Any

import orjson
import torch
from torch import Tensor

from app.http.errors import InvalidRequest
from app.prescriptions.cache import Cache
from app.prescriptions.context import Given, about, all_refused, prepare, summary, time_left, within
from app.prescriptions.evaluate_schemas import EVALUATED, Alternative, EvaluateRequest
from app.prescriptions.prescribe import core_options, decide_usable, far_from_history, listed
from app.prescriptions.schemas import REFUSED
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core.evaluate import Evaluation, evaluate
from bco_core.prescribe import QUANTILES
from bco_core.problems.base import Breach
from bco_core.problems.registry import fix_decision

# What judging a decision takes beside deciding one, as a share.
_JUDGING = 0.05
_MOST_NAMED = 10
_LABELS = [str(level) for level in QUANTILES]


def answer(
    cache: Cache,
    workspace: str,
    posterior_id: str,
    request: EvaluateRequest,
    began: float,
    most_seconds: float = math.inf,
    revision: int | None = None,
) -> bytes:
    """The answer in JSON, in the shape of ``EvaluateAnswer``. ``began`` is when the request came, by the monotonic
    clock; OutOfTime where it takes ``most_seconds``, or the deadline in force has passed."""
    _check(request)
    given = prepare(cache, workspace, posterior_id, [request], began, most_seconds, revision)
    loaded, encoded = given.loaded, given.encoded
    named, decisions, owners = _read(request, loaded.decisions)
    with within(request, began, most_seconds):
        last, seconds = time_left(request, began, request.work)
        # Ours, and what is left to us of each alternative, have equal shares of the time.
        left = max(sum(None in (row.get(name) for name in loaded.decisions) for row in each) for each in _rows(request))
        shares = 1 + left + _JUDGING * max(map(len, named))
        ours = decide_usable(given.row, loaded, encoded, request, given.theta, last, seconds / shares)
        usable = [number for number in range(len(ours)) if number not in encoded.refused]
        if not usable:
            raise all_refused(encoded, 0, len(ours))
        found = _judged(given, request, began, ours, decisions, owners, usable)
    told, warnings = about(given, request)
    far = far_from_history(loaded, encoded)
    told["warnings"] = warnings + summary(loaded, encoded, far, 0, len(ours))
    told["evaluations"] = _evaluations(given, named, ours, found, decisions, owners, usable)
    return orjson.dumps(told)


def _check(request: EvaluateRequest) -> None:
    """Refuse decisions that do not fit the contexts, and more of them than a call may have."""
    settings, by_context = get_settings(), request.by_context()
    if request.include:
        raise InvalidRequest.at(("include",), "include opens what prescribe answers; ask there, with the same contexts")
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


def _rows(request: EvaluateRequest) -> list[list[dict[str, float | None]]]:
    return [[one.decision for one in each] for each in request.by_context()]


def _read(request: EvaluateRequest, names: list[str]) -> tuple[list[list[str]], Tensor, Tensor]:
    """What the alternatives of each context are called, all decisions (N, d_z), NaN for what is left to us, and the
    number of each one's context (N,)."""
    by_context = request.by_context()
    # Alternatives for all contexts are looked at once.
    for context, each in enumerate(by_context if request.alternatives is None else by_context[:1]):
        for number, one in enumerate(each):
            for name in one.decision.keys() - set(names):
                raise InvalidRequest.at((*_place(request, context, number), name), _unknown(names))
    rows = [
        [math.nan if (value := one.decision.get(name)) is None else value for name in names]
        for each in by_context
        for one in each
    ]
    owners = [context for context, each in enumerate(by_context) for _ in each]
    named = [[_name(one, number) for number, one in enumerate(each, start=1)] for each in by_context]
    return named, torch.tensor(rows, dtype=torch.float64), torch.tensor(owners)


def _name(one: Alternative, number: int) -> str:
    return one.name or f"alternative {number}"


def _place(request: EvaluateRequest, context: int, number: int) -> tuple[str | int, ...]:
    """Where a decision stands in the request."""
    if request.decisions is None:
        return "alternatives", number, "decision"
    if isinstance(request.decisions[context], dict):
        return "decisions", context
    return "decisions", context, number, "decision"


def _unknown(names: list[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"nothing of this name is decided here; it is {', '.join(names[:_MOST_NAMED])}{rest}"


def _judged(
    given: Given,
    request: EvaluateRequest,
    began: float,
    ours: list[dict[str, Any]],
    decisions: Tensor,
    owners: Tensor,
    usable: list[int],
) -> Evaluation:
    """What is found of the decisions for contexts that can be decided for, numbered among these."""
    loaded = given.loaded
    place = torch.full((len(ours),), -1)
    place[usable] = torch.arange(len(usable))
    kept = place[owners] >= 0
    own = [[math.nan if value is None else value for value in ours[number]["decision"].values()] for number in usable]
    return evaluate(
        loaded.posterior,
        loaded.problem,
        torch.from_numpy(given.encoded.matrix[usable]),
        torch.tensor(own, dtype=torch.float64),
        decisions[kept],
        place[owners][kept],
        lambda decision: fix_decision(loaded.problem, given.asked.spec, decision),
        core_options(given.row, request),
        given.theta,
        time_left(request, began, request.work)[1],
    )


def _evaluations(
    given: Given,
    named: list[list[str]],
    ours: list[dict[str, Any]],
    found: Evaluation,
    decisions: Tensor,
    owners: Tensor,
    usable: list[int],
) -> list[dict[str, Any]]:
    """Every context with its alternatives, in the shape of ``EvaluationAnswer``."""
    known, outcomes = set(usable), outcome_names(given.asked.spec) if found.service is not None else []
    kept = torch.tensor([owner in known for owner in owners.tolist()])
    alternatives = iter(_alternatives(given, found, decisions[kept], outcomes))
    our_levels = iter(_levels(found.our_service, outcomes, len(usable)))
    answers = []
    for number, (one, names) in enumerate(zip(ours, named, strict=True)):
        judged = number in known
        answers.append(
            {
                "status": EVALUATED if judged else REFUSED,
                "reason": "" if judged else one["reason"],
                "ours": one | {"service_level": next(our_levels) if judged else None},
                "alternatives": [{"name": name} | next(alternatives) for name in names] if judged else [],
                "warnings": one["warnings"],
            }
        )
    return answers


def _alternatives(given: Given, found: Evaluation, decisions: Tensor, outcomes: list[str]) -> list[dict[str, Any]]:
    """Every decision in the shape of ``AlternativeAnswer``, but for its name."""
    names, spec = given.loaded.decisions, given.asked.spec

    def by_level(values: Tensor) -> list[dict[str, Any]]:
        return [dict(zip(_LABELS, row, strict=True)) for row in listed(values)]

    columns: dict[str, list[Any]] = {
        "decision": [dict(zip(names, row, strict=True)) for row in listed(found.decisions)],
        "filled": [[name for name, free in zip(names, row, strict=True) if free] for row in decisions.isnan().tolist()],
        "status": found.status,
        "reason": found.reasons,
        "breaches": [[_sentence(breach, spec) for breach in broken] for broken in found.breaches],
        "expected_cost": listed(found.costs.mean),
        "cost_quantiles": by_level(found.costs.quantiles),
        "cvar_95": listed(found.costs.cvar),
        "feasibility": listed(found.feasibility),
        "service_level": _levels(found.service, outcomes, len(found.status)),
        "extra_cost": listed(found.extra_cost),
        "extra_cost_standard_error": listed(found.extra_cost_error),
        "extra_cost_quantiles": by_level(found.extra_cost_quantiles),
        "worse_in": listed(found.worse_in),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _levels(shares: Tensor | None, outcomes: list[str], count: int) -> list[dict[str, float | None] | None]:
    if shares is None:
        return [None] * count
    return [dict(zip(outcomes, row, strict=True)) for row in listed(shares)]


def _sentence(breach: Breach, spec: dict[str, Any]) -> str:
    """A breach with the name of what it is about, which not every problem knows."""
    where: Any = breach.where
    about = spec[where[0]][where[1]] if len(where) > 1 and isinstance(spec.get(where[0]), list) else {}
    name = about.get("name") if isinstance(about, dict) else None
    return breach.sentence if name is None or name in breach.sentence else f"{name}: {breach.sentence}"
