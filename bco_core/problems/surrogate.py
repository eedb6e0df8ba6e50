"""Surrogate losses: losses to learn on where the cost of decisions has no useful gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from bco_core.problems.base import DecisionProblem
from bco_core.solvers.linear_form import Array

# The loss of problems that learn on the cost of decisions itself.
COST = "cost"
# The loss of problems where every decision takes a program: they learn predictions, and decisions hedge.
SQUARED_ERROR = "squared_error"


@dataclass
class Hindsight:
    """Facts about outcomes that a surrogate computes once: the cost of each outcome's best decision.

    ``slopes`` (..., d_y) are its derivatives by the outcomes, ``levels`` (...) its value at zero outcomes.
    """

    slopes: Tensor
    levels: Tensor

    def rows(self, index: Tensor) -> Hindsight:
        """Return the facts of some rows, by number."""
        return Hindsight(self.slopes[index], self.levels[index])


@runtime_checkable
class Surrogate(Protocol):
    """A problem with a surrogate loss: its decisions jump as predictions move, so their cost has no useful gradient."""

    @property
    def loss(self) -> str:
        """Name of the surrogate."""
        ...

    def hindsight(self, outcomes: Tensor) -> Hindsight:
        """Compute the facts about outcomes (..., d_y)."""
        ...

    def surrogate(self, predictions: Tensor, outcomes: Tensor, hindsight: Hindsight | None = None) -> Tensor:
        """Return the loss (...) of predictions (..., d_y) for outcomes (..., d_y), an upper bound on the regret."""
        ...

    def loss_and_slope(self, predictions: Array, outcomes: Array, hindsight: Hindsight) -> tuple[Array, Array]:
        """Return the loss (n,) and its derivative (n, d_y) by the prediction, for rows (n, d_y), without torch."""
        ...


def loss_of(problem: DecisionProblem) -> str:
    """Return the name of the loss to learn on: the problem's surrogate, or the cost of decisions."""
    return problem.loss if isinstance(problem, Surrogate) else COST
