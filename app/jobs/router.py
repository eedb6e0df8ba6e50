"""/v1/jobs"""

from __future__ import annotations

import re
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from app.backtests.schemas import OverTimeAnswer, Stretches
from app.db.tables import JobRow
from app.http.errors import NotFoundError
from app.http.idempotency import IdempotentRoute
from app.http.schemas import Limit, Moment, Page
from app.http.security import Admin, Reader, Trainer
from app.ids import sibling_id
from app.jobs import create as create_module
from app.jobs import events, over_time, results, service
from app.jobs.kinds import KINDS
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

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)


def job_answer(row: JobRow) -> JobAnswer:
    return JobAnswer(**_shown(row, JobAnswer), verdict=(row.summary or {}).get("verdict"))


def _shown(row: Any, model: type[JobSummary]) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in model.model_fields if name != "verdict"}
    if KINDS[row.kind].makes_posterior:
        fields["posterior_id"] = sibling_id(row.id, "post")
    return fields


@router.post("", status_code=202)
def create_job(asked: Annotated[AnyJob, Body(examples=EXAMPLES)], caller: Trainer, response: Response) -> JobAnswer:
    """Learn a posterior for a problem from a data set, or what else `kind` says.

    The job is queued; follow it at the address in Location.
    """
    kind = asked.kind
    row = create_module.create(caller.workspace, kind, kind.check(caller.workspace, asked.request))
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
    """All jobs, or those in a state, of a kind, of a problem or data set, or created in a span of time."""
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
        items=[JobSummary(**_shown(row, JobSummary), verdict=row.verdict) for row in rows], next_cursor=next_cursor
    )


@router.get("/{job_id}")
def read_job(job_id: str, caller: Reader) -> JobAnswer:
    """State, progress and, once it has succeeded, the posterior."""
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
    """What happened to the job: when it started, how it went on, and how it ended."""
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
        204: {"description": "the job has ended and everything has been told"},
    },
)
async def follow_job(
    job_id: str,
    caller: Reader,
    request: Request,
    last_event_id: Annotated[str, Header(description="come back after this event; a browser sends it by itself")] = "",
) -> Response:
    """Follow a job as server-sent events, until it has ended: `curl -N`, or `new EventSource(…)` in a browser."""
    after = int(last_event_id) if re.fullmatch(r"[0-9]{1,18}", last_event_id) else -1
    first = await anyio.to_thread.run_sync(events.look, caller.workspace, job_id, after)
    if first is None:
        raise NotFoundError(service.MISSING)
    if first.is_last and first.last_id <= after:
        return Response(status_code=204)
    state = request.app.state
    return StreamingResponse(
        events.stream(caller.workspace, job_id, after, state.lookers, state.stopping),
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
    """What a job has made, as one file: for prescriptions, every context with its decision and what that may cost."""
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
    stretches: Annotated[Stretches, Query(description="how many stretches of time or, without one, of rows")] = 100,
) -> OverTimeAnswer:
    """What a backtest's policies cost over time, and paired differences summed up with the band of chance."""
    return over_time.read(caller.workspace, job_id, stretches)


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: str, caller: Admin) -> None:
    """Delete a finished job whose posterior is deleted already."""
    service.delete(caller.workspace, job_id)
