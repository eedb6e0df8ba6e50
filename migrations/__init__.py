"""One alembic history for SQLite and PostgreSQL."""
