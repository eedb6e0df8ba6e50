"""Prices of portfolio rules: each is the fall of the optimal cost when the rule is relaxed slightly."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from bco_core.problems.registry import build_problem

Spec = dict[str, Any]

COVARIANCE = [[0.0015, 0.0, 0.00001], [0.0, 0.00005, -0.00001], [0.00001, -0.00001, 0.0003]]
ASSETS = [{"name": "shares", "maximum": 0.6}, {"name": "bonds", "minimum": 0.1}, {"name": "gold"}]
GENERATOR = torch.Generator().manual_seed(3)
RETURNS = torch.tensor([0.056, 0.046, 0.041]) + torch.randn(
    40, 3, dtype=torch.float64, generator=GENERATOR
) * torch.tensor([0.03, 0.004, 0.015], dtype=torch.float64)
WEIGHTS = torch.linspace(1, 2, 40, dtype=torch.float64) / 60

WEIGHING: Spec = {"kind": "mean_variance_portfolio", "risk_aversion": 20, "assets": ASSETS, "covariance": COVARIANCE}
KEEPING: Spec = {"kind": "return_constrained_portfolio", "target_return": 0.03, "confidence": 0.8} | {
    "assets": ASSETS,
    "covariance": COVARIANCE,
}
HELD: Spec = {"current": {"gold": 1.0}, "turnover_cost": 0.002, "fully_invested": True}
GROUP: Spec = {"groups": [{"name": "real", "assets": ["shares", "gold"], "minimum": 0.5}]}
CEILING: Spec = {"groups": [{"name": "real", "assets": ["shares", "gold"], "maximum": 0.2}]}


def least(spec: Spec) -> float:
    found = build_problem(spec).prescribe(RETURNS[None], WEIGHTS)
    assert found.status == ["optimal"]
    return float(found.objective[0])


def relaxed(spec: Spec, where: tuple[str | int, ...], by: float) -> Spec:
    """Return the specification with a relaxed rule: lower limits fall, upper limits rise."""
    changed = deepcopy(spec)
    if where == ("fully_invested",):
        return changed | {"budget": 1.0 - by}
    at: Any = changed
    for step in where[:-1]:
        at = at[step]
    falls = where[-1] in ("minimum", "target_return")
    at[where[-1]] = at.get(where[-1], 1.0) + (-by if falls else by)
    return changed


@pytest.mark.parametrize(
    ("spec", "binding"),
    [
        (WEIGHING, {("budget",)}),
        (WEIGHING | {"risk_aversion": 1}, {("budget",), ("assets", 0, "maximum")}),
        (WEIGHING | GROUP, {("budget",), ("groups", 0, "minimum")}),
        (WEIGHING | CEILING, {("budget",), ("groups", 0, "maximum")}),
        (WEIGHING | HELD | {"maximum_turnover": 0.3}, {("budget",), ("maximum_turnover",), ("assets", 1, "minimum")}),
        (KEEPING, {("target_return",)}),
        (KEEPING | {"target_on": "mean", "confidence": None}, {("target_return",)}),
        (KEEPING | GROUP, {("target_return",), ("groups", 0, "minimum")}),
        (
            KEEPING | HELD | {"maximum_turnover": 1.2, "target_return": 0.02},
            {("fully_invested",), ("maximum_turnover",)},
        ),
    ],
    ids=["budget", "maximum", "group", "ceiling", "turnover", "tail", "mean", "tail and group", "tail and turnover"],
)
def test_a_price_matches_the_gain_of_relaxing_its_rule(spec: Spec, binding: set[tuple[str | int, ...]]) -> None:
    problem = build_problem(spec)
    found = {price.where: price.value for price in problem.prices(torch.zeros(3), RETURNS, WEIGHTS)}
    assert set(found) == binding
    step = 1e-4 * (0.1 if spec["kind"] == KEEPING["kind"] else 1.0)
    for where, price in found.items():
        slope = (least(relaxed(spec, where, -step)) - least(relaxed(spec, where, step))) / (2 * step)
        assert abs(slope) == pytest.approx(price, rel=0.01), where


def test_an_unreachable_target_has_no_prices() -> None:
    problem = build_problem(KEEPING | {"target_return": 0.2})
    assert problem.prices(torch.zeros(3), RETURNS, WEIGHTS) == []
