"""Fold mixtures: many decision-focused members, each holding out a fold of its own, so that no row is wasted.

A configuration (temperature, initial scale, learning rate, warm start) is learned by all members; members ×
configurations train as one batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np
import torch
from torch import Tensor

from bco_core.data import FOLDS, Arrays, Folds
from bco_core.distributions import Family, Mixture, equal_mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.vi.hyperparameters import AS_BOOSTED, Configuration, TrainingRecipe, WarmStart
from bco_core.inference.vi.variational import TracePoint, VariationalFit, VariationalOptions, fit_variational
from bco_core.inference.vi.warm_start import SquaredError, ridge_start, shift_to_decisions
from bco_core.predictors.base import Predictor
from bco_core.progress import Progress, no_progress, part_of, without_figures

# The scale of a coordinate that the smaller predictor does not have.
ZERO_SCALE = 1e-6
# Initial locations and scales (R, d).
StartValues = tuple[Tensor, Tensor]


def learn_all(
    target: GibbsTarget,
    folds: Folds,
    recipe: TrainingRecipe,
    configurations: Sequence[Configuration],
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> list[VariationalFit]:
    """Warm start and train the members under every configuration; return one fit for each configuration."""
    fits: dict[Configuration, VariationalFit] = {}
    for recent in dict.fromkeys(one.recent for one in configurations):
        same = [one for one in configurations if one.recent == recent and one is not AS_BOOSTED]
        if same:
            rows = folds if recent == 1 else latest_rows(target, folds, recent)
            fits |= zip(same, _learn(target, rows, recipe, same, options, generator, progress), strict=True)
    if AS_BOOSTED in configurations:
        fits[AS_BOOSTED] = as_boosted(target, len(folds.train))
    return [fits[one] for one in configurations]


def latest_rows(target: GibbsTarget, folds: Folds, share: float) -> Folds:
    """Return folds whose members learn from the latest share of their rows."""
    timeline = target.sample.timeline
    if timeline is None:
        raise RuntimeError("rows without a time have no latest")
    count = max(FOLDS, int(share * folds.train.shape[1]))
    by_time = timeline.periods[folds.train].argsort(dim=1, stable=True)
    return Folds(folds.train.gather(1, by_time[:, -count:]), folds.validation)


def as_boosted(target: GibbsTarget, members: int) -> VariationalFit:
    """Return members that predict the boosted base itself."""
    loc = torch.zeros(members, target.predictor.dim)
    mixture = equal_mixture(target.family, loc, torch.full_like(loc, ZERO_SCALE))
    return VariationalFit(mixture, [0] * members, [True] * members, [])


def _learn(
    target: GibbsTarget,
    folds: Folds,
    recipe: TrainingRecipe,
    configurations: Sequence[Configuration],
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress,
) -> list[VariationalFit]:
    used = [configuration.start for configuration in configurations]
    starts = warm_starts(target, folds, recipe, used, options, generator, part_of(progress, 0.0, 0.5))
    rest = part_of(progress, 0.5, 1.0)
    return fit_configurations(target, folds, recipe, configurations, options, starts, generator, rest)


def warm_starts(
    target: GibbsTarget,
    folds: Folds,
    recipe: TrainingRecipe,
    starts: Iterable[WarmStart],
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> dict[WarmStart, StartValues]:
    """Return initial values of each warm start: good predictors, shifted to where their decisions cost least."""
    predictor, members = target.predictor, len(folds.train)
    encoded = target.encoded()
    loc = predictor.initial(members, generator).to(encoded)
    if not recipe.departs:
        standardized = predictor.outcomes.apply(target.sample.outcomes)
        loc = ridge_start(predictor, encoded, standardized, folds.train, loc)
    elif not predictor.is_network:
        loc = torch.zeros_like(loc)
    different = list(dict.fromkeys(starts))
    kl, widths = torch.tensor(different, dtype=loc.dtype).repeat_interleave(members, dim=0).T
    everyone = _repeated(folds, len(different))
    loc = loc.repeat(len(different), 1)
    scale = recipe.initial_scale * widths[:, None].expand_as(loc)
    if recipe.fit_rate is not None:
        surrogate = replace(target, problem=SquaredError(predictor.outcomes.scale), cost_scale=1.0)
        options = replace(
            options,
            kl_weight=options.kl_weight * kl,
            learning_rate=recipe.fit_rate,
            patience=recipe.patience,
            peers=members,
            rungs=recipe.fit_rungs,
        )
        # Squared errors are not costs and must not be reported as such.
        fitted = fit_variational(
            surrogate, everyone, options, generator, without_figures(progress), (loc, scale)
        ).mixture
        loc, scale = fitted.loc, fitted.scale
    loc = shift_to_decisions(target, encoded, everyone.train, loc)
    begins = zip(loc.split(members), scale.split(members), strict=True)
    return dict(zip(different, begins, strict=True))


def fit_configurations(
    target: GibbsTarget,
    folds: Folds,
    recipe: TrainingRecipe,
    configurations: Sequence[Configuration],
    options: VariationalOptions,
    starts: Mapping[WarmStart, StartValues],
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> list[VariationalFit]:
    """Train the members from their start under every configuration, as one batch; return one fit for each."""
    count, members = len(configurations), len(folds.train)
    loc = torch.cat([starts[c.start][0] for c in configurations])
    scale = torch.cat([starts[c.start][1] for c in configurations])
    factors = torch.tensor(
        [[c.whole_kl_factor, c.scale_factor, c.rate_factor] for c in configurations], dtype=loc.dtype
    )
    kl, scales, rates = factors.repeat_interleave(members, dim=0).T
    own = torch.tensor([[c.own_units] for c in configurations]).repeat_interleave(members, dim=0)
    units = torch.where(own, target.predictor.units().to(loc), torch.ones_like(loc[:1])) if own.any() else 1.0
    options = replace(
        options,
        kl_weight=options.kl_weight * kl,
        learning_rate=recipe.decision_rate * rates[:, None] * units,
        patience=recipe.patience,
        peers=members,
        rungs=recipe.rungs,
    )
    begin = loc, scale * scales[:, None] * units
    fit = fit_variational(target, _repeated(folds, count), options, generator, progress, begin)
    return [_of_members(fit, slice(c * members, (c + 1) * members)) for c in range(count)]


def _repeated(folds: Folds, times: int) -> Folds:
    return Folds(folds.train.repeat(times, 1), folds.validation.repeat(times, 1))


def _of_members(fit: VariationalFit, chosen: slice) -> VariationalFit:
    mixture = fit.mixture
    part = equal_mixture(mixture.family, mixture.loc[chosen], mixture.scale[chosen])
    return VariationalFit(part, fit.best_epochs[chosen], fit.stopped_early[chosen], fit.trace)


def join_fits(fits: Sequence[VariationalFit]) -> VariationalFit:
    """Join the members of several fits, equally weighted, with the first fit's trace."""
    mixture = equal_mixture(
        fits[0].mixture.family,
        torch.cat([fit.mixture.loc for fit in fits]),
        torch.cat([fit.mixture.scale for fit in fits]),
    )
    epochs = [epoch for fit in fits for epoch in fit.best_epochs]
    return VariationalFit(mixture, epochs, [stop for fit in fits for stop in fit.stopped_early], fits[0].trace)


def pack_fit(fit: VariationalFit) -> Arrays:
    """Return a fit as plain arrays."""
    return {
        "loc": fit.mixture.loc.numpy(),
        "scale": fit.mixture.scale.numpy(),
        "best_epochs": np.array(fit.best_epochs),
        "stopped_early": np.array(fit.stopped_early),
        "trace": np.array([astuple(point) for point in fit.trace], dtype=float),
    }


def unpack_fit(arrays: Arrays, family: Family) -> VariationalFit:
    """Restore a fit from :func:`pack_fit`."""
    trace = [
        TracePoint(int(epoch), risk, kl, None if math.isnan(cost) else cost, scale)
        for epoch, risk, kl, cost, scale in arrays["trace"].tolist()
    ]
    mixture = equal_mixture(family, torch.from_numpy(arrays["loc"]), torch.from_numpy(arrays["scale"]))
    return VariationalFit(mixture, arrays["best_epochs"].tolist(), arrays["stopped_early"].tolist(), trace)


def embed(source: GibbsTarget, mixture: Mixture, onto: GibbsTarget, columns: Sequence[int]) -> Mixture:
    """Return a mixture as members of a larger predictor, ``onto``, that predict the same.

    ``onto`` is a network with a linear path, or a linear model; ``columns`` are the places of the source's features
    among its features. Coordinates that the source does not have are zero, up to ``ZERO_SCALE``. If only ``onto`` has a
    base, the linear path subtracts it again: the base is one of the features there.
    """
    units = torch.ones(source.predictor.outcome_dim, dtype=mixture.loc.dtype)
    bases = onto.predictor.features.bases
    cancels = bases is not None and source.predictor.features.bases is None
    if cancels:
        units = units / onto.predictor.features.shrink.to(units)
    loc = _embed_values(source.predictor, mixture.loc, onto.predictor, columns, units, 0.0)
    scale = _embed_values(source.predictor, mixture.scale, onto.predictor, columns, units, ZERO_SCALE)
    if cancels:
        outcomes = onto.predictor.outcome_dim
        slopes = loc[:, -onto.predictor.linear_dim : -outcomes].view(len(loc), -1, outcomes)
        for outcome, column in enumerate(onto.predictor.features.base_columns):
            slopes[:, column, outcome] -= units[outcome]
    return Mixture(mixture.family, mixture.weights, loc, scale)


def _embed_values(
    source: Predictor, values: Tensor, onto: Predictor, columns: Sequence[int], units: Tensor, fill: float
) -> Tensor:
    members, outcomes = len(values), onto.outcome_dim
    embedded = torch.full((members, onto.dim), fill, dtype=values.dtype)
    path = values[:, -source.linear_dim :]
    slopes = torch.full((members, onto.widths[0], outcomes), fill, dtype=values.dtype)
    slopes[:, list(columns)] = path[:, :-outcomes].view(members, -1, outcomes) * units
    embedded[:, -onto.linear_dim :] = torch.cat([slopes.flatten(1), path[:, -outcomes:] * units], dim=1)
    if source.is_network:
        inner = values[:, : -source.linear_dim]
        first = source.widths[0] * source.widths[1]
        weights = torch.full((members, onto.widths[0], onto.widths[1]), fill, dtype=values.dtype)
        weights[:, list(columns)] = inner[:, :first].view(members, -1, onto.widths[1])
        last = (source.widths[-2] + 1) * outcomes
        rest = inner[:, first:].clone()
        rest[:, -last:] = (rest[:, -last:].view(members, -1, outcomes) * units).flatten(1)
        embedded[:, : -onto.linear_dim] = torch.cat([weights.flatten(1), rest], dim=1)
    return embedded
