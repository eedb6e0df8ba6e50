"""Report of the shipment results: a table of all cells with paired differences, and box plots as in the paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.experiments.compare import compare, counts, line, sentence, strongest, tally
from benchmarks.experiments.harness import Finding, Key
from benchmarks.experiments.shipment.run import METHODS, NOISY, SIZES

TITLES = {
    "floor": "floor",
    "saa": "SAA",
    "enw": "ENW",
    "knn": "kNN",
    "forest": "forest",
    "ieo": "IEO",
    "ieo_ensemble": "IEO ensemble",
    "regression": "regression",
    "tps": "TPS",
    "map": "MAP",
    "bcp": "BCP",
    "auto": "auto",
    "averaged": "averaged",
    "predictive": "predictive",
}
# TPS and MAP use BCP's posterior; averaged and predictive use auto's.
RIVALS = ("saa", "enw", "knn", "forest", "ieo", "ieo_ensemble", "regression", "tps", "map", "bcp")
SINGLE = ("ieo", "enw", "bcp")

# Costs of every method by run, for each (noisy dimensions, n).
Cells = dict[tuple[int, int], dict[str, dict[Key, float]]]


def by_cell(findings: Iterable[Finding]) -> Cells:
    cells: Cells = defaultdict(lambda: defaultdict(dict))
    for finding in findings:
        noisy, size = int(finding.run[0]), int(finding.run[1])
        cells[noisy, size][finding.method][finding.run] = finding.value
    return {(noisy, size): cells[noisy, size] for noisy in NOISY for size in SIZES if (noisy, size) in cells}


def overall(cells: Cells) -> dict[str, float | int]:
    """Return means over cells, and counts of cells against the strongest rival of each and against single ones."""
    figures: dict[str, float | int] = {"cells": len(cells)}
    for method in METHODS:
        means = [_mean(costs[method]) for costs in cells.values() if method in costs]
        if means:
            figures[f"{method}_mean"] = sum(means) / len(means)
    figures |= tally("strongest", (strongest(costs, "auto", RIVALS) for costs in cells.values()))
    for rival in SINGLE:
        figures |= tally(rival, (compare(costs, "auto", rival) for costs in cells.values()))
    return figures


def markdown(cells: Cells) -> str:
    methods = [method for method in TITLES if any(method in costs for costs in cells.values())]
    head = ["noisy dims", "n", "runs", *(TITLES[m] for m in methods)]
    head += ["strongest baseline", "auto − strongest ± se", "paired runs"]
    lines = [line(head), line(["---:"] * len(head))]
    for (noisy, size), costs in cells.items():
        shown = [_spread(costs.get(method, {})) for method in methods]
        beside = strongest(costs, "auto", RIVALS)
        against = [TITLES[beside.rival], beside.text(".0f"), str(beside.runs)] if beside else ["", "", ""]
        lines.append(line([str(noisy), str(size), counts(costs, methods), *shown, *against]))
    figures = overall(cells)
    titles = {"strongest": "the strongest baseline"} | {rival: TITLES[rival] for rival in SINGLE}
    counted = [sentence(title, name, figures) for name, title in titles.items() if f"cells_beside_{name}" in figures]
    return "\n".join(
        [
            "# Shipment: mean cost out of sample, with its standard deviation over runs",
            "",
            "TPS, MAP and BCP share the posterior of Algorithm 1 as printed; auto, averaged and predictive share the",
            "one that `auto` learns, deciding by the policy it recommends, by the averaged decision, and by SAA over",
            "predictive scenarios. *Regression* predicts by ridge or splines and decides over the errors it made out",
            "of fold. The floor is SAA on the true conditional distribution. Differences are paired over the runs that",
            "have both. The strongest baseline is the one over which auto gains least, chosen on these same runs,",
            "which favours the baselines. Won and lost: beyond two standard errors. `bco experiment shipment` writes",
            "this from `shipment.csv` and adds runs to it.",
            "",
            *lines,
            "",
            *(["Cells of auto against", "", *counted, ""] if counted else []),
        ]
    )


def plot(cells: Cells, path: Path) -> None:
    """Draw box plots: a panel for each number of noisy dimensions, a group for each n."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    shown = [
        m
        for m in ("enw", "ieo", "ieo_ensemble", "regression", "map", "bcp", "auto")
        if any(m in costs for costs in cells.values())
    ]
    panels = sorted({noisy for noisy, _ in cells})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 4.2), sharey=True, squeeze=False)
    colours = dict(zip(shown, pyplot.get_cmap("tab10").colors, strict=False))  # type: ignore[attr-defined]
    for axis, noisy in zip(axes[0], panels, strict=True):
        sizes = [size for dims, size in cells if dims == noisy]
        for group, size in enumerate(sizes):
            costs = cells[noisy, size]
            for place, method in enumerate(shown):
                if method in costs:
                    box = axis.boxplot(
                        list(costs[method].values()),
                        positions=[group + (place - (len(shown) - 1) / 2) * 0.13],
                        widths=0.11,
                        patch_artist=True,
                        manage_ticks=False,
                        flierprops={"markersize": 2},
                        medianprops={"color": "black"},
                    )
                    box["boxes"][0].set_facecolor(colours[method])
            if "floor" in costs:
                axis.hlines(_mean(costs["floor"]), group - 0.45, group + 0.45, color="grey", linestyle=":")
        axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axis.set_xlabel("n")
        axis.set_title(f"{noisy} noisy dimensions")
    axes[0][0].set_ylabel("cost out of sample")
    handles = [Patch(color=colours[method], label=TITLES[method]) for method in shown]
    figure.legend(handles=handles, loc="lower center", ncols=len(shown), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _mean(costs: dict[Key, float]) -> float:
    return sum(costs.values()) / len(costs)


def _spread(costs: dict[Key, float]) -> str:
    if not costs:
        return ""
    values = torch.tensor(list(costs.values()), dtype=torch.float64)
    return f"{values.mean():.0f} ({values.std():.0f})" if len(values) > 1 else f"{values.mean():.0f}"
