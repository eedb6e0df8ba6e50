"""The problem that serves a linear model: the quickest one that can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from bco_core.problems.base import DecisionProblem
from bco_core.problems.linear.description import Description, Where
from bco_core.problems.linear.general import GeneralLinear
from bco_core.problems.linear.model import Model, case_of, read_model
from bco_core.problems.linear.robust_rows import settled
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.uncertain_cost import UncertainObjective
from bco_core.solvers.linear_form import LinearProgram


class MaximizedTwoStage(TwoStageLinear):
    """A two-stage problem whose costs are minus what is maximised."""

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        return {"expected_value": -float(self.cost(decision, outcomes) @ weights.double())}


def build_linear(spec: dict[str, Any]) -> DecisionProblem:
    """The problem of a specification of kind ``linear``; what cannot be served is refused with the reason and place."""
    model = settled(read_model(spec))
    case = case_of(model)
    if case == "right_hand_side":
        kind = MaximizedTwoStage if model.maximize else TwoStageLinear
        return replace(kind.of(description_of(model)), gap=model.gap)
    return UncertainObjective.of(model) if case == "objective" else GeneralLinear.of(model)


def description_of(model: Model) -> Description:
    """A model in which outcomes change limits alone, as the fast two-stage problem takes it."""
    later = np.flatnonzero(model.later)
    alone = np.flatnonzero(~model.later)
    technology = model.technology.constant.toarray()
    at: list[Where] = [("rows", int(row)) for row in model.rows_at]
    return Description(
        LinearProgram(model.cost.constant, technology[alone], model.senses[alone], model.lower, model.upper),
        model.limits.constant[alone],
        model.integer,
        LinearProgram(
            model.recourse_cost.constant,
            model.recourse.constant[later].toarray(),
            model.senses[later],
            model.recourse_lower,
            model.recourse_upper,
        ),
        model.limits.constant[later],
        model.limits.by_outcome[later].toarray(),
        technology[later],
        model.lowest,
        model.highest,
        model.decision_names,
        model.outcome_names,
        tuple(model.row_names[row] for row in later),
        tuple(model.row_names[row] for row in alone),
        tuple(at[row] for row in alone),
        recourse_names=model.recourse_names,
        rows_at=tuple(at[row] for row in later),
        recourse_at=tuple(("recourse", index) for index in range(len(model.recourse_names))),
    )
