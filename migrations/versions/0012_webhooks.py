"""Webhooks, the secrets that sign them, and their deliveries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("workspace", sa.String, nullable=False, server_default="default"),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("events", sa.JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_webhooks_workspace", "webhooks", ["workspace"])
    op.create_table(
        "webhook_secrets",
        sa.Column("workspace", sa.String, primary_key=True),
        sa.Column("secret", sa.String, nullable=False),
        sa.Column("former", sa.String),
        sa.Column("former_until", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("workspace", sa.String, nullable=False, server_default="default"),
        sa.Column("webhook_id", sa.String, sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("job_id", sa.String),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.String),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_webhook_deliveries_workspace", "webhook_deliveries", ["workspace"])
    op.create_index("ix_webhook_deliveries_webhook_id", "webhook_deliveries", ["webhook_id"])
    op.create_index("ix_webhook_deliveries_state_due_at", "webhook_deliveries", ["state", "due_at"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_secrets")
    op.drop_table("webhooks")
