"""Requests and answers of prescribe, evaluate and batch prescriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, Json, WithJsonSchema, field_validator, model_validator

from app.http.schemas import Body, Name, PolicyName, Seed, StrictModel, TimeLimit
from app.posteriors.schemas import Quality
from app.problems.patch import Difference, Patch
from bco_core.problems.base import Status

# Status of a context that cannot be decided for, and of one whose alternatives are judged.
REFUSED, EVALUATED = "refused", "evaluated"
CostsOver = Literal["predictive", "posterior"]
Include = Literal["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]
INCLUDE_DESCRIPTION = (
    "parts to add to each decision: the 'scenarios' behind its costs, their summary by outcome ('outcomes'), the "
    "actions taken once outcomes are known ('recourse'), how decision and cost respond to the context ('sensitivity'), "
    "and the most similar rows of the history ('neighbours')"
)
_NEIGHBOURS_DESCRIPTION = "number of rows in the part 'neighbours'"
Neighbours = Annotated[int, Field(ge=1, le=100)]
Number = float | None
Numbers = dict[str, Number]

EXAMPLE_CONTEXTS: list[Any] = [
    {"weekday": "SAT", "temperature": 21.5, "rain": 0.0, "promotion": True, "holiday": False},
    {"weekday": "MON", "temperature": 4.0, "rain": 6.5, "promotion": False, "holiday": False},
]

# Values are checked later, against the posterior's columns; this schema is for readers.
Context = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]})]

# Requests


class RiskMeasure(StrictModel):
    """(1 − w)·expected cost + w·CVaR, the mean cost of the worst 1 − level of the scenarios."""

    cvar_weight: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="w: 0 is expected cost, 1 is CVaR alone")
    cvar_level: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="0.95 looks at the worst 5 %")


class DecisionOptions(Body):
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
        description="the scenarios behind every cost: 'predictive' uses outcomes of similar rows of the history, so it "
        "includes noise no model removes; 'posterior' uses the posterior draws alone",
    )
    risk: RiskMeasure | None = Field(
        None,
        description="a measure to minimise instead of expected cost; policy bcp then decides over the scenarios that "
        "costs_over names, so by default over outcomes of similar rows of the history",
    )
    require_quality: Quality = Field(
        "bad", description="refuse to prescribe from a posterior of lower quality than this"
    )
    problem_patch: Patch | None = Field(
        None,
        description="numbers of the problem to change for this call, without learning again: the specification's "
        "shape, but lists of named things are mappings from names to the fields to change. The answer lists the "
        "changes from the problem that the posterior was learned for",
    )
    include: list[Include] = Field([], max_length=5, description=INCLUDE_DESCRIPTION)
    neighbours: Neighbours = Field(10, description=_NEIGHBOURS_DESCRIPTION)


class PrescribeRequest(DecisionOptions):
    model_config = ConfigDict(json_schema_extra={"examples": [{"contexts": EXAMPLE_CONTEXTS, "scenarios": 200}]})

    contexts: list[Context] = Field(
        min_length=1,
        description="one or many contexts: column name to value, or values in column order. Where the data set has a "
        "time column a context holds its time and keys, as in the history or with the time in ISO 8601. A context that "
        "cannot be decided for is refused by itself; the call gets 422 only if all are refused",
    )
    time_limit_seconds: Annotated[float, Field(gt=0, le=600)] | None = Field(
        None,
        description="time limit in seconds; contexts not finished get the best decision so far and status time_limit; "
        "503 if there is none",
    )

    @property
    def work(self) -> int:
        """The number of decisions that the call computes or judges."""
        return len(self.contexts)


Decision = dict[str, Annotated[float, Field(ge=-1e12, le=1e12)] | None]


class AlternativeSpec(StrictModel):
    """A decision of the caller's own. We choose the best values for entries that it omits or gives as null."""

    name: Name | None = Field(None, description="its name in the answer; its number by default")
    decision: Decision = Field(examples=[{"croissants": 120, "loaves": None}])


class EvaluateRequest(PrescribeRequest):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "contexts": EXAMPLE_CONTEXTS,
                    "alternatives": [
                        {"name": "as always", "decision": {"croissants": 120, "loaves": 60}},
                        {"name": "fewer croissants", "decision": {"croissants": 80, "loaves": None}},
                    ],
                }
            ]
        }
    )

    alternatives: list[AlternativeSpec] | None = Field(
        None, min_length=1, description="decisions to judge in every context; or give decisions"
    )
    decisions: list[Decision | list[AlternativeSpec]] | None = Field(
        None, min_length=1, description="decisions to judge, by context: one decision or several alternatives for each"
    )

    @model_validator(mode="after")
    def says_what_to_judge(self) -> Self:
        if (self.alternatives is None) == (self.decisions is None):
            raise ValueError("give alternatives for all contexts, or decisions for each: exactly one of the two")
        return self

    def by_context(self) -> list[list[AlternativeSpec]]:
        """Return the alternatives of each context."""
        if self.alternatives is not None:
            return [self.alternatives] * len(self.contexts)
        return [
            [AlternativeSpec.model_construct(name=None, decision=each)] if isinstance(each, dict) else each
            for each in self.decisions or ()
        ]

    @property
    def work(self) -> int:
        return len(self.contexts) + sum(map(len, self.by_context()))


class BatchOptions(DecisionOptions):
    """How a job decides for a whole table of contexts."""

    name: Name = Field("", validate_default=False, description="the posterior's by default")
    time_limit_seconds: TimeLimit | None = Field(
        None, description="fail if the job takes longer; by default as long as the service allows"
    )


class NewBatch(BatchOptions):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "bakery", "dataset_id": "data_DEMO", "scenarios": 100}]}
    )

    dataset_id: str = Field(description="a data set with the posterior's context columns; the result keeps its others")


class BatchUpload(StrictModel):
    """A file of contexts and how to decide for them: the fields of a multipart form."""

    # Form fields arrive as text.
    model_config = ConfigDict(strict=False)

    file: UploadFile = Field(description="contexts, as CSV (UTF-8, one header line) or Parquet")
    name: Name | None = Field(None, description="the posterior's by default")
    policy: PolicyName | None = Field(None, description="the posterior's own by default")
    alpha: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="for policy blended; 0.5 by default")
    scenarios: Annotated[int, Field(ge=1)] = Field(200, description="posterior draws to hedge over")
    seed: Seed | None = Field(None, description="draw fresh scenarios with this seed")
    costs_over: CostsOver = Field("predictive", description="the scenarios behind every cost")
    cvar_weight: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="0 is expected cost, 1 CVaR alone")
    cvar_level: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="0.95 looks at the worst 5 %")
    require_quality: Quality = Field("bad", description="refuse a posterior of lower quality than this")
    include: str = Field("", description=f"{INCLUDE_DESCRIPTION}; separated by commas")
    neighbours: Neighbours = Field(10, description=_NEIGHBOURS_DESCRIPTION)
    time_limit_seconds: TimeLimit | None = Field(None, description="fail if the job takes longer")
    problem_patch: Json[Patch] | None = Field(None, description="numbers of the problem to change, as JSON text")

    def options(self) -> BatchOptions:
        risk = RiskMeasure(cvar_weight=self.cvar_weight, cvar_level=self.cvar_level) if self.cvar_weight else None
        include = [name for part in self.include.split(",") if (name := part.strip())]
        fields = self.model_dump(exclude={"file", "cvar_weight", "cvar_level"}) | {"risk": risk, "include": include}
        return BatchOptions(**{name: value for name, value in fields.items() if name != "name" or value})

    @field_validator("include")
    @classmethod
    def names_what_there_is(cls, text: str) -> str:
        names = get_args(Include)
        for part in text.split(","):
            if part.strip() and part.strip() not in names:
                raise ValueError(f"it may name {', '.join(names)}, separated by commas")
        return text


# Parts of an answer that ``include`` asks for


class OutcomeAnswer(BaseModel):
    """One outcome over the scenarios behind the costs."""

    mean: Number
    standard_deviation: Number
    quantiles: Numbers = Field(examples=[{"0.05": 61.0, "0.5": 80.0, "0.95": 103.0}])
    service_level: Number = Field(
        description="share of scenarios in which the decision serves it; null for problems without service"
    )


class ScenariosAnswer(BaseModel):
    """The scenarios behind the costs: Σ weight × cost is the expected cost."""

    weights: list[float]
    outcomes: dict[str, list[float]]
    costs: list[Number] = Field(description="of the decision; null where no recourse is feasible")


class RecourseAmount(BaseModel):
    amount: Number = Field(description="mean over the scenarios")
    used_in: Number = Field(description="share of scenarios in which it is not zero")
    cost: Number = Field(description="mean cost")


class RecourseRowAnswer(BaseModel):
    name: str
    slack: Number = Field(description="mean slack of the row")
    binding_in: Number = Field(description="share of scenarios in which the row has no slack")


class RecoursePlans(BaseModel):
    """The plan of every scenario, in the order of ``scenarios``."""

    names: list[str]
    amounts: list[list[Number]]
    costs: list[Number]


class RecourseAnswer(BaseModel):
    """The actions taken once outcomes are known; if several plans cost least, one of them."""

    first_stage_cost: Number
    expected_cost: Number = Field(description="of the plans; plus first_stage_cost it is the decision's expected cost")
    expected: dict[str, RecourseAmount]
    rows: list[RecourseRowAnswer]
    plans: RecoursePlans | None = Field(description="null if there are too many numbers; ask for fewer contexts")


class DerivativeAnswer(BaseModel):
    """Change of decision and expected cost for one more unit of a column."""

    method: Literal["exact", "difference"] | None = Field(description="null if the context's value is missing")
    step: Number = Field(description="of a difference: half the distance between the two values compared")
    decision: Numbers
    expected_cost: Number


class SwitchAnswer(BaseModel):
    """Change of decision and expected cost with another value: the difference of two answers."""

    decision: Numbers
    expected_cost: Number


class AttributionAnswer(BaseModel):
    """base + Σ contributions + residual = prediction, the mean of the posterior draws before noise. The predictor is
    learned for decisions, so its prediction need not be the mean outcome."""

    base: Number = Field(description="prediction for the history's mean context")
    contributions: Numbers = Field(description="Shapley values of the context's columns")
    prediction: Number
    residual: Number = Field(description="rounding error")


class Attributions(BaseModel):
    method: str = Field(
        description="linear: exact for a linear predictor; exact: all coalitions of columns; permutations: a sample "
        "of 32 orders with a fixed seed"
    )
    baseline: str
    outcomes: dict[str, AttributionAnswer]


class PriceAnswer(BaseModel):
    rule: str = Field(examples=["decision_rows/budget"])
    price: float = Field(description="decrease of the least expected cost over the scenarios for one more unit")


class SensitivityAnswer(BaseModel):
    derivatives: dict[str, DerivativeAnswer] = Field(description="by numeric column")
    switches: dict[str, dict[str, SwitchAnswer]] = Field(
        description="by category column, to up to 12 other categories, and by the time column, to the next period or, "
        "if that cannot be decided for, to the previous one"
    )
    attribution: Attributions
    prices: list[PriceAnswer] = Field(description="shadow prices of the binding rules")


class NeighbourAnswer(BaseModel):
    distance: float = Field(
        description="root mean square of the differences of the columns as the predictor sees them, each in units of "
        "its spread over the history"
    )
    context: dict[str, object]
    outcomes: dict[str, float]
    cost: Number = Field(description="cost of the decision with this row's outcomes")


class NeighboursAnswer(BaseModel):
    of_rows: int = Field(description="number of rows searched: the whole history, or its latest rows")
    rows: list[NeighbourAnswer]


class IncludedAnswer(BaseModel):
    """The parts that ``include`` asks for; other keys are absent."""

    outcomes: dict[str, OutcomeAnswer] | None = None
    scenarios: ScenariosAnswer | None = None
    recourse: RecourseAnswer | None = Field(None, description="null for problems without a second stage")
    sensitivity: SensitivityAnswer | None = None
    neighbours: NeighboursAnswer | None = None


# Answers


class ScenarioSource(BaseModel):
    count: int
    source: str = Field(description="'particles' stored with the posterior, or 'fresh draws' from its components")
    seed: int
    costs_over: CostsOver = Field(description="the scenarios behind every cost in this answer")


class MapAnswer(BaseModel):
    """The decision for the posterior's mode alone, judged under the same scenarios."""

    decision: Numbers
    expected_cost: Number


class PrescriptionAnswer(IncludedAnswer):
    """Numbers are null if there is no decision, or no feasible recourse in some scenario; ``reason`` says why."""

    decision: Numbers
    expected_cost: Number
    cost_quantiles: Numbers = Field(examples=[{"0.05": 1.0, "0.5": 7.5, "0.95": 30.0}])
    cvar_95: Number = Field(description="mean cost of the worst 5 % of scenarios")
    status: Status | Literal["refused"] = Field(
        description="how the decision was found; refused if this context cannot be decided for"
    )
    reason: str = Field("", description="why the status is not optimal, which means proven within the gap")
    solver: str = Field("", description="the solver that found the decision, if one was needed")
    gap: Number = Field(
        None,
        description="relative optimality gap, fixed cost excluded; null if no solver minimised a cost, or nothing is "
        "proven",
    )
    feasibility: Number = Field(
        None, description="share of scenarios in which the decision keeps uncertain constraints; null if none are"
    )
    facts: dict[str, Any] | None = Field(
        None,
        description="further figures of the problem: for portfolios expected_return, variance, volatility, turnover, "
        "the bounds of positions, and how the covariance was estimated",
    )
    map: MapAnswer
    hedging_gain: Number = Field(description="the MAP decision's expected cost less this decision's")
    warnings: list[str] = Field(
        [], description="unusual facts about the context: far from the history in time or value, or a short series"
    )


class RowsUsed(BaseModel):
    """The rows behind lags and levels."""

    revision: int = Field(description="of the posterior's data set")
    last: str = Field(description="the newest time in it")


class CommonAnswer(BaseModel):
    """The fields that prescribe and evaluate share."""

    id: str | None = Field(description="GET /v1/prescriptions/{id} has this answer; null if it is not logged")
    posterior_id: str
    digest: str
    policy: PolicyName
    scenarios: ScenarioSource
    quality: Quality
    history: RowsUsed | None = Field(
        None, description="the rows behind lags and levels, if the posterior looks back on its data set"
    )
    problem_differs: list[Difference] | None = Field(
        None, description="changes that problem_patch makes, the largest first and at most 100; null without a patch"
    )
    warnings: list[str]


class PrescribeAnswer(CommonAnswer):
    prescriptions: list[PrescriptionAnswer]


class OurAnswer(PrescriptionAnswer):
    """Our decision, as in the answer of prescribe."""

    service_level: Numbers | None = Field(
        None, description="share of scenarios in which each outcome is served; null for problems without service"
    )


class AlternativeAnswer(BaseModel):
    """Costs of an alternative over the scenarios that ours is judged by. Numbers are null if there is no decision, or
    no feasible recourse in some scenario."""

    name: str
    decision: Numbers = Field(description="with the missing entries filled in")
    filled: list[str] = Field(description="names of the entries that we filled in")
    status: Status | Literal["given", "ours"] = Field(
        description="given if the decision was complete; ours if it was empty; otherwise how the rest was found"
    )
    reason: str = Field(description="why there is no decision or evaluation, or which constraint is violated too often")
    breaches: list[str] = Field(description="rules of the problem that the decision breaks, a sentence each")
    expected_cost: Number
    cost_quantiles: Numbers
    cvar_95: Number = Field(description="mean cost of the worst 5 % of scenarios")
    feasibility: Number = Field(
        description="share of scenarios in which the decision keeps uncertain constraints; null if none are"
    )
    service_level: Numbers | None = Field(
        description="share of scenarios in which each outcome is served; null for problems without service"
    )
    extra_cost: Number = Field(description="its expected cost less ours; negative where it costs less")
    extra_cost_standard_error: Number = Field(description="Monte Carlo standard error of extra_cost")
    extra_cost_quantiles: Numbers = Field(description="of the difference of costs, scenario by scenario")
    worse_in: Number = Field(description="share of scenarios in which it costs more than ours")


class EvaluationAnswer(BaseModel):
    status: Literal["evaluated", "refused"] = Field(description="refused if the context cannot be decided for")
    reason: str = ""
    ours: OurAnswer
    alternatives: list[AlternativeAnswer] = Field(description="in the order of the request; empty if refused")
    warnings: list[str] = Field([], description="unusual facts about the context")


class EvaluateAnswer(CommonAnswer):
    evaluations: list[EvaluationAnswer]
