"""Reference newsvendor: one cvxpy program over all scenarios, and random instances to compare on."""

from __future__ import annotations

import math
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from bco_core.problems.base import EXPECTATION, Risk

Spec = dict[str, Any]


def reference(spec: Spec, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION) -> float:
    """Return the minimal risk over outcomes (K, d) with weights (K,); infinity if infeasible."""
    demand, shares = outcomes.numpy(), weights.numpy()
    items = spec["items"]
    scale = float(np.abs(demand).max()) or 1.0
    count = len(items)
    steps = [item.get("pack_size") or (1.0 if item.get("integer") else 0.0) for item in items]
    packs = cp.Variable(count, integer=True) if any(steps) else None
    free = cp.Variable(count)
    orders = []
    rules: list[Any] = []
    for j, item in enumerate(items):
        order = steps[j] * packs[j] / scale if steps[j] and packs is not None else free[j]
        orders.append(order)
        low, high = item.get("minimum_order"), item.get("maximum_order")
        if low is not None:
            rules.append(order >= low / scale)
        if high is not None:
            rules.append(order <= high / scale)
        level = item.get("minimum_service_level") or 0.0
        if level:
            rules.append(order >= (quantile(demand[:, j], shares, level) - (item.get("stock") or 0.0)) / scale)
    there = cp.hstack(orders) + np.array([item.get("stock") or 0.0 for item in items]) / scale
    short, left = cp.Variable(demand.shape, nonneg=True), cp.Variable(demand.shape, nonneg=True)
    for k in range(len(demand)):
        rules.append(there + short[k] - left[k] == demand[k] / scale)
    for row in spec.get("decision_rows") or []:
        used = sum(value * orders[index_of(items, name)] for name, value in row["coefficients"].items())
        limit = row["limit"] / scale
        rules.append({"<=": used <= limit, ">=": used >= limit, "=": used == limit}[row["sense"]])
    rate = spec.get("minimum_service_level") or 0.0
    if rate:
        rules.append(
            shares @ cp.sum(short, axis=1) <= (1 - rate) * (shares @ np.maximum(demand, 0).sum(axis=1)) / scale
        )
    under, over = (np.array([cost_of(item)[i] for item in items]) for i in range(2))
    costs = short @ under + left @ over
    objective = (1 - risk.cvar_weight) * (shares @ costs)
    if risk.cvar_weight:
        eta, excess = cp.Variable(), cp.Variable(len(demand), nonneg=True)
        rules.append(excess >= costs - eta)
        objective += risk.cvar_weight * (eta + shares @ excess / (1 - risk.cvar_level))
    program = cp.Problem(cp.Minimize(objective), rules)
    value = program.solve(solver=cp.HIGHS, mip_rel_gap=1e-9)
    return math.inf if value is None or not math.isfinite(value) else float(value) * scale


def cost_of(item: dict[str, Any]) -> tuple[float, float]:
    if "price" not in item:
        return item["underage_cost"], item["overage_cost"]
    paid = item["unit_cost"]
    return (
        item["price"] - paid + (item.get("shortage_penalty") or 0.0),
        paid - (item.get("salvage_value") or 0.0),
    )


def index_of(items: list[dict[str, Any]], name: str) -> int:
    return [item["name"] for item in items].index(name)


def quantile(values: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], level: float) -> float:
    """Return the smallest value whose cumulative weight reaches ``level``."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= level - 1e-12
    return float(values[order][reached.argmax()])


def random_scenarios(seed: int, contexts: int, atoms: int, count: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draw demands on a coarse grid, so that ties are common, and uneven weights, some zero."""
    generator = np.random.default_rng(seed)
    outcomes = scale * generator.integers(0, 12, (contexts, atoms, count)) * generator.choice([1.0, 2.5, 7.0], count)
    weights = generator.integers(0, 4, (contexts, atoms)).astype(float)
    weights[:, 0] += 1
    return torch.from_numpy(outcomes), torch.from_numpy(weights / weights.sum(axis=1, keepdims=True))


def random_items(seed: int, count: int, scale: float = 1.0, **fields: Any) -> list[dict[str, Any]]:
    """Draw items with coarse costs, so that ratios tie; some have a bound, stock or no minimum."""
    generator = np.random.default_rng(seed + 1000)
    items = []
    for j in range(count):
        item: dict[str, Any] = {
            "name": f"item {j}",
            "underage_cost": float(generator.choice([1.0, 2.0, 3.0, 7.5])),
            "overage_cost": float(generator.choice([0.5, 1.0, 2.0])),
            "minimum_order": float(generator.choice([0.0, 0.0, 3.0])) * scale,
        }
        if generator.random() < 0.4:
            item["maximum_order"] = float(generator.integers(8, 30)) * scale
        if generator.random() < 0.4:
            item["stock"] = float(generator.integers(0, 9)) * scale
        items.append(item | fields)
    return items
