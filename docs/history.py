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


HISTORIES: dict[str, Callable[[random.Random], Row]] = {"steel": steel, "regions": regions, "returns": returns}


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
