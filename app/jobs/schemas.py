"""Requests and answers of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    WithJsonSchema,
    computed_field,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from app.db.base import now
from app.http.schemas import Resource, StrictModel
from app.jobs.kinds import DEFAULT, KINDS
from app.jobs.kinds.base import JobKind

# Progress from which on the remaining time is estimated.
_ESTIMABLE = 0.02
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
UNKNOWN = f"the job kind must be one of {', '.join(KINDS)}"
FORMATS = sorted({name for kind in KINDS.values() for name in kind.files})


def _one_of(names: Iterable[str], otherwise: str) -> Callable[[str], str]:
    """Return a validator that checks, as a ``Literal`` would, that a text is one of ``names``."""

    def check(text: str) -> str:
        if text not in names:
            raise ValueError(otherwise)
        return text

    return check


JobKindName = Annotated[
    str, AfterValidator(_one_of(KINDS, UNKNOWN)), WithJsonSchema({"type": "string", "enum": [*KINDS]})
]
ResultFormatName = Annotated[
    str,
    AfterValidator(_one_of(FORMATS, f"the format must be one of {', '.join(FORMATS)}")),
    WithJsonSchema({"type": "string", "enum": FORMATS}),
]


class JobRequest(NamedTuple):
    """A request and the kind of job that it is for."""

    kind: JobKind
    request: StrictModel


class _ByItsKind:
    """Validates a request by the model that its field ``kind`` names; errors point into that request."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        requests = {kind.name: handler.generate_schema(kind.request) for kind in KINDS.values()}
        documented = core_schema.tagged_union_schema(requests, discriminator="kind")
        return core_schema.no_info_wrap_validator_function(self.read, documented)

    @staticmethod
    def read(body: Any, documented: Any) -> JobRequest:
        name = body.get("kind", DEFAULT) if isinstance(body, dict) else DEFAULT
        kind = KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            error = InitErrorDetails(type=PydanticCustomError("job_kind", UNKNOWN), loc=("kind",), input=name)
            raise ValidationError.from_exception_data("job", [error])
        return JobRequest(kind, kind.request.model_validate(body))


AnyJob = Annotated[JobRequest, _ByItsKind()]
EXAMPLES = [example for kind in KINDS.values() for example in kind.request.model_json_schema()["examples"]]


class JobFilter(BaseModel):
    """Filter for a list of jobs; None matches everything."""

    state: JobState | None = None
    kind: JobKindName | None = None
    problem_id: str | None = None
    dataset_id: str | None = None
    created_after: datetime | None = Field(
        None, description="created at this time or later, such as 2026-01-31T06:00:00Z"
    )
    created_before: datetime | None = Field(None, description="created before this time")


class LogLineAnswer(BaseModel):
    seq: int = Field(description="increases along a job's log")
    at: datetime
    text: str
    figures: list[dict[str, float]] | None = Field(
        None,
        description="figures since the last line, thinned out: epoch, risk, kl and validation_cost of "
        "variational inference; step and loss of chains, by part; costs in the problem's units",
    )


class JobLog(BaseModel):
    """The log of a job, oldest line first; lines about progress are thinned over time."""

    lines: list[LogLineAnswer]


class VerdictAnswer(BaseModel):
    """Whether the first candidate is worth using, and why in two sentences."""

    worth_using: Literal["yes", "no", "unclear"]
    text: str


class JobSummary(Resource):
    """A job in a list; GET /v1/jobs/{id} has its request, too."""

    kind: JobKindName = Field(
        description="learn creates a posterior; prescribe decides for many contexts; backtest compares policies"
    )
    problem_id: str
    dataset_id: str | None
    posterior_id: str | None = Field(
        description="the posterior that the job creates, available once it has succeeded, or else the one that it uses"
    )
    state: JobState
    progress: float = Field(description="from 0 to 1")
    message: str = Field(description="current or last step of the job")
    error: str | None = Field(description="why the job failed")
    attempts: int = Field(description="number of times that a worker has started the job")
    estimate_seconds: float | None = Field(description="estimated running time in seconds of one core; null if unknown")
    started_at: datetime | None
    finished_at: datetime | None
    verdict: VerdictAnswer | None = Field(None, description="verdict of a backtest, once it has succeeded")

    @computed_field(description="estimated remaining seconds of a running job, by its pace so far")  # type: ignore[prop-decorator]
    @property
    def remaining_seconds(self) -> float | None:
        if self.state != "running" or self.started_at is None or self.progress < _ESTIMABLE:
            return None
        return round((now() - self.started_at).total_seconds() * (1 - self.progress) / self.progress, 1)


class JobAnswer(JobSummary):
    spec: dict[str, Any]
    summary: dict[str, Any] | None = Field(
        description="result of a backtest, once it has succeeded: costs, paired differences and a verdict"
    )
