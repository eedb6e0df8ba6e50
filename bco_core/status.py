"""Status of a solve, names of solvers and the allowed optimality gap, shared by solvers, problems and metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

# Names of solvers in ``Prescription.solvers``.
CUTS, HIGHS, DENSE, CONIC = "cutting planes", "HiGHS", "daqp", "Clarabel"
SIMPLEX = "primal simplex"


@dataclass(frozen=True)
class Gap:
    """Optimality gap allowed for status ``optimal``: the cost exceeds a proven lower bound by at most the ``absolute``
    amount, or by at most the ``relative`` share of the cost, fixed cost excluded."""

    relative: float = 1e-6
    absolute: float = 1e-9

    def share(self, cost: float, bound: float, fixed: float) -> float:
        """Return the relative optimality gap, fixed cost excluded; NaN without a bound."""
        if not (math.isfinite(cost) and math.isfinite(bound)):
            return math.nan
        above, changeable = max(cost - bound, 0.0), abs(cost - fixed)
        return 0.0 if not above else above / changeable if changeable else math.inf

    def closes(self, cost: float, bound: float, fixed: float) -> bool:
        """Return whether this cost counts as optimal; rounding of large numbers is not a gap."""
        rounding = ROUNDING * (abs(cost) + abs(bound) + abs(fixed))
        return cost - bound <= max(self.absolute, rounding, self.relative * abs(cost - fixed))


GAP = Gap()
ROUNDING = 1e-13


class Status(StrEnum):
    """How a solve ended, for every solver.

    ``optimal`` is proven within a small gap; ``best_effort`` is the best decision found without that proof.
    """

    OPTIMAL = "optimal"
    BEST_EFFORT = "best_effort"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    TIME_LIMIT = "time_limit"
