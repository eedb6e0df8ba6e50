"""Jobs that can be retried, followed and fanned out: runs, revisions, log lines, batches in shards.

Posteriors may come from elsewhere, so they need neither a job nor a data set here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("kind", sa.String, nullable=False, server_default="learn"))
        jobs.add_column(sa.Column("run_id", sa.String))
        jobs.add_column(sa.Column("attempts_allowed", sa.Integer, nullable=False, server_default="3"))
        jobs.add_column(sa.Column("revision", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE jobs SET run_id = id")
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("run_id", existing_type=sa.String, nullable=False)
        jobs.alter_column("dataset_id", existing_type=sa.String, nullable=True)
        jobs.create_unique_constraint("uq_jobs_run_id", ["run_id"])
    with op.batch_alter_table("posteriors") as posteriors:
        posteriors.alter_column("job_id", existing_type=sa.String, nullable=True)
        posteriors.alter_column("dataset_id", existing_type=sa.String, nullable=True)
    op.create_table(
        "job_log",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("text", sa.String, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("posterior_id", sa.String, sa.ForeignKey("posteriors.id"), nullable=False, index=True),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("shards", sa.Integer, nullable=False),
    )
    op.create_table(
        "batch_shards",
        sa.Column("job_id", sa.String, sa.ForeignKey("batches.job_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("result_sha256", sa.String),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("result", sa.LargeBinary),
    )


def downgrade() -> None:
    for table in ("batch_shards", "batches", "job_log"):
        op.drop_table(table)
    # Objects that the older version does not know are removed: batches and imported posteriors.
    op.execute("DELETE FROM jobs WHERE kind <> 'learn'")
    op.execute("DELETE FROM posterior_blocks WHERE posterior_id IN (SELECT id FROM posteriors WHERE job_id IS NULL)")
    op.execute("DELETE FROM posteriors WHERE job_id IS NULL")
    with op.batch_alter_table("posteriors") as posteriors:
        posteriors.alter_column("job_id", existing_type=sa.String, nullable=False)
        posteriors.alter_column("dataset_id", existing_type=sa.String, nullable=False)
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_constraint("uq_jobs_run_id", type_="unique")
        jobs.alter_column("dataset_id", existing_type=sa.String, nullable=False)
        for column in ("kind", "run_id", "attempts_allowed", "revision"):
            jobs.drop_column(column)
