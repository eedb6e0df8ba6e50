"""Fold mixtures: many decision-focused members, each stopped early on its own fold, so that no row is wasted.

A candidate is one way to learn (a predictor, a temperature, an initial scale, a learning rate) carried out by all
members; members × configurations train as one batch. Out-of-fold scenarios, in which a row is seen only through members
that did not learn from it, are what selection and diagnostics judge by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds
from bco_core.families import Family, Mixture, equal_mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.training import Progress, no_progress
from bco_core.inference.variational import (
    TracePoint,
    VariationalFit,
    VariationalOptions,
    fit_variational,
    member_scenarios,
)
from bco_core.inference.warm_start import SquaredError, ridge_start, shift_to_decisions
from bco_core.posterior import Arrays
from bco_core.scenarios import Scenarios

OUT_OF_FOLD_DRAWS = 16

# Locations and scales (R, d) to learn from.
Start = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a kind of predictor is learned. ``fit_rate`` None means that ridge regression is fit enough.

    From a warm start a network soon finds what there is to gain; a linear model may have a longer way.
    """

    initial_scale: float
    prior_scale: float
    fit_rate: float | None
    decision_rate: float
    patience: int


NETWORK = Recipe(initial_scale=0.03, prior_scale=0.1, fit_rate=0.01, decision_rate=0.001, patience=10)
LINEAR = Recipe(initial_scale=0.01, prior_scale=1.0, fit_rate=None, decision_rate=0.003, patience=20)


@dataclass(frozen=True)
class Configuration:
    """A departure from the recipe, as factors on its temperature, initial scale and learning rate.

    ``own_units`` starts and learns as if contexts had not been standardised, so that columns of large spread count for
    more: a bet on the units that people chose, which pays where signals are large and noise is small.
    """

    name: str
    kl_factor: float = 1.0
    scale_factor: float = 1.0
    rate_factor: float = 1.0
    own_units: bool = False


DEFAULT = Configuration("default")
FASTER = Configuration("faster learning", rate_factor=3.0)
REGULARISED = (Configuration("stronger prior", kl_factor=5.0), Configuration("narrower start", scale_factor=0.3))
# Costs with large penalties put good decisions far from good predictions: a linear model must travel there, and the
# noise of a wide start keeps it from fitting what it meets on the way.
WIDE = (
    Configuration("wide start", scale_factor=100.0, rate_factor=10.0),
    Configuration("wide start, own units", scale_factor=100.0, rate_factor=10.0, own_units=True),
)


def sweep_for(rows: int, recipe: Recipe) -> tuple[Configuration, ...]:
    """What competes, the one to be left only for a clear gain first.

    A linear model may start near its recipe or far from it. Up to 200 rows no gain is clear, and the first had better
    be the one that fits noise least. A network may move more or less freely; beyond 1,500 rows it hardly matters.
    """
    if recipe is LINEAR:
        return (*reversed(WIDE), DEFAULT, FASTER) if rows <= 200 else (DEFAULT, FASTER, *WIDE)
    return DEFAULT, FASTER, *(REGULARISED if rows <= 1500 else ())


def members_for(rows: int) -> int:
    """Two five-fold partitions up to 3,000 rows and one beyond: more rows need fewer members to say the same."""
    return 2 * FOLDS if rows <= 3000 else FOLDS


def warm_start(
    target: GibbsTarget,
    folds: Folds,
    recipe: Recipe,
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> Start:
    """Where each member begins: a good predictor of the outcomes, moved to where its decisions cost least."""
    predictor = target.predictor
    encoded = predictor.encode(target.sample.contexts, target.prior_scale.dtype)
    standardized = predictor.outcomes.apply(target.sample.outcomes)
    loc = predictor.initial(len(folds.train), generator).to(encoded)
    loc = ridge_start(predictor, encoded, standardized, folds.train, loc)
    scale = torch.full_like(loc, recipe.initial_scale)
    if recipe.fit_rate is not None:
        surrogate = replace(target, problem=SquaredError(predictor.outcomes.scale), cost_scale=1.0)
        options = replace(options, learning_rate=recipe.fit_rate, patience=recipe.patience)
        fitted = fit_variational(surrogate, folds, options, generator, progress, (loc, scale)).mixture
        loc, scale = fitted.loc, fitted.scale
    return shift_to_decisions(target, encoded, folds.train, loc), scale


def fit_configurations(
    target: GibbsTarget,
    folds: Folds,
    recipe: Recipe,
    configurations: Sequence[Configuration],
    options: VariationalOptions,
    start: Start,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> list[VariationalFit]:
    """Learn the members from their start under every configuration, all as one batch; one fit a configuration."""
    count, members = len(configurations), len(folds.train)
    loc, scale = start
    factors = torch.tensor([[c.kl_factor, c.scale_factor, c.rate_factor] for c in configurations], dtype=loc.dtype)
    kl, scales, rates = factors.repeat_interleave(members, dim=0).T
    own = torch.tensor([[c.own_units] for c in configurations]).repeat_interleave(members, dim=0)
    units = torch.where(own, target.predictor.context_units().to(loc), torch.ones_like(loc[:1])) if own.any() else 1.0
    everyone = Folds(folds.train.repeat(count, 1), folds.validation.repeat(count, 1))
    options = replace(
        options,
        kl_weight=options.kl_weight * kl,
        learning_rate=recipe.decision_rate * rates[:, None] * units,
        patience=recipe.patience,
    )
    begin = loc.repeat(count, 1), scale.repeat(count, 1) * scales[:, None] * units
    fit = fit_variational(target, everyone, options, generator, progress, begin)
    return [_of_members(fit, slice(c * members, (c + 1) * members)) for c in range(count)]


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


def packed(fits: Sequence[VariationalFit]) -> Arrays:
    """Fits of one member each, which learned together, as plain arrays."""
    return {
        "loc": torch.cat([fit.mixture.loc for fit in fits]).numpy(),
        "scale": torch.cat([fit.mixture.scale for fit in fits]).numpy(),
        "best_epochs": np.array([fit.best_epochs[0] for fit in fits]),
        "stopped_early": np.array([fit.stopped_early[0] for fit in fits]),
        "trace": np.array([astuple(point) for point in fits[0].trace], dtype=float),
    }


def unpacked(arrays: Arrays, family: Family) -> list[VariationalFit]:
    """The fits again."""
    trace = [
        TracePoint(int(epoch), risk, kl, None if math.isnan(cost) else cost, scale)
        for epoch, risk, kl, cost, scale in arrays["trace"].tolist()
    ]
    mixture = equal_mixture(family, torch.from_numpy(arrays["loc"]), torch.from_numpy(arrays["scale"]))
    together = VariationalFit(mixture, arrays["best_epochs"].tolist(), arrays["stopped_early"].tolist(), trace)
    return [_of_members(together, slice(index, index + 1)) for index in range(len(mixture.loc))]


@dataclass(frozen=True)
class OutOfFold:
    """Scenarios for ``rows`` (m,) of the sample from the members that held them out, with equal weights."""

    rows: Tensor
    scenarios: Scenarios


def out_of_fold(target: GibbsTarget, folds: Folds, mixture: Mixture, generator: torch.Generator) -> OutOfFold:
    """Judge every row that each full partition of the folds holds out, by draws of the members that did not see it."""
    members, size = folds.validation.shape
    partitions = max(1, members // FOLDS)
    used = min(members, partitions * FOLDS)
    encoded = target.predictor.encode(target.sample.contexts, mixture.loc.dtype)
    noise = mixture.family.noise((used, OUT_OF_FOLD_DRAWS, mixture.loc.shape[1]), generator, mixture.loc.dtype)
    held_out = folds.validation[:used]
    seen = member_scenarios(target, held_out, encoded, mixture.loc[:used], mixture.scale[:used], noise)

    count, outcome_dim = len(target.sample), target.predictor.widths[-1]
    partition = torch.arange(used).repeat_interleave(size) // FOLDS
    atoms = torch.full((count, partitions, OUT_OF_FOLD_DRAWS, outcome_dim), torch.nan, dtype=torch.float64)
    modes = torch.full((count, partitions, outcome_dim), torch.nan, dtype=torch.float64)
    atoms[held_out.flatten(), partition] = seen.outcomes
    modes[held_out.flatten(), partition] = seen.mode
    rows = (~modes.isnan().any(dim=2).any(dim=1)).nonzero().flatten()
    outcomes = atoms[rows].flatten(1, 2)
    weights = torch.full((outcomes.shape[1],), 1 / outcomes.shape[1], dtype=torch.float64)
    return OutOfFold(rows, Scenarios(outcomes, weights, modes[rows, 0]))


def linear_in_network(network: GibbsTarget, mixture: Mixture) -> Mixture:
    """A linear mixture as members of the network with a skip path: its network part is (all but) exactly zero."""
    members, dim = len(mixture.loc), mixture.loc.shape[1]
    padding = network.predictor.dim - dim
    loc = torch.cat([torch.zeros(members, padding).to(mixture.loc), mixture.loc], dim=1)
    scale = torch.cat([torch.full((members, padding), 1e-6).to(mixture.scale), mixture.scale], dim=1)
    return Mixture(mixture.family, mixture.weights, loc, scale)
