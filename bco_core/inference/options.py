"""Options of learning: one class for each method.

A method has only the options that it uses, so an option without effect is refused instead of ignored. None means that
the method chooses. At most one of ``kl_weight`` and ``inverse_temperature`` may be given; it then holds for every
candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from bco_core.distributions import FAMILIES
from bco_core.errors import InvalidInput
from bco_core.features.registry import FEATURES
from bco_core.inference.training import OPTIMIZERS
from bco_core.policies import POLICIES
from bco_core.predictors.registry import BOOSTED, PredictorOptions

TEMPERATURES = ("settle", "validation")
THINNING = ("support_points", "regular")


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options of every method: predictor, prior family, temperature, the policy to recommend, particles and seed."""

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
        self._check_choice("family", tuple(FAMILIES))
        if self.policy is not None:
            self._check_choice("policy", tuple(POLICIES))
        if self.kl_weight is not None and self.inverse_temperature is not None:
            raise InvalidInput("give kl_weight or inverse_temperature, not both", ("kl_weight",))
        boosts = self.predictor.kind == BOOSTED
        if boosts and self.method != "auto":
            raise InvalidInput("the boosted predictor needs the method auto", ("predictor", "kind"))
        if getattr(self, "certify", None) and (boosts or FEATURES[self.predictor.features].sees_outcomes):
            raise InvalidInput(
                "a certificate needs a prior without outcomes, and these features are fitted to outcomes", ("certify",)
            )

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

    def _check_choice(self, name: str, known: Sequence[str]) -> None:
        if getattr(self, name) not in known:
            raise InvalidInput(f"the {name} must be one of {', '.join(known)}", (name,))


@dataclass(frozen=True, kw_only=True)
class MhOptions(LearningOptions):
    """Metropolis–Hastings, the paper's Algorithms 2 and 3.

    ``temperature`` names how an inverse temperature is found if none is given; with ``scale_costs`` it is for costs in
    units of the possible gain over the best constant decision. ``thinning`` names how particles are chosen from draws.
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
        self._check_choice("temperature", TEMPERATURES)
        self._check_choice("thinning", THINNING)
        if not 0 <= self.burn_in < self.steps:
            raise InvalidInput("burn_in must be shorter than the chain of steps", ("burn_in",))
        if self.has_temperature and self.temperature != TEMPERATURES[0]:
            raise InvalidInput(
                "temperature says how to find a temperature, and one is given; leave temperature out", ("temperature",)
            )


@dataclass(frozen=True, kw_only=True)
class ViOptions(LearningOptions):
    """Variational inference with the caller's settings; with one member it is the paper's Algorithm 1.

    ``certify`` scales the predictor with a tenth of the rows, so that the prior is independent of the other rows, as a
    certificate requires.
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
        self._check_choice("optimizer", tuple(OPTIMIZERS))


@dataclass(frozen=True, kw_only=True)
class AutoOptions(LearningOptions):
    """A fold mixture that selects predictor, scales, rates and policy by held-out cost, or chains where decisions have
    no gradient. It has the options of both, and refuses those that do not apply to the problem."""

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
        """Return the options of Metropolis–Hastings; refuse options of mixtures."""
        self._refuse(_MIXTURE_OPTIONS, "decisions of this problem have no gradient, so auto samples chains")
        return self._chain_options()

    def for_mixture(self) -> AutoOptions:
        """Return these options; refuse options of chains."""
        self._refuse(_CHAIN_OPTIONS, "decisions of this problem have a gradient, so auto learns a mixture")
        return self

    def _chain_options(self) -> MhOptions:
        own = {name: getattr(self, name) for name in _CHAIN_OPTIONS if getattr(self, name) is not None}
        return MhOptions(**{one.name: getattr(self, one.name) for one in fields(LearningOptions)}, **own)

    def _refuse(self, names: Sequence[str], because: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise InvalidInput(f"{because}, and {name} would have no effect; leave it out", (name,))


_MIXTURE_OPTIONS = ("members", "epochs", "draws", "certify")
_CHAIN_OPTIONS = ("prior_scale", "chains", "steps", "burn_in", "temperature", "scale_costs", "thinning")

OPTIONS: dict[str, type[LearningOptions]] = {kind.method: kind for kind in (AutoOptions, ViOptions, MhOptions)}


def make_options(
    method: str = "auto", predictor: str = "auto", hidden: Sequence[int] | None = None, **values: Any
) -> LearningOptions:
    """Return the options of a method by name; refuse an option that the method does not have.

    ``hidden`` None uses the predictor's default layers.
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
