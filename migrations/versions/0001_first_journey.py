"""Problems, data sets in chunks, jobs, posteriors in blocks, and worker heartbeats."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "problems",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("columns", sa.JSON, nullable=False),
        sa.Column("warnings", sa.JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_table(
        "dataset_chunks",
        sa.Column("dataset_id", sa.String, sa.ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("problem_id", sa.String, sa.ForeignKey("problems.id"), nullable=False, index=True),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("datasets.id"), nullable=False, index=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("error", sa.String),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
    )
    op.create_table(
        "posteriors",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id"), nullable=False, unique=True),
        sa.Column("problem_id", sa.String, sa.ForeignKey("problems.id"), nullable=False, index=True),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("datasets.id"), nullable=False, index=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("problem", sa.JSON, nullable=False),
        sa.Column("columns", sa.JSON, nullable=False),
        sa.Column("description", sa.JSON, nullable=False),
        sa.Column("diagnostics", sa.JSON, nullable=False),
        sa.Column("policy", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("particles", sa.Integer, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_table(
        "posterior_blocks",
        sa.Column("posterior_id", sa.String, sa.ForeignKey("posteriors.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("array", sa.String, primary_key=True),
        sa.Column("first_row", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("beat_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    for table in ("workers", "posterior_blocks", "posteriors", "jobs", "dataset_chunks", "datasets", "problems"):
        op.drop_table(table)
