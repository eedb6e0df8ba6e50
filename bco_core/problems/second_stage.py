"""What a problem may have besides the protocol: something to do once the outcome is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class SecondStagePlan:
    """What is done once outcomes are known, for K of them: ``amounts`` (K, d_x), their ``costs`` (K,), what each row
    leaves unused, ``slack`` (K, rows), and what a unit costs, (K, d_x), or (d_x,) where no outcome has a say in it.
    NaN where nothing mends the decision."""

    amounts: Tensor
    costs: Tensor
    slack: Tensor
    unit_costs: Tensor


@runtime_checkable
class SecondStage(Protocol):
    """What a problem has besides, if there is something to do once the outcome is known."""

    @property
    def recourse_names(self) -> tuple[str, ...]: ...

    @property
    def row_names(self) -> tuple[str, ...]: ...

    def recourse_plan(self, decision: Tensor, outcomes: Tensor) -> SecondStagePlan:
        """The least-cost plan after a decision (d_z,) for each of the outcomes (K, d_y); one of them if several are."""
        ...
