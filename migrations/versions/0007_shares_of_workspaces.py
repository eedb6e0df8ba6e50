"""Jobs say how long they will take and when it is their turn; workers say which process they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NAMES = ("machine", "born")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("estimate_seconds", sa.Double))
    for name in ("turn_begins", "turn", "parts_turn"):
        op.add_column("jobs", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("admission", sa.String, nullable=False, server_default="admitted"))
    op.execute("UPDATE jobs SET turn = priority")
    op.execute("ALTER TABLE jobs DROP COLUMN priority")
    for name in NAMES:
        op.add_column("workers", sa.Column(name, sa.String, nullable=False, server_default="unknown"))
    op.add_column("workers", sa.Column("pid", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    # In plain SQL, because SQLite would otherwise recreate the tables and delete rows that refer to them.
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="1"))
    for table, names in (
        ("jobs", ("estimate_seconds", "turn_begins", "turn", "parts_turn", "admission")),
        ("workers", ("pid", *NAMES)),
    ):
        for name in names:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
