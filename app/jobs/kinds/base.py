"""What a kind of job is: how it is asked for, checked, split into parts, worked on and joined.

    request → check → JobDraft ─────────────────────────────► a queued job
    job → read → given → split → parts → work → results → join → store(session), in the transaction of success

The engine (:mod:`app.jobs.compute`) does everything else, alike for every kind: it offers parts to all workers, waits,
resumes, cancels, reports, and keeps exactly one result.
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
# Writes a job's result, and may say something for its log.
Store = Callable[[Session], str | None]


class JobPart(NamedTuple):
    """A part of a job: its amount of work, in any unit, and what there is to do."""

    work: int
    data: bytes


@dataclass(frozen=True)
class JobDraft:
    """A request that has been checked: what its job's row will hold.

    ``seconds`` is about how long the job will take on one core: workspaces share workers by it, and jobs that take
    little go before others. ``parts`` are those that are cut when the job is made, and ``warnings`` open the job's log.
    """

    name: str
    problem_id: str
    spec: dict[str, Any]
    dataset_id: str | None = None
    posterior_id: str | None = None
    seconds: float = 0.0
    parts: Iterable[JobPart] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class ResultFormat:
    """A format of a job's result, written piece by piece from the results of its parts."""

    media_type: str
    write: Callable[[Sequence[bytes]], Iterator[bytes]]


@dataclass(frozen=True)
class JobKind:
    """A kind of job. ``given`` is whatever its ``read`` returns; no other function touches the database.

    - ``queue``: ``queue.COMPUTING`` gives the job a process of its own; in ``queue.WAITING`` it only waits for its
      parts, so it has neither ``split`` nor ``join``.
    - ``request``: what POST /v1/jobs takes, told from other kinds by its field ``kind``.
    - ``check(workspace, request)`` refuses what cannot be run.
    - ``read(job)`` is called once a process, and again while the database is out.
    - ``split(given, progress)`` may return no parts: ``join`` then does all the work.
    - ``work(given, data, progress, checkpoint)`` computes a part anywhere; ``checkpoint`` replaces the part's data by
      what is left to do.
    - ``join(given, results, progress)`` returns what to write in the transaction of success.
    - ``makes_posterior``: the posterior of job_X is post_X. Other jobs name the posterior that they use, if any.
    - ``keeps_parts``: parts outlive the job's end, because they are its result or were cut when the job was made.
    - ``unit``: what the parts' work is counted in, in messages; without one, messages count parts.
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
        """Whether the job only waits for its parts, without a process of its own."""
        return self.queue == queue.WAITING
