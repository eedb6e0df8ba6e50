"""The template of the solver processes, and what they can do: ``python -P -m app.commands.solver MEGABYTES``.

Its standard input is the socket by which the API asks for processes.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from time import monotonic

import orjson
import torch

from app import logs, metrics
from app.log import outcomes
from app.log.schemas import NewOutcome
from app.prescriptions import context, drift
from app.prescriptions import evaluate as evaluate_module
from app.prescriptions.cache import PosteriorCache
from app.prescriptions.evaluate_schemas import EvaluateRequest
from app.prescriptions.schemas import PrescribeRequest
from app.settings import get_settings
from app.solving.child import Task, serve_orders
from app.solving.wire import Header
from bco_core import deadline
from bco_core.problems.base import Risk
from bco_core.problems.registry import build_problem
from bco_core.problems.registry import check_problem as try_problem

_CACHE_BYTES = 128_000_000


@cache
def _posteriors() -> PosteriorCache:
    """Loaded posteriors of one solver process."""
    return PosteriorCache(_CACHE_BYTES)


def prescribe(body: bytes) -> tuple[Header, bytes]:
    """Answer a prescribe request, in bytes of JSON, and count how its decisions were found."""
    asked = orjson.loads(body)
    request = PrescribeRequest.model_validate(asked["request"])
    (answer,) = context.prescribe(
        _posteriors(),
        asked["workspace"],
        asked["posterior_id"],
        [request],
        asked["began"],
        revision=asked["revision"],
    )
    if isinstance(answer, Exception):
        raise answer
    return {"found": metrics.counted_prescriptions()}, answer


def evaluate(body: bytes) -> tuple[Header, bytes]:
    """Answer an evaluate request likewise."""
    asked = orjson.loads(body)
    request = EvaluateRequest.model_validate(asked["request"])
    whose = asked["workspace"], asked["posterior_id"]
    answer = evaluate_module.answer(_posteriors(), *whose, request, asked["began"], revision=asked["revision"])
    return {"found": metrics.counted_prescriptions()}, answer


def check_problem(body: bytes) -> tuple[Header, bytes]:
    """Refuse a specification that no problem can be built from."""
    asked = orjson.loads(body)
    with deadline.until(asked["until"]):
        try_problem(asked["spec"])
    return {}, b""


def judge_drift(body: bytes) -> tuple[Header, bytes]:
    """Compare what later rows cost with what was promised."""
    asked = orjson.loads(body)
    found = drift.judge_rows(
        _posteriors(), asked["workspace"], asked["posterior_id"], asked["dataset_id"], asked["until"]
    )
    return {}, found.model_dump_json().encode()


def record_outcome(body: bytes) -> tuple[Header, bytes]:
    """Cost what happened after a prescription, and record it."""
    asked = orjson.loads(body)
    request, seconds = NewOutcome.model_validate(asked["request"]), asked["until"] - monotonic()
    return {}, outcomes.record(
        _posteriors(), asked["workspace"], asked["prescription_id"], request, asked["by"], seconds
    )


TASKS: dict[str, Task] = {
    "prescribe": prescribe,
    "evaluate": evaluate,
    "check_problem": check_problem,
    "drift": judge_drift,
    "outcome": record_outcome,
}


def _warm_up() -> None:
    """Load compiled kernels, or compile them once, before the first fork."""
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    shipment = {
        "kind": "shipment",
        "sources": [{"name": "a", "order_cost": 5, "emergency_cost": 90}],
        "destinations": ["b", "c"],
        "transport_costs": [[1, 2]],
    }
    linear = {
        "kind": "linear",
        "decisions": [{"name": "z", "cost": 1, "maximum": 9}],
        "recourse": [{"name": "x", "cost": {"outcomes": {"price": 1}}}],
        "outcomes": [{"name": "demand", "minimum": 0}, {"name": "price", "minimum": 0}],
        "rows": [
            {"decisions": {"z": 1}, "recourse": {"x": 1}, "sense": ">=", "limit": {"outcomes": {"demand": 1}}},
        ],
    }
    portfolio = {"assets": [{"name": "a"}, {"name": "b"}], "covariance": [[1.0, 0.0], [0.0, 1.0]], "target_return": 0.1}
    for spec in (shipment, linear, portfolio | {"kind": "return_constrained_portfolio"}):
        problem = build_problem(spec)
        outcomes = torch.tensor([[[3.0, 4.0], [4.0, 4.0], [5.0, 3.0]]], dtype=torch.float64)
        found = problem.prescribe(outcomes, weights, Risk())
        problem.cost(problem.decide(outcomes), outcomes + found.decisions.sum())


def main() -> None:
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    logs.configure(get_settings())
    torch.set_num_threads(1)
    _warm_up()
    serve_orders(control, TASKS, int(sys.argv[1]))


if __name__ == "__main__":
    main()
