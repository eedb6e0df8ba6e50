"""Boosted features: what gradient-boosted trees say of each outcome, as the place from which θ departs.

LightGBM is fitted to the mean and to a few quantiles of every outcome, once without each fold, and predicts the fold it
has not seen: these predictions are what θ learns on. Where rows have a time, "without a fold" means from rows that were
known before it (:func:`bco_core.timeline.blocks`). For new contexts the models of all folds are averaged; with time,
where later models have seen more, one model of all rows serves.

Trees neither extrapolate nor know that series differ in size, so they look in several ways, which are averaged as far
as held-out rows are for it:

    plain     contexts as they are
    ridge     and, beside them, the prediction of a ridge regression
    level     the same, of the outcome in units of its series' level, where contexts hold one

The prediction that a decision would be taken from, the critical fractile where a problem has one and the mean
elsewhere, is the *base*: predictors say by how much to depart from it, so that a prior around zero is one around the
boosted rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from bco_core.data import Arrays, Sample, Standardizer, fold_numbers
from bco_core.features.base import FeatureKind
from bco_core.features.boosted import MEAN, Array, Boosted, Model, beside, from_arrays, units_of
from bco_core.features.trees import Forest, from_lightgbm, joined
from bco_core.problems.base import DecisionProblem
from bco_core.regression import ridge
from bco_core.timeline import blocks, known_before

# Fewer rows do not teach trees more than they teach a network.
LEAST_ROWS = 1000
# More rows are boosted in fewer ways, with fewer and quicker rounds.
MANY_ROWS = 100_000
# A level counts as no less than this share of the mean one.
_LEAST_LEVEL = 0.01


@dataclass(frozen=True)
class Boosting:
    """All that is to be fitted to a sample, fold by fold, wherever there is room; ``rows`` (m,) of it are those that θ
    learns from. The folds may be ``given`` (n,)."""

    sample: Sample
    rows: Tensor
    models: tuple[Model, ...]
    base: tuple[float, ...]
    seed: int
    given: Tensor | None = None

    @staticmethod
    def of(sample: Sample, rows: Tensor, problem: DecisionProblem, seed: int) -> Boosting:
        """For the outcomes' means, and quantiles where outcomes are few."""
        count, wanted = sample.outcomes.shape[1], problem.fractiles
        base = [MEAN] * count if wanted is None else wanted.tolist()
        many = len(sample) > MANY_ROWS
        leveled = sample.timeline is not None and bool(sample.timeline.levels)
        views = ("ridge",) if many else ("plain", "ridge")
        models = [
            Model(outcome, level, view)
            for outcome in range(count)
            for level in _levels(base[outcome], few=count <= 3 and not many)
            for view in (*views, *(("level",) if leveled else ()))
        ]
        return Boosting(sample, rows, tuple(models), tuple(base), seed)

    @property
    def parts(self) -> int:
        """Fits of all models: one without each fold and, with time, one of all rows."""
        return int(self._folds.max()) + 1

    @cached_property
    def _folds(self) -> Tensor:
        """The fold of every row, from 0; with time, from 1 for the first block that has a past."""
        if self.given is not None:
            return self.given
        if self.sample.timeline is None:
            return fold_numbers(len(self.sample), self.seed)
        return blocks(self.sample.timeline)

    def _taught(self, part: int) -> Tensor:
        """The rows that a part is fitted to: with time, part 0 is fitted to all."""
        timeline = self.sample.timeline
        if timeline is None:
            return (self._folds != part).nonzero().flatten()
        if part == 0:
            return torch.arange(len(self.sample))
        return known_before(timeline, self._folds == part).nonzero().flatten()

    def fit(self, part: int) -> Arrays:
        """The models of a part, and what they predict after some of their rounds for the rows they were not shown."""
        taught = self._taught(part).numpy()
        contexts, outcomes = self.sample.contexts.numpy(), self.sample.outcomes.numpy()
        coefficients = _ridge(contexts[taught], outcomes[taught])
        unseen = self.rows[self._folds[self.rows] == part].numpy()
        if self.sample.timeline is not None and part == 0:
            unseen = unseen[:0]
        wide, shown = beside(contexts[taught], coefficients), beside(contexts[unseen], coefficients)
        units, narrow = self._units(contexts[taught]), contexts.shape[1]
        stages = self._stages

        def one(index: int) -> tuple[str, Array]:
            model = self.models[index]
            columns = slice(None, narrow if model.view == "plain" else None)
            unit = units[:, index] if model.view == "level" else None
            return _boost(
                wide[:, columns],
                outcomes[taught, model.outcome],
                unit,
                model.level,
                shown[:, columns],
                stages,
                self.seed,
            )

        with ThreadPoolExecutor(max(1, min(torch.get_num_threads(), 4))) as threads:
            fitted = list(threads.map(one, range(len(self.models))))
        forest = from_lightgbm([text for text, _ in fitted])
        predictions = np.stack([values for _, values in fitted], axis=-1)
        return forest.to_arrays("") | {"ridge": coefficients, "predictions": predictions, "unseen": unseen}

    @property
    def _stages(self) -> tuple[int, ...]:
        """Numbers of rounds that compete."""
        return (75, 150) if len(self.sample) > MANY_ROWS else (40, 80, 160, 320)

    def _units(self, contexts: Array) -> Array:
        return units_of(self.models, contexts, self._levels, self._least_levels)

    @property
    def _levels(self) -> tuple[int, ...]:
        """The context columns that hold the outcomes' levels, if any do."""
        return () if self.sample.timeline is None else self.sample.timeline.levels

    @cached_property
    def _least_levels(self) -> Array:
        if not self._levels:
            return np.zeros(0)
        levels = self.sample.contexts[:, list(self._levels)]
        return (_LEAST_LEVEL * levels.abs().mean(dim=0).clamp_min(1e-300)).numpy()

    def join(self, results: Sequence[Arrays]) -> Boosted:
        """Features of all parts, with the rounds and the ways of looking that held-out rows are for."""
        rows = {row: place for place, row in enumerate(self.rows.tolist())}
        stages, count = self._stages, len(self.models)
        seen = np.full((len(stages), len(self.rows), count), np.nan)
        for result in results:
            places = np.array([rows[row] for row in result["unseen"].tolist()], np.int64)
            seen[:, places] = result["predictions"]
        sample = self.sample.rows(self.rows)
        seen *= self._units(sample.contexts.numpy())
        known = ~np.isnan(seen[0, :, 0])
        outcomes = sample.outcomes.numpy()
        losses = np.stack(
            [
                [_loss(outcomes[known, m.outcome], seen[s, known, p], m.level) for p, m in enumerate(self.models)]
                for s in range(len(stages))
            ]
        )
        best = losses.argmin(axis=0)
        chosen = seen[best, :, np.arange(count)].T
        rounds = [stages[s] for s in best]
        used = results[:1] if self.sample.timeline is not None else results
        names, blend = self._columns(outcomes[known], chosen[known])
        # A model that no column needs has no trees.
        kept = [number if row.any() else 0 for number, row in zip(rounds, blend, strict=True)]
        forest = joined([Forest.from_arrays("", result).first(kept) for result in used])
        scaled = Standardizer.fit(sample.outcomes)
        told = torch.from_numpy(chosen @ blend)
        made = Boosted(
            contexts=Standardizer.fit(sample.contexts),
            outcomes=scaled,
            forest=forest,
            ridge=np.stack([result["ridge"] for result in used]),
            models=self.models,
            levels=self._levels,
            least_levels=self._least_levels,
            blend=blend,
            columns=tuple(names),
            base=tuple(names.index((outcome, level)) for outcome, level in enumerate(self.base)),
            error_scale=torch.ones(sample.outcomes.shape[1], dtype=torch.float64),
            kept=tuple(range(sample.contexts.shape[1] + len(names))),
        )
        history = made.arranged(sample.contexts, told)
        errors = (sample.outcomes - told[:, list(made.base)])[torch.from_numpy(known)]
        shrink = (errors.square().mean(dim=0).sqrt() / scaled.scale).clamp_min(1e-6)
        return replace(made, error_scale=shrink, history=history)

    def _columns(self, outcomes: Array, seen: Array) -> tuple[list[tuple[int, float]], Array]:
        """What is told of each outcome, and how much each model counts for it (P, C): those ways of looking are
        averaged that together did best where the base was held out."""
        names = list(dict.fromkeys((model.outcome, model.level) for model in self.models))
        blend = np.zeros((len(self.models), len(names)))
        for outcome, level in enumerate(self.base):
            ways = [p for p, m in enumerate(self.models) if (m.outcome, m.level) == (outcome, level)]
            sets = [some for size in range(len(ways), 0, -1) for some in combinations(ways, size)]
            losses = [_loss(outcomes[:, outcome], seen[:, list(some)].mean(axis=1), level) for some in sets]
            views = {self.models[p].view for p in sets[int(np.argmin(losses))]}
            for column, (of, _) in enumerate(names):
                if of == outcome:
                    own = [p for p, m in enumerate(self.models) if (m.outcome, m.level) == names[column]]
                    used = [p for p in own if self.models[p].view in views]
                    blend[used, column] = 1 / len(used)
        return names, blend


def fit(sample: Sample, folds: Tensor) -> Boosted:
    """Fitted to the outcomes' means, in this process and without regard to time; :class:`Boosting` does it in parts,
    and for a problem."""
    sample = replace(sample, timeline=None)
    boosting = Boosting(sample, torch.arange(len(sample)), _means(sample), (MEAN,) * sample.outcomes.shape[1], 0, folds)
    return boosting.join([boosting.fit(part) for part in range(boosting.parts)])


def _means(sample: Sample) -> tuple[Model, ...]:
    return tuple(Model(j, MEAN, view) for j in range(sample.outcomes.shape[1]) for view in ("plain", "ridge"))


BOOSTED = FeatureKind("boosted", fit, from_arrays, sees_outcomes=True)


def _levels(base: float, few: bool) -> list[float]:
    """The mean, the base and, where there is room, how wide outcomes scatter."""
    wide = (0.25, 0.75) if base == MEAN else (0.5,) if base >= 0.8 else (0.9,)
    return list(dict.fromkeys([MEAN, base, *(wide if few else ())]))


def _ridge(contexts: Array, outcomes: Array) -> Array:
    """Slopes and constant (d_x + 1, d_y) for contexts in their own units."""
    scale = Standardizer.fit(torch.from_numpy(contexts))
    fitted = ridge(scale.apply(torch.from_numpy(contexts)), torch.from_numpy(outcomes))
    slopes = fitted[:-1] / scale.scale[:, None]
    return torch.cat([slopes, (fitted[-1] - scale.mean @ slopes)[None]]).numpy()


def _boost(
    inputs: Array, outcome: Array, unit: Array | None, level: float, shown: Array, stages: Sequence[int], seed: int
) -> tuple[str, Array]:
    """The text of a model and, after each of the stages, its predictions (stages, n) for the rows shown."""
    import lightgbm

    weight = unit if level != MEAN or unit is None else unit * unit
    many = len(inputs) > MANY_ROWS
    parameters = {
        "objective": "regression" if level == MEAN else "quantile",
        "alpha": 0.5 if level == MEAN else level,
        "num_leaves": 15 if len(inputs) < 3000 else 31,
        "learning_rate": 0.1 if many else 0.06,
        "min_data_in_leaf": 20 if len(inputs) < 3000 else 40,
        "feature_fraction": 0.7,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "num_threads": 1,
        "deterministic": True,
        "force_col_wise": True,
        "seed": seed % 2**31,
        "verbosity": -1,
    }
    label = outcome if unit is None else outcome / unit
    table = lightgbm.Dataset(inputs, label, weight=weight)
    model = lightgbm.train(parameters, table, stages[-1])
    if not len(shown):
        return model.model_to_string(), np.empty((len(stages), 0))
    return model.model_to_string(), np.stack([model.predict(shown, num_iteration=number) for number in stages])


def _loss(outcome: Array, predicted: Array, level: float) -> float:
    short = outcome - predicted
    if level == MEAN:
        return float(np.mean(short * short))
    return float(np.mean(np.maximum(level * short, (level - 1) * short)))
