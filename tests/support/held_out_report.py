"""A held-out report without any warning; tests change one field at a time."""

from __future__ import annotations

from bco_core.calibration import Calibration
from bco_core.estimates import Estimate
from bco_core.inference.held_out import HeldOutReport, Promise

CALIBRATION = Calibration(
    rows=300,
    carry="shift",
    bandwidth=None,
    pit=[0.1] * 10,
    coverage={"0.5": 0.5, "0.8": 0.8, "0.9": 0.9, "0.95": 0.95},
    score=0.1,
    constant_score=0.5,
)
PROMISE = Promise(Estimate(10.0, 0.1), Estimate(10.0, 0.5), 1.0, 0.05)
HELD_OUT = HeldOutReport(
    rows=400,
    cost={},
    policies=[],
    judged=Estimate(10.0, 0.5),
    constant=Estimate(20.0, 1.0),
    over_constant=Estimate(-10.0, 1.0),
    regression=Estimate(10.5, 0.5),
    over_regression=Estimate(-0.5, 0.5),
    promise=PROMISE,
    calibration=CALIBRATION,
    carriers=[],
    order=0.0,
    beyond=0,
)
