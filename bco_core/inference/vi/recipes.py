"""How members learn: a recipe for each sort of predictor, and the departures from it that compete."""

from __future__ import annotations

from dataclasses import dataclass

from bco_core.data import FOLDS
from bco_core.predictors.registry import PREDICTORS


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


def recipe_for(kind: str) -> Recipe:
    return NETWORK if PREDICTORS[kind].is_network else LINEAR


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
