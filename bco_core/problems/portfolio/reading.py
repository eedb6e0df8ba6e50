"""From a specification to the rules of a portfolio; rules that no portfolio keeps are refused with a sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bco_core.errors import InvalidInput, SolverFailure
from bco_core.problems.portfolio.rules import Group, Rules
from bco_core.solvers.dual_newton import Array
from bco_core.solvers.portfolio_qp import most


def number(spec: dict[str, Any], name: str, default: float | None = None) -> float:
    """The number of this name in a specification, refused by its name if it is none."""
    value = spec.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a number", (name,))
    return float(value)


def rules_of(spec: dict[str, Any]) -> Rules:
    """The rules that a specification states, if there are portfolios that keep them."""
    assets = spec.get("assets") or []
    if not assets:
        raise InvalidInput("a portfolio needs at least one asset", ("assets",))
    budget = number(spec, "budget", 1.0)
    if budget <= 0:
        raise InvalidInput("the budget must be a positive number", ("budget",))
    names = tuple(str(asset.get("name", index)) for index, asset in enumerate(assets))
    lower, upper = _bounds(assets, "minimum", 0.0), _bounds(assets, "maximum", math.inf)
    for index in np.flatnonzero(lower > upper).tolist():
        raise InvalidInput("the minimum position is above the maximum", ("assets", index, "minimum"))
    if lower.sum() > budget:
        raise InvalidInput("the minimum positions together exceed the budget", ("budget",))
    cost, most_moved, current = _turnover(spec, names)
    rules = Rules(
        names,
        lower,
        upper,
        budget,
        bool(spec.get("fully_invested")),
        _limit(spec, "maximum_long"),
        _limit(spec, "maximum_short"),
        tuple(_group(group, index, names) for index, group in enumerate(spec.get("groups") or [])),
        current,
        cost,
        most_moved,
    )
    _refuse_empty(rules)
    return rules


def _limit(spec: dict[str, Any], name: str) -> float | None:
    if spec.get(name) is None:
        return None
    value = number(spec, name)
    if value < 0:
        raise InvalidInput(f"{name} must not be negative", (name,))
    return value


def _bounds(assets: list[dict[str, Any]], name: str, default: float) -> Array:
    values = [default if asset.get(name) is None else asset[name] for asset in assets]
    for index, value in enumerate(values):
        if not isinstance(value, int | float) or math.isnan(value) or value == -math.inf:
            raise InvalidInput(f"the {name} position must be a number", ("assets", index, name))
    return np.array(values, dtype=np.float64)


def _group(group: dict[str, Any], index: int, names: tuple[str, ...]) -> Group:
    place = ("groups", index)
    members = group.get("assets") or []
    if not members:
        raise InvalidInput("a group needs at least one asset", (*place, "assets"))
    for at, member in enumerate(members):
        if member not in names:
            raise InvalidInput(f"no asset is called {member}; the assets are {_few(names)}", (*place, "assets", at))
    if group.get("minimum") is None and group.get("maximum") is None:
        raise InvalidInput("a group without minimum and maximum is no rule; give one of them", place)
    try:
        low, high = number(group, "minimum", -1e300), number(group, "maximum", 1e300)
    except InvalidInput as error:
        raise InvalidInput(str(error), (*place, *error.where)) from None
    if low > high:
        raise InvalidInput("the group's minimum is above its maximum", (*place, "minimum"))
    chosen = np.array([float(name in members) for name in names])
    title = str(group.get("name") or _few(tuple(members)))
    return Group(title, chosen, -math.inf if low == -1e300 else low, math.inf if high == 1e300 else high)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _turnover(spec: dict[str, Any], names: tuple[str, ...]) -> tuple[float, float | None, Array | None]:
    """What a unit of turnover costs, the most there may be, and the positions that it is counted against."""
    cost, largest = _limit(spec, "turnover_cost") or 0.0, _limit(spec, "maximum_turnover")
    current = spec.get("current")
    if current is None:
        for name, given in (("turnover_cost", cost), ("maximum_turnover", largest is not None)):
            if given:
                raise InvalidInput("turnover is counted against current positions: give current, too", (name,))
        return 0.0, None, None
    for name in current:
        if name not in names:
            raise InvalidInput(f"no asset is called {name}; the assets are {_few(names)}", ("current", name))
        try:
            number(current, name)
        except InvalidInput:
            raise InvalidInput("a current position must be a number", ("current", name)) from None
    return cost, largest, np.array([float(current.get(name) or 0.0) for name in names])


def _refuse_empty(rules: Rules) -> None:
    """Name the first rule that leaves no portfolio beside those before it."""
    lower, upper = rules.lower, rules.upper
    if rules.full and upper.sum() < rules.budget:
        raise InvalidInput(
            f"the maximum positions sum to {upper.sum():g}, so a budget of {rules.budget:g} cannot be fully invested",
            ("fully_invested",),
        )
    for name, limit, needed in (
        ("maximum_long", rules.longest, lower.clip(min=0).sum()),
        ("maximum_short", rules.shortest, (-upper).clip(min=0).sum()),
    ):
        if limit is not None and needed > limit:
            raise InvalidInput(f"the bounds of the assets alone exceed {name}", (name,))
    if rules.simple:
        return
    still = replace(rules, groups=(), current=None, maximum_turnover=None, turnover_cost=0.0)
    try:
        _most(still, np.zeros(len(lower)))
    except SolverFailure:
        raise InvalidInput(
            "maximum_long and maximum_short leave no portfolio that is fully invested", ("fully_invested",)
        ) from None
    for index, group in enumerate(rules.groups):
        for end, sign, bound in (("minimum", 1.0, group.minimum), ("maximum", -1.0, group.maximum)):
            reached = sign * _most(still, sign * group.members)
            if sign * reached < sign * bound - rules.room:
                raise InvalidInput(
                    f"the positions of group {group.name} sum to at {'most' if sign > 0 else 'least'} {reached:g} "
                    f"beside the other rules, and {bound:g} is its {end}",
                    ("groups", index, end),
                )
        still = replace(still, groups=(*still.groups, group))
    if rules.current is not None and rules.maximum_turnover is not None:
        needed = -_most(replace(still, current=rules.current), np.zeros(len(lower)), -1.0)
        if needed > rules.maximum_turnover + rules.room:
            raise InvalidInput(
                f"from the current positions the other rules need a turnover of at least {needed:g}",
                ("maximum_turnover",),
            )


def _most(rules: Rules, direction: Array, turned: float = 0.0) -> float:
    """The most that direction'z + turned·turnover comes to; some portfolio keeps the rules."""
    program, count = rules.program(np.eye(len(direction))), len(direction)
    whole = np.concatenate([direction, np.zeros(len(program.lower) - count)])
    whole[count : 2 * count] = turned
    return float(whole @ most(program, whole)) * rules.budget
