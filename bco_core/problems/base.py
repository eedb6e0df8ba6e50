"""The protocol everything hangs on: what inference and policies may ask of a decision problem.

Shapes: outcomes (..., d_y), decisions (..., d_z), costs (...). Everything is batched; nothing outside a problem's own
file knows which problem it has. :class:`Problem` has defaults for what most problems answer alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from bco_core.status import Status

__all__ = [
    "EXPECTATION",
    "Breach",
    "DecisionProblem",
    "Outline",
    "Prescription",
    "Price",
    "Problem",
    "Risk",
    "Status",
    "UncertainConstraints",
    "cost_bound_breach",
    "cost_bound_remedy",
    "cost_floor",
    "counted_within",
    "decides_alone",
    "fractiles",
    "outcome_bounds",
]


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
    says what found each decision (a solver of :mod:`bco_core.status`), "" or nothing where a formula did.
    ``bounds`` (B,) are what no decision's risk is below, and ``gaps`` (B,) how far what was minimised is above it, as a
    share of what decisions can change (:class:`~bco_core.status.Gap`): zero for formulas, NaN where nothing is proven,
    None where the decisions were not chosen to minimise the objective.
    """

    decisions: Tensor
    objective: Tensor
    status: list[Status]
    reasons: tuple[str, ...] = ()
    solvers: tuple[str, ...] = ()
    gaps: Tensor | None = None
    bounds: Tensor | None = None


@dataclass(frozen=True)
class Breach:
    """A rule that a decision breaks: its place in the problem's specification, as in ``InvalidInput.where``, by how
    much it is broken, and the same in a sentence."""

    where: tuple[str | int, ...]
    by: float
    sentence: str


@dataclass(frozen=True)
class Price:
    """By how much the minimised cost would fall for one more unit of room in the rule at ``where``; at least zero."""

    where: tuple[str | int, ...]
    value: float


class Outline(Protocol):
    """What there is to know of a problem before it is built: what learning for it takes depends on no more."""

    @property
    def outcome_dim(self) -> int: ...

    @property
    def differentiable(self) -> bool:
        """Whether there is a gradient to learn by: ``decide`` and ``cost`` have one for torch, or the problem has a
        :class:`~bco_core.problems.surrogate.Surrogate`, whose loss has one in their place."""
        ...


class DecisionProblem(Outline, Protocol):
    """min over z of c(z; y)."""

    @property
    def decision_dim(self) -> int: ...

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
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        """One decision for each set of scenarios: outcomes (B, K, d_y), weights (B, K) or (K,) that sum to one.

        ``time_limit_seconds`` holds for the whole call; what it cuts off has status ``time_limit``.
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


class Problem(ABC):
    """A decision problem by its differences: one decision an outcome, differentiable, convex, without known bounds.

    Subclasses say ``outcome_dim``, ``decide``, ``cost`` and ``prescribe``, and whatever else is not as usual.
    """

    @property
    @abstractmethod
    def outcome_dim(self) -> int: ...

    @abstractmethod
    def decide(self, outcomes: Tensor) -> Tensor: ...

    @abstractmethod
    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor: ...

    @abstractmethod
    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription: ...

    @property
    def decision_dim(self) -> int:
        return self.outcome_dim

    @property
    def differentiable(self) -> bool:
        return True

    @property
    def cost_bound(self) -> float | None:
        return None

    @property
    def cost_bound_remedy(self) -> str:
        """What a planner could state for ``cost_bound`` to be known, after "no bound on the cost is known:"."""
        return _NO_REMEDY

    @property
    def cost_bound_breach(self) -> str:
        """What a history holds whose costs exceed ``cost_bound``, after "the history holds"."""
        return _BREACH

    @property
    def outcome_bounds(self) -> tuple[Tensor, Tensor] | None:
        """The least and the largest outcome, each (d_y,), that ``cost_bound`` takes for granted; None if it takes
        nothing for granted."""
        return None

    @property
    def counted_within(self) -> tuple[Tensor, Tensor] | None:
        """Bounds, each (d_y,), as which outcomes beyond them are counted; None where every outcome counts as it is."""
        return None

    @property
    def cost_floor(self) -> float:
        """A number that no cost falls below."""
        return -math.inf

    @property
    def relaxation(self) -> Self:
        return self

    @property
    def fractiles(self) -> Tensor | None:
        """The quantile (d_y,) of each outcome that is the best decision for it; None where decisions are none."""
        return None

    @property
    def decides_slowly(self) -> bool:
        """Whether every decision for a point prediction takes a program of its own, far too long for many thousands."""
        return False

    @property
    def decides_alone(self) -> bool:
        """Whether a row of outcomes gets the same decision and cost, bit for bit, whatever rows are beside it."""
        return False

    def within(self, decisions: Tensor) -> Tensor:
        """Whether decisions keep what no outcome has a say in: (..., d_z) → bool (...)."""
        return torch.ones(decisions.shape[:-1], dtype=torch.bool)

    def breaches(self, decision: Tensor) -> list[Breach]:
        """What a decision (d_z,) breaks that no outcome has a say in."""
        return []

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """The price of each rule that binds a decision (d_z,) over outcomes (K, d_y) with weights (K,)."""
        return []

    def covered(self, decisions: Tensor, outcomes: Tensor) -> Tensor | None:
        """Whether each outcome is served: (..., d_z), (..., d_y) → bool (..., d_y); None where that means nothing."""
        return None

    @property
    def promises(self) -> bool:
        """Whether decisions promise something of what may happen, which only policies that look at it can keep."""
        return False

    def missed(self, decisions: Tensor, outcomes: Tensor, weights: Tensor, sure: bool = True) -> list[str]:
        """What each of the decisions (B, d_z) misses of its promises over outcomes (B, K, d_y), weights (K,) or (B, K):
        a sentence, or "" where nothing; empty where nothing is promised. Unless ``sure`` noise is forgiven."""
        return []

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        """What else is worth saying of a decision (d_z,) over outcomes (K, d_y) with weights (K,), by name."""
        return {}

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        within = self.within(decisions)
        return within.expand(torch.broadcast_shapes(within.shape, outcomes.shape[:-1]))

    def optimal(self, decisions: Tensor, outcomes: Tensor, weights: Tensor) -> Prescription:
        """The prescription of decisions (B, d_z) known to be optimal over outcomes (B, K, d_y), weights (B, K) or (K,):
        their expected cost."""
        objective = (self.cost(decisions[:, None], outcomes) * weights).sum(-1)
        return Prescription(
            decisions, objective, [Status.OPTIMAL] * len(decisions), gaps=torch.zeros_like(objective), bounds=objective
        )


_NO_REMEDY = "problems of this kind cannot state one"
_BREACH = "outcomes beyond the stated bounds"


def cost_floor(problem: DecisionProblem) -> float:
    """A number that no cost falls below, as far as the problem knows one (its own ``cost_floor``)."""
    return float(getattr(problem, "cost_floor", -math.inf))


def decides_alone(problem: DecisionProblem) -> bool:
    """Whether the problem says that the rows it decides for have no say in each other's digits."""
    return bool(getattr(problem, "decides_alone", False))


def fractiles(problem: DecisionProblem) -> Tensor | None:
    """The quantile (d_y,) of each outcome that is the best decision for it, if decisions are quantiles."""
    levels: Tensor | None = getattr(problem, "fractiles", None)
    return levels


def cost_bound_remedy(problem: DecisionProblem) -> str:
    """What a planner could state for the problem's ``cost_bound`` to be known, in the problem's own words."""
    return str(getattr(problem, "cost_bound_remedy", _NO_REMEDY))


def cost_bound_breach(problem: DecisionProblem) -> str:
    """What a history holds whose costs exceed the problem's ``cost_bound``, in the problem's own words."""
    return str(getattr(problem, "cost_bound_breach", _BREACH))


def outcome_bounds(problem: DecisionProblem) -> tuple[Tensor, Tensor] | None:
    """The least and the largest outcome, each (d_y,), that the problem's ``cost_bound`` takes for granted, if any."""
    bounds: tuple[Tensor, Tensor] | None = getattr(problem, "outcome_bounds", None)
    return bounds


def counted_within(problem: DecisionProblem) -> tuple[Tensor, Tensor] | None:
    """The bounds, each (d_y,), as which the problem counts outcomes beyond them, if it does."""
    bounds: tuple[Tensor, Tensor] | None = getattr(problem, "counted_within", None)
    return bounds
