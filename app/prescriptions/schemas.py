"""Prescribe's request and answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, Json, WithJsonSchema, field_validator

from app.http.schemas import Body, Name, PolicyName, Seed, StrictModel, TimeLimit
from app.posteriors.schemas import Quality
from app.prescriptions.include_schemas import INCLUDE_DESCRIPTION, Include, Neighbours, Opened
from app.problems.patch import Difference, Patch
from bco_core.problems.base import Status

# The status of a context that cannot be decided for.
REFUSED = "refused"
CostsOver = Literal["predictive", "posterior"]

EXAMPLE_CONTEXTS: list[Any] = [
    {"weekday": "SAT", "temperature": 21.5, "rain": 0.0, "promotion": True, "holiday": False},
    {"weekday": "MON", "temperature": 4.0, "rain": 6.5, "promotion": False, "holiday": False},
]


# Checked where the columns are known; the schema is for readers.
Context = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]})]


class RiskMeasure(StrictModel):
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
    problem_patch: Patch | None = Field(
        None,
        description="numbers of the problem to change for this call, without learning again: the specification's "
        "shape, but lists of named things are mappings from names to the fields to change. The answer says what the "
        "posterior was learned for",
    )
    include: list[Include] = Field([], max_length=5, description=INCLUDE_DESCRIPTION)
    neighbours: Neighbours = Field(10, description="how many rows of the history to tell, where they are included")


class PrescribeRequest(PrescribeOptions):
    model_config = ConfigDict(json_schema_extra={"examples": [{"contexts": EXAMPLE_CONTEXTS, "scenarios": 200}]})

    contexts: list[Context] = Field(
        min_length=1,
        description="one or many contexts: column name to value, or values in column order. Where the data set has a "
        "time column a context holds its time and keys, as in the history or with the time in ISO 8601. A context that "
        "cannot be decided for is refused by itself, with 422 only if there is no other",
    )
    time_limit_seconds: Annotated[float, Field(gt=0, le=600)] | None = Field(
        None,
        description="how long this call may take; it is answered with the best decisions found by then, what is cut "
        "off with status time_limit, or with 503 where there is none",
    )

    @property
    def work(self) -> int:
        """How many decisions the call is about."""
        return len(self.contexts)


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


class BatchUpload(StrictModel):
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
    include: str = Field("", description=f"{INCLUDE_DESCRIPTION}; separated by commas")
    neighbours: Neighbours = Field(10, description="how many rows of the history to tell, where they are included")
    time_limit_seconds: TimeLimit | None = Field(None, description="stop after so long and fail")
    problem_patch: Json[Patch] | None = Field(None, description="numbers of the problem to change, as a text of JSON")

    def options(self) -> BatchOptions:
        risk = RiskMeasure(cvar_weight=self.cvar_weight, cvar_level=self.cvar_level) if self.cvar_weight else None
        given = self.model_dump(exclude={"file", "cvar_weight", "cvar_level"}) | {
            "risk": risk,
            "include": self._included(),
        }
        return BatchOptions(**{name: value for name, value in given.items() if name != "name" or value})

    def _included(self) -> list[str]:
        return [name for part in self.include.split(",") if (name := part.strip())]

    @field_validator("include")
    @classmethod
    def names_what_there_is(cls, given: str) -> str:
        known = get_args(Include)
        for part in given.split(","):
            if part.strip() and part.strip() not in known:
                raise ValueError(f"it may name {', '.join(known)}, separated by commas")
        return given


class ScenarioSource(BaseModel):
    count: int
    source: str = Field(description="'particles' stored with the posterior, or 'fresh draws' from its components")
    seed: int
    costs_over: CostsOver = Field(description="the scenarios behind every cost in this answer")


class MapAlternative(BaseModel):
    """What the posterior's mode alone would decide, judged under the same scenarios."""

    decision: dict[str, float | None]
    expected_cost: float | None


class PrescriptionAnswer(Opened):
    """Numbers are null where there is no decision, or no recourse in some scenario; ``reason`` then says why."""

    decision: dict[str, float | None]
    expected_cost: float | None
    cost_quantiles: dict[str, float | None] = Field(examples=[{"0.05": 1.0, "0.5": 7.5, "0.95": 30.0}])
    cvar_95: float | None = Field(description="mean cost of the worst 5 % of scenarios")
    status: Status | Literal["refused"] = Field(
        description="how the decision was found; refused if the context cannot be decided for, which others can"
    )
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
    facts: dict[str, Any] | None = Field(
        None,
        description="what else a problem says of a decision: of portfolios expected_return, variance, volatility, "
        "turnover, the bounds of positions, and what the covariance was estimated from",
    )
    map: MapAlternative
    hedging_gain: float | None = Field(description="the MAP decision's expected cost less this decision's")
    warnings: list[str] = Field(
        [], description="what is unusual about the context: far from the history in time or value, or a short series"
    )


class RowsUsed(BaseModel):
    """The rows that lags and levels were made of."""

    revision: int = Field(description="of the posterior's data set")
    last: str = Field(description="the newest time in it")


class PosteriorsAnswer(BaseModel):
    """What every answer of a posterior says besides what was asked for."""

    id: str | None = Field(description="GET /v1/prescriptions/{id} has this answer; null if it is not kept")
    posterior_id: str
    digest: str
    policy: PolicyName
    scenarios: ScenarioSource
    quality: Quality
    history: RowsUsed | None = Field(
        None, description="where the posterior looks back on its data set: the rows it has looked at"
    )
    problem_differs: list[Difference] | None = Field(
        None,
        description="where the request has a patch: what it changes, the largest changes first and at most 100 of them",
    )
    warnings: list[str]


class PrescribeAnswer(PosteriorsAnswer):
    prescriptions: list[PrescriptionAnswer]
