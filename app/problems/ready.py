"""Schemas of ready-made problems, each compiled to a linear model by names."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from app.http.schemas import Name, StrictModel
from app.problems.linear import UncertainNumber
from app.problems.newsvendor import AbsoluteGap, Amount, Coefficient, RelativeGap
from bco_core.problems.ready.kinds import compile_ready

# Names are joined, as in "north to city", and the result must still be a valid name.
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
    """Fields of all ready-made problems."""

    relative_gap: RelativeGap = None
    absolute_gap: AbsoluteGap = None

    def outcome_names(self) -> list[str]:
        return [outcome["name"] for outcome in compile_ready(self.model_dump())["outcomes"]]

    def decision_names(self) -> list[str]:
        return [decision["name"] for decision in compile_ready(self.model_dump())["decisions"]]


class Edge(StrictModel):
    """An edge from one node to another."""

    name: Annotated[Name, StringConstraints(max_length=95)] | None = Field(
        None, description="'a to b' by default; needed where two edges join the same nodes"
    )
    start: Node = Field(examples=["a"])
    end: Node = Field(examples=["b"])
    cost: Quantity | None = Field(None, description=f"{_QUANTITY}; by default the outcome column with the edge's name")

    @model_validator(mode="after")
    def has_a_name(self) -> Self:
        """Name every edge, so that patches can refer to it."""
        self.name = self.name or f"{self.start} to {self.end}"
        return self


class ShortestPathSpec(ReadyMadeSpec):
    """The cheapest path from a source to a target, where the costs of edges are uncertain.

    An edge is one if it is on the path, else zero. In a graph with a cycle, negative costs count as zero.
    """

    kind: Literal["shortest_path"]
    source: Node
    target: Node
    edges: list[Edge] = Field(min_length=1, max_length=10_000)
    directed: bool = Field(True, description="false: every edge can be used in both directions, at one cost")
    nodes: list[Node] | None = Field(None, max_length=10_000, description="if given, edges may join these nodes only")


class AssignmentSpec(ReadyMadeSpec):
    """Assign every task to an agent or, where there are more tasks than agents can do, keep every agent busy."""

    kind: Literal["assignment"]
    agents: list[Label] = Field(min_length=1, max_length=1000)
    tasks: list[Label] = Field(min_length=1, max_length=1000)
    sense: Literal["minimize", "maximize"] = Field("minimize", description="maximize: costs are the values of pairs")
    costs: dict[Label, dict[Label, Quantity]] = Field(
        {},
        description=f"by agent and task: {_QUANTITY}; other pairs are outcome columns named 'agent to task'",
        examples=[{"ann": {"roof": 40, "wall": "ann's hours"}}],
    )
    forbidden: list[Annotated[list[Label], Field(min_length=2, max_length=2)]] = Field(
        [],
        max_length=10_000,
        description="pairs of an agent and a task that are not allowed",
        examples=[[["ann", "roof"]]],
    )
    capacities: dict[Label, Count] = Field({}, description="number of tasks an agent can do; one by default")


class KnapsackItem(StrictModel):
    """An item with an uncertain value."""

    name: Label
    value: Quantity | None = Field(None, description=f"{_QUANTITY}; by default the outcome column with the item's name")
    weights: dict[Label, Amount] = Field(
        {}, description="amount of each capacity that one copy takes", examples=[{"kg": 3}]
    )
    copies: Count | None = Field(1, description="number of copies; null for as many as fit")


class KnapsackSpec(ReadyMadeSpec):
    """Items of the largest value within several capacities, where values are uncertain."""

    kind: Literal["knapsack"]
    items: list[KnapsackItem] = Field(min_length=1, max_length=10_000)
    capacities: dict[Label, Amount] = Field(min_length=1, max_length=1000, examples=[{"kg": 10, "litres": 60}])
    shares: bool = Field(False, description="true: any fraction of an item can be taken")


class Facility(StrictModel):
    """A place that can be opened now."""

    name: Label = Field(examples=["north"])
    opening_cost: Amount = Field(examples=[400])
    capacity: Amount = Field(description="largest amount that it can ship once it is open", examples=[120])
    unit_cost: Amount = Field(0.0, description="cost of each unit that it ships, besides transport")


class Customer(StrictModel):
    """A customer whose demand is known later."""

    name: Label = Field(examples=["city"])
    demand: Quantity | None = Field(
        None, description=f"{_QUANTITY}; by default the outcome column with the customer's name"
    )
    shortage_cost: Amount | None = Field(None, description="cost of each unit not served; by default the problem's")


class FacilityLocationSpec(ReadyMadeSpec):
    """Open facilities now; ship from them to customers once demand is known."""

    kind: Literal["facility_location"]
    facilities: list[Facility] = Field(min_length=1, max_length=1000)
    customers: list[Customer] = Field(min_length=1, max_length=1000)
    transport_costs: list[list[Amount | None]] = Field(
        description="a row for each facility: its cost to each customer, null where there is no route",
        examples=[[[1.0, 4.0], [3.0, None]]],
    )
    shortage_cost: Amount | None = Field(None, description="cost of each unit of demand that is not served")
    maximum_open: Count | None = Field(None, description="largest number of open facilities; null for no limit")


class QualityLimits(StrictModel):
    """Limits of a quality of a blend."""

    minimum: Coefficient | None = None
    maximum: Coefficient | None = None


class Product(StrictModel):
    """Something made now and sold later."""

    name: Label = Field(examples=["regular"])
    unit_cost: Coefficient = Field(0.0, description="cost of making a unit, besides ingredients")
    minimum: Amount = 0.0
    maximum: Amount | None = Field(None, description="largest amount; null for no limit")
    integer: bool = Field(False, description="must be an integer")
    uses: dict[Label, Amount] = Field(
        {}, description="amount of each resource that a unit takes", examples=[{"hours": 2}]
    )
    blend_of: list[Label] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="ingredients that it may be blended from; null if it is no blend",
    )
    qualities: dict[Label, QualityLimits] = Field({}, description="limits of the blend's qualities")
    demand: Quantity | None = Field(
        None, description=f"{_QUANTITY}; by default the outcome column with the product's name"
    )
    unlimited_demand: bool = Field(False, description="true: everything made can be sold, and there is no demand")
    price: Quantity = Field(0.0, description=f"selling price of a unit: {_QUANTITY}")
    holding_cost: Coefficient = Field(0.0, description="cost of each unit left over; negative if it has a value")
    shortage_cost: Amount = Field(0.0, description="cost of each unit of demand that is not met, besides its price")
    stock: Amount = Field(0.0, description="on hand already")


class ProductionResource(StrictModel):
    """Something limited that products use: hours, machines, space."""

    name: Label = Field(examples=["hours"])
    available: Amount = Field(examples=[160])


class Ingredient(StrictModel):
    """An ingredient of blends."""

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
    """A unit that is on or off in each hour."""

    name: Label = Field(examples=["coal"])
    minimum_output: Amount = Field(0.0, description="smallest output while it is on")
    maximum_output: Amount = Field(examples=[120])
    unit_cost: Coefficient = Field(0.0, description="cost of each unit of output")
    fixed_cost: Coefficient = Field(0.0, description="cost of each hour that it is on")
    startup_cost: Amount = Field(0.0, description="cost of each start")
    minimum_up: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="minimum hours on after a start")
    minimum_down: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="minimum hours off after a stop")
    ramp_up: Amount | None = Field(None, description="largest rise of output in an hour; null for no limit")
    ramp_down: Amount | None = Field(None, description="largest fall of output in an hour; null for no limit")
    initially_on: bool = Field(False, description="whether it is on before the first hour, and has been for long")


class UnitCommitmentSpec(ReadyMadeSpec):
    """Decide now which units are on in which hours; decide their output once demand is known."""

    kind: Literal["unit_commitment"]
    hours: Annotated[int, Field(ge=1, le=200)]
    units: list[GeneratingUnit] = Field(min_length=1, max_length=1000)
    demand: list[Quantity] | None = Field(
        None,
        max_length=200,
        description=f"for each hour {_QUANTITY}; by default the outcome columns 'demand in hour 1' and so on",
    )
    shedding_cost: Amount = Field(description="cost of each unit of demand that is not met", examples=[1000])
    curtailment_cost: Amount = Field(0.0, description="cost of each unit of excess output")


AnyReadyMadeSpec = (
    ShortestPathSpec | AssignmentSpec | KnapsackSpec | FacilityLocationSpec | ProductionSpec | UnitCommitmentSpec
)
