"""The job engine: DBOS queues and workflows in the same database as our tables.

The API only enqueues and cancels, through a client; workers run jobs. All uses of DBOS's internals are here.

Three queues. A computing job occupies a process of its worker. A waiting job only waits for its parts; it has a
queue of its own, so that it never blocks its parts. Parts belong to jobs of either queue.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache

import psycopg
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig
from dbos import _dbos as engine
from dbos._core import execute_dequeued_workflow
from dbos._dbos import _get_dbos_instance
from dbos._queue import Queue
from dbos._serialization import DBOSPortableJSONSerializer
from dbos._utils import INTERNAL_QUEUE_NAME, GlobalParams, generate_uuid
from sqlalchemy.orm import Session

from app.db.engine import database_clock, get_engine
from app.db.outage import is_outage
from app.db.tables import JobRow

log = logging.getLogger(__name__)

# The names of queues and workflows are stored with every queued job, so they stay what they were first.
COMPUTING = "learning"
WAITING = "batches"
PARTS = "parts"
WORKFLOWS = {COMPUTING: "learn_posterior", WAITING: "prescribe_batch", PARTS: "compute_part"}
# One constant version: any worker may finish what any other began.
_VERSION = "1"
# How often a worker looks into its queues: while it is busy, and while no notification wakes it.
_BUSY_SECONDS, _IDLE_SECONDS = 0.25, 5.0
_WAITING_PLACES = 16
_ACTIVE = ("ENQUEUED", "PENDING", "DELAYED")
_ENDED = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_PAYLOADS = ("workflow_input", "workflow_output", "operation_outputs")


@lru_cache
def client() -> DBOSClient:
    """Return a client that enqueues inside our own transactions, as JSON; callers handle outages."""
    return DBOSClient(
        system_database_engine=get_engine(),
        serializer=DBOSPortableJSONSerializer(),
        lazy=True,
        retry_connection_errors=False,
    )


def enqueue(session: Session, queue: str, job: JobRow) -> None:
    """Queue a job when the caller's transaction commits; its workflow id is the job's run id."""
    _enqueue(session, queue, job.run_id, [job.id], job.turn)


def enqueue_part(session: Session, job: JobRow, seq: int, turn: int) -> None:
    """Queue a part of a job; leave one alone that is queued already or has run in this run of the job."""
    _enqueue(session, PARTS, f"{job.run_id}.part{seq}", [job.id, seq], turn)


def _enqueue(session: Session, queue: str, workflow_id: str, arguments: list[object], turn: int) -> None:
    client().enqueue_in_transaction(
        session,
        {
            "queue_name": queue,
            "workflow_name": WORKFLOWS[queue],
            "workflow_id": workflow_id,
            "app_version": _VERSION,
            "priority": max(1, turn),
        },
        *arguments,
    )
    _notify(session)


def withdraw(session: Session, run_id: str) -> None:
    """Remove an ended job and its unstarted parts from their queues."""
    workflows = _workflows(session)
    moment = sa.cast(1000 * database_clock(session), sa.BigInteger)
    waiting = workflows.c.status == "ENQUEUED", workflows.c.queue_name.in_(WORKFLOWS)
    its_own = sa.or_(workflows.c.workflow_uuid == run_id, workflows.c.workflow_uuid.startswith(f"{run_id}.part"))
    gone = {"status": "CANCELLED", "queue_name": None, "updated_at": moment, "completed_at": moment}
    session.execute(sa.update(workflows).where(*waiting, its_own).values(gone))


def next_part(session: Session) -> int:
    """Return the turn of the next queued part; 0 if none is queued."""
    workflows = _workflows(session)
    queued = workflows.c.status == "ENQUEUED", workflows.c.queue_name == PARTS
    return int(session.scalar(sa.select(sa.func.min(workflows.c.priority)).where(*queued)) or 0)


def _workflows(session: Session) -> sa.TableClause:
    """Return DBOS's table of queued and running workflows."""
    columns = "workflow_uuid", "status", "queue_name", "priority", "updated_at", "completed_at"
    return _engine_table(session, "workflow_status", *columns)


def _engine_table(session: Session, name: str, *columns: str) -> sa.TableClause:
    schema = None if session.get_bind().dialect.name == "sqlite" else "dbos"
    return sa.table(name, *map(sa.column, columns), schema=schema)


def forget(job_id: str) -> None:
    """Remove a job's runs and their parts from the engine; their ids all begin with the job's."""
    known = client().list_workflows(workflow_id_prefix=job_id, load_input=False, load_output=False)
    client().delete_workflows([workflow.workflow_id for workflow in known])


def forget_ended(session: Session, before: datetime, most: int) -> int:
    """Remove at most ``most`` runs and parts of runs that ended before a time; return how many."""
    workflows = _workflows(session)
    ended = workflows.c.status.in_(_ENDED), workflows.c.updated_at < 1000 * before.timestamp()
    few = session.scalars(sa.select(workflows.c.workflow_uuid).where(*ended).limit(most)).all()
    # Inputs and outputs of runs are in tables without a foreign key to the runs.
    for table in (*(_engine_table(session, name, "workflow_uuid") for name in _PAYLOADS), workflows) if few else ():
        session.execute(sa.delete(table).where(table.c.workflow_uuid.in_(few)))
    return len(few)


def launch(executor_id: str, concurrency: int, work: dict[str, Callable[..., str]], stop: threading.Event) -> None:
    """Make this process a worker that runs the jobs of each queue with the queue's function."""
    # DBOS polls every queue many times a second. We look when something was queued.
    vars(engine)["queue_thread"] = _do_not_poll
    config: DBOSConfig = {
        "name": "bco",
        "system_database_engine": get_engine(),
        "serializer": DBOSPortableJSONSerializer(),
        "application_version": _VERSION,
        "executor_id": executor_id,
        "run_migrations": False,
        "log_level": "ERROR",
        # Messages between workflows, of which there are none.
        "notification_listener_polling_interval_sec": 3600.0,
    }
    DBOS(config=config)
    for queue, run in work.items():
        # We count attempts ourselves: DBOS must not give up a job that workers hand back.
        DBOS.workflow(name=WORKFLOWS[queue], max_recovery_attempts=None)(run)
    DBOS.launch()
    # DBOS would wait up to a minute between tries at a lost database; we put back what it drops instead.
    _get_dbos_instance()._sys_db._retry_connection_errors = False
    places = {name: _WAITING_PLACES if name == WAITING else concurrency for name in work}
    queues = [DBOS.register_queue(name, worker_concurrency=places[name]) for name in work]
    threading.Thread(target=_serve, args=(queues, stop), name="queues", daemon=True).start()


def _do_not_poll(stop_event: threading.Event, dbos: DBOS) -> None:
    stop_event.wait()


def _serve(queues: list[Queue], stop: threading.Event) -> None:
    """Start queued workflows while there is capacity, until the worker stops."""
    active = _get_dbos_instance()._active_workflows_set
    with _waiter(get_engine().url, stop) as wait:
        while not stop.is_set():
            for queue in queues:
                try:
                    _take(queue)
                except Exception as error:
                    if not is_outage(error):
                        log.exception("cannot take anything from the queue %s; trying again", queue.name)
            if active.activeList():
                stop.wait(_BUSY_SECONDS)
            else:
                wait(_IDLE_SECONDS)


def _take(queue: Queue) -> None:
    dbos, token = _get_dbos_instance(), generate_uuid()
    running = dbos._active_workflows_set.count_for_queue(queue.name)
    taken, _ = dbos._sys_db.start_queued_workflows(
        queue, GlobalParams.executor_id, GlobalParams.app_version, None, running, owner_xid=token
    )
    for status in dbos._sys_db.get_workflow_statuses(taken) if taken else ():
        execute_dequeued_workflow(dbos, status, token)


def running_executors() -> set[str]:
    """Return the ids of the workers that hold unfinished jobs, alive or not."""
    pending = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
    return {workflow.executor_id for workflow in pending if workflow.executor_id}


def take_over(executor_ids: set[str]) -> None:
    """Return the unfinished jobs of dead workers to the queue. DBOS offers this to its own cloud only."""
    if not executor_ids:
        return
    log.warning("taking over the jobs of %d silent worker(s)", len(executor_ids))
    DBOS._recover_pending_workflows(sorted(executor_ids))


def lost_after_outage(executor_id: str) -> set[str]:
    """Return the workflows that the database assigns to this worker but that it does not run, after an outage."""
    pending = DBOS.list_workflows(status="PENDING", executor_id=executor_id, load_input=False, load_output=False)
    return {workflow.workflow_id for workflow in pending} - set(_get_dbos_instance()._active_workflows_set.activeList())


def put_back(executor_id: str, workflow_ids: set[str]) -> None:
    """Return dropped workflows to their queue."""
    for workflow_id in workflow_ids:
        log.warning("%s was dropped in an outage; back to the queue", workflow_id)
        _get_dbos_instance()._sys_db.reenqueue_for_recovery(workflow_id, [executor_id], INTERNAL_QUEUE_NAME)


def without_workflow(session: Session, states: Iterable[str]) -> list[tuple[str, str]]:
    """Return ids and runs of jobs in these states that the engine has finished or does not know."""
    workflows = _workflows(session)
    active = sa.exists().where(workflows.c.workflow_uuid == JobRow.run_id, workflows.c.status.in_(_ACTIVE))
    lost = sa.select(JobRow.id, JobRow.run_id).where(JobRow.state.in_(states), JobRow.admission == "admitted", ~active)
    return [(job_id, run_id) for job_id, run_id in session.execute(lost)]


# notifications: idle workers wait for one instead of polling the queue; if one is lost, they look again after a while

_CHANNEL = "bco_queued"
# People who wait for a job notice tenths of a second.
_POLL_SECONDS = 0.1
_RECONNECT_SECONDS = 2.0


def _notify(session: Session) -> None:
    """Wake idle workers once the transaction is committed; on SQLite they notice by polling."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_notify(_CHANNEL, "")))


@contextmanager
def _waiter(url: sa.URL, stop: threading.Event) -> Iterator[Callable[[float], None]]:
    """Yield a function that waits for some seconds, or until something may have been queued or the worker stops."""
    wait = _SqlitePoller(url, stop) if url.get_backend_name() == "sqlite" else _PostgresListener(url, stop)
    try:
        yield wait
    finally:
        wait.close()


class _SqlitePoller:
    """Waits until SQLite's data version changes: it grows whenever another connection writes, and costs no table."""

    def __init__(self, url: sa.URL, stop: threading.Event) -> None:
        self._path, self._stop = url.database or "", stop
        self._connection: sqlite3.Connection | None = None
        self._seen = -1

    def __call__(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stop.wait(_POLL_SECONDS):
            version = self._version()
            if version != self._seen:
                self._seen = version
                return

    def _version(self) -> int:
        try:
            if self._connection is None:
                # mode=rw: never create an empty file where there is none.
                uri = f"file:{self._path}?mode=rw"
                self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            return int(version)
        except sqlite3.Error:
            self.close()
            return self._seen

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class _PostgresListener:
    """Waits for the notification that PostgreSQL sends when something is queued."""

    def __init__(self, url: sa.URL, stop: threading.Event) -> None:
        self._address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._stop = stop
        self._connection: psycopg.Connection | None = None

    def __call__(self, seconds: float) -> None:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._address, autocommit=True, connect_timeout=5)
                self._connection.execute(f"LISTEN {_CHANNEL}")
                # Earlier notifications are not repeated, so look once.
                return
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                return
        except psycopg.Error as error:
            log.debug("cannot listen for jobs: %s", error)
            self.close()
            self._stop.wait(min(seconds, _RECONNECT_SECONDS))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
