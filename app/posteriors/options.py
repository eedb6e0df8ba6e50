"""How a posterior is asked to be learned: the predictor, the method and its options."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.http.schemas import Request
from bco_core.inference.learn import LearningOptions
from bco_core.predictors import NETWORKS

Positive = Annotated[float, Field(gt=0, le=1e12)]
Width = Annotated[int, Field(ge=1, le=4096)]

DEFAULTS = LearningOptions()


class PredictorSpec(Request):
    """The model that turns a context into a prediction of the outcomes."""

    kind: Literal["auto", "linear", "relu_affine", "mlp", "skip_mlp"] = Field(
        "auto",
        description="auto mixes a linear model and a network with a linear skip path (skip_mlp); "
        "relu_affine is linear, clipped at zero",
    )
    hidden: list[Width] | None = Field(None, max_length=8, description="hidden layers; [128, 128] by default")

    @model_validator(mode="after")
    def hidden_layers_fit(self) -> Self:
        if not self.is_network and self.hidden:
            raise ValueError("hidden layers belong to the auto, mlp and skip_mlp predictors")
        if self.hidden == []:
            raise ValueError("a network needs at least one hidden layer, such as [128, 128]")
        return self

    @property
    def is_network(self) -> bool:
        return self.kind in ("auto", *NETWORKS)

    @property
    def layers(self) -> tuple[int, ...]:
        return DEFAULTS.hidden if self.hidden is None else tuple(self.hidden)


class PosteriorSpec(Request):
    """How the posterior is learned. ``auto`` needs no tuning; ``vi`` with one member is the paper's Algorithm 1, and
    ``mh`` its Algorithms 2 and 3."""

    method: Literal["auto", "vi", "mh"] = Field(
        "auto",
        description="auto learns a fold mixture and selects temperature, scale, rate and policy by held-out cost; "
        "where decisions have no gradient it samples by Metropolis–Hastings (mh), and the diagnostics say so",
    )
    family: Literal["laplace", "gaussian"] = "laplace"
    members: Annotated[int, Field(ge=1)] | None = Field(
        None, description="mean-field components; auto chooses by the number of rows, vi takes 1"
    )
    kl_weight: Positive | None = Field(None, description="weight of the prior against the (scaled) mean cost")
    inverse_temperature: Positive | None = Field(None, description="its reciprocal; give at most one of the two")
    prior_scale: Positive = Field(DEFAULTS.prior_scale, description="vi: scale of the prior of each parameter")
    initial_scale: Positive = Field(
        DEFAULTS.initial_scale, description="posterior scale of each parameter at the start"
    )
    epochs: Annotated[int, Field(ge=1, le=100_000)] = DEFAULTS.epochs
    patience: Annotated[int, Field(ge=1, le=100_000)] = Field(
        DEFAULTS.patience, description="vi: epochs without a better validation cost after which a member stops"
    )
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = Field(DEFAULTS.batch_size, description="vi: rows a step")
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        DEFAULTS.learning_rate, description="vi: of the optimizer"
    )
    optimizer: Literal["adam", "sgd"] = Field("adam", description="vi: Adam, or plain stochastic gradient descent")
    draws: Annotated[int, Field(ge=1, le=64)] = Field(DEFAULTS.draws, description="Monte-Carlo draws at each step")
    particles: Annotated[int, Field(ge=1)] = Field(DEFAULTS.particles, description="draws stored for prescribing")

    certify: bool = Field(
        False, description="set a tenth of the rows aside for scaling, so that a PAC-Bayes certificate may hold"
    )

    chains: Annotated[int, Field(ge=1, le=64)] = Field(DEFAULTS.chains, description="mh: chains from different starts")
    steps: Annotated[int, Field(ge=2, le=1_000_000)] = Field(DEFAULTS.steps, description="mh: length of each chain")
    burn_in: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        DEFAULTS.burn_in, description="mh: steps that adapt the proposals and are then discarded"
    )
    temperature: Literal["settle", "validation"] = Field(
        "settle",
        description="mh, unless a temperature is given: lowered until the traces of the decision loss settle, or "
        "chosen by cost and feasibility on rows set aside",
    )
    scale_costs: bool = Field(
        True, description="mh: the temperature is for costs in units of the best constant decision's, not raw ones"
    )
    thinning: Literal["support_points", "regular"] = Field(
        "support_points", description="mh: how particles are chosen from the draws"
    )

    @model_validator(mode="after")
    def at_most_one_temperature(self) -> Self:
        if self.kl_weight is not None and self.inverse_temperature is not None:
            raise ValueError("give kl_weight or inverse_temperature, not both")
        return self

    @model_validator(mode="after")
    def burn_in_ends(self) -> Self:
        if self.burn_in >= self.steps:
            raise ValueError("burn_in must be shorter than the chain of steps")
        return self
