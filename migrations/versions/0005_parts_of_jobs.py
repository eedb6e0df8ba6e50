"""Parts of any job, which several workers compute; they take the place of a batch's shards and of checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SHARED = "job_id, seq, rows, attempts, result_sha256, sha256, data, result"


def upgrade() -> None:
    op.create_table(
        "job_parts",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("done", sa.Integer, nullable=False, server_default="0"),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("taken", sa.String),
        sa.Column("result_sha256", sa.String),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("result", sa.LargeBinary),
    )
    op.execute(f"INSERT INTO job_parts ({SHARED}) SELECT {SHARED} FROM batch_shards")  # noqa: S608
    op.execute("UPDATE job_parts SET done = rows WHERE result_sha256 IS NOT NULL")
    op.drop_table("batch_shards")
    # A sampler that was interrupted by the upgrade starts over.
    op.drop_table("checkpoint_blocks")


def downgrade() -> None:
    op.create_table(
        "checkpoint_blocks",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("array", sa.String, primary_key=True),
        sa.Column("first_row", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
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
    of_batches = "WHERE job_id IN (SELECT job_id FROM batches)"
    op.execute(f"INSERT INTO batch_shards ({SHARED}) SELECT {SHARED} FROM job_parts {of_batches}")  # noqa: S608
    op.drop_table("job_parts")
