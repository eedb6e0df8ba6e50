"""Options of learning: the predictor, and the inference method with its own options.

``method`` selects the options. An option of another method is refused with a sentence, and so is one that ``auto``
would not use for the problem, when the job is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from app.http.schemas import PolicyName, StrictModel
from bco_core.distributions import FAMILIES
from bco_core.inference.options import (
    OPTIONS,
    TEMPERATURES,
    THINNING,
    LearningOptions,
    MhOptions,
    ViOptions,
    make_options,
)
from bco_core.inference.training import OPTIMIZERS
from bco_core.predictors.registry import BOOSTED, PREDICTORS, PredictorOptions

if TYPE_CHECKING:
    Family = str
    Optimizer = str
    Temperature = str
    Thinning = str
    PredictorKind = str
else:
    Family, Optimizer = Literal[tuple(FAMILIES)], Literal[tuple(OPTIMIZERS)]
    Temperature, Thinning = Literal[TEMPERATURES], Literal[THINNING]
    PredictorKind = Literal[("auto", *PREDICTORS, BOOSTED)]

Positive = Annotated[float, Field(gt=0, le=1e12)]
Width = Annotated[int, Field(ge=1, le=4096)]
Members = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=1, le=100_000)]
Draws = Annotated[int, Field(ge=1, le=64)]
ChainCount = Annotated[int, Field(ge=1, le=64)]
Steps = Annotated[int, Field(ge=2, le=1_000_000)]
BurnIn = Annotated[int, Field(ge=0, le=1_000_000)]

_VI, _MH = ViOptions(), MhOptions()
_CHAINS = "chains from different starts"
_STEPS = "length of each chain"
_BURN_IN = "steps that adapt the proposals and are then discarded"
_TEMPERATURE = (
    "how a missing inverse temperature is chosen: raised until the traces of the decision loss settle, or by cost and "
    "feasibility on rows set aside"
)
_SCALE_COSTS = "the temperature is for costs divided by the best constant decision's cost, not for raw costs"
_THINNING = "selection of particles from the draws"
_CERTIFY = "set a tenth of the rows aside for scaling; required for a PAC-Bayes certificate"
_DRAWS = "Monte-Carlo draws at each step"


class PredictorSpec(StrictModel):
    """The model that turns a context into a prediction of the outcomes."""

    kind: PredictorKind = Field(
        "auto",
        description="auto mixes a linear model, a network with a linear skip path (skip_mlp) and, from 1,000 rows on, "
        "residual models on boosted trees (boosted); relu_affine is linear, clipped at zero",
    )
    hidden: list[Width] | None = Field(None, max_length=8, description="hidden layers; [128, 128] by default")

    @model_validator(mode="after")
    def hidden_layers_fit(self) -> Self:
        if self.hidden and not PredictorOptions(self.kind).is_network:
            raise ValueError("hidden layers belong to the auto, mlp, skip_mlp and boosted predictors")
        if self.hidden == []:
            raise ValueError("a network needs at least one hidden layer, such as [128, 128]")
        return self


class _Inference(StrictModel):
    family: Family = "laplace"
    kl_weight: Positive | None = Field(None, description="weight of the prior against the (scaled) mean cost")
    inverse_temperature: Positive | None = Field(
        None, description="reciprocal of kl_weight; give at most one of the two"
    )
    particles: Annotated[int, Field(ge=1)] = Field(_VI.particles, description="number of draws stored for prescribing")

    def limits(self) -> dict[str, int]:
        """Return the options that an operator may limit, if given."""
        limited = {name: getattr(self, name, None) for name in ("members", "particles")}
        return {name: value for name, value in limited.items() if value is not None}

    @model_validator(mode="before")
    @classmethod
    def options_of_other_methods(cls, data: Any) -> Any:
        """Name the method of an option that belongs to another one, instead of calling it unknown."""
        if isinstance(data, dict):
            errors = list(_foreign(cls, data))
            if errors:
                raise ValidationError.from_exception_data(cls.__name__, errors)
        return data

    @model_validator(mode="after")
    def at_most_one_temperature(self) -> Self:
        if self.kl_weight is not None and self.inverse_temperature is not None:
            raise ValueError("give kl_weight or inverse_temperature, not both")
        is_fixed = self.kl_weight is not None or self.inverse_temperature is not None
        if is_fixed and getattr(self, "temperature", None) == "validation":
            raise ValueError("the temperature is given by kl_weight or inverse_temperature; leave temperature out")
        return self

    @model_validator(mode="after")
    def burn_in_ends(self) -> Self:
        burn_in = getattr(self, "burn_in", None)
        steps = getattr(self, "steps", None)
        if (_MH.burn_in if burn_in is None else burn_in) >= (_MH.steps if steps is None else steps):
            raise ValueError("burn_in must be shorter than the chain of steps")
        return self


class AutoInference(_Inference):
    """Needs no tuning: a fold mixture that selects temperature, scale, rate and policy by held-out cost. Where
    decisions have no gradient it samples by Metropolis–Hastings, and the diagnostics say so."""

    method: Literal["auto"] = "auto"
    members: Members | None = Field(None, description="mixture: mean-field components; chosen by the number of rows")
    epochs: Epochs | None = Field(None, description="mixture: largest number of passes over the rows; 300 by default")
    draws: Draws | None = Field(None, description=f"mixture: {_DRAWS}; 1 by default")
    certify: bool | None = Field(None, description=f"mixture: {_CERTIFY}")
    prior_scale: Positive | None = Field(None, description="chains: scale of the prior of each parameter; 1 by default")
    chains: ChainCount | None = Field(None, description=f"chains: {_CHAINS}; 4 by default")
    steps: Steps | None = Field(None, description=f"chains: {_STEPS}; 15,000 by default")
    burn_in: BurnIn | None = Field(None, description=f"chains: {_BURN_IN}; 5,000 by default")
    temperature: Temperature | None = Field(None, description=f"chains: {_TEMPERATURE}; settle by default")
    scale_costs: bool | None = Field(None, description=f"chains: {_SCALE_COSTS}; true by default")
    thinning: Thinning | None = Field(None, description=f"chains: {_THINNING}; support_points by default")


class ViInference(_Inference):
    """Variational inference with settings of your own; one member is the paper's Algorithm 1."""

    method: Literal["vi"]
    members: Members = Field(_VI.members, description="mean-field components")
    prior_scale: Positive = Field(_VI.prior_scale, description="scale of the prior of each parameter")
    initial_scale: Positive = Field(_VI.initial_scale, description="posterior scale of each parameter at the start")
    epochs: Epochs = _VI.epochs
    patience: Epochs = Field(
        _VI.patience, description="epochs without a better validation cost after which a member stops"
    )
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = Field(_VI.batch_size, description="rows a step")
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(_VI.learning_rate, description="of the optimizer")
    optimizer: Optimizer = Field("adam", description="Adam, or plain stochastic gradient descent")
    draws: Draws = Field(_VI.draws, description=_DRAWS)
    certify: bool = Field(False, description=_CERTIFY)


class MhInference(_Inference):
    """Metropolis–Hastings, the paper's Algorithms 2 and 3."""

    method: Literal["mh"]
    prior_scale: Positive = Field(_MH.prior_scale, description="scale of the prior of each parameter")
    chains: ChainCount = Field(_MH.chains, description=_CHAINS)
    steps: Steps = Field(_MH.steps, description=_STEPS)
    burn_in: BurnIn = Field(_MH.burn_in, description=_BURN_IN)
    temperature: Temperature = Field("settle", description=_TEMPERATURE)
    scale_costs: bool = Field(True, description=_SCALE_COSTS)
    thinning: Thinning = Field("support_points", description=_THINNING)


METHODS: dict[str, type[_Inference]] = {"auto": AutoInference, "vi": ViInference, "mh": MhInference}


def _foreign(model: type[_Inference], data: dict[str, Any]) -> Iterator[InitErrorDetails]:
    own = next(name for name, known in METHODS.items() if known is model)
    for option in data:
        others = [name for name, known in METHODS.items() if option in known.model_fields]
        if others and own not in others:
            sentence = f"method {own} has no {option}; it is an option of {' and '.join(others)}"
            error = PydanticCustomError("option_of_another_method", sentence)
            yield {"type": error, "loc": (option,), "input": None}


def _method(data: Any) -> str:
    method = data.get("method", "auto") if isinstance(data, dict) else getattr(data, "method", "auto")
    return method if isinstance(method, str) else ""


InferenceSpec = Annotated[
    Annotated[AutoInference, Tag("auto")] | Annotated[ViInference, Tag("vi")] | Annotated[MhInference, Tag("mh")],
    Discriminator(
        _method,
        custom_error_type="unknown_method",
        custom_error_message=f"the method must be one of {', '.join(map(repr, OPTIONS))}",
    ),
]


def learning_options(
    predictor: PredictorSpec, inference: InferenceSpec, policy: PolicyName | None, seed: int
) -> LearningOptions:
    """Return the core's options for a request."""
    return make_options(
        predictor=predictor.kind, hidden=predictor.hidden, policy=policy, seed=seed, **inference.model_dump()
    )
