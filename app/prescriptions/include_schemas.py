"""What an answer tells besides a decision, where it is asked to be opened."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Include = Literal["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]
INCLUDE_DESCRIPTION = (
    "what to tell besides the decision: 'scenarios' behind its costs, their summary by outcome ('outcomes'), what is "
    "done once outcomes are known ('recourse'), what moves decision and cost ('sensitivity'), and the rows of the "
    "history that are most like the context ('neighbours')"
)
Number = float | None
Numbers = dict[str, Number]
Neighbours = Annotated[int, Field(ge=1, le=100)]


class OutcomeAnswer(BaseModel):
    """One outcome over the scenarios that costs are computed over."""

    mean: Number
    standard_deviation: Number
    quantiles: Numbers = Field(examples=[{"0.05": 61.0, "0.5": 80.0, "0.95": 103.0}])
    service_level: Number = Field(
        description="the share of scenarios in which the decision serves it; null where that means nothing"
    )


class ScenariosAnswer(BaseModel):
    """What costs are computed over, scenario by scenario: Σ weight × cost is the expected cost."""

    weights: list[float]
    outcomes: dict[str, list[float]]
    costs: list[Number] = Field(description="of the decision; null where nothing mends it")


class RecourseAmount(BaseModel):
    amount: Number = Field(description="mean over the scenarios")
    used_in: Number = Field(description="the share of scenarios in which it is not zero")
    cost: Number = Field(description="mean cost")


class RecourseRowAnswer(BaseModel):
    name: str
    slack: Number = Field(description="mean room that is left")
    binding_in: Number = Field(description="the share of scenarios in which none is left")


class RecoursePlans(BaseModel):
    """The plan of every scenario, in the order of ``scenarios``."""

    names: list[str]
    amounts: list[list[Number]]
    costs: list[Number]


class RecourseAnswer(BaseModel):
    """What is done once outcomes are known; one plan of least cost, where there are several."""

    first_stage_cost: Number
    expected_cost: Number = Field(description="of the plans; with the first stage's it is the decision's expected cost")
    expected: dict[str, RecourseAmount]
    rows: list[RecourseRowAnswer]
    plans: RecoursePlans | None = Field(description="null where they are too many numbers; ask for fewer contexts")


class DerivativeAnswer(BaseModel):
    """By how much one more unit of a column moves decision and expected cost."""

    method: Literal["exact", "difference"] | None = Field(
        description="null where the value is missing: there is nothing to move"
    )
    step: Number = Field(description="of a difference: half the distance between the two values compared")
    decision: Numbers
    expected_cost: Number


class SwitchAnswer(BaseModel):
    """By how much another value moves decision and expected cost: a difference of two answers."""

    decision: Numbers
    expected_cost: Number


class AttributionAnswer(BaseModel):
    """base + Σ contributions + residual = prediction: that of the posterior's draws on average, before noise. It is
    learned for decisions, and need not be the mean outcome."""

    base: Number = Field(description="what is predicted for the history's mean context")
    contributions: Numbers = Field(description="Shapley values of the context's columns")
    prediction: Number
    residual: Number = Field(description="what is left over: rounding")


class Attributions(BaseModel):
    method: str = Field(
        description="linear: exact for a linear predictor; exact: all coalitions of columns; permutations: a sample "
        "of 32 orders with a fixed seed"
    )
    baseline: str
    outcomes: dict[str, AttributionAnswer]


class PriceAnswer(BaseModel):
    rule: str = Field(examples=["decision_rows/budget"])
    price: float = Field(
        description="by how much the least expected cost over the scenarios would fall for one more unit of room"
    )


class SensitivityAnswer(BaseModel):
    derivatives: dict[str, DerivativeAnswer] = Field(description="by the columns that are numbers")
    switches: dict[str, dict[str, SwitchAnswer]] = Field(
        description="by the columns that are categories, to up to 12 others, and by the time, to the next period or, "
        "where that is out of reach, to the one before"
    )
    attribution: Attributions
    prices: list[PriceAnswer] = Field(description="of the rules that cost something")


class NeighbourAnswer(BaseModel):
    distance: float = Field(
        description="root mean square of the differences of the columns as the predictor sees them, each in units of "
        "its spread over the history"
    )
    context: dict[str, object]
    outcomes: dict[str, float]
    cost: Number = Field(description="what the decision would have cost there")


class NeighboursAnswer(BaseModel):
    of_rows: int = Field(description="rows of the history that were looked through: all, or the latest")
    rows: list[NeighbourAnswer]


class IncludedAnswer(BaseModel):
    """What is told besides where ``include`` asks for it; the keys are absent unless they are asked for."""

    outcomes: dict[str, OutcomeAnswer] | None = None
    scenarios: ScenariosAnswer | None = None
    recourse: RecourseAnswer | None = Field(None, description="null for problems that do nothing later")
    sensitivity: SensitivityAnswer | None = None
    neighbours: NeighboursAnswer | None = None
