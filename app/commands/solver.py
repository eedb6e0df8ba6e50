"""The template of the solver processes, and their tasks: ``python -P -m app.commands.solver MEGABYTES``.

Its standard input is the socket over which the API orders processes.
"""

from __future__ import annotations

import math
import sys
from functools import cache, partial
from time import monotonic

import orjson
import torch

from app import logs, metrics
from app.child_processes import Header, Task, serve_forks
from app.log import outcomes
from app.log.schemas import NewOutcome
from app.prescriptions import drift
from app.prescriptions.cache import PosteriorCache
from app.prescriptions.context import PrescribeCall
from app.prescriptions.service import CALL_KINDS
from app.settings import get_settings
from app.solving import describe_error
from bco_core import deadlines
from bco_core.compile_kernels import LEAST_VARIANCE, RANDOM_COSTS, SHIPMENT, decide
from bco_core.problems.base import Risk
from bco_core.problems.registry import check_problem as try_problem

_CACHE_BYTES = 128_000_000


@cache
def _posteriors() -> PosteriorCache:
    """Loaded posteriors of one solver process."""
    return PosteriorCache(_CACHE_BYTES)


def answer_call(kind: str, body: bytes) -> tuple[Header, bytes]:
    """Answer a prescribe or evaluate call, in bytes of JSON; the header counts how its decisions were found."""
    call = PrescribeCall.from_json(body, CALL_KINDS[kind].model)
    (answer,) = CALL_KINDS[kind].answer(_posteriors(), [call], math.inf)
    if isinstance(answer, Exception):
        raise answer
    return {"found": metrics.counted_prescriptions(), "digest": answer.digest}, answer.content


def check_problem(body: bytes) -> tuple[Header, bytes]:
    """Refuse a specification that no problem can be built from."""
    fields = orjson.loads(body)
    with deadlines.until(fields["deadline"]):
        try_problem(fields["spec"])
    return {}, b""


def judge_drift(body: bytes) -> tuple[Header, bytes]:
    """Compare the costs of later rows with the predicted ones."""
    fields = orjson.loads(body)
    judgement = drift.judge_rows(
        _posteriors(),
        fields["workspace"],
        fields["posterior_id"],
        fields["dataset_id"],
        fields["deadline"],
    )
    return {}, judgement.model_dump_json().encode()


def record_outcome(body: bytes) -> tuple[Header, bytes]:
    """Record the outcome of a prescription and its costs."""
    fields = orjson.loads(body)
    request, seconds = NewOutcome.model_validate(fields["request"]), fields["deadline"] - monotonic()
    return {}, outcomes.record(
        _posteriors(), fields["workspace"], fields["prescription_id"], request, fields["by"], seconds
    )


TASKS: dict[str, Task] = {
    "prescribe": partial(answer_call, "prescribe"),
    "evaluate": partial(answer_call, "evaluate"),
    "check_problem": check_problem,
    "drift": judge_drift,
    "outcome": record_outcome,
}


def warm_up() -> None:
    """Load compiled kernels, or compile them once, before the first fork."""
    for spec in (SHIPMENT, RANDOM_COSTS, LEAST_VARIANCE):
        decide(spec, Risk())


def main() -> None:
    logs.configure(get_settings())
    torch.set_num_threads(1)
    warm_up()
    serve_forks(TASKS, describe_error, int(sys.argv[1]))


if __name__ == "__main__":
    main()
