"""A client of BCO Service: send history and a problem, get back decisions that hedge.

    from bco_client import Client

    with Client("http://127.0.0.1:8000") as client:
        learned = client.learn(history, problem)      # a pandas or polars frame, or a list of dicts
        decisions = learned.prescribe(mornings)       # the same kind of table, a row for each row

It needs httpx alone. ``AsyncClient`` has the same methods, awaited.
"""

from bco_client.aio import AsyncClient, AsyncLearned
from bco_client.client import Client, Learned
from bco_client.errors import (
    ApiError,
    BadSignature,
    BcoError,
    Conflict,
    Forbidden,
    InvalidInput,
    Mistake,
    NotFound,
    ServerError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)
from bco_client.job_errors import JobCancelled, JobEnded, JobFailed, StillRunning
from bco_client.records import (
    Alias,
    AliasMove,
    Alternative,
    Backtest,
    Column,
    Dataset,
    Drift,
    Evaluated,
    Evaluation,
    Job,
    LoggedCall,
    LogLine,
    Posterior,
    Prescribed,
    Prescription,
    Problem,
    Recorded,
    Reproduced,
)
from bco_client.steps import Patience
from bco_client.webhooks import verify_webhook

__all__ = [
    "Alias",
    "AliasMove",
    "Alternative",
    "ApiError",
    "AsyncClient",
    "AsyncLearned",
    "Backtest",
    "BadSignature",
    "BcoError",
    "Client",
    "Column",
    "Conflict",
    "Dataset",
    "Drift",
    "Evaluated",
    "Evaluation",
    "Forbidden",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "Learned",
    "LogLine",
    "LoggedCall",
    "Mistake",
    "NotFound",
    "Patience",
    "Posterior",
    "Prescribed",
    "Prescription",
    "Problem",
    "Recorded",
    "Reproduced",
    "ServerError",
    "StillRunning",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "verify_webhook",
]
