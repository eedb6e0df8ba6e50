"""Prescribe's request and answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from app.http.schemas import Body, Name, PolicyName, Request, Seed, TimeLimit
from app.posteriors.schemas import Quality
from bco_core.problems.base import Status

CostsOver = Literal["predictive", "posterior"]

EXAMPLE_CONTEXTS: list[Any] = [
    {"weekday": "SAT", "temperature": 21.5, "rain": 0.0, "promotion": True, "holiday": False},
    {"weekday": "MON", "temperature": 4.0, "rain": 6.5, "promotion": False, "holiday": False},
]


# Checked where the columns are known; the schema is for readers.
Context = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]})]


class RiskMeasure(Request):
    """(1 − w)·expected cost + w·CVaR, the mean cost of the worst 1 − level of the scenarios."""

    cvar_weight: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="w: 0 is expected cost, 1 is CVaR alone")
    cvar_level: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="0.95 looks at the worst 5 %")


class PrescribeOptions(Body):
    """How to decide, for one context or for many."""

    policy: PolicyName | None = Field(None, description="the posterior's own by default")
    alpha: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="for policy blended alone: 0 optimises at the mean prediction, 1 is bcp; 0.5 by default",
    )
    scenarios: Annotated[int, Field(ge=1)] = Field(200, description="posterior draws to hedge over")
    seed: Seed | None = Field(None, description="draw fresh scenarios with this seed; by default the stored particles")
    costs_over: CostsOver = Field(
        "predictive",
        description="what costs are computed over: 'predictive' uses outcomes of similar rows of the history, so it "
        "includes noise no model removes; 'posterior' uses the posterior draws alone",
    )
    risk: RiskMeasure | None = Field(
        None,
        description="what to minimise instead of expected cost; policy bcp then decides over the scenarios that "
        "costs_over names, so by default over outcomes of similar rows of the history",
    )
    require_quality: Quality = Field(
        "bad", description="refuse to prescribe from a posterior of lower quality than this"
    )


class PrescribeRequest(PrescribeOptions):
    model_config = ConfigDict(json_schema_extra={"examples": [{"contexts": EXAMPLE_CONTEXTS, "scenarios": 200}]})

    contexts: list[Context] = Field(
        min_length=1, description="one or many contexts: column name to value, or values in column order"
    )
    time_limit_seconds: Annotated[float, Field(gt=0, le=600)] | None = Field(
        None,
        description="how long this call may take; it is answered with the best decisions found by then, what is cut "
        "off with status time_limit, or with 503 where there is none",
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


class BatchUpload(Request):
    """A file of contexts and how to decide for them: the fields of a multipart form."""

    # The fields of a form are texts.
    model_config = ConfigDict(strict=False)

    file: UploadFile = Field(description="contexts, as CSV (UTF-8, one header line) or Parquet")
    name: Name | None = Field(None, description="the posterior's by default")
    policy: PolicyName | None = Field(None, description="the posterior's own by default")
    alpha: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="for policy blended; 0.5 by default")
    scenarios: Annotated[int, Field(ge=1)] = Field(200, description="posterior draws to hedge over")
    seed: Seed | None = Field(None, description="draw fresh scenarios with this seed")
    costs_over: CostsOver = Field("predictive", description="what costs are computed over")
    cvar_weight: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="0 is expected cost, 1 CVaR alone")
    cvar_level: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="0.95 looks at the worst 5 %")
    require_quality: Quality = Field("bad", description="refuse a posterior of lower quality than this")
    time_limit_seconds: TimeLimit | None = Field(None, description="stop after so long and fail")

    def options(self) -> BatchOptions:
        risk = RiskMeasure(cvar_weight=self.cvar_weight, cvar_level=self.cvar_level) if self.cvar_weight else None
        given = self.model_dump(exclude={"file", "cvar_weight", "cvar_level"}) | {"risk": risk}
        return BatchOptions(**{name: value for name, value in given.items() if name != "name" or value})


class ScenarioSource(BaseModel):
    count: int
    source: str = Field(description="'particles' stored with the posterior, or 'fresh draws' from its components")
    seed: int
    costs_over: CostsOver = Field(description="the scenarios behind every cost in this answer")


class MapAlternative(BaseModel):
    """What the posterior's mode alone would decide, judged under the same scenarios."""

    decision: dict[str, float | None]
    expected_cost: float | None


class PrescriptionAnswer(BaseModel):
    """Numbers are null where there is no decision, or no recourse in some scenario; ``reason`` then says why."""

    decision: dict[str, float | None]
    expected_cost: float | None
    cost_quantiles: dict[str, float | None] = Field(examples=[{"0.05": 1.0, "0.5": 7.5, "0.95": 30.0}])
    cvar_95: float | None = Field(description="mean cost of the worst 5 % of scenarios")
    status: Status
    reason: str = Field("", description="why the status is not optimal, which means proven within the gap")
    solver: str = Field("", description="what found the decision, where a solver was needed")
    gap: float | None = Field(
        None,
        description="how far the minimised cost may be above the least there is, as a share of the cost without what "
        "bounds alone make it cost; null where no solver minimised one, or nothing is proven",
    )
    feasibility: float | None = Field(
        None, description="where constraints are uncertain: the share of scenarios in which the decision keeps them"
    )
    map: MapAlternative
    hedging_gain: float | None = Field(description="the MAP decision's expected cost less this decision's")


class PrescribeAnswer(BaseModel):
    posterior_id: str
    digest: str
    policy: PolicyName
    scenarios: ScenarioSource
    quality: Quality
    warnings: list[str]
    prescriptions: list[PrescriptionAnswer]
