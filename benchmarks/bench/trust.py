"""Promises that the service makes about its decisions, compared with results on fresh rows.

Every history is drawn from its own seed, learned with ``auto``, and judged on fresh rows of the same source.

``promise_*``     expected over realised mean cost (for the portfolio: promised over realised feasibility)
``coverage90_*``  share of fresh outcomes within the predictive 5–95 % range
``cvar_gain``     true CVaR of the decision that minimises CVaR less that of the averaged one, paired; negative wins
``ok_on_noise``   share of posteriors learned from pure noise that are called ok
``false_ok``      share on noise or weak signal that are called ok but truly cost more than the best constant decision
``ok_on_signal``  share called ok where contexts explain most of the outcome
``false_optimal`` share of the ``hard_programs`` two-stage programs whose answer is called optimal but is not, by
                  HiGHS and exact arithmetic
``certificate_ratio``  the certified bound on expected cost over the cost on fresh rows
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bco_core.data import Sample
from bco_core.estimates import estimate
from bco_core.inference.learn import learn
from bco_core.inference.method import Learned
from bco_core.inference.options import make_options
from bco_core.prescribe import PrescribeOptions, decisions, prescribe
from bco_core.problems.base import DecisionProblem, Risk, best_constant
from bco_core.problems.registry import build_problem
from bco_core.seeds import entropy
from benchmarks.bench.hard_programs import false_optimal
from benchmarks.experiments.shipment.data import draw_contexts, draw_outcomes, shipment_problem

ROWS, FRESH = 400, 4000
SEEDS = 3
JUDGED = 40
HARD = 2070
# Contexts of the shipment are autocorrelated: rows this far apart are practically independent.
APART = 40
CERTIFIED_ROWS = 1500
CVAR = Risk(cvar_weight=1.0, cvar_level=0.9)

STEEL: dict[str, Any] = {
    "kind": "two_stage_linear",
    "decisions": [{"name": "order", "cost": 5, "maximum": 400}],
    "outcomes": [{"name": "demand", "minimum": 0}],
    "recourse": [{"name": "express", "cost": 30}, {"name": "scrap", "cost": 1}],
    "rows": [
        {
            "recourse": {"express": 1, "scrap": -1},
            "decisions": {"order": 1},
            "sense": "=",
            "outcomes": {"demand": 1},
        }
    ],
}
FUND: dict[str, Any] = {
    "kind": "return_constrained_portfolio",
    "assets": [{"name": name} for name in ("shares", "bonds", "gold")],
    "covariance": [[0.0009, 0, 0], [0, 0.0001, 0], [0, 0, 0.0003]],
    "target_return": 0.02,
    "confidence": 0.9,
}


def _newsvendor(minimum: float | None) -> dict[str, Any]:
    item = {"name": "demand", "underage_cost": 3, "overage_cost": 1, "minimum_order": minimum}
    return {"kind": "newsvendor", "items": [item]}


@dataclass(frozen=True)
class Source:
    """A decision problem, and a function that draws a number of its rows from a seed."""

    problem: DecisionProblem
    draw: Callable[[int, int], Sample]


def _sample(contexts: Any, outcomes: Any) -> Sample:
    return Sample(
        torch.from_numpy(np.ascontiguousarray(contexts)), torch.from_numpy(np.atleast_2d(outcomes.T).T.copy())
    )


_SLOPES = np.array([3.0, 2.0, -1.0, 0.5, 0.0])


def _signed(count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    contexts = random.normal(size=(count, 5))
    return _sample(contexts, 10 * contexts @ _SLOPES + 3.7 * random.normal(size=count))


def _positive(count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    contexts = random.normal(size=(count, 5))
    spread = 2 * np.exp(0.5 + 0.4 * contexts[:, 4])
    return _sample(contexts, 100 + 8 * contexts @ _SLOPES + spread * random.normal(size=count))


def _multiplicative(count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    contexts = random.normal(size=(count, 5))
    return _sample(contexts, np.exp(3.5 + 0.12 * contexts @ _SLOPES + 0.3 * random.normal(size=count)))


def _steel(count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    orders, permits = random.uniform(50, 150, count), random.uniform(20, 80, count)
    demand = np.maximum(0, 40 + orders + permits + 0.2 * orders * random.normal(size=count))
    return _sample(np.stack([orders, permits], axis=1), demand)


def _returns(count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    contexts = random.normal(size=(count, 3))
    mean = np.array([0.06, 0.045, 0.04]) + contexts * np.array([0.02, -0.005, 0.01])
    return _sample(contexts, mean + random.normal(size=(count, 3)) * np.array([0.03, 0.01, 0.017]))


def _shipment(count: int, seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    contexts = draw_contexts(APART * count, 0, generator)[::APART]
    return Sample(contexts, draw_outcomes(contexts, 1, generator)[:, 0])


def _bounded(count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    contexts = random.random((count, 1))
    return _sample(contexts, 10 + 25 * contexts[:, 0] + 10 * random.random(count))


def _sources() -> dict[str, Source]:
    return {
        "signed": Source(build_problem(_newsvendor(None)), _signed),
        "positive": Source(build_problem(_newsvendor(0.0)), _positive),
        "multiplicative": Source(build_problem(_newsvendor(0.0)), _multiplicative),
        "steel": Source(build_problem(STEEL), _steel),
        "shipment": Source(shipment_problem(), _shipment),
    }


def run(as_json: bool, seeds: int = SEEDS, judged: int = JUDGED, hard: int = HARD) -> dict[str, float]:
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for name, source in _sources().items():
        result = [_promised(source, entropy(1, number)) for number in _each(seeds, f"promises, {name}")]
        figures[f"promise_{name}"], figures[f"coverage90_{name}"] = (
            round(sum(values) / len(values), 3) for values in zip(*result, strict=True)
        )
    figures |= _cvar(_sources()["steel"], seeds) | _portfolio(seeds) | _verdicts(judged)
    figures |= _optimal(hard) | _certificates(seeds)
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for label, value in figures.items():
            Console().print(f"{label:28}{value:10.3f}")
    return figures


def _each(count: int, label: str) -> Any:
    return track(range(count), label, console=Console(stderr=True), transient=True)


def _promised(source: Source, seed: int) -> tuple[float, float]:
    """Return expected over realised cost, and the share of outcomes within their 90 % range."""
    learned, fresh = _learn_from_source(source, seed)
    answer = prescribe(learned.posterior, source.problem, fresh.contexts, _how(learned))
    realised = source.problem.cost(answer.decisions, fresh.outcomes).mean()
    scenarios = learned.posterior.scenarios(fresh.contexts, learned.posterior.particles)
    atoms = learned.posterior.predictive(fresh.contexts, scenarios.mean(), 200)
    if atoms is None:
        raise RuntimeError("a learned posterior has a history")
    low, high = torch.quantile(atoms.outcomes, torch.tensor([0.05, 0.95], dtype=torch.float64), dim=1)
    within = ((fresh.outcomes >= low) & (fresh.outcomes <= high)).double().mean()
    return (answer.costs.mean.mean() / realised).item(), within.item()


def _learn_from_source(source: Source, seed: int) -> tuple[Learned, Sample]:
    history, fresh = source.draw(ROWS, seed), source.draw(FRESH, entropy(seed, 1))
    few = fresh.rows(torch.arange(400 if source.problem.decision_dim > 1 else FRESH))
    return learn(source.problem, history, make_options(predictor="linear", seed=seed % 2**31)), few


def _how(learned: Learned) -> PrescribeOptions:
    return PrescribeOptions(policy=learned.diagnostics.policy)


def _cvar(source: Source, seeds: int) -> dict[str, float]:
    """Compare the true tail of the CVaR decision with that of the averaged decision, paired by context."""
    differences = []
    for number in _each(seeds, "CVaR"):
        seed = entropy(2, number)
        learned, fresh = _learn_from_source(source, seed)
        contexts = fresh.contexts[:200]
        random = np.random.default_rng(entropy(seed, 2))
        orders, permits = contexts[:, :1].numpy(), contexts[:, 1:].numpy()
        truth = np.maximum(0, 40 + orders + permits + 0.2 * orders * random.normal(size=(len(contexts), 2000)))
        outcomes = torch.from_numpy(truth)[..., None]
        tails = []
        for how in (PrescribeOptions(risk=CVAR), PrescribeOptions(policy="averaged")):
            result = decisions(learned.posterior, source.problem, contexts, how)
            costs = source.problem.cost(result[:, None], outcomes).sort(dim=1).values
            tails.append(costs[:, -200:].mean(dim=1))
        differences.append(tails[0] - tails[1])
    gain = estimate(torch.cat(differences))
    return {"cvar_gain": round(gain.mean, 3), "cvar_gain_se": round(gain.standard_error, 3)}


def _portfolio(seeds: int) -> dict[str, float]:
    """Return promised over realised feasibility, and the realised feasibility."""
    problem, ratios, shares = build_problem(FUND), [], []
    for number in _each(seeds, "portfolio"):
        seed = entropy(3, number)
        history, fresh = _returns(ROWS, seed), _returns(1000, entropy(seed, 1))
        options = make_options("mh", predictor="linear", chains=4, steps=3000, burn_in=1500, seed=seed % 2**31)
        learned = learn(problem, history, options)
        answer = prescribe(learned.posterior, problem, fresh.contexts, _how(learned))
        kept = problem.feasible(answer.decisions, fresh.outcomes).double().mean().item()
        ratios.append(answer.feasibility.nanmean().item() / kept)
        shares.append(kept)
    return {
        "promise_feasibility": round(sum(ratios) / seeds, 3),
        "portfolio_feasibility": round(sum(shares) / seeds, 3),
    }


def _verdicts(count: int) -> dict[str, float]:
    """Return the shares of posteriors called ok on noise, weak and strong signal, at 100 and 300 rows."""
    problem = build_problem(_newsvendor(0.0))
    called: dict[str, list[tuple[bool, bool]]] = {"noise": [], "weak": [], "strong": []}
    for number in _each(count, "verdicts"):
        for name, signal in (("noise", 0.0), ("weak", 0.03), ("strong", 0.7)):
            rows = (100, 300)[number % 2]
            history, fresh = (_signal(signal, size, entropy(4, number, part)) for part, size in ((0, rows), (1, 4000)))
            learned = learn(problem, history, make_options(predictor="linear", seed=number))
            cost = _mean_cost(problem, decisions(learned.posterior, problem, fresh.contexts, _how(learned)), fresh)
            constant = _mean_cost(problem, best_constant(problem, history.outcomes).decisions, fresh)
            called[name].append((learned.diagnostics.quality == "ok", cost > constant))
    doubtful = called["noise"] + called["weak"]
    return {
        "ok_on_noise": round(sum(ok for ok, _ in called["noise"]) / count, 3),
        "false_ok": round(sum(ok and worse for ok, worse in doubtful) / len(doubtful), 3),
        "ok_on_signal": round(sum(ok for ok, _ in called["strong"]) / count, 3),
    }


def _optimal(count: int) -> dict[str, float]:
    """Return the share of hard programs whose answer is falsely called optimal, and their number."""
    each = 90
    parts = [min(each, count - first) for first in range(0, count, each)]
    result = [false_optimal(parts[number], entropy(5, number)) for number in _each(len(parts), "hard programs")]
    wrong, tried = (sum(column) for column in zip(*result, strict=True))
    return {"false_optimal": wrong / tried, "hard_programs": tried}


def _certificates(seeds: int) -> dict[str, float]:
    """Return certified over realised cost: demand within stated bounds, a linear predictor, 1,500 rows."""
    item = {"underage_cost": 3, "overage_cost": 1, "minimum_order": 0, "maximum_order": 50, "maximum_demand": 50}
    problem, ratios = build_problem({"kind": "newsvendor", "items": [item]}), []
    for number in _each(seeds, "certificates"):
        seed = entropy(6, number)
        options = make_options(predictor="linear", certify=True, epochs=60, seed=seed % 2**31)
        learned, fresh = learn(problem, _bounded(CERTIFIED_ROWS, seed), options), _bounded(20_000, entropy(seed, 1))
        bound = learned.diagnostics.certificate.bound
        if bound is None:
            raise RuntimeError("demand within stated bounds is certified")
        averaged = decisions(learned.posterior, problem, fresh.contexts, PrescribeOptions(policy="averaged"))
        ratios.append(bound / _mean_cost(problem, averaged, fresh))
    return {"certificate_ratio": round(sum(ratios) / seeds, 3), "certificate_ratio_least": round(min(ratios), 3)}


def _signal(signal: float, count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    contexts = random.normal(size=(count, 5))
    explained = contexts @ _SLOPES / np.linalg.norm(_SLOPES)
    noise = random.normal(size=count)
    return _sample(contexts, 100 + 10 * (np.sqrt(signal) * explained + np.sqrt(1 - signal) * noise))


def _mean_cost(problem: DecisionProblem, chosen: Tensor, fresh: Sample) -> float:
    return problem.cost(chosen, fresh.outcomes).mean().item()
