"""What README and docs/experiments.md say of experiments is what the files of results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.experiments import harness
from benchmarks.experiments.contextual import run as contextual
from benchmarks.experiments.harness import Finding
from benchmarks.experiments.newsvendor import run as newsvendor
from benchmarks.experiments.newsvendor.table1 import CELLS
from benchmarks.experiments.portfolio import run as portfolio
from benchmarks.experiments.real import report
from benchmarks.experiments.real.run import Found
from benchmarks.experiments.sentences import NOT_YET
from benchmarks.experiments.shipment import run as shipment
from benchmarks.experiments.yaz import run as yaz
from docs import results

PAGE = "before\n" + "".join(
    f"<!-- results of {name}: written by `make docs` -->\nold\n<!-- end of results -->\n" for name in results.TEXTS
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of every experiment in which ``auto`` wins some and loses some."""
    for place, cell in enumerate(CELLS[:3]):
        gaps = {"saa": 30.0, "ieo": 9.0, "regression": 4.0 + place, "bcp": 50.0, "auto": 5.0}
        for number in range(2):
            run = newsvendor.Run(cell, number, 0)
            found = [newsvendor.Result(run, name, gap + number, 1.0) for name, gap in gaps.items()]
            newsvendor.append(tmp_path / "newsvendor.csv", found)
    costs = {"floor": 868.0, "ieo": 1234.0, "enw": 1100.0, "bcp": 1050.0, "ieo_ensemble": 960.0, "auto": 980.0}
    findings = [Finding((0, 50, 0, run), name, cost + run, 1.0) for run in range(2) for name, cost in costs.items()]
    harness.append(tmp_path / "shipment.csv", shipment.NAMES, findings)
    figures = {"bcp_strict": (0.957, 1.94), "control_bcp_strict": (0.957, 2.14), "regression_shifted": (0.951, 1.73)}
    for number in range(2):
        run = portfolio.Run(400, number, 1)
        portfolio.append(
            tmp_path / "portfolio.csv",
            [portfolio.Result(run, name, kept, regret, 0.0, 1.0) for name, (kept, regret) in figures.items()],
        )
    yaz.write(
        tmp_path / "yaz.csv", {"auto": {"a": 0.8, "b": 0.9}, "lightgbm": {"a": 0.79, "b": 0.89}, "map": {"a": 1.0}}
    )
    figures = {"auto": (9.0, 0.9), "lightgbm": (10.0, 1.0), "season": (15.0, 1.5)}
    real = [
        Found("electricity", 0.75, name, figure, value)
        for name, (cost, ratio) in figures.items()
        for figure, value in (("cost", cost), ("vs_lightgbm", ratio), ("vs_lightgbm_se", 0.02), ("seconds", 40.0))
    ]
    real += [Found("electricity", 0.75, "auto", *one) for one in (("promise", 1.05), ("coverage90", 0.912))]
    real += [Found("drift", 0.75, "seed 0", *one) for one in (("promise", 0.7), ("above95", 0.3), ("ok", 0.0))]
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
def test_pages_say_what_the_files_of_results_say(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert {match[1] for match in re.finditer(r"<!-- results of (\w+)", page)} == set(results.TEXTS)
    assert page == results.renewed(page), "run `make docs`"


def test_every_figure_comes_from_the_files(folder: Path) -> None:
    page = " ".join(results.renewed(PAGE, folder).split())
    for told in (
        "`auto` costs 0.900 ± 0.020 at τ = 0.75 of what tuned LightGBM does on the same features; the best of the "
        "others, season, 1.500. Promised over realised cost 1.05, the 90 % range held 91.2%, 40 processor seconds",
        "1 seeds: promised over realised 0.70 on average, 30% of days above the promised 95 % quantile, and quality "
        "`ok` in 0% of the cases.",
        "over 3 cells, 6 runs: `auto` 5.5 %, SAA 30.5, IEO 9.5, regression 5.5, BCP 50.5; the paper's BCP 2.8.",
        "`auto` is below the paper's BCP in 0 cells.",
        "strongest baseline of each cell it is below in 1 of 3 (1 beyond two standard errors) and not below in 2 (1",
        "ours is above it in 3 of 3 cells.",
        "over 1 cells, 2 runs: `auto` 980, ENW 1,100, IEO 1,234, IEO ensemble 960, BCP 1,050; knowing the true",
        "Beside BCP it is below in 1 of 1",
        "keep the return in 0.957 ± 0.000 of fresh rows (.95 asked) at a regret of 1.94. That is -0.20 ± 0.00 beside",
        "regression, shifted: 0.951 at 1.73 (2 runs), +0.21 ± 0.00 between the two on 2 common runs.",
        "degrees 4 and 6: `auto` is -0.0200 ± 0.0000 beside SPO+ of PyEPO from 100 rows (2 seeds). At degree 1 it is "
        "+0.0100 ± 0.0000 beside least squares. Beside the strongest rival of each cell it is below in 0 of 2 (0 "
        "beyond two standard errors) and not below in 2 (2 beyond). "
        "PyEPO's SPO+ takes 1.0 times as long to reach its regret.",
        "degrees 4 and 6: `auto` is -0.0100 ± 0.0000 beside SPO+ from 100 rows (2 seeds).",
        "tuned LightGBM 0.840, `auto` 0.850. `auto` is number 2 of 2.",
    ):
        assert told in page, told
    assert "old" not in page


def test_a_changed_figure_in_the_text_or_in_a_file_is_noticed(folder: Path) -> None:
    page = results.renewed(PAGE, folder)
    assert results.renewed(page, folder) == page
    for figure in ("5.5 %", "1,050", "0.957", "0.840"):
        changed = page.replace(figure, "0.1")
        assert results.renewed(changed, folder) != changed
    newsvendor.append(folder / "newsvendor.csv", [newsvendor.Result(newsvendor.Run(CELLS[0], 2, 0), "auto", 90.0, 1.0)])
    assert results.renewed(page, folder) != page


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    assert results.renewed(PAGE, tmp_path).count(NOT_YET) == len(results.TEXTS)
