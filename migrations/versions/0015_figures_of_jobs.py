"""Figures of a job in the lines of its log, and the latest figures of each part."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("job_log", "job_parts"):
        op.add_column(table, sa.Column("figures", sa.JSON))


def downgrade() -> None:
    for table in ("job_log", "job_parts"):
        with op.batch_alter_table(table) as batch:
            batch.drop_column("figures")
