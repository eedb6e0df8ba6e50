"""How waiting for a job ends without a result."""

from __future__ import annotations

from bco_client.errors import BcoError
from bco_client.records import Job


class JobEnded(BcoError):
    """A job ended without a result; ``job`` is its last state."""

    def __init__(self, sentence: str, job: Job) -> None:
        self.job = job
        super().__init__(sentence, job)

    def __str__(self) -> str:
        return str(self.args[0])


class JobFailed(JobEnded):
    """A job failed; the text says why."""


class JobCancelled(JobEnded):
    """A job was cancelled."""


class StillRunning(JobEnded, TimeoutError):
    """A job had not ended when the time to wait for it was over; it goes on."""
