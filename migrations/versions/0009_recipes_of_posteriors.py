"""Posteriors know how they make features of time, and from which revision of their data set they learned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("posteriors", sa.Column("recipe", sa.JSON))


def downgrade() -> None:
    # In plain SQL, because SQLite would otherwise recreate the table and delete rows that refer to it.
    op.execute("ALTER TABLE posteriors DROP COLUMN recipe")
