"""Which items to take within several capacities, where the items' values are uncertain.

``{"items": [{"name", "weights": {capacity: weight}, "value"?, "copies": 1}], "capacities": {name: limit},
   "shares": false}``

Items are taken whole or, with ``shares``, in any fraction. The value of the items taken is maximised.
"""

from __future__ import annotations

from bco_core.errors import InvalidInput
from bco_core.problems.ready.draft import ModelDraft, Spec, Where, check_name, read_integer, read_named, read_number


def draft(spec: Spec) -> ModelDraft:
    """Compile a knapsack."""
    items = read_named(spec, "items", "item")
    limits = {
        name: read_number(limit, ("capacities", name), 0.0) for name, limit in (spec.get("capacities") or {}).items()
    }
    if not limits:
        raise InvalidInput("give at least one capacity", ("capacities",))
    model = ModelDraft(sense="maximize")
    taken: dict[str, dict[str, float]] = {name: {} for name in limits}
    for index, (name, item) in enumerate(items.items()):
        where: Where = ("items", index)
        for capacity, weight in (item.get("weights") or {}).items():
            place = (*where, "weights", capacity)
            taken[check_name(capacity, limits, place, "capacity")][name] = read_number(weight, place, 0.0)
        value = model.quantity(item.get("value"), name, (*where, "value"))
        model.add_decision(name, where, value, maximum=_copies(item, where), integer=not spec.get("shares", False))
    for capacity, limit in limits.items():
        model.add_row(capacity, ("capacities", capacity), taken[capacity], "<=", limit)
    return model


def _copies(item: Spec, where: Where) -> float | None:
    copies = item.get("copies", 1)
    if copies is not None:
        return float(read_integer(copies, (*where, "copies"), 0))
    if not any((item.get("weights") or {}).values()):
        raise InvalidInput("an item that weighs nothing needs a number of copies", (*where, "copies"))
    return None
