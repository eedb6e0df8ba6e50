"""One prepared request that all parts of the answer share.

A :class:`PrescribeCall` is a request on arrival, with its workspace, posterior and time. Calls that are decided
together become one :class:`PreparedRequest`: the posterior, its patched problem, encoded contexts, draws and the core's
options. Deciding, the parts of ``include`` and evaluate read it. The log gets an :class:`AnswerBody`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor

from app.datasets.encoding import EncodedContexts
from app.datasets.lookback import HistoryGrid
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError, InvalidRequest, UnavailableError, of_core
from app.prescriptions.cache import LoadedPosterior, PosteriorCache, cached_draws, cached_past, cached_posterior
from app.prescriptions.patching import PatchedProblem, cached_patched_problem
from app.prescriptions.schemas import DecisionOptions, PrescribeRequest
from app.problems.patch import digest
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.policies import POLICIES
from bco_core.prescribe import PrescribeOptions, decides_alone
from bco_core.problems.base import DecisionProblem, Risk

# Time to serialise one context's answer.
_WRITING_SECONDS = 5e-5
_QUALITY_RANKS = {"bad": 0, "warn": 1, "ok": 2}
# A call with more contexts than this gains nothing from a batch.
_MOST_BATCHED_CONTEXTS = 16
# Errors listed for a call whose contexts are all refused.
_MOST_ERRORS = 20
_RANDOM = (
    "policy {policy} draws a decision at random for each context, so there is nothing to compare; leave out "
    "sensitivity, or choose another policy"
)


@dataclass(frozen=True)
class PrescribeCall:
    """A prescribe or evaluate request on arrival.

    ``began`` is its arrival on the monotonic clock. Features look back on ``revision`` of the posterior's data set, on
    the newest if None. ``options`` are the core's, if the posterior was in memory on arrival.
    """

    workspace: str
    posterior_id: str
    request: PrescribeRequest
    began: float
    revision: int | None = None
    options: PrescribeOptions | None = None

    @property
    def deadline(self) -> float:
        """The moment of the monotonic clock by which the call must be answered."""
        allowed = get_settings().prescribe_seconds
        return self.began + min(self.request.time_limit_seconds or allowed, allowed)

    def time_left(self, answers: int) -> float:
        """Return the seconds until solvers stop with the best they have, so that ``answers`` are written in time."""
        return max(self.deadline - monotonic() - _WRITING_SECONDS * answers, 0.0)

    @contextmanager
    def within(self, time_limit_seconds: float) -> Iterator[None]:
        """Raise OutOfTime after ``time_limit_seconds``, or where a quick deadline forbids to go on; 503 once late."""
        with deadlines.until(monotonic() + time_limit_seconds):
            try:
                with deadlines.until(self.began + get_settings().prescribe_seconds):
                    yield
            except OutOfTime:
                deadlines.check()
                if monotonic() < self.deadline:
                    deadlines.before_long_work()
                raise self.too_long() from None

    def too_long(self) -> UnavailableError:
        allowed, own = get_settings().prescribe_seconds, self.request.time_limit_seconds
        limit = f"{own:g} s (time_limit_seconds)" if own and own < allowed else f"{allowed} s (BCO_PRESCRIBE_SECONDS)"
        less = "; send fewer contexts or scenarios" + (", or include less" if self.request.include else "")
        return UnavailableError(f"no decision within {limit}: it takes longer{less}")

    def to_json(self) -> bytes:
        """Serialise the call for a solver process."""
        names = ("workspace", "posterior_id", "began", "revision")
        fields = {name: getattr(self, name) for name in names}
        return orjson.dumps(fields | {"request": self.request.model_dump()})

    @staticmethod
    def from_json(body: bytes, model: type[PrescribeRequest]) -> PrescribeCall:
        fields = orjson.loads(body)
        return PrescribeCall(**fields | {"request": model.model_validate(fields["request"])})


def with_batch_key(cache: PosteriorCache, call: PrescribeCall) -> tuple[PrescribeCall, Hashable | None]:
    """Return the call with its core options, and a key that calls share which may be decided together.

    The key is None for a call that is decided alone: one with parts to include, a time limit of its own or many
    contexts, or whose answer would depend on the batch. A posterior that is not in memory is loaded for one call.
    """
    request, entry = call.request, cache.in_memory(call.posterior_id)
    if entry is None or call.revision is not None:
        return call, None
    row, loaded = entry
    try:
        call = replace(call, options=core_options(row, request))
    except InvalidRequest:
        return call, None
    if request.include or request.time_limit_seconds is not None or len(request.contexts) > _MOST_BATCHED_CONTEXTS:
        return call, None
    if call.options is None or not decides_alone(loaded.posterior, loaded.problem, call.options):
        return call, None
    patch = None if request.problem_patch is None else digest(request.problem_patch)
    return call, (call.workspace, call.posterior_id, call.options, request.require_quality, patch)


class AnswerBody(NamedTuple):
    """An answer as JSON without its id, and the posterior that gave it."""

    posterior_id: str
    digest: str
    content: bytes

    def with_id(self, identifier: str | None) -> bytes:
        """Return the JSON with an id as its first field."""
        return b'{"id":%b,%b' % (orjson.dumps(identifier), self.content[1:])


@dataclass(frozen=True)
class PreparedRequest:
    """Everything that answers to requests of one kind need, built once.

    ``encoded`` has the contexts (B, width), ``contexts`` their values in the order of the encoding's columns, where
    parts of ``include`` need them. ``draws`` (K, d) are parameter vectors. ``far`` has the
    columns in which a usable context is far outside the history, by the number of the context.
    """

    row: PosteriorRow
    loaded: LoadedPosterior
    patched: PatchedProblem
    request: DecisionOptions
    options: PrescribeOptions
    draws: Tensor
    encoded: EncodedContexts
    far: dict[int, list[int]]
    past: HistoryGrid | None
    contexts: Sequence[Sequence[Any]] = ()

    @property
    def problem(self) -> DecisionProblem:
        return self.patched.problem

    def warning(self, column: int, where: str = "") -> list[str]:
        """Return the warning about an encoded column, none for one without a range."""
        known = self.loaded.ranges[column]
        return [] if known is None else [known.warning(where)]

    def header(self) -> tuple[dict[str, Any], list[str]]:
        """Return the fields of ``CommonAnswer`` up to its warnings, and the warnings whatever the contexts are."""
        row, request, lookback = self.row, self.request, self.loaded.encoding.lookback
        quality, reason = row.diagnostics["quality"], row.diagnostics["reason"]
        warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {reason}"]
        doubt = row.diagnostics.get("promise_warning")
        if request.risk and doubt and doubt != reason:
            warnings.append(f"a risk is judged over predictive scenarios, and {doubt}")
        stored = request.seed is None and request.scenarios <= row.particles
        history = None
        if self.past is not None and lookback is not None:
            history = {"revision": self.past.revision, "last": lookback.recipe.clock.text(self.past.last)}
        fields = {
            "posterior_id": row.id,
            "digest": row.digest,
            "policy": self.options.chosen_policy,
            "scenarios": {
                "count": request.scenarios,
                "source": "particles" if stored else "fresh draws",
                "seed": self.loaded.posterior.seed if request.seed is None else request.seed,
                "costs_over": request.costs_over,
            },
            "quality": quality,
            "history": history,
            "problem_differs": self.patched.differs,
        }
        return fields, warnings + self.patched.warnings

    def summary(self, first: int, end: int) -> list[str]:
        """Return the warnings about the contexts ``first`` to ``end``, each once with its number of contexts."""
        refused, notes = self.encoded.refused, self.encoded.notes
        count = sum(number in refused for number in range(first, end)) if refused else 0
        warnings = [f"{count} context(s) are refused, each with its reason"] if count else []
        if self.far or notes:
            usable = [number for number in range(first, end) if number not in refused]
            noted = Counter(note for number in usable for note in notes.get(number, ()))
            columns = Counter(column for number in usable for column in self.far.get(number, ()))
            warnings += [f"{note} ({count} context(s))" for note, count in noted.items()]
            for column, count in sorted(columns.items()):
                warnings += self.warning(column, f" in {count} context(s)")
        return warnings

    def all_refused(self, first: int, end: int) -> InvalidRequest:
        """Return the error for the contexts ``first`` to ``end``, none of which can be decided for."""
        refused = self.encoded.refused
        numbers = range(first, min(end, first + _MOST_ERRORS))
        errors = [(("contexts", number - first), refused[number]) for number in numbers]
        return InvalidRequest(
            errors[0][1].sentence,
            *(((*where, why.column) if why.column else where, why.sentence) for where, why in errors),
        )


def prepare(cache: PosteriorCache, calls: Sequence[PrescribeCall], time_limit_seconds: float) -> PreparedRequest:
    """Check calls that share a batch key and prepare their answer; build a patched problem within their time."""
    call = calls[0]
    row, request = cache.row(call.workspace, call.posterior_id), call.request
    most = get_settings().max_contexts
    if max(len(one.request.contexts) for one in calls) > most:
        detail = f"at most {most} contexts a call (BCO_MAX_CONTEXTS); send them in parts, or as a batch"
        raise InvalidRequest.at(("contexts",), detail)
    options = checked_options(row, request, call.options)
    if request.include:
        check_include(row, request, options, len(request.contexts), "contexts")
    loaded = cached_posterior(cache, row)
    patched = PatchedProblem(loaded.problem, row.problem)
    if request.problem_patch is not None:
        with call.within(time_limit_seconds), deadlines.until(call.deadline):
            patched = cached_patched_problem(cache, row, loaded.problem, request.problem_patch)
    past = cached_past(cache, row, loaded, call.revision)
    contexts = loaded.encoding.in_order([context for one in calls for context in one.request.contexts])
    encoded = loaded.encoding.encode_rows(contexts, past)
    draws = cached_draws(cache, row, loaded.posterior, request.scenarios, request.seed)
    far = far_from_history(loaded, encoded)
    return PreparedRequest(row, loaded, patched, request, options, draws, encoded, far, past, contexts)


def checked_options(
    row: PosteriorRow, request: DecisionOptions, options: PrescribeOptions | None = None
) -> PrescribeOptions:
    """Return the core's options; refuse too many scenarios, and a posterior of lower quality than required."""
    most = get_settings().max_scenarios
    if request.scenarios > most:
        raise InvalidRequest.at(("scenarios",), f"at most {most} scenarios (BCO_MAX_SCENARIOS)")
    options = options or core_options(row, request)
    quality = row.diagnostics["quality"]
    if _QUALITY_RANKS[quality] < _QUALITY_RANKS[request.require_quality]:
        reason = row.diagnostics["reason"]
        raise ConflictError(
            f"the posterior's quality is {quality}, below the {request.require_quality} you require: {reason}"
        )
    return options


def core_options(row: PosteriorRow, request: DecisionOptions) -> PrescribeOptions:
    """Return the core's options for a request; 422 if they contradict each other."""
    policy = request.policy or (None if request.risk else row.policy)
    risk = Risk(**request.risk.model_dump()) if request.risk else None
    try:
        return PrescribeOptions(policy, request.alpha, request.scenarios, request.seed, request.costs_over, risk)
    except InvalidInput as error:
        raise of_core(error) from None


def check_include(
    row: PosteriorRow, request: DecisionOptions, options: PrescribeOptions, contexts: int, where: str, times: int = 1
) -> None:
    """Refuse parts with more numbers than ``times`` the limit of an answer, and the sensitivity of random decisions."""
    outcomes, most = len(outcome_names(row.problem)), times * get_settings().max_included_numbers
    total = contexts * request.scenarios * outcomes
    if total > most:
        detail = (
            f"{contexts} contexts × {request.scenarios} scenarios × {outcomes} outcomes are {total} numbers; with "
            f"include at most {most} are allowed (BCO_MAX_INCLUDED_NUMBERS); ask for fewer contexts or scenarios"
        )
        raise InvalidRequest.at((where,), detail)
    policy = options.chosen_policy
    if "sensitivity" in request.include and POLICIES[policy].random:
        raise InvalidRequest.at(("include",), _RANDOM.format(policy=policy))


def far_from_history(loaded: LoadedPosterior, encoded: EncodedContexts) -> dict[int, list[int]]:
    """Return the columns in which usable rows lie beyond the history's range by more than that range, by row."""
    contexts = torch.from_numpy(encoded.matrix)
    beyond = (contexts < loaded.lowest) | (contexts > loaded.highest)
    far: dict[int, list[int]] = {}
    if beyond.any():
        for number, column in beyond.nonzero().tolist():
            if number not in encoded.refused:
                far.setdefault(number, []).append(column)
    return far


def json_numbers(values: Tensor) -> list[Any]:
    """Return nested lists of numbers, with None for those that are not finite, which JSON cannot hold."""
    plain: list[Any] = values.tolist()
    if torch.isfinite(values).all():
        return plain
    if values.ndim > 1:
        return [json_numbers(row) for row in values]
    return [value if math.isfinite(value) else None for value in plain]
