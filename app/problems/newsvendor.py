"""Schema of kind ``newsvendor``, and the numbers and rows that other kinds share."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.http.schemas import Name, StrictModel

Cost = Annotated[float, Field(gt=0, le=1e12)]


Bound = Annotated[float, Field(ge=-1e12, le=1e12)] | None
Coefficient = Annotated[float, Field(ge=-1e12, le=1e12)]
Coefficients = dict[Name, Coefficient]
Sense = Literal["<=", ">=", "="]
Amount = Annotated[float, Field(ge=0, le=1e12)]
ServiceLevel = Annotated[float, Field(ge=0, lt=1)]
RelativeGap = Annotated[
    Annotated[float, Field(ge=0, le=1)] | None,
    Field(
        description="relative optimality gap, fixed cost excluded, within which a decision counts as optimal; 1e-6 by "
        "default"
    ),
]
AbsoluteGap = Annotated[
    Amount | None,
    Field(
        description="absolute optimality gap within which a decision counts as optimal; by default 1e-9, or 1e-9 of "
        "the largest unit cost if all are below one"
    ),
]


class DecisionRow(StrictModel):
    """A constraint on decisions: Σ coefficient · decision (sense) limit."""

    name: Name | None = None
    coefficients: Coefficients
    sense: Sense
    limit: Coefficient


class NewsvendorItem(StrictModel):
    """One item to order: its name is the outcome column that holds its demand.

    A unit too few costs ``underage_cost``, a unit too many ``overage_cost``. Both follow from ``price`` and
    ``unit_cost`` where these are given: price − unit_cost + shortage_penalty, and unit_cost − salvage_value.
    """

    name: Name = Field(examples=["croissants"])
    underage_cost: Cost | None = Field(None, description="cost of each unit of demand not met", examples=[1.8])
    overage_cost: Cost | None = Field(None, description="cost of each unit left over", examples=[0.6])
    price: Amount | None = Field(None, description="selling price of a unit; instead of the two costs")
    unit_cost: Amount | None = Field(None, description="purchase price of a unit; with price")
    salvage_value: Coefficient | None = Field(
        None, description="value of a unit left over, negative if it costs; 0 by default, with price"
    )
    shortage_penalty: Amount | None = Field(
        None, description="cost of a unit of demand not met besides its margin; 0 by default, with price"
    )
    minimum_order: float | None = Field(0.0, description="smallest order; null for no limit, or 0 with stock")
    maximum_order: float | None = Field(None, description="largest order; null for no limit")
    maximum_demand: Annotated[float, Field(gt=0)] | None = Field(
        None, description="largest possible demand, if known; certificates need it"
    )
    stock: Amount = Field(0.0, description="on hand before ordering; it meets demand first")
    integer: bool = Field(False, description="must be an integer")
    pack_size: Cost | None = Field(None, description="orders are multiples of this; null for any amount")
    minimum_service_level: ServiceLevel = Field(
        0.0, description="probability with which stock and order must meet the item's demand"
    )

    @model_validator(mode="after")
    def bounds_leave_room(self) -> Self:
        low, high = self.minimum_order, self.maximum_order
        if low is not None and high is not None and low > high:
            raise ValueError("minimum_order is above maximum_order")
        return self


class NewsvendorSpec(StrictModel):
    """How much to order of each item before its demand is known."""

    kind: Literal["newsvendor"]
    items: list[NewsvendorItem] = Field(min_length=1, max_length=200)
    decision_rows: list[DecisionRow] = Field([], max_length=50, description="budgets and capacities that items share")
    minimum_service_level: ServiceLevel = Field(
        0.0, description="expected share of all items' demand that must be met from stock and order"
    )

    @model_validator(mode="after")
    def items_have_different_names(self) -> Self:
        names = [item.name for item in self.items]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError("two items have the same name; each needs its own outcome column")
        return self

    def outcome_names(self) -> list[str]:
        """Return the outcome columns of the problem, in the order of the core."""
        return [item.name for item in self.items]

    def decision_names(self) -> list[str]:
        """Return the names of a decision's entries."""
        return [item.name for item in self.items]
