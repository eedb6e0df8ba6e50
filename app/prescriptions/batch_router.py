"""/v1/posteriors/{id}/batch-prescriptions, and the file that such a job makes"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Query, Response, UploadFile
from fastapi.responses import StreamingResponse

from app.datasets.parsing import parse_file
from app.http.idempotency import Repeatable
from app.http.schemas import Name, PolicyName, Seed, TimeLimit
from app.http.security import Reader, Trainer
from app.jobs.router import job_answer
from app.jobs.schemas import JobAnswer
from app.posteriors.schemas import Quality
from app.prescriptions import batches
from app.prescriptions.schemas import BatchOptions, CostsOver, NewBatch, RiskMeasure
from app.settings import get_settings

router = APIRouter(prefix="/v1", tags=["prescriptions"], route_class=Repeatable)

MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


@router.post("/posteriors/{posterior_id}/batch-prescriptions", status_code=202)
def create_batch(posterior_id: str, request: NewBatch, caller: Trainer, response: Response) -> JobAnswer:
    """Decide for every row of a data set, as a job that all workers share. Its result is a file."""
    job = batches.create_from_dataset(caller.workspace, posterior_id, request)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)


@router.post("/posteriors/{posterior_id}/batch-prescriptions/upload", status_code=202)
def upload_batch(
    posterior_id: str,
    caller: Trainer,
    response: Response,
    file: Annotated[UploadFile, File(description="contexts, as CSV (UTF-8, one header line) or Parquet")],
    name: Annotated[Name | None, Form(description="the posterior's by default")] = None,
    policy: Annotated[PolicyName | None, Form(description="the posterior's own by default")] = None,
    alpha: Annotated[float, Form(ge=0, le=1, description="for policy blended")] = 0.5,
    scenarios: Annotated[int, Form(ge=1, description="posterior draws to hedge over")] = 200,
    seed: Annotated[Seed | None, Form(description="draw fresh scenarios with this seed")] = None,
    costs_over: Annotated[CostsOver, Form(description="what costs are computed over")] = "predictive",
    cvar_weight: Annotated[float, Form(ge=0, le=1, description="0 minimises expected cost, 1 CVaR alone")] = 0.0,
    cvar_level: Annotated[float, Form(ge=0, lt=1, description="0.95 looks at the worst 5 %")] = 0.95,
    require_quality: Annotated[Quality, Form(description="refuse a posterior of lower quality than this")] = "bad",
    time_limit_seconds: Annotated[TimeLimit | None, Form(description="stop after so long and fail")] = None,
) -> JobAnswer:
    """Decide for every row of a file that has the posterior's context columns; other columns are carried along."""
    options = BatchOptions(
        policy=policy,
        alpha=alpha,
        scenarios=scenarios,
        seed=seed,
        costs_over=costs_over,
        risk=RiskMeasure(cvar_weight=cvar_weight, cvar_level=cvar_level) if cvar_weight else None,
        require_quality=require_quality,
        time_limit_seconds=time_limit_seconds,
    )
    if name:
        options.name = name
    raw = parse_file(file.file.read(), get_settings())
    job = batches.create(caller.workspace, posterior_id, options, raw)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)


@router.get(
    "/jobs/{job_id}/result",
    response_class=StreamingResponse,
    responses={200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}, "description": "the file"}},
)
def download_result(
    job_id: str,
    caller: Reader,
    format: Annotated[batches.Format, Query(description="csv, or parquet for exact numbers")] = "csv",
) -> StreamingResponse:
    """Every context that was sent, in its order, with the decision and what it may cost, as one file."""
    return StreamingResponse(
        batches.result(caller.workspace, job_id, format),
        media_type=MEDIA_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="{job_id}.{format}"'},
    )
