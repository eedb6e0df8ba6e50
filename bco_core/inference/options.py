"""Everything a caller may choose about learning: one set of options for each method.

A method takes the options it uses and no others, so a choice that would make no difference is refused instead of being
ignored. None means that the method chooses. At most one of the two temperatures may be given; it then holds for every
candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from bco_core.errors import InvalidInput
from bco_core.families import FAMILIES
from bco_core.features.registry import FEATURES
from bco_core.inference.training import OPTIMIZERS
from bco_core.policies import POLICIES
from bco_core.predictors.registry import BOOSTED, PredictorOptions

TEMPERATURES = ("settle", "validation")
THINNING = ("support_points", "regular")


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """What every method takes: predictor, prior family, temperature, the policy to recommend, particles and seed."""

    method: ClassVar[str]

    predictor: PredictorOptions = field(default_factory=PredictorOptions)
    family: str = "laplace"
    kl_weight: float | None = None
    inverse_temperature: float | None = None
    policy: str | None = None
    particles: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        self._positive("kl_weight", "inverse_temperature")
        self._counts("particles")
        self._known("family", tuple(FAMILIES))
        if self.policy is not None:
            self._known("policy", tuple(POLICIES))
        if self.kl_weight is not None and self.inverse_temperature is not None:
            raise InvalidInput("give kl_weight or inverse_temperature, not both", ("kl_weight",))
        boosts = self.predictor.kind == BOOSTED
        if boosts and self.method != "auto":
            raise InvalidInput("departures from boosted trees are learned by auto alone", ("predictor", "kind"))
        if getattr(self, "certify", None) and (boosts or FEATURES[self.predictor.features].sees_outcomes):
            raise InvalidInput("features fitted to outcomes leave no prior to certify with", ("certify",))

    @property
    def has_temperature(self) -> bool:
        """Whether the caller chose the temperature."""
        return self.kl_weight is not None or self.inverse_temperature is not None

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} must be a positive number", (name,))

    def _counts(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1", (name,))

    def _known(self, name: str, known: Sequence[str]) -> None:
        if getattr(self, name) not in known:
            raise InvalidInput(f"the {name} must be one of {', '.join(known)}", (name,))


@dataclass(frozen=True, kw_only=True)
class MhOptions(LearningOptions):
    """Metropolis–Hastings, the paper's Algorithms 2 and 3.

    ``temperature`` says how an inverse temperature that is not given is found, ``scale_costs`` whether it is for costs
    in units of the best constant decision's, ``thinning`` how the particles are chosen from the draws.
    """

    method: ClassVar[str] = "mh"

    prior_scale: float = 1.0
    chains: int = 4
    steps: int = 15_000
    burn_in: int = 5_000
    temperature: str = "settle"
    scale_costs: bool = True
    thinning: str = "support_points"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("prior_scale")
        self._counts("chains", "steps")
        self._known("temperature", TEMPERATURES)
        self._known("thinning", THINNING)
        if not 0 <= self.burn_in < self.steps:
            raise InvalidInput("burn_in must be shorter than the chain of steps", ("burn_in",))
        if self.has_temperature and self.temperature != TEMPERATURES[0]:
            raise InvalidInput("a temperature that is given need not be found; leave temperature out", ("temperature",))


@dataclass(frozen=True, kw_only=True)
class ViOptions(LearningOptions):
    """Plain variational inference; with one member it is the paper's Algorithm 1.

    ``certify`` scales the predictor with a tenth of the rows, so that the prior is independent of the others and a
    certificate may hold.
    """

    method: ClassVar[str] = "vi"

    members: int = 1
    prior_scale: float = 1.0
    initial_scale: float = 0.05
    epochs: int = 300
    patience: int = 20
    batch_size: int = 128
    optimizer: str = "adam"
    learning_rate: float = 0.003
    draws: int = 1
    certify: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("prior_scale", "initial_scale", "learning_rate")
        self._counts("members", "epochs", "patience", "batch_size", "draws")
        self._known("optimizer", tuple(OPTIMIZERS))


@dataclass(frozen=True, kw_only=True)
class AutoOptions(LearningOptions):
    """A fold mixture that selects predictor, scales, rates and policy by held-out cost, or chains where decisions have
    no gradient. It takes the options of both, and refuses those of the one that a problem does not come to."""

    method: ClassVar[str] = "auto"

    members: int | None = None
    epochs: int | None = None
    draws: int | None = None
    certify: bool | None = None
    prior_scale: float | None = None
    chains: int | None = None
    steps: int | None = None
    burn_in: int | None = None
    temperature: str | None = None
    scale_costs: bool | None = None
    thinning: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts("members", "epochs", "draws")
        if self.predictor.kind != BOOSTED:
            self._chain_options()

    def for_chains(self) -> MhOptions:
        """The same for Metropolis–Hastings; what only a mixture has is refused."""
        self._refuse(_OF_MIXTURES, "decisions have no gradient by the prediction here, so auto samples chains")
        return self._chain_options()

    def for_mixture(self) -> AutoOptions:
        """The same, if nothing is given that only chains have."""
        self._refuse(_OF_CHAINS, "decisions have a gradient by the prediction here, so auto learns a mixture")
        return self

    def _chain_options(self) -> MhOptions:
        given = {name: getattr(self, name) for name in _OF_CHAINS if getattr(self, name) is not None}
        return MhOptions(**{one.name: getattr(self, one.name) for one in fields(LearningOptions)}, **given)

    def _refuse(self, names: Sequence[str], because: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise InvalidInput(f"{because}, and {name} would make no difference; leave it out", (name,))


_OF_MIXTURES = ("members", "epochs", "draws", "certify")
_OF_CHAINS = ("prior_scale", "chains", "steps", "burn_in", "temperature", "scale_costs", "thinning")

OPTIONS: dict[str, type[LearningOptions]] = {kind.method: kind for kind in (AutoOptions, ViOptions, MhOptions)}


def make_options(
    method: str = "auto", predictor: str = "auto", hidden: Sequence[int] | None = None, **values: Any
) -> LearningOptions:
    """The options of a method by name; an option that the method does not have is refused.

    ``hidden`` None keeps the predictor's own layers.
    """
    if method not in OPTIONS:
        raise InvalidInput(f"the method must be one of {', '.join(OPTIONS)}", ("method",))
    known = {one.name for one in fields(OPTIONS[method])}
    for name in values:
        if name not in known:
            raise InvalidInput(f"method {method} has no {name}; it takes {', '.join(sorted(known))}", (name,))
    chosen = PredictorOptions(predictor) if hidden is None else PredictorOptions(predictor, tuple(hidden))
    if hidden and not chosen.is_network:
        raise InvalidInput(f"the {predictor} predictor has no hidden layers; leave hidden out", ("predictor", "hidden"))
    return OPTIONS[method](predictor=chosen, **values)
