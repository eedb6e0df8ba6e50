"""The protocol everything hangs on: what inference and policies may ask of a decision problem.

Shapes: outcomes (..., d_y), decisions (..., d_z), costs (...). Everything is batched; nothing outside a problem's own
file knows which problem it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from torch import Tensor


class Status(StrEnum):
    """How a solve ended, in one vocabulary for every solver."""

    OPTIMAL = "optimal"
    BEST_EFFORT = "best_effort"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    TIME_LIMIT = "time_limit"


@dataclass(frozen=True)
class Risk:
    """What a prescription minimises over scenarios: (1 − w)·E[cost] + w·CVaR_α[cost]."""

    cvar_weight: float = 0.0
    cvar_level: float = 0.95


EXPECTATION = Risk()


@dataclass(frozen=True)
class Prescription:
    """Decisions (B, d_z), the risk they reach over their scenarios (B,), and one status for each.

    ``reasons`` has a sentence for every status that needs one ("" otherwise), or is empty when none does; ``solvers``
    says what found each decision, or is empty where a formula did.
    """

    decisions: Tensor
    objective: Tensor
    status: list[Status]
    reasons: tuple[str, ...] = ()
    solvers: tuple[str, ...] = ()


class DecisionProblem(Protocol):
    """min over z of c(z; y). ``decide`` and ``cost`` are torch-differentiable where ``differentiable`` is True."""

    @property
    def outcome_dim(self) -> int: ...

    @property
    def decision_dim(self) -> int: ...

    @property
    def differentiable(self) -> bool: ...

    @property
    def cost_bound(self) -> float | None:
        """A number that no cost exceeds, where costs are non-negative, convex in the decision, and the decisions
        a convex set; None where no such number is known."""
        ...

    @property
    def relaxation(self) -> DecisionProblem:
        """What learning works on: the problem itself if decisions form a convex set, else its continuous relaxation."""
        ...

    def decide(self, outcomes: Tensor) -> Tensor:
        """The relaxation's optimum for a point prediction: (..., d_y) → (..., d_z)."""
        ...

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Realised cost: (..., d_z), (..., d_y) → (...)."""
        ...

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Whether each decision keeps its constraints under the outcome, bool (...)."""
        ...

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        """One decision for each set of scenarios: outcomes (B, K, d_y), weights (B, K) or (K,) that sum to one.

        ``time_limit`` is in seconds for the whole call; what it cuts off has status ``time_limit``.
        """
        ...


@runtime_checkable
class UncertainConstraints(Protocol):
    """What a problem has besides, if the outcome decides whether a decision keeps its constraints."""

    @property
    def confidence(self) -> float:
        """The share of outcomes under which decisions must keep them."""
        ...

    def slack(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """How far each decision is from breaking them, negative where it does: (..., d_z), (..., d_y) → (...)."""
        ...


def cost_floor(problem: DecisionProblem) -> float:
    """A number that no cost falls below, as far as the problem knows one (its own ``cost_floor``)."""
    return float(getattr(problem, "cost_floor", -math.inf))
