"""All problem kinds by name: a new kind is one file and one line here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.linear.build import build_linear
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.two_stage_spec import shipment_as_linear, two_stage_as_linear
from bco_core.problems.linear.uncertain_cost import UncertainCostLinear
from bco_core.problems.linear.validate import check_first_stage
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio, check_target
from bco_core.problems.portfolio.risk import with_risk
from bco_core.problems.ready.kinds import READY, build_ready, compile_ready
from bco_core.solvers.dual_newton import Array


class ProblemKind(NamedTuple):
    """How to build problems of a kind, which may take seconds, and whether they are ``differentiable``.

    ``bounds`` is the place of decisions' bounds in a specification: the list of decisions, and the fields of the lower
    and the upper bound. Kinds that take long to build have a method ``fixed`` instead.
    ``compiled`` writes a specification as one of kind ``linear``, where the kind is a linear model.
    ``complete`` estimates what a specification leaves to the outcomes (n, d_y) of a history, or, without one, fills in
    a placeholder so that the rest can be checked. ``reach(specification, outcomes)`` refuses targets that no decision
    could have met in this history, and returns warnings about those that are hard to meet.
    """

    build: Callable[[dict[str, Any]], DecisionProblem]
    differentiable: bool = True
    bounds: tuple[str, str, str] | None = None
    complete: Callable[[dict[str, Any], Array | None], dict[str, Any]] | None = None
    reach: Callable[[dict[str, Any], Array], list[str]] | None = None
    compiled: Callable[[dict[str, Any]], dict[str, Any]] | None = None


PROBLEMS: dict[str, ProblemKind] = {
    "newsvendor": ProblemKind(Newsvendor.from_spec, bounds=("items", "minimum_order", "maximum_order")),
    "linear": ProblemKind(build_linear, compiled=dict),
    "two_stage_linear": ProblemKind(TwoStageLinear.from_spec, compiled=two_stage_as_linear),
    "shipment": ProblemKind(TwoStageLinear.from_shipment, compiled=shipment_as_linear),
    **{kind: ProblemKind(build_ready, compiled=compile_ready) for kind in READY},
    "return_constrained_portfolio": ProblemKind(
        ReturnConstrainedPortfolio.from_spec,
        differentiable=False,
        bounds=("assets", "minimum", "maximum"),
        complete=with_risk,
        reach=check_target,
    ),
    "mean_variance_portfolio": ProblemKind(
        MeanVariancePortfolio.from_spec, bounds=("assets", "minimum", "maximum"), complete=with_risk
    ),
}


def build_problem(spec: dict[str, Any]) -> DecisionProblem:
    """Build the decision problem of a specification."""
    return _kind(spec).build(spec)


def complete_spec(spec: dict[str, Any], outcomes: Array) -> dict[str, Any]:
    """Return the specification with everything that it leaves to the outcomes (n, d_y) of a history."""
    complete = _kind(spec).complete
    return spec if complete is None else complete(spec, outcomes)


def check_problem(spec: dict[str, Any]) -> None:
    """Refuse a specification that no problem can be built from, whatever history it will be learned from."""
    kind = _kind(spec)
    problem = kind.build(spec if kind.complete is None else kind.complete(spec, None))
    if isinstance(problem, UncertainCostLinear):
        # To be quick, it is built without a search for integers.
        check_first_stage(problem.model)


def _kind(spec: dict[str, Any]) -> ProblemKind:
    kind = spec.get("kind")
    if kind not in PROBLEMS:
        raise InvalidInput(f"the problem kind must be one of {', '.join(PROBLEMS)}", ("kind",))
    return PROBLEMS[kind]


# Rules of an item that a fixed decision need not satisfy.
_OWN_RULES = ("integer", "pack_size", "minimum_service_level")


def fix_decision(problem: DecisionProblem, spec: dict[str, Any], decision: Tensor) -> DecisionProblem:
    """Return the problem of a specification with the entries of a decision (d_z,) that are not NaN fixed.

    They need not satisfy their own bounds. InvalidInput if nothing satisfies the other rules.
    """
    rest = problem.fixed(decision)
    if rest is not None:
        return rest
    bounds = PROBLEMS[spec["kind"]].bounds
    if bounds is None:
        raise InvalidInput(
            f"problems of kind {spec['kind']} do not support partial decisions; give every entry", ("kind",)
        )
    part, least, most = bounds
    pinned = [
        entry
        if math.isnan(value)
        else {name: one for name, one in entry.items() if name not in _OWN_RULES} | {least: value, most: value}
        for entry, value in zip(spec[part], decision.tolist(), strict=True)
    ]
    return build_problem(spec | {part: pinned})
