"""Every method on the same rows and features of a real history: trained on known rows, judged once on later ones.

Tuning uses training rows only: their last quarter stands for later rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from torch import Tensor

from bco_core.baselines.boosted_quantiles import boosted_quantiles
from bco_core.data import Sample, Standardizer, evenly
from bco_core.inference.forward import regression_after, season_decisions
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.inference.update import UpdateOptions, update
from bco_core.posterior import Posterior
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor
from benchmarks.experiments.real.data import Histories, bending, random_walk

SEED = 0
_LEAVES = (15, 31, 63)
_ROUNDS = (100, 200, 400, 800)
_ALPHAS = (1e-5, 1e-4, 1e-3, 1e-2)
# Largest numbers of rows: for the linear program of L1 quantile regression, and for ridge, which hardly gains by more.
_LP_ROWS, _RIDGE_ROWS = 4_000, 200_000


class Figure(NamedTuple):
    """A figure that a method reached on a history at a critical fractile."""

    history: str
    level: float
    method: str
    figure: str
    value: float


def problem_at(level: float) -> Newsvendor:
    return Newsvendor.from_spec({"items": [{"underage_cost": level, "overage_cost": 1 - level, "minimum_order": 0}]})


# Orders (n, 1) for later rows.
Rule = Callable[[Histories, float], Tensor]


def constant(histories: Histories, level: float) -> Tensor:
    known = histories.known_rows().outcomes
    one = best_constant(problem_at(level), known[evenly(len(known), 100_000)]).decisions
    return one.expand(len(histories.later()), 1)


def season(histories: Histories, level: float) -> Tensor:
    """Order the quantile of the last eight outcomes on the same weekday, or at the same hour of the week."""
    rows = histories.judged.nonzero().flatten()
    result, there = season_decisions(problem_at(level), histories.sample, rows)
    orders = constant(histories, level).clone()
    orders[there] = result
    return orders


def regression(histories: Histories, level: float) -> Tensor:
    known = histories.known_rows()
    known = known.rows(evenly(len(known), _RIDGE_ROWS))
    return regression_after(problem_at(level), known, histories.later().contexts)


def lightgbm(histories: Histories, level: float) -> Tensor:
    """Order by LightGBM at the critical fractile, with leaves and rounds tuned forward in time."""
    inner = histories.training()
    known, later = inner.known_rows(), inner.later()
    many = len(known) > 100_000
    rounds, choices = (_ROUNDS[:3] if many else _ROUNDS), (_LEAVES[1:] if many else _LEAVES)
    problem, scores = problem_at(level), []
    for leaves in choices:
        for number, orders in zip(
            rounds, boosted_quantiles(known, later.contexts, level, leaves, rounds, SEED), strict=True
        ):
            scores.append((problem.cost(orders[:, None], later.outcomes).mean().item(), leaves, number))
    _, leaves, number = min(scores)
    (orders,) = boosted_quantiles(histories.known_rows(), histories.later().contexts, level, leaves, (number,), SEED)
    return orders[:, None]


def quantile_regression(histories: Histories, level: float) -> Tensor:
    """Order by L1 quantile regression, with the penalty tuned forward in time."""
    inner = histories.training()
    problem, later = problem_at(level), inner.later()
    result = [_linear(inner.known_rows(), later.contexts, level, alpha) for alpha in _ALPHAS]
    costs = [problem.cost(orders, later.outcomes).mean().item() for orders in result]
    best = _ALPHAS[costs.index(min(costs))]
    return _linear(histories.known_rows(), histories.later().contexts, level, best)


def _linear(known: Sample, contexts: Tensor, level: float, alpha: float) -> Tensor:
    from sklearn.linear_model import QuantileRegressor

    used = known.rows(evenly(len(known), _LP_ROWS))
    scale, target = Standardizer.fit(used.contexts), Standardizer.fit(used.outcomes)
    model = QuantileRegressor(quantile=level, alpha=alpha, solver="highs")
    model.fit(scale.apply(used.contexts).numpy(), target.apply(used.outcomes)[:, 0].numpy())
    return target.undo(torch.from_numpy(model.predict(scale.apply(contexts).numpy()))[:, None]).clamp_min(0)


RULES: dict[str, Rule] = {
    "constant": constant,
    "season": season,
    "regression": regression,
    "quantile_regression": quantile_regression,
    "lightgbm": lightgbm,
}


def judge_rule(histories: Histories, level: float, name: str) -> tuple[list[Figure], Tensor]:
    began = process_time()
    orders = RULES[name](histories, level)
    seconds = process_time() - began
    later = histories.later()
    costs = problem_at(level).cost(orders, later.outcomes)
    figures = {"cost": costs.mean().item(), "seconds": seconds}
    return [Figure(histories.name, level, name, what, value) for what, value in figures.items()], costs


def judge_auto(histories: Histories, level: float) -> tuple[list[Figure], Tensor]:
    """Judge ``auto``: its cost, its promised cost, and the share of outcomes within its 90 % range."""
    problem, later = problem_at(level), histories.later()
    began = process_time()
    learned = learn(problem, histories.known_rows(), make_options(seed=SEED))
    seconds = process_time() - began
    result = _decision_costs(problem, learned.posterior, later, learned.diagnostics.policy)
    message = learned.diagnostics
    figures = result.figures | {
        "seconds": seconds,
        "ok": float(message.quality == "ok"),
        "boosted_share": -1.0 if message.boosted_share is None else message.boosted_share,  # type: ignore[attr-defined]
    }
    return [Figure(histories.name, level, "auto", what, value) for what, value in figures.items()], result.costs


class DecisionCosts(NamedTuple):
    costs: Tensor
    figures: dict[str, float]


def _decision_costs(problem: Newsvendor, posterior: Posterior, later: Sample, policy: str) -> DecisionCosts:
    costs, expected, inside, above = [], [], [], []
    for rows in torch.arange(len(later)).split(5000):
        some = later.rows(rows)
        result = prescribe(posterior, problem, some.contexts, PrescribeOptions(policy=policy))
        costs.append(problem.cost(result.decisions, some.outcomes))
        expected.append(result.costs.mean)
        above.append(costs[-1] > result.costs.quantiles[:, -1])
        encoded = posterior.encode(some.contexts)
        draws = posterior.scenarios(some.contexts, posterior.draws(), encoded)
        atoms = posterior.predictive(some.contexts, draws.mean(), 200, encoded)
        if atoms is None:
            raise RuntimeError("a posterior keeps a history")
        low, high = (atoms.outcomes[..., 0].quantile(q, dim=1) for q in (0.05, 0.95))
        inside.append((some.outcomes[:, 0] >= low) & (some.outcomes[:, 0] <= high))
    realised = torch.cat(costs)
    figures = {
        "cost": realised.mean().item(),
        "promise": (torch.cat(expected).mean() / realised.mean()).item(),
        "coverage90": torch.cat(inside).double().mean().item(),
        "above95": torch.cat(above).double().mean().item(),
    }
    return DecisionCosts(realised, figures)


def by_day(histories: Histories, costs: Tensor) -> Tensor:
    """Return the mean cost by day, since errors of neighbouring hours, and of series on one day, are correlated."""
    later = histories.later()
    assert later.timeline is not None  # noqa: S101
    periods = later.timeline.periods
    day = (periods // (24 if histories.name == "electricity" else 1)).unique(return_inverse=True)[1]
    total = torch.zeros(int(day.max()) + 1, dtype=torch.float64).index_add_(0, day, costs)
    means: Tensor = total / day.bincount()
    return means


def compare(histories: Histories, methods: Sequence[str], advance: Callable[[str], None]) -> Iterator[list[Figure]]:
    """Judge all methods at all critical fractiles, each paired by day with LightGBM."""
    for level in histories.levels:
        reference: Tensor | None = None
        for name in methods:
            advance(f"{histories.name} at {level}: {name}")
            result, costs = judge_auto(histories, level) if name == "auto" else judge_rule(histories, level, name)
            days = by_day(histories, costs)
            if name == "lightgbm":
                reference = days
            if reference is not None:
                ratio = days.mean() / reference.mean()
                error = (days - ratio * reference).std() / len(days) ** 0.5 / reference.mean()
                result.append(Figure(histories.name, level, name, "vs_lightgbm", ratio.item()))
                result.append(Figure(histories.name, level, name, "vs_lightgbm_se", error.item()))
            yield result


def drift(seeds: int, advance: Callable[[str], None]) -> Iterator[list[Figure]]:
    """Compare the promises of ``auto`` for later days with the outcomes, on demand whose level is a random walk."""
    for seed in range(seeds):
        advance(f"drift: {seed + 1} of {seeds}")
        histories = random_walk(seed)
        result, _ = judge_auto(histories, 0.75)
        yield [one._replace(method=f"seed {seed}") for one in result]


def speed(histories: Histories, advance: Callable[[str], None]) -> Iterator[list[Figure]]:
    """Measure the speedup of an update over learning from scratch, on training rows, and the time for many rows."""
    problem, inner = problem_at(0.75), histories.training(0.9)
    advance("learning on")
    before, whole = inner.known_rows(), histories.known_rows()
    old = learn(problem, before, make_options(seed=SEED))
    fresh = whole.timeline.periods > before.timeline.periods.max()  # type: ignore[union-attr]
    began = process_time()
    options = UpdateOptions(old.diagnostics.kl_weight, old.diagnostics.policy)
    update(problem, whole, old.posterior, fresh, options)
    on = process_time() - began
    began = process_time()
    learn(problem, whole, make_options(seed=SEED))
    over = process_time() - began
    advance("30,000 rows of 20 columns")
    began = perf_counter()
    learn(problem, bending(30_000), make_options(seed=SEED))
    rows = perf_counter() - began
    figures = {"update_speedup": over / on, "rows30k_s": rows}
    yield [Figure("speed", 0.75, "auto", what, value) for what, value in figures.items()]
