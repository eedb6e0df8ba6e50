"""Report of the real histories: the figures as a dict, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.experiments.harness import append_rows, read_rows
from benchmarks.experiments.real.run import RULES, Figure

COLUMNS = Figure._fields
METHODS = ("auto", *reversed(RULES))
_SETS = ("electricity", "store_item")


def keep(path: Path, found: Sequence[Figure]) -> None:
    append_rows(path, COLUMNS, [(*one[:4], f"{one.value:.6g}") for one in found])


def read(path: Path) -> list[Figure]:
    return [
        Figure(row["history"], float(row["level"]), row["method"], row["figure"], float(row["value"]))
        for row in read_rows(path)
    ]


def figures(found: Sequence[Figure]) -> dict[str, float]:
    """Return one number for each question: means over critical fractiles, and over the seeds of the random walk."""
    means: dict[str, float] = {}
    for name in _SETS:
        for figure, key in (
            ("vs_lightgbm", f"{name}_vs_lightgbm"),
            ("seconds", f"{name}_seconds"),
            ("coverage90", f"{name}_coverage90"),
            ("promise", f"{name}_promise"),
        ):
            _put(means, key, [one.value for one in found if one[0] == name and one[2:4] == ("auto", figure)])
    drifts = [one for one in found if one.history == "drift"]
    for figure, key in (("promise", "drift_promise"), ("above95", "drift_above95"), ("ok", "drift_ok")):
        _put(means, key, [one.value for one in drifts if one.figure == figure])
    for one in found:
        if one.history in ("speed", "yaz"):
            means[one.figure] = one.value
    return means


def _put(means: dict[str, float], key: str, values: Sequence[float]) -> None:
    if values:
        means[key] = sum(values) / len(values)


def table(found: Sequence[Figure]) -> list[str]:
    """Return a table of costs by method, relative to LightGBM, with standard errors."""
    lines = ["| history | τ | " + " | ".join(METHODS) + " |", "| --- | ---: |" + " ---: |" * len(METHODS)]
    for name in _SETS:
        for level in sorted({one.level for one in found if one.history == name}):
            own = {(one.method, one.figure): one.value for one in found if (one.history, one.level) == (name, level)}
            reference = own.get(("lightgbm", "cost"))
            cells = []
            for method in METHODS:
                cost, error = own.get((method, "cost")), own.get((method, "vs_lightgbm_se"))
                if cost is None or reference is None:
                    cells.append("")
                else:
                    cells.append(f"{cost / reference:.3f}" + (f" ± {error:.3f}" if error else ""))
            lines.append(f"| {name} | {level:g} | " + " | ".join(cells) + " |")
    return lines
