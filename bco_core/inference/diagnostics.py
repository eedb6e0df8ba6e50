"""What is told of a posterior: how it was learned, how good it is, and a verdict that a planner can act on."""

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
# A paired difference is clear beyond so many standard errors.
CLEAR = 2.5
# Errors of neighbouring rows that correlate more than this, and by more than so many standard errors, speak of time.
ORDERED, _ORDERED_ERRORS = 0.25, 3.5
# How far the 90 % range may be from holding 90 %, and promised costs from real ones, besides what chance explains.
_COVERAGE_ROOM, _PROMISE_ROOM = 0.04, 0.15
# The largest share above the promised 95 % quantile in any stretch of time, and how many times more or less than
# promised a stretch may cost.
_TAIL_ROOM, _STRETCH_ROOM = 0.2, 2.0

# What a posterior may be the posterior of.
LOSSES = {
    COST: "models are weighed by what their decisions cost",
    "spo_plus": "models are weighed by SPO+, a convex surrogate that is never below what their decisions cost more "
    "than foresight; costs on held-out rows are true ones, whole numbers relaxed",
    SQUARED_ERROR: "models are weighed by the squared error of their predictions, because every decision takes a "
    "program of its own; costs on held-out rows are true ones, whole numbers relaxed",
}


@dataclass(frozen=True)
class Quality:
    """``ok``, ``warn`` or ``bad``, with the reason in a sentence."""

    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What every method tells. ``method`` is what was asked for, ``inference`` what it came to, and why.

    ``kl_weight`` and its reciprocal are the temperature that was used, for costs divided by ``cost_scale``.
    ``loss`` names what it is the posterior of, and ``loss_meaning`` says what that is.
    ``promise_warning`` says what is wrong with promised costs and ranges; it is empty where they held.
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
        """Plain numbers, texts, lists and dicts; what is not finite is null."""
        own = {"certificate": self.certificate.to_json(), "loss_meaning": self.loss_meaning}
        told: dict[str, Any] = finite_json(asdict(self) | own)
        return told

    @property
    def loss_meaning(self) -> str:
        return LOSSES[self.loss]


def finite_json(value: Any) -> Any:
    """The same without numbers that JSON has not."""
    if isinstance(value, dict):
        return {name: finite_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def held_out_fields(found: HeldOutReport) -> dict[str, Any]:
    """The fields of :class:`Diagnostics` that held-out rows fill."""
    return {
        "held_out_rows": found.rows,
        "held_out_cost": found.cost,
        "policies": found.policies,
        "judged_cost": found.judged,
        "constant_decision_cost": found.constant,
        "gain_over_constant": found.over_constant,
        "regression_cost": found.regression,
        "gain_over_regression": found.over_regression,
        "promise": found.promise,
        "promise_warning": promise_warning(found.calibration, found.promise),
        "calibration": found.calibration,
        "carriers": found.carriers,
        "order": found.order,
        "forward_cost": None if found.forward is None else found.forward.cost,
        "forward": found.forward,
    }


def judge_held_out(rows: int, found: HeldOutReport) -> Quality | None:
    """What speaks against decisions from so many rows of history, worst news first; None if nothing does."""
    gain, beside = found.over_constant, found.over_regression
    if gain.mean > gain.standard_error:
        return Quality("bad", "on held-out rows these decisions cost more than one constant decision for all contexts")
    if rows < FEW_ROWS:
        return Quality("warn", f"only {rows} rows of history: decisions may change much with a little more data")
    if gain.mean >= -CLEAR * gain.standard_error:
        return Quality("warn", "on held-out rows these decisions are no clear gain over one constant decision")
    if beside is not None and beside.mean > CLEAR * beside.standard_error:
        return Quality("warn", "on held-out rows plain regression with its residuals decides better than this")
    if found.beyond:
        return Quality(
            "warn",
            f"{found.beyond} of {rows} rows have an outcome beyond the bounds that the problem states, and count as "
            "the bound: what they really cost is not in these figures",
        )
    if found.forward is not None:
        aged = _drift_warning(found.forward)
        if aged:
            return Quality("warn", aged)
    elif found.order > max(ORDERED, _ORDERED_ERRORS / math.sqrt(rows)):
        return Quality(
            "warn",
            f"errors of neighbouring rows go together (correlation {found.order:.2f}): these rows look ordered in "
            "time, and what they promise may not hold later; judge forward",
        )
    said = promise_warning(found.calibration, found.promise)
    return Quality("warn", said) if said else None


def _drift_warning(forward: ForwardReport) -> str:
    """What is wrong with promises in time, in a sentence; nothing if they held in every stretch of it."""
    if forward.worst_tail > _TAIL_ROOM:
        return (
            f"the outcome drifts: in one stretch of time {forward.worst_tail:.0%} of the costs were above the 95 % "
            "quantile that was promised"
        )
    for line in forward.stretches:
        realised, promised = line["cost"]["mean"], line["promised"]
        if not 1 / _STRETCH_ROOM <= promised / max(realised, 1e-300) <= _STRETCH_ROOM:
            return f"the outcome drifts: one stretch of time cost {realised:.3g} where {promised:.3g} was promised"
    return ""


def promise_warning(calibration: Calibration, promise: Promise) -> str:
    """What is wrong with the promises, in a sentence; nothing if they held."""
    covered, rows = calibration.coverage["0.9"], calibration.rows
    if abs(covered - 0.9) > _COVERAGE_ROOM + 2 * math.sqrt(0.09 / max(rows, 1)):
        return f"promised ranges are off: the 90 % range of an outcome held {covered:.0%} of the held-out ones"
    if abs(promise.ratio - 1) > _PROMISE_ROOM + 2 * promise.standard_error:
        return f"promised costs are off: on held-out rows they were {promise.ratio:.2f} times what decisions cost"
    return ""
