"""Fold mixtures: many decision-focused members, each stopped early on its own fold, so that no row is wasted.

A candidate is one way to learn (a predictor, a temperature, an initial scale, a learning rate) carried out by all
members; members × configurations train as one batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np
import torch
from torch import Tensor

from bco_core.data import Arrays, Folds
from bco_core.distributions import Mixture, equal_mixture
from bco_core.families import Family
from bco_core.gibbs import GibbsTarget
from bco_core.inference.vi.recipes import Configuration, Recipe, Start
from bco_core.inference.vi.variational import TracePoint, VariationalFit, VariationalOptions, fit_variational
from bco_core.inference.vi.warm_start import SquaredError, ridge_start, shift_to_decisions
from bco_core.progress import Progress, no_progress, part_of

# Locations and scales (R, d) to learn from.
Begin = tuple[Tensor, Tensor]


def learn_all(
    target: GibbsTarget,
    folds: Folds,
    recipe: Recipe,
    configurations: Sequence[Configuration],
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> list[VariationalFit]:
    """Warm start and learn the members under every configuration that competes; one fit a configuration."""
    used = [configuration.start for configuration in configurations]
    starts = warm_starts(target, folds, recipe, used, options, generator, part_of(progress, 0.0, 0.5))
    rest = part_of(progress, 0.5, 1.0)
    return fit_configurations(target, folds, recipe, configurations, options, starts, generator, rest)


def warm_starts(
    target: GibbsTarget,
    folds: Folds,
    recipe: Recipe,
    starts: Iterable[Start],
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> dict[Start, Begin]:
    """Where each member begins: a good predictor of the outcomes, moved to where its decisions cost least."""
    predictor, members = target.predictor, len(folds.train)
    encoded = target.encoded()
    standardized = predictor.outcomes.apply(target.sample.outcomes)
    loc = predictor.initial(members, generator).to(encoded)
    loc = ridge_start(predictor, encoded, standardized, folds.train, loc)
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
        fitted = fit_variational(surrogate, everyone, options, generator, progress, (loc, scale)).mixture
        loc, scale = fitted.loc, fitted.scale
    loc = shift_to_decisions(target, encoded, everyone.train, loc)
    begins = zip(loc.split(members), scale.split(members), strict=True)
    return dict(zip(different, begins, strict=True))


def fit_configurations(
    target: GibbsTarget,
    folds: Folds,
    recipe: Recipe,
    configurations: Sequence[Configuration],
    options: VariationalOptions,
    starts: Mapping[Start, Begin],
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> list[VariationalFit]:
    """Learn the members from their start under every configuration, all as one batch; one fit a configuration."""
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


def joined(fits: Sequence[VariationalFit]) -> VariationalFit:
    """One fit of all the members of several, equally weighted, with the first one's trace."""
    mixture = equal_mixture(
        fits[0].mixture.family,
        torch.cat([fit.mixture.loc for fit in fits]),
        torch.cat([fit.mixture.scale for fit in fits]),
    )
    epochs = [epoch for fit in fits for epoch in fit.best_epochs]
    return VariationalFit(mixture, epochs, [stop for fit in fits for stop in fit.stopped_early], fits[0].trace)


def packed(fit: VariationalFit) -> Arrays:
    """A fit as plain arrays."""
    return {
        "loc": fit.mixture.loc.numpy(),
        "scale": fit.mixture.scale.numpy(),
        "best_epochs": np.array(fit.best_epochs),
        "stopped_early": np.array(fit.stopped_early),
        "trace": np.array([astuple(point) for point in fit.trace], dtype=float),
    }


def unpacked(arrays: Arrays, family: Family) -> VariationalFit:
    """The fit again."""
    trace = [
        TracePoint(int(epoch), risk, kl, None if math.isnan(cost) else cost, scale)
        for epoch, risk, kl, cost, scale in arrays["trace"].tolist()
    ]
    mixture = equal_mixture(family, torch.from_numpy(arrays["loc"]), torch.from_numpy(arrays["scale"]))
    return VariationalFit(mixture, arrays["best_epochs"].tolist(), arrays["stopped_early"].tolist(), trace)


def linear_in_network(network: GibbsTarget, mixture: Mixture) -> Mixture:
    """A linear mixture as members of the network with a skip path: its network part is (all but) exactly zero."""
    members, dim = len(mixture.loc), mixture.loc.shape[1]
    padding = network.predictor.dim - dim
    loc = torch.cat([torch.zeros(members, padding).to(mixture.loc), mixture.loc], dim=1)
    scale = torch.cat([torch.full((members, padding), 1e-6).to(mixture.scale), mixture.scale], dim=1)
    return Mixture(mixture.family, mixture.weights, loc, scale)
