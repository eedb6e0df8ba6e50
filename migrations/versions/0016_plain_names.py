"""Columns get the names of the API: how a data set handles gaps and new categories, and the decision actually taken.

Names inside stored JSON are translated when it is read (``app.db.former_names``).
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

RENAMED = (
    ("datasets", "policy", "handling"),
    ("prescription_outcomes", "done", "actual_decision"),
    ("prescription_outcomes", "done_cost", "actual_decision_cost"),
)


def upgrade() -> None:
    # In plain SQL, because SQLite would otherwise recreate the tables and delete rows that refer to them.
    for table, former, name in RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {former} TO {name}")


def downgrade() -> None:
    for table, former, name in RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO {former}")
