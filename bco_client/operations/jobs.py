"""Jobs: create them, wait for them, read their results."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Literal, Unpack

from bco_client import tables
from bco_client.job_errors import JobCancelled, JobFailed, StillRunning
from bco_client.options import LearnArguments, PrescribeArguments
from bco_client.records import JobLogRecord, JobRecord, read
from bco_client.steps import JobProgress, Pause, Steps, answer, content, delete, done, get, listed, record, upload
from bco_client.steps import create as creating
from bco_client.tables import FILES, File, Table

# Seconds between polls of a job, which grow from the first to the second.
FIRST_POLL, LAST_POLL = 0.1, 2.0


def create(kind: str, *, idempotency_key: str | None = None, **fields: Any) -> Steps[JobRecord]:
    """Create a job of any kind, with the fields that POST /v1/jobs takes for it."""
    given = {name: value for name, value in fields.items() if value is not None}
    return record(JobRecord, creating("jobs", body={"kind": kind, **given}, key=idempotency_key))


def learn(
    problem_id: str,
    dataset_id: str,
    *,
    name: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[LearnArguments],
) -> Steps[JobRecord]:
    """Learn a posterior for a problem from a data set. Return the queued job without waiting."""
    given: dict[str, Any] = {"problem_id": problem_id, "dataset_id": dataset_id, "name": name, **options}
    return create("learn", idempotency_key=idempotency_key, **given)


def prescribe(
    posterior_id: str,
    data: Table | File | str,
    *,
    name: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[PrescribeArguments],
) -> Steps[JobRecord]:
    """Decide for a whole table: a frame, rows, a file, or the id of a data set. Return the queued job at once."""
    given: dict[str, Any] = {"name": name, **options}
    given = {option: value for option, value in given.items() if value is not None}
    path = ("posteriors", posterior_id, "batch-prescriptions")
    if isinstance(data, str):
        return record(JobRecord, creating(*path, body={"dataset_id": data, **given}, key=idempotency_key))
    file = tables.as_file(data) if not isinstance(data, FILES) else tables.of_file(data)
    return record(JobRecord, upload(*path, "upload", file=file, form=tables.as_form(given), key=idempotency_key))


def read_job(job_id: str) -> Steps[JobRecord]:
    """Return a job: its state, its progress and, after success, the id of its posterior."""
    return record(JobRecord, get("jobs", job_id))


def list_all(
    *,
    state: str | None = None,
    kind: str | None = None,
    problem_id: str | None = None,
    dataset_id: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    limit: int | None = None,
) -> Steps[list[JobRecord]]:
    """List jobs, newest first; arguments filter by state, kind, problem, data set and time of creation."""
    only = {"state": state, "kind": kind, "problem_id": problem_id, "dataset_id": dataset_id}
    return listed(JobRecord, "jobs", limit=limit, created_after=created_after, created_before=created_before, **only)


def wait(job: JobRecord | str, *, timeout: float | None = None) -> Steps[JobRecord]:
    """Wait until a job has succeeded, with a progress bar, and return it.

    Raise :class:`JobFailed` with the reason, :class:`JobCancelled`, or after ``timeout`` seconds
    :class:`StillRunning`; the job itself continues.
    """
    job_id = job if isinstance(job, str) else job.id
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_POLL
    while True:
        now = yield from read_job(job_id)
        yield JobProgress(now)
        if now.has_ended:
            return _succeeded(now)
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise StillRunning(f"the job {job_id} is {now.state} ({now.progress:.0%}) after {timeout:g} s", now)
        yield Pause(min(pause, left))
        pause = min(LAST_POLL, 1.5 * pause)


def _succeeded(job: JobRecord) -> JobRecord:
    if job.state == "failed":
        raise JobFailed(job.error or f"the job {job.id} failed", job)
    if job.state == "cancelled":
        raise JobCancelled(f"the job {job.id} was cancelled", job)
    return job


def cancel(job_id: str, *, idempotency_key: str | None = None) -> Steps[JobRecord]:
    """Stop a queued or running job."""
    return record(JobRecord, creating("jobs", job_id, "cancel", key=idempotency_key))


def retry(job_id: str, *, idempotency_key: str | None = None) -> Steps[JobRecord]:
    """Run a failed or cancelled job again, with the same request."""
    return record(JobRecord, creating("jobs", job_id, "retry", key=idempotency_key))


def log(job_id: str) -> Steps[list[JobLogRecord]]:
    """Return the lines of a job's log, in order."""
    log = yield from answer(get("jobs", job_id, "log"))
    return [read(JobLogRecord, line) for line in log["lines"]]


def result(job_id: str, *, to: tables.Kind = "rows") -> Steps[Any]:
    """Return the result of a job as a list of dicts or as a frame."""
    format = tables.fetched_as(to)
    return tables.from_file((yield from file(job_id, format=format)), format, to)


def file(job_id: str, *, format: Literal["csv", "parquet", "xlsx"] | str = "csv") -> Steps[bytes]:
    """Return the result of a job as the content of a file."""
    return content(get("jobs", job_id, "result", format=format))


def remove(job_id: str) -> Steps[None]:
    """Delete a finished job whose posterior has been deleted."""
    return done(delete("jobs", job_id))
