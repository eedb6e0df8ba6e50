"""Schema of kind ``linear``: any linear model whose costs, coefficients and limits may depend on outcomes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from app.http.schemas import Name, StrictModel
from app.problems.newsvendor import AbsoluteGap, Bound, Coefficient, Coefficients, RelativeGap, Sense
from bco_core.problems.linear.model import MAXIMUM_PARTS


class UncertainNumber(StrictModel):
    """An uncertain number: constant + Σ factor · outcome."""

    constant: Coefficient = 0.0
    outcomes: Coefficients = Field({}, examples=[{"fuel price": 0.3}])


def _which(value: Any) -> str:
    return "uncertain" if isinstance(value, dict | UncertainNumber) else "certain"


NumberOrUncertain = Annotated[
    Annotated[Coefficient, Tag("certain")] | Annotated[UncertainNumber, Tag("uncertain")], Discriminator(_which)
]
NumbersByName = dict[Name, NumberOrUncertain]
_VALUE = "a number, or constant and outcomes where it depends on them"


class LinearDecision(StrictModel):
    """Something decided now, before the outcome is known."""

    name: Name = Field(examples=["order"])
    cost: NumberOrUncertain = Field(
        0.0, description=f"cost of each unit, or its value where the sense is maximize: {_VALUE}"
    )
    minimum: Bound = Field(0.0, description="null for no limit")
    maximum: Bound = Field(None, description="null for no limit")
    integer: bool = Field(
        False, description="must be an integer; with bounds 0 and 1 it is a choice between yes and no"
    )


class LinearRecourse(StrictModel):
    """Something that can still be done once the outcome is known."""

    name: Name = Field(examples=["express"])
    cost: NumberOrUncertain = Field(0.0, description=f"cost of each unit: {_VALUE}")
    minimum: Bound = Field(0.0, description="null for no limit")
    maximum: Bound = Field(None, description="null for no limit")
    integer: bool = Field(False, description="must be an integer")


class LinearOutcome(StrictModel):
    """An uncertain quantity: its name is the outcome column that holds it. Beyond its bounds it counts as the bound."""

    name: Name = Field(examples=["demand"])
    minimum: Bound = None
    maximum: Bound = None


class LinearRow(StrictModel):
    """A constraint: Σ decisions + Σ recourse (sense) limit, each with its coefficients.

    A row without recourse must hold for every outcome within the bounds of the outcomes.
    """

    name: Name | None = None
    decisions: NumbersByName = Field({}, description=f"by name: {_VALUE}")
    recourse: NumbersByName = Field({}, description=f"by name: {_VALUE}")
    sense: Sense
    limit: NumberOrUncertain = Field(description=_VALUE)


class LinearSpec(StrictModel):
    """Any linear model, with or without integers, some of whose numbers are uncertain when the decision is made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "linear",
                    "decisions": [{"name": "order", "cost": 5}],
                    "recourse": [{"name": "express", "cost": {"constant": 8, "outcomes": {"fuel price": 2}}}],
                    "outcomes": [{"name": "demand", "minimum": 0}, {"name": "fuel price", "minimum": 0}],
                    "rows": [
                        {
                            "name": "demand",
                            "decisions": {"order": 1},
                            "recourse": {"express": 1},
                            "sense": ">=",
                            "limit": {"outcomes": {"demand": 1}},
                        }
                    ],
                }
            ]
        }
    )

    kind: Literal["linear"]
    sense: Literal["minimize", "maximize"] = Field(
        "minimize", description="maximize: costs are values of a unit, and the costs in an answer are negative values"
    )
    decisions: list[LinearDecision] = Field(min_length=1, max_length=MAXIMUM_PARTS["decisions"])
    recourse: list[LinearRecourse] = Field([], max_length=MAXIMUM_PARTS["recourse"])
    outcomes: list[LinearOutcome] = Field(min_length=1, max_length=MAXIMUM_PARTS["outcomes"])
    rows: list[LinearRow] = Field([], max_length=MAXIMUM_PARTS["rows"])
    relative_gap: RelativeGap = None
    absolute_gap: AbsoluteGap = None

    def outcome_names(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes]

    def decision_names(self) -> list[str]:
        return [decision.name for decision in self.decisions]
