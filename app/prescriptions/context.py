"""From named contexts to named decisions: the HTTP side of :mod:`bco_core.prescribe`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import orjson
from torch import Tensor

from app.datasets.encoding import EncodedContexts
from app.datasets.lookback import Past
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError, HttpError, InvalidRequest, UnavailableError
from app.prescriptions import include as include_module
from app.prescriptions.cache import Cache, Ready, draws, past, ready
from app.prescriptions.neighbours import similar
from app.prescriptions.patching import Asked, asked_for
from app.prescriptions.prescribe import core_options, decide_usable, far_from_history
from app.prescriptions.schemas import PrescribeOptions, PrescribeRequest
from app.problems.patch import digest
from app.settings import get_settings
from bco_core import deadline
from bco_core.errors import BcoError, OutOfTime
from bco_core.prescribe import decides_alone

_WRITING_SECONDS = 5e-5
# Of the time for an answer that is opened, what deciding may take.
_DECIDING_SHARE = 0.5
_RANKS = {"bad": 0, "warn": 1, "ok": 2}
# A call with more contexts than this gains nothing by company.
_MOST_CONTEXTS = 16
# So many errors are listed of a call that is refused.
_MOST_ERRORS = 20


def kind(cache: Cache, workspace: str, posterior_id: str, request: PrescribeRequest) -> Hashable | None:
    """What requests have in common that may be decided together; None for one that is decided alone.

    A posterior that is not in memory is loaded for one request, while others pass.
    """
    seen = cache.seen(posterior_id)
    if request.include:
        return None
    if seen is None or request.time_limit_seconds is not None or len(request.contexts) > _MOST_CONTEXTS:
        return None
    row, loaded = seen
    try:
        options = core_options(row, request)
    except InvalidRequest:
        return None
    if not decides_alone(loaded.posterior, loaded.problem, options):
        return None
    patch = None if request.problem_patch is None else digest(request.problem_patch)
    return workspace, posterior_id, options, request.require_quality, patch


def prescribe(
    cache: Cache,
    workspace: str,
    posterior_id: str,
    requests: Sequence[PrescribeRequest],
    began: float,
    most_seconds: float = math.inf,
    revision: int | None = None,
) -> list[bytes | Exception]:
    """The answers to requests of one kind: JSON in the shape of ``PrescribeAnswer``, or why a request is refused.

    They have no id yet. They look back on a ``revision`` of the posterior's data set, on the newest one if None.
    What is wrong with one of them does not touch the others. ``began`` is when the first of them came, by the monotonic
    clock. OutOfTime where deciding takes ``most_seconds``, or the deadline in force has passed.
    """
    try:
        return _prescribe(cache, workspace, posterior_id, requests, began, most_seconds, revision)
    except OutOfTime:
        raise
    except (HttpError, BcoError) as error:
        if len(requests) == 1:
            return [error]
    # Somebody's contexts: each has to hear of its own.
    alone = (
        prescribe(cache, workspace, posterior_id, [request], began, most_seconds, revision) for request in requests
    )
    return [answer for answers in alone for answer in answers]


def _prescribe(
    cache: Cache,
    workspace: str,
    posterior_id: str,
    requests: Sequence[PrescribeRequest],
    began: float,
    most_seconds: float,
    revision: int | None,
) -> list[bytes | Exception]:
    request = requests[0]
    given = prepare(cache, workspace, posterior_id, requests, began, most_seconds, revision)
    loaded, encoded = given.loaded, given.encoded
    with within(request, began, most_seconds):
        last, seconds = time_left(request, began, len(encoded.matrix))
        ends, share = monotonic() + seconds, _DECIDING_SHARE if request.include else 1.0
        prescriptions = decide_usable(given.row, loaded, encoded, request, given.theta, last, share * seconds)
        if request.include:
            # A request that is opened is alone here.
            near = similar(cache, given.row, loaded, given.past) if "neighbours" in request.include else None
            with deadline.until(ends):
                opened = include_module.Opening(given.row, loaded, request, given.theta, given.past, near)
                include_module.open_up(opened, given.contexts, encoded, prescriptions)
    answer, warnings = about(given, request)
    far = far_from_history(loaded, encoded)
    answers: list[bytes | Exception] = []
    first = 0
    for one in requests:
        end = first + len(one.contexts)
        if all(number in encoded.refused for number in range(first, end)):
            answers.append(all_refused(encoded, first, end))
        else:
            answer["warnings"] = warnings + summary(loaded, encoded, far, first, end)
            answer["prescriptions"] = prescriptions[first:end]
            # Exactly PrescribeAnswer; validating ten thousand prescriptions again would cost more than deciding.
            answers.append(orjson.dumps(answer))
        first = end
    return answers


@dataclass(frozen=True)
class Given:
    """What requests are answered with: a posterior, the problem that they ask for, the rows that it looks back on, the
    requests' contexts and draws."""

    row: PosteriorRow
    loaded: Ready
    asked: Asked
    past: Past | None
    contexts: Sequence[Sequence[Any]]
    encoded: EncodedContexts
    theta: Tensor


def prepare(
    cache: Cache,
    workspace: str,
    posterior_id: str,
    requests: Sequence[PrescribeRequest],
    began: float,
    most_seconds: float,
    revision: int | None = None,
) -> Given:
    """Check requests of one kind and make everything ready for them, a patched problem within their time."""
    row, request, settings = cache.row(workspace, posterior_id), requests[0], get_settings()
    if max(len(one.contexts) for one in requests) > settings.max_contexts:
        detail = (
            f"at most {settings.max_contexts} contexts a call (BCO_MAX_CONTEXTS); send them in parts, or as a batch"
        )
        raise InvalidRequest.at(("contexts",), detail)
    check(row, request)
    include_module.check(row, request, len(request.contexts), "contexts")
    loaded = ready(cache, row)
    with within(request, began, most_seconds), deadline.until(prescribe_until(request, began)):
        asked = asked_for(cache, row, loaded.problem, request.problem_patch)
    rows = past(cache, row, loaded, revision)
    contexts = loaded.encoding.in_order([context for one in requests for context in one.contexts])
    encoded = loaded.encoding.encode_rows(contexts, rows)
    theta = draws(cache, row, loaded.posterior, request.scenarios, request.seed)
    return Given(row, replace(loaded, problem=asked.problem), asked, rows, contexts, encoded, theta)


@contextmanager
def within(request: PrescribeRequest, began: float, most_seconds: float) -> Iterator[None]:
    """OutOfTime where what is done takes ``most_seconds``, or more than a quick call may; 503 where the request's own
    time is up."""
    with deadline.until(monotonic() + most_seconds):
        try:
            yield
        except OutOfTime:
            deadline.check()
            if monotonic() < prescribe_until(request, began):
                deadline.before_long_work()
            raise too_long(request) from None


def time_left(request: PrescribeRequest, began: float, answers: int) -> tuple[float, float]:
    """Seconds until a request is given up, and until solvers stop with the best they have: what is found must be
    written down still, in time."""
    now = monotonic()
    last = began + get_settings().prescribe_seconds - now
    return last, max(prescribe_until(request, began) - now - _WRITING_SECONDS * answers, 0.0)


def _looked_back_on(loaded: Ready, rows: Past | None) -> dict[str, Any] | None:
    if rows is None or loaded.encoding.lookback is None:
        return None
    return {"revision": rows.revision, "last": loaded.encoding.lookback.recipe.clock.text(rows.last)}


def all_refused(encoded: EncodedContexts, first: int, end: int) -> InvalidRequest:
    """What is wrong with the contexts ``first`` to ``end``, none of which can be decided for."""
    listed = [(number - first, encoded.refused[number]) for number in range(first, min(end, first + _MOST_ERRORS))]
    places = [(("contexts", index, why.column) if why.column else ("contexts", index), why) for index, why in listed]
    return InvalidRequest(listed[0][1].sentence, *((place, why.sentence) for place, why in places))


def about(given: Given, request: PrescribeRequest) -> tuple[dict[str, Any], list[str]]:
    """What an answer says besides its prescriptions, and what it warns of whatever the contexts are."""
    row, loaded = given.row, given.loaded
    stored = request.seed is None and request.scenarios <= row.particles
    quality = row.diagnostics["quality"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {row.diagnostics['reason']}"]
    doubt = row.diagnostics.get("promise_warning")
    if request.risk and doubt and doubt != row.diagnostics["reason"]:
        warnings.append(f"a risk is judged over predictive scenarios, and {doubt}")
    told = {
        "posterior_id": row.id,
        "digest": row.digest,
        "policy": core_options(row, request).chosen_policy,
        "scenarios": {
            "count": request.scenarios,
            "source": "particles" if stored else "fresh draws",
            "seed": loaded.posterior.seed if request.seed is None else request.seed,
            "costs_over": request.costs_over,
        },
        "quality": quality,
        "history": _looked_back_on(loaded, given.past),
        "problem_differs": given.asked.differs,
    }
    return told, warnings + given.asked.warnings


def prescribe_until(request: PrescribeRequest, began: float) -> float:
    """When a request that came at one moment of the monotonic clock must be answered."""
    allowed = get_settings().prescribe_seconds
    return began + min(request.time_limit_seconds or allowed, allowed)


def too_long(request: PrescribeRequest) -> UnavailableError:
    allowed = get_settings().prescribe_seconds
    asked = request.time_limit_seconds
    limit = f"{asked:g} s (time_limit_seconds)" if asked and asked < allowed else f"{allowed} s (BCO_PRESCRIBE_SECONDS)"
    less = "; send fewer contexts or scenarios" + (", or include less" if request.include else "")
    return UnavailableError(f"no decision within {limit}: it takes longer{less}")


def check(row: PosteriorRow, request: PrescribeOptions) -> None:
    """Refuse what asks for too much, or for a better posterior than this one."""
    settings = get_settings()
    if request.scenarios > settings.max_scenarios:
        detail = f"at most {settings.max_scenarios} scenarios (BCO_MAX_SCENARIOS)"
        raise InvalidRequest.at(("scenarios",), detail)
    core_options(row, request)
    quality = row.diagnostics["quality"]
    if _RANKS[quality] < _RANKS[request.require_quality]:
        reason = row.diagnostics["reason"]
        raise ConflictError(
            f"the posterior's quality is {quality}, below the {request.require_quality} you require: {reason}"
        )


def summary(loaded: Ready, encoded: EncodedContexts, far: dict[int, list[int]], first: int, end: int) -> list[str]:
    """What is to be said of the contexts ``first`` to ``end``, each thing once."""
    said: Counter[str] = Counter()
    columns: Counter[int] = Counter()
    refused = sum(number in encoded.refused for number in range(first, end))
    for number in range(first, end) if far or encoded.notes else ():
        columns.update(far.get(number, ()))
        if number not in encoded.refused:
            said.update(encoded.notes.get(number, ()))
    warnings = [f"{refused} context(s) are refused, each with its reason"] if refused else []
    warnings += [f"{note} ({count} context(s))" for note, count in said.items()]
    for column, count in sorted(columns.items()):
        known = loaded.ranges[column]
        if known is not None:
            warnings.append(known.warning(f" in {count} context(s)"))
    return warnings
