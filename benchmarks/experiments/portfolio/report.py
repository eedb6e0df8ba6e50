"""Report of the portfolio results: a summary of each size, the Markdown table and the plot."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bco_core.estimates import Estimate, estimate, paired_difference
from benchmarks.experiments.compare import line
from benchmarks.experiments.portfolio.run import CONTROLLED, PortfolioResult, PortfolioRun

TITLES = {
    "saa": "SAA",
    "enw": "ENW–CVaR",
    "shifted": "squared error, shifted",
    "regression": "regression over its errors",
    "regression_shifted": "regression, shifted",
    "ieo": "IEO (IPL/OPL)",
    "warm_starts": "4 warm starts, no MH",
    "bcp": "BCP, scaled λn = 1000",
    "bcp_1_chain": "BCP, 1 chain",
    "control_bcp": "warm starts at BCP's feasibility",
    "bcp_cold": "BCP, scaled λn = 100,000",
    "bcp_cold_1_chain": "BCP, scaled λn = 100,000, 1 chain",
    "control_bcp_cold": "warm starts at its feasibility",
    "bcp_strict": "BCP, scaled λn = 100,000, strict",
    "control_bcp_strict": "warm starts at that feasibility",
    "bcp_raw": "BCP, raw λn = 1000",
    "bcp_raw_1_chain": "BCP raw, 1 chain",
    "control_bcp_raw": "warm starts at raw BCP's feasibility",
    "bcp_20_regular": "BCP, 20 draws at regular steps",
    "bcp_20_support": "BCP, 20 support points",
}


@dataclass(frozen=True)
class Figures:
    """A method's means over runs of one size."""

    method: str
    runs: int
    feasibility: Estimate
    regret: Estimate
    beyond_reach: float
    seconds: float


@dataclass(frozen=True)
class SizeSummary:
    """One size: every method's figures, and the difference of BCP's regret from the control's at equal feasibility."""

    n: int
    figures: list[Figures]
    differences: dict[str, Estimate]


def summarize(results: Iterable[PortfolioResult]) -> list[SizeSummary]:
    found: dict[int, dict[str, dict[PortfolioRun, PortfolioResult]]] = defaultdict(lambda: defaultdict(dict))
    for result in results:
        found[result.run.n][result.method][result.run] = result
    return [_summary(n, found[n]) for n in sorted(found)]


def _summary(n: int, by_method: dict[str, dict[PortfolioRun, PortfolioResult]]) -> SizeSummary:
    def column(method: str, name: str) -> torch.Tensor:
        return torch.tensor([getattr(result, name) for result in by_method[method].values()], dtype=torch.float64)

    figures = [
        Figures(
            method,
            len(by_method[method]),
            estimate(column(method, "feasibility")),
            estimate(column(method, "regret")),
            column(method, "beyond_reach").mean().item(),
            column(method, "seconds").mean().item(),
        )
        for method in TITLES
        if method in by_method
    ]
    differences = {}
    for method in CONTROLLED:
        both = sorted(by_method.get(method, {}).keys() & by_method.get(f"control_{method}", {}).keys())
        if both:
            ours, theirs = (
                torch.tensor([by_method[name][run].regret for run in both], dtype=torch.float64)
                for name in (method, f"control_{method}")
            )
            differences[method] = paired_difference(ours, theirs)
    return SizeSummary(n, figures, differences)


def as_json(summaries: Sequence[SizeSummary]) -> dict[str, Any]:
    """Return plain figures: feasibility, regret and runs of each method by size, and the paired differences."""
    return {
        f"n{summary.n}": {figures.method: _finite(asdict(figures)) for figures in summary.figures}
        | {f"{method}_minus_control": _finite(asdict(result)) for method, result in summary.differences.items()}
        for summary in summaries
    }


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """Replace infinities by None, since JSON has none: the standard error of a single run is null."""
    return {
        name: _finite(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for name, value in figures.items()
    }


def markdown(summaries: Sequence[SizeSummary], remarks: str = "") -> str:
    """Return the table of all sizes and the paired differences."""
    head = ["n", "method", "runs", "feasibility ± se", "regret ± se", "beyond reach", "CPU s"]
    lines = [line(head), line(["---:", "---", *["---:"] * 5])]
    for summary in summaries:
        for row in summary.figures:
            cells = [str(summary.n), TITLES[row.method], str(row.runs), _with_error(row.feasibility, 3)]
            lines.append(line([*cells, _with_error(row.regret, 2), f"{row.beyond_reach:.3f}", f"{row.seconds:.1f}"]))
    differences = [
        f"- n = {summary.n}: {TITLES[method]} − warm starts at equal feasibility: {_with_error(result, 3)}"
        for summary in summaries
        for method, result in summary.differences.items()
    ]
    return "\n".join(
        [
            "# Return-constrained portfolio: feasibility and relative regret",
            "",
            "Feasibility is the share of the fixed test rows whose return reaches the target, 0.09 (required: 0.95).",
            "Regret is the variance of those decisions relative to that of an oracle that knows the returns (one is",
            "best). *Beyond reach* is the share of contexts in which no portfolio could promise the target, where the",
            "decision is a best effort. Means over runs, their standard errors; methods of a run have the same rows.",
            "",
            *lines,
            "",
            "Regret, paired over runs (negative: sampling gains over its own starts):",
            "",
            *(differences or ["- not run"]),
            *(["", remarks.strip()] if remarks.strip() else []),
            "",
        ]
    )


def _with_error(found: Estimate, digits: int) -> str:
    error = f" ± {found.standard_error:.{digits}f}" if math.isfinite(found.standard_error) else ""
    return f"{found.mean:.{digits}f}{error}"


def plot(results: Sequence[PortfolioResult], path: Path) -> None:
    """Draw box plots as in the paper's figure: feasibility on the left, regret on the right. Needs matplotlib."""
    from matplotlib.figure import Figure

    sizes = sorted({result.run.n for result in results})
    methods = [method for method in TITLES if any(result.method == method for result in results) and method != "saa"]
    figure = Figure(figsize=(13, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, name, title in zip(
        panels, ("feasibility", "regret"), ("feasibility on test rows", "relative regret"), strict=True
    ):
        width = 0.8 / len(methods)
        for index, method in enumerate(methods):
            values = [[getattr(r, name) for r in results if r.method == method and r.run.n == n] for n in sizes]
            at = [place + (index - (len(methods) - 1) / 2) * width for place in range(len(sizes))]
            shown = [(where, some) for where, some in zip(at, values, strict=True) if some]
            if not shown:
                continue
            boxes = panel.boxplot(
                [some for _, some in shown],
                positions=[where for where, _ in shown],
                widths=0.8 * width,
                patch_artist=True,
                manage_ticks=False,
                medianprops={"color": "black"},
                flierprops={"markersize": 2},
            )
            for box in boxes["boxes"]:
                box.set_facecolor(f"C{index % 10}")
            panel.plot([], [], "s", color=f"C{index % 10}", label=TITLES[method])
        panel.set_xticks(range(len(sizes)), [f"n = {n}" for n in sizes])
        panel.set_title(title)
        panel.grid(axis="y", alpha=0.3)
    panels[0].axhline(0.95, color="grey", linestyle="--", linewidth=1)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    figure.savefig(path, dpi=120)
