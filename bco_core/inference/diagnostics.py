"""Diagnostics of a posterior: how it was learned, how good it is, and a verdict that a planner can act on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from bco_core.calibration import Calibration
from bco_core.certificates import Certificate
from bco_core.estimates import Estimate
from bco_core.inference.forward import ForwardReport
from bco_core.inference.held_out import HeldOutReport, Promise
from bco_core.problems.surrogate import COST, SQUARED_ERROR
from bco_core.select import Table

FEW_ROWS = 50
# Standard errors beyond which a paired difference is clear.
CLEAR = 2.5
# A larger correlation of neighbouring rows' errors, also in standard errors, suggests rows that are ordered in time.
ORDERED, _ORDERED_ERRORS = 0.25, 3.5
# Tolerance, beyond chance, of the 90 % range's coverage and of the ratio of predicted to realised costs.
_COVERAGE_ROOM, _PROMISE_ROOM = 0.04, 0.15
# The largest accepted share above the predicted 95 % quantile in any stretch of time, and the largest accepted factor
# between predicted and realised costs of a stretch.
_TAIL_ROOM, _STRETCH_ROOM = 0.2, 2.0

# The losses that a posterior may be learned with.
LOSSES = {
    COST: "models are weighted by the cost of their decisions",
    "spo_plus": "models are weighted by SPO+, a convex upper bound on the regret of their decisions against perfect "
    "foresight; costs on held-out rows are true costs, with integers relaxed",
    SQUARED_ERROR: "models are weighted by the squared error of their predictions, because every decision solves a "
    "program of its own; costs on held-out rows are true costs, with integers relaxed",
}


@dataclass(frozen=True)
class Quality:
    """A verdict, ``ok``, ``warn`` or ``bad``, with the reason in a sentence."""

    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Diagnostics of every method.

    ``method`` is the requested method, ``inference`` the one used, ``inference_reason`` the reason. ``kl_weight`` and
    its reciprocal ``inverse_temperature`` are for costs divided by ``cost_scale``. ``loss`` names the loss and
    ``loss_meaning`` explains it. ``promise_warning`` says what is wrong with predicted costs and ranges; it is empty
    where they held.
    """

    quality: str
    reason: str
    policy: str
    kl_weight: float
    inverse_temperature: float
    cost_scale: float
    certificate: Certificate
    candidates: Table
    held_out_rows: int
    held_out_cost: dict[str, Estimate]
    policies: Table
    judged_cost: Estimate
    constant_decision_cost: Estimate
    gain_over_constant: Estimate
    regression_cost: Estimate | None
    gain_over_regression: Estimate | None
    promise: Promise
    promise_warning: str
    calibration: Calibration
    carriers: Table
    order: float
    forward_cost: dict[str, Estimate] | None = None
    forward: ForwardReport | None = None
    loss: str = COST
    method: str = ""
    inference: str = ""
    inference_reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers, texts, lists and dicts; numbers that are not finite become null."""
        own = {"certificate": self.certificate.to_json(), "loss_meaning": self.loss_meaning}
        fields: dict[str, Any] = finite_json(asdict(self) | own)
        return fields

    @property
    def loss_meaning(self) -> str:
        return LOSSES[self.loss]


def finite_json(value: Any) -> Any:
    """Return the value with NaN and infinity replaced by None, which JSON can represent."""
    if isinstance(value, dict):
        return {name: finite_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def held_out_fields(report: HeldOutReport) -> dict[str, Any]:
    """Return the fields of :class:`Diagnostics` that come from held-out rows."""
    return {
        "held_out_rows": report.rows,
        "held_out_cost": report.cost,
        "policies": report.policies,
        "judged_cost": report.judged,
        "constant_decision_cost": report.constant,
        "gain_over_constant": report.over_constant,
        "regression_cost": report.regression,
        "gain_over_regression": report.over_regression,
        "promise": report.promise,
        "promise_warning": promise_warning(report.calibration, report.promise),
        "calibration": report.calibration,
        "carriers": report.carriers,
        "order": report.order,
        "forward_cost": None if report.forward is None else report.forward.cost,
        "forward": report.forward,
    }


def judge_held_out(rows: int, report: HeldOutReport) -> Quality | None:
    """Return the worst doubt about decisions learned from ``rows`` rows of history; None if there is none."""
    gain, over_regression = report.over_constant, report.over_regression
    if gain.mean > gain.standard_error:
        return Quality("bad", "on held-out rows these decisions cost more than one constant decision for all contexts")
    if rows < FEW_ROWS:
        return Quality("warn", f"only {rows} rows of history: decisions may change much with a little more data")
    if gain.mean >= -CLEAR * gain.standard_error:
        return Quality("warn", "on held-out rows these decisions do not clearly beat one constant decision")
    if over_regression is not None and over_regression.mean > CLEAR * over_regression.standard_error:
        return Quality("warn", "on held-out rows plain regression with its residuals makes cheaper decisions")
    if report.beyond:
        return Quality(
            "warn",
            f"{report.beyond} of {rows} rows have an outcome beyond the bounds that the problem states, and count as "
            "the bound: their true cost is not in these figures",
        )
    if report.forward is not None:
        warning = _drift_warning(report.forward)
        if warning:
            return Quality("warn", warning)
    elif report.order > max(ORDERED, _ORDERED_ERRORS / math.sqrt(rows)):
        return Quality(
            "warn",
            f"errors of neighbouring rows are correlated ({report.order:.2f}): these rows look ordered in time, and "
            "figures may not hold later; give the rows a time, so that they are judged forward",
        )
    warning = promise_warning(report.calibration, report.promise)
    return Quality("warn", warning) if warning else None


def _drift_warning(forward: ForwardReport) -> str:
    """Return a sentence on predicted costs that did not hold in some stretch of time; "" if all held."""
    if forward.worst_tail > _TAIL_ROOM:
        return (
            f"the outcome drifts: in one stretch of time {forward.worst_tail:.0%} of the costs were above the "
            "promised 95 % quantile"
        )
    for line in forward.stretches:
        realised, promised = line["cost"]["mean"], line["promised"]
        if not 1 / _STRETCH_ROOM <= promised / max(realised, 1e-300) <= _STRETCH_ROOM:
            return f"the outcome drifts: one stretch of time cost {realised:.3g} where {promised:.3g} was promised"
    return ""


def promise_warning(calibration: Calibration, promise: Promise) -> str:
    """Return a sentence on predicted ranges or costs that did not hold; "" if they held."""
    covered, rows = calibration.coverage["0.9"], calibration.rows
    if abs(covered - 0.9) > _COVERAGE_ROOM + 2 * math.sqrt(0.09 / max(rows, 1)):
        return f"predicted ranges are miscalibrated: the 90 % range covered {covered:.0%} of held-out outcomes"
    if abs(promise.ratio - 1) > _PROMISE_ROOM + 2 * promise.standard_error:
        return f"predicted costs are miscalibrated: {promise.ratio:.2f} times the realised costs on held-out rows"
    return ""
