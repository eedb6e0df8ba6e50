"""Answers of posteriors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.datasets.schemas import ColumnSchema
from app.http.schemas import Resource

Quality = Literal["ok", "warn", "bad"]


class PosteriorSummary(Resource):
    """A posterior in a list; GET /v1/posteriors/{id} has its problem and columns."""

    job_id: str | None = Field(description="the job that learned it; null if it was imported")
    problem_id: str
    dataset_id: str | None = Field(description="the data set it was learned from; null if it was imported")
    policy: str = Field(description="the policy that prescribe uses by default")
    particles: int
    digest: str = Field(description="sha256 of everything that determines a prescription")
    quality: Quality
    reason: str = Field(description="reason for the quality")
    aliases: list[str] = Field([], description="its aliases")


class PosteriorAnswer(PosteriorSummary):
    problem: dict[str, Any] = Field(description="the problem at the time of learning")
    columns: list[ColumnSchema] = Field(description="the context columns that prescribe expects, and the outcomes")
    recipe: dict[str, Any] | None = Field(
        None,
        description="if the data set has time or series: the features of time (recipe), the values of categorical keys "
        "(keys), the revision learned from, the numbers of rows learned from and left out, and the range of every "
        "feature; null otherwise",
    )
    description: dict[str, Any] = Field(description="predictor, family and seed")
    loss: str = Field("cost", description="the loss that it was learned for: cost, or the name of a surrogate")
    loss_meaning: str = Field("", description="the loss in a sentence")


class DiagnosticsAnswer(BaseModel):
    """Costs on held-out rows, the selected settings, and the learning trace."""

    quality: Quality
    reason: str
    method: str
    inference: str = Field("vi", description="inference that the method chose: vi or mh")
    inference_reason: str = Field("", description="reason for the inference")
    loss: str = Field("cost", description="the loss that it was learned for: cost, or the name of a surrogate")
    loss_meaning: str = Field("", description="the loss in a sentence")
    policy: str = Field(description="the recommended policy, or the job's own")
    policies: list[dict[str, Any]] = Field([], description="held-out cost of each policy that may be recommended")
    candidates: list[dict[str, Any]] = Field([], description="candidates of auto, with paired differences")
    network_share: float | None = Field(None, description="auto: weight of the network against the linear model")
    shares: list[dict[str, float]] = Field([], description="auto: held-out cost by weight of the network")
    held_out_rows: int = 0
    held_out_cost: dict[str, Any] = Field(
        {}, description="mean cost of each policy on rows that its members were not learned from"
    )
    constant_decision_cost: dict[str, Any] = Field({}, description="the best constant decision's cost on the same rows")
    gain_over_constant: dict[str, Any] = Field({}, description="paired difference; negative is better")
    judged_cost: dict[str, Any] = Field(
        {},
        description="mean cost of the recommended policy, chosen with all its settings on other rows",
    )
    regression_cost: dict[str, Any] | None = Field(
        None, description="held-out cost of ridge regression and its residuals on the same rows"
    )
    gain_over_regression: dict[str, Any] | None = Field(None, description="paired difference; negative is better")
    promise: dict[str, Any] = Field(
        {},
        description="expected over realised cost on held-out rows, with its standard error; 1 is right",
    )
    promise_warning: str = Field("", description="warning about promised costs and ranges, if any")
    calibration: dict[str, Any] = Field(
        {}, description="predictive scenarios on held-out rows: PIT histogram, coverage of central ranges, mean score"
    )
    carriers: list[dict[str, Any]] = Field(
        [], description="ways to transfer outcomes to new contexts, with their scores"
    )
    boosted_share: float | None = Field(
        None, description="auto: weight of boosted trees with residual models; null below 1,000 rows"
    )
    forward_cost: dict[str, Any] | None = Field(
        None, description="with time: mean cost of each policy on later rows, predicted from earlier rows only"
    )
    forward: dict[str, Any] | None = Field(
        None,
        description="with time: realised and promised cost by time span and by distance from the learned rows, and the "
        "cost of deciding from the last eight matching seasons",
    )
    update: dict[str, Any] | None = Field(
        None,
        description="if learning continued from an older posterior: its id, and both compared on the newest rows",
    )
    origin: dict[str, Any] | None = Field(
        None,
        description="provenance: the data set's revision and digest, and the versions of service and libraries; "
        "null if not recorded",
    )
    order: float = Field(0.0, description="correlation of the errors of neighbouring rows; high where time matters")
    members: dict[str, Any] = Field({}, description="their number, their disagreement, their distance from the prior")
    certificate: dict[str, Any] = Field(
        description="PAC-Bayes bound on the expected cost with its terms, or the assumption that fails"
    )
    kl_weight: float
    inverse_temperature: float
    cost_scale: float = Field(description="divisor of costs while learning")
    best_epochs: list[list[int]] = []
    stopped_early: bool | None = None
    trace: list[dict[str, Any]] = Field([], description="risk, KL, validation cost and mean scale by epoch, thinned")
    chains: dict[str, Any] = Field(
        {}, description="mh: acceptance, R-hat and effective sample sizes of loss and predictions, loss traces"
    )
    temperatures: list[dict[str, Any]] = Field([], description="mh: the inverse temperatures tried")
    prior: dict[str, Any] = Field({}, description="mh: family and scale of the prior")
    start: dict[str, Any] = Field({}, description="mh: shift of each start, and its feasibility")
    history: dict[str, Any] = Field({}, description="mh: cost and feasibility of the decisions on the learned rows")
    held_out_feasibility: float | None = Field(
        None, description="mh: share of rows whose constraints hold under decisions made without the row"
    )
    effective_draws: float | None = Field(
        None, description="mh: smallest effective sample size of a row's leave-one-out weights"
    )
