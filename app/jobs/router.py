"""/v1/jobs"""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.db.tables import JobRow
from app.idempotency import Repeatable
from app.ids import sibling_id
from app.jobs import service
from app.jobs.schemas import JobAnswer, NewJob
from app.schemas import Limit, Page
from app.security import Admin, Reader, Trainer

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Repeatable)


def _answer(row: JobRow) -> JobAnswer:
    fields = {name: getattr(row, name) for name in JobAnswer.model_fields if name != "posterior_id"}
    return JobAnswer(posterior_id=sibling_id(row.id, "post"), **fields)


@router.post("", status_code=202)
def create_job(request: NewJob, caller: Trainer, response: Response) -> JobAnswer:
    """Learn a posterior for a problem from a data set. The job is queued; follow it at the address in Location."""
    row = service.create(caller.workspace, request)
    response.headers["Location"] = f"/v1/jobs/{row.id}"
    return _answer(row)


@router.get("")
def list_jobs(caller: Reader, limit: Limit = 50, cursor: str | None = None) -> Page[JobAnswer]:
    rows, next_cursor = service.listing(caller.workspace, limit, cursor)
    return Page(items=[_answer(row) for row in rows], next_cursor=next_cursor)


@router.get("/{job_id}")
def read_job(job_id: str, caller: Reader) -> JobAnswer:
    """State, progress and, once it has succeeded, the posterior."""
    return _answer(service.get(caller.workspace, job_id))


@router.post("/{job_id}/cancel", status_code=202)
def cancel_job(job_id: str, caller: Trainer) -> JobAnswer:
    """Stop a queued or running job; its computation ends within two seconds."""
    return _answer(service.cancel(caller.workspace, job_id))


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: str, caller: Admin) -> None:
    """Delete a finished job whose posterior is deleted already."""
    service.delete(caller.workspace, job_id)
