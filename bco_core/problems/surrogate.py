"""What a problem may have besides the protocol: a loss to learn on where the cost of decisions has no gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from bco_core.problems.base import DecisionProblem
from bco_core.solvers.linear_form import Array

# The loss of problems that are learned on what decisions really cost.
COST = "cost"
# That of problems whose decisions take programs of their own: predictions are learned, and decisions hedge.
SQUARED_ERROR = "squared_error"


@dataclass
class Hindsight:
    """What a surrogate needs to know of outcomes once, however often it meets them.

    ``slopes`` (..., d_y) and ``levels`` (...) are by how much the cost of each outcome's best decision grows with the
    outcomes, and what it is at zero.
    """

    slopes: Tensor
    levels: Tensor

    def rows(self, index: Tensor) -> Hindsight:
        """That of some of the rows, by number."""
        return Hindsight(self.slopes[index], self.levels[index])


@runtime_checkable
class Surrogate(Protocol):
    """Decisions that jump as predictions move leave their cost without a useful gradient; this loss has one."""

    @property
    def loss(self) -> str:
        """The surrogate's name."""
        ...

    def hindsight(self, outcomes: Tensor) -> Hindsight:
        """What to know of outcomes (..., d_y) beforehand."""
        ...

    def surrogate(self, predictions: Tensor, outcomes: Tensor, hindsight: Hindsight | None = None) -> Tensor:
        """The loss of predicting (..., d_y) where outcomes (..., d_y) happen, no less than the regret: (...)."""
        ...

    def loss_and_slope(self, predictions: Array, outcomes: Array, hindsight: Hindsight) -> tuple[Array, Array]:
        """The loss (n,) and its derivative (n, d_y) by the prediction, of rows (n, d_y): the same without torch."""
        ...


def loss_of(problem: DecisionProblem) -> str:
    """The name of the loss that gradients are taken of: the problem's surrogate, or what decisions cost."""
    return problem.loss if isinstance(problem, Surrogate) else COST
