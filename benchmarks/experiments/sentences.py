"""What the results say, in the words of README and docs/experiments.md, made from the files of results alone.

Each function gives a few sentences about one experiment; ``python -m docs.results`` writes them into the pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.experiments import harness
from benchmarks.experiments.compare import compare
from benchmarks.experiments.contextual import report as contextual_report
from benchmarks.experiments.contextual import run as contextual_run
from benchmarks.experiments.newsvendor import report as newsvendor_report
from benchmarks.experiments.newsvendor import run as newsvendor_run
from benchmarks.experiments.portfolio import report as portfolio_report
from benchmarks.experiments.portfolio import run as portfolio_run
from benchmarks.experiments.real import report as real_report
from benchmarks.experiments.shipment import report as shipment_report
from benchmarks.experiments.shipment import run as shipment_run
from benchmarks.experiments.yaz import run as yaz_run

RESULTS = Path(__file__).parents[1] / "results"
NOT_YET = "Not run yet with the present code."
PORTFOLIO_ROWS = 400
REAL_TITLES = {"electricity": "Hourly load, a day ahead", "store_item": "500 series of daily sales, a week ahead"}
YAZ_TITLES = {
    "auto": "`auto`",
    "lightgbm": "tuned LightGBM",
    "quantile_regression": "L1 quantile regression",
    "two_stage": "a network over its errors",
    "regression": "the best regression over its errors",
    "ieo": "IEO",
    "ieo_ensemble": "its ensemble",
}


def newsvendor(folder: Path = RESULTS) -> str:
    results = newsvendor_run.read(folder / "newsvendor.csv")
    figures = newsvendor_report.overall(newsvendor_report.summarize(results)) if results else {}
    if "auto_mean" not in figures:
        return NOT_YET
    titles = newsvendor_report.TITLES
    others = [f"{titles[m]} {figures[f'{m}_mean']:.1f}" for m in newsvendor_report.RIVALS if f"{m}_mean" in figures]
    return " ".join(
        [
            f"Mean gap to the oracle over {figures['cells']} cells, {_runs(results)} runs: `auto` "
            f"{figures['auto_mean']:.1f} %, {', '.join(others)}; the paper's BCP {figures['paper_bcp']:.1f}.",
            f"`auto` is below the paper's BCP in {figures['auto_cells_below_paper']} cells.",
            _beside("strongest", "the strongest baseline of each cell", figures),
            _beside("ieo", "our own IEO", figures),
            _printed(figures),
        ]
    ).rstrip()


def _printed(figures: Mapping[str, Any]) -> str:
    if "bcp_mean" not in figures:
        return ""
    cells = figures["bcp_cells_above_paper"] + figures["bcp_cells_below_paper"]
    return (
        f"Algorithm 1 as printed does not reproduce the paper's BCP column: ours is above it in "
        f"{figures['bcp_cells_above_paper']} of {cells} cells."
    )


def shipment(folder: Path = RESULTS) -> str:
    found = harness.read(folder / "shipment.csv", shipment_run.NAMES)
    figures = shipment_report.overall(shipment_report.by_cell(found))
    if "auto_mean" not in figures:
        return NOT_YET
    titles = shipment_report.TITLES
    others = [f"{titles[m]} {figures[f'{m}_mean']:,.0f}" for m in shipment_report.RIVALS if f"{m}_mean" in figures]
    floor = f"; knowing the true distribution costs {figures['floor_mean']:,.0f}" if "floor_mean" in figures else ""
    return " ".join(
        [
            f"Mean cost over {figures['cells']} cells, {_runs(found)} runs: `auto` {figures['auto_mean']:,.0f}, "
            f"{', '.join(others)}{floor}.",
            _beside("strongest", "the strongest baseline of each cell", figures),
            *(_beside(rival, titles[rival], figures) for rival in shipment_report.SINGLE),
        ]
    ).rstrip()


def portfolio(folder: Path = RESULTS) -> str:
    """The strict chains at the largest size beside their own starts and the cheapest baseline that keeps the return."""
    results = [one for one in portfolio_run.read(folder / "portfolio.csv") if one.run.n == PORTFOLIO_ROWS]
    summaries = portfolio_report.summarize(results)
    figures = {one.method: one for one in summaries[0].figures} if summaries else {}
    if "bcp_strict" not in figures:
        return NOT_YET
    strict = figures["bcp_strict"]
    regrets: dict[str, dict[Any, float]] = defaultdict(dict)
    for result in results:
        regrets[result.method][result.run] = result.regret
    text = (
        f"At n = {PORTFOLIO_ROWS}, {strict.runs} runs, chains that ask two standard errors more of the history keep "
        f"the return in {strict.feasibility.mean:.3f} ± {strict.feasibility.standard_error:.3f} of fresh rows "
        f"(.95 asked) at a regret of {strict.regret.mean:.2f}."
    )
    starts = compare(regrets, "bcp_strict", "control_bcp_strict")
    if starts is not None:
        text += f" That is {starts.text('.2f')} beside their own unsampled starts at equal feasibility."
    keeping = [
        figures[name]
        for name in portfolio_run.BASELINES
        if name in figures and figures[name].feasibility.mean >= portfolio_run.CONFIDENCE
    ]
    if keeping:
        best = min(keeping, key=lambda one: one.regret.mean)
        text += (
            f" The cheapest baseline that keeps it often enough is {portfolio_report.TITLES[best.method]}: "
            f"{best.feasibility.mean:.3f} at {best.regret.mean:.2f} ({best.runs} runs)"
        )
        beside = compare(regrets, "bcp_strict", best.method)
        text += f", {beside.text('.2f')} between the two on {beside.runs} common runs." if beside else "."
    return text


def yaz(folder: Path = RESULTS) -> str:
    ratios = yaz_run.read(folder / "yaz.csv")
    if "auto" not in ratios:
        return NOT_YET
    means = {name: yaz_run.mean_ratio(each) for name, each in ratios.items() if name in YAZ_TITLES}
    order = sorted(means, key=lambda name: means[name])
    told = ", ".join(f"{YAZ_TITLES[name]} {means[name]:.3f}" for name in order)
    place = order.index("auto") + 1
    return f"Mean cost relative to plain SAA: {told}. `auto` is number {place} of {len(order)}."


def real(folder: Path = RESULTS) -> str:
    found = real_report.read(folder / "real.csv")
    parts = []
    for name, title in REAL_TITLES.items():
        own = {(one.level, one.method, one.figure): one.value for one in found if one.history == name}
        levels = sorted({level for level, method, _ in own if method == "auto"})
        if not levels:
            continue
        beside = [
            f"{own[level, 'auto', 'vs_lightgbm']:.3f} ± {own[level, 'auto', 'vs_lightgbm_se']:.3f} at τ = {level:g}"
            for level in levels
        ]
        rivals = {method for _, method, _ in own} - {"auto", "lightgbm", "constant"}
        best = min(rivals, key=lambda method: sum(own[level, method, "vs_lightgbm"] for level in levels), default="")
        text = f"{title}: `auto` costs {', '.join(beside)} of what tuned LightGBM does on the same features"
        if best:
            ratio = sum(own[level, best, "vs_lightgbm"] for level in levels) / len(levels)
            text += f"; the best of the others, {best.replace('_', ' ')}, {ratio:.3f}"

        def mean(figure: str, own: Any = own, levels: Any = levels) -> float:
            return float(sum(own[level, "auto", figure] for level in levels) / len(levels))

        text += (
            f". Promised over realised cost {mean('promise'):.2f}, the 90 % range held {mean('coverage90'):.1%}, "
            f"{mean('seconds'):.0f} processor seconds to learn."
        )
        parts.append(text)
    told = real_report.figures(found)
    if "drift_promise" in told:
        seeds = len({one.method for one in found if one.history == "drift"})
        parts.append(
            f"Demand that walks at random, {seeds} seeds: promised over realised {told['drift_promise']:.2f} on "
            f"average, {told['drift_above95']:.0%} of days above the promised 95 % quantile, and quality `ok` in "
            f"{told['drift_ok']:.0%} of the cases."
        )
    if "update_speedup" in told:
        parts.append(
            f"Learning on takes {told['update_speedup']:.0f} times less than starting over; 30,000 rows of 20 columns "
            f"take {told['rows30k_s']:.0f} s."
        )
    return " ".join(parts) or NOT_YET


def shortest_path(folder: Path = RESULTS) -> str:
    return _contextual("shortest-path", folder)


def knapsack(folder: Path = RESULTS) -> str:
    return _contextual("knapsack", folder)


def _contextual(name: str, folder: Path) -> str:
    found = harness.read(folder / f"{name}.csv", contextual_run.NAMES)
    figures = contextual_report.figures(found)
    parts = []
    for rows in contextual_run.SIZES:
        if f"vs_spo_n{rows}" in figures:
            parts.append(
                f"{figures[f'vs_spo_n{rows}']:+.4f} ± {figures[f'vs_spo_n{rows}_se']:.4f} beside {figures['spo']} from "
                f"{rows:,} rows ({figures[f'vs_spo_n{rows}_seeds']} seeds)"
            )
    if not parts:
        return NOT_YET
    told = [f"Normalised regret at degrees 4 and 6: `auto` is {' and '.join(parts)}."]
    if "vs_ols_deg1" in figures:
        told.append(
            f"At degree 1 it is {figures['vs_ols_deg1']:+.4f} ± {figures['vs_ols_deg1_se']:.4f} beside least squares."
        )
    told.append(_beside("strongest", "the strongest rival of each cell", figures))
    if "speedup_vs_pyepo" in figures:
        told.append(f"PyEPO's SPO+ takes {figures['speedup_vs_pyepo']:.1f} times as long to reach its regret.")
    return " ".join(told)


def _beside(name: str, title: str, figures: Mapping[str, Any]) -> str:
    if f"cells_beside_{name}" not in figures:
        return ""
    return (
        f"Beside {title} it is below in {figures[f'cells_below_{name}']} of {figures[f'cells_beside_{name}']} "
        f"({figures[f'cells_clearly_below_{name}']} beyond two standard errors) and not below in "
        f"{figures[f'cells_above_{name}']} ({figures[f'cells_clearly_above_{name}']} beyond)."
    )


def _runs(results: list[Any]) -> int:
    """How many runs have ``auto``."""
    return len({result.run for result in results if result.method == "auto"})
