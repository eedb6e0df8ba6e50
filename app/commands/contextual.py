"""``bco experiment shortest-path`` and ``knapsack``: uncertain objectives, with PyEPO beside."""

from __future__ import annotations

import json as jsonlib
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from app.commands.experiments import Jobs, Json, ReportOnly, refuse_unknown, watched

Degrees = Annotated[list[int] | None, typer.Option(help="degree of the polynomial: 1, 2, 4 or 6 (repeat for several)")]
Rows = Annotated[list[int] | None, typer.Option(help="training rows: 100 or 1000 (repeat for both)")]
Seeds = Annotated[int, typer.Option(help="seeds of each cell", min=1)]
Contextual = Annotated[list[str] | None, typer.Option(help="method to run (repeat for several); default all")]
Results = Annotated[Path, typer.Option(help="folder of results")]


def shortest_path(
    degrees: Degrees = None,
    rows: Rows = None,
    seeds: Seeds = 10,
    method: Contextual = None,
    jobs: Jobs = 1,
    out: Results = Path("benchmarks/results"),
    report_only: ReportOnly = False,
    json: Json = False,
) -> None:
    """Shortest path with uncertain costs: normalised regret of auto, two stages and SPO+, with PyEPO beside.

    Results are added to shortest-path.csv in the folder as they come, and those already there are not computed again.
    """
    _contextual("shortest-path", degrees, rows, seeds, method, jobs, out, report_only, json)


def knapsack(
    degrees: Degrees = None,
    rows: Rows = None,
    seeds: Seeds = 10,
    method: Contextual = None,
    jobs: Jobs = 1,
    out: Results = Path("benchmarks/results"),
    report_only: ReportOnly = False,
    json: Json = False,
) -> None:
    """Knapsack with uncertain values: normalised regret of auto, two stages and SPO+, with PyEPO beside.

    Results are added to knapsack.csv in the folder as they come, and those already there are not computed again.
    """
    _contextual("knapsack", degrees, rows, seeds, method, jobs, out, report_only, json)


def _contextual(
    name: str,
    degrees: list[int] | None,
    rows: list[int] | None,
    seeds: int,
    method: list[str] | None,
    jobs: int,
    out: Path,
    report_only: bool,
    json: bool,
) -> None:
    from benchmarks.experiments import harness
    from benchmarks.experiments.contextual import run as experiment
    from benchmarks.experiments.contextual.pyepo_process import MISSING, installed
    from benchmarks.experiments.contextual.report import figures, markdown

    refuse_unknown(degrees or [], experiment.DEGREES, "degree")
    refuse_unknown(rows or [], experiment.SIZES, "number of rows")
    refuse_unknown(method or [], [*experiment.METHODS, experiment.PYEPO], "method")
    if not installed():
        typer.echo(MISSING, err=True)
    methods = [one for one in method or experiment.default_methods() if one != experiment.PYEPO or installed()]
    path = out / f"{name}.csv"
    wanted = experiment.keys(degrees or experiment.DEGREES, rows or experiment.SIZES, seeds)
    done = harness.read(path, experiment.NAMES)
    todo = [] if report_only else harness.missing(wanted, methods, done)
    keep = partial(harness.append, path, experiment.NAMES)
    performed = harness.perform_all(partial(experiment.perform, name), todo, keep, jobs)

    def describe(run: harness.Key) -> str:
        return f"degree {run[0]}, n={run[1]}"

    for _ in watched(name, path, 0 if report_only else len(wanted), len(todo), performed, describe):
        pass
    done = harness.read(path, experiment.NAMES)

    (out / f"{name}.md").write_text(markdown(name, done), encoding="utf-8")
    asked = set(wanted)
    shown = [finding for finding in done if finding.run in asked]
    typer.echo(markdown(name, shown))
    if json:
        typer.echo(jsonlib.dumps(figures(shown) | {"runs": len(wanted), "runs_computed": len(todo)}))
