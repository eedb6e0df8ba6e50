"""The log of prescriptions and their outcomes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "prescriptions",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("workspace", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("posterior_id", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("key_id", sa.String),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("contexts", sa.Integer, nullable=False),
        sa.Column("recorded", sa.Integer, nullable=False, server_default="0"),
        sa.Column("request_sha256", sa.String, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("answer_sha256", sa.String, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_prescriptions_workspace_id", "prescriptions", ["workspace", "id"])
    op.create_index("ix_prescriptions_posterior_id_id", "prescriptions", ["posterior_id", "id"])
    op.create_table(
        "prescription_outcomes",
        sa.Column(
            "prescription_id", sa.String, sa.ForeignKey("prescriptions.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("outcomes", sa.JSON, nullable=False),
        sa.Column("done", sa.JSON, nullable=False),
        sa.Column("promised", sa.Double),
        sa.Column("low", sa.Double),
        sa.Column("high", sa.Double),
        sa.Column("realised_cost", sa.Double),
        sa.Column("done_cost", sa.Double),
        sa.Column("best_cost", sa.Double),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recorded_by", sa.String),
    )


def downgrade() -> None:
    op.drop_table("prescription_outcomes")
    op.drop_table("prescriptions")
