"""Every problem kind by name: a new kind is one file and one line here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.linear.as_linear import linear_of_shipment, linear_of_two_stage
from bco_core.problems.linear.build import build_linear
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.uncertain_cost import UncertainObjective
from bco_core.problems.linear.validate_general import has_decision
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio, check_target
from bco_core.problems.portfolio.risk import with_risk
from bco_core.problems.ready.kinds import READY, build_ready, compiled
from bco_core.solvers.dual_newton import Array


class Kind(NamedTuple):
    """How problems of a kind are built, which may take seconds, and whether they will be ``differentiable``.

    ``bounds`` are where a specification bounds its decisions: the list of them, and what the least and the largest of
    each are called. Kinds that take long to build have a method ``fixed`` instead.
    ``compiled`` writes a specification as one of kind ``linear``, where the kind is a linear model.
    ``complete`` fills in what a specification leaves to the outcomes (n, d_y) of a history, or, without one, something
    in its place that tells whether all else is right. ``reach(specification, outcomes)`` refuses what no decision could
    have kept in this history, and says what will be hard.
    """

    build: Callable[[dict[str, Any]], DecisionProblem]
    differentiable: bool = True
    bounds: tuple[str, str, str] | None = None
    complete: Callable[[dict[str, Any], Array | None], dict[str, Any]] | None = None
    reach: Callable[[dict[str, Any], Array], list[str]] | None = None
    compiled: Callable[[dict[str, Any]], dict[str, Any]] | None = None


PROBLEMS: dict[str, Kind] = {
    "newsvendor": Kind(Newsvendor.from_spec, bounds=("items", "minimum_order", "maximum_order")),
    "linear": Kind(build_linear, compiled=dict),
    "two_stage_linear": Kind(TwoStageLinear.from_spec, compiled=linear_of_two_stage),
    "shipment": Kind(TwoStageLinear.from_shipment, compiled=linear_of_shipment),
    **{kind: Kind(build_ready, compiled=compiled) for kind in READY},
    "return_constrained_portfolio": Kind(
        ReturnConstrainedPortfolio.from_spec,
        differentiable=False,
        bounds=("assets", "minimum", "maximum"),
        complete=with_risk,
        reach=check_target,
    ),
    "mean_variance_portfolio": Kind(
        MeanVariancePortfolio.from_spec, bounds=("assets", "minimum", "maximum"), complete=with_risk
    ),
}


def build_problem(spec: dict[str, Any]) -> DecisionProblem:
    """The decision problem a plain specification describes."""
    return _kind(spec).build(spec)


def completed(spec: dict[str, Any], outcomes: Array) -> dict[str, Any]:
    """The specification with what it leaves to the outcomes (n, d_y) of a history, if it leaves anything."""
    complete = _kind(spec).complete
    return spec if complete is None else complete(spec, outcomes)


def check_problem(spec: dict[str, Any]) -> None:
    """Refuse a specification that no problem can be built from, whatever history it will be learned from."""
    kind = _kind(spec)
    problem = kind.build(spec if kind.complete is None else kind.complete(spec, None))
    if isinstance(problem, UncertainObjective):
        # Built without a search for whole numbers, to be quick.
        has_decision(problem.model)


def _kind(spec: dict[str, Any]) -> Kind:
    kind = spec.get("kind")
    if kind not in PROBLEMS:
        raise InvalidInput(f"the problem kind must be one of {', '.join(PROBLEMS)}", ("kind",))
    return PROBLEMS[kind]


# What a decision that is given has no need to keep: it is as it is.
_OWN_RULES = ("integer", "pack_size", "minimum_service_level")


def fixed(problem: DecisionProblem, spec: dict[str, Any], decision: Tensor) -> DecisionProblem:
    """The problem of a specification in which the entries of a decision (d_z,) that are not NaN are decided already.

    They need not keep their own bounds. InvalidInput where nothing is left that keeps the other rules.
    """
    own: Callable[[Tensor], DecisionProblem] | None = getattr(problem, "fixed", None)
    if own is not None:
        return own(decision)
    bounds = PROBLEMS[spec["kind"]].bounds
    if bounds is None:
        raise InvalidInput(f"problems of kind {spec['kind']} decide all or nothing; give every decision", ("kind",))
    part, least, most = bounds
    pinned = [
        entry
        if math.isnan(value)
        else {name: one for name, one in entry.items() if name not in _OWN_RULES} | {least: value, most: value}
        for entry, value in zip(spec[part], decision.tolist(), strict=True)
    ]
    return build_problem(spec | {part: pinned})
