"""What is compared with: rules that a planner might use instead. A new one is a line in ``RULES``.

Each is fitted to the rows that are known at the beginning of a split and decides for all that are judged in it; the
rule of the season alone looks at newer rows too, as far as they are known ``lead`` periods before a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.backtest.splits import thinned
from bco_core.baselines.boosted import boosted_quantiles
from bco_core.baselines.ieo import fit_ieo_ensemble
from bco_core.baselines.weights import BANDWIDTHS, NEIGHBOURS, Weights, kernel_weights, neighbour_weights
from bco_core.data import FOLDS, Sample, Standardizer, evenly
from bco_core.inference.forward import regression_after, season_decisions
from bco_core.problems.base import DecisionProblem
from bco_core.problems.constant import best_constant
from bco_core.problems.surrogate import Surrogate

# Contexts are decided so many at a time that they meet about this many numbers.
_NUMBERS_AT_ONCE = 2_000_000
# Rows that a rule takes at most, evenly spaced: by far enough for what it fits.
_CONSTANT_ROWS, _REGRESSION_ROWS, _BOOSTED_ROWS, _IEO_ROWS, _WEIGHTED_ROWS = 2_000, 200_000, 200_000, 5_000, 20_000
# Weighted histories: rows that weigh most of all are decided over, and so many later ones choose the setting.
_ATOMS, _VALIDATION = 200, 200
_LEAVES, _ROUNDS = (7, 31), (50, 100, 200, 400)


@dataclass(frozen=True)
class Origin:
    """Rows up to the end of a split in one encoding, and which of them are known at its beginning and which judged."""

    sample: Sample
    known: Tensor
    judged: Tensor
    seed: int = 0

    @property
    def history(self) -> Sample:
        """What there is to learn from."""
        return self.sample.rows(self.known)

    @property
    def contexts(self) -> Tensor:
        """What there is to decide for, (m, d_x)."""
        return self.sample.contexts[self.judged]


@dataclass(frozen=True)
class Rule:
    """How a rule decides, (m, d_z); how sentences call it; and why it makes no sense for a problem and a season."""

    words: str
    decide: Callable[[DecisionProblem, Origin], Tensor]
    refusal: Callable[[DecisionProblem, int], str] = lambda problem, season: ""


def constant(problem: DecisionProblem, origin: Origin) -> Tensor:
    known = origin.sample.outcomes[thinned(origin.known, _CONSTANT_ROWS)]
    return best_constant(problem, known).decisions.expand(len(origin.judged), -1)


def season(problem: DecisionProblem, origin: Origin) -> Tensor:
    """The best over the last eight of the same series and season; the constant one where there is none."""
    found = constant(problem, origin).clone()
    # In pieces: each is eight outcomes.
    for piece in torch.arange(len(origin.judged)).split(_at_once(8 * problem.outcome_dim)):
        decided, there = season_decisions(problem, origin.sample, origin.judged[piece])
        found[piece[there]] = decided
    return found


def regression(problem: DecisionProblem, origin: Origin) -> Tensor:
    known = origin.history.rows(evenly(len(origin.known), _REGRESSION_ROWS))
    pieces = origin.contexts.split(_at_once(100 * problem.outcome_dim))
    return torch.cat([regression_after(problem, known, piece) for piece in pieces])


def boosted(problem: DecisionProblem, origin: Origin) -> Tensor:
    """LightGBM at each outcome's critical fractile; its size is chosen on the newest quarter of what is known."""
    levels = problem.fractiles
    if levels is None:
        raise RuntimeError("only decisions that are quantiles can be boosted quantiles")
    train, validation = newest_quarter(origin)
    found = []
    for outcome, level in enumerate(levels.tolist()):
        sizes = [(leaves, rounds) for leaves in _LEAVES for rounds in _ROUNDS]
        tried = [
            quantile
            for leaves in _LEAVES
            for quantile in boosted_quantiles(_only(train, outcome), validation.contexts, level, leaves, _ROUNDS)
        ]
        over = validation.outcomes[:, outcome]
        losses = [torch.where(over > one, level * (over - one), (1 - level) * (one - over)).mean() for one in tried]
        leaves, rounds = sizes[int(torch.stack(losses).argmin())]
        known = _only(origin.history.rows(evenly(len(origin.known), _BOOSTED_ROWS)), outcome)
        found += boosted_quantiles(known, origin.contexts, level, leaves, (rounds,), origin.seed)
    return problem.decide(torch.stack(found, dim=1))


def neighbours(problem: DecisionProblem, origin: Origin) -> Tensor:
    return _weighted(problem, origin, neighbour_weights, NEIGHBOURS)


def kernel(problem: DecisionProblem, origin: Origin) -> Tensor:
    return _weighted(problem, origin, kernel_weights, BANDWIDTHS[1::2])


def ieo(problem: DecisionProblem, origin: Origin) -> Tensor:
    known = origin.history.rows(evenly(len(origin.known), _IEO_ROWS))
    fitted = fit_ieo_ensemble(problem, known, torch.Generator().manual_seed(origin.seed))
    return fitted.averaged_decisions(problem, origin.contexts)


def newest_quarter(origin: Origin) -> tuple[Sample, Sample]:
    """What is known but for its newest quarter, or a random one where rows have no time; and that quarter."""
    known = origin.history
    if known.timeline is None:
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(origin.seed))
    else:
        order = known.timeline.periods.argsort(stable=True)
    edge = len(known) * 3 // 4
    return known.rows(order[:edge]), known.rows(order[edge:])


def _only(sample: Sample, outcome: int) -> Sample:
    return Sample(sample.contexts, sample.outcomes[:, outcome : outcome + 1])


def _weighted(
    problem: DecisionProblem, origin: Origin, kind: Callable[[Sample, Any], Weights], settings: Iterable[float]
) -> Tensor:
    """Decisions over the rows that weigh most, by standardised contexts; the setting is of least cost on the newest
    quarter of what is known."""
    scale = Standardizer.fit(origin.history.contexts)

    def scaled(sample: Sample) -> Sample:
        return Sample(scale.apply(sample.contexts), sample.outcomes)

    train, validation = (scaled(part) for part in newest_quarter(origin))
    train, validation = (
        train.rows(evenly(len(train), _WEIGHTED_ROWS)),
        validation.rows(evenly(len(validation), _VALIDATION)),
    )

    def cost(setting: float) -> float:
        decided = _over_weights(problem, train, kind(train, setting), validation.contexts)
        return problem.cost(decided, validation.outcomes).mean().item()

    best = min(settings, key=cost)
    known = scaled(origin.history.rows(evenly(len(origin.known), _WEIGHTED_ROWS)))
    return _over_weights(problem, known, kind(known, best), scale.apply(origin.contexts))


def _over_weights(problem: DecisionProblem, known: Sample, weights: Weights, contexts: Tensor) -> Tensor:
    atoms = min(_ATOMS, len(known))
    found = []
    for piece in contexts.split(_at_once(max(len(known), atoms * problem.outcome_dim))):
        heaviest = weights(piece).topk(atoms, dim=1)
        share = heaviest.values / heaviest.values.sum(dim=1, keepdim=True)
        found.append(problem.prescribe(known.outcomes[heaviest.indices], share).decisions)
    return torch.cat(found)


def _at_once(numbers: int) -> int:
    return max(1, min(10_000, _NUMBERS_AT_ONCE // numbers))


def _no_season(problem: DecisionProblem, season: int) -> str:
    return "" if season else "the rows have no season: there is no time column, or too short a history"


def _no_quantiles(problem: DecisionProblem, season: int) -> str:
    return "" if problem.fractiles is not None else "decisions are not quantiles of single outcomes here"


def _no_gradient(problem: DecisionProblem, season: int) -> str:
    if not problem.differentiable:
        return "decisions have no gradient by the prediction, and it learns by one"
    if isinstance(problem.relaxation, Surrogate):
        return "decisions jump as predictions move, and it learns by the gradient of what they cost"
    if problem.decides_slowly:
        return "every decision takes a program of its own here, and its many steps would take hours"
    whole = "its averaged decisions would not be whole numbers, and some must be"
    return "" if problem.relaxation is problem else whole


RULES: dict[str, Rule] = {
    "constant": Rule("the best constant decision", constant),
    "season": Rule("the best decision over the last eight of the same season", season, _no_season),
    "regression": Rule("a regression and its errors", regression),
    "boosted": Rule("boosted quantiles (LightGBM)", boosted, _no_quantiles),
    "neighbours": Rule("the most similar rows", neighbours),
    "kernel": Rule("a history weighted by similarity", kernel),
    "ieo": Rule("a model trained for decision cost (IEO)", ieo, _no_gradient),
}
# Learning a rule from fewer rows than this says nothing.
LEAST_ROWS = 2 * FOLDS
