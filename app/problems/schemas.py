"""Problem specifications: one model a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, model_validator

from app.http.schemas import Body, Name, Request, Resource

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


Bound = Annotated[float, Field(ge=-1e12, le=1e12)] | None
Coefficient = Annotated[float, Field(ge=-1e12, le=1e12)]
Coefficients = dict[Name, Coefficient]
Sense = Literal["<=", ">=", "="]


class FirstStageDecision(Request):
    """Something decided now, before the outcome is known."""

    name: Name = Field(examples=["order"])
    cost: Coefficient = Field(0.0, description="cost of each unit", examples=[5])
    minimum: Bound = Field(0.0, description="null for no limit")
    maximum: Bound = Field(None, description="null for no limit")
    integer: bool = Field(False, description="only whole numbers will do")


class DecisionRow(Request):
    """A rule that decisions keep: Σ coefficient · decision (sense) limit."""

    name: Name | None = None
    coefficients: Coefficients
    sense: Sense
    limit: Coefficient


class UncertainOutcome(Request):
    """An uncertain quantity: its name is the outcome column that holds it. Beyond its bounds it counts as the bound."""

    name: Name = Field(examples=["demand"])
    minimum: Bound = None
    maximum: Bound = None


class RecourseVariable(Request):
    """Something that can still be done once the outcome is known."""

    name: Name = Field(examples=["express"])
    cost: Coefficient = Field(0.0, description="cost of each unit", examples=[100])
    cost_outcomes: Coefficients | None = Field(None, description="not supported: recourse costs must be certain")
    minimum: Bound = 0.0
    maximum: Bound = None

    @model_validator(mode="after")
    def costs_are_certain(self) -> Self:
        if self.cost_outcomes:
            raise ValueError(
                "a recourse cost that depends on the outcome is not supported; outcomes enter in rows only"
            )
        return self


class RecourseRow(Request):
    """A rule between them: Σ recourse + Σ decisions (sense) constant + Σ outcomes, each with its coefficients."""

    name: Name | None = None
    recourse: Coefficients = Field({})
    decisions: Coefficients = Field({})
    sense: Sense
    constant: Coefficient = 0.0
    outcomes: Coefficients = Field({})


class TwoStageLinear(Request):
    """Decide now, see the outcome, then mend at least cost: any linear program with recourse."""

    kind: Literal["two_stage_linear"]
    decisions: list[FirstStageDecision] = Field(min_length=1, max_length=200)
    decision_rows: list[DecisionRow] = Field([], max_length=200)
    outcomes: list[UncertainOutcome] = Field(min_length=1, max_length=200)
    recourse: list[RecourseVariable] = Field(min_length=1, max_length=1000)
    rows: list[RecourseRow] = Field(min_length=1, max_length=200)
    relative_gap: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="how far an optimal cost may be above its proven bound, as a share of the cost without fixed ones; "
        "1e-6 by default",
    )
    absolute_gap: Annotated[float, Field(ge=0, le=1e12)] | None = Field(
        None,
        description="the same as an amount; by default 1e-9, or 1e-9 of the largest unit cost if all are below one",
    )

    def outcome_names(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes]

    def decision_names(self) -> list[str]:
        return [decision.name for decision in self.decisions]


class ShipmentSource(Request):
    """A place to order to now, and at a higher cost once demand is known."""

    name: Name = Field(examples=["north"])
    order_cost: Cost = Field(examples=[5])
    emergency_cost: Cost = Field(examples=[100])
    maximum_order: Annotated[float, Field(ge=0, le=1e12)] | None = Field(None, description="null for no limit")


class Shipment(Request):
    """Order to sources now; ship from them to destinations once demand is known. A ready-made two_stage_linear."""

    kind: Literal["shipment"]
    sources: list[ShipmentSource] = Field(min_length=1, max_length=50)
    destinations: list[Name] = Field(min_length=1, max_length=100, description="the outcome columns with their demand")
    transport_costs: list[list[Annotated[float, Field(ge=0, le=1e12)]]] = Field(
        description="a row for each source: its cost to each destination", examples=[[[1.0, 4.0], [3.0, 1.5]]]
    )

    def outcome_names(self) -> list[str]:
        return list(self.destinations)

    def decision_names(self) -> list[str]:
        return [source.name for source in self.sources]


class Asset(Request):
    """One asset: its name is the outcome column that holds its return."""

    name: Name = Field(examples=["bonds"])
    minimum: Coefficient = Field(0.0, description="smallest position; negative is short")
    maximum: Bound = Field(None, description="largest position; null for no limit but the budget")


class FactorRisk(Request):
    """The covariance as loadings·loadings' + diag(residual_variances): quick to solve with."""

    loadings: list[list[float]] = Field(min_length=1, description="a row for each asset, a column for each factor")
    residual_variances: list[Cost] = Field(min_length=1, description="one for each asset")


class _Portfolio(Request):
    assets: list[Asset] = Field(min_length=1, max_length=500)
    covariance: list[list[float]] | None = Field(None, description="of the assets' returns; or give factors")
    factors: FactorRisk | None = Field(None, description="the same as a factor model; or give covariance")
    budget: Cost = Field(1.0, description="the positions sum to at most this")

    @model_validator(mode="after")
    def assets_have_different_names(self) -> Self:
        names = [asset.name for asset in self.assets]
        if len(set(names)) < len(names):
            raise ValueError("two assets have the same name; each needs its own outcome column")
        return self

    def outcome_names(self) -> list[str]:
        return [asset.name for asset in self.assets]

    def decision_names(self) -> list[str]:
        return [asset.name for asset in self.assets]


class ReturnConstrainedPortfolio(_Portfolio):
    """The positions of least variance whose return reaches a target, with a stated confidence."""

    kind: Literal["return_constrained_portfolio"]
    target_return: Coefficient
    confidence: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.95, description="the mean return of the worst 1 − confidence of the scenarios must reach the target"
    )
    maximum_long: Annotated[float, Field(ge=0, le=1e12)] | None = Field(None, description="of all long positions")
    maximum_short: Annotated[float, Field(ge=0, le=1e12)] | None = Field(None, description="of all short positions")
    infeasible: Literal["best_effort", "error"] = Field(
        "best_effort", description="what to answer where no portfolio reaches the target"
    )


class MeanVariancePortfolio(_Portfolio):
    """The positions of least ½·risk_aversion·variance − return."""

    kind: Literal["mean_variance_portfolio"]
    risk_aversion: Cost = 1.0


# A new kind is a model with ``kind``, ``outcome_names`` and ``decision_names``, and its name here.
ProblemSpec = Annotated[
    Newsvendor | TwoStageLinear | Shipment | ReturnConstrainedPortfolio | MeanVariancePortfolio,
    Field(discriminator="kind"),
]


_SPEC: TypeAdapter[ProblemSpec] = TypeAdapter(ProblemSpec)


class NewProblem(Body):
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


class ProblemSummary(Resource):
    """A problem in a list; GET /v1/problems/{id} has its specification."""

    kind: str


class ProblemAnswer(Resource):
    spec: dict[str, Any]


def outcome_names(spec: dict[str, Any]) -> list[str]:
    """The outcome columns a stored specification needs."""
    return _SPEC.validate_python(spec).outcome_names()


def decision_names(spec: dict[str, Any]) -> list[str]:
    """What each entry of a stored specification's decision is called."""
    return _SPEC.validate_python(spec).decision_names()
