"""/v1/posteriors/{id}/batch-prescriptions: jobs of the kind prescribe, made where their posterior is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Response, UploadFile

from app.datasets.parsing import parse_file
from app.http.idempotency import Repeatable
from app.http.schemas import Name, PolicyName, Seed, TimeLimit
from app.http.security import Trainer
from app.jobs import service
from app.jobs.kinds.prescribe import PRESCRIBE, NewPrescribeJob, check, draft
from app.jobs.router import job_answer
from app.jobs.schemas import JobAnswer
from app.posteriors import service as posteriors
from app.posteriors.schemas import Quality
from app.prescriptions.schemas import BatchOptions, CostsOver, NewBatch, RiskMeasure
from app.settings import get_settings

router = APIRouter(prefix="/v1", tags=["prescriptions"], route_class=Repeatable)


@router.post("/posteriors/{posterior_id}/batch-prescriptions", status_code=202)
def create_batch(posterior_id: str, request: NewBatch, caller: Trainer, response: Response) -> JobAnswer:
    """Decide for every row of a data set, as a job that all workers share. Its result is a file."""
    posteriors.get(caller.workspace, posterior_id)
    asked = NewPrescribeJob(kind="prescribe", posterior_id=posterior_id, **request.model_dump(exclude_unset=True))
    job = service.create(caller.workspace, PRESCRIBE, check(caller.workspace, asked))
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
    posterior = posteriors.get(caller.workspace, posterior_id)
    job = service.create(caller.workspace, PRESCRIBE, draft(posterior, options, raw))
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_answer(job)
