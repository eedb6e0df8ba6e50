"""What a job is asked to do, and how it answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.http.schemas import Name, PolicyName, Request, Resource, Seed, TimeLimit
from app.posteriors.options import AutoPosterior, PosteriorSpec, PredictorSpec, learning_options
from bco_core.inference.options import LearningOptions

Kind = Literal["learn", "prescribe"]
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class NewJob(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "bakery", "problem_id": "prob_DEMO", "dataset_id": "data_DEMO", "seed": 7}]
        }
    )

    name: Name = Field("", validate_default=False, description="carried over to the posterior")
    problem_id: str
    dataset_id: str
    predictor: PredictorSpec = PredictorSpec()
    posterior: PosteriorSpec = AutoPosterior()
    policy: PolicyName | None = Field(None, description="prescribe's default; by default what held-out rows recommend")
    seed: Seed = 0
    time_limit_seconds: TimeLimit | None = Field(
        None, description="stop computing after so long and fail; by default as long as the service allows"
    )

    def learning_options(self) -> LearningOptions:
        return learning_options(self.predictor, self.posterior, self.policy, self.seed)


class JobFilter(BaseModel):
    """Which jobs to list; what is not given does not matter."""

    state: State | None = None
    kind: Kind | None = None
    problem_id: str | None = None
    dataset_id: str | None = None
    created_after: datetime | None = Field(None, description="created then or later, such as 2026-01-31T06:00:00Z")
    created_before: datetime | None = Field(None, description="created earlier than then")


class LogLine(BaseModel):
    seq: int = Field(description="grows along a job's log")
    at: datetime
    text: str


class JobLog(BaseModel):
    """What happened to a job, in order; lines about progress are thinned out as time goes on."""

    lines: list[LogLine]


class JobAnswer(Resource):
    kind: Kind = Field(description="learn makes a posterior; prescribe decides for many contexts with one")
    problem_id: str
    dataset_id: str | None
    posterior_id: str = Field(
        description="the posterior that learn makes, to be read once the job has succeeded, or that prescribe uses"
    )
    state: State
    progress: float = Field(description="from 0 to 1")
    message: str = Field(description="what the job is doing, or did last")
    error: str | None = Field(description="why the job failed")
    attempts: int = Field(description="how often a worker has started it")
    started_at: datetime | None
    finished_at: datetime | None
    spec: dict[str, Any]
