"""/v1/jobs, and /v1/posteriors/{id}/batch-prescriptions, which creates jobs of the kind prescribe."""

from __future__ import annotations

import re
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Form, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from app.backtests.schemas import OverTimeAnswer, Stretches
from app.datasets.parsing import parse_file
from app.db.tables import JobRow
from app.http.errors import NotFoundError
from app.http.idempotency import IdempotentRoute
from app.http.schemas import Limit, Moment, Page
from app.http.security import Admin, Reader, Trainer
from app.ids import sibling_id
from app.jobs import create, events, results, service
from app.jobs.kinds import KINDS
from app.jobs.kinds.prescribe import PRESCRIBE, PrescribeJobRequest, check, draft
from app.jobs.schemas import (
    EXAMPLES,
    AnyJob,
    JobAnswer,
    JobFilter,
    JobKindName,
    JobLog,
    JobState,
    JobSummary,
    LogLineAnswer,
    ResultFormatName,
)
from app.posteriors import service as posteriors
from app.prescriptions.schemas import BatchUpload, NewBatch
from app.settings import get_settings

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)
batch_router = APIRouter(prefix="/v1", tags=["prescriptions"], route_class=IdempotentRoute)


def job_answer(row: JobRow) -> JobAnswer:
    return JobAnswer(**_fields(row, JobAnswer), verdict=(row.summary or {}).get("verdict"))


def _fields(row: Any, model: type[JobSummary]) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in model.model_fields if name != "verdict"}
    if KINDS[row.kind].makes_posterior:
        fields["posterior_id"] = sibling_id(row.id, "post")
    return fields


@router.post("", status_code=202)
def create_job(job: Annotated[AnyJob, Body(examples=EXAMPLES)], caller: Trainer, response: Response) -> JobAnswer:
    """Create a job: learn a posterior, prescribe for many contexts or backtest policies, as `kind` says.

    The job is queued; follow it at the address in Location.
    """
    kind = job.kind
    row = create.create(caller.workspace, kind, kind.check(caller.workspace, job.request))
    response.headers["Location"] = f"/v1/jobs/{row.id}"
    return job_answer(row)


@router.get("")
def list_jobs(
    caller: Reader,
    limit: Limit = 50,
    cursor: str | None = None,
    state: JobState | None = None,
    kind: JobKindName | None = None,
    problem_id: str | None = None,
    dataset_id: str | None = None,
    created_after: Annotated[Moment | None, Query(description="such as 2026-01-31T06:00:00Z")] = None,
    created_before: Moment | None = None,
) -> Page[JobSummary]:
    """List jobs, newest first; filter by state, kind, problem, data set or time of creation."""
    only = JobFilter(
        state=state,
        kind=kind,
        problem_id=problem_id,
        dataset_id=dataset_id,
        created_after=created_after,
        created_before=created_before,
    )
    rows, next_cursor = service.listing(caller.workspace, limit, cursor, only)
    return Page(
        items=[JobSummary(**_fields(row, JobSummary), verdict=row.verdict) for row in rows], next_cursor=next_cursor
    )


@router.get("/{job_id}")
def read_job(job_id: str, caller: Reader) -> JobAnswer:
    """Read a job: state, progress and, once it has succeeded, its result."""
    return job_answer(service.get(caller.workspace, job_id))


@router.post("/{job_id}/cancel", status_code=202)
def cancel_job(job_id: str, caller: Trainer) -> JobAnswer:
    """Stop a queued or running job; its computation ends within two seconds."""
    return job_answer(service.cancel(caller.workspace, job_id))


@router.post("/{job_id}/retry", status_code=202)
def retry_job(job_id: str, caller: Trainer) -> JobAnswer:
    """Run a failed or cancelled job again, with the same request."""
    return job_answer(service.retry(caller.workspace, job_id))


@router.get("/{job_id}/log")
def read_job_log(job_id: str, caller: Reader) -> JobLog:
    """Read the job's log: when it started, how it progressed and how it ended."""
    return JobLog(
        lines=[
            LogLineAnswer.model_validate(line, from_attributes=True)
            for line in service.read_log(caller.workspace, job_id)
        ]
    )


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "events `log`, `state` and `progress`"},
        204: {"description": "the job has ended and all its events have been sent"},
    },
)
async def follow_job(
    job_id: str,
    caller: Reader,
    request: Request,
    last_event_id: Annotated[str, Header(description="resume after this event; browsers send it by themselves")] = "",
) -> Response:
    """Follow a job as server-sent events, until it has ended: `curl -N`, or `new EventSource(…)` in a browser."""
    after = int(last_event_id) if re.fullmatch(r"[0-9]{1,18}", last_event_id) else -1
    first = await anyio.to_thread.run_sync(events.snapshot, caller.workspace, job_id, after)
    if first is None:
        raise NotFoundError(service.MISSING)
    if first.is_last and first.last_id <= after:
        return Response(status_code=204)
    state = request.app.state
    return StreamingResponse(
        events.stream(caller.workspace, job_id, after, state.poll_limiter, state.stopping),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get(
    "/{job_id}/result",
    response_class=StreamingResponse,
    responses={200: {"content": {media_type: {} for media_type in results.MEDIA_TYPES}, "description": "the file"}},
)
def download_job_result(
    job_id: str,
    caller: Reader,
    format: Annotated[ResultFormatName, Query(description="csv, parquet for exact numbers, or xlsx")] = "csv",
) -> StreamingResponse:
    """Download a job's result as one file: for prescriptions, every context with its decision and cost distribution."""
    media_type, pieces = results.file(caller.workspace, job_id, format)
    return StreamingResponse(
        pieces,
        media_type=media_type,
        headers={"Content-Disposition": f'attachment; filename="{job_id}.{format}"'},
    )


@router.get("/{job_id}/backtest/over-time")
def read_backtest_over_time(
    job_id: str,
    caller: Reader,
    stretches: Annotated[
        Stretches, Query(description="number of intervals of time or, without a time column, of rows")
    ] = 100,
) -> OverTimeAnswer:
    """Read the costs of a backtest's policies over time, and cumulated paired differences with a band of chance."""
    return results.backtest_over_time(caller.workspace, job_id, stretches)


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: str, caller: Admin) -> None:
    """Delete a finished job whose posterior is deleted already."""
    service.delete(caller.workspace, job_id)


@batch_router.post("/posteriors/{posterior_id}/batch-prescriptions", status_code=202)
def create_batch(posterior_id: str, request: NewBatch, caller: Trainer, response: Response) -> JobAnswer:
    """Prescribe for every row of a data set, as a job that all workers share; the result is a file."""
    posterior = posteriors.get(caller.workspace, posterior_id)
    job_request = PrescribeJobRequest(
        kind="prescribe", posterior_id=posterior.id, **request.model_dump(exclude_unset=True)
    )
    job = create.create(caller.workspace, PRESCRIBE, check(caller.workspace, job_request))
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)


@batch_router.post("/posteriors/{posterior_id}/batch-prescriptions/upload", status_code=202)
def upload_batch(
    posterior_id: str,
    upload: Annotated[BatchUpload, Form(media_type="multipart/form-data")],
    caller: Trainer,
    response: Response,
) -> JobAnswer:
    """Prescribe for every row of a file with the posterior's context columns; other columns are copied."""
    raw = parse_file(upload.file.file.read(), get_settings())
    posterior = posteriors.get(caller.workspace, posterior_id)
    job = create.create(caller.workspace, PRESCRIBE, draft(posterior, upload.options(), raw))
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)
