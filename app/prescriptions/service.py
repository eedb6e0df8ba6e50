"""From named contexts to named decisions: the HTTP side of :mod:`bco_core.prescribe`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from time import monotonic
from typing import Any

import orjson
import torch
from torch import Tensor

from app import metrics
from app.datasets.encoding import Matrix
from app.db.tables import PosteriorRow
from app.http.errors import ApiError, Conflict, InvalidRequest, Unavailable, of_core
from app.prescriptions.cache import Cache, Ready, draws, reach, ready
from app.prescriptions.schemas import PrescribeOptions, PrescribeRequest
from app.settings import get_settings
from bco_core import deadline
from bco_core.errors import BcoError, InvalidInput, OutOfTime
from bco_core.prescribe import QUANTILES, Prescribed, decides_alone
from bco_core.prescribe import PrescribeOptions as Options
from bco_core.prescribe import prescribe as prescribe_for
from bco_core.problems.base import Risk

_WRITING_SECONDS = 5e-5
_RANKS = {"bad": 0, "warn": 1, "ok": 2}
# A call with more contexts than this gains nothing by company.
_MOST_CONTEXTS = 16


def kind(cache: Cache, workspace: str, posterior_id: str, request: PrescribeRequest) -> Hashable | None:
    """What requests have in common that may be decided together; None for one that is decided alone.

    A posterior that is not in memory is loaded for one request, while others pass.
    """
    seen = cache.seen(posterior_id)
    if seen is None or request.time_limit_seconds is not None or len(request.contexts) > _MOST_CONTEXTS:
        return None
    row, loaded = seen
    try:
        options = _options(row, request)
    except InvalidRequest:
        return None
    if not decides_alone(loaded.posterior, loaded.problem, options):
        return None
    return workspace, posterior_id, options, request.require_quality


def prescribe(
    cache: Cache,
    workspace: str,
    posterior_id: str,
    requests: Sequence[PrescribeRequest],
    began: float,
    most_seconds: float = math.inf,
) -> list[bytes | Exception]:
    """The answers to requests of one kind: JSON in the shape of ``PrescribeAnswer``, or why a request is refused.

    What is wrong with one of them does not touch the others. ``began`` is when the first of them came, by the monotonic
    clock. OutOfTime where deciding takes ``most_seconds``, or the deadline in force has passed.
    """
    try:
        return _prescribe(cache, workspace, posterior_id, requests, began, most_seconds)
    except OutOfTime:
        raise
    except (ApiError, BcoError) as error:
        if len(requests) == 1:
            return [error]
    # Somebody's contexts: each has to hear of its own.
    alone = (prescribe(cache, workspace, posterior_id, [request], began, most_seconds) for request in requests)
    return [answer for answers in alone for answer in answers]


def _prescribe(
    cache: Cache,
    workspace: str,
    posterior_id: str,
    requests: Sequence[PrescribeRequest],
    began: float,
    most_seconds: float,
) -> list[bytes | Exception]:
    row, request, settings = cache.row(workspace, posterior_id), requests[0], get_settings()
    if max(len(one.contexts) for one in requests) > settings.max_contexts:
        detail = (
            f"at most {settings.max_contexts} contexts a call (BCO_MAX_CONTEXTS); send them in parts, or as a batch"
        )
        raise InvalidRequest.at(("contexts",), detail)
    check(row, request)
    loaded = ready(cache, row)
    contexts = torch.from_numpy(
        loaded.encoding.encode_requests([context for one in requests for context in one.contexts])
    )
    theta = draws(cache, row, loaded.posterior, request.scenarios, request.seed)
    now = monotonic()
    # What is found must be written down still, in time.
    seconds = prescribe_until(request, began) - now - _WRITING_SECONDS * len(contexts)
    last = began + settings.prescribe_seconds - now
    with deadline.until(now + most_seconds):
        try:
            prescriptions = decide(row, loaded, contexts, request, theta, last, max(seconds, 0.0))
        except OutOfTime:
            deadline.check()
            raise too_long(request) from None
    answer, warnings = _about(row, loaded, request)
    any_far = bool(((contexts < loaded.lowest) | (contexts > loaded.highest)).any())
    answers: list[bytes | Exception] = []
    first = 0
    for one in requests:
        rows = slice(first, first + len(one.contexts))
        answer["warnings"] = warnings + (_far_from_history(row, loaded, contexts[rows]) if any_far else [])
        answer["prescriptions"], first = prescriptions[rows], rows.stop
        # Exactly PrescribeAnswer; validating ten thousand prescriptions again would cost more than deciding.
        answers.append(orjson.dumps(answer))
    return answers


def _about(row: PosteriorRow, loaded: Ready, request: PrescribeRequest) -> tuple[dict[str, Any], list[str]]:
    """What an answer says besides its prescriptions, and what it warns of whatever the contexts are."""
    stored = request.seed is None and request.scenarios <= row.particles
    quality = row.diagnostics["quality"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {row.diagnostics['reason']}"]
    doubt = row.diagnostics.get("promise_warning")
    if request.risk and doubt and doubt != row.diagnostics["reason"]:
        warnings.append(f"a risk is judged over predictive scenarios, and {doubt}")
    about = {
        "posterior_id": row.id,
        "digest": row.digest,
        "policy": _options(row, request).chosen_policy,
        "scenarios": {
            "count": request.scenarios,
            "source": "particles" if stored else "fresh draws",
            "seed": loaded.posterior.seed if request.seed is None else request.seed,
            "costs_over": request.costs_over,
        },
        "quality": quality,
    }
    return about, warnings


def prescribe_until(request: PrescribeRequest, began: float) -> float:
    """When a request that came at one moment of the monotonic clock must be answered."""
    allowed = get_settings().prescribe_seconds
    return began + min(request.time_limit_seconds or allowed, allowed)


def too_long(request: PrescribeRequest) -> Unavailable:
    allowed = get_settings().prescribe_seconds
    asked = request.time_limit_seconds
    limit = f"{asked:g} s (time_limit_seconds)" if asked and asked < allowed else f"{allowed} s (BCO_PRESCRIBE_SECONDS)"
    return Unavailable(f"no decision within {limit}: it takes longer; send fewer contexts or scenarios")


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
    options = _options(row, request)
    found = prescribe_for(loaded.posterior, loaded.problem, contexts, options, theta, seconds, solver_seconds)
    metrics.count_prescriptions(found.status, [solver or "formula" for solver in found.solvers])
    return _answers(found, loaded.decisions)


def _options(row: PosteriorRow, request: PrescribeOptions) -> Options:
    policy = request.policy or (None if request.risk else row.policy)
    risk = Risk(**request.risk.model_dump()) if request.risk else None
    try:
        return Options(policy, request.alpha, request.scenarios, request.seed, request.costs_over, risk)
    except InvalidInput as error:
        raise of_core(error) from None


def _answers(found: Prescribed, names: list[str]) -> list[dict[str, Any]]:
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
            "map": {"decision": dict(zip(names, map_decision, strict=True)), "expected_cost": map_cost},
            "hedging_gain": gain,
        }
        for decision, mean, quantiles, cvar, status, reason, solver, gap, share, map_decision, map_cost, gain in zip(
            _listed(found.decisions),
            _listed(found.costs.mean),
            _listed(found.costs.quantiles),
            _listed(found.costs.cvar),
            found.status,
            found.reasons,
            found.solvers,
            _listed(found.gaps),
            _listed(found.feasibility),
            _listed(found.map_decisions),
            _listed(found.map_costs),
            _listed(found.hedging_gain),
            strict=True,
        )
    ]


def _listed(values: Tensor) -> list[Any]:
    """Plain numbers, with null for those that are not finite: JSON has no others."""
    listed: list[Any] = values.tolist()
    if torch.isfinite(values).all():
        return listed
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [value if math.isfinite(value) else None for value in listed]


def check(row: PosteriorRow, request: PrescribeOptions) -> None:
    """Refuse what asks for too much, or for a better posterior than this one."""
    settings = get_settings()
    if request.scenarios > settings.max_scenarios:
        detail = f"at most {settings.max_scenarios} scenarios (BCO_MAX_SCENARIOS)"
        raise InvalidRequest.at(("scenarios",), detail)
    _options(row, request)
    quality = row.diagnostics["quality"]
    if _RANKS[quality] < _RANKS[request.require_quality]:
        reason = row.diagnostics["reason"]
        raise Conflict(
            f"the posterior's quality is {quality}, below the {request.require_quality} you require: {reason}"
        )


def far_from_history(column: dict[str, Any], values: Matrix) -> list[str]:
    """A warning if values of a numeric context lie beyond its range in the history by more than that range."""
    lowest, highest = reach(column)
    far = int(((values < lowest) | (values > highest)).sum())
    name, low, high = column["name"], column["minimum"], column["maximum"]
    return [f"'{name}' is far outside the history's range {low:g} to {high:g} in {far} context(s)"] if far else []


def _far_from_history(row: PosteriorRow, loaded: Ready, contexts: Tensor) -> list[str]:
    """Such warnings for every numeric column of encoded contexts."""
    profile = {column["name"]: column for column in row.columns}
    warnings, position = [], 0
    for name, categories in loaded.encoding.columns:
        if categories is None:
            warnings += far_from_history(profile[name], contexts[:, position].numpy())
        position += 1 if categories is None else len(categories)
    return warnings
