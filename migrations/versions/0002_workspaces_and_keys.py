"""Every object belongs to a workspace; API keys; answers kept for repeated requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
OWNED = ("problems", "datasets", "jobs", "posteriors")


def upgrade() -> None:
    for table in OWNED:
        # Existing objects go into the default workspace.
        op.add_column(table, sa.Column("workspace", sa.String, nullable=False, server_default="default"))
        op.create_index(f"ix_{table}_workspace", table, ["workspace"])
    op.create_table(
        "keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("workspace", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("revoked_at", TIME),
    )
    op.create_table(
        "repeatable_answers",
        sa.Column("workspace", sa.String, primary_key=True),
        sa.Column("path", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("body_sha256", sa.String, nullable=False),
        sa.Column("claim", sa.String, nullable=False),
        sa.Column("claimed_at", TIME, nullable=False),
        sa.Column("location", sa.String),
        sa.Column("status", sa.Integer),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("created_at", TIME, nullable=False, index=True),
    )


def downgrade() -> None:
    op.drop_table("repeatable_answers")
    op.drop_table("keys")
    for table in reversed(OWNED):
        op.drop_index(f"ix_{table}_workspace", table)
        op.drop_column(table, "workspace")
