"""Which units run in which hours, decided now; how much they give, once demand is known.

``{"hours": n, "units": [{"name", "minimum_output": 0, "maximum_output", "unit_cost": 0, "fixed_cost": 0,
   "startup_cost": 0, "minimum_up": 1, "minimum_down": 1, "ramp_up"?, "ramp_down"?, "initially_on": false}],
   "demand"?: [quantity of each hour], "shedding_cost", "curtailment_cost": 0}``

With on_h and start_h zero or one, and on_h = on_0 for hours before the first (a unit's initial state has lasted for
long), a unit satisfies

    start_h ≥ on_h − on_{h−1}
    Σ start over the last ``minimum_up`` hours ≤ on_h
    Σ start over the last ``minimum_down`` hours ≤ 1 − on_{h − minimum_down}
    minimum_output on_h ≤ output_h ≤ maximum_output on_h
    output_h − output_{h−1} ≤ ramp_up on_{h−1} + max(ramp_up, minimum_output) start_h
    output_{h−1} − output_h ≤ ramp_down on_h + max(ramp_down, minimum_output) stop_h

with stop_h = start_h + on_{h−1} − on_h. Ramps count from the second hour on. Demand that is not met is shed, and
excess output is curtailed, each at its cost, so every schedule has a recourse.
"""

from __future__ import annotations

from dataclasses import dataclass

from bco_core.errors import InvalidInput
from bco_core.problems.ready.draft import ModelDraft, Spec, Where, read_field, read_integer, read_named


def draft(spec: Spec) -> ModelDraft:
    """Compile a unit commitment."""
    hours = read_integer(spec.get("hours"), ("hours",), 1)
    units = read_named(spec, "units", "unit")
    demand = spec.get("demand")
    if demand is not None and len(demand) != hours:
        raise InvalidInput(f"give a demand for each of the {hours} hours, or none", ("demand",))
    shed, curtail = (
        read_field(spec, name, (), default, 0.0)
        for name, default in (("shedding_cost", None), ("curtailment_cost", 0.0))
    )
    model = ModelDraft()
    given_by_hour: list[dict[str, float]] = [{} for _ in range(hours)]
    for index, (name, terms) in enumerate(units.items()):
        unit = _unit(name, terms, ("units", index))
        _schedule(model, unit, hours)
        for h, output in enumerate(_outputs(model, unit, hours)):
            given_by_hour[h][output] = 1.0
    for h, outputs in enumerate(given_by_hour):
        where: Where = ("hours",) if demand is None else ("demand", h)
        needed = model.quantity(None if demand is None else demand[h], f"demand in hour {h + 1}", where, 0.0)
        less = model.add_recourse(f"shedding in hour {h + 1}", ("shedding_cost",), shed)
        more = model.add_recourse(f"curtailment in hour {h + 1}", ("curtailment_cost",), curtail)
        model.add_row(f"balance in hour {h + 1}", where, {}, "=", needed, outputs | {less: 1.0, more: -1.0})
    return model


@dataclass(frozen=True)
class _Unit:
    name: str
    where: Where
    least: float
    most: float
    unit_cost: float
    fixed_cost: float
    startup_cost: float
    up: int
    down: int
    ramp_up: float | None
    ramp_down: float | None
    initially_on: bool

    def on(self, h: int) -> str:
        return f"{self.name} on in hour {h + 1}"

    def start(self, h: int) -> str:
        return f"{self.name} starts in hour {h + 1}"

    def output(self, h: int) -> str:
        return f"{self.name} output in hour {h + 1}"


def _unit(name: str, terms: Spec, where: Where) -> _Unit:
    least, most = (
        read_field(terms, "minimum_output", where, 0.0, 0.0),
        read_field(terms, "maximum_output", where, least=0.0),
    )
    if least > most:
        raise InvalidInput("the minimum output is above the maximum output", (*where, "minimum_output"))
    return _Unit(
        name,
        where,
        least,
        most,
        read_field(terms, "unit_cost", where, 0.0),
        read_field(terms, "fixed_cost", where, 0.0),
        read_field(terms, "startup_cost", where, 0.0, least=0.0),
        read_integer(terms.get("minimum_up") or 1, (*where, "minimum_up"), 1),
        read_integer(terms.get("minimum_down") or 1, (*where, "minimum_down"), 1),
        _ramp(terms, "ramp_up", where),
        _ramp(terms, "ramp_down", where),
        bool(terms.get("initially_on", False)),
    )


def _ramp(terms: Spec, side: str, where: Where) -> float | None:
    return None if terms.get(side) is None else read_field(terms, side, where, least=0.0)


def _schedule(model: ModelDraft, unit: _Unit, hours: int) -> None:
    """Add on, off and starts, and the minimum hours up and down."""
    before = float(unit.initially_on)
    for h in range(hours):
        model.add_choice(unit.on(h), unit.where, unit.fixed_cost)
    for h in range(hours):
        model.add_choice(unit.start(h), (*unit.where, "startup_cost"), unit.startup_cost)
    for h in range(hours):
        earlier = {unit.on(h - 1): 1.0} if h else {}
        limit = 0.0 if h else 0.0 - before
        model.add_row(
            f"start of {unit.name} in hour {h + 1}",
            unit.where,
            {unit.start(h): 1.0, unit.on(h): -1.0} | earlier,
            ">=",
            limit,
        )
        lately = {unit.start(k): 1.0 for k in range(max(0, h - unit.up + 1), h + 1)}
        model.add_row(
            f"hours up of {unit.name} in hour {h + 1}",
            (*unit.where, "minimum_up"),
            lately | {unit.on(h): -1.0},
            "<=",
            0.0,
        )
        lately = {unit.start(k): 1.0 for k in range(max(0, h - unit.down + 1), h + 1)}
        then = h - unit.down
        was_on, limit = ({unit.on(then): 1.0}, 1.0) if then >= 0 else ({}, 1.0 - before)
        model.add_row(
            f"hours down of {unit.name} in hour {h + 1}", (*unit.where, "minimum_down"), lately | was_on, "<=", limit
        )


def _outputs(model: ModelDraft, unit: _Unit, hours: int) -> list[str]:
    """Add the output of a unit in each hour; return the names."""
    names = [model.add_recourse(unit.output(h), (*unit.where, "unit_cost"), unit.unit_cost) for h in range(hours)]
    for h, output in enumerate(names):
        hour, on = f"of {unit.name} in hour {h + 1}", unit.on(h)
        model.add_row(f"most {hour}", (*unit.where, "maximum_output"), {on: -unit.most}, "<=", 0.0, {output: 1.0})
        if unit.least:
            model.add_row(f"least {hour}", (*unit.where, "minimum_output"), {on: -unit.least}, ">=", 0.0, {output: 1.0})
        if not h:
            continue
        was_on, start, before = unit.on(h - 1), unit.start(h), names[h - 1]
        if unit.ramp_up is not None:
            first = max(unit.ramp_up, unit.least)
            limits = {was_on: -unit.ramp_up, start: -first}
            model.add_row(f"ramp up {hour}", (*unit.where, "ramp_up"), limits, "<=", 0.0, {output: 1.0, before: -1.0})
        if unit.ramp_down is not None:
            last = max(unit.ramp_down, unit.least)
            limits = {on: last - unit.ramp_down, was_on: -last, start: -last}
            model.add_row(
                f"ramp down {hour}", (*unit.where, "ramp_down"), limits, "<=", 0.0, {before: 1.0, output: -1.0}
            )
    return names
