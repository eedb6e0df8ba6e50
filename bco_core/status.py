"""How a solve ended and what found the answer: one vocabulary for solvers, problems and those who count them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

# What ``Prescription.solvers`` may name.
CUTS, HIGHS, DENSE, CONIC = "cutting planes", "HiGHS", "daqp", "Clarabel"
SIMPLEX = "primal simplex"


@dataclass(frozen=True)
class Gap:
    """What ``optimal`` leaves open: the cost is above a proven lower bound by no more than the ``absolute`` amount, or
    the ``relative`` share of what the decision can change, which is the cost without what bounds alone make it cost."""

    relative: float = 1e-6
    absolute: float = 1e-9

    def share(self, cost: float, bound: float, fixed: float) -> float:
        """How far a cost is above its bound, as a share of the cost without the fixed one; NaN without a bound."""
        if not (math.isfinite(cost) and math.isfinite(bound)):
            return math.nan
        above, changeable = max(cost - bound, 0.0), abs(cost - fixed)
        return 0.0 if not above else above / changeable if changeable else math.inf

    def closes(self, cost: float, bound: float, fixed: float) -> bool:
        """Whether this cost may be called optimal; what rounding leaves of large numbers is no gap."""
        rounding = ROUNDING * (abs(cost) + abs(bound) + abs(fixed))
        return cost - bound <= max(self.absolute, rounding, self.relative * abs(cost - fixed))


GAP = Gap()
ROUNDING = 1e-13


class Status(StrEnum):
    """How a solve ended, in one vocabulary for every solver.

    ``optimal`` is proven, within a :class:`Gap`; ``best_effort`` is the best decision found where that is not so.
    """

    OPTIMAL = "optimal"
    BEST_EFFORT = "best_effort"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    TIME_LIMIT = "time_limit"
