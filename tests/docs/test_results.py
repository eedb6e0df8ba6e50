"""Results in README and docs/experiments.md: the tables and the figure match the result files."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from bco_core.estimates import Estimate
from benchmarks.experiments import harness, summary
from benchmarks.experiments.compare import Comparison
from benchmarks.experiments.contextual import run as contextual
from benchmarks.experiments.harness import Finding
from benchmarks.experiments.newsvendor import run as newsvendor
from benchmarks.experiments.newsvendor.table1 import CELLS
from benchmarks.experiments.portfolio import run as portfolio
from benchmarks.experiments.real import report
from benchmarks.experiments.real.run import Figure
from benchmarks.experiments.shipment import run as shipment
from benchmarks.experiments.yaz import run as yaz
from docs import results

PAGE = "before\n" + "".join(
    f"<!-- table of {name}: written by `make docs` -->\nold\n<!-- end of table -->\n" for name in results.TABLES
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write results of every experiment, in which ``auto`` wins some and loses some."""
    for place, cell in enumerate(CELLS[:3]):
        gaps = {"saa": 30.0, "ieo": 9.0, "regression": 4.0 + place, "bcp": 50.0, "auto": 5.0}
        for number in range(2):
            run = newsvendor.NewsvendorRun(cell, number, 0)
            found = [newsvendor.NewsvendorResult(run, name, gap + number, 1.0) for name, gap in gaps.items()]
            newsvendor.append(tmp_path / "newsvendor.csv", found)
    costs = {"floor": 868.0, "ieo": 1234.0, "enw": 1100.0, "bcp": 1050.0, "ieo_ensemble": 960.0, "auto": 980.0}
    findings = [Finding((0, 50, 0, run), name, cost + run, 1.0) for run in range(2) for name, cost in costs.items()]
    harness.append(tmp_path / "shipment.csv", shipment.NAMES, findings)
    figures = {"bcp_strict": (0.957, 1.94), "control_bcp_strict": (0.957, 2.14), "regression_shifted": (0.951, 1.73)}
    for number in range(2):
        run = portfolio.PortfolioRun(400, number, 1)
        portfolio.append(
            tmp_path / "portfolio.csv",
            [portfolio.PortfolioResult(run, name, kept, regret, 0.0, 1.0) for name, (kept, regret) in figures.items()],
        )
    yaz.write(
        tmp_path / "yaz.csv", {"auto": {"a": 0.8, "b": 0.9}, "lightgbm": {"a": 0.79, "b": 0.89}, "map": {"a": 1.0}}
    )
    figures = {"auto": (9.0, 0.9), "lightgbm": (10.0, 1.0), "season": (15.0, 1.5)}
    real = [
        Figure("electricity", 0.75, name, figure, value)
        for name, (cost, ratio) in figures.items()
        for figure, value in (("cost", cost), ("vs_lightgbm", ratio), ("vs_lightgbm_se", 0.02), ("seconds", 40.0))
    ]
    real += [Figure("electricity", 0.75, "auto", *one) for one in (("promise", 1.05), ("coverage90", 0.912))]
    real += [Figure("drift", 0.75, "seed 0", *one) for one in (("promise", 0.7), ("above95", 0.3), ("ok", 0.0))]
    report.keep(tmp_path / "real.csv", real)
    regrets = {"auto": 0.09, "ols": 0.08, "spo": 0.1}
    for name, more in (("shortest-path", {"pyepo_50": 0.12, "pyepo": 0.11}), ("knapsack", {})):
        harness.append(
            tmp_path / f"{name}.csv",
            contextual.NAMES,
            [
                Finding((degree, 100, seed), method, regret + seed / 100, 1.0)
                for degree in (1, 4)
                for seed in range(2)
                for method, regret in (regrets | more).items()
            ],
        )
    return tmp_path


@pytest.mark.parametrize("path", results.PAGES, ids=lambda path: path.name)
def test_pages_show_the_tables_made_from_the_result_files(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    names = {match[1] for match in re.finditer(r"<!-- table of (\w+)", page)}
    assert names == ({"results"} if path.name == "README.md" else set(results.TABLES))
    assert page == results.renew(page), "run `make docs`"


def test_the_figure_shows_the_differences_of_the_table() -> None:
    figure = results.FIGURE.read_text(encoding="utf-8")
    rows = summary.strongest_rivals()
    assert len(rows) == 8
    for row in rows:
        assert f": {summary.label(row)}" in figure, f"run `make docs`: {row.title}"


def test_every_number_comes_from_the_result_files(folder: Path) -> None:
    page = results.renew(PAGE, folder)
    for row in (
        " % above the oracle | 5.50 | 5.50 (regression) | +0.00 ± 0.00 | 6 | 1 | 1 | 1 |",
        "| Two-stage shipment, 16 cells of the paper, cost | 980 | 960 (IEO ensemble) | +20 ± 0 | 2 | 0 | 0 | 1 |",
        "| 1.94 | 1.73 (regression, shifted) | +0.21 ± 0.00 | 2 | 0 | 0 | 1 |",
        "| Shortest path, 3 degrees, regret / optimum | 0.0950 | 0.0850 (OLS) | +0.0100 ± 0.0000 | 4 | 0 | 0 | 2 |",
        " a day ahead, cost / LightGBM's | 0.900 | 1.000 (tuned LightGBM) | -0.100 ± 0.020 | 1 | 1 | 0 | 0 |",
        " 7 ingredients, cost / SAA's | 0.850 | 0.840 (tuned LightGBM) | +0.010 ± 0.000 | 2 | 0 | 0 | 1 |",
        "| Two-stage shipment, against the paper's method | 980 | 1,050 (BCP, our code) | -70 ± 0 | 2 | 1 | 0 | 0 |",
        "| Shortest path, degrees 4 and 6 | 0.0950 | 0.1150 (SPO+ of PyEPO) | -0.0200 ± 0.0000 | 2 | 1 | 0 | 0 |",
        "| Knapsack, degrees 4 and 6 | 0.0950 | 0.1050 (SPO+) | -0.0100 ± 0.0000 | 2 | 1 | 0 | 0 |",
        "| Newsvendor | 5.50 | 30.50 (SAA) | -25.00 ± 0.00 | 6 | 3 | 0 | 0 |",
        "| Portfolio, at equal feasibility | 1.94 | 2.14 (chains' own starts) | -0.20 ± 0.00 | 2 | 1 | 0 | 0 |",
        "| Newsvendor: cells in which Algorithm 1 as printed is worse than the paper's BCP column | 3 of 3 |",
        "| Shipment: cost when the true distribution is known | 868 |",
        "| Shortest path: time of PyEPO's SPO+ to reach our regret, over our time | 1.0 |",
        "| Hourly load: outcomes within the 90 % range | 91.2% |",
        "| Random walk: days above the promised 95 % quantile | 30% |",
    ):
        assert row in page, row
    assert "old" not in page


def test_a_changed_number_on_a_page_or_in_a_file_is_detected(folder: Path) -> None:
    page = results.renew(PAGE, folder)
    assert results.renew(page, folder) == page
    for figure in ("5.50", "1,050", "0.957", "0.840"):
        changed = page.replace(figure, "0.1")
        assert changed != page
        assert results.renew(changed, folder) != changed
    newsvendor.append(
        folder / "newsvendor.csv",
        [newsvendor.NewsvendorResult(newsvendor.NewsvendorRun(CELLS[0], 2, 0), "auto", 90.0, 1.0)],
    )
    assert results.renew(page, folder) != page


def test_a_cell_is_tied_within_two_standard_errors_and_with_one_run() -> None:
    def cell(mean: float, error: float) -> Comparison:
        return Comparison("saa", 10.0, Estimate(mean, error), 2)

    row = summary.pool("three cells", [cell(-3.0, 1.0), cell(1.0, 0.6), cell(4.0, math.inf), None], "SAA", 1)
    assert row is not None
    assert (row.won, row.tied, row.lost) == (1, 2, 0)
    assert row.difference == Estimate(pytest.approx(2 / 3), math.inf)
    assert row.verdict == "tied"


def test_without_results_every_table_says_so(tmp_path: Path) -> None:
    assert results.renew(PAGE, tmp_path).count(summary.NOT_YET) == len(results.TABLES)
