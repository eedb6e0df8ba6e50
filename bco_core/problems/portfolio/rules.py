"""The rules of a portfolio: bounds, budget, long and short sums, groups, and turnover against current positions.

They are rows of one linear program over positions z and auxiliary variables: t ≥ |z − current| if turnover counts,
p ≥ z⁺ and q ≥ z⁻ if the sums of long or short positions are limited. :func:`rules_of` reads them from a specification
and refuses rules that no portfolio keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bco_core.errors import InvalidInput, SolverFailure
from bco_core.problems.base import Breach
from bco_core.solvers.dual_newton import Array
from bco_core.solvers.portfolio_qp import LiftedQP, most

# Tolerance of positions, sums and returns, relative to their scale.
TOLERANCE = 1e-9
Where = tuple[str | int, ...]


@dataclass(frozen=True)
class PositionGroup:
    """Assets whose positions sum to a value between two bounds; ``members`` (m,) is one for assets of the group."""

    name: str
    members: Array
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Rules:
    """Rules of every portfolio; ``turnover_cost`` is subtracted from the return for each unit bought or sold.

    ``current`` (m,) is None if turnover does not count.
    """

    names: tuple[str, ...]
    lower: Array
    upper: Array
    budget: float
    full: bool = False
    longest: float | None = None
    shortest: float | None = None
    groups: tuple[PositionGroup, ...] = ()
    current: Array | None = None
    turnover_cost: float = 0.0
    maximum_turnover: float | None = None

    @property
    def simple(self) -> bool:
        """Whether bounds and the budget are the only rules, as compiled kernels require."""
        return self.longest is None and self.shortest is None and not self.lifts

    @property
    def lifts(self) -> bool:
        """Whether there are rules that need auxiliary variables or rows: groups or turnover."""
        return bool(self.groups) or self.current is not None

    @property
    def needs_program(self) -> bool:
        """Whether there are rules besides bounds, budget and limits on long and short sums."""
        return self.lifts or self.full

    @property
    def rounding_tolerance(self) -> float:
        """How far rounding may break a rule."""
        return TOLERANCE * max(1.0, self.budget)

    @cached_property
    def reach(self) -> tuple[Array, Array]:
        """The smallest and the largest position (m,) of each asset under bounds, budget and turnover."""
        lower, upper = self.lower, np.minimum(self.upper, self.lower + self.budget - self.lower.sum())
        if self.current is not None and self.maximum_turnover is not None:
            lower = np.maximum(lower, self.current - self.maximum_turnover)
            upper = np.minimum(upper, self.current + self.maximum_turnover)
        return lower, upper

    def turnover(self, positions: Array) -> Array:
        """Return Σ |z − current|, zero without current positions: (..., m) → (...)."""
        moved: Array = np.abs(positions - (positions if self.current is None else self.current)).sum(-1)
        return moved

    def breaches(self, positions: Array) -> list[Breach]:
        """Return the rules that positions (m,) break by more than rounding, each with a sentence."""
        broken: list[Breach] = []

        def at_most(value: float, limit: float | None, where: Where, what: str) -> None:
            if limit is not None and value > limit + self.rounding_tolerance:
                broken.append(Breach(where, value - limit, f"{what} {value:.6g}, and must be at most {limit:.6g}"))

        def at_least(value: float, limit: float, where: Where, what: str) -> None:
            if value < limit - self.rounding_tolerance:
                broken.append(Breach(where, limit - value, f"{what} {value:.6g}, and must be at least {limit:.6g}"))

        for j, (name, value) in enumerate(zip(self.names, positions.tolist(), strict=True)):
            at_least(value, float(self.lower[j]), ("assets", j, "minimum"), f"the position in {name} is")
            at_most(value, float(self.upper[j]), ("assets", j, "maximum"), f"the position in {name} is")
        total = float(positions.sum())
        at_most(total, self.budget, ("budget",), "the positions sum to")
        if self.full:
            at_least(total, self.budget, ("fully_invested",), "the positions sum to")
        at_most(float(positions.clip(min=0).sum()), self.longest, ("maximum_long",), "the long positions sum to")
        at_most(float(-positions.clip(max=0).sum()), self.shortest, ("maximum_short",), "the short positions sum to")
        for i, group in enumerate(self.groups):
            value = float(group.members @ positions)
            at_least(value, group.minimum, ("groups", i, "minimum"), f"the positions of group {group.name} sum to")
            at_most(value, group.maximum, ("groups", i, "maximum"), f"the positions of group {group.name} sum to")
        if self.current is not None:
            at_most(float(self.turnover(positions)), self.maximum_turnover, ("maximum_turnover",), "the turnover is")
        return broken

    def rows(self) -> tuple[list[tuple[Array, float, float]], list[Where], int]:
        """Return rows (n,) with lower and upper limits, their places in a specification, and n.

        The places are those of upper limits; rows without a place tie auxiliary variables to positions.
        """
        m = len(self.lower)
        lifts = [
            (self.current is not None, self.current, 1.0, 1.0, self.maximum_turnover, "maximum_turnover"),
            (self.longest is not None, None, 1.0, 0.0, self.longest, "maximum_long"),
            (self.shortest is not None, None, 0.0, 1.0, self.shortest, "maximum_short"),
        ]
        used = [lift for lift in lifts if lift[0]]
        n = m * (1 + len(used))
        rows: list[tuple[Array, float, float]] = []
        places: list[Where] = []

        def add(start: int, values: Array, low: float, high: float, where: Where = ()) -> None:
            row = np.zeros(n)
            row[start : start + len(values)] = values
            rows.append((row, low, high))
            places.append(where)

        add(0, np.ones(m), self.budget if self.full else -math.inf, self.budget, ("budget",))
        for i, group in enumerate(self.groups):
            add(0, group.members, group.minimum, group.maximum, ("groups", i, "maximum"))
        for k, (_, centre, above, below, limit, name) in enumerate(used, start=1):
            for sign, counts in ((1.0, above), (-1.0, below)):
                for j in range(m) if counts else ():
                    row = np.zeros(n)
                    row[j], row[k * m + j] = sign, -1.0
                    rows.append((row, -math.inf, 0.0 if centre is None else sign * float(centre[j])))
                    places.append(())
            if limit is not None:
                add(k * m, np.ones(m), -math.inf, limit, (name,))
        return rows, places, n

    def program(self, covariance: Array) -> LiftedQP:
        """Return the rules as a QP in units of the budget, with the covariance in units of its mean variance."""
        rows, _, n = self.rows()
        m, size, unit = len(self.lower), self.budget, float(covariance.diagonal().mean())
        lower, upper = self.reach
        price = np.zeros(n)
        if self.current is not None:
            price[m : 2 * m] = self.turnover_cost
        return LiftedQP(
            covariance / unit,
            unit,
            size,
            np.array([row for row, _, _ in rows]),
            np.array([low for _, low, _ in rows]) / size,
            np.array([high for _, _, high in rows]) / size,
            np.concatenate([lower, np.zeros(n - m)]) / size,
            np.concatenate([upper, np.full(n - m, math.inf)]) / size,
            price,
        )

    def lift(self, positions: Array) -> Array:
        """Return positions (m,) followed by their auxiliary variables, (n,), in units of the budget."""
        parts = [positions]
        if self.current is not None:
            parts.append(np.abs(positions - self.current))
        if self.longest is not None:
            parts.append(positions.clip(min=0))
        if self.shortest is not None:
            parts.append(-positions.clip(max=0))
        lifted: Array = np.concatenate(parts) / self.budget
        return lifted


def number(spec: dict[str, Any], name: str, default: float | None = None) -> float:
    """Return the number of this name in a specification; refuse anything else."""
    value = spec.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a number", (name,))
    return float(value)


def rules_of(spec: dict[str, Any]) -> Rules:
    """Return the rules that a specification states; refuse rules that no portfolio keeps."""
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


def _group(group: dict[str, Any], index: int, names: tuple[str, ...]) -> PositionGroup:
    place = ("groups", index)
    members = group.get("assets") or []
    if not members:
        raise InvalidInput("a group needs at least one asset", (*place, "assets"))
    for at, member in enumerate(members):
        if member not in names:
            raise InvalidInput(f"no asset is called {member}; the assets are {_few(names)}", (*place, "assets", at))
    if group.get("minimum") is None and group.get("maximum") is None:
        raise InvalidInput("a group needs a minimum or a maximum", place)
    try:
        low, high = number(group, "minimum", -1e300), number(group, "maximum", 1e300)
    except InvalidInput as error:
        raise InvalidInput(str(error), (*place, *error.where)) from None
    if low > high:
        raise InvalidInput("the group's minimum is above its maximum", (*place, "minimum"))
    chosen = np.array([float(name in members) for name in names])
    title = str(group.get("name") or _few(tuple(members)))
    return PositionGroup(title, chosen, -math.inf if low == -1e300 else low, math.inf if high == 1e300 else high)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _turnover(spec: dict[str, Any], names: tuple[str, ...]) -> tuple[float, float | None, Array | None]:
    """Return the cost of a unit of turnover, the maximum turnover, and the current positions (m,)."""
    cost, largest = _limit(spec, "turnover_cost") or 0.0, _limit(spec, "maximum_turnover")
    current = spec.get("current")
    if current is None:
        for name, stated in (("turnover_cost", cost), ("maximum_turnover", largest is not None)):
            if stated:
                raise InvalidInput("turnover is measured from current positions: give current, too", (name,))
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
    """Refuse the first rule that, together with those before it, leaves no portfolio."""
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
            if sign * reached < sign * bound - rules.rounding_tolerance:
                raise InvalidInput(
                    f"the positions of group {group.name} sum to at {'most' if sign > 0 else 'least'} {reached:g} "
                    f"under the other rules, and {bound:g} is its {end}",
                    ("groups", index, end),
                )
        still = replace(still, groups=(*still.groups, group))
    if rules.current is not None and rules.maximum_turnover is not None:
        needed = -_most(replace(still, current=rules.current), np.zeros(len(lower)), -1.0)
        if needed > rules.maximum_turnover + rules.rounding_tolerance:
            raise InvalidInput(
                f"from the current positions the other rules need a turnover of at least {needed:g}",
                ("maximum_turnover",),
            )


def _most(rules: Rules, direction: Array, turned: float = 0.0) -> float:
    """Return the largest direction'z + turned·turnover of portfolios that keep the rules."""
    program, count = rules.program(np.eye(len(direction))), len(direction)
    whole = np.concatenate([direction, np.zeros(len(program.lower) - count)])
    whole[count : 2 * count] = turned
    return float(whole @ most(program, whole)) * rules.budget
