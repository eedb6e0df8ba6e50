"""Kinds of job: how each is requested, checked, split into parts, computed and joined.

    request → check → JobDraft ─────────────────────────────► a queued job
    job → read → inputs → split → parts → work → results → join → store(session), in the transaction of success

The engine (:mod:`app.jobs.compute`) does everything else, the same for every kind: it offers parts to all workers,
waits, resumes, cancels, reports, and keeps exactly one result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from app.db.tables import JobRow
from app.http.schemas import StrictModel
from app.jobs import queue
from bco_core.progress import Progress

Checkpoint = Callable[[bytes], None]
# Writes a job's result and may return a line for its log.
Store = Callable[[Session], str | None]


class JobPart(NamedTuple):
    """A part of a job: its amount of work, in any unit, and its input."""

    work: int
    data: bytes


@dataclass(frozen=True)
class JobDraft:
    """A checked request: the fields of its job.

    ``estimate_seconds`` is the estimated time on one core: workspaces share workers by it, and small jobs go first.
    ``parts`` are those that exist from the start, and ``warnings`` are the first lines of the job's log.
    """

    name: str
    problem_id: str
    spec: dict[str, Any]
    dataset_id: str | None = None
    posterior_id: str | None = None
    estimate_seconds: float = 0.0
    parts: Iterable[JobPart] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class ResultFormat:
    """A format of a job's result, written piece by piece from the results of its parts."""

    media_type: str
    write: Callable[[Sequence[bytes]], Iterator[bytes]]


@dataclass(frozen=True)
class JobKind:
    """A kind of job. ``inputs`` is what its ``read`` returns; no other function reads the database.

    - ``queue``: ``queue.COMPUTING`` gives the job a process of its own; in ``queue.WAITING`` it only waits for its
      parts, so it has neither ``split`` nor ``join``.
    - ``request``: the model of POST /v1/jobs for this value of the field ``kind``.
    - ``check(workspace, request)`` refuses a request that cannot be run.
    - ``read(job)`` is called once a process, and again after a database outage.
    - ``split(inputs, progress)`` may return no parts: ``join`` then does all the work.
    - ``work(inputs, data, progress, checkpoint)`` computes a part anywhere; ``checkpoint`` replaces the part's data by
      what is left to do.
    - ``join(inputs, results, progress)`` returns what to write in the transaction of success.
    - ``makes_posterior``: the posterior of job_X is post_X. Other jobs name the posterior that they use, if any.
    - ``keeps_parts``: parts outlive the job's end, because they are its result or exist from the start.
    - ``unit``: unit of the parts' work in messages; without one, messages count parts.
    - ``files``: formats of GET /v1/jobs/{id}/result by name.
    """

    name: str
    queue: str
    request: type[StrictModel]
    check: Callable[[str, Any], JobDraft]
    read: Callable[[JobRow], Any]
    work: Callable[[Any, bytes, Progress, Checkpoint], bytes]
    split: Callable[[Any, Progress], list[JobPart]] | None = None
    join: Callable[[Any, Sequence[bytes], Progress], Store] | None = None
    makes_posterior: bool = False
    keeps_parts: bool = False
    unit: str = ""
    files: Mapping[str, ResultFormat] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether the job only waits for its parts and has no process of its own."""
        return self.queue == queue.WAITING
