"""All tables. Blobs are plain arrays or Parquet with their sha256; nothing is pickled."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Timestamp(sa.TypeDecorator[datetime]):
    """UTC with its time zone, also on SQLite, which keeps none."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: sa.JSON, list[Any]: sa.JSON, datetime: Timestamp}  # noqa: RUF012


# Where objects belong that are made without a key, and those from before there were keys.
DEFAULT_WORKSPACE = "default"


class Owned:
    """An object of one workspace; the keys of others do not see it."""

    id: Mapped[str] = mapped_column(primary_key=True)
    workspace: Mapped[str] = mapped_column(server_default=DEFAULT_WORKSPACE, index=True)


class KeyRow(Base):
    """An API key. Its secret is known to its owner alone: here is only the secret's sha256."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    workspace: Mapped[str]
    name: Mapped[str]
    scopes: Mapped[list[Any]]
    sha256: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=now)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class AnswerRow(Base):
    """The answer to a creating POST with an Idempotency-Key, kept for the same request sent again.

    While ``answer`` is empty the request that holds ``claim`` is being served; ``location`` is set in the same
    transaction that makes the object.
    """

    __tablename__ = "repeatable_answers"

    workspace: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    body_sha256: Mapped[str]
    claim: Mapped[str]
    claimed_at: Mapped[datetime] = mapped_column(default=now)
    location: Mapped[str | None]
    status: Mapped[int | None]
    answer: Mapped[bytes | None]
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class ProblemRow(Owned, Base):
    __tablename__ = "problems"

    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)


class DatasetRow(Owned, Base):
    """``columns`` is the profile: name, role, kind, range and categories of each column."""

    __tablename__ = "datasets"

    name: Mapped[str]
    rows: Mapped[int]
    columns: Mapped[list[Any]]
    warnings: Mapped[list[Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)


class DatasetChunkRow(Base):
    """Up to 50,000 rows as Parquet."""

    __tablename__ = "dataset_chunks"

    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    data: Mapped[bytes]


# The states of a job that has not ended.
UNFINISHED = ("queued", "running")


class JobRow(Owned, Base):
    """A piece of work. ``attempts`` only grows and fences off late results; ``revision`` grows with every change.

    ``posterior_id`` is the posterior that the job uses, not the one it makes. ``estimate_seconds`` is the time that the
    job will take. ``turn_begins``, ``turn`` and ``parts_turn`` say when it is its turn and that of its parts: see
    :mod:`app.jobs.shares`. ``admission`` is ``making`` while the job's parts are being stored, ``held`` while its
    workspace has as many running as it may, and ``admitted`` once the engine has it.
    """

    __tablename__ = "jobs"

    problem_id: Mapped[str] = mapped_column(sa.ForeignKey("problems.id"), index=True)
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id"), index=True)
    posterior_id: Mapped[str | None] = mapped_column(
        sa.ForeignKey("posteriors.id", name="fk_jobs_posterior_id", use_alter=True), index=True
    )
    kind: Mapped[str] = mapped_column(server_default="learn")
    estimate_seconds: Mapped[float | None]
    turn_begins: Mapped[int] = mapped_column(server_default="0")
    turn: Mapped[int] = mapped_column(server_default="0")
    parts_turn: Mapped[int] = mapped_column(server_default="0")
    admission: Mapped[str] = mapped_column(server_default="admitted")
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(index=True)
    run_id: Mapped[str] = mapped_column(unique=True)
    attempts: Mapped[int] = mapped_column(default=0)
    attempts_allowed: Mapped[int] = mapped_column(server_default="3")
    revision: Mapped[int] = mapped_column(server_default="0")
    progress: Mapped[float] = mapped_column(default=0.0)
    message: Mapped[str] = mapped_column(default="")
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(default=now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED


class JobLogRow(Base):
    """What happened to a job; ``seq`` is the job's revision at that moment."""

    __tablename__ = "job_log"

    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    text: Mapped[str]


class JobPartRow(Base):
    """A part of a job that any worker may compute: what to do, who has taken it, how much is done, the result."""

    __tablename__ = "job_parts"

    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    work: Mapped[int]
    done: Mapped[int] = mapped_column(default=0, server_default="0")
    attempts: Mapped[int] = mapped_column(default=0)
    taken: Mapped[str | None]
    result_sha256: Mapped[str | None]
    sha256: Mapped[str]
    data: Mapped[bytes]
    result: Mapped[bytes | None]


class PosteriorRow(Owned, Base):
    """A result; the unique job makes 'exactly one result' a fact of the database. An imported one has no job here."""

    __tablename__ = "posteriors"

    job_id: Mapped[str | None] = mapped_column(sa.ForeignKey("jobs.id"), unique=True)
    problem_id: Mapped[str] = mapped_column(sa.ForeignKey("problems.id"), index=True)
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id"), index=True)
    name: Mapped[str]
    problem: Mapped[dict[str, Any]]
    columns: Mapped[list[Any]]
    description: Mapped[dict[str, Any]]
    diagnostics: Mapped[dict[str, Any]]
    policy: Mapped[str]
    digest: Mapped[str]
    particles: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=now)


class PosteriorBlockRow(Base):
    """Rows ``first_row`` onwards of one array of a posterior, as .npy bytes."""

    __tablename__ = "posterior_blocks"

    posterior_id: Mapped[str] = mapped_column(sa.ForeignKey("posteriors.id", ondelete="CASCADE"), primary_key=True)
    array: Mapped[str] = mapped_column(primary_key=True)
    first_row: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    data: Mapped[bytes]


class WorkerRow(Base):
    """A heartbeat on the database's clock, in seconds; ``machine``, ``pid`` and ``born`` say which process it is of."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    beat_at: Mapped[float]
    machine: Mapped[str] = mapped_column(server_default="unknown")
    pid: Mapped[int] = mapped_column(server_default="0")
    born: Mapped[str] = mapped_column(server_default="unknown")
