"""The two-stage kernels compared with HiGHS and cvxpy on the paper's shipment problem, all timed in one run."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy import sparse
from torch import Tensor

from app.problems import schemas as problems
from bco_core.inference.learn import learn
from bco_core.inference.options import ViOptions
from bco_core.predictors.registry import PredictorOptions
from bco_core.problems.base import EXPECTATION
from bco_core.problems.linear.two_stage import TwoStageLinear, solve_extensive
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearProgram
from benchmarks.bench.clients import load
from benchmarks.bench.serving import fresh_service, train
from benchmarks.experiments.shipment.data import (
    draw_contexts,
    draw_outcomes,
    draw_sample,
    shipment_problem,
    shipment_spec,
)
from benchmarks.experiments.shipment.run import BATCH, PATIENCE, VALIDATION_ROWS

QUERIES, ROUNDS = 2000, 5
# Slow contestants get fewer queries and fast ones repeat theirs, so that each runs for milliseconds.
HIGHS_QUERIES, CVXPY_QUERIES = 300, 60
REPEATS = 10


def run(as_json: bool) -> dict[str, float]:
    """Time the contestants in turns, so that other load on the machine affects all alike, and compare medians."""
    torch.set_num_threads(1)
    problem = shipment_problem()
    generator = torch.Generator().manual_seed(0)
    contexts = draw_contexts(QUERIES, 0, generator)
    outcomes = draw_outcomes(contexts, 1, generator)[:, 0]
    decisions = problem.decide(draw_outcomes(contexts, 1, generator)[:, 0])
    stages = problem.stages
    later = stages.second.limits.constant + outcomes.numpy() @ stages.by_outcome.T
    limits = later - decisions.numpy() @ stages.by_decision.T
    several = {count: draw_outcomes(contexts[:5], count, generator) for count in (100, 1000)}

    contestants: dict[str, tuple[int, Callable[[], object]]] = {
        "recourse": (REPEATS * QUERIES, lambda: [problem.cost(decisions, outcomes) for _ in range(REPEATS)]),
        "recourse_highspy": (HIGHS_QUERIES, _warm_highs(stages.recourse_program, limits[:HIGHS_QUERIES])),
        "recourse_cvxpy": (CVXPY_QUERIES, _cvxpy(stages.recourse_program, limits[:CVXPY_QUERIES])),
        "point": (REPEATS * QUERIES, lambda: [problem.decide(outcomes) for _ in range(REPEATS)]),
        "point_highspy": (HIGHS_QUERIES, _warm_highs(stages.combined_program(), later[:HIGHS_QUERIES])),
        "saa100": (5, lambda: _prescribe(problem, several[100])),
        "saa100_highs": (1, lambda: solve_extensive(stages, several[100][0].numpy(), _equal(100), EXPECTATION, None)),
        "saa1000": (5, lambda: _prescribe(problem, several[1000])),
        "saa1000_highs": (
            1,
            lambda: solve_extensive(stages, several[1000][0].numpy(), _equal(1000), EXPECTATION, None),
        ),
    }
    for _, contestant in contestants.values():
        contestant()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in track(range(ROUNDS), "timing", console=Console(stderr=True), transient=True):
        for name, (count, contestant) in contestants.items():
            began = time.perf_counter()
            contestant()
            times[name].append((time.perf_counter() - began) / count)
    each = {name: statistics.median(values) for name, values in times.items()}
    figures = {
        "recourse_us": each["recourse"] * 1e6,
        "point_us": each["point"] * 1e6,
        "saa100_ms": each["saa100"] * 1e3,
        "saa1000_ms": each["saa1000"] * 1e3,
        "recourse_vs_highspy": each["recourse_highspy"] / each["recourse"],
        "recourse_vs_cvxpy": each["recourse_cvxpy"] / each["recourse"],
        "point_vs_highspy": each["point_highspy"] / each["point"],
        "saa100_vs_highs": each["saa100_highs"] / each["saa100"],
        "saa1000_vs_highs": each["saa1000_highs"] / each["saa1000"],
        "worst_relative_error": _worst_error(problem, several[100]),
        "vi_n400_s": _vi_seconds(problem),
        "http_k100_p50_ms": _http_milliseconds(),
    }
    if as_json:
        Console().print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}), soft_wrap=True)
    else:
        for name, value in figures.items():
            Console().print(f"{name:24}{value:12.4g}")
    return figures


def _equal(count: int) -> Array:
    return np.full(count, 1 / count)


def _prescribe(problem: TwoStageLinear, outcomes: Tensor) -> Tensor:
    weights = torch.full((outcomes.shape[1],), 1 / outcomes.shape[1], dtype=torch.float64)
    return problem.prescribe(outcomes, weights).objective


def _worst_error(problem: TwoStageLinear, outcomes: Tensor) -> float:
    """Return the largest error of the cutting planes' objective, relative to the extensive form's."""
    ours = _prescribe(problem, outcomes).tolist()
    exact = [
        solve_extensive(problem.stages, one.numpy(), _equal(len(one)), EXPECTATION, None).objective for one in outcomes
    ]
    return max(float(abs(a - b) / abs(b)) for a, b in zip(ours, exact, strict=True))


def _vi_seconds(problem: TwoStageLinear) -> float:
    """Return the seconds of Algorithm 1 with the affine predictor on 400 training and 50 validation rows."""
    sample = draw_sample(400 + VALIDATION_ROWS, 0, torch.Generator().manual_seed(1))
    options = ViOptions(
        predictor=PredictorOptions("relu_affine"),
        family="gaussian",
        batch_size=BATCH,
        patience=PATIENCE,
        learning_rate=0.03,
        initial_scale=0.3,
    )
    learn(problem, sample, replace(options, epochs=2))
    began = time.perf_counter()
    learn(problem, sample, options)
    return time.perf_counter() - began


def _http_milliseconds() -> float:
    """Return the median milliseconds of warm prescribe calls over HTTP, each for one context and 100 scenarios."""
    spec = shipment_spec()
    sample = draw_sample(400, 0, torch.Generator().manual_seed(1))
    contexts = [{f"x{j + 1}": value for j, value in enumerate(row)} for row in sample.contexts.tolist()]
    places = problems.outcome_names(spec)
    rows = [
        context | dict(zip(places, demands, strict=True))
        for context, demands in zip(contexts, sample.outcomes.tolist(), strict=True)
    ]
    with fresh_service() as (service, client):
        problem = client.post("/v1/problems", json={"name": "shipment", "spec": spec}).raise_for_status().json()
        dataset = client.post("/v1/datasets", json={"name": "bench", "outcomes": places, "rows": rows})
        _, posterior = train(
            client,
            {
                "problem_id": problem["id"],
                "dataset_id": dataset.raise_for_status().json()["id"],
                "predictor": {"kind": "relu_affine"},
                "inference": {"method": "vi", "epochs": 20},
                "policy": "bcp",
            },
        )
        address = f"{service.url}/v1/posteriors/{posterior}/prescribe"
        bodies = [{"contexts": [context], "scenarios": 100} for context in contexts]
        # The first calls warm the caches and the bases.
        asyncio.run(load(address, bodies, 1, 2.0))
        return asyncio.run(load(address, bodies, 1, 5.0))["p50_ms"]


def _warm_highs(program: LinearProgram, limits: Array) -> Callable[[], None]:
    """Return queries to one HiGHS model, built once; each changes the row bounds and starts from the last basis."""
    missing = len(program.senses) - limits.shape[1]
    limits = np.concatenate([np.zeros((len(limits), missing)), limits], axis=1)
    lower = np.where(program.senses >= 0, limits, -np.inf)
    upper = np.where(program.senses <= 0, limits, np.inf)
    matrix = sparse.csr_array(program.matrix)
    solver: Any = highs.model_of(program.cost, matrix, lower[0], upper[0], program.lower, program.upper)
    index = np.arange(limits.shape[1])

    def solve() -> None:
        for low, high in zip(lower, upper, strict=True):
            solver.changeRowsBounds(len(index), index, low, high)
            solver.run()

    return solve


def _cvxpy(program: LinearProgram, limits: Array) -> Callable[[], None]:
    """Return queries to one parametrised cvxpy problem, compiled once."""
    import cvxpy

    x = cvxpy.Variable(len(program.cost))
    right = cvxpy.Parameter(limits.shape[1])
    rows = program.matrix @ x - right
    kept = [rows[program.senses >= 0] >= 0, rows[program.senses <= 0] <= 0, x >= program.lower]
    model: Any = cvxpy.Problem(cvxpy.Minimize(program.cost @ x), kept)

    def solve() -> None:
        for limit in limits:
            right.value = limit
            model.solve(solver=cvxpy.HIGHS)

    return solve
