"""Unit commitment against enumeration of all schedules, by the definition of its rules."""

from __future__ import annotations

import math
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from bco_core.errors import InvalidInput
from bco_core.problems.ready.kinds import compile_ready
from tests.support.linear_reference import Outcome, draw_outcomes, solve

Spec = dict[str, Any]
Schedule = tuple[int, ...]


def system(random: np.random.Generator, hours: int, units: int) -> Spec:
    return {
        "kind": "unit_commitment",
        "hours": hours,
        "units": [
            {
                "name": f"u{i}",
                "minimum_output": float(random.choice([0.0, 1.0, 3.0])),
                "maximum_output": float(random.uniform(3, 8)),
                "unit_cost": float(random.uniform(1, 4)),
                "fixed_cost": float(random.uniform(0, 4)),
                "startup_cost": float(random.uniform(0, 10)),
                "minimum_up": int(random.integers(1, 4)),
                "minimum_down": int(random.integers(1, 4)),
                "ramp_up": random.choice([None, 0.5, 2.0]),
                "ramp_down": random.choice([None, 1.0, 2.5]),
                "initially_on": bool(random.integers(0, 2)),
            }
            for i in range(units)
        ],
        "shedding_cost": 20.0,
        "curtailment_cost": 3.0,
    }


def is_allowed(unit: Spec, schedule: Schedule) -> bool:
    """Whether every up or down time that begins and ends within the day is long enough."""
    runs = [(on, len(list(run))) for on, run in groupby(schedule)]
    if runs[0][0] == int(unit["initially_on"]):
        runs = runs[1:]
    return all(length >= unit["minimum_up" if on else "minimum_down"] for on, length in runs[:-1])


def fixed_cost(unit: Spec, schedule: Schedule) -> float:
    before = (int(unit["initially_on"]), *schedule[:-1])
    starts = sum(on and not was for on, was in zip(schedule, before, strict=True))
    return float(unit["startup_cost"] * starts + unit["fixed_cost"] * sum(schedule))


def dispatch_cost(spec: Spec, schedules: tuple[Schedule, ...], demand: list[float]) -> float:
    """Return the least cost of output, shedding and curtailment for one demand."""
    hours, units = spec["hours"], spec["units"]
    count = len(units) * hours
    cost = [unit["unit_cost"] for unit in units for _ in range(hours)]
    cost += [spec["shedding_cost"]] * hours + [spec["curtailment_cost"]] * hours
    bounds: list[tuple[float, float | None]] = [
        (unit["minimum_output"] * on, unit["maximum_output"] * on)
        for unit, schedule in zip(units, schedules, strict=True)
        for on in schedule
    ]
    bounds += [(0.0, None)] * (2 * hours)
    rows, limits = [], []

    def differs(later: int, earlier: int, most: float) -> None:
        row = np.zeros(len(cost))
        row[later], row[earlier] = 1.0, -1.0
        rows.append(row)
        limits.append(most)

    for i, (unit, schedule) in enumerate(zip(units, schedules, strict=True)):
        for h in range(1, hours):
            here, there, least = i * hours + h, i * hours + h - 1, unit["minimum_output"]
            if unit["ramp_up"] is not None and schedule[h]:
                differs(here, there, unit["ramp_up"] if schedule[h - 1] else max(unit["ramp_up"], least))
            if unit["ramp_down"] is not None and schedule[h - 1]:
                differs(there, here, unit["ramp_down"] if schedule[h] else max(unit["ramp_down"], least))
    balance = np.zeros((hours, len(cost)))
    for h in range(hours):
        balance[h, h:count:hours] = 1.0
        balance[h, count + h], balance[h, count + hours + h] = 1.0, -1.0
    row_limits = {"A_ub": np.array(rows), "b_ub": limits} if rows else {}
    found = linprog(cost, A_eq=balance, b_eq=demand, bounds=bounds, **row_limits)
    return float(found.fun) if found.status == 0 else math.inf


def best_of_all(spec: Spec, outcomes: list[Outcome]) -> float:
    hours, units = spec["hours"], spec["units"]
    each = [[s for s in product((0, 1), repeat=hours) if is_allowed(unit, s)] for unit in units]
    demands = [[max(0.0, outcome[f"demand in hour {h + 1}"]) for h in range(hours)] for outcome in outcomes]
    return min(
        sum(fixed_cost(unit, schedule) for unit, schedule in zip(units, schedules, strict=True))
        + float(np.mean([dispatch_cost(spec, schedules, demand) for demand in demands]))
        for schedules in product(*each)
    )


@pytest.mark.parametrize(("hours", "units"), [(1, 1), (1, 2), (3, 1), (4, 1), (6, 1), (3, 2), (4, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_the_optimal_schedule_matches_enumeration(seed: int, hours: int, units: int) -> None:
    random = np.random.default_rng(100 * hours + 10 * units + seed)
    spec = system(random, hours, units)
    model = compile_ready(spec)
    outcomes = draw_outcomes(model, 2, random, low=-2.0, high=12.0)
    found = solve(model, outcomes)
    assert found is not None
    assert found.value == pytest.approx(best_of_all(spec, outcomes), rel=1e-6)


@pytest.mark.parametrize("side", ["minimum_up", "minimum_down"])
@pytest.mark.parametrize("initially_on", [True, False])
def test_a_minimum_up_time_may_exceed_the_day(side: str, initially_on: bool) -> None:
    random = np.random.default_rng(9)
    spec = system(random, 4, 1)
    spec["units"][0] |= {side: 99, "initially_on": initially_on, "startup_cost": 0.1, "fixed_cost": 2.0}
    model = compile_ready(spec)
    outcomes = [{f"demand in hour {h + 1}": value for h, value in enumerate([6.0, 0.0, 0.0, 6.0])}]
    found = solve(model, outcomes)
    assert found is not None
    assert found.value == pytest.approx(best_of_all(spec, outcomes), rel=1e-6)


def test_every_schedule_has_a_feasible_recourse() -> None:
    """Ramps allow for the minimum output, whatever the schedule, so every schedule has a finite cost."""
    random = np.random.default_rng(1)
    spec = system(random, 4, 1)
    spec["units"][0] |= {"minimum_output": 3.0, "maximum_output": 5.0, "ramp_up": 0.5, "ramp_down": 0.5}
    model = compile_ready(spec)
    (outcome,) = draw_outcomes(model, 1, random)
    for schedule in product((0.0, 1.0), repeat=4):
        if is_allowed(spec["units"][0], tuple(map(int, schedule))):
            fixed_entries = [
                entry | {"minimum": schedule[h], "maximum": schedule[h]}
                for h, entry in enumerate(model["decisions"][:4])
            ]
            assert solve(model | {"decisions": fixed_entries + model["decisions"][4:]}, [outcome]) is not None


def test_decisions_are_named_by_unit_and_hour() -> None:
    unit = {"name": "coal", "maximum_output": 5}
    spec = {"kind": "unit_commitment", "hours": 2, "units": [unit], "shedding_cost": 9}
    net = {"outcomes": {"load": 1, "wind": -1}}
    model = compile_ready(spec | {"demand": ["load", net]})
    assert [entry["name"] for entry in model["decisions"]] == [
        "coal on in hour 1",
        "coal on in hour 2",
        "coal starts in hour 1",
        "coal starts in hour 2",
    ]
    assert [entry["name"] for entry in model["outcomes"]] == ["load", "wind"]
    assert [entry["name"] for entry in compile_ready(spec)["outcomes"]] == ["demand in hour 1", "demand in hour 2"]
    # Wind in excess of the load is curtailed.
    found = solve(model, [{"load": 2.0, "wind": 7.0}])
    assert found is not None
    assert found.value == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("unit", "others", "where", "words"),
    [
        ({}, {"hours": 0}, ("hours",), "at least 1"),
        ({}, {"hours": 1.5}, ("hours",), "integer"),
        ({}, {"demand": [1.0]}, ("demand",), "each of the 2 hours"),
        ({}, {"shedding_cost": None}, ("shedding_cost",), "finite number"),
        ({"minimum_output": 6}, {}, ("units", 0, "minimum_output"), "above the maximum"),
        ({"maximum_output": -1}, {}, ("units", 0, "maximum_output"), "at least 0"),
        ({"minimum_up": -1}, {}, ("units", 0, "minimum_up"), "at least 1"),
        ({"ramp_up": -1}, {}, ("units", 0, "ramp_up"), "at least 0"),
        ({"startup_cost": -1}, {}, ("units", 0, "startup_cost"), "at least 0"),
        ({}, {"units": [{"name": "u", "maximum_output": 1}] * 2}, ("units", 1, "name"), "twice"),
        ({}, {"hours": 300}, ("hours",), "too large"),
    ],
)
def test_an_invalid_unit_commitment_is_refused_at_its_field(
    unit: Spec, others: Spec, where: tuple[Any, ...], words: str
) -> None:
    spec = {
        "kind": "unit_commitment",
        "hours": 2,
        "units": [{"name": "u", "maximum_output": 5} | unit],
        "shedding_cost": 9,
    }
    with pytest.raises(InvalidInput, match=words) as refused:
        compile_ready(spec | others)
    assert refused.value.where == where
