"""``bco bench planner``: time of the questions after a decision."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable

import torch
from rich.console import Console

from benchmarks.bench.planner.backtest import backtest_rows_per_s
from benchmarks.bench.planner.evaluate import evaluate_p50_ms
from benchmarks.bench.planner.include import prescribe_full
from benchmarks.bench.planner.log import log_overhead
from benchmarks.bench.planner.newsvendor import newsvendor_budget_vs_highs


def run(as_json: bool) -> dict[str, float]:
    """Measure and print all figures, one after another, so that none slows another."""
    torch.set_num_threads(1)
    message = Console(stderr=True)
    figures: dict[str, float] = {}
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "decisions of one's own": evaluate_p50_ms,
        "opened answers": prescribe_full,
        "the log": log_overhead,
        "a newsvendor's budget": _budget,
        "a backtest": backtest_rows_per_s,
    }
    for name, measured in measures.items():
        with message.status(f"measuring {name}"):
            figures |= measured()
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, value in figures.items():
            Console().print(f"{name:30}{value:14.4g}")
    return figures


def _budget() -> dict[str, float]:
    ratio = statistics.median(newsvendor_budget_vs_highs(seed) for seed in range(3))
    return {"newsvendor_budget_vs_highs": round(ratio, 1)}
