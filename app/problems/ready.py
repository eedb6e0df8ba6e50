"""Ready-made problems: descriptions that planners know, each compiled to a linear model by names."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from app.http.schemas import Name, StrictModel
from app.problems.linear import UncertainNumber
from app.problems.newsvendor import AbsoluteGap, Amount, Coefficient, RelativeGap
from bco_core.problems.ready.kinds import compile_ready

# Names are put together, as in "north to city", and the whole must still be a name.
Label = Annotated[Name, StringConstraints(max_length=80)]
Node = Annotated[Name, StringConstraints(max_length=45)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]


def _which(value: Any) -> str:
    if isinstance(value, str):
        return "column"
    return "uncertain" if isinstance(value, dict | UncertainNumber) else "certain"


Quantity = Annotated[
    Annotated[Coefficient, Tag("certain")]
    | Annotated[Name, Tag("column")]
    | Annotated[UncertainNumber, Tag("uncertain")],
    Discriminator(_which),
]
_QUANTITY = "a number, the outcome column that holds it, or constant and outcomes"


class ReadyMadeSpec(StrictModel):
    """What all ready-made problems share."""

    relative_gap: RelativeGap = None
    absolute_gap: AbsoluteGap = None

    def outcome_names(self) -> list[str]:
        return [outcome["name"] for outcome in compile_ready(self.model_dump())["outcomes"]]

    def decision_names(self) -> list[str]:
        return [decision["name"] for decision in compile_ready(self.model_dump())["decisions"]]


class Edge(StrictModel):
    """A way from one node to another."""

    name: Annotated[Name, StringConstraints(max_length=95)] | None = Field(
        None, description="'a to b' by default; needed where two edges lead the same way"
    )
    start: Node = Field(examples=["a"])
    end: Node = Field(examples=["b"])
    cost: Quantity | None = Field(None, description=f"{_QUANTITY}; by default the outcome column called as the edge is")

    @model_validator(mode="after")
    def has_a_name(self) -> Self:
        """Patches find an edge by it."""
        self.name = self.name or f"{self.start} to {self.end}"
        return self


class ShortestPathSpec(ReadyMadeSpec):
    """The cheapest way from a source to a target, where the costs of edges are uncertain.

    An edge is one where the way leads over it and zero elsewhere. In a graph with a cycle costs count as zero at least.
    """

    kind: Literal["shortest_path"]
    source: Node
    target: Node
    edges: list[Edge] = Field(min_length=1, max_length=10_000)
    directed: bool = Field(True, description="false: every edge can be used both ways, at one cost")
    nodes: list[Node] | None = Field(
        None, max_length=10_000, description="if given, edges may lead between these nodes only"
    )


class AssignmentSpec(ReadyMadeSpec):
    """Who does what: every task goes to an agent, or, where tasks are more, every agent is busy."""

    kind: Literal["assignment"]
    agents: list[Label] = Field(min_length=1, max_length=1000)
    tasks: list[Label] = Field(min_length=1, max_length=1000)
    sense: Literal["minimize", "maximize"] = Field("minimize", description="maximize: costs are what a pair brings")
    costs: dict[Label, dict[Label, Quantity]] = Field(
        {},
        description=f"by agent and task: {_QUANTITY}; other pairs are outcome columns called 'agent to task'",
        examples=[{"ann": {"roof": 40, "wall": "ann's hours"}}],
    )
    forbidden: list[Annotated[list[Label], Field(min_length=2, max_length=2)]] = Field(
        [], max_length=10_000, description="pairs of an agent and a task that cannot be", examples=[[["ann", "roof"]]]
    )
    capacities: dict[Label, Count] = Field({}, description="how many tasks an agent can do; one by default")


class KnapsackItem(StrictModel):
    """Something to take, for what it may be worth."""

    name: Label
    value: Quantity | None = Field(
        None, description=f"{_QUANTITY}; by default the outcome column called as the item is"
    )
    weights: dict[Label, Amount] = Field(
        {}, description="how much of each capacity one copy takes", examples=[{"kg": 3}]
    )
    copies: Count | None = Field(1, description="how many there are; null for as many as fit")


class KnapsackSpec(ReadyMadeSpec):
    """Items of the largest value within several capacities, where values are uncertain."""

    kind: Literal["knapsack"]
    items: list[KnapsackItem] = Field(min_length=1, max_length=10_000)
    capacities: dict[Label, Amount] = Field(min_length=1, max_length=1000, examples=[{"kg": 10, "litres": 60}])
    shares: bool = Field(False, description="true: any share of an item can be taken, not only whole ones")


class Facility(StrictModel):
    """A place that can be opened now."""

    name: Label = Field(examples=["north"])
    opening_cost: Amount = Field(examples=[400])
    capacity: Amount = Field(description="the most it can ship once it is open", examples=[120])
    unit_cost: Amount = Field(0.0, description="of each unit that it ships, besides transport")


class Customer(StrictModel):
    """Somebody whose demand is known later."""

    name: Label = Field(examples=["city"])
    demand: Quantity | None = Field(
        None, description=f"{_QUANTITY}; by default the outcome column called as the customer is"
    )
    shortage_cost: Amount | None = Field(None, description="of each unit not served; by default the problem's")


class FacilityLocationSpec(ReadyMadeSpec):
    """Open facilities now; ship from them to customers once demand is known."""

    kind: Literal["facility_location"]
    facilities: list[Facility] = Field(min_length=1, max_length=1000)
    customers: list[Customer] = Field(min_length=1, max_length=1000)
    transport_costs: list[list[Amount | None]] = Field(
        description="a row for each facility: its cost to each customer, null where there is no route",
        examples=[[[1.0, 4.0], [3.0, None]]],
    )
    shortage_cost: Amount | None = Field(None, description="of each unit of demand that is not served")
    maximum_open: Count | None = Field(None, description="how many facilities may be opened; null for no limit")


class QualityLimits(StrictModel):
    """What a quality of a blend may be."""

    minimum: Coefficient | None = None
    maximum: Coefficient | None = None


class Product(StrictModel):
    """Something made now and sold later."""

    name: Label = Field(examples=["regular"])
    unit_cost: Coefficient = Field(0.0, description="of making a unit, besides ingredients")
    minimum: Amount = 0.0
    maximum: Amount | None = Field(None, description="the most that can be made; null for no limit")
    integer: bool = Field(False, description="only whole numbers are made")
    uses: dict[Label, Amount] = Field({}, description="how much of each resource a unit takes", examples=[{"hours": 2}])
    blend_of: list[Label] | None = Field(
        None, min_length=1, max_length=1000, description="the ingredients that it may be blended of; null for no blend"
    )
    qualities: dict[Label, QualityLimits] = Field({}, description="limits of the blend's qualities")
    demand: Quantity | None = Field(
        None, description=f"{_QUANTITY}; by default the outcome column called as the product is"
    )
    unlimited_demand: bool = Field(False, description="true: all that is made can be sold, and there is no demand")
    price: Quantity = Field(0.0, description=f"what a unit sells for: {_QUANTITY}")
    holding_cost: Coefficient = Field(0.0, description="of each unit left over; negative for what it still brings")
    shortage_cost: Amount = Field(0.0, description="of each unit of demand that is not met, besides its price")
    stock: Amount = Field(0.0, description="on hand already")


class ProductionResource(StrictModel):
    """Something limited that products use: hours, machines, space."""

    name: Label = Field(examples=["hours"])
    available: Amount = Field(examples=[160])


class Ingredient(StrictModel):
    """Something that blends are made of."""

    name: Label = Field(examples=["crude"])
    unit_cost: Coefficient = 0.0
    available: Amount | None = Field(None, description="null for no limit")
    qualities: dict[Label, Coefficient] = Field({}, examples=[{"octane": 91}])


class ProductionSpec(ReadyMadeSpec):
    """Make and blend products now; sell, hold and fall short once demand and prices are known."""

    kind: Literal["production"]
    products: list[Product] = Field(min_length=1, max_length=1000)
    resources: list[ProductionResource] = Field([], max_length=1000)
    ingredients: list[Ingredient] = Field([], max_length=1000)


class GeneratingUnit(StrictModel):
    """Something that runs or does not run in each hour."""

    name: Label = Field(examples=["coal"])
    minimum_output: Amount = Field(0.0, description="while it runs")
    maximum_output: Amount = Field(examples=[120])
    unit_cost: Coefficient = Field(0.0, description="of each unit of output")
    fixed_cost: Coefficient = Field(0.0, description="of each hour that it runs")
    startup_cost: Amount = Field(0.0, description="of each start")
    minimum_up: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="the hours that it runs at least")
    minimum_down: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="the hours that it rests at least")
    ramp_up: Amount | None = Field(None, description="how much output may grow in an hour; null for no limit")
    ramp_down: Amount | None = Field(None, description="how much output may fall in an hour; null for no limit")
    initially_on: bool = Field(False, description="whether it runs before the first hour, and has long done so")


class UnitCommitmentSpec(ReadyMadeSpec):
    """Which units run in which hours, decided now; what they give, once demand is known."""

    kind: Literal["unit_commitment"]
    hours: Annotated[int, Field(ge=1, le=200)]
    units: list[GeneratingUnit] = Field(min_length=1, max_length=1000)
    demand: list[Quantity] | None = Field(
        None,
        max_length=200,
        description=f"for each hour {_QUANTITY}; by default the outcome columns 'demand in hour 1' and so on",
    )
    shedding_cost: Amount = Field(description="of each unit of demand that is not met", examples=[1000])
    curtailment_cost: Amount = Field(0.0, description="of each unit that is too much")


AnyReadyMadeSpec = (
    ShortestPathSpec | AssignmentSpec | KnapsackSpec | FacilityLocationSpec | ProductionSpec | UnitCommitmentSpec
)
