"""Histories for the worked examples: ``python3 docs/history.py steel > steel.csv``. Needs the standard library only."""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Callable

Row = dict[str, float]


def steel(draw: random.Random) -> Row:
    """A month at a steel trader: demand follows orders in hand and permits, and is noisier with more orders."""
    orders, permits = draw.uniform(50, 150), draw.uniform(20, 80)
    return {"orders": orders, "permits": permits, "demand": max(0, 40 + orders + permits + draw.gauss(0, 0.2 * orders))}


def regions(draw: random.Random) -> Row:
    """A day of heating oil: three regions ask for more when it is colder; holidays shift demand to the coast."""
    cold, holiday = draw.uniform(0, 20), draw.choice((0, 1))
    mean = {"city": 30 + 4 * cold - 15 * holiday, "valley": 20 + 6 * cold, "coast": 15 + 2 * cold + 25 * holiday}
    return {"cold": cold, "holiday": holiday} | {name: max(0, draw.gauss(level, 8)) for name, level in mean.items()}


def returns(draw: random.Random) -> Row:
    """A month of three assets: shares rise with growth, bonds with falling rates, gold with inflation."""
    growth, rates, inflation = (draw.gauss(0, 1) for _ in range(3))
    mean = {"shares": 0.06 + 0.02 * growth, "bonds": 0.045 - 0.005 * rates, "gold": 0.04 + 0.01 * inflation}
    noise = {"shares": 0.03, "bonds": 0.004, "gold": 0.015}
    context = {"growth": growth, "rates": rates, "inflation": inflation}
    return context | {name: level + draw.gauss(0, noise[name]) for name, level in mean.items()}


def roads(draw: random.Random) -> Row:
    """A morning's minutes on four roads: rain slows the bridge, the rush hour the tunnel."""
    rain, rush = draw.uniform(0, 10), draw.choice((0, 1))
    mean = {
        "home to bridge": 8 + 0.9 * rain,
        "home to tunnel": 9 + 6 * rush,
        "bridge to office": 9 + 0.6 * rain,
        "tunnel to office": 10 + 3 * rush,
    }
    return {"rain": rain, "rush": rush} | {name: level * draw.uniform(0.8, 1.2) for name, level in mean.items()}


def crew(draw: random.Random) -> Row:
    """Hours that two builders take for two tasks: heat slows work on the roof, and Bob more than Ann."""
    heat = draw.uniform(10, 35)
    mean = {"ann to roof": 5 + 0.1 * heat, "ann to wall": 8, "bob to roof": 2 + 0.25 * heat, "bob to wall": 8.5}
    return {"heat": heat} | {name: level + draw.gauss(0, 0.5) for name, level in mean.items()}


def stall(draw: random.Random) -> Row:
    """What goods bring at a market stall: lamps before winter, ice boxes on warm days, books whatever the weather."""
    warmth = draw.uniform(0, 30)
    mean = {"lamps": 60 - 1.2 * warmth, "ice boxes": 10 + 2 * warmth, "books": 18}
    return {"warmth": warmth} | {name: max(0, level + draw.gauss(0, 6)) for name, level in mean.items()}


def fuel(draw: random.Random) -> Row:
    """A week at a refinery: more travel, more demand; dearer crude, less of it for premium."""
    travel, crude = draw.uniform(0, 1), draw.uniform(60, 90)
    mean = {"regular": 60 + 40 * travel, "premium": 50 + 15 * travel - 0.4 * crude}
    return {"travel": travel, "crude": crude} | {name: max(0, draw.gauss(level, 5)) for name, level in mean.items()}


def power(draw: random.Random) -> Row:
    """The demand of four hours in the morning, higher when it is cold."""
    cold = draw.uniform(0, 15)
    mean = (40 + 2 * cold, 60 + 4 * cold, 70 + 4 * cold, 55 + 2 * cold)
    level = draw.gauss(0, 6)
    hours = {f"demand in hour {h}": max(0, each + level + draw.gauss(0, 4)) for h, each in enumerate(mean, start=1)}
    return {"cold": cold} | hours


HISTORIES: dict[str, Callable[[random.Random], Row]] = {
    each.__name__: each for each in (steel, regions, returns, roads, crew, stall, fuel, power)
}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in HISTORIES:
        raise SystemExit(f"give the name of a history: {', '.join(HISTORIES)}")
    draw = random.Random(1)  # noqa: S311
    rows = [HISTORIES[sys.argv[1]](draw) for _ in range(200)]
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: round(value, 4) for name, value in row.items()} for row in rows)


if __name__ == "__main__":
    main()
