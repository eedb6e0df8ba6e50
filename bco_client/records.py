"""Answers of the service as frozen records. ``raw`` is the whole answer, including fields of newer services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bco_client.errors import UnexpectedAnswer

Json = Mapping[str, Any]
Numbers = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Record:
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class ProblemRecord(Record):
    """A decision problem. Lists omit ``spec``; ``dataset_id`` is the data set imported with it, if any."""

    id: str
    name: str
    created_at: datetime
    kind: str = ""
    spec: Json = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    dataset_id: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ColumnRecord(Record):
    """A column of a data set: its role and a profile of its values."""

    name: str
    role: str
    kind: str
    missing: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    distinct: int | None = None
    categories: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetRecord(Record):
    """A data set. Lists omit columns and warnings."""

    id: str
    name: str
    created_at: datetime
    rows: int
    lead: int = 1
    revision: int = 1
    digest: str = ""
    columns: list[ColumnRecord] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class JobRecord(Record):
    """A job and its progress. Lists omit ``spec``."""

    id: str
    name: str
    created_at: datetime
    kind: str
    state: str
    progress: float
    message: str
    problem_id: str | None = None
    dataset_id: str | None = None
    posterior_id: str | None = None
    error: str | None = None
    attempts: int = 0
    estimate_seconds: float | None = None
    remaining_seconds: float | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    spec: Json = field(default_factory=dict)
    summary: Json | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class JobLogRecord(Record):
    seq: int
    at: datetime
    text: str


@dataclass(frozen=True, kw_only=True)
class PosteriorRecord(Record):
    """A learned posterior. Lists omit problem, columns and description."""

    id: str
    name: str
    created_at: datetime
    problem_id: str
    policy: str
    particles: int
    digest: str
    quality: str
    reason: str
    job_id: str | None = None
    dataset_id: str | None = None
    problem: Json = field(default_factory=dict)
    columns: list[ColumnRecord] = field(default_factory=list)
    description: Json = field(default_factory=dict)

    @property
    def context_names(self) -> list[str]:
        """The columns that a context may have."""
        return [column.name for column in self.columns if column.role in ("context", "time", "series")]

    @property
    def outcome_names(self) -> list[str]:
        return [column.name for column in self.columns if column.role == "outcome"]


@dataclass(frozen=True, kw_only=True)
class MapDecision(Record):
    """The decision of the single best model, and its cost under the same scenarios."""

    decision: Numbers
    expected_cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class ContextPrescription(Record):
    """The decision for one context, its costs and the gain from hedging. ``include`` asks for the last five fields."""

    decision: Numbers
    status: str = ""
    expected_cost: float | None = None
    cost_quantiles: Numbers = field(default_factory=dict)
    cvar_95: float | None = None
    reason: str = ""
    solver: str = ""
    gap: float | None = None
    feasibility: float | None = None
    map: MapDecision | None = None
    hedging_gain: float | None = None
    warnings: list[str] = field(default_factory=list)
    scenarios: Any = None
    outcomes: Any = None
    recourse: Any = None
    sensitivity: Any = None
    neighbours: Any = None
    # The logged call, if any, and the index of this context in it.
    logged_as: str | None = field(default=None, compare=False)
    index: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True)
class PosteriorReply(Record):
    """Fields of every answer of a posterior; ``id`` is its id in the log, if it is logged."""

    posterior_id: str
    digest: str
    policy: str
    quality: str
    warnings: list[str] = field(default_factory=list)
    scenarios: Json = field(default_factory=dict)
    id: str | None = None
    problem_differs: list[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PrescribeReply(PosteriorReply):
    """The whole answer to a prescribe call."""

    prescriptions: list[ContextPrescription]


@dataclass(frozen=True, kw_only=True)
class AlternativeRecord(Record):
    """A decision of your own, priced on the scenarios of the prescription. ``filled`` names values that we decided."""

    decision: Numbers
    name: str = ""
    status: str = ""
    reason: str = ""
    filled: list[str] = field(default_factory=list)
    expected_cost: float | None = None
    cost_quantiles: Numbers = field(default_factory=dict)
    cvar_95: float | None = None
    feasibility: float | None = None
    service_level: Numbers | None = None
    breaches: list[str] = field(default_factory=list)
    extra_cost: float | None = None
    extra_cost_standard_error: float | None = None
    extra_cost_quantiles: Numbers = field(default_factory=dict)
    worse_in: float | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """For one context: the prescription, and the cost of each alternative."""

    ours: ContextPrescription | None = None
    alternatives: list[AlternativeRecord] = field(default_factory=list)
    status: str = ""
    reason: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EvaluateReply(PosteriorReply):
    """The whole answer to an evaluate call."""

    evaluations: list[EvaluationRecord]


@dataclass(frozen=True, kw_only=True)
class BacktestResult(Record):
    """Costs of policies on rows that they have not learned from; ``raw`` is the whole summary.

    ``worth_using`` is yes, no or unclear, and ``verdict`` says why. ``job_id`` has the table, a line for each row and
    policy.
    """

    job_id: str
    worth_using: str = ""
    verdict: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DriftRecord(Record):
    """Whether realised costs match the promised ones; ``raw`` has every figure."""

    verdict: str


@dataclass(frozen=True, kw_only=True)
class AliasRecord(Record):
    name: str
    posterior_id: str
    digest: str
    revision: int
    created_at: datetime
    moved_at: datetime
    moved_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class AliasMoveRecord(Record):
    revision: int
    at: datetime
    by: str | None = None
    from_posterior_id: str | None = None
    to_posterior_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CallRecord(Record):
    """A logged prescribe or evaluate call. Lists omit request, answer and outcomes."""

    id: str
    kind: str
    created_at: datetime
    posterior_id: str
    digest: str = ""
    key_id: str | None = None
    contexts: int = 0
    recorded: int = 0
    request: Json = field(default_factory=dict)
    answer: Json = field(default_factory=dict)
    outcomes: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OutcomeRecord(Record):
    """Recorded outcomes of a call and their costs: one entry of ``rows`` for each context of the request."""

    id: str
    posterior_id: str
    contexts: int = 0
    recorded: int = 0
    rows: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ReproduceReply(Record):
    """A logged call repeated: the new answer and its differences."""

    id: str
    identical: bool
    answer: Json
    differing: int = 0
    differences: list[Any] = field(default_factory=list)
    largest_difference: float | None = None


# reading

T = TypeVar("T", bound=Record)


def read(kind: type[T], document: Any) -> T:
    """Return a record from JSON. Fields that this version does not know stay in ``raw``."""
    if not isinstance(document, Mapping):
        raise UnexpectedAnswer(f"an answer is no {kind.__name__}; is this the address of the service?")
    known = {name: _value(hint, document[name]) for name, hint in _hints(cast(Any, kind)).items() if name in document}
    try:
        return kind(raw=document, **known)
    except TypeError:
        lacking = [name.name for name in fields(kind) if name.name not in document and name.name != "raw"]
        raise UnexpectedAnswer(f"an answer lacks fields of {kind.__name__}, among {', '.join(lacking)}") from None


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if name != "raw"}


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is list:
        (entry,) = get_args(hint)
        return [_value(entry, each) for each in value]
    if hint is datetime:
        return datetime.fromisoformat(value)
    return read(hint, value) if isinstance(hint, type) and issubclass(hint, Record) else value
