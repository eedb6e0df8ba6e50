"""Problem specifications: one model a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, model_validator

from app.schemas import Name, Request, Resource

Cost = Annotated[float, Field(gt=0, le=1e12)]


class NewsvendorItem(Request):
    """One item to order: its name is the outcome column that holds its demand."""

    name: Name = Field(examples=["croissants"])
    underage_cost: Cost = Field(description="cost of each unit of demand not met", examples=[1.8])
    overage_cost: Cost = Field(description="cost of each unit ordered in vain", examples=[0.6])
    minimum_order: float | None = Field(0.0, description="smallest order; null for no limit")
    maximum_order: float | None = Field(None, description="largest order; null for no limit")
    maximum_demand: Annotated[float, Field(gt=0)] | None = Field(
        None, description="most demand there can be, if known; certificates need it"
    )

    @model_validator(mode="after")
    def bounds_leave_room(self) -> Self:
        low, high = self.minimum_order, self.maximum_order
        if low is not None and high is not None and low > high:
            raise ValueError("minimum_order is above maximum_order")
        return self


class Newsvendor(Request):
    """How much to order of each item before its demand is known."""

    kind: Literal["newsvendor"]
    items: list[NewsvendorItem] = Field(min_length=1, max_length=200)

    @model_validator(mode="after")
    def items_have_different_names(self) -> Self:
        names = [item.name for item in self.items]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError("two items have the same name; each needs its own outcome column")
        return self

    def outcome_names(self) -> list[str]:
        """The outcome columns the problem needs, in the order the core has them."""
        return [item.name for item in self.items]

    def decision_names(self) -> list[str]:
        """What each entry of a decision is called."""
        return [item.name for item in self.items]


# A new kind is a model with ``kind``, ``outcome_names`` and ``decision_names``, and its name here.
ProblemSpec = Newsvendor


_SPEC: TypeAdapter[Newsvendor] = TypeAdapter(ProblemSpec)


class NewProblem(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "bakery",
                    "spec": {
                        "kind": "newsvendor",
                        "items": [
                            {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6},
                            {"name": "loaves", "underage_cost": 2.4, "overage_cost": 1.2, "maximum_order": 160},
                        ],
                    },
                }
            ]
        }
    )

    name: Name
    spec: ProblemSpec


class ProblemAnswer(Resource):
    spec: dict[str, Any]


def outcome_names(spec: dict[str, Any]) -> list[str]:
    """The outcome columns a stored specification needs."""
    return _SPEC.validate_python(spec).outcome_names()


def decision_names(spec: dict[str, Any]) -> list[str]:
    """What each entry of a stored specification's decision is called."""
    return _SPEC.validate_python(spec).decision_names()
