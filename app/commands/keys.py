"""``bco keys``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.commands.errors import plain_errors

if TYPE_CHECKING:
    from app.db.tables import KeyRow

keys = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys. From the first one on every request needs a key, even when all are "
    "revoked or expired, and sees only its key's workspace.",
)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="purpose of the key, such as 'planning system'")],
    workspace: Annotated[str, typer.Option(help="the workspace that the key gives access to")] = "default",
    scopes: Annotated[
        str, typer.Option(help="read: read and prescribe; train: create and cancel; admin: delete, and /metrics")
    ] = "read,train,admin",
    days: Annotated[float | None, typer.Option(help="days until the key expires; by default never", min=0)] = None,
) -> None:
    """Create a key and print it; this is the only time, since only its hash is stored."""
    from app.keys import service

    with plain_errors():
        row, text = service.create(name, workspace, scopes.replace(" ", "").split(","), days)
    typer.echo(text)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    until = "never expires" if row.expires_at is None else f"expires {row.expires_at:%Y-%m-%d %H:%M} UTC"
    console.print(f"{row.id} for workspace '{row.workspace}' ({', '.join(row.scopes)}; {until}).")
    console.print("It is not shown again. Send it as  Authorization: Bearer <key>")


@keys.command("list")
def list_() -> None:
    """List all keys with their purpose, scopes and state."""
    from app.keys import service

    with plain_errors():
        rows = service.listing()
    table = Table()
    for heading in ("id", "name", "workspace", "scopes", "created", "state"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "id")
    for row in rows:
        table.add_row(row.id, row.name, row.workspace, ", ".join(row.scopes), f"{row.created_at:%Y-%m-%d}", _state(row))
    Console().print(table if rows else "There are no keys; requests from this machine need none.")


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(help="the id that list shows, key_…")]) -> None:
    """Revoke a key. Running services refuse it within a few seconds."""
    from app.keys import service

    with plain_errors():
        row = service.revoke(key_id)
    if row is None:
        typer.echo("No key has this id; 'bco keys list' shows them.", err=True)
        raise typer.Exit(1)
    typer.echo(f"{row.id} ({row.name}) is revoked.")


def _state(row: KeyRow) -> str:
    from app.db.base import now
    from app.keys import service

    if row.revoked_at is not None:
        return f"revoked {row.revoked_at:%Y-%m-%d}"
    if row.expires_at is None:
        return "works"
    word = "works until" if service.is_live(row, now()) else "expired"
    return f"{word} {row.expires_at:%Y-%m-%d %H:%M}"
