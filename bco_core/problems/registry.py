"""Every problem kind by name: a new kind is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.linear.problem import TwoStageLinear
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio

PROBLEMS: dict[str, Callable[[dict[str, Any]], DecisionProblem]] = {
    "newsvendor": Newsvendor.from_spec,
    "two_stage_linear": TwoStageLinear.from_spec,
    "shipment": TwoStageLinear.from_shipment,
    "return_constrained_portfolio": ReturnConstrainedPortfolio.from_spec,
    "mean_variance_portfolio": MeanVariancePortfolio.from_spec,
}


def build_problem(spec: dict[str, Any]) -> DecisionProblem:
    """The decision problem a plain specification describes."""
    kind = spec.get("kind")
    if kind not in PROBLEMS:
        raise InvalidInput(f"the problem kind must be one of {', '.join(PROBLEMS)}", ("kind",))
    return PROBLEMS[kind](spec)
