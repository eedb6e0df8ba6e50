"""Build the decision problem of a linear model: the fastest class that can serve it."""

from __future__ import annotations

from typing import Any

from bco_core.problems.base import DecisionProblem
from bco_core.problems.linear.general import GeneralLinear
from bco_core.problems.linear.model import case_of, read_model
from bco_core.problems.linear.robust_rows import with_robust_rows
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.uncertain_cost import UncertainCostLinear


def build_linear(spec: dict[str, Any]) -> DecisionProblem:
    """Build the problem of a specification of kind ``linear``; InvalidInput says what cannot be served, and where."""
    model = with_robust_rows(read_model(spec))
    case = case_of(model)
    if case == "right_hand_side":
        return TwoStageLinear.of(model)
    return UncertainCostLinear.of(model) if case == "objective" else GeneralLinear.of(model)
