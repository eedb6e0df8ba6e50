"""The tables and the figure of results in README and docs/experiments.md, computed from the result files alone.

A row compares ``auto`` with a rival over the cells of an experiment. In each cell the two are paired over the runs that
have both; a cell is won or lost if the difference is beyond two standard errors, else tied. The row's difference is
the mean over cells. Its standard error takes cells as independent, or as fully correlated where they share their data.
``python -m docs.results`` writes the pages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bco_core.estimates import Estimate
from benchmarks.experiments import harness
from benchmarks.experiments.compare import Comparison, compare, line, strongest
from benchmarks.experiments.contextual import report as contextual_report
from benchmarks.experiments.contextual import run as contextual_run
from benchmarks.experiments.newsvendor import report as newsvendor_report
from benchmarks.experiments.newsvendor import run as newsvendor_run
from benchmarks.experiments.newsvendor.table1 import PAPER, PAPER_RUNS
from benchmarks.experiments.portfolio import report as portfolio_report
from benchmarks.experiments.portfolio import run as portfolio_run
from benchmarks.experiments.real import report as real_report
from benchmarks.experiments.shipment import report as shipment_report
from benchmarks.experiments.shipment import run as shipment_run
from benchmarks.experiments.yaz import run as yaz_run

RESULTS = Path(__file__).parents[1] / "results"
NOT_YET = "Not run yet with the present code."
PORTFOLIO_ROWS = 400
REAL_TITLES = {
    "electricity": "Hourly load a day ahead, cost / LightGBM's",
    "store_item": "Daily sales a week ahead, 500 series, cost / LightGBM's",
}
CONTEXTUAL_TITLES = {"shortest-path": "Shortest path", "knapsack": "Knapsack"}
YAZ_TITLES = {
    "lightgbm": "tuned LightGBM",
    "quantile_regression": "L1 quantile regression",
    "two_stage": "network over its errors",
    "regression": "regression over its errors",
    "ieo": "IEO",
    "ieo_ensemble": "IEO ensemble",
}
_COLOURS = {"won": "#1b7f4d", "tied": "#8a8f98", "lost": "#c2410c"}


@dataclass(frozen=True)
class ResultRow:
    """One comparison: mean and difference over cells (negative: ours is better), and the cells won, tied and lost."""

    title: str
    ours: float
    rival: str
    difference: Estimate
    runs: int
    won: int
    tied: int
    lost: int
    digits: int

    @property
    def theirs(self) -> float:
        return self.ours - self.difference.mean

    @property
    def relative(self) -> Estimate:
        """The difference and its standard error in per cent of the rival."""
        return Estimate(
            *(100 * value / self.theirs for value in (self.difference.mean, self.difference.standard_error))
        )

    @property
    def verdict(self) -> str:
        mean, error = self.difference.mean, self.difference.standard_error
        return "tied" if not abs(mean) > 2 * error else "won" if mean < 0 else "lost"

    def cells(self) -> list[str]:
        """Return the row's entries in a Markdown table."""

        def number(value: float, sign: str = "") -> str:
            return f"{value:{sign},.{self.digits}f}"

        error = self.difference.standard_error
        difference = number(self.difference.mean, "+") + (f" ± {number(error)}" if math.isfinite(error) else "")
        rival = f"{number(self.theirs)} ({self.rival})"
        counts = [str(count) for count in (self.won, self.tied, self.lost)]
        return [self.title, number(self.ours), rival, difference, str(self.runs), *counts]


def pool(
    title: str,
    comparisons: Iterable[Comparison | None],
    rival: str | Mapping[str, str],
    digits: int,
    correlated: bool = False,
) -> ResultRow | None:
    """Return one row for the comparisons of an experiment's cells, or None without any.

    ``rival`` is the name of the rival, or the titles of rivals; if the cells then have different rivals, the name is
    "best of each cell".
    """
    known = [one for one in comparisons if one is not None]
    if not known:
        return None
    names = {one.rival for one in known}
    if not isinstance(rival, str):
        rival = rival[names.pop()] if len(names) == 1 else "best of each cell"
    errors = [one.difference.standard_error for one in known]
    error = sum(errors) if correlated else math.hypot(*errors)
    won, lost = (sum(one.clear and one.won is side for one in known) for side in (True, False))
    return ResultRow(
        title,
        sum(one.ours for one in known) / len(known),
        rival,
        Estimate(sum(one.difference.mean for one in known) / len(known), error / len(known)),
        sum(one.runs for one in known),
        won,
        len(known) - won - lost,
        lost,
        digits,
    )


# ---------------------------------------------------------------------------------------------------------- comparisons


def strongest_rivals(folder: Path = RESULTS) -> list[ResultRow]:
    """Return one row per experiment: ``auto`` and its strongest rival."""
    portfolio = _portfolio(folder)
    rows = [
        pool(
            "Newsvendor, 45 cells of the paper, % above the oracle",
            (strongest(gaps, "auto", newsvendor_report.RIVALS) for gaps in _newsvendor(folder).values()),
            newsvendor_report.TITLES,
            2,
        ),
        pool(
            "Two-stage shipment, 16 cells of the paper, cost",
            (strongest(costs, "auto", shipment_report.RIVALS) for costs in _shipment(folder).values()),
            shipment_report.TITLES,
            0,
        ),
        pool(
            "Portfolio (chains), return kept in 95 % of cases, variance / oracle's",
            [strongest(portfolio, "bcp_strict", _keeping_the_return(folder))],
            portfolio_report.TITLES,
            2,
        ),
        *(
            pool(
                f"{title}, 3 degrees, regret / optimum",
                (strongest(values, "auto", contextual_report.RIVALS) for values in _contextual(name, folder).values()),
                contextual_report.TITLES,
                4,
                correlated=True,
            )
            for name, title in CONTEXTUAL_TITLES.items()
        ),
        *(
            pool(title, _real(name, folder), "tuned LightGBM", 3, correlated=True)
            for name, title in REAL_TITLES.items()
        ),
        pool(
            "Restaurant demand, 7 ingredients, cost / SAA's",
            [strongest(yaz_run.read(folder / "yaz.csv"), "auto", tuple(YAZ_TITLES))],
            YAZ_TITLES,
            3,
        ),
    ]
    return [row for row in rows if row is not None]


def published_methods(folder: Path = RESULTS) -> list[ResultRow]:
    """Return one row per experiment: ``auto`` and the method, or the figures, of the original publication."""
    rows = [
        pool("Newsvendor, against the paper's figures", _published(folder), "BCP of the paper", 2),
        pool(
            "Two-stage shipment, against the paper's method",
            (compare(costs, "auto", "bcp") for costs in _shipment(folder).values()),
            "BCP, our code",
            0,
        ),
    ]
    for name, title in CONTEXTUAL_TITLES.items():
        cells = _contextual(name, folder)
        spo = contextual_report.spo_rival(cells)
        seeds = contextual_report.over_seeds(cells, spo, lambda degree, _: degree in contextual_report.NONLINEAR)
        rows.append(pool(f"{title}, degrees 4 and 6", [seeds], contextual_report.TITLES[spo], 4))
    return [row for row in rows if row is not None]


def single_rivals(folder: Path = RESULTS) -> list[ResultRow]:
    """Return rows of ``auto`` and one rival at a time."""
    newsvendor, shipment, portfolio = _newsvendor(folder), _shipment(folder), _portfolio(folder)
    rows = [
        *(
            pool("Newsvendor", (compare(gaps, "auto", rival) for gaps in newsvendor.values()), title, 2)
            for rival, title in newsvendor_report.TITLES.items()
            if rival != "auto"
        ),
        *(
            pool("Shipment", (compare(costs, "auto", rival) for costs in shipment.values()), title, 0)
            for rival, title in shipment_report.TITLES.items()
            if rival in shipment_report.RIVALS
        ),
        pool(
            "Portfolio, at equal feasibility",
            [compare(portfolio, "bcp_strict", "control_bcp_strict")],
            "chains' own starts",
            2,
        ),
    ]
    for name, title in CONTEXTUAL_TITLES.items():
        linear = contextual_report.over_seeds(_contextual(name, folder), "ols", lambda degree, _: degree == 1)
        rows.append(pool(f"{title}, degree 1", [linear], "least squares", 4))
    for name, title in REAL_TITLES.items():
        for level, comparison in zip(_levels(name, folder), _real(name, folder), strict=True):
            rows.append(pool(f"{title.split(',')[0]}, τ = {level:g}", [comparison], "tuned LightGBM", 3))
    ratios = yaz_run.read(folder / "yaz.csv")
    rows += [pool("Restaurant demand", [compare(ratios, "auto", rival)], name, 3) for rival, name in YAZ_TITLES.items()]
    return [row for row in rows if row is not None]


def _newsvendor(folder: Path) -> dict[Any, dict[str, dict[Any, float]]]:
    return newsvendor_report.by_cell(newsvendor_run.read(folder / "newsvendor.csv"))


def _shipment(folder: Path) -> shipment_report.Cells:
    return shipment_report.by_cell(harness.read(folder / "shipment.csv", shipment_run.NAMES))


def _contextual(name: str, folder: Path) -> contextual_report.Cells:
    return contextual_report.by_cell(harness.read(folder / f"{name}.csv", contextual_run.NAMES))


def _published(folder: Path) -> list[Comparison]:
    """Compare ``auto`` with the paper's BCP in each cell; the runs are not paired, so the errors of both add up."""
    comparisons = []
    for summary in newsvendor_report.summarize(newsvendor_run.read(folder / "newsvendor.csv")):
        if "auto" in summary.gaps:
            ours, paper = summary.gaps["auto"], PAPER[summary.cell]
            error = math.hypot(ours.std / math.sqrt(ours.runs), paper.bcp_std / math.sqrt(PAPER_RUNS))
            difference = Estimate(ours.mean - paper.bcp_mean, error if ours.runs > 1 else math.inf)
            comparisons.append(Comparison("paper", ours.mean, difference, ours.runs))
    return comparisons


def _portfolio(folder: Path) -> dict[str, dict[Any, float]]:
    regrets: dict[str, dict[Any, float]] = defaultdict(dict)
    for result in portfolio_run.read(folder / "portfolio.csv"):
        if result.run.n == PORTFOLIO_ROWS:
            regrets[result.method][result.run] = result.regret
    return regrets


def _keeping_the_return(folder: Path) -> list[str]:
    """Return the baselines whose feasibility is at most one standard error below the required one."""
    results = [one for one in portfolio_run.read(folder / "portfolio.csv") if one.run.n == PORTFOLIO_ROWS]
    return [
        one.method
        for summary in portfolio_report.summarize(results)
        for one in summary.figures
        if one.method in portfolio_run.BASELINES
        and one.feasibility.mean + one.feasibility.standard_error >= portfolio_run.CONFIDENCE
    ]


def _levels(name: str, folder: Path) -> list[float]:
    rows = real_report.read(folder / "real.csv")
    return sorted({one.level for one in rows if (one.history, one.method) == (name, "auto")})


def _real(name: str, folder: Path) -> list[Comparison]:
    """Compare ``auto`` with LightGBM at each critical fractile, as ratios of cost paired by day."""
    rows = real_report.read(folder / "real.csv")
    values = {(one.level, one.figure): one.value for one in rows if (one.history, one.method) == (name, "auto")}
    return [
        Comparison(
            "lightgbm",
            values[level, "vs_lightgbm"],
            Estimate(values[level, "vs_lightgbm"] - 1, values[level, "vs_lightgbm_se"]),
            1,
        )
        for level in _levels(name, folder)
    ]


# --------------------------------------------------------------------------------------------------------------- output


def table(rows: Sequence[ResultRow]) -> str:
    """Return the rows as a Markdown table."""
    if not rows:
        return NOT_YET
    head = ["comparison", "ours", "rival", "difference ± se", "runs", "won", "tied", "lost"]
    return "\n".join([line(head), line(["---", *["---:"] * 7]), *(line(row.cells()) for row in rows)])


def other_figures(folder: Path = RESULTS) -> str:
    """Return the figures that do not compare costs: promises, coverage, speed, and reproduction of the paper."""
    rows: list[list[str]] = []
    newsvendor = newsvendor_report.summarize(newsvendor_run.read(folder / "newsvendor.csv"))
    printed = [summary for summary in newsvendor if "bcp" in summary.gaps]
    if printed:
        above = sum(not summary.below_paper("bcp") for summary in printed)
        rows.append(["Newsvendor: cells in which Algorithm 1 as printed is worse than the paper's BCP column"])
        rows[-1].append(f"{above} of {len(printed)}")
    floors = [values for values in _shipment(folder).values() if {"auto", "floor"} <= values.keys()]
    if floors:
        mean = sum(sum(values["floor"].values()) / len(values["floor"]) for values in floors) / len(floors)
        rows.append(["Shipment: cost when the true distribution is known", f"{mean:,.0f}"])
    results = [one for one in portfolio_run.read(folder / "portfolio.csv") if one.run.n == PORTFOLIO_ROWS]
    for summary in portfolio_report.summarize(results):
        rows += [
            [
                f"Portfolio: feasibility on fresh rows: {portfolio_report.TITLES[one.method]}",
                f"{one.feasibility.mean:.3f} ± {one.feasibility.standard_error:.3f}",
            ]
            for one in summary.figures
            if one.method in ("bcp_strict", *_keeping_the_return(folder))
        ]
    for name, title in CONTEXTUAL_TITLES.items():
        ratio = contextual_report.speedup(harness.read(folder / f"{name}.csv", contextual_run.NAMES))
        if ratio is not None:
            rows.append([f"{title}: time of PyEPO's SPO+ to reach our regret, over our time", f"{ratio:.1f}"])
    figures = real_report.figures(real_report.read(folder / "real.csv"))
    for name, title in {"electricity": "Hourly load", "store_item": "Daily sales"}.items():
        if f"{name}_promise" in figures:
            rows += [
                [f"{title}: promised cost over realised cost", f"{figures[f'{name}_promise']:.2f}"],
                [f"{title}: outcomes within the 90 % range", f"{figures[f'{name}_coverage90']:.1%}"],
                [f"{title}: processor seconds to learn", f"{figures[f'{name}_seconds']:.0f}"],
            ]
    named: list[tuple[str, str, Callable[[float], str]]] = [
        ("drift_promise", "Random walk: promised cost over realised cost", lambda value: f"{value:.2f}"),
        ("drift_above95", "Random walk: days above the promised 95 % quantile", lambda value: f"{value:.0%}"),
        ("drift_ok", "Random walk: posteriors with quality `ok`", lambda value: f"{value:.0%}"),
        ("update_speedup", "Time to learn from scratch, over time to learn on", lambda value: f"{value:.0f}"),
        ("rows30k_s", "Seconds to learn from 30,000 rows of 20 columns", lambda value: f"{value:.0f}"),
    ]
    rows += [[title, text(figures[key])] for key, title, text in named if key in figures]
    return "\n".join([line(["figure", "value"]), line(["---", "---:"]), *map(line, rows)]) if rows else NOT_YET


def plot(rows: Sequence[ResultRow], path: Path) -> None:
    """Draw each row's relative difference with two standard errors, coloured by won, tied and lost; writes SVG."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "results", "font.size": 10}):
        figure = Figure(figsize=(10, 0.5 * len(rows) + 1.3), layout="constrained")
        axis = figure.subplots()
        for place, row in enumerate(reversed(rows)):
            relative = row.relative
            axis.barh(place, relative.mean, height=0.6, color=_COLOURS[row.verdict])
            axis.errorbar(relative.mean, place, xerr=2 * relative.standard_error, color="black", capsize=3, linewidth=1)
        axis.set_yticks(range(len(rows)), [f"{row.title.rsplit(', ', 1)[0]}: {label(row)}" for row in reversed(rows)])
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_xlabel("difference from the strongest rival, % (left: ours is better; bars: two standard errors)")
        axis.grid(axis="x", alpha=0.3)
        handles = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
        axis.legend(handles=handles, loc="best", frameon=False)
        figure.savefig(path, metadata={"Date": None})


def label(row: ResultRow) -> str:
    """Return the relative difference as the figure prints it."""
    return f"{row.relative.mean:+.1f} %"
