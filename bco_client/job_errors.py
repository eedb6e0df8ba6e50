"""Exceptions of jobs that end without a result. They carry the job's last state."""

from __future__ import annotations

from bco_client.errors import ClientError
from bco_client.records import JobRecord


class JobError(ClientError):
    """A job ended without a result; ``job`` is its last state."""

    def __init__(self, sentence: str, job: JobRecord) -> None:
        self.job = job
        super().__init__(sentence, job)

    def __str__(self) -> str:
        return str(self.args[0])


class JobFailed(JobError):
    """A job failed; the text says why."""


class JobCancelled(JobError):
    """A job was cancelled."""


class StillRunning(JobError, TimeoutError):
    """A job had not ended when the timeout expired; it continues."""
