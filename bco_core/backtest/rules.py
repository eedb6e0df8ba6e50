"""Policies that a backtest compares: posteriors learned here, and rules that a planner might use instead.

Each is fitted to the rows known at the beginning of a split and decides for all rows judged in it. Only the rule of the
season also uses newer rows, as far as they are known ``lead`` periods before a decision. A new rule is a line in
``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.baselines.boosted_quantiles import boosted_quantiles
from bco_core.baselines.ieo import fit_ieo_ensemble
from bco_core.baselines.weighted_saa import BANDWIDTHS, NEIGHBOURS, Weights, kernel_weights, neighbour_weights
from bco_core.data import FOLDS, Sample, Standardizer, evenly
from bco_core.inference.forward import regression_after, season_decisions
from bco_core.inference.learn import learn
from bco_core.inference.options import LearningOptions
from bco_core.posterior import Posterior
from bco_core.prescribe import PrescribeOptions, decisions
from bco_core.problems.base import DecisionProblem, best_constant
from bco_core.problems.surrogate import Surrogate
from bco_core.progress import Progress, no_progress, part_of

# Contexts are decided in pieces that hold about this many numbers.
_NUMBERS_AT_ONCE = 2_000_000
# Most rows that a rule is fitted to, evenly spaced.
_CONSTANT_ROWS, _REGRESSION_ROWS, _BOOSTED_ROWS, _IEO_ROWS, _WEIGHTED_ROWS = 2_000, 200_000, 200_000, 5_000, 20_000
# Weighted histories: heaviest rows that a decision is made over, and later rows that choose the setting.
_ATOMS, _VALIDATION = 200, 200
_LEAVES, _ROUNDS = (7, 31), (50, 100, 200, 400)


@dataclass(frozen=True)
class Origin:
    """Rows up to the end of a split in one encoding: those known at its beginning (k,), and those judged (m,)."""

    sample: Sample
    known: Tensor
    judged: Tensor
    seed: int = 0

    @property
    def history(self) -> Sample:
        """Rows to learn from."""
        return self.sample.rows(self.known)

    @property
    def contexts(self) -> Tensor:
        """Contexts to decide for, (m, d_x)."""
        return self.sample.contexts[self.judged]


@dataclass(frozen=True)
class Rule:
    """A rule's name in sentences, its decisions (m, d_z), and why it does not apply to a problem and a season."""

    label: str
    decide: Callable[[DecisionProblem, Origin], Tensor]
    refusal: Callable[[DecisionProblem, int], str] = lambda problem, season: ""


def constant(problem: DecisionProblem, origin: Origin) -> Tensor:
    known = origin.sample.outcomes[origin.known[evenly(len(origin.known), _CONSTANT_ROWS)]]
    return best_constant(problem, known).decisions.expand(len(origin.judged), -1)


def season(problem: DecisionProblem, origin: Origin) -> Tensor:
    """Decide best for the last eight outcomes of the same series and season; constantly where there are none."""
    result = constant(problem, origin).clone()
    # Each row takes eight outcomes.
    for piece in torch.arange(len(origin.judged)).split(_at_once(8 * problem.outcome_dim)):
        decided, there = season_decisions(problem, origin.sample, origin.judged[piece])
        result[piece[there]] = decided
    return result


def regression(problem: DecisionProblem, origin: Origin) -> Tensor:
    known = origin.history.rows(evenly(len(origin.known), _REGRESSION_ROWS))
    pieces = origin.contexts.split(_at_once(100 * problem.outcome_dim))
    return torch.cat([regression_after(problem, known, piece) for piece in pieces])


def boosted(problem: DecisionProblem, origin: Origin) -> Tensor:
    """Fit LightGBM at each outcome's critical fractile; its size is chosen on the newest quarter of the known rows."""
    levels = problem.fractiles
    if levels is None:
        raise RuntimeError("only decisions that are quantiles can be boosted quantiles")
    train, validation = newest_quarter(origin)
    result = []
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
        result += boosted_quantiles(known, origin.contexts, level, leaves, (rounds,), origin.seed)
    return problem.decide(torch.stack(result, dim=1))


def neighbours(problem: DecisionProblem, origin: Origin) -> Tensor:
    return _decide_by_weights(problem, origin, neighbour_weights, NEIGHBOURS)


def kernel(problem: DecisionProblem, origin: Origin) -> Tensor:
    return _decide_by_weights(problem, origin, kernel_weights, BANDWIDTHS[1::2])


def ieo(problem: DecisionProblem, origin: Origin) -> Tensor:
    known = origin.history.rows(evenly(len(origin.known), _IEO_ROWS))
    fitted = fit_ieo_ensemble(problem, known, torch.Generator().manual_seed(origin.seed))
    return fitted.averaged_decisions(problem, origin.contexts)


def newest_quarter(origin: Origin) -> tuple[Sample, Sample]:
    """Split the known rows: all but the newest quarter (a random one without time), and that quarter."""
    known = origin.history
    if known.timeline is None:
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(origin.seed))
    else:
        order = known.timeline.periods.argsort(stable=True)
    edge = len(known) * 3 // 4
    return known.rows(order[:edge]), known.rows(order[edge:])


def _only(sample: Sample, outcome: int) -> Sample:
    return Sample(sample.contexts, sample.outcomes[:, outcome : outcome + 1])


def _decide_by_weights(
    problem: DecisionProblem, origin: Origin, kind: Callable[[Sample, Any], Weights], settings: Iterable[float]
) -> Tensor:
    """Decide over the heaviest rows, by standardised contexts; the setting has the least cost on the newest quarter."""
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
    result = []
    for piece in contexts.split(_at_once(max(len(known), atoms * problem.outcome_dim))):
        heaviest = weights(piece).topk(atoms, dim=1)
        share = heaviest.values / heaviest.values.sum(dim=1, keepdim=True)
        result.append(problem.prescribe(known.outcomes[heaviest.indices], share).decisions)
    return torch.cat(result)


def _at_once(numbers: int) -> int:
    return max(1, min(10_000, _NUMBERS_AT_ONCE // numbers))


def _no_season(problem: DecisionProblem, season: int) -> str:
    return "" if season else "the rows have no season: there is no time column, or too short a history"


def _no_quantiles(problem: DecisionProblem, season: int) -> str:
    return "" if problem.fractiles is not None else "decisions are not quantiles of single outcomes here"


def _no_gradient(problem: DecisionProblem, season: int) -> str:
    if not problem.differentiable:
        return "it learns by gradients, and decisions have none with respect to the prediction"
    if isinstance(problem.relaxation, Surrogate):
        return "it learns by the gradient of the cost, and decisions jump as predictions change"
    if problem.decides_slowly:
        return "each of its many steps would solve a program for every row, which would take hours"
    whole = "its averaged decisions would not be integers, and some must be"
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
# Fewest rows that a rule is learned from.
LEAST_ROWS = 2 * FOLDS


# our posteriors


def learned_decisions(
    problem: DecisionProblem, origin: Origin, options: LearningOptions, progress: Progress = no_progress
) -> Tensor:
    """Learn a posterior from the known rows of a split and return its decisions (m, d_z) for the judged ones."""
    learned = learn(problem, origin.history, options, part_of(progress, 0.0, 0.9))
    prescribing = PrescribeOptions(policy=learned.diagnostics.policy)
    return decide_all(learned.posterior, problem, origin.contexts, prescribing, part_of(progress, 0.9, 1.0))


def decide_all(
    posterior: Posterior,
    problem: DecisionProblem,
    contexts: Tensor,
    options: PrescribeOptions,
    progress: Progress = no_progress,
) -> Tensor:
    """Return decisions (m, d_z) for contexts (m, d_x), computed in pieces."""
    result = []
    pieces = contexts.split(max(1, min(2_000, _NUMBERS_AT_ONCE // (options.scenarios * problem.outcome_dim))))
    for number, piece in enumerate(pieces):
        progress(number / len(pieces), "deciding")
        result.append(decisions(posterior, problem, piece, options))
    return torch.cat(result)
