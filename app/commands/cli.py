"""The ``bco`` command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_group

from app import logs
from app.commands.backtest import backtest
from app.commands.errors import check_database_path, exit_with, plain_errors
from app.commands.keys import keys
from app.settings import Settings, get_settings


class CheckoutGroup(TyperGroup):
    """Commands of ``benchmarks/cli.py``, which is no part of the installed product; imported when one is used."""

    @property
    def commands(self) -> MutableMapping[str, Any]:
        root = Path(__file__).parents[2]
        if not (root / "benchmarks" / "cli.py").is_file():
            raise typer.BadParameter("experiments and benches run from a checkout of the repository, not the package")
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        from benchmarks.cli import GROUPS

        return dict(get_group(GROUPS[str(self.name)]).commands)

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        """Ignore the commands that typer has found: there are none here."""


app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
app.add_typer(
    typer.Typer(cls=CheckoutGroup, no_args_is_help=True),
    name="experiment",
    help="Reproduce experiments; with --json the last line is one JSON object.",
)
app.add_typer(
    typer.Typer(cls=CheckoutGroup, no_args_is_help=True),
    name="bench",
    help="Measure this machine; with --json the last line is one JSON object.",
)
app.add_typer(keys, name="keys")
app.command()(backtest)


def _settings_help() -> str:
    lines = ["[bold]Settings[/], by environment variable:", ""]
    for name, field in Settings.model_fields.items():
        lines.append(f"[cyan]BCO_{name.upper()}[/]={field.default}  {field.description}\n")
    return "\n".join(lines)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bco {version('bco-service')}")
        raise typer.Exit


@app.callback(epilog=_settings_help())
def bco(
    show_version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Prescriptions under uncertainty, as a service.

    Start with [bold]bco demo[/], then look at the docs page it prints. [bold]bco serve[/] runs everything on one
    machine; [bold]bco migrate[/], [bold]bco api[/] and [bold]bco worker[/] run the parts apart.
    """
    logs.configure(get_settings())


Host = Annotated[str | None, typer.Option(help="address to listen on (BCO_HOST)")]
Port = Annotated[int | None, typer.Option(help="port to listen on (BCO_PORT)", min=1, max=65535)]

Processes = Annotated[int | None, typer.Option(help="processes of the API (BCO_PROCESSES)", min=1)]


def _settings_with(**options: str | int | None) -> Settings:
    """Return the settings with the values of command-line options."""
    return get_settings().model_copy(update={name: value for name, value in options.items() if value is not None})


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    workers: Annotated[int | None, typer.Option(help="worker processes (BCO_WORKERS)", min=1)] = None,
    processes: Processes = None,
) -> None:
    """Run the API and its worker(s) on this machine, migrating the database first."""
    from app.commands import serve as local

    settings = _settings_with(host=host, port=port, workers=workers, processes=processes)
    _check_port(settings)
    with plain_errors():
        raise typer.Exit(local.serve(settings))


def _check_port(settings: Settings) -> None:
    from app.commands.serve import port_is_free

    try:
        free = port_is_free(settings.host, settings.port)
    except OSError as error:
        raise exit_with(f"{settings.host}, port {settings.port}, cannot be listened on ({error.strerror}).") from None
    if not free:
        raise exit_with(f"Port {settings.port} is taken; choose another with --port or BCO_PORT.", 1)


@app.command()
def api(host: Host = None, port: Port = None, processes: Processes = None) -> None:
    """Run the HTTP API alone; workers run elsewhere on the same database. SIGTERM lets open requests finish first."""
    # In the environment, because whether requests need a key depends on the address.
    chosen = {"BCO_HOST": host, "BCO_PORT": port, "BCO_PROCESSES": processes}
    os.environ |= {name: str(value) for name, value in chosen.items() if value is not None}
    get_settings.cache_clear()
    check_database_path()
    from app.commands.api import is_one_of_several, run

    if not is_one_of_several():
        _check_port(get_settings())
    if not run(get_settings()):
        raise typer.Exit(3)


@app.command()
def worker() -> None:
    """Run one worker: it takes jobs from the queue and runs them."""
    check_database_path()
    from app.jobs.worker import main as run

    run()


@app.command()
def migrate() -> None:
    """Create the database or bring it up to date; safe to run again."""
    from app.db.migrate import migrate as run

    with plain_errors():
        run(get_settings().sqlalchemy_url)
    typer.echo("The database is up to date.")


@app.command()
def prune() -> None:
    """Remove what is older than the settings allow; workers do so every hour."""
    from app.jobs.retention import prune as run

    with plain_errors():
        removed = run()
    typer.echo("Removed: " + ", ".join(f"{count} {what}" for what, count in removed.items()) + ".")


@app.command()
def export(
    posterior_id: Annotated[str, typer.Argument(help="id, post_…, or alias of the posterior")],
    path: Annotated[Path, typer.Argument(help="file to write, such as bakery.bco")],
    workspace: Annotated[str, typer.Option(help="workspace of the alias")] = "default",
) -> None:
    """Write a posterior, its problem and its columns to one file, as a backup or to import it elsewhere."""
    from app.posteriors import portable

    with plain_errors():
        manifest = portable.export(posterior_id, path, workspace)
        typer.echo(f"Wrote {manifest.id} ({manifest.name}) to {path}, digest {manifest.digest[:12]}.")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="file written by bco export", exists=True, dir_okay=False)],
    workspace: Annotated[str, typer.Option(help="workspace to put it in")] = "default",
) -> None:
    """Read a posterior from a file into the database; everything in the file is checked first."""
    from app.posteriors import portable

    with plain_errors():
        row, new = portable.import_(path, workspace)
        typer.echo(f"{row.id} ({row.name}) is {'imported' if new else 'already there, unchanged'}: {row.digest[:12]}.")


@app.command()
def sample(
    path: Annotated[Path, typer.Argument(help="CSV file to write")],
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing file")] = False,
) -> None:
    """Write the demo's bakery history as a CSV file, to try things out."""
    from app.demo import as_csv, bakery_rows

    with plain_errors():
        try:
            with path.open("w" if force else "x") as file:
                file.write(as_csv(bakery_rows()))
        except FileExistsError:
            raise exit_with(f"{path} already exists; choose another name, or overwrite it with --force.") from None
    typer.echo(f"Wrote {path}. Outcomes: croissants, loaves. All other columns are contexts.")


@app.command()
def demo(
    exit_: Annotated[bool, typer.Option("--exit", help="stop the service after the table")] = False,
) -> None:
    """Learn from a bakery's history, prescribe for three mornings, and leave the service running."""
    # An exception stops the service and its processes; dying by the signal would not.
    # Set first: the libraries imported next may start processes of their own.
    signal.signal(signal.SIGTERM, _leave)
    from app.commands.demo import DemoError, demonstrate
    from app.commands.serve import NotStarted

    try:
        code = demonstrate(get_settings(), Console(), stay=not exit_)
    except NotStarted as error:
        # The service itself has printed the reason.
        raise exit_with(str(error)) from None
    except DemoError as error:
        raise exit_with(str(error), 1) from None
    raise typer.Exit(code)


def _leave(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
