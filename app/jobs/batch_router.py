"""/v1/posteriors/{id}/batch-prescriptions: jobs of the kind prescribe, made where their posterior is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Response

from app.datasets.parsing import parse_file
from app.http.idempotency import IdempotentRoute
from app.http.security import Trainer
from app.jobs import create as create_module
from app.jobs.kinds.prescribe import PRESCRIBE, PrescribeJobRequest, check, draft
from app.jobs.router import job_answer
from app.jobs.schemas import JobAnswer
from app.posteriors import service as posteriors
from app.prescriptions.schemas import BatchUpload, NewBatch
from app.settings import get_settings

router = APIRouter(prefix="/v1", tags=["prescriptions"], route_class=IdempotentRoute)


@router.post("/posteriors/{posterior_id}/batch-prescriptions", status_code=202)
def create_batch(posterior_id: str, request: NewBatch, caller: Trainer, response: Response) -> JobAnswer:
    """Decide for every row of a data set, as a job that all workers share. Its result is a file."""
    posterior = posteriors.get(caller.workspace, posterior_id)
    asked = PrescribeJobRequest(kind="prescribe", posterior_id=posterior.id, **request.model_dump(exclude_unset=True))
    job = create_module.create(caller.workspace, PRESCRIBE, check(caller.workspace, asked))
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)


@router.post("/posteriors/{posterior_id}/batch-prescriptions/upload", status_code=202)
def upload_batch(
    posterior_id: str,
    upload: Annotated[BatchUpload, Form(media_type="multipart/form-data")],
    caller: Trainer,
    response: Response,
) -> JobAnswer:
    """Decide for every row of a file that has the posterior's context columns; other columns are carried along."""
    raw = parse_file(upload.file.file.read(), get_settings())
    posterior = posteriors.get(caller.workspace, posterior_id)
    job = create_module.create(caller.workspace, PRESCRIBE, draft(posterior, upload.options(), raw))
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)
