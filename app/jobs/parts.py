"""The parts of a job, which any worker may compute.

A part's ``data`` is its input; a checkpoint replaces it by what is left to do, so that the next worker continues from
there. Its result is written by one guarded UPDATE; a second one, by a worker that was believed dead, changes nothing.
All parts of a job are queued for other workers. The job's own process, if it has one, takes those that no worker has
started (``taken`` is then "job", otherwise "part").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import sqlalchemy as sa

from app.db.blobs import checksum, verify
from app.db.engine import affected_rows, transaction
from app.db.outage import insist
from app.db.tables import UNFINISHED, JobPartRow, JobRow
from app.jobs import fair_queue, queue, service
from app.jobs.create import add_parts, batched
from app.jobs.kinds.base import JobPart
from bco_core.progress import Figures

# Parts that are queued in one transaction.
QUEUED_AT_ONCE = 16
# Parts whose figures are reported.
SHOWN = 8


def offer(job_id: str, attempt: int, new_parts: Sequence[JobPart] = ()) -> bool:
    """Store new parts and queue all that have no result yet; return False if the attempt is no longer wanted.

    Parts that are queued already are left alone.
    """
    with transaction() as session:
        # Locked, so that no other attempt begins in between and stores the same parts.
        job = session.get(JobRow, job_id, with_for_update=True)
        if job is None or (job.state, job.attempts) != ("running", attempt):
            return False
        add_parts(session, job_id, new_parts)
        missing = sa.select(JobPartRow.seq).where(JobPartRow.job_id == job.id, JobPartRow.result_sha256.is_(None))
        waiting = list(session.scalars(missing.order_by(JobPartRow.seq)))
        turns = fair_queue.part_turns(session, job, len(waiting))
    # A few at a time: other writers wait for the end of each transaction.
    for group in batched(zip(waiting, turns, strict=True), QUEUED_AT_ONCE):
        with transaction() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            if job is None or (job.state, job.attempts) != ("running", attempt):
                return False
            for seq, turn in group:
                queue.enqueue_part(session, job, seq, turn)
    return True


class Amounts(NamedTuple):
    """Number of parts and of finished parts; amount of work and of finished work."""

    parts: int
    finished: int
    work: int
    done: int

    @property
    def share(self) -> float:
        """Share of the work that is done."""
        return self.done / max(1, self.work)


def amounts(job_id: str) -> Amounts:
    part, sum_of = JobPartRow, sa.func.sum
    query = sa.select(sa.func.count(), sa.func.count(part.result_sha256), sum_of(part.work), sum_of(part.done))
    with transaction() as session:
        return Amounts(*(int(value or 0) for value in session.execute(query.where(part.job_id == job_id)).one()))


def start(job_id: str, seq: int) -> bool:
    """Take a part for a worker; return False if there is nothing to do. Fail the job if it killed too many workers."""
    with transaction() as session:
        free = sa.or_(JobPartRow.taken.is_(None), JobPartRow.taken == "part")
        taken = _open(job_id, seq).where(free).values(taken="part", attempts=JobPartRow.attempts + 1)
        if not affected_rows(session, taken):
            return False
        query = sa.select(JobPartRow.attempts).where(JobPartRow.job_id == job_id, JobPartRow.seq == seq)
        if session.scalars(query).one() > service.MAX_ATTEMPTS:
            reason = (
                f"part {seq}: its worker died {service.MAX_ATTEMPTS} times; it may need more memory than is available"
            )
            service.finish(session, job_id, "failed", error=reason, message="failed")
            return False
    return True


def take(job_id: str) -> int | None:
    """Take a part that no worker has started for the job's own process; return None if there is none."""
    with transaction() as session:
        free = sa.select(JobPartRow.seq).where(
            JobPartRow.job_id == job_id, JobPartRow.result_sha256.is_(None), JobPartRow.taken.is_(None)
        )
        for seq in session.scalars(free.order_by(JobPartRow.seq)).all():
            if affected_rows(session, _open(job_id, seq).where(JobPartRow.taken.is_(None)).values(taken="job")):
                return int(seq)
    return None


def release(job_id: str) -> None:
    """Free the parts that an earlier process of the job had taken: there is only one at a time."""
    with transaction() as session:
        held = sa.update(JobPartRow).where(JobPartRow.job_id == job_id, JobPartRow.taken == "job")
        affected_rows(session, held.values(taken=None))


def is_wanted(job_id: str, seq: int) -> bool:
    with transaction() as session:
        return bool(session.scalar(sa.select(sa.exists().where(*_is_open(job_id, seq)))))


def hand_back(job_id: str, seq: int) -> None:
    """Leave a part to other workers because this one stops; the attempt does not count."""
    with transaction() as session:
        affected_rows(session, _open(job_id, seq).values(attempts=JobPartRow.attempts - 1))


def read(job_id: str, seq: int) -> bytes | None:
    """Return a part's data; None if the job has no such part (any more)."""
    with transaction() as session:
        part = session.get(JobPartRow, (job_id, seq))
    return None if part is None else verify(part.data, part.sha256)


def report(job_id: str, seq: int, share: float, figures: Figures | None = None) -> None:
    """Store how much of a part is done, and its latest figures."""
    values: dict[str, Any] = {"done": sa.cast(share * JobPartRow.work, sa.Integer)}
    if figures is not None:
        values["figures"] = figures
    with transaction() as session:
        affected_rows(session, _open(job_id, seq).values(values))


def figures(job_id: str) -> list[Figures]:
    """Return the latest figures of a job's first parts that have any."""
    part = JobPartRow
    query = sa.select(part.seq, part.figures).where(part.job_id == job_id, part.figures.is_not(None))
    with transaction() as session:
        rows = session.execute(query.order_by(part.seq).limit(SHOWN)).all()
    return [{"part": seq + 1} | (values or {}) for seq, values in rows]


def save(job_id: str, seq: int, data: bytes) -> None:
    """Replace a part's data by what is left to do."""
    with transaction() as session:
        affected_rows(session, _open(job_id, seq).values(data=data, sha256=checksum(data)))


def store(job_id: str, seq: int, result: bytes) -> None:
    with transaction() as session:
        values = {"result": result, "result_sha256": checksum(result), "done": JobPartRow.work}
        affected_rows(session, _open(job_id, seq).values(values))


class Results(Sequence[bytes]):
    """The results of a job's parts in order, each read on access: together they may not fit into memory.

    With ``patient``, reading waits for the end of a database outage.
    """

    def __init__(self, job_id: str, patient: bool = False) -> None:
        self._job_id, self._count, self._patient = job_id, amounts(job_id).parts, patient

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[seq] for seq in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return insist(lambda: self._read(index)) if self._patient else self._read(index)

    def _read(self, seq: int) -> bytes:
        with transaction() as session:
            part = session.get_one(JobPartRow, (self._job_id, seq))
        if part.result is None or part.result_sha256 is None:
            raise RuntimeError(f"{self._job_id} has no result of its part {seq}")
        return verify(part.result, part.result_sha256)


def fail(job_id: str, reason: str) -> None:
    """Fail a job because one of its parts failed."""
    with transaction() as session:
        service.finish(session, job_id, "failed", error=reason, message="failed")


def _open(job_id: str, seq: int) -> sa.Update:
    return sa.update(JobPartRow).where(*_is_open(job_id, seq))


def _is_open(job_id: str, seq: int) -> tuple[Any, ...]:
    """Return conditions: the part has no result yet and its job still wants one."""
    wanted = sa.exists().where(JobRow.id == job_id, JobRow.state.in_(UNFINISHED))
    return JobPartRow.job_id == job_id, JobPartRow.seq == seq, JobPartRow.result_sha256.is_(None), wanted
