"""``bco backtest``: a backtest of a file, without a server or a database."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.errors import exit_with, plain_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from app.backtests.backtest import Backtest

Json = Annotated[bool, typer.Option("--json", help="end with one JSON object on a line of its own")]
_MISTAKES = 5
_FORMATS = (".csv", ".parquet")


def backtest(
    file: Annotated[Path, typer.Argument(help="history: CSV, Parquet or Excel", exists=True, dir_okay=False)],
    problem: Annotated[
        Path, typer.Option(help="JSON file with the problem, as for POST /v1/problems", exists=True, dir_okay=False)
    ],
    time: Annotated[str, typer.Option(help="time column; without it, random folds are judged")] = "",
    series: Annotated[list[str] | None, typer.Option(help="key column, such as store (repeat for several)")] = None,
    lead: Annotated[int, typer.Option(help="periods between a decision and its outcome", min=1)] = 1,
    actual_decision: Annotated[
        list[str] | None,
        typer.Option(help="the decision actually taken: decision=column (repeat for each decision)"),
    ] = None,
    contexts: Annotated[
        list[str] | None, typer.Option(help="column that is known at the decision; default all others")
    ] = None,
    categorical: Annotated[list[str] | None, typer.Option(help="numeric context whose values are categories")] = None,
    missing: Annotated[str, typer.Option(help="rows with missing values: reject, drop or impute")] = "reject",
    unseen: Annotated[str, typer.Option(help="rare and new categories: reject or other")] = "reject",
    splits: Annotated[int, typer.Option(help="number of splits; each learns everything anew", min=1)] = 4,
    judged: Annotated[
        float | None, typer.Option(help="share of rows, the newest, that are judged; default 0.3")
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="rule to compare with (repeat for several); default all that apply")
    ] = None,
    learn: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with predictor, inference and policy, as of a learn job", exists=True, dir_okay=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="random seed of learning", min=0)] = 0,
    output: Annotated[
        Path | None, typer.Option(help="write a line for each row and policy to this .csv or .parquet")
    ] = None,
    json: Json = False,
) -> None:
    """Would it have been better than what you did? Compare on your own history, without a server.

    The problem's outcomes are columns of the file; all other columns are contexts, unless options say otherwise. With
    [bold]--time[/] the newest rows are judged block by block, each with models learned from rows known before it;
    without it, every row is judged once with models learned from other rows. Everything runs in this process.

    [bold]bco backtest sales.csv --problem problem.json --time day --series shop --actual-decision bread=baked[/]

    compares our decisions with the column [italic]baked[/], which is never a context, with a constant decision, the
    same weekday, a regression, boosted quantiles, similar rows and a trained model. It ends with a table and a verdict
    in two sentences; [bold]--output[/] keeps every row.
    """
    if output is not None and output.suffix not in _FORMATS:
        raise exit_with(f"Results are written as {' or '.join(_FORMATS)}; {output.name} is neither.", 1)
    choices: dict[str, Any] = {"splits": splits, "judged": judged, "baselines": baseline, "seed": seed}
    if learn is not None:
        choices["ours"] = [_json(learn)]
    pairs = [_pair(one) for one in actual_decision or []]
    roles = {"time": time or None, "series": series or [], "lead": lead, "missing": missing, "unseen": unseen}
    roles |= {"contexts": contexts, "categorical": categorical or [], "decisions": [column for _, column in pairs]}
    with plain_errors(), _sentences():
        planned = _plan(file, _json(problem), roles, choices | {"actual_decision": dict(pairs)})
        tables = _compute(planned)
        summary = planned.summary(tables)
        if output is not None:
            _write(tables, output)
    _show(summary)
    if json:
        typer.echo(jsonlib.dumps(summary))


def _plan(file: Path, problem: dict[str, Any], roles: dict[str, Any], choices: dict[str, Any]) -> Backtest:
    """Check everything as the service does; return the backtest."""
    from app.backtests.backtest import Backtest, check_actual_decision
    from app.backtests.schemas import BacktestOptions
    from app.datasets.parsing import parse_file
    from app.datasets.profile import profile
    from app.datasets.roles import ColumnRoles
    from app.datasets.schemas import NewDataset
    from app.db.tables import DatasetRow
    from app.problems.schemas import NewProblem, outcome_names
    from app.settings import get_settings

    spec = NewProblem.model_validate({"name": "problem", "spec": problem.get("spec", problem)}).spec.model_dump()
    options = BacktestOptions.model_validate(choices)
    outcomes = outcome_names(spec)
    read = NewDataset.model_validate({"name": "history", "rows": [], "outcomes": outcomes} | roles)
    chosen = ColumnRoles(**read.model_dump(exclude={"name", "rows"}))
    profiled = profile(parse_file(file.read_bytes(), get_settings()), chosen, get_settings())
    for warning in profiled.warnings:
        typer.echo(f"Note: {warning}.", err=True)
    dataset = DatasetRow(columns=profiled.columns, lead=chosen.lead, handling=chosen.handling, revision=1)
    check_actual_decision(spec, profiled.columns, options.actual_decision)
    return Backtest(spec, dataset, profiled.table, options)


def _compute(planned: Backtest) -> list[pa.Table]:
    """Compute the tables of all parts, with a progress bar."""
    import torch
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from app.settings import get_settings

    # As a worker does: with more threads, processes on a shared machine slow each other down.
    torch.set_num_threads(get_settings().threads)
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    tables: list[pa.Table] = []
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(planned.steps))

        def progress(fraction: float, message: str) -> None:
            bar.update(task, completed=len(tables) + fraction, description=message)

        for step in planned.steps:
            tables.append(planned.work(step, progress))
    return tables


def _write(tables: list[pa.Table], path: Path) -> None:
    from app.http.tables import to_parquet
    from app.jobs.kinds.backtest import BACKTEST

    with path.open("wb") as file:
        for piece in BACKTEST.files[path.suffix[1:]].write([to_parquet(table) for table in tables]):
            file.write(piece)


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    difference = {one["against"]: one for one in summary["differences"]}
    table = Table(title=f"{summary['rows']} rows judged in {len(summary['splits'])} split(s)")
    for name in ("policy", "cost", "regret", "served", "kept", f"{summary['candidate']} less it", "95 % interval"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for policy in summary["policies"]:
        one = difference.get(policy["name"], {})
        service = (policy["service_level"] or {}).get("mean")
        interval = f"{_text(one['low'])} to {_text(one['high'])}" if one else ""
        numbers = [policy["cost"]["mean"], policy["regret"]]
        shares = ["" if share is None else f"{share:.1%}" for share in (service, policy["feasibility"])]
        table.add_row(policy["name"], *map(_text, numbers), *shares, _text(one["mean"]) if one else "", interval)
    console.print(table)
    for line in [*summary["notes"], summary["intervals"]]:
        console.print(line, style="dim", highlight=False)
    console.print(summary["verdict"]["text"], style="bold", highlight=False)


def _text(number: float | None) -> str:
    return "–" if number is None else f"{number:,.4g}" if abs(number) < 1000 else f"{number:,.0f}"


def _pair(text: str) -> tuple[str, str]:
    decision, separator, column = text.partition("=")
    if not (decision and separator and column):
        raise exit_with(
            f"Write the actual decision as decision=column, such as bread=baked; {text!r} is not of this form.", 1
        )
    return decision, column


def _json(path: Path) -> dict[str, Any]:
    try:
        value = jsonlib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise exit_with(f"{path} is not JSON ({error}).", 1) from None
    if not isinstance(value, dict):
        raise exit_with(f"{path} must hold a JSON object.", 1)
    return value


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn errors that the service would answer into a sentence and an exit status."""
    from pydantic import ValidationError

    from app.http.errors import HttpError
    from bco_core.errors import BcoError

    try:
        yield
    except HttpError as error:
        messages = [f"{one.pointer[2:]}: {one.detail}" for one in error.fields[:_MISTAKES]] or [error.detail]
        raise exit_with("Invalid input: " + "; ".join(messages) + ".", 1) from None
    except ValidationError as error:
        messages = [f"{'/'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_MISTAKES]]
        raise exit_with("Invalid input: " + "; ".join(messages) + ".", 1) from None
    except BcoError as error:
        raise exit_with(f"Invalid input: {error}.", 1) from None
