"""The rules of a portfolio: bounds, budget, long and short sums, groups, and turnover against current positions.

As rows of one linear program over positions z and what is lifted: t ≥ |z − current| where turnover counts, p ≥ z⁺ and
q ≥ z⁻ where the sums of long or short positions are limited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bco_core.problems.base import Breach
from bco_core.solvers.dual_newton import Array
from bco_core.solvers.portfolio_qp import Program

# Positions, sums and returns are kept to this, relative to their own scale.
TOLERANCE = 1e-9
Where = tuple[str | int, ...]


@dataclass(frozen=True)
class Group:
    """Assets (m,), one where a member, whose positions sum to something between two bounds."""

    name: str
    members: Array
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Rules:
    """What every portfolio keeps; ``turnover_cost`` is taken from the return for each unit that is bought or sold.

    ``current`` (m,) is None where turnover does not count.
    """

    names: tuple[str, ...]
    lower: Array
    upper: Array
    budget: float
    full: bool = False
    longest: float | None = None
    shortest: float | None = None
    groups: tuple[Group, ...] = ()
    current: Array | None = None
    turnover_cost: float = 0.0
    maximum_turnover: float | None = None

    @property
    def simple(self) -> bool:
        """Whether bounds and the budget are all there is: compiled kernels know no other rules."""
        return self.longest is None and self.shortest is None and not self.lifts

    @property
    def lifts(self) -> bool:
        """Whether there are rules that only a linear program can state."""
        return bool(self.groups) or self.current is not None

    @property
    def needs_program(self) -> bool:
        """Whether limits on long and short sums are not the only rules besides bounds and budget."""
        return self.lifts or self.full

    @property
    def room(self) -> float:
        """By how much rounding may break a rule."""
        return TOLERANCE * max(1.0, self.budget)

    @cached_property
    def reach(self) -> tuple[Array, Array]:
        """The least and the largest position (m,) that bounds, budget and turnover leave each asset."""
        lower, upper = self.lower, np.minimum(self.upper, self.lower + self.budget - self.lower.sum())
        if self.current is not None and self.maximum_turnover is not None:
            lower = np.maximum(lower, self.current - self.maximum_turnover)
            upper = np.minimum(upper, self.current + self.maximum_turnover)
        return lower, upper

    def turnover(self, positions: Array) -> Array:
        """Σ |z − current|, nothing where there are no current positions: (..., m) → (...)."""
        moved: Array = np.abs(positions - (positions if self.current is None else self.current)).sum(-1)
        return moved

    def breaches(self, positions: Array) -> list[Breach]:
        """What positions (m,) break by more than rounding, each with a sentence."""
        found: list[Breach] = []

        def at_most(value: float, limit: float | None, where: Where, what: str) -> None:
            if limit is not None and value > limit + self.room:
                found.append(Breach(where, value - limit, f"{what} {value:.6g}, and at most {limit:.6g} is allowed"))

        def at_least(value: float, limit: float, where: Where, what: str) -> None:
            if value < limit - self.room:
                found.append(Breach(where, limit - value, f"{what} {value:.6g}, and at least {limit:.6g} is asked"))

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
        return found

    def rows(self) -> tuple[list[tuple[Array, float, float]], list[Where], int]:
        """Rows (n,) with what they are at least and at most, their places in a specification, and n.

        The places are those of upper ends; rows without a place only tie lifted variables to positions.
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

    def program(self, covariance: Array) -> Program:
        """The rules as a linear program in units of the budget, with the covariance in units of its mean variance."""
        rows, _, n = self.rows()
        m, size, unit = len(self.lower), self.budget, float(covariance.diagonal().mean())
        lower, upper = self.reach
        price = np.zeros(n)
        if self.current is not None:
            price[m : 2 * m] = self.turnover_cost
        return Program(
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
        """Positions (m,) followed by what they make of lifted variables, (n,), in units of the budget."""
        parts = [positions]
        if self.current is not None:
            parts.append(np.abs(positions - self.current))
        if self.longest is not None:
            parts.append(positions.clip(min=0))
        if self.shortest is not None:
            parts.append(-positions.clip(max=0))
        lifted: Array = np.concatenate(parts) / self.budget
        return lifted
