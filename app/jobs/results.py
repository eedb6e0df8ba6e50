"""The file that a job has made, in pieces: neither memory nor a connection is held for all of it."""

from __future__ import annotations

from collections.abc import Iterator

from app.db.tables import JobRow
from app.http.errors import ConflictError, InvalidRequest
from app.ids import sibling_id
from app.jobs import parts, service
from app.jobs.kinds import KINDS

MEDIA_TYPES = sorted({file.media_type for kind in KINDS.values() for file in kind.files.values()})


def find_results(workspace: str, job_id: str, format: str | None = None) -> tuple[JobRow, parts.Results]:
    """A job that has succeeded and the results of its parts; refused if it makes no file, or none in this format."""
    job = service.get(workspace, job_id)
    kind = KINDS[job.kind]
    if not kind.files:
        instead = f"; its result is the posterior {sibling_id(job.id, 'post')}" if kind.makes_posterior else ""
        raise ConflictError(f"this job makes no file{instead}")
    if format is not None and format not in kind.files:
        raise InvalidRequest.at(("query", "format"), f"this job's file is {' or '.join(kind.files)}")
    if job.state != "succeeded":
        raise ConflictError(f"the job is {job.state} ({job.progress:.0%}); the result is there once it has succeeded")
    found = parts.Results(job_id)
    if not found:
        raise ConflictError("the result was kept for BCO_KEEP_PARTS_DAYS and is gone; run the same batch as a new job")
    return job, found


def file(workspace: str, job_id: str, format: str) -> tuple[str, Iterator[bytes]]:
    """The media type and the pieces of a job's result in a format."""
    job, found = find_results(workspace, job_id, format)
    chosen = KINDS[job.kind].files[format]
    # Damage is told before the file begins: later on, the connection could only be cut.
    for _ in found:
        pass
    return chosen.media_type, chosen.write(found)
