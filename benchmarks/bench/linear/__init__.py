"""``bco bench linear``: linear models whose costs, limits or coefficients are uncertain, compared with HiGHS."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from rich.console import Console

from benchmarks.bench.linear import files, oracle, saa

# Each returns its figures by name.
FIGURES: list[Callable[[], dict[str, float]]] = [
    oracle.figures,
    saa.figures,
    files.figures,
]


def run(as_json: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    result: dict[str, float] = {}
    for figures in FIGURES:
        result |= figures()
    if as_json:
        Console().print(json.dumps(result), soft_wrap=True, highlight=False)
    else:
        for name, value in result.items():
            Console().print(f"{name:36}{value:16,.3f}", highlight=False)
    return result
