"""Time of a step of variational inference compared with plain IEO, and of eight members compared with one."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bco_core.data import Folds, Sample
from bco_core.distributions import FAMILIES
from bco_core.gibbs import make_target
from bco_core.inference.training import MINIMUM_STEPS_PER_EPOCH
from bco_core.inference.vi.variational import VariationalOptions, fit_variational
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor

ROWS, BATCH, HIDDEN = 1280, 128, 128
ROUNDS, EPOCHS = 15, 3


def run(as_json: bool) -> dict[str, float]:
    """Time the contestants in turns, so that other load on the machine affects all alike, and compare medians."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    contexts = torch.rand(ROWS, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    sample = Sample(contexts, 3 * contexts.sum(dim=1, keepdim=True) + noise)
    contestants: dict[str, Callable[[], None]] = {
        "ieo": _ieo(sample),
        "vi": _vi(sample, 1),
        "vi8": _vi(sample, 8),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in track(range(ROUNDS), "timing", console=Console(stderr=True), transient=True):
        for name, contestant in contestants.items():
            began = time.perf_counter()
            contestant()
            times[name].append((time.perf_counter() - began) / (EPOCHS * MINIMUM_STEPS_PER_EPOCH))
    medians = {name: statistics.median(values) for name, values in times.items()}
    figures = {
        "ieo_step_ms": round(medians["ieo"] * 1000, 3),
        "vi_step_ms": round(medians["vi"] * 1000, 3),
        "vi_over_ieo_step": round(medians["vi"] / medians["ieo"], 3),
        "restarts8_over_1": round(medians["vi8"] / medians["vi"], 3),
    }
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, value in figures.items():
            Console().print(f"{name:20}{value:10.3f}")
    return figures


def _problem() -> Newsvendor:
    return Newsvendor.from_spec({"items": [{"underage_cost": 0.75, "overage_cost": 0.25}]})


def _ieo(sample: Sample) -> Callable[[], None]:
    """Return the steps of a plain point estimate: torch modules, torch's Adam, the same network, batch and cost."""
    problem = _problem()
    network = torch.nn.Sequential(
        torch.nn.Linear(8, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, 1),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
    contexts: Tensor = sample.contexts.float()
    penalty = 1e-5

    def steps() -> None:
        for _ in range(EPOCHS):
            for rows in torch.randperm(ROWS).split(BATCH):
                decisions = network(contexts[rows]).double()
                risk = problem.cost(decisions, sample.outcomes[rows]).mean()
                loss = risk + penalty * sum(weights.abs().sum() for weights in network.parameters())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return steps


def _vi(sample: Sample, members: int) -> Callable[[], None]:
    target = make_target(_problem(), build_predictor("mlp", sample, (HIDDEN, HIDDEN)), sample, FAMILIES["laplace"])
    everyone = torch.arange(ROWS).repeat(members, 1)
    options = VariationalOptions(epochs=EPOCHS, patience=None, batch_size=BATCH, averaging=False)

    def steps() -> None:
        generator = torch.Generator().manual_seed(1)
        fit_variational(target, Folds(everyone, everyone[:, :1]), options, generator)

    return steps
