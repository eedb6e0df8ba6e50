"""``bco experiment`` and ``bco bench``, which :mod:`app.commands.cli` mounts in a checkout of the repository."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.commands.backtest import Json
from app.commands.errors import exit_with

experiment = typer.Typer(no_args_is_help=True)
bench = typer.Typer(no_args_is_help=True)
GROUPS = {"experiment": experiment, "bench": bench}

ReportOnly = Annotated[bool, typer.Option("--report-only", help="run nothing; write the report of existing results")]
Jobs = Annotated[int, typer.Option(help="processes, each with one thread", min=1)]

Degrees = Annotated[list[int] | None, typer.Option(help="degree of the polynomial: 1, 2, 4 or 6 (repeat for several)")]
Rows = Annotated[list[int] | None, typer.Option(help="training rows: 100 or 1000 (repeat for both)")]
Seeds = Annotated[int, typer.Option(help="seeds of each cell", min=1)]
Contextual = Annotated[list[str] | None, typer.Option(help="method to run (repeat for several); default all")]
Results = Annotated[Path, typer.Option(help="folder of results")]

LARGE_ROWS = 1024


@experiment.callback()
def reproduce() -> None:
    """Reproduce experiments; with --json the last line is one JSON object."""


@experiment.command()
def newsvendor(
    dgp: Annotated[list[int] | None, typer.Option(help="data generator: 1, 2 or 3 (repeat for several)")] = None,
    tau: Annotated[list[float] | None, typer.Option(help="critical fractile: 0.5, 0.75 or 0.95")] = None,
    n: Annotated[list[int] | None, typer.Option("--n", help="training rows: 256, 512, 1024, 2048 or 4096")] = None,
    runs: Annotated[
        int | None, typer.Option(help="runs of each cell; default 10, and 5 beyond n = 1024", min=1)
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="method to run (repeat for several); default all but two_stage")
    ] = None,
    jobs: Jobs = 2,
    seed: Annotated[int, typer.Option(help="seed of the data", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="folder of results")] = Path("benchmarks/results"),
    report_only: ReportOnly = False,
    json: Json = False,
) -> None:
    """Table 1 of the paper: optimality gaps of the contextual newsvendor.

    Each result is appended to newsvendor.csv in the folder. Results already there are not computed again, so the
    command can be stopped and repeated. Run k of every cell comes before run k + 1 of any. newsvendor.md and
    newsvendor.png show all results in the folder.
    """
    from benchmarks.experiments import harness
    from benchmarks.experiments.newsvendor import run as experiment
    from benchmarks.experiments.newsvendor.report import markdown, overall, plot, summarize
    from benchmarks.experiments.newsvendor.table1 import CELLS

    cells = [
        cell
        for cell in CELLS
        if (not dgp or cell.dgp in dgp) and (not tau or cell.tau in tau) and (not n or cell.n in n)
    ]
    methods = method or list(experiment.DEFAULT_METHODS)
    refuse_unknown(methods, list(experiment.METHODS), "method")
    if not cells:
        raise typer.BadParameter("Table 1 has no such cell: see --help for its generators, fractiles and sizes")

    path = out / "newsvendor.csv"
    wanted = experiment.plan(cells, lambda cell: runs or (10 if cell.n <= LARGE_ROWS else 5), seed)
    done = experiment.read(path)
    todo = [] if report_only else harness.missing(wanted, methods, done)
    performed = experiment.perform_all(todo, path, jobs)

    def describe(run: experiment.NewsvendorRun) -> str:
        return f"DGP-{run.cell.dgp}, τ={run.cell.tau:g}, n={run.cell.n}"

    for results in with_bar("newsvendor", path, 0 if report_only else len(wanted), len(todo), performed, describe):
        done += results

    everything = summarize(done)
    (out / "newsvendor.md").write_text(markdown(everything), encoding="utf-8")
    _plot(plot, everything, out / "newsvendor.png")
    asked = set(wanted)
    summaries = summarize(result for result in done if result.run in asked and result.method in methods)
    typer.echo(markdown(summaries))
    if json:
        typer.echo(jsonlib.dumps(overall(summaries) | {"runs": len(wanted), "runs_computed": len(todo)}))


@experiment.command()
def shipment(
    noisy: Annotated[list[int] | None, typer.Option(help="noisy dimensions: 0, 3, 6 or 9 (repeat for several)")] = None,
    n: Annotated[list[int] | None, typer.Option("--n", help="training rows: 50, 100, 200 or 400")] = None,
    runs: Annotated[int, typer.Option(help="runs of each cell", min=1)] = 10,
    method: Annotated[list[str] | None, typer.Option(help="method to run (repeat for several); default all")] = None,
    jobs: Jobs = 2,
    seed: Annotated[int, typer.Option(help="seed of the data", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="folder of results")] = Path("benchmarks/results"),
    report_only: ReportOnly = False,
    json: Json = False,
) -> None:
    """The paper's two-stage shipment: out-of-sample cost by sample size and number of noisy dimensions.

    Each result is appended to shipment.csv in the folder. Results already there are not computed again, so the command
    can be stopped and repeated. Run k of every cell comes before run k + 1 of any. shipment.md and shipment.png show
    all results in the folder.
    """
    from benchmarks.experiments import harness
    from benchmarks.experiments.shipment import run as experiment
    from benchmarks.experiments.shipment.report import by_cell, markdown, overall, plot

    methods = method or list(experiment.METHODS)
    refuse_unknown(methods, list(experiment.METHODS), "method")
    refuse_unknown(noisy or [], list(experiment.NOISY), "number of noisy dimensions")
    refuse_unknown(n or [], list(experiment.SIZES), "sample size")
    path = out / "shipment.csv"
    wanted = experiment.keys(noisy or experiment.NOISY, n or experiment.SIZES, runs, seed)
    done = harness.read(path, experiment.NAMES)
    todo = [] if report_only else harness.missing(wanted, methods, done)
    keep = partial(harness.append, path, experiment.NAMES)
    performed = harness.perform_all(experiment.perform, todo, keep, jobs)

    def describe(run: harness.Key) -> str:
        return f"n={run[1]}, {run[0]} noisy dimensions"

    for findings in with_bar("shipment", path, 0 if report_only else len(wanted), len(todo), performed, describe):
        done += findings

    everything = by_cell(done)
    (out / "shipment.md").write_text(markdown(everything), encoding="utf-8")
    _plot(plot, everything, out / "shipment.png")
    asked = set(wanted)
    cells = by_cell(finding for finding in done if finding.run in asked and finding.method in methods)
    typer.echo(markdown(cells))
    if json:
        typer.echo(jsonlib.dumps(overall(cells) | {"runs": len(wanted), "runs_computed": len(todo)}))


@experiment.command()
def portfolio(
    n: Annotated[
        list[int] | None, typer.Option("--n", help="training rows: 100, 200 or 400 (repeat for several)")
    ] = None,
    runs: Annotated[int, typer.Option(help="runs of each size", min=1)] = 10,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="method to run (repeat for several); default baselines, bcp, bcp_1_chain, bcp_cold, "
            "bcp_cold_1_chain and bcp_strict; also bcp_raw, bcp_raw_1_chain, bcp_20_regular, bcp_20_support"
        ),
    ] = None,
    contexts: Annotated[int, typer.Option(help="test rows; the paper has 10,000", min=100)] = 2000,
    jobs: Jobs = 2,
    seed: Annotated[int, typer.Option(help="seed of the training rows", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="folder of results")] = Path("benchmarks/results"),
    report_only: ReportOnly = False,
    json: Json = False,
) -> None:
    """The paper's Experiment 3: feasibility and variance of portfolios that must reach a return.

    Each result is appended to portfolio.csv in the folder. Results already there are not computed again, so the command
    can be stopped and repeated. portfolio.md and portfolio.png show all results in the folder; portfolio.md ends with
    the text of portfolio-remarks.md, if it exists.
    """
    from benchmarks.experiments import harness
    from benchmarks.experiments.portfolio import run as experiment
    from benchmarks.experiments.portfolio.report import as_json, markdown, plot, summarize

    sizes = n or list(experiment.SIZES)
    methods = method or list(experiment.DEFAULT_METHODS)
    refuse_unknown(methods, list(experiment.METHODS), "method")
    refuse_unknown(sizes, list(experiment.SIZES), "sample size")

    path = out / "portfolio.csv"
    wanted = experiment.plan(sizes, runs, seed)
    done = experiment.read(path)
    todo = [] if report_only else harness.missing(wanted, methods, done)
    performed = experiment.perform_all(todo, path, jobs, contexts)
    for results in with_bar(
        "portfolio", path, 0 if report_only else len(wanted), len(todo), performed, lambda run: f"n = {run.n}"
    ):
        done += results

    remarks = out / "portfolio-remarks.md"
    everything = summarize(done)
    table = markdown(everything, remarks.read_text(encoding="utf-8") if remarks.exists() else "")
    (out / "portfolio.md").write_text(table, encoding="utf-8")
    _plot(plot, done, out / "portfolio.png")
    typer.echo(table)
    if json:
        typer.echo(jsonlib.dumps(as_json(everything)))


@experiment.command()
def yaz(
    data: Annotated[Path, typer.Option(help="folder with yaz_data.csv and yaz_target.csv")] = Path(
        "../shared/data/yaz"
    ),
    out: Annotated[Path, typer.Option(help="folder of results")] = Path("benchmarks/results"),
    json: Json = False,
) -> None:
    """Real restaurant demand: cost of orders in the last quarter of days, relative to the best constant order.

    Results are written to yaz.csv in the folder.
    """
    import torch
    from rich.console import Console

    from bco_core.errors import InvalidInput
    from benchmarks.experiments.yaz.data import read_days
    from benchmarks.experiments.yaz.run import METHODS, compare, mean_ratio, write

    console = Console(stderr=True)
    torch.set_num_threads(1)
    try:
        days = read_days(data)
    except InvalidInput as problem:
        typer.echo(str(problem), err=True)
        raise typer.Exit(1) from None
    with console.status("learning") as status:
        try:
            ratios = compare(days, list(METHODS), lambda method: status.update(f"learning: {method}"))
        except ImportError as missing:
            typer.echo(f"{missing.name} is missing; install the bench extra", err=True)
            raise typer.Exit(1) from None

    write(out / "yaz.csv", ratios)
    typer.echo("| cost relative to SAA | mean | " + " | ".join(days.ingredients) + " |")
    typer.echo("| --- |" + " ---: |" * (1 + len(days.ingredients)))
    for name, by_ingredient in ratios.items():
        figures = [mean_ratio(by_ingredient), *by_ingredient.values()]
        typer.echo(f"| {name} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
    if json:
        means = {name: mean_ratio(by_ingredient) for name, by_ingredient in ratios.items()}
        typer.echo(jsonlib.dumps({"mean_ratio": means["auto"]} | means))


@experiment.command()
def real(
    data: Annotated[Path, typer.Option(help="folder with yaz, electricity and store_item")] = Path("../shared/data"),
    part: Annotated[
        list[str] | None, typer.Option(help="electricity, store_item, drift, yaz or speed (repeat for several)")
    ] = None,
    seeds: Annotated[int, typer.Option(help="seeds of the drifting demand", min=1)] = 30,
    threads: Annotated[int, typer.Option(help="threads for trees and networks", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="folder of results")] = Path("benchmarks/results"),
    report_only: ReportOnly = False,
    json: Json = False,
) -> None:
    """Real histories: auto compared with LightGBM and others on the same features, judged on later rows.

    A part whose results are in real.csv is not run again: its later rows may be used only once.
    """
    import torch
    from rich.console import Console

    from bco_core.errors import InvalidInput
    from benchmarks.experiments.real import data as histories
    from benchmarks.experiments.real import report, run
    from benchmarks.experiments.real.yaz import mean_ratio

    path, console = out / "real.csv", Console(stderr=True)
    torch.set_num_threads(threads)
    methods = ("lightgbm", "auto", "quantile_regression", "regression", "season", "constant")
    parts: dict[str, Callable[[Callable[[str], None]], Iterator[list[run.Figure]]]] = {
        "electricity": lambda advance: run.compare(histories.electricity(data), methods, advance),
        "store_item": lambda advance: run.compare(histories.store_item(data), methods, advance),
        "drift": lambda advance: run.drift(seeds, advance),
        "yaz": lambda advance: mean_ratio(data / "yaz", advance),
        "speed": lambda advance: run.speed(histories.electricity(data), advance),
    }
    for name in part or parts:
        if name not in parts:
            raise typer.BadParameter(f"the parts are {', '.join(parts)}", param_hint="--part")
        if report_only or any(one.history == name for one in report.read(path)):
            continue
        try:
            with console.status("learning") as status:
                result = [one for some in parts[name](status.update) for one in some]
        except InvalidInput as problem:
            typer.echo(str(problem), err=True)
            raise typer.Exit(1) from None
        report.keep(path, result)
    for line in report.table(report.read(path)):
        typer.echo(line)
    if json:
        typer.echo(jsonlib.dumps(report.figures(report.read(path))))


@experiment.command()
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
    """Shortest path with uncertain costs: normalised regret of auto, two stages, SPO+ and PyEPO.

    Each result is appended to shortest-path.csv in the folder. Results already there are not computed again.
    """
    _contextual("shortest-path", degrees, rows, seeds, method, jobs, out, report_only, json)


@experiment.command()
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
    """Knapsack with uncertain values: normalised regret of auto, two stages, SPO+ and PyEPO.

    Each result is appended to knapsack.csv in the folder. Results already there are not computed again.
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
    from benchmarks.experiments.contextual.pyepo_process import MISSING, is_installed
    from benchmarks.experiments.contextual.report import figures, markdown

    refuse_unknown(degrees or [], experiment.DEGREES, "degree")
    refuse_unknown(rows or [], experiment.SIZES, "number of rows")
    refuse_unknown(method or [], [*experiment.METHODS, experiment.PYEPO], "method")
    if not is_installed():
        typer.echo(MISSING, err=True)
    methods = [one for one in method or experiment.default_methods() if one != experiment.PYEPO or is_installed()]
    path = out / f"{name}.csv"
    wanted = experiment.keys(degrees or experiment.DEGREES, rows or experiment.SIZES, seeds)
    done = harness.read(path, experiment.NAMES)
    todo = [] if report_only else harness.missing(wanted, methods, done)
    keep = partial(harness.append, path, experiment.NAMES)
    performed = harness.perform_all(partial(experiment.perform, name), todo, keep, jobs)

    def describe(run: harness.Key) -> str:
        return f"degree {run[0]}, n={run[1]}"

    for _ in with_bar(name, path, 0 if report_only else len(wanted), len(todo), performed, describe):
        pass
    done = harness.read(path, experiment.NAMES)

    (out / f"{name}.md").write_text(markdown(name, done), encoding="utf-8")
    asked = set(wanted)
    shown = [finding for finding in done if finding.run in asked]
    typer.echo(markdown(name, shown))
    if json:
        typer.echo(jsonlib.dumps(figures(shown) | {"runs": len(wanted), "runs_computed": len(todo)}))


def with_bar(
    name: str, path: Path, wanted: int, todo: int, performed: Iterator[list[Any]], describe: Callable[[Any], str]
) -> Iterator[list[Any]]:
    """Yield the results of the remaining runs, with a bar that shows the last one."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if todo < wanted:
        console.print(f"{wanted - todo} of {wanted} runs are already in {path}; --seed makes others.")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(name, total=todo)
        for results in performed:
            yield results
            bar.update(task, advance=1, description=describe(results[0].run))


def _plot(plot: Callable[[Any, Path], None], what: Any, path: Path) -> None:
    try:
        plot(what, path)
    except ImportError:
        typer.echo("No plot: matplotlib is missing; install the bench extra.", err=True)


def refuse_unknown(asked: Sequence[object], known: Sequence[object], what: str) -> None:
    unknown = [one for one in asked if one not in known]
    if unknown:
        raise typer.BadParameter(f"there is no {what} {unknown[0]}; choose among {', '.join(map(str, known))}")


# benches


@bench.callback()
def measure() -> None:
    """Measure this machine; with --json the last line is one JSON object."""


@bench.command("serving")
def bench_serving(json: Json = False) -> None:
    """Latency and throughput of prescribe over HTTP, job start, and memory of the API process."""
    from benchmarks.bench.serving import run

    run(json)


@bench.command("load")
def bench_load(
    json: Json = False,
    seconds: Annotated[float, typer.Option(help="seconds for each number of clients", min=1)] = 10.0,
) -> None:
    """Throughput and p99 latency of prescribe with 1, 8 and 32 clients, alone and while a job learns."""
    from benchmarks.bench.load import run

    run(json, seconds)


@bench.command("attack")
def bench_attack(
    json: Json = False,
    only: Annotated[list[str] | None, typer.Option(help="attack to run (repeat for several); default all")] = None,
    seconds: Annotated[float, typer.Option(help="seconds of each attack", min=1)] = 8.0,
) -> None:
    """Attack a local service with hostile clients, and measure what other clients notice."""
    from benchmarks.bench.attack import run
    from benchmarks.bench.attacks import ATTACKS

    unknown = [name for name in only or [] if name not in ATTACKS]
    if unknown:
        raise exit_with(f"There is no attack {', '.join(unknown)}; there are {', '.join(ATTACKS)}.", 1)
    run(json, only, seconds)


@bench.command("inference")
def bench_inference(json: Json = False) -> None:
    """Cost of a step of variational inference compared with plain IEO, and of eight members compared with one."""
    from benchmarks.bench.inference import run

    run(json)


@bench.command("two-stage")
def bench_two_stage(json: Json = False) -> None:
    """Two-stage kernels compared with HiGHS and cvxpy: recourse values, point decisions, decisions over scenarios."""
    from benchmarks.bench.two_stage import run

    run(json)


@bench.command("linear")
def bench_linear(json: Json = False) -> None:
    """Linear models with uncertain costs: certified optima per second, compared with HiGHS."""
    from benchmarks.bench.linear import run

    run(json)


@bench.command("portfolio")
def bench_portfolio(
    json: Json = False,
    steps: Annotated[int, typer.Option(help="steps of each chain; the time is scaled to 15,000", min=100)] = 15_000,
) -> None:
    """Portfolio kernels compared with daqp and cvxpy, and the time of four Metropolis–Hastings chains at n = 400."""
    from benchmarks.bench.portfolio import run

    run(json, steps)


@bench.command("planner")
def bench_planner(json: Json = False) -> None:
    """Time of questions after a decision: evaluate, answers with include, the log, a budget, a backtest."""
    from benchmarks.bench.planner.run import run

    run(json)


@bench.command("trust")
def bench_trust(
    json: Json = False,
    seeds: Annotated[int, typer.Option(help="histories of each source", min=1)] = 3,
    judged: Annotated[int, typer.Option(help="posteriors whose verdict is compared with the truth", min=2)] = 40,
    hard: Annotated[int, typer.Option(help="linear programs that are hard for solvers", min=1)] = 2070,
) -> None:
    """Promises compared with results: costs, ranges, feasibility, verdicts, optima, certificates."""
    from benchmarks.bench.trust import run

    run(json, seeds, judged, hard)
