"""The decision problem: the interface that inference and policies depend on.

Shapes: outcomes (..., d_y), decisions (..., d_z), costs (...). Everything is batched; nothing outside a problem's own
folder knows which problem it has.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from bco_core.status import Status

__all__ = [
    "EXPECTATION",
    "Breach",
    "DecisionProblem",
    "Prescription",
    "Price",
    "ProblemOutline",
    "Risk",
    "SecondStage",
    "SecondStagePlan",
    "Status",
    "UncertainConstraints",
]


@dataclass(frozen=True)
class Risk:
    """The objective over scenarios: (1 − w)·E[cost] + w·CVaR_α[cost]."""

    cvar_weight: float = 0.0
    cvar_level: float = 0.95


EXPECTATION = Risk()


@dataclass(frozen=True)
class Prescription:
    """Decisions (B, d_z), their risk over the scenarios (B,), and one status for each.

    ``reasons`` has a sentence for every status that needs one ("" otherwise), or is empty when none does; ``solvers``
    names the solver of :mod:`bco_core.status` that found each decision, "" for formulas. ``bounds`` (B,) are lower
    bounds on the risk of any decision, and ``gaps`` (B,) relative optimality gaps, fixed cost excluded
    (:class:`~bco_core.status.Gap`): zero for formulas, NaN where nothing is proven, None where the decisions were not
    chosen to minimise the objective.
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
    """A rule that a decision breaks: its place in the specification, as in ``InvalidInput.where``, the amount by which
    it is broken, and a sentence that says so."""

    where: tuple[str | int, ...]
    by: float
    sentence: str


@dataclass(frozen=True)
class Price:
    """The decrease of the minimal cost per unit by which the rule at ``where`` is relaxed; at least zero."""

    where: tuple[str | int, ...]
    value: float


@dataclass(frozen=True)
class SecondStagePlan:
    """The recourse for K outcomes: ``amounts`` (K, d_x), their ``costs`` (K,), the ``slack`` (K, rows) of each row, and
    ``unit_costs`` (K, d_x), or (d_x,) where they are certain. NaN where there is no recourse."""

    amounts: Tensor
    costs: Tensor
    slack: Tensor
    unit_costs: Tensor


class ProblemOutline(Protocol):
    """The properties of a problem that are known before it is built, on which the options of learning depend."""

    @property
    def outcome_dim(self) -> int: ...

    @property
    def differentiable(self) -> bool:
        """Whether there is a gradient to learn by: ``decide`` and ``cost`` have one for torch, or the problem has a
        :class:`~bco_core.problems.surrogate.Surrogate` loss, which has one."""
        ...


class DecisionProblem(ABC):
    """min over z of c(z; y).

    Subclasses define ``outcome_dim``, ``decide``, ``cost`` and ``prescribe``. The defaults of everything else describe
    a problem with one decision per outcome, differentiable, convex, without known bounds.
    """

    @property
    @abstractmethod
    def outcome_dim(self) -> int: ...

    @abstractmethod
    def decide(self, outcomes: Tensor) -> Tensor:
        """Return the relaxation's optimum for a point prediction: (..., d_y) → (..., d_z)."""

    @abstractmethod
    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return the realised cost: (..., d_z), (..., d_y) → (...)."""

    @abstractmethod
    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        """Return one decision for each set of scenarios: outcomes (B, K, d_y), weights (B, K) or (K,) that sum to one.

        ``time_limit_seconds`` holds for the whole call; contexts that it cuts off have status ``time_limit``.
        """

    @property
    def decision_dim(self) -> int:
        return self.outcome_dim

    @property
    def differentiable(self) -> bool:
        return True

    @property
    def relaxation(self) -> DecisionProblem:
        """The problem that learning works on: itself if decisions form a convex set, else its continuous relaxation."""
        return self

    def fixed(self, decision: Tensor) -> DecisionProblem | None:
        """Return the problem with the entries of a decision (d_z,) that are not NaN fixed, even outside their bounds.

        None for problems that are rebuilt with other bounds instead. InvalidInput if nothing satisfies the other rules.
        """
        return None

    # Bounds of costs and outcomes.

    @property
    def cost_bound(self) -> float | None:
        """An upper bound on all costs, where costs are non-negative, convex in the decision, and the decisions a convex
        set; None where none is known."""
        return None

    @property
    def cost_bound_remedy(self) -> str:
        """How a planner could make ``cost_bound`` known; follows "no bound on the cost is known:"."""
        return "problems of this kind cannot state one"

    @property
    def cost_bound_breach(self) -> str:
        """The outcomes whose costs exceed ``cost_bound``, after "the history holds"."""
        return "outcomes beyond the stated bounds"

    @property
    def cost_floor(self) -> float:
        """A lower bound on all costs."""
        return -math.inf

    @property
    def outcome_bounds(self) -> tuple[Tensor, Tensor] | None:
        """The smallest and the largest outcome, each (d_y,), that ``cost_bound`` assumes; None if it assumes none."""
        return None

    @property
    def counted_within(self) -> tuple[Tensor, Tensor] | None:
        """Bounds, each (d_y,), to which outcomes are clipped; None where no outcome is."""
        return None

    # How decisions are computed.

    @property
    def fractiles(self) -> Tensor | None:
        """The quantile (d_y,) of each outcome that is its optimal decision; None where decisions are not quantiles."""
        return None

    @property
    def decides_slowly(self) -> bool:
        """Whether every point decision takes a program of its own, too slow for many thousands."""
        return False

    @property
    def decides_alone(self) -> bool:
        """Whether the decision and cost of a row are the same, bit for bit, whatever other rows are in the batch."""
        return False

    # Rules and promises.

    def within(self, decisions: Tensor) -> Tensor:
        """Return whether decisions satisfy the certain rules: (..., d_z) → bool (...)."""
        return torch.ones(decisions.shape[:-1], dtype=torch.bool)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return whether each decision satisfies its constraints under the outcome, bool (...)."""
        within = self.within(decisions)
        return within.expand(torch.broadcast_shapes(within.shape, outcomes.shape[:-1]))

    def breaches(self, decision: Tensor) -> list[Breach]:
        """Return the certain rules that a decision (d_z,) breaks."""
        return []

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Return the price of each rule that binds a decision (d_z,) over outcomes (K, d_y) with weights (K,)."""
        return []

    def covered(self, decisions: Tensor, outcomes: Tensor) -> Tensor | None:
        """Return whether each outcome is served: (..., d_z), (..., d_y) → bool (..., d_y); None if not meaningful."""
        return None

    @property
    def promises(self) -> bool:
        """Whether decisions promise a service level, which only policies that look at scenarios can keep."""
        return False

    def missed(self, decisions: Tensor, outcomes: Tensor, weights: Tensor, sure: bool = True) -> list[str]:
        """Return for each of the decisions (B, d_z) a sentence on the promise that it misses over outcomes (B, K, d_y),
        weights (K,) or (B, K): "" where it keeps them; empty where nothing is promised. Unless ``sure``, noise is
        forgiven."""
        return []

    # Further figures.

    @property
    def has_facts(self) -> bool:
        """Whether ``facts`` returns anything."""
        return type(self).facts is not DecisionProblem.facts

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        """Return further figures of a decision (d_z,) over outcomes (K, d_y) with weights (K,), by name."""
        return {}

    def optimal(self, decisions: Tensor, outcomes: Tensor, weights: Tensor) -> Prescription:
        """Return the prescription of decisions (B, d_z) known to minimise the expected cost over outcomes (B, K, d_y),
        weights (B, K) or (K,)."""
        objective = (self.cost(decisions[:, None], outcomes) * weights).sum(-1)
        return Prescription(
            decisions, objective, [Status.OPTIMAL] * len(decisions), gaps=torch.zeros_like(objective), bounds=objective
        )


@runtime_checkable
class UncertainConstraints(Protocol):
    """A problem in which the outcome decides whether a decision satisfies its constraints."""

    @property
    def confidence(self) -> float:
        """The share of outcomes under which decisions must satisfy them."""
        ...

    def slack(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return each decision's distance from breaking them, negative if it does: (..., d_z), (..., d_y) → (...)."""
        ...


@runtime_checkable
class SecondStage(Protocol):
    """A problem with recourse: more is decided once the outcome is known."""

    @property
    def recourse_names(self) -> tuple[str, ...]: ...

    @property
    def row_names(self) -> tuple[str, ...]: ...

    def recourse_plan(self, decision: Tensor, outcomes: Tensor) -> SecondStagePlan:
        """Return a cheapest recourse after a decision (d_z,) for each of the outcomes (K, d_y)."""
        ...


def best_constant(problem: DecisionProblem, outcomes: Tensor) -> Prescription:
    """Return the constant decision of least mean cost over outcomes (n, d_y), a prescription with B = 1: plain SAA."""
    weights = torch.full((len(outcomes),), 1 / len(outcomes), dtype=outcomes.dtype)
    return problem.prescribe(outcomes[None], weights)
