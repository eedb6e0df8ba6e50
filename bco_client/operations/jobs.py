"""Jobs: made, followed until they end, and their results."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Literal, Unpack

from bco_client import tables
from bco_client.job_errors import JobCancelled, JobFailed, StillRunning
from bco_client.options import LearnOptions, PrescribeOptions
from bco_client.records import Job, LogLine, read
from bco_client.steps import News, Pause, Steps, answer, content, delete, done, get, listed, record, upload
from bco_client.steps import create as creating
from bco_client.tables import FILES, File, Table

# Looks at a job come ever less often: after so many seconds at first, and at last.
FIRST_LOOK, LAST_LOOK = 0.1, 2.0


def create(kind: str, *, idempotency_key: str | None = None, **fields: Any) -> Steps[Job]:
    """A job of any kind, with the fields that POST /v1/jobs takes for it."""
    given = {name: value for name, value in fields.items() if value is not None}
    return record(Job, creating("jobs", body={"kind": kind, **given}, key=idempotency_key))


def learn(
    problem_id: str,
    dataset_id: str,
    *,
    name: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[LearnOptions],
) -> Steps[Job]:
    """Learn a posterior for a problem from a data set. The job is queued, not waited for."""
    given: dict[str, Any] = {"problem_id": problem_id, "dataset_id": dataset_id, "name": name, **options}
    return create("learn", idempotency_key=idempotency_key, **given)


def prescribe(
    posterior_id: str,
    data: Table | File | str,
    *,
    name: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[PrescribeOptions],
) -> Steps[Job]:
    """Decide for a whole table: a frame, rows, a file, or the id of a data set. The job is queued, not waited for."""
    given: dict[str, Any] = {"name": name, **options}
    given = {option: value for option, value in given.items() if value is not None}
    path = ("posteriors", posterior_id, "batch-prescriptions")
    if isinstance(data, str):
        return record(Job, creating(*path, body={"dataset_id": data, **given}, key=idempotency_key))
    file = tables.as_file(data) if not isinstance(data, FILES) else tables.of_file(data)
    return record(Job, upload(*path, "upload", file=file, form=tables.as_form(given), key=idempotency_key))


def look(job_id: str) -> Steps[Job]:
    """State, progress and, once it has succeeded, the posterior."""
    return record(Job, get("jobs", job_id))


def list_all(
    *,
    state: str | None = None,
    kind: str | None = None,
    problem_id: str | None = None,
    dataset_id: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    limit: int | None = None,
) -> Steps[list[Job]]:
    """All jobs, newest first, or those in a state, of a kind, problem or data set, or created in a span of time."""
    only = {"state": state, "kind": kind, "problem_id": problem_id, "dataset_id": dataset_id}
    return listed(Job, "jobs", limit=limit, created_after=created_after, created_before=created_before, **only)


def wait(job: Job | str, *, timeout: float | None = None) -> Steps[Job]:
    """The job once it has succeeded, with a progress bar until then.

    Raises :class:`JobFailed` with the reason, :class:`JobCancelled`, or after ``timeout`` seconds
    :class:`StillRunning`; the job itself then goes on.
    """
    job_id = job if isinstance(job, str) else job.id
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_LOOK
    while True:
        now = yield from look(job_id)
        yield News(now)
        if now.has_ended:
            return _succeeded(now)
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise StillRunning(f"the job {job_id} is {now.state} ({now.progress:.0%}) after {timeout:g} s", now)
        yield Pause(min(pause, left))
        pause = min(LAST_LOOK, 1.5 * pause)


def _succeeded(job: Job) -> Job:
    if job.state == "failed":
        raise JobFailed(job.error or f"the job {job.id} failed", job)
    if job.state == "cancelled":
        raise JobCancelled(f"the job {job.id} was cancelled", job)
    return job


def cancel(job_id: str, *, idempotency_key: str | None = None) -> Steps[Job]:
    """Stop a queued or running job."""
    return record(Job, creating("jobs", job_id, "cancel", key=idempotency_key))


def retry(job_id: str, *, idempotency_key: str | None = None) -> Steps[Job]:
    """Run a failed or cancelled job again, with the same request."""
    return record(Job, creating("jobs", job_id, "retry", key=idempotency_key))


def log(job_id: str) -> Steps[list[LogLine]]:
    """What happened to a job, in order."""
    found = yield from answer(get("jobs", job_id, "log"))
    return [read(LogLine, line) for line in found["lines"]]


def result(job_id: str, *, to: tables.Kind = "rows") -> Steps[Any]:
    """What a job has made, as a list of dicts or as a frame."""
    format = tables.fetched_as(to)
    return tables.from_file((yield from file(job_id, format=format)), format, to)


def file(job_id: str, *, format: Literal["csv", "parquet", "xlsx"] | str = "csv") -> Steps[bytes]:
    """What a job has made, as the content of a file."""
    return content(get("jobs", job_id, "result", format=format))


def remove(job_id: str) -> Steps[None]:
    """Delete a finished job whose posterior is deleted already."""
    return done(delete("jobs", job_id))
