"""Every kind of job in the same tables: a job names the posterior it uses, and a part its amount of work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In plain SQL, because SQLite would otherwise make both tables anew, with all that hangs on them.
    op.execute("ALTER TABLE job_parts RENAME COLUMN rows TO work")
    reference = "CONSTRAINT fk_jobs_posterior_id REFERENCES posteriors (id)"
    op.execute(f"ALTER TABLE jobs ADD COLUMN posterior_id VARCHAR {reference}")
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="1"))
    op.execute("UPDATE jobs SET posterior_id = (SELECT posterior_id FROM batches WHERE job_id = jobs.id)")
    op.create_index("ix_jobs_posterior_id", "jobs", ["posterior_id"])
    op.drop_table("batches")


def downgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("posterior_id", sa.String, sa.ForeignKey("posteriors.id"), nullable=False, index=True),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("shards", sa.Integer, nullable=False),
    )
    op.execute(
        "INSERT INTO batches (job_id, posterior_id, rows, shards) "
        "SELECT jobs.id, jobs.posterior_id, sum(job_parts.work), count(*) "
        "FROM jobs JOIN job_parts ON job_parts.job_id = jobs.id WHERE jobs.kind = 'prescribe' "
        "GROUP BY jobs.id, jobs.posterior_id"
    )
    op.drop_index("ix_jobs_posterior_id", "jobs")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("posterior_id")
        jobs.drop_column("priority")
    op.execute("ALTER TABLE job_parts RENAME COLUMN work TO rows")
