"""A client of BCO Service: send history and a problem, get back decisions that hedge.

    from bco_client import Client

    with Client("http://127.0.0.1:8000") as client:
        learned = client.learn(history, problem)      # a pandas or polars frame, or a list of dicts
        decisions = learned.prescribe(mornings)       # the same kind of table, a row for each row

It needs httpx alone. ``AsyncClient`` has the same methods, awaited.
"""

from bco_client.aio import AsyncClient, AsyncRemotePosterior
from bco_client.client import Client, RemotePosterior
from bco_client.errors import (
    ApiError,
    BadSignature,
    ClientError,
    Conflict,
    Forbidden,
    NotFound,
    RequestMistake,
    ServerError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnprocessableRequest,
    Unreachable,
)
from bco_client.job_errors import JobCancelled, JobError, JobFailed, StillRunning
from bco_client.records import (
    AliasMoveRecord,
    AliasRecord,
    AlternativeRecord,
    BacktestResult,
    CallRecord,
    ColumnRecord,
    ContextPrescription,
    DatasetRecord,
    DriftRecord,
    EvaluateReply,
    EvaluationRecord,
    JobLogRecord,
    JobRecord,
    OutcomeRecord,
    PosteriorRecord,
    PrescribeReply,
    ProblemRecord,
    ReproduceReply,
)
from bco_client.retries import RetryOptions
from bco_client.webhooks import verify_webhook

__all__ = [
    "AliasMoveRecord",
    "AliasRecord",
    "AlternativeRecord",
    "ApiError",
    "AsyncClient",
    "AsyncRemotePosterior",
    "BacktestResult",
    "BadSignature",
    "CallRecord",
    "Client",
    "ClientError",
    "ColumnRecord",
    "Conflict",
    "ContextPrescription",
    "DatasetRecord",
    "DriftRecord",
    "EvaluateReply",
    "EvaluationRecord",
    "Forbidden",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobLogRecord",
    "JobRecord",
    "NotFound",
    "OutcomeRecord",
    "PosteriorRecord",
    "PrescribeReply",
    "ProblemRecord",
    "RemotePosterior",
    "ReproduceReply",
    "RequestMistake",
    "RetryOptions",
    "ServerError",
    "StillRunning",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnprocessableRequest",
    "Unreachable",
    "verify_webhook",
]
