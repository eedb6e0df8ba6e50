"""Problem specifications: one model a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from app.http.schemas import Body, Name, Resource, StrictModel
from app.problems.linear import LinearSpec
from app.problems.newsvendor import (
    AbsoluteGap,
    Bound,
    Coefficient,
    Coefficients,
    Cost,
    DecisionRow,
    NewsvendorSpec,
    RelativeGap,
    Sense,
)
from app.problems.ready import AnyReadyMadeSpec
from bco_core.problems.ready.kinds import READY, compile_ready


class FirstStageDecision(StrictModel):
    """Something decided now, before the outcome is known."""

    name: Name = Field(examples=["order"])
    cost: Coefficient = Field(0.0, description="cost of each unit", examples=[5])
    minimum: Bound = Field(0.0, description="null for no limit")
    maximum: Bound = Field(None, description="null for no limit")
    integer: bool = Field(False, description="must be an integer")


class UncertainOutcome(StrictModel):
    """An uncertain quantity: its name is the outcome column that holds it. Beyond its bounds it counts as the bound."""

    name: Name = Field(examples=["demand"])
    minimum: Bound = None
    maximum: Bound = None


class RecourseVariable(StrictModel):
    """Something that can still be decided once the outcome is known."""

    name: Name = Field(examples=["express"])
    cost: Coefficient = Field(0.0, description="cost of each unit", examples=[100])
    cost_outcomes: Coefficients | None = Field(
        None, description="not supported here: use kind linear for uncertain recourse costs"
    )
    minimum: Bound = 0.0
    maximum: Bound = None

    @model_validator(mode="after")
    def costs_are_certain(self) -> Self:
        if self.cost_outcomes:
            raise ValueError(
                "a recourse cost that depends on the outcome is not supported; outcomes enter in rows only"
            )
        return self


class RecourseRow(StrictModel):
    """A constraint: Σ recourse + Σ decisions (sense) constant + Σ outcomes, each with its coefficients."""

    name: Name | None = None
    recourse: Coefficients = Field({})
    decisions: Coefficients = Field({})
    sense: Sense
    constant: Coefficient = 0.0
    outcomes: Coefficients = Field({})


class TwoStageLinearSpec(StrictModel):
    """Decide now, see the outcome, then choose the cheapest recourse: any linear program with certain coefficients."""

    kind: Literal["two_stage_linear"]
    decisions: list[FirstStageDecision] = Field(min_length=1, max_length=200)
    decision_rows: list[DecisionRow] = Field([], max_length=200)
    outcomes: list[UncertainOutcome] = Field(min_length=1, max_length=200)
    recourse: list[RecourseVariable] = Field(min_length=1, max_length=1000)
    rows: list[RecourseRow] = Field(min_length=1, max_length=200)
    relative_gap: RelativeGap = None
    absolute_gap: AbsoluteGap = None

    def outcome_names(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes]

    def decision_names(self) -> list[str]:
        return [decision.name for decision in self.decisions]


class ShipmentSource(StrictModel):
    """A source that can be supplied now, and at a higher cost once demand is known."""

    name: Name = Field(examples=["north"])
    order_cost: Cost = Field(examples=[5])
    emergency_cost: Cost = Field(examples=[100])
    maximum_order: Annotated[float, Field(ge=0, le=1e12)] | None = Field(None, description="null for no limit")


class ShipmentSpec(StrictModel):
    """Order to sources now; ship from them to destinations once demand is known. A ready-made two_stage_linear."""

    kind: Literal["shipment"]
    sources: list[ShipmentSource] = Field(min_length=1, max_length=50)
    destinations: list[Name] = Field(min_length=1, max_length=100, description="outcome columns that hold their demand")
    transport_costs: list[list[Annotated[float, Field(ge=0, le=1e12)]]] = Field(
        description="a row for each source: the unit cost to each destination", examples=[[[1.0, 4.0], [3.0, 1.5]]]
    )

    def outcome_names(self) -> list[str]:
        return list(self.destinations)

    def decision_names(self) -> list[str]:
        return [source.name for source in self.sources]


class Asset(StrictModel):
    """One asset: its name is the outcome column that holds its return."""

    name: Name = Field(examples=["bonds"])
    minimum: Coefficient = Field(0.0, description="smallest position; negative means short")
    maximum: Bound = Field(None, description="largest position; null for no limit but the budget")


class FactorRisk(StrictModel):
    """The covariance as loadings·loadings' + diag(residual_variances), which is fast to solve with."""

    loadings: list[list[float]] = Field(min_length=1, description="a row for each asset, a column for each factor")
    residual_variances: list[Cost] = Field(min_length=1, description="one for each asset")


class AssetGroupSpec(StrictModel):
    """Bounds on the sum of some assets' positions."""

    name: Name | None = None
    assets: list[Name] = Field(min_length=1, max_length=500)
    minimum: Bound = None
    maximum: Bound = None


class _Portfolio(StrictModel):
    assets: list[Asset] = Field(min_length=1, max_length=500)
    covariance: list[list[float]] | None = Field(
        None, description="covariance of the returns; estimated from the history where neither it nor factors are given"
    )
    factors: FactorRisk | None = Field(None, description="the covariance as a factor model")
    estimate: Literal["shrinkage", "factors"] | None = Field(
        None,
        description="how to estimate a covariance that is not given: by Ledoit–Wolf shrinkage, or by principal "
        "factors, the default for more than 40 assets",
    )
    covariance_source: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="origin of an estimated covariance; written by learning into the posterior's problem"
    )
    budget: Cost = Field(1.0, description="the positions sum to at most this")
    fully_invested: bool = Field(False, description="the positions sum to the budget, not less")
    groups: list[AssetGroupSpec] = Field([], max_length=100, description="bounds on sums of positions")
    current: dict[Name, Coefficient] | None = Field(
        None, description="positions held now, by asset, zero for those left out; turnover is measured from them"
    )
    turnover_cost: Annotated[float, Field(ge=0, le=1e12)] = Field(
        0.0, description="cost of each unit bought or sold, subtracted from the return", examples=[0.001]
    )
    maximum_turnover: Annotated[float, Field(ge=0, le=1e12)] | None = Field(
        None, description="largest Σ |position − current|; null for no limit"
    )

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


class ReturnConstrainedPortfolioSpec(_Portfolio):
    """The positions of least variance whose return reaches a target, with a stated confidence."""

    kind: Literal["return_constrained_portfolio"]
    target_return: Coefficient = Field(description="return to reach after the cost of turnover")
    target_on: Literal["tail", "mean"] = Field(
        "tail", description="tail: the mean return of the worst scenarios must reach the target; mean: that of all"
    )
    confidence: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None,
        description="for a target on the tail: the mean return of the worst 1 − confidence of the scenarios must reach "
        "it; 0.95 by default",
    )
    maximum_long: Annotated[float, Field(ge=0, le=1e12)] | None = Field(
        None, description="largest sum of long positions; null for no limit"
    )
    maximum_short: Annotated[float, Field(ge=0, le=1e12)] | None = Field(
        None, description="largest sum of short positions; null for no limit"
    )
    infeasible: Literal["best_effort", "error"] = Field(
        "best_effort", description="answer where no portfolio reaches the target"
    )


class MeanVariancePortfolioSpec(_Portfolio):
    """The positions of least ½·risk_aversion·variance − return, after the cost of turnover."""

    kind: Literal["mean_variance_portfolio"]
    risk_aversion: Cost = 1.0


# A new kind is a schema with ``kind``, ``outcome_names`` and ``decision_names``, listed here.
ProblemSpec = Annotated[
    NewsvendorSpec
    | LinearSpec
    | TwoStageLinearSpec
    | ShipmentSpec
    | AnyReadyMadeSpec
    | ReturnConstrainedPortfolioSpec
    | MeanVariancePortfolioSpec,
    Field(discriminator="kind"),
]


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


class CompiledProblemAnswer(BaseModel):
    """A problem written as one of kind ``linear``."""

    id: str
    kind: str = Field(description="kind of the problem itself", examples=["shortest_path"])
    spec: dict[str, Any] = Field(description="a specification of kind linear, ready to be sent")


class ProblemCheckAnswer(BaseModel):
    """A valid problem, which was not stored."""

    kind: str = Field(examples=["newsvendor"])
    outcomes: list[str] = Field(description="outcome columns that its data set needs")
    decisions: list[str] = Field(description="names of the entries of a decision")
    compiled: dict[str, Any] | None = Field(
        description="the equivalent specification of kind linear; null for kind linear itself, and for other models"
    )


class ProblemAnswer(Resource):
    spec: dict[str, Any]

    @computed_field(description="outcome columns that its data set needs")  # type: ignore[prop-decorator]
    @property
    def outcomes(self) -> list[str]:
        return outcome_names(self.spec)

    @computed_field(description="names of the entries of a decision")  # type: ignore[prop-decorator]
    @property
    def decisions(self) -> list[str]:
        return decision_names(self.spec)


# Parts of a stored specification that name outcomes and decisions; ready-made kinds are compiled first.
_NAMED = {
    "newsvendor": ("items", "items"),
    "linear": ("outcomes", "decisions"),
    "two_stage_linear": ("outcomes", "decisions"),
    "shipment": ("destinations", "sources"),
    "return_constrained_portfolio": ("assets", "assets"),
    "mean_variance_portfolio": ("assets", "assets"),
}


def outcome_names(spec: dict[str, Any]) -> list[str]:
    """Return the outcome columns of a stored specification."""
    if spec["kind"] in READY:
        return _names(compile_ready(spec)["outcomes"])
    return _names(spec[_NAMED[spec["kind"]][0]])


def decision_names(spec: dict[str, Any]) -> list[str]:
    """Return the names of a decision's entries in a stored specification."""
    if spec["kind"] in READY:
        return _names(compile_ready(spec)["decisions"])
    return _names(spec[_NAMED[spec["kind"]][1]])


def _names(parts: list[Any]) -> list[str]:
    return [part if isinstance(part, str) else part["name"] for part in parts]
