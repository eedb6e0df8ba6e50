"""Read a planner's specification of a newsvendor; errors point to the field that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import Status
from bco_core.problems.linear.model import SENSES
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array

# Tolerance of bounds, rows and numbers of packs, relative to their numbers.
ROUNDING = 1e-9

_COST = "a unit cost must be a positive number"
_BOUND = "an order bound must be a number, or missing for no limit"
_SERVICE = "a service level must be at least 0 and below 1"
_MARGINS = ("price", "unit_cost", "salvage_value", "shortage_penalty")


@dataclass(frozen=True)
class OrderRows:
    """Rows across items: matrix (R, d) times order (sense) limits (R,); a sense is −1 for ≤, 1 for ≥ and 0 for =."""

    matrix: Array
    senses: NDArray[np.int64]
    limits: Array
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.limits)

    def excess(self, orders: Array) -> tuple[Array, Array]:
        """Return by how much orders (..., d) break each row (..., R), at most zero if they keep it, and the rounding
        allowed there (..., R)."""
        gap = orders @ self.matrix.T - self.limits
        size = np.abs(orders) @ np.abs(self.matrix).T + np.abs(self.limits)
        by = np.where(self.senses < 0, gap, np.where(self.senses > 0, -gap, np.abs(gap)))
        return by, 10 * ROUNDING * size

    @property
    def ends(self) -> tuple[Array, Array]:
        """The lower and the upper limit of each row, (R,)."""
        return np.where(self.senses >= 0, self.limits, -np.inf), np.where(self.senses <= 0, self.limits, np.inf)


Items = list[dict[str, Any]]


def items_of(spec: dict[str, Any]) -> Items:
    items = spec.get("items") or []
    if not items:
        raise InvalidInput("a newsvendor needs at least one item", ("items",))
    return list(items)


def names_of(items: Items) -> tuple[str, ...]:
    return tuple(str(item.get("name") or f"item {index + 1}") for index, item in enumerate(items))


def column(items: Items, name: str, default: float | None, allowed: Callable[[float], bool], remedy: str) -> Tensor:
    """Read one number for each item, (d,)."""
    values = [default if item.get(name) is None else item[name] for item in items]
    for index, value in enumerate(values):
        if not (isinstance(value, int | float) and allowed(value)):
            raise InvalidInput(remedy, ("items", index, name))
    return torch.tensor(values, dtype=torch.float64)


def unit_costs(items: Items) -> tuple[Tensor, Tensor]:
    """Return underage and overage costs, each (d,): as stated, or from price, unit cost and salvage value."""
    costed = [_derive_costs(item, index) for index, item in enumerate(items)]
    return column(costed, "underage_cost", None, _positive, _COST), column(
        costed, "overage_cost", None, _positive, _COST
    )


def _derive_costs(item: dict[str, Any], index: int) -> dict[str, Any]:
    margins = [name for name in _MARGINS if item.get(name) is not None]
    if not margins:
        lacking = next((name for name in ("underage_cost", "overage_cost") if item.get(name) is None), None)
        if lacking is not None:
            raise InvalidInput(
                "an item needs underage_cost and overage_cost, or price and unit_cost", ("items", index, lacking)
            )
        return item
    twice = next((name for name in ("underage_cost", "overage_cost") if item.get(name) is not None), None)
    if twice is not None:
        raise InvalidInput(
            f"{margins[0]} and {twice} state the same cost twice; give price and unit_cost, or underage_cost and "
            "overage_cost",
            ("items", index, twice),
        )
    for name in ("price", "unit_cost", *margins):
        value = item.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInput(f"{name} must be a number: an item needs price and unit_cost", ("items", index, name))
    price, paid = float(item["price"]), float(item["unit_cost"])
    salvage, penalty = float(item.get("salvage_value") or 0.0), float(item.get("shortage_penalty") or 0.0)
    if penalty < 0:
        raise InvalidInput("a shortage_penalty must not be negative", ("items", index, "shortage_penalty"))
    if price - paid + penalty <= 0:
        raise InvalidInput(
            f"ordering too little must cost something: price − unit_cost + shortage_penalty is "
            f"{price - paid + penalty:g}, and must be positive",
            ("items", index, "price"),
        )
    if paid - salvage <= 0:
        raise InvalidInput(
            f"ordering too much must cost something: unit_cost − salvage_value is {paid - salvage:g}, and must be "
            "positive",
            ("items", index, "salvage_value" if "salvage_value" in margins else "unit_cost"),
        )
    return {"underage_cost": price - paid + penalty, "overage_cost": paid - salvage}


def order_bounds(items: Items, stock: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest order of each item (d,); stock on hand cannot be returned."""
    low = column(items, "minimum_order", -math.inf, _is_known, _BOUND)
    high = column(items, "maximum_order", math.inf, _is_known, _BOUND)
    low = torch.where((stock > 0) & (low == -math.inf), 0.0, low)
    for index, empty in enumerate((low > high).tolist()):
        if empty:
            raise InvalidInput("the minimum order is above the maximum order", ("items", index, "minimum_order"))
    return low, high


def steps_of(items: Items, low: Tensor, high: Tensor) -> Tensor:
    """Return what each order is a multiple of, (d,): a pack, one, or 0 for any amount."""
    packs = column(items, "pack_size", 0.0, _not_negative, "a pack_size must be a positive number")
    steps = packs.tolist()
    for index, item in enumerate(items):
        if item.get("pack_size") is not None and not steps[index] > 0:
            raise InvalidInput("a pack_size must be a positive number", ("items", index, "pack_size"))
        if item.get("integer"):
            if steps[index] != math.floor(steps[index]):
                raise InvalidInput(
                    f"an integer order cannot consist of packs of {steps[index]:g}; leave out integer or choose an "
                    "integer pack_size",
                    ("items", index, "pack_size"),
                )
            steps[index] = steps[index] or 1.0
        step = steps[index]
        if step and on_grid(low[index].item(), step, math.ceil) > on_grid(high[index].item(), step, math.floor):
            kind = "pack_size" if item.get("pack_size") is not None else "integer"
            raise InvalidInput(
                f"no multiple of {step:g} is between the minimum and the maximum order", ("items", index, kind)
            )
    return torch.tensor(steps, dtype=torch.float64)


def on_grid(value: float, step: float, side: Callable[[float], float]) -> float:
    """Return a value in steps, rounded to one side; a whole number up to rounding stays that number."""
    if math.isinf(value):
        return value
    count = value / step
    return float(round(count)) if abs(count - round(count)) <= ROUNDING * max(1.0, abs(count)) else float(side(count))


def service_of(items: Items) -> Tensor:
    return column(items, "minimum_service_level", 0.0, _below_one, _SERVICE)


def fill_rate_of(spec: dict[str, Any]) -> float:
    value = spec.get("minimum_service_level")
    if value is not None and not (isinstance(value, int | float) and _below_one(value)):
        raise InvalidInput(_SERVICE, ("minimum_service_level",))
    return float(value or 0.0)


def stock_of(items: Items) -> Tensor:
    return column(items, "stock", 0.0, _not_negative, "the stock must be a number that is not negative")


def most_of(items: Items) -> Tensor:
    return column(items, "maximum_demand", math.inf, lambda v: v > 0, "the maximum_demand must be a positive number")


def rows_of(spec: dict[str, Any], names: tuple[str, ...]) -> OrderRows:
    rows = list(spec.get("decision_rows") or [])
    matrix, limits, senses = np.zeros((len(rows), len(names))), np.zeros(len(rows)), np.zeros(len(rows), np.int64)
    places = {name: index for index, name in enumerate(names)}
    for i, row in enumerate(rows):
        for label, value in (row.get("coefficients") or {}).items():
            where = ("decision_rows", i, "coefficients", label)
            if label not in places:
                raise InvalidInput("there is no item of this name", where)
            matrix[i, places[label]] = _finite(value, where)
        limits[i] = _finite(row.get("limit"), ("decision_rows", i, "limit"))
        if row.get("sense") not in SENSES:
            raise InvalidInput("the sense must be one of <=, >= and =", ("decision_rows", i, "sense"))
        senses[i] = SENSES[row["sense"]]
    return OrderRows(
        matrix, senses, limits, tuple(str(row.get("name") or f"row {i + 1}") for i, row in enumerate(rows))
    )


def check_rows(rows: OrderRows, low: Array, high: Array, steps: Array) -> None:
    """Refuse rows that no order within its bounds keeps, one alone or all together."""
    for i, (row, least, most) in enumerate(zip(rows.matrix, *rows.ends, strict=True)):
        used = row != 0
        with np.errstate(over="ignore"):
            ends = np.sort(np.stack([row[used] * low[used], row[used] * high[used]]), axis=0).sum(axis=1)
        rounding = ROUNDING * max(1.0, abs(rows.limits[i]))
        if ends[0] > most + rounding or ends[1] < least - rounding:
            side, possible = ("at most", ends[0]) if ends[0] > most + rounding else ("at least", ends[1])
            raise InvalidInput(
                f"no order keeps {rows.names[i]}: it must be {side} {rows.limits[i]:g}, and the order bounds alone "
                f"make it {'at least' if side == 'at most' else 'at most'} {possible:g}",
                ("decision_rows", i),
            )
    if len(rows) < 2 and not steps.any():
        return
    unit = np.where(steps > 0, steps, 1.0)
    answer = highs.run(
        highs.model_of(
            np.zeros(len(low)),
            sparse.csr_array(rows.matrix * unit),
            *rows.ends,
            np.array([on_grid(a, s, math.ceil) if s else a for a, s in zip(low, steps, strict=True)]),
            np.array([on_grid(b, s, math.floor) if s else b for b, s in zip(high, steps, strict=True)]),
            steps > 0,
        )
    )
    if answer.status is Status.INFEASIBLE:
        what = " in the required packs or whole numbers" if steps.any() else ""
        raise InvalidInput(f"no order keeps all decision rows and order bounds together{what}", ("decision_rows",))


def _finite(value: Any, where: tuple[str | int, ...]) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput("this must be a finite number", where)
    return float(value)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _not_negative(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _is_known(value: float) -> bool:
    return not math.isnan(value)


def _below_one(value: float) -> bool:
    return 0 <= value < 1
