"""Report of the contextual results: a table of all cells with paired differences, and the figures to show.

SPO+ means PyEPO's where it ran, else our own. ``vs_spo_n100`` is the normalised regret of ``auto`` minus that of
SPO+, averaged over seeds; each seed enters by its mean over degrees 4 and 6, since a seed's degrees share its map.
``vs_spo_n100_se`` is its standard error over seeds. ``vs_ols_deg1`` is the difference from least squares at degree 1,
each seed by its mean over sizes.

``speedup_vs_pyepo`` is the processor seconds that PyEPO's SPO+ takes to reach the regret of ``auto``, summed over the
runs that have both, divided by the sum of the seconds in which ``auto`` learns. PyEPO is evaluated after each tenth of
its epochs; the first evaluation that is at least as good counts, or all of its training if none is. Prediction counts
for neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.experiments.compare import Comparison, compare, counts, line, sentence, strongest, tally
from benchmarks.experiments.contextual.run import PYEPO
from benchmarks.experiments.harness import Finding, Key

TITLES = {
    "floor": "floor",
    "ols": "OLS",
    "ridge": "ridge",
    "boosted": "boosted",
    "spo": "SPO+",
    PYEPO: "SPO+ of PyEPO",
    "auto": "auto",
}
RIVALS = ("ols", "ridge", "boosted", "spo", PYEPO)
NONLINEAR = (4, 6)

# Normalised regrets of every method by run, for each (degree, n).
Cells = dict[tuple[int, int], dict[str, dict[Key, float]]]


def by_cell(findings: Iterable[Finding]) -> Cells:
    cells: Cells = defaultdict(lambda: defaultdict(dict))
    for finding in findings:
        cells[int(finding.run[0]), int(finding.run[1])][finding.method][finding.run] = finding.value
    return {cell: cells[cell] for cell in sorted(cells, key=lambda cell: (cell[1], cell[0]))}


def figures(findings: list[Finding]) -> dict[str, Any]:
    """Return the figures of the module's docstring for which there are runs, and the table by cell."""
    cells = by_cell(findings)
    rival = spo_rival(cells)
    total: dict[str, Any] = {"spo": TITLES[rival]}
    for rows in (100, 1000):
        total |= _figure(f"vs_spo_n{rows}", over_seeds(cells, rival, lambda d, n, r=rows: n == r and d in NONLINEAR))  # type: ignore[misc]
    total |= _figure("vs_ols_deg1", over_seeds(cells, "ols", lambda degree, n: degree == 1))
    ratio = speedup(findings)
    if ratio is not None:
        total["speedup_vs_pyepo"] = ratio
    total |= tally("strongest", (strongest(values, "auto", RIVALS) for values in cells.values()))
    total["cells"] = [
        {"degree": degree, "n": rows, "seeds": counts(values, TITLES), "regret": _means(values)}
        | {"seconds": _means(_seconds(findings, (degree, rows)))}
        | {f"vs_{one}": beside.difference.mean for one in RIVALS if (beside := compare(values, "auto", one))}
        for (degree, rows), values in cells.items()
    ]
    return total


def spo_rival(cells: Cells) -> str:
    """Return PyEPO's SPO+ where it ran, else our own."""
    return PYEPO if any(PYEPO in values for values in cells.values()) else "spo"


def over_seeds(cells: Cells, rival: str, wanted: Callable[[int, int], bool]) -> Comparison | None:
    """Compare ``auto`` with a rival, each seed by its mean over the wanted cells; seeds lacking a cell are left out."""
    pooled: dict[str, dict[int, list[float]]] = {"auto": defaultdict(list), rival: defaultdict(list)}
    for (degree, rows), values in cells.items():
        if wanted(degree, rows):
            for run in values.get("auto", {}).keys() & values.get(rival, {}).keys():
                for method in pooled:
                    pooled[method][int(run[2])].append(values[method][run])
    whole = max((len(values) for values in pooled["auto"].values()), default=0)
    means = {
        method: {seed: _mean(values) for seed, values in by_seed.items() if len(values) == whole}
        for method, by_seed in pooled.items()
    }
    return compare(means, "auto", rival)


def speedup(findings: Iterable[Finding]) -> float | None:
    ours: dict[Key, Finding] = {}
    theirs: dict[Key, list[Finding]] = defaultdict(list)
    for one in findings:
        if one.method == "auto":
            ours[one.run] = one
        elif one.method.startswith(PYEPO):
            theirs[one.run].append(one)
    both = ours.keys() & theirs.keys()
    if not both:
        return None
    reached = 0.0
    for run in both:
        looks = sorted(theirs[run], key=lambda look: look.seconds)
        reached += next((look.seconds for look in looks if look.value <= ours[run].value), looks[-1].seconds)
    return reached / max(sum(ours[run].seconds for run in both), 1e-9)


def markdown(name: str, findings: list[Finding]) -> str:
    cells = by_cell(findings)
    methods = [method for method in TITLES if any(method in values for values in cells.values())]
    head = ["degree", "n", "seeds", *(TITLES[m] for m in methods)]
    head += ["strongest rival", "auto − strongest ± se", f"auto − {TITLES[spo_rival(cells)]} ± se"]
    lines = [line(head), line(["---:"] * len(head))]
    for (degree, rows), values in cells.items():
        shown = [f"{_mean(values[m].values()):.4f}" if m in values else "" for m in methods]
        beside, published = strongest(values, "auto", RIVALS), compare(values, "auto", spo_rival(cells))
        against = [TITLES[beside.rival], beside.text(".4f")] if beside else ["", ""]
        against.append(published.text(".4f") if published else "")
        lines.append(line([str(degree), str(rows), counts(values, methods), *shown, *against]))
    sizes = sorted({rows for _, rows in cells})
    spent = [line(["n", *(TITLES[m] for m in methods)]), line(["---:"] * (len(methods) + 1))]
    for rows in sizes:
        means = _means(_seconds(findings, (None, rows)))
        spent.append(line([str(rows), *(f"{means[m]:.2f}" if m in means else "" for m in methods)]))
    total = figures(findings)
    return "\n".join(
        [
            f"# {TITLE[name]}: mean normalised regret on fresh rows",
            "",
            "PyEPO's data: five features, noise of half-width 0.5, 2,000 test rows a run; a seed draws one map from",
            "contexts to costs. The floor decides by the true mean costs. Boosted is LightGBM, one outcome at a time;",
            "SPO+ is our own, its rate and steps chosen by cross-validation; SPO+ of PyEPO trains with Adam at",
            "rate 0.01, not tuned, in a process of its own. Differences are paired by seed. The strongest rival is",
            "the one over which auto gains least, chosen on these same runs, which favours the rivals. Won and lost:",
            f"beyond two standard errors. `bco experiment {name}` writes this from `{name}.csv` and adds runs to it.",
            "",
            *lines,
            "",
            *([sentence("the strongest rival", "strongest", total), ""] if "cells_beside_strongest" in total else []),
            *([] if {"spo", PYEPO} & set(methods) else ["SPO+ has not run yet: the strongest rival is missing.", ""]),
            "Processor seconds of learning, mean over runs:",
            "",
            *spent,
            "",
            *(
                [
                    f"PyEPO's SPO+ takes {total['speedup_vs_pyepo']:.1f} times as long as auto to reach auto's regret.",
                    "",
                ]
                if "speedup_vs_pyepo" in total
                else []
            ),
        ]
    )


TITLE = {"shortest-path": "Shortest path on a 5 × 5 grid", "knapsack": "Knapsack of 32 items in three dimensions"}


def _figure(name: str, beside: Comparison | None) -> dict[str, float]:
    if beside is None:
        return {}
    return {
        name: beside.difference.mean,
        f"{name}_se": beside.difference.standard_error,
        f"{name}_seeds": beside.runs,
    }


def _seconds(findings: Iterable[Finding], cell: tuple[int | None, int]) -> dict[str, dict[Key, float]]:
    seconds: dict[str, dict[Key, float]] = defaultdict(dict)
    for one in findings:
        if one.method in TITLES and cell[0] in (None, one.run[0]) and cell[1] == one.run[1]:
            seconds[one.method][one.run] = one.seconds
    return seconds


def _means(values: dict[str, dict[Key, float]]) -> dict[str, float]:
    return {method: _mean(values[method].values()) for method in TITLES if method in values}


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
