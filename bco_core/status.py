"""How a solve ended and what found the answer: one vocabulary for solvers, problems and those who count them."""

from __future__ import annotations

from enum import StrEnum

# What ``Prescription.solvers`` may name.
CUTS, HIGHS = "cutting planes", "HiGHS"


class Status(StrEnum):
    """How a solve ended, in one vocabulary for every solver."""

    OPTIMAL = "optimal"
    BEST_EFFORT = "best_effort"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    TIME_LIMIT = "time_limit"
