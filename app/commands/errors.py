"""Errors at the command line: a sentence and an exit status instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

UNAVAILABLE = 2


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print an error and exit: with 2 if files or the database cannot be used, with 1 if the request is invalid."""
    import sqlalchemy as sa

    from app.db.outage import is_outage

    try:
        yield
    except ValueError as error:
        # Imported here: the core takes seconds, and most commands never need it.
        from app.keys.service import InvalidKey
        from bco_core.errors import InvalidInput

        if not isinstance(error, InvalidInput | InvalidKey):
            raise
        raise exit_with(f"Invalid input: {error}.", 1) from None
    except sa.exc.SQLAlchemyError as error:
        lines = str(getattr(error, "orig", None) or error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        if is_outage(error):
            sentence = f"{_database()} cannot be used ({reason}); check BCO_DATABASE_URL and that it is running."
            raise exit_with(sentence) from None
        raise exit_with(f"The database cannot be used ({reason}). Has 'bco migrate' been run?", 1) from None
    except OSError as error:
        what = "This" if error.filename is None else str(error.filename)
        raise exit_with(f"{what} cannot be used ({error.strerror or error}).") from None


def exit_with(sentence: str, status: int = UNAVAILABLE) -> typer.Exit:
    """Print a sentence to stderr, without secrets; return the exception to raise."""
    from app.logs import redact

    typer.echo(redact(sentence), err=True)
    return typer.Exit(status)


def check_database_path() -> None:
    """Exit if SQLite's file can be neither opened nor created; PostgreSQL may still be starting."""
    from app.db.engine import get_engine

    with plain_errors():
        engine = get_engine()
        if engine.dialect.name == "sqlite":
            engine.connect().close()


def _database() -> str:
    import sqlalchemy as sa

    from app.settings import get_settings

    return f"The database {sa.make_url(get_settings().database_url).render_as_string(hide_password=True)}"
