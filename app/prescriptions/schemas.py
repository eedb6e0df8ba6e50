"""Prescribe's request and answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from app.jobs.schemas import PolicyName, Seed, TimeLimit
from app.posteriors.schemas import Quality
from app.schemas import Name, Request

CostsOver = Literal["predictive", "posterior"]

EXAMPLE_CONTEXTS: list[Any] = [
    {"weekday": "SAT", "temperature": 21.5, "rain": 0.0, "promotion": True, "holiday": False},
    {"weekday": "MON", "temperature": 4.0, "rain": 6.5, "promotion": False, "holiday": False},
]


# Checked where the columns are known; the schema is for readers.
Context = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]})]


class PrescribeOptions(Request):
    """How to decide, for one context or for many."""

    policy: PolicyName | None = Field(None, description="the posterior's own by default")
    alpha: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="for policy blended: 0 optimises at the mean prediction, 1 is bcp"
    )
    scenarios: Annotated[int, Field(ge=1)] = Field(200, description="posterior draws to hedge over")
    seed: Seed | None = Field(None, description="draw fresh scenarios with this seed; by default the stored particles")
    costs_over: CostsOver = Field(
        "predictive",
        description="what costs are computed over: 'predictive' uses outcomes of similar rows of the history, so it "
        "includes noise no model removes; 'posterior' uses the posterior draws alone",
    )
    require_quality: Quality = Field(
        "bad", description="refuse to prescribe from a posterior of lower quality than this"
    )


class PrescribeRequest(PrescribeOptions):
    model_config = ConfigDict(json_schema_extra={"examples": [{"contexts": EXAMPLE_CONTEXTS, "scenarios": 200}]})

    contexts: list[Context] = Field(
        min_length=1, description="one or many contexts: column name to value, or values in column order"
    )


class BatchOptions(PrescribeOptions):
    """How a job decides for a whole table of contexts."""

    name: Name = Field("", validate_default=False, description="the posterior's by default")
    time_limit_seconds: TimeLimit | None = Field(
        None, description="stop after so long and fail; by default as long as the service allows"
    )


class NewBatch(BatchOptions):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "bakery", "dataset_id": "data_DEMO", "scenarios": 100}]}
    )

    dataset_id: str = Field(description="a data set that has the posterior's context columns; others are carried along")


class ScenarioSource(BaseModel):
    count: int
    source: str = Field(description="'particles' stored with the posterior, or 'fresh draws' from its components")
    seed: int
    costs_over: CostsOver = Field(description="the scenarios behind every cost in this answer")


class MapAlternative(BaseModel):
    """What the posterior's mode alone would decide, judged under the same scenarios."""

    decision: dict[str, float]
    expected_cost: float


class PrescriptionAnswer(BaseModel):
    decision: dict[str, float]
    expected_cost: float
    cost_quantiles: dict[str, float] = Field(examples=[{"0.05": 1.0, "0.5": 7.5, "0.95": 30.0}])
    cvar_95: float = Field(description="mean cost of the worst 5 % of scenarios")
    status: str
    map: MapAlternative
    hedging_gain: float = Field(description="the MAP decision's expected cost less this decision's")


class PrescribeAnswer(BaseModel):
    posterior_id: str
    digest: str
    policy: PolicyName
    scenarios: ScenarioSource
    quality: Quality
    warnings: list[str]
    prescriptions: list[PrescriptionAnswer]
