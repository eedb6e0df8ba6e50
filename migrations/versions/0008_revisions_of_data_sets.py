"""Data sets store their lead, the handling of gaps and new categories, and their revision."""

from __future__ import annotations

import hashlib
from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

datasets = sa.table(
    "datasets", sa.column("id", sa.String), sa.column("digest", sa.String), sa.column("policy", sa.JSON)
)
chunks = sa.table(
    "dataset_chunks",
    sa.column("dataset_id", sa.String),
    sa.column("seq", sa.Integer),
    sa.column("sha256", sa.String),
)


def upgrade() -> None:
    for name in ("lead", "revision"):
        op.add_column("datasets", sa.Column(name, sa.Integer, nullable=False, server_default="1"))
    op.add_column("datasets", sa.Column("digest", sa.String, nullable=False, server_default="unknown"))
    op.add_column("datasets", sa.Column("policy", sa.JSON))
    op.add_column("dataset_chunks", sa.Column("revision", sa.Integer, nullable=False, server_default="1"))
    connection = op.get_bind()
    connection.execute(sa.update(datasets).values(policy={"missing": "reject", "unseen": "reject"}))
    stored = connection.execute(
        sa.select(chunks.c.dataset_id, chunks.c.sha256).order_by(chunks.c.dataset_id, chunks.c.seq)
    ).all()
    for dataset_id, rows in groupby(stored, key=lambda row: row.dataset_id):
        digest = hashlib.sha256("".join(row.sha256 for row in rows).encode()).hexdigest()
        connection.execute(sa.update(datasets).where(datasets.c.id == dataset_id).values(digest=digest))


def downgrade() -> None:
    # In plain SQL, because SQLite would otherwise recreate the tables and delete rows that refer to them.
    op.execute("ALTER TABLE dataset_chunks DROP COLUMN revision")
    for name in ("lead", "revision", "digest", "policy"):
        op.execute(f"ALTER TABLE datasets DROP COLUMN {name}")
