"""What a job is asked to do, and how it answers."""

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

# How far a job must have come for its pace to tell anything.
_TELLING = 0.02
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
UNKNOWN = f"the job kind must be one of {', '.join(KINDS)}"
FORMATS = sorted({name for kind in KINDS.values() for name in kind.files})


def _one_of(names: Iterable[str], otherwise: str) -> Callable[[str], str]:
    """As a ``Literal`` would, check that a text is one of the names of a registry."""

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
    """Reads a request as its field ``kind`` says; mistakes are told with their place in that request."""

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
    """Which jobs to list; what is not given does not matter."""

    state: JobState | None = None
    kind: JobKindName | None = None
    problem_id: str | None = None
    dataset_id: str | None = None
    created_after: datetime | None = Field(None, description="created then or later, such as 2026-01-31T06:00:00Z")
    created_before: datetime | None = Field(None, description="created earlier than then")


class LogLineAnswer(BaseModel):
    seq: int = Field(description="grows along a job's log")
    at: datetime
    text: str
    figures: list[dict[str, float]] | None = Field(
        None,
        description="what learning met since the last line, a few of many: epoch, risk, kl and validation_cost of "
        "variational inference; step and loss of chains, by part; costs in the problem's units",
    )


class JobLog(BaseModel):
    """What happened to a job, in order; lines about progress are thinned out as time goes on."""

    lines: list[LogLineAnswer]


class VerdictAnswer(BaseModel):
    """Whether the first of ours is worth using, and why in two sentences."""

    worth_using: Literal["yes", "no", "unclear"]
    text: str


class JobSummary(Resource):
    """A job in a list; GET /v1/jobs/{id} has what it was asked to do."""

    kind: JobKindName = Field(
        description="learn makes a posterior; prescribe decides for many contexts; backtest compares policies"
    )
    problem_id: str
    dataset_id: str | None
    posterior_id: str | None = Field(
        description="the posterior that the job makes, to be read once it has succeeded, or else the one that it uses"
    )
    state: JobState
    progress: float = Field(description="from 0 to 1")
    message: str = Field(description="what the job is doing, or did last")
    error: str | None = Field(description="why the job failed")
    attempts: int = Field(description="how often a worker has started it")
    estimate_seconds: float | None = Field(
        description="about how long the job takes once it runs, in seconds of one core; null if that is not known"
    )
    started_at: datetime | None
    finished_at: datetime | None
    verdict: VerdictAnswer | None = Field(None, description="of a backtest, once it has succeeded")

    @computed_field(description="about how many seconds a running job still takes, by its pace so far")  # type: ignore[prop-decorator]
    @property
    def remaining_seconds(self) -> float | None:
        if self.state != "running" or self.started_at is None or self.progress < _TELLING:
            return None
        return round((now() - self.started_at).total_seconds() * (1 - self.progress) / self.progress, 1)


class JobAnswer(JobSummary):
    spec: dict[str, Any]
    summary: dict[str, Any] | None = Field(
        description="what a backtest has found, once it has succeeded: costs, paired differences and a verdict"
    )
