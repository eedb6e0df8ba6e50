"""All tables. Blobs are plain arrays or Parquet with their sha256; nothing is pickled."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.db.base import Timestamp, WorkspaceObject, now
from app.db.former_names import TranslatedJson, job_spec, job_summary


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: sa.JSON, list[Any]: sa.JSON, datetime: Timestamp}  # noqa: RUF012


class KeyRow(Base):
    """An API key; only the sha256 of its secret is stored."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    workspace: Mapped[str]
    name: Mapped[str]
    scopes: Mapped[list[Any]]
    sha256: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=now)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class SessionRow(Base):
    """A browser session of a key. The browser keeps a random token; only its sha256 is stored."""

    __tablename__ = "sessions"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(sa.ForeignKey("keys.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(default=now)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class AnswerRow(Base):
    """The answer to a creating POST with an Idempotency-Key, for repetitions of the same request.

    While ``answer`` is empty the request that holds ``claim`` is being served; ``location`` is set in the same
    transaction that creates the object.
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


class ProblemRow(WorkspaceObject, Base):
    __tablename__ = "problems"

    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)


class DatasetRow(WorkspaceObject, Base):
    """``columns`` is the profile: name, role, kind, range and categories of each column.

    Appended rows make a new ``revision``; ``digest`` is the sha256 of its content (:mod:`app.datasets.service`).
    Decisions are made ``lead`` periods of the time column ahead. ``handling`` says how missing values and rare or
    new categories are handled.
    """

    __tablename__ = "datasets"

    name: Mapped[str]
    rows: Mapped[int]
    columns: Mapped[list[Any]]
    warnings: Mapped[list[Any]]
    lead: Mapped[int] = mapped_column(server_default="1")
    revision: Mapped[int] = mapped_column(server_default="1")
    digest: Mapped[str] = mapped_column(server_default="unknown")
    handling: Mapped[dict[str, Any]] = mapped_column(nullable=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class DatasetChunkRow(Base):
    """Up to 50,000 rows as Parquet. A chunk belongs to the revision that added it and to all later ones."""

    __tablename__ = "dataset_chunks"

    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(server_default="1")
    sha256: Mapped[str]
    data: Mapped[bytes]


# The states of a job that has not ended.
UNFINISHED = ("queued", "running")


class JobRow(WorkspaceObject, Base):
    """A job. ``attempts`` only grows and fences off late results; ``revision`` grows with every change.

    ``posterior_id`` is the posterior that the job uses, not the one it creates. ``estimate_seconds`` is its estimated
    time. ``turn_begins``, ``turn`` and ``parts_turn`` order jobs and parts in their queues: see
    :mod:`app.jobs.fair_queue`. ``admission`` is ``making`` while the job's parts are being stored, ``held`` while its
    workspace is at its limit of running jobs, and ``admitted`` once the engine has it. ``summary`` is the result of the
    job in a few numbers.
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
    spec: Mapped[dict[str, Any]] = mapped_column(TranslatedJson(job_spec))
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
    summary: Mapped[dict[str, Any] | None] = mapped_column(TranslatedJson(job_summary))

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED


class JobLogRow(Base):
    """A line of a job's log; ``seq`` is the job's revision at that moment. ``figures`` are some of those since the
    previous line."""

    __tablename__ = "job_log"

    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    text: Mapped[str]
    figures: Mapped[list[Any] | None] = mapped_column(sa.JSON(none_as_null=True))


class JobPartRow(Base):
    """A part of a job that any worker may compute: its input, who has it, its progress, figures and result."""

    __tablename__ = "job_parts"

    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    work: Mapped[int]
    done: Mapped[int] = mapped_column(default=0, server_default="0")
    figures: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    attempts: Mapped[int] = mapped_column(default=0)
    taken: Mapped[str | None]
    result_sha256: Mapped[str | None]
    sha256: Mapped[str]
    data: Mapped[bytes]
    result: Mapped[bytes | None]


class PosteriorRow(WorkspaceObject, Base):
    """A posterior; the unique job guarantees exactly one result. An imported posterior has no job here.

    ``recipe`` describes the features of time and series (:meth:`app.datasets.encoding.ContextEncoding.of`), and the
    revision of the data set that was learned from; null where the data set has neither.
    """

    __tablename__ = "posteriors"

    job_id: Mapped[str | None] = mapped_column(sa.ForeignKey("jobs.id"), unique=True)
    problem_id: Mapped[str] = mapped_column(sa.ForeignKey("problems.id"), index=True)
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id"), index=True)
    name: Mapped[str]
    problem: Mapped[dict[str, Any]]
    columns: Mapped[list[Any]]
    recipe: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
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


class AliasRow(WorkspaceObject, Base):
    """A name for a posterior. ``revision`` grows with every move; ``moved_by`` is a key or a job."""

    __tablename__ = "aliases"
    __table_args__ = (sa.UniqueConstraint("workspace", "name", name="uq_aliases_workspace_name"),)

    name: Mapped[str]
    posterior_id: Mapped[str] = mapped_column(sa.ForeignKey("posteriors.id"), index=True)
    revision: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=now)
    moved_at: Mapped[datetime]
    moved_by: Mapped[str | None]


class AliasMoveRow(Base):
    """The creation, move or deletion of an alias. It outlives alias and posteriors, so it has no foreign keys."""

    __tablename__ = "alias_moves"

    workspace: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(default=now)
    by: Mapped[str | None]
    from_posterior_id: Mapped[str | None]
    to_posterior_id: Mapped[str | None]
    reason: Mapped[str]


class WebhookRow(WorkspaceObject, Base):
    """An address that gets some events of its workspace."""

    __tablename__ = "webhooks"

    url: Mapped[str]
    events: Mapped[list[Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)


class WebhookSecretRow(Base):
    """The secret that signs a workspace's webhooks. The former secret signs too for a while."""

    __tablename__ = "webhook_secrets"

    workspace: Mapped[str] = mapped_column(primary_key=True)
    secret: Mapped[str]
    former: Mapped[str | None]
    former_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=now)


class DeliveryRow(WorkspaceObject, Base):
    """An event for one webhook: waiting until ``due_at``, delivered or failed."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (sa.Index("ix_webhook_deliveries_state_due_at", "state", "due_at"),)

    webhook_id: Mapped[str] = mapped_column(sa.ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[str | None]
    event: Mapped[str]
    body: Mapped[bytes]
    state: Mapped[str]
    attempts: Mapped[int]
    due_at: Mapped[datetime]
    status: Mapped[int | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(default=now)


class PrescriptionRow(WorkspaceObject, Base):
    """A prescribe or evaluate call: request and answer are JSON, compressed by zlib.

    The id sorts by time, so an interval of time is an interval of ids. It outlives its posterior, so it has no foreign
    key. ``recorded`` is the number of its ``contexts`` with an outcome.
    """

    __tablename__ = "prescriptions"
    __table_args__ = (
        sa.Index("ix_prescriptions_workspace_id", "workspace", "id"),
        sa.Index("ix_prescriptions_posterior_id_id", "posterior_id", "id"),
    )

    # Lists are pages of one workspace by id: an index of both serves better than one of workspaces.
    workspace: Mapped[str] = mapped_column()
    kind: Mapped[str]
    posterior_id: Mapped[str]
    digest: Mapped[str]
    key_id: Mapped[str | None]
    created_at: Mapped[datetime]
    contexts: Mapped[int]
    recorded: Mapped[int] = mapped_column(default=0, server_default="0")
    request_sha256: Mapped[str]
    request: Mapped[bytes]
    answer_sha256: Mapped[str]
    answer: Mapped[bytes]


class OutcomeRow(Base):
    """The outcome for context ``number`` of a prescription, the actual decision, and the costs of both decisions.

    ``promised``, ``low`` and ``high`` are the mean and the 5 and 95 % quantiles of the cost in the answer.
    """

    __tablename__ = "prescription_outcomes"

    prescription_id: Mapped[str] = mapped_column(
        sa.ForeignKey("prescriptions.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    outcomes: Mapped[dict[str, Any]]
    actual_decision: Mapped[dict[str, Any]]
    promised: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    realised_cost: Mapped[float | None]
    actual_decision_cost: Mapped[float | None]
    best_cost: Mapped[float | None]
    recorded_at: Mapped[datetime] = mapped_column(default=now)
    recorded_by: Mapped[str | None]


class WorkerRow(Base):
    """A worker's heartbeat on the database's clock, in seconds; ``machine``, ``pid``, ``born`` identify its process."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    beat_at: Mapped[float]
    machine: Mapped[str] = mapped_column(server_default="unknown")
    pid: Mapped[int] = mapped_column(server_default="0")
    born: Mapped[str] = mapped_column(server_default="unknown")
