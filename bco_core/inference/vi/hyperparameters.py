"""Hyperparameters: a training recipe for each kind of predictor, and the configurations of it that compete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bco_core.data import FOLDS
from bco_core.predictors.registry import PREDICTORS
from bco_core.select import Table


@dataclass(frozen=True)
class TrainingRecipe:
    """How a kind of predictor is trained. ``fit_rate`` None means that ridge regression is warm start enough.

    From a warm start a network soon stops improving; a linear model may need longer. After the epochs in ``fit_rungs``
    the worse half of the warm starts is given up, after those in ``rungs`` the worse half of the configurations; linear
    models skip this, because they are cheap and their best configuration may start far away. ``departs``: the predictor
    is a residual model of a boosted rule.
    """

    initial_scale: float
    prior_scale: float
    fit_rate: float | None
    decision_rate: float
    patience: int
    fit_rungs: tuple[int, ...] = ()
    rungs: tuple[int, ...] = ()
    departs: bool = False


NETWORK = TrainingRecipe(
    initial_scale=0.03,
    prior_scale=0.1,
    fit_rate=0.01,
    decision_rate=0.001,
    patience=10,
    fit_rungs=(20, 40),
    rungs=(5, 12),
)
LINEAR = TrainingRecipe(initial_scale=0.01, prior_scale=1.0, fit_rate=None, decision_rate=0.003, patience=20)


class WarmStart(NamedTuple):
    """Factors of a warm start on the recipe's temperature and width: narrow members under a weak prior fit detail that
    wide ones treat as noise."""

    kl_factor: float = 1.0
    scale_factor: float = 1.0


AS_PRESCRIBED, NARROWER, NARROW = WarmStart(), WarmStart(0.3, 0.3), WarmStart(0.1, 0.1)


@dataclass(frozen=True)
class Configuration:
    """A configuration: its warm start, and factors on the recipe's temperature, scale and learning rate.

    ``own_units`` starts and learns as if contexts had not been standardised, so that columns of large spread count for
    more, which helps where signals are large and noise is small. ``recent`` is the share of the rows, the latest, to
    learn from.
    """

    name: str
    kl_factor: float = 1.0
    scale_factor: float = 1.0
    rate_factor: float = 1.0
    own_units: bool = False
    start: WarmStart = AS_PRESCRIBED
    recent: float = 1.0

    @property
    def whole_kl_factor(self) -> float:
        """The factor on the recipe's κ, including that of the warm start."""
        return self.kl_factor * self.start.kl_factor


DEFAULT = Configuration("default")
FASTER = Configuration("faster learning", rate_factor=3.0)
STRONGER = Configuration("stronger prior", kl_factor=5.0)
FREER = (Configuration("narrower start", start=NARROWER), Configuration("narrow start", start=NARROW))
# With many rows the prior matters less.
FREE = (
    Configuration("narrow start, faster learning", rate_factor=3.0, start=NARROW),
    Configuration("narrow start, weaker prior", kl_factor=1 / 3, start=NARROW),
    Configuration("narrow start, weakest prior", kl_factor=0.1, start=NARROW),
)
WEAKER = Configuration("weaker prior", kl_factor=0.1)
# Large penalties put good decisions far from good predictions: a linear model must move there, and the noise of a wide
# start keeps it from overfitting on the way.
WIDE = (
    Configuration("wide start", scale_factor=100.0, rate_factor=10.0),
    Configuration("wide start, own units", scale_factor=100.0, rate_factor=10.0, own_units=True),
)
# Where rows have a time, old ones may mislead.
RECENT = (
    Configuration("recent third", recent=1 / 3),
    Configuration("recent third, faster learning", rate_factor=3.0, recent=1 / 3),
)
# Residual models of a boosted rule: none, and then more or less freely.
AS_BOOSTED = Configuration("as boosted", scale_factor=0.0, rate_factor=0.0)
DEPARTING = (DEFAULT, FASTER, STRONGER)
# Networks that compete with a boosted rule gain by fitting freely.
BESIDE_BOOSTED = (FREER[1], FREE[0], FREE[2])
FEW_ROWS, MANY_ROWS = 500, 2000


def recipe_for(kind: str, departs: bool = False) -> TrainingRecipe:
    """Return the recipe of a kind of predictor. A residual model (``departs``) starts at the boosted rule: a fit to
    the outcomes would lead away from it."""
    recipe = NETWORK if PREDICTORS[kind].is_network else LINEAR
    return replace(recipe, fit_rate=None, fit_rungs=(), departs=True) if departs else recipe


def sweep_for(rows: int, recipe: TrainingRecipe, in_time: bool = False) -> tuple[Configuration, ...]:
    """Return the configurations that compete, the default first.

    A linear model may start near its recipe or far from it. Up to 200 rows no gain is clear, so the default is the
    configuration that fits noise least. A network may fit more or less freely.
    """
    many = rows > MANY_ROWS
    if recipe is LINEAR:
        near = (DEFAULT, FASTER, *((WEAKER,) if many else ()), *(RECENT if in_time else ()))
        return (*reversed(WIDE), *near) if rows <= 200 else (*near, *WIDE)
    if rows <= FEW_ROWS:
        return DEFAULT, FASTER, STRONGER, FREER[0]
    return DEFAULT, FASTER, *FREER, *(FREE if many else ())


def at_one_temperature(sweep: Sequence[Configuration]) -> tuple[Configuration, ...]:
    """Return the configurations that compete where the caller chose the temperature."""
    same = (one for one in sweep if one.kl_factor == 1)
    return tuple(replace(one, start=one.start._replace(kl_factor=1.0)) for one in same)


def labels(kind: str, sweep: Sequence[Configuration]) -> Table:
    """Return a row for each configuration, with its factors on the recipe, for reports."""
    return [
        {
            "predictor": kind,
            "name": one.name,
            "kl_factor": one.whole_kl_factor,
            "scale_factor": one.scale_factor * one.start.scale_factor,
            "rate_factor": one.rate_factor,
            "own_units": one.own_units,
            "recent": one.recent,
        }
        for one in sweep
    ]


def members_for(rows: int) -> int:
    """Return the number of members: two five-fold partitions up to 3,000 rows, one beyond, where fewer are enough."""
    return 2 * FOLDS if rows <= 3000 else FOLDS
