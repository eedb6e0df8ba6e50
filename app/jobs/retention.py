"""Retention: remove old logs, parts, runs, answers and prescriptions, and return their disk space.

Rows are removed a few at a time, so that no writer waits for long. Of jobs, only those that have ended lose rows; a job
itself, its posterior and its data stay until somebody deletes them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.base import now
from app.db.engine import affected_rows, get_engine, transaction
from app.db.outage import is_outage
from app.db.tables import UNFINISHED, AnswerRow, JobLogRow, JobPartRow, JobRow, PrescriptionRow
from app.http.idempotency import RETENTION
from app.ids import first_id
from app.jobs import queue
from app.settings import get_settings
from app.webhooks import service as webhooks

log = logging.getLogger(__name__)

_PRUNE_SECONDS = 3600.0
# Rows that are removed in one transaction, and pages that SQLite frees at once.
AT_ONCE = 100
_PAGES_AT_ONCE = 1_000
# A job that is still being created after this time was abandoned.
_CREATION = timedelta(hours=1)


def keep_pruning(stop: threading.Event) -> None:
    """Prune now and then, in a thread of its own, until the worker stops."""
    while not stop.wait(_PRUNE_SECONDS):
        try:
            log.info("pruned: %s", prune())
        except Exception as error:
            if not is_outage(error):
                log.exception("pruning failed; trying again")


def prune() -> dict[str, int]:
    """Remove what is older than the settings allow; return the number of removed rows by kind."""
    settings = get_settings()
    removed = {
        "abandoned jobs": _repeat(_abandoned),
        "repeatable answers": _repeat(_answers),
        "log lines": _repeat_if(settings.keep_log_days, partial(_of_ended_jobs, JobLogRow)),
        "webhook deliveries": _repeat_if(settings.keep_log_days, webhooks.forget),
        "parts": _repeat_if(settings.keep_parts_days, partial(_of_ended_jobs, JobPartRow)),
        "runs": _repeat_if(settings.keep_runs_days, queue.forget_ended),
        "prescriptions": _repeat_if(settings.keep_prescriptions_days, _prescriptions),
    }
    _free_pages()
    return removed


def _repeat_if(days: int, remove: Callable[[Session, datetime, int], int]) -> int:
    return _repeat(lambda session: remove(session, now() - timedelta(days=days), AT_ONCE)) if days else 0


def _repeat(remove: Callable[[Session], int]) -> int:
    """Remove a few rows in each transaction until none is left; return how many."""

    def steps() -> Iterator[int]:
        while True:
            with transaction() as session:
                removed = remove(session)
            if not removed:
                return
            yield removed

    return sum(steps())


def _of_ended_jobs(table: Any, session: Session, before: datetime, most: int) -> int:
    ended = JobRow.state.not_in(UNFINISHED), JobRow.finished_at < before
    has_any = sa.exists().where(table.job_id == JobRow.id)
    jobs = session.scalars(sa.select(JobRow.id).where(*ended, has_any).limit(most)).all()
    return affected_rows(session, sa.delete(table).where(table.job_id.in_(jobs))) if jobs else 0


def _answers(session: Session) -> int:
    old = sa.tuple_(AnswerRow.workspace, AnswerRow.path, AnswerRow.key)
    few = sa.select(AnswerRow.workspace, AnswerRow.path, AnswerRow.key).where(AnswerRow.created_at < now() - RETENTION)
    return affected_rows(session, sa.delete(AnswerRow).where(old.in_(few.limit(AT_ONCE))))


def _prescriptions(session: Session, before: datetime, most: int) -> int:
    """Remove old prescriptions; their outcomes go with them."""
    old = PrescriptionRow.id < first_id("pres", int(1000 * before.timestamp()))
    few = sa.select(PrescriptionRow.id).where(old).order_by(PrescriptionRow.id).limit(most)
    return affected_rows(session, sa.delete(PrescriptionRow).where(PrescriptionRow.id.in_(few)))


def _abandoned(session: Session) -> int:
    abandoned = JobRow.admission == "making", JobRow.created_at < now() - _CREATION
    few = sa.select(JobRow.id).where(*abandoned).limit(AT_ONCE)
    return affected_rows(session, sa.delete(JobRow).where(JobRow.id.in_(few)))


def _free_pages() -> None:
    """Return unused pages of SQLite to the file system; PostgreSQL does so by itself."""
    if get_engine().dialect.name != "sqlite":
        return
    before, free = math.inf, math.inf
    # A database without incremental vacuum keeps its pages for later use.
    while free == math.inf or 0 < free < before:
        with get_engine().connect() as connection:
            before = free
            # A script: a single statement would stop after its first page.
            cast("Any", connection.connection.driver_connection).executescript(
                f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})"
            )
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
