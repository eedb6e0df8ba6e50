"""Aliases of posteriors, and the history of their moves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "aliases",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("workspace", sa.String, nullable=False, server_default="default"),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("posterior_id", sa.String, sa.ForeignKey("posteriors.id"), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("moved_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("moved_by", sa.String),
        sa.UniqueConstraint("workspace", "name", name="uq_aliases_workspace_name"),
    )
    for column in ("workspace", "posterior_id"):
        op.create_index(f"ix_aliases_{column}", "aliases", [column])
    op.create_table(
        "alias_moves",
        sa.Column("workspace", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.String),
        sa.Column("from_posterior_id", sa.String),
        sa.Column("to_posterior_id", sa.String),
        sa.Column("reason", sa.String, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("alias_moves")
    op.drop_table("aliases")
