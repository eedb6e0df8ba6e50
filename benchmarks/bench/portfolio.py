"""The portfolio kernels compared with daqp and cvxpy, and the time of the paper's four chains.

Contestants take turns, each in one thread, and medians of their processor time are compared, so that other load on the
machine matters little. The answers are checked against each other. cvxpy comes with the ``dev`` extra.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import daqp
import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from bco_core.inference.mh.metropolis import MetropolisOptions, init_chains, join_chains, split_chains
from bco_core.inference.mh.metropolis import run_chains as run_chains
from bco_core.solvers.cvar_cuts import cvar_portfolio
from bco_core.solvers.dual_newton import Array, least_variance
from benchmarks.experiments.portfolio.run import (
    BURN_IN,
    CHAINS,
    CONFIDENCE,
    STEPS,
    TARGET,
    TEMPERATURE,
    Judge,
    Market,
    PortfolioRun,
    PortfolioTrial,
)

ROWS, DAQP_ROWS, CVXPY_ROWS, SCENARIOS = 400, 100, 10, 400
ROUNDS = 9


def run(as_json: bool, steps: int = STEPS) -> dict[str, float]:
    torch.set_num_threads(1)
    market = Market.make()
    figures = _point(market) | _tail(market) | _chains(market, steps)
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, value in figures.items():
            Console().print(f"{name:24}{value:14.4g}")
    return figures


def _timed(contestants: dict[str, tuple[Callable[[], Any], int]], label: str) -> dict[str, float]:
    """Return each contestant's median processor seconds per problem, given how many problems one call solves."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in track(range(ROUNDS), label, console=Console(stderr=True), transient=True):
        for name, (act, count) in contestants.items():
            began = time.process_time()
            act()
            times[name].append((time.process_time() - began) / count)
    return {name: statistics.median(values) for name, values in times.items()}


def _point(market: Market) -> dict[str, float]:
    """Time the inner QP on predictions like those of a sampler."""
    cp: Any = import_module("cvxpy")
    sample = market.draw(ROWS, 1)
    returns = (sample.contexts @ market.slopes + 0.1 + 0.2 * (sample.outcomes - 0.1)).numpy()
    portfolios = market.problem.portfolios
    covariance = portfolios.covariance.numpy() * 1e4
    assets = len(covariance)
    lower = np.r_[np.zeros(assets), TARGET, -1e30]
    rows = np.vstack([returns[0], np.ones(assets)])
    model = daqp.Model()
    model.settings = {"primal_tol": 1e-9, "dual_tol": 1e-12}
    model.setup(covariance, np.zeros(assets), rows, np.r_[np.ones(assets), 1e30, 1.0], lower)
    model.settings = {"primal_tol": 1e-9, "dual_tol": 1e-12}

    def by_daqp() -> Array:
        result = []
        for row in returns[:DAQP_ROWS]:
            rows[0] = row
            model.update(A=rows)
            result.append(model.solve()[0])
        return np.array(result)

    z, parameter = cp.Variable(assets, nonneg=True), cp.Parameter(assets)
    constraints = [parameter @ z >= TARGET, cp.sum(z) <= 1]
    problem = cp.Problem(cp.Minimize(cp.quad_form(z, cp.psd_wrap(covariance))), constraints)

    def by_cvxpy() -> Array:
        result = []
        for row in returns[:CVXPY_ROWS]:
            parameter.value = row
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
            result.append(z.value)
        return np.array(result)

    ours, _ = least_variance(portfolios.factors, returns, TARGET)
    reach = returns.max(axis=1) >= TARGET

    def error(theirs: Array) -> float:
        """Return the largest relative difference of variances, over rows that reach the target."""
        kept = reach[: len(theirs)]
        mine, other = (np.einsum("ni,ij,nj->n", v, covariance, v) for v in (ours[: len(theirs)][kept], theirs[kept]))
        return float(np.abs(mine / other - 1).max())

    errors = error(by_daqp()), error(by_cvxpy())
    medians = _timed(
        {
            "newton": (lambda: least_variance(portfolios.factors, returns, TARGET), ROWS),
            "daqp": (by_daqp, DAQP_ROWS),
            "cvxpy": (by_cvxpy, CVXPY_ROWS),
        },
        "inner QP",
    )
    return {
        "qp_us": medians["newton"] * 1e6,
        "daqp_us": medians["daqp"] * 1e6,
        "qp_vs_daqp": medians["daqp"] / medians["newton"],
        "qp_vs_cvxpy": medians["cvxpy"] / medians["newton"],
        "qp_error_to_daqp": errors[0],
        "qp_error_to_cvxpy": errors[1],
    }


def _tail(market: Market) -> dict[str, float]:
    """Time the CVaR prescription over 400 scenarios, for contexts in which the target can be promised."""
    cp: Any = import_module("cvxpy")
    portfolios = market.problem.portfolios
    covariance = portfolios.covariance.numpy() * 1e4
    assets = len(covariance)
    random = np.random.default_rng(0)
    means = (market.draw(60, 2).contexts @ market.slopes + 0.1).numpy()
    weights = np.full(SCENARIOS, 1 / SCENARIOS)
    spread = 0.012
    cases = [mean + spread * random.normal(size=(SCENARIOS, assets)) for mean in means]
    cases = [case for case in cases if not portfolios.keep_tail(case, weights, CONFIDENCE, TARGET).shortfall][:5]

    z, eta, v = cp.Variable(assets, nonneg=True), cp.Variable(), cp.Variable(SCENARIOS, nonneg=True)
    scenarios = cp.Parameter((SCENARIOS, assets))
    tail = eta + cp.sum(v) / (SCENARIOS * (1 - CONFIDENCE)) <= 0
    model = cp.Problem(
        cp.Minimize(cp.quad_form(z, cp.psd_wrap(covariance))),
        [tail, v >= TARGET - scenarios @ z - eta, cp.sum(z) <= 1],
    )

    def by_cvxpy() -> list[float]:
        values = []
        for case in cases:
            scenarios.value = case
            model.solve(solver=cp.CLARABEL)
            values.append(float(model.value))
        return values

    def by_cuts() -> list[float]:
        result = [portfolios.keep_tail(case, weights, CONFIDENCE, TARGET).portfolio for case in cases]
        return [float(one @ covariance @ one) for one in result]

    def by_daqp() -> list[float]:
        result = [cvar_portfolio(portfolios.dense, case, weights, CONFIDENCE, TARGET).portfolio for case in cases]
        return [float(one @ covariance @ one) for one in result]

    error = float(np.abs(np.array(by_cuts()) / np.array(by_cvxpy()) - 1).max())
    medians = _timed(
        {"cuts": (by_cuts, len(cases)), "daqp": (by_daqp, len(cases)), "cvxpy": (by_cvxpy, len(cases))},
        "CVaR prescription",
    )
    return {
        "cvar400_ms": medians["cuts"] * 1e3,
        "cvar400_vs_cvxpy": medians["cvxpy"] / medians["cuts"],
        "cvar400_vs_daqp_cuts": medians["daqp"] / medians["cuts"],
        "cvar400_error": error,
    }


def _chains(market: Market, steps: int) -> dict[str, float]:
    """Return the wall-clock seconds of four chains of 15,000 steps at n = 400, in two processes as with two workers."""
    trial = PortfolioTrial(market, Judge.of(market, 100), PortfolioRun(400, 0, 0))
    burn_in = min(BURN_IN, steps // 3)
    options = MetropolisOptions(TEMPERATURE, steps, burn_in, stored_draws=100, minimum_feasibility=CONFIDENCE)
    chains = init_chains(trial.target, options, trial.starts, 0)
    with Console(stderr=True).status("four chains"), ProcessPoolExecutor(2, get_context("spawn")) as pool:
        # Start the processes before the clock: it takes seconds, and real workers are already running.
        list(pool.map(torch.set_num_threads, [1, 1]))
        began = time.perf_counter()
        done = join_chains(list(pool.map(partial(run_chains, trial.target, options), split_chains(chains))))
        seconds = time.perf_counter() - began
    return {
        "mh_n400_s": seconds * STEPS / steps,
        "mh_steps": float(steps),
        "mh_chains": float(CHAINS),
        "mh_rejected_early": done.info.early.double().mean().item() / steps,
        "machine_load": os.getloadavg()[0],
    }
