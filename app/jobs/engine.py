"""The job engine: DBOS queues and workflows in the same database as our tables.

The API only enqueues and cancels, through a client; workers run. Everything that touches DBOS's internals is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from dbos import DBOS, DBOSClient, DBOSConfig
from dbos._serialization import DBOSPortableJSONSerializer
from sqlalchemy.orm import Session

from app.db.engine import get_engine

log = logging.getLogger(__name__)

QUEUE = "learning"
WORKFLOW = "learn_posterior"
# One constant version: any worker may finish what any other began.
_VERSION = "1"
_POLL_SECONDS = 0.1


@lru_cache
def client() -> DBOSClient:
    """Enqueues inside our own transactions; payloads are JSON, never pickles."""
    return DBOSClient(system_database_engine=get_engine(), serializer=DBOSPortableJSONSerializer(), lazy=True)


def enqueue(session: Session, job_id: str) -> None:
    """Put a job in the queue when the caller's transaction commits, and only then. Its workflow has the job's id."""
    client().enqueue_in_transaction(
        session,
        {"queue_name": QUEUE, "workflow_name": WORKFLOW, "workflow_id": job_id, "app_version": _VERSION},
        job_id,
    )


def withdraw(job_id: str) -> None:
    """Take a cancelled job out of the queue."""
    client().cancel_workflow(job_id)


def forget(job_id: str) -> None:
    """Remove what the engine still knows of a deleted job."""
    client().delete_workflow(job_id)


def launch(executor_id: str, concurrency: int, run: Callable[[str], str]) -> None:
    """Make this process a worker that takes jobs from the queue and runs each with ``run(job_id)``."""
    config: DBOSConfig = {
        "name": "bco",
        "system_database_engine": get_engine(),
        "serializer": DBOSPortableJSONSerializer(),
        "application_version": _VERSION,
        "executor_id": executor_id,
        "run_migrations": False,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    step = DBOS.step(name="run")(run)

    @DBOS.workflow(name=WORKFLOW)
    def learn_posterior(job_id: str) -> str:
        return step(job_id)

    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=concurrency, polling_interval_sec=_POLL_SECONDS)


def running_executors() -> set[str]:
    """Ids of the workers that hold unfinished jobs, alive or not."""
    pending = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
    return {workflow.executor_id for workflow in pending if workflow.executor_id}


def take_over(executor_ids: set[str]) -> None:
    """Hand the unfinished jobs of dead workers back to the queue. DBOS offers this to its own cloud only."""
    if not executor_ids:
        return
    log.warning("taking over the jobs of %d silent worker(s)", len(executor_ids))
    DBOS._recover_pending_workflows(sorted(executor_ids))
