"""Experiment 3: the return-constrained portfolio, many methods on the same rows, judged on one fixed test set.

Returns of 50 assets follow five context features and four hidden factors (section EC.2.4 of the paper); loadings are
drawn once. A method is judged by the share of test rows on which its decisions reach the return, and by the variance of
those decisions, relative to that of an oracle that knows the returns (``regret``: one is the oracle's).

More variance can raise feasibility, so methods are only comparable at equal feasibility: ``control`` rows are the warm
starts without sampling, with predictions shifted until they reach the return exactly as often as BCP does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.baselines.predict_then_optimize import RegressionRule, additive, fit_regressions, linear
from bco_core.data import Sample
from bco_core.distributions import FAMILIES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.mh.metropolis import Chains, MetropolisOptions, init_chains
from bco_core.inference.mh.metropolis import run_chains as run_chains
from bco_core.inference.mh.starts import find_starts
from bco_core.inference.mh.thinning import thin
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import Status, best_constant
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio
from bco_core.seeds import entropy
from benchmarks.experiments import harness
from benchmarks.experiments.harness import append_rows, read_rows
from benchmarks.experiments.portfolio import baselines
from benchmarks.experiments.portfolio.baselines import Hedge

SIZES = (100, 200, 400)
ASSETS, FEATURES, FACTORS = 50, 5, 4
TARGET, CONFIDENCE, NOISE = 0.09, 0.95, 2.0
HIDDEN = 200
CHAINS, STEPS, BURN_IN = 4, 15_000, 5_000
DRAWS = 400
ATOMS = 100
TEMPERATURE = 1000.0
TEST_ROWS = 2000
_CONTROL_SHIFTS = (-0.3, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
_WORLD, _TEST = 2026, 7


@dataclass(frozen=True)
class Market:
    """The parts that all runs share: the effects of features on assets, the factor loadings, and the problem."""

    slopes: Tensor
    loadings: Tensor
    problem: ReturnConstrainedPortfolio

    @staticmethod
    def make() -> Market:
        generator = torch.Generator().manual_seed(_WORLD)
        features = torch.randint(0, 2, (ASSETS, FEATURES), generator=generator).double()
        loadings = (torch.rand(ASSETS, FACTORS, generator=generator, dtype=torch.float64) - 0.5) * 0.005 * NOISE
        spec = {
            "assets": [{"name": f"asset {j}"} for j in range(ASSETS)],
            "factors": {"loadings": loadings.tolist(), "residual_variances": [(0.01 * NOISE) ** 2] * ASSETS},
            "target_return": TARGET,
            "confidence": CONFIDENCE,
        }
        return Market(0.05 / FEATURES**0.5 * features.T, loadings, ReturnConstrainedPortfolio.from_spec(spec))

    def draw(self, rows: int, seed: int) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        contexts = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
        factors = torch.randn(rows, FACTORS, generator=generator, dtype=torch.float64)
        noise = 0.01 * NOISE * torch.randn(rows, ASSETS, generator=generator, dtype=torch.float64)
        return Sample(contexts, contexts @ self.slopes + 0.1 + factors @ self.loadings.T + noise)


class PortfolioRun(NamedTuple):
    """One draw of n training rows; ``seed`` and ``number`` together make it independent of every other run."""

    n: int
    number: int
    seed: int

    def entropy(self) -> int:
        return entropy(self.seed, self.n, self.number)


class PortfolioResult(NamedTuple):
    """The figures of a method in a run.

    They are the share of test rows that reach the return, the variance of those relative to the oracle's, the share of
    contexts in which no portfolio could promise the return, and the processor seconds.
    """

    run: PortfolioRun
    method: str
    feasibility: float
    regret: float
    beyond_reach: float
    seconds: float


@dataclass(frozen=True)
class Judge:
    """The fixed test rows and the oracle's variance on each."""

    problem: ReturnConstrainedPortfolio
    test: Sample
    oracle: Tensor

    @staticmethod
    def of(market: Market, rows: int = TEST_ROWS) -> Judge:
        test = market.draw(rows, _TEST)
        best = market.problem.decide(test.outcomes)
        return Judge(market.problem, test, market.problem.cost(best, test.outcomes))

    def decide(self, hedge: Hedge) -> tuple[Tensor, float]:
        """Return decisions for the test rows, and the share of them that are only a best effort."""
        if hedge.outcomes.shape[1] == 1:
            predictions = hedge.outcomes[:, 0]
            decisions = self.problem.decide(predictions)
            return decisions, 1 - self.problem.feasible(decisions, predictions).double().mean().item()
        result = self.problem.prescribe(hedge.outcomes, hedge.weights)
        return result.decisions, sum(status != Status.OPTIMAL for status in result.status) / len(result.status)

    def judge(self, decisions: Tensor) -> tuple[float, float]:
        """Return feasibility and relative regret, as the paper defines them."""
        kept = self.problem.feasible(decisions, self.test.outcomes)
        variance = self.problem.cost(decisions, self.test.outcomes)
        regret = variance[kept].sum() / self.oracle[kept].sum()
        return kept.double().mean().item(), regret.item()


class PortfolioTrial:
    """The parts that the methods of a run share: its rows, the network's target, starts and chains, made on first use.

    ``steps`` and ``burn_in`` are the paper's by default; a quick run may use fewer.
    """

    def __init__(
        self,
        market: Market,
        judge: Judge,
        run: PortfolioRun,
        steps: int = STEPS,
        burn_in: int = BURN_IN,
        hidden: int = HIDDEN,
    ) -> None:
        self.problem, self.judge_, self.run = market.problem, judge, run
        self.sample = market.draw(run.n, run.entropy())
        self.steps, self.burn_in, self.hidden = steps, burn_in, hidden

    @property
    def contexts(self) -> Tensor:
        return self.judge_.test.contexts

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.run.number)

    @cached_property
    def target(self) -> GibbsTarget:
        predictor = build_predictor("mlp", self.sample, (self.hidden,))
        return make_target(self.problem, predictor, self.sample, FAMILIES["gaussian"])

    @cached_property
    def regression_rule(self) -> RegressionRule:
        return fit_regressions(self.sample, (linear, additive), self.run.number)

    @cached_property
    def starts(self) -> Tensor:
        return find_starts(self.target, CHAINS, CONFIDENCE, self.generator).theta

    @cached_property
    def scaled(self) -> Chains:
        return self._chains(TEMPERATURE, self.starts)

    @cached_property
    def cold(self) -> Chains:
        # The loss needs this inverse temperature to matter against a unit prior on 11,250 weights.
        return self._chains(100 * TEMPERATURE, self.starts)

    @cached_property
    def raw(self) -> Chains:
        # λn = 1000 for costs that are not scaled.
        return self._chains(TEMPERATURE * self.target.cost_scale, self.starts)

    @cached_property
    def strict(self) -> Chains:
        # Training rows reach the return more often than other rows: require two standard errors more of them, or as
        # much as all starts reach.
        required = CONFIDENCE + 2 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / self.run.n)
        starts = find_starts(self.target, CHAINS, required, self.generator)
        return self._chains(100 * TEMPERATURE, starts.theta, min(required, starts.feasibility.min().item()))

    def _chains(self, inverse_temperature: float, starts: Tensor, required: float = CONFIDENCE) -> Chains:
        options = MetropolisOptions(
            inverse_temperature, self.steps, self.burn_in, stored_draws=DRAWS, minimum_feasibility=required
        )
        return run_chains(self.target, options, init_chains(self.target, options, starts, self.run.number))

    def hedge(self, theta: Tensor) -> Hedge:
        outcomes = self.target.predictor.predict(theta, self.contexts).transpose(0, 1)
        return Hedge(outcomes, torch.full((len(theta),), 1 / len(theta), dtype=torch.float64))

    def thin_draws(self, kept: Tensor, count: int = DRAWS, how: str = "regular") -> Hedge:
        chosen = thin(self.target.predictor, kept, self.sample.contexts, count, how)
        return self.hedge(kept.flatten(0, 1)[chosen])


def _saa(trial: PortfolioTrial) -> Hedge | Tensor:
    return best_constant(trial.problem, trial.sample.outcomes).decisions.expand(len(trial.contexts), -1)


def _enw(trial: PortfolioTrial) -> Hedge | Tensor:
    return baselines.enw(trial.problem, trial.sample, trial.contexts)[0]


def _shifted(trial: PortfolioTrial) -> Hedge | Tensor:
    return baselines.shifted(trial.problem, trial.target, trial.contexts, trial.generator)


def _regression(trial: PortfolioTrial) -> Hedge | Tensor:
    """Hedge over the out-of-fold errors of the better of ridge and splines, under the same CVaR model as BCP."""
    result = trial.regression_rule.scenarios(trial.contexts, ATOMS)
    return Hedge(result.outcomes, result.weights)


def _regression_shifted(trial: PortfolioTrial) -> Hedge | Tensor:
    return baselines.regression_shifted(trial.problem, trial.regression_rule, trial.contexts)


def _penalties(trial: PortfolioTrial) -> Hedge | Tensor:
    """Return the repetition that reaches the return most often on test rows: the paper's choice, which favours it."""
    each = baselines.penalties(trial.problem, trial.target, trial.contexts, trial.generator)
    return max(each, key=lambda hedge: trial.judge_.judge(trial.judge_.decide(hedge)[0])[0])


def _warm_starts(trial: PortfolioTrial) -> Hedge | Tensor:
    return trial.hedge(trial.starts)


METHODS: dict[str, Callable[[PortfolioTrial], Hedge | Tensor]] = {
    "saa": _saa,
    "enw": _enw,
    "shifted": _shifted,
    "regression": _regression,
    "regression_shifted": _regression_shifted,
    "ieo": _penalties,
    "warm_starts": _warm_starts,
    "bcp": lambda trial: trial.thin_draws(trial.scaled.info.draws),
    "bcp_1_chain": lambda trial: trial.thin_draws(trial.scaled.info.draws[:, :1]),
    "bcp_cold": lambda trial: trial.thin_draws(trial.cold.info.draws),
    "bcp_cold_1_chain": lambda trial: trial.thin_draws(trial.cold.info.draws[:, :1]),
    "bcp_strict": lambda trial: trial.thin_draws(trial.strict.info.draws),
    "bcp_raw": lambda trial: trial.thin_draws(trial.raw.info.draws),
    "bcp_raw_1_chain": lambda trial: trial.thin_draws(trial.raw.info.draws[:, :1]),
    "bcp_20_regular": lambda trial: trial.thin_draws(trial.scaled.info.draws, 20),
    "bcp_20_support": lambda trial: trial.thin_draws(
        trial.scaled.info.draws[:: max(1, DRAWS // 250)], 20, "support_points"
    ),
}
# Each of these is compared with the starts without sampling, at its own feasibility.
CONTROLLED = ("bcp", "bcp_cold", "bcp_strict", "bcp_raw")
BASELINES = ("saa", "enw", "shifted", "regression", "regression_shifted", "ieo", "warm_starts")
DEFAULT_METHODS = (*BASELINES, "bcp", "bcp_1_chain", "bcp_cold", "bcp_cold_1_chain", "bcp_strict")


def perform(run: PortfolioRun, methods: Sequence[str], rows: int = TEST_ROWS, **shorter: int) -> list[PortfolioResult]:
    """Draw the run's rows and judge the methods on the test rows; methods that share chains run them once."""
    market = Market.make()
    judge = Judge.of(market, rows)
    trial = PortfolioTrial(market, judge, run, **shorter)
    results = []
    for method in methods:
        began = time.process_time()
        made = METHODS[method](trial)
        decisions, beyond = (made, 0.0) if isinstance(made, Tensor) else judge.decide(made)
        seconds = time.process_time() - began
        results.append(PortfolioResult(run, method, *judge.judge(decisions), beyond, seconds))
    for method in CONTROLLED:
        found = [result for result in results if result.method == method]
        if found:
            results.append(control(trial, found[0]))
    return results


def control(trial: PortfolioTrial, beside: PortfolioResult) -> PortfolioResult:
    """Judge the warm starts, shifted to reach the return as often as ``beside``, by interpolation between shifts."""
    judge, began = trial.judge_, time.process_time()
    hedge, spread = trial.hedge(trial.starts), trial.target.predictor.outcomes.scale
    curve = []
    for shift in _CONTROL_SHIFTS:
        decisions, beyond = judge.decide(Hedge(hedge.outcomes - shift * spread, hedge.weights))
        curve.append((*judge.judge(decisions), beyond))
    # Predictions that are lowered too far promise nothing, and decisions get worse again: only the rise counts.
    highest = max(range(len(curve)), key=lambda k: curve[k][0])
    kept, regrets, beyond_reach = (np.array(column) for column in zip(*curve[: highest + 1], strict=True))
    kept = np.maximum.accumulate(kept)
    at = float(np.clip(beside.feasibility, kept[0], kept[-1]))
    regret, share = np.interp(at, kept, regrets), np.interp(at, kept, beyond_reach)
    seconds = time.process_time() - began
    return PortfolioResult(trial.run, f"control_{beside.method}", at, float(regret), float(share), seconds)


def plan(sizes: Iterable[int], runs: int, seed: int) -> list[PortfolioRun]:
    """Return the runs in order: run k of every size before run k + 1 of any, large n first.

    An unfinished experiment then covers all sizes.
    """
    return sorted(
        (PortfolioRun(n, number, seed) for n in sizes for number in range(runs)), key=lambda run: (run.number, -run.n)
    )


def perform_all(
    todo: Sequence[tuple[PortfolioRun, Sequence[str]]], path: Path, jobs: int, rows: int
) -> Iterator[list[PortfolioResult]]:
    """Perform the runs in ``jobs`` processes; append the results of each run to ``path``, then yield them."""
    return harness.perform_all(partial(perform, rows=rows), todo, partial(append, path), jobs)


_COLUMNS = ("n", "seed", "run", "method", "feasibility", "regret", "beyond_reach", "seconds")


def append(path: Path, results: Iterable[PortfolioResult]) -> None:
    """Append results to a CSV file; create it if it does not exist."""
    rows = (
        [run.n, run.seed, run.number, method, *(f"{figure:.6g}" for figure in figures), f"{seconds:.2f}"]
        for run, method, *figures, seconds in results
    )
    append_rows(path, _COLUMNS, rows)


def read(path: Path) -> list[PortfolioResult]:
    """Return all results in a CSV file; none if the file does not exist."""
    return [
        PortfolioResult(
            PortfolioRun(int(row["n"]), int(row["run"]), int(row["seed"])),
            row["method"],
            *(float(row[name]) for name in _COLUMNS[4:]),
        )
        for row in read_rows(path)
    ]
