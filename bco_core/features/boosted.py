"""Boosted features: predictions of each outcome by gradient-boosted trees, as the base from which θ departs.

LightGBM is fitted to the mean and to a few quantiles of every outcome, once without each fold, and predicts the fold it
has not seen; θ learns on these predictions. Where rows have a time, "without a fold" means from rows that were known
before it (:func:`bco_core.timeline.blocks`). For new contexts the models of all folds are averaged; with time, where
later models have seen more, one model of all rows is used.

Trees neither extrapolate nor know that series differ in size, so they are fitted to several views of the contexts,
which are averaged where that helps on held-out rows:

    plain     contexts alone
    ridge     contexts and the prediction of a ridge regression
    level     the same, for the outcome in units of its series' level, where contexts hold one

The *base* is the prediction that a decision would be taken from: the critical fractile where a problem has one, the
mean elsewhere. Predictors say by how much to depart from it, so a prior around zero is one around the boosted rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.batch_kernels import compiled
from bco_core.data import Arrays, Sample, Standardizer, fold_numbers
from bco_core.features.base import FeatureKind, Features
from bco_core.features.trees import Forest, from_lightgbm, join_forests
from bco_core.problems.base import DecisionProblem
from bco_core.regression import ridge
from bco_core.timeline import blocks, known_before

Array = np.ndarray[Any, np.dtype[np.float64]]

# Level of a model of the mean; other levels are those of quantiles.
MEAN = -1.0


class BoostedModel(NamedTuple):
    """A boosted model: of the mean or a quantile (``level``) of an outcome, from one view of the contexts."""

    outcome: int
    level: float
    view: str


@dataclass(frozen=True)
class BoostedFeatures(Features):
    """Contexts in unit scale, predictions of trees in units of the outcomes' spread, and the base once more, last.

    ``forest`` holds the ``models`` of every fit in turn, ``ridge`` (fits, d_x + 1, d_y) the regressions that go with
    them; ``blend`` (P, C) averages models into ``columns``. ``column_indices`` are those of contexts
    and of predictions that predictors see.
    """

    contexts: Standardizer
    outcomes: Standardizer
    forest: Forest
    ridge: Array
    models: tuple[BoostedModel, ...]
    levels: tuple[int, ...]
    least_levels: Array
    blend: Array
    columns: tuple[tuple[int, float], ...]
    base: tuple[int, ...]
    error_scale: Tensor
    column_indices: tuple[int, ...]
    history: Tensor | None = None

    def only(self, contexts: bool) -> BoostedFeatures:
        """Return the predictions of trees alone, or with the contexts."""
        indices = tuple(range(0 if contexts else self.context_dim, self.context_dim + len(self.columns)))
        if self.history is None or self.column_indices == indices:
            return replace(self, column_indices=indices)
        if len(self.column_indices) < self.context_dim + len(self.columns):
            raise RuntimeError("columns that were left out are gone from the history")
        last = list(range(len(self.column_indices), len(self.column_indices) + len(self.base)))
        return replace(self, column_indices=indices, history=self.history[:, [*indices, *last]])

    @property
    def kind(self) -> str:
        return "boosted"

    @property
    def context_dim(self) -> int:
        return len(self.contexts.mean)

    @property
    def width(self) -> int:
        return len(self.column_indices)

    @property
    def bases(self) -> Standardizer:
        return self.outcomes

    @property
    def shrink(self) -> Tensor:
        return self.error_scale

    @property
    def base_columns(self) -> tuple[int, ...]:
        return tuple(self.column_indices.index(self.context_dim + column) for column in self.base)

    @property
    def spread(self) -> Tensor:
        predictions = self.outcomes.scale[[outcome for outcome, _ in self.columns]]
        return torch.cat([self.contexts.scale, predictions])[list(self.column_indices)]

    def of_new(self, contexts: Tensor) -> Tensor:
        rows = np.ascontiguousarray(contexts.reshape(-1, self.context_dim).numpy(), np.float64)
        fits, count = len(self.ridge), len(self.models)
        predictions = np.zeros((len(rows), count))
        units = units_of(self.models, rows, self.levels, self.least_levels)
        forest = self.forest
        for fit in range(fits):
            wide = with_regression(rows, self.ridge[fit])
            part = slice(fit * count, (fit + 1) * count)
            starts = forest.model_start[part.start : part.stop + 1]
            predictions += replace(forest, model_start=starts).predict(wide)
        predictions *= units / fits
        blended = np.zeros((len(rows), len(self.columns)))
        for model in range(count):
            blended += predictions[:, model : model + 1] * self.blend[model]
        features = self.arrange(contexts.reshape(-1, self.context_dim), torch.from_numpy(blended))
        return features.reshape(*contexts.shape[:-1], features.shape[1])

    def of_history(self, sample: Sample) -> Tensor:
        if self.history is None or len(self.history) != len(sample):
            raise RuntimeError("boosted features know their history only while they are being fitted")
        return self.history

    def arrange(self, contexts: Tensor, predictions: Tensor) -> Tensor:
        """Turn contexts (n, d_x) and predictions (n, C) into features (n, width), then the bases."""
        of = [outcome for outcome, _ in self.columns]
        scaled = (predictions - self.outcomes.mean[of]) / self.outcomes.scale[of]
        features = torch.cat([self.contexts.apply(contexts), scaled], dim=1)
        return torch.cat([features[:, list(self.column_indices)], scaled[:, list(self.base)]], dim=1)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        description = {
            "models": [list(model) for model in self.models],
            "levels": list(self.levels),
            "columns": [list(column) for column in self.columns],
            "base": list(self.base),
            "kept": list(self.column_indices),
        }
        arrays: Arrays = self.forest.to_arrays("trees_") | {
            "boosted_ridge": self.ridge,
            "boosted_blend": self.blend,
            "boosted_least_levels": self.least_levels,
        }
        tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
        return description, tensors | {
            "context_mean": self.contexts.mean,
            "context_scale": self.contexts.scale,
            "boosted_mean": self.outcomes.mean,
            "boosted_scale": self.outcomes.scale,
            "boosted_error_scale": self.error_scale,
        }


def from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> BoostedFeatures:
    plain = {name: values.numpy() for name, values in arrays.items() if name.startswith(("trees_", "boosted_"))}
    return BoostedFeatures(
        contexts=Standardizer(arrays["context_mean"], arrays["context_scale"]),
        outcomes=Standardizer(arrays["boosted_mean"], arrays["boosted_scale"]),
        forest=Forest.from_arrays("trees_", plain),
        ridge=plain["boosted_ridge"],
        models=tuple(BoostedModel(*model) for model in description["models"]),
        levels=tuple(description["levels"]),
        least_levels=plain["boosted_least_levels"],
        blend=plain["boosted_blend"],
        columns=tuple((outcome, level) for outcome, level in description["columns"]),
        base=tuple(description["base"]),
        error_scale=arrays["boosted_error_scale"],
        column_indices=tuple(description["kept"]),
    )


def with_regression(contexts: Array, coefficients: Array) -> Array:
    """Return contexts and the regression's predictions, (n, d_x + d_y)."""
    wide = np.empty((len(contexts), contexts.shape[1] + coefficients.shape[1]))
    _fill(np.ascontiguousarray(contexts), np.ascontiguousarray(coefficients), wide)
    return wide


@compiled
def _fill(contexts, coefficients, wide):  # type: ignore[no-untyped-def]
    width, count = contexts.shape[1], coefficients.shape[1]
    for row in range(len(contexts)):
        for i in range(width):
            wide[row, i] = contexts[row, i]
        for j in range(count):
            total = coefficients[width, j]
            for i in range(width):
                total += contexts[row, i] * coefficients[i, j]
            wide[row, width + j] = total


def units_of(models: Sequence[BoostedModel], rows: Array, levels: Sequence[int], least: Array) -> Array:
    """Return the unit (n, P) of each model's outcome: the level of its series, bounded away from zero, or 1."""
    units = np.ones((len(rows), len(models)))
    if levels:
        positive = np.maximum(rows[:, list(levels)], least)
        for index, model in enumerate(models):
            if model.view == "level":
                units[:, index] = positive[:, model.outcome]
    return units


# fitting

# With fewer rows, trees learn no more than a network does.
LEAST_ROWS = 1000
# More rows are boosted from fewer views, with fewer and quicker rounds.
MANY_ROWS = 100_000
# Smallest level, as a share of the mean level.
_LEAST_LEVEL = 0.01


@dataclass(frozen=True)
class BoostedFits:
    """Fits of boosted models to a sample, fold by fold, which may run in any process.

    θ learns from ``rows`` (m,) of the sample. ``folds`` (n,) replaces the default folds.
    """

    sample: Sample
    rows: Tensor
    models: tuple[BoostedModel, ...]
    base: tuple[float, ...]
    seed: int
    folds: Tensor | None = None

    @staticmethod
    def of(sample: Sample, rows: Tensor, problem: DecisionProblem, seed: int) -> BoostedFits:
        """Plan models of the outcomes' means and bases, and of more quantiles where outcomes are few."""
        count, wanted = sample.outcomes.shape[1], problem.fractiles
        base = [MEAN] * count if wanted is None else wanted.tolist()
        many = len(sample) > MANY_ROWS
        leveled = sample.timeline is not None and bool(sample.timeline.levels)
        views = ("ridge",) if many else ("plain", "ridge")
        models = [
            BoostedModel(outcome, level, view)
            for outcome in range(count)
            for level in _levels(base[outcome], few=count <= 3 and not many)
            for view in (*views, *(("level",) if leveled else ()))
        ]
        return BoostedFits(sample, rows, tuple(models), tuple(base), seed)

    @property
    def parts(self) -> int:
        """Number of fits of all models: one without each fold and, with time, one of all rows."""
        return int(self._folds.max()) + 1

    @cached_property
    def _folds(self) -> Tensor:
        """Fold (n,) of every row, from 0; with time, 1 is the first block that has a past."""
        if self.folds is not None:
            return self.folds
        if self.sample.timeline is None:
            return fold_numbers(len(self.sample), self.seed)
        return blocks(self.sample.timeline)

    def _training_rows(self, part: int) -> Tensor:
        """Return the rows that a part is fitted to; with time, part 0 is fitted to all."""
        timeline = self.sample.timeline
        if timeline is None:
            return (self._folds != part).nonzero().flatten()
        if part == 0:
            return torch.arange(len(self.sample))
        return known_before(timeline, self._folds == part).nonzero().flatten()

    def fit(self, part: int) -> Arrays:
        """Fit the models of a part, and predict, after some of their rounds, the rows they were not fitted to."""
        training = self._training_rows(part).numpy()
        contexts, outcomes = self.sample.contexts.numpy(), self.sample.outcomes.numpy()
        coefficients = _ridge(contexts[training], outcomes[training])
        unseen = self.rows[self._folds[self.rows] == part].numpy()
        if self.sample.timeline is not None and part == 0:
            unseen = unseen[:0]
        wide, shown = with_regression(contexts[training], coefficients), with_regression(contexts[unseen], coefficients)
        units, narrow = self._units(contexts[training]), contexts.shape[1]
        stages = self._stages

        def one(index: int) -> tuple[str, Array]:
            model = self.models[index]
            columns = slice(None, narrow if model.view == "plain" else None)
            unit = units[:, index] if model.view == "level" else None
            return _boost(
                wide[:, columns],
                outcomes[training, model.outcome],
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
        """Numbers of rounds to choose from."""
        return (75, 150) if len(self.sample) > MANY_ROWS else (40, 80, 160, 320)

    def _units(self, contexts: Array) -> Array:
        return units_of(self.models, contexts, self._levels, self._least_levels)

    @property
    def _levels(self) -> tuple[int, ...]:
        """Context columns that hold the outcomes' levels; empty if none do."""
        return () if self.sample.timeline is None else self.sample.timeline.levels

    @cached_property
    def _least_levels(self) -> Array:
        if not self._levels:
            return np.zeros(0)
        levels = self.sample.contexts[:, list(self._levels)]
        return (_LEAST_LEVEL * levels.abs().mean(dim=0).clamp_min(1e-300)).numpy()

    def join(self, results: Sequence[Arrays]) -> BoostedFeatures:
        """Join all parts into features, with the rounds and the views that did best on held-out rows."""
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
        needed = [number if row.any() else 0 for number, row in zip(rounds, blend, strict=True)]
        forest = join_forests([Forest.from_arrays("", result).first(needed) for result in used])
        scaled = Standardizer.fit(sample.outcomes)
        predictions = torch.from_numpy(chosen @ blend)
        features = BoostedFeatures(
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
            column_indices=tuple(range(sample.contexts.shape[1] + len(names))),
        )
        history = features.arrange(sample.contexts, predictions)
        errors = (sample.outcomes - predictions[:, list(features.base)])[torch.from_numpy(known)]
        shrink = (errors.square().mean(dim=0).sqrt() / scaled.scale).clamp_min(1e-6)
        return replace(features, error_scale=shrink, history=history)

    def _columns(self, outcomes: Array, seen: Array) -> tuple[list[tuple[int, float]], Array]:
        """Return the columns of predictions, and the weight (P, C) of each model in them.

        Columns average those views that together did best for the base on held-out rows.
        """
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


def fit(sample: Sample, folds: Tensor) -> BoostedFeatures:
    """Fit to the outcomes' means, in this process and without regard to time; :class:`BoostedFits` fits in parts, for a
    problem."""
    sample = replace(sample, timeline=None)
    boosting = BoostedFits(
        sample, torch.arange(len(sample)), _means(sample), (MEAN,) * sample.outcomes.shape[1], 0, folds
    )
    return boosting.join([boosting.fit(part) for part in range(boosting.parts)])


def _means(sample: Sample) -> tuple[BoostedModel, ...]:
    return tuple(BoostedModel(j, MEAN, view) for j in range(sample.outcomes.shape[1]) for view in ("plain", "ridge"))


BOOSTED = FeatureKind("boosted", fit, from_arrays, sees_outcomes=True)


def _levels(base: float, few: bool) -> list[float]:
    """Return the levels of the mean, the base and, with few outcomes, of quantiles that show their spread."""
    wide = (0.25, 0.75) if base == MEAN else (0.5,) if base >= 0.8 else (0.9,)
    return list(dict.fromkeys([MEAN, base, *(wide if few else ())]))


def _ridge(contexts: Array, outcomes: Array) -> Array:
    """Return slopes and constant (d_x + 1, d_y) for contexts in their own units."""
    scale = Standardizer.fit(torch.from_numpy(contexts))
    fitted = ridge(scale.apply(torch.from_numpy(contexts)), torch.from_numpy(outcomes))
    slopes = fitted[:-1] / scale.scale[:, None]
    return torch.cat([slopes, (fitted[-1] - scale.mean @ slopes)[None]]).numpy()


def _boost(
    inputs: Array, outcome: Array, unit: Array | None, level: float, shown: Array, stages: Sequence[int], seed: int
) -> tuple[str, Array]:
    """Return the text of a model and, after each of the stages, its predictions (stages, n) for the rows shown."""
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
