"""Which facilities to open now, to serve customers from them once their demand is known.

``{"facilities": [{"name", "opening_cost", "capacity", "unit_cost": 0}],
   "customers": [{"name", "demand"?, "shortage_cost"?}], "transport_costs": [[cost or null to each customer] of each],
   "shortage_cost", "maximum_open"?}``

Demand that is not served costs its shortage cost, so every choice of facilities has a recourse.
"""

from __future__ import annotations

from bco_core.errors import InvalidInput
from bco_core.problems.ready.draft import ModelDraft, Spec, read_field, read_integer, read_named, read_number


def draft(spec: Spec) -> ModelDraft:
    """Compile a facility location."""
    facilities, customers = read_named(spec, "facilities", "facility"), read_named(spec, "customers", "customer")
    costs = _transport_costs(spec, len(facilities), len(customers))
    model = ModelDraft()
    reaching: list[dict[str, float]] = [{} for _ in customers]
    for i, (facility, terms) in enumerate(facilities.items()):
        where = ("facilities", i)
        opened = model.add_choice(f"open {facility}", where, read_field(terms, "opening_cost", where, least=0.0))
        capacity, unit_cost = (
            read_field(terms, "capacity", where, least=0.0),
            read_field(terms, "unit_cost", where, 0.0),
        )
        sent = {}
        for j, (customer, cost) in enumerate(zip(customers, costs[i], strict=True)):
            if cost is not None:
                total = read_number(
                    unit_cost + read_number(cost, ("transport_costs", i, j)), ("transport_costs", i, j), 0.0
                )
                name = model.add_recourse(f"{facility} to {customer}", ("transport_costs", i, j), total)
                sent[name] = reaching[j][name] = 1.0
        model.add_row(f"capacity of {facility}", (*where, "capacity"), {opened: -capacity}, "<=", 0.0, sent)
    for j, (customer, terms) in enumerate(customers.items()):
        where = ("customers", j)
        penalty = read_field(terms, "shortage_cost", where, spec.get("shortage_cost"), least=0.0)
        demand = model.quantity(terms.get("demand"), customer, (*where, "demand"), 0.0)
        short = model.add_recourse(f"shortage at {customer}", (*where, "shortage_cost"), penalty)
        model.add_row(f"demand of {customer}", (*where, "demand"), {}, ">=", demand, reaching[j] | {short: 1.0})
    if spec.get("maximum_open") is not None:
        most = read_integer(spec["maximum_open"], ("maximum_open",), 0)
        opened_all = {f"open {facility}": 1.0 for facility in facilities}
        model.add_row("open at most", ("maximum_open",), opened_all, "<=", float(most))
    return model


def _transport_costs(spec: Spec, facilities: int, customers: int) -> list[list[float | None]]:
    costs: list[list[float | None]] = spec.get("transport_costs") or []
    if len(costs) != facilities or any(len(row) != customers for row in costs):
        raise InvalidInput(
            f"transport_costs must have a row for each of the {facilities} facilities and in it a cost, or null where "
            f"there is no route, for each of the {customers} customers",
            ("transport_costs",),
        )
    return costs
