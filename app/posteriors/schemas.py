"""Posteriors as answered."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.datasets.schemas import ColumnSchema
from app.http.schemas import Resource

Quality = Literal["ok", "warn", "bad"]


class PosteriorSummary(Resource):
    """A posterior in a list; GET /v1/posteriors/{id} has its problem and columns."""

    job_id: str | None = Field(description="the job that made it; null if it was imported")
    problem_id: str
    dataset_id: str | None = Field(description="the data set it was learned from; null if it was imported")
    policy: str = Field(description="the policy that prescribe uses unless told otherwise")
    particles: int
    digest: str = Field(description="sha256 of everything that determines a prescription")
    quality: Quality
    reason: str = Field(description="why the quality is what it is")
    aliases: list[str] = Field([], description="the aliases that name it")


class PosteriorAnswer(PosteriorSummary):
    problem: dict[str, Any] = Field(description="the problem as it was when learning")
    columns: list[ColumnSchema] = Field(description="the context columns that prescribe expects, and the outcomes")
    recipe: dict[str, Any] | None = Field(
        None,
        description="where the data set has time or series: how features of time are made (recipe), the values of keys "
        "that are categories (keys), the revision learned from, how many rows were learned from and left out, and the "
        "range of every feature; null otherwise",
    )
    description: dict[str, Any] = Field(description="predictor, family and seed")
    loss: str = Field("cost", description="what it is the posterior of: cost, or the name of a surrogate of it")
    loss_meaning: str = Field("", description="the same in a sentence")


class Diagnostics(BaseModel):
    """What held-out rows say of the posterior, what was selected, and how learning went."""

    quality: Quality
    reason: str
    method: str
    inference: str = Field("vi", description="vi or mh: what the method came to")
    inference_reason: str = Field("", description="why")
    loss: str = Field("cost", description="what it is the posterior of: cost, or the name of a surrogate of it")
    loss_meaning: str = Field("", description="the same in a sentence")
    policy: str = Field(description="recommended, or as the job asked")
    policies: list[dict[str, Any]] = Field([], description="held-out cost of each policy that may be recommended")
    candidates: list[dict[str, Any]] = Field([], description="what auto chose from, with paired differences")
    network_share: float | None = Field(None, description="auto: weight of the network against the linear model")
    shares: list[dict[str, float]] = Field([], description="auto: held-out cost at each such weight")
    held_out_rows: int = 0
    held_out_cost: dict[str, Any] = Field(
        {}, description="mean cost of each policy on rows its members did not learn from"
    )
    constant_decision_cost: dict[str, Any] = Field({}, description="the best constant decision's cost on the same rows")
    gain_over_constant: dict[str, Any] = Field({}, description="paired difference; negative is better")
    judged_cost: dict[str, Any] = Field(
        {},
        description="mean cost of the recommended policy; it and all its settings are chosen by other rows",
    )
    regression_cost: dict[str, Any] | None = Field(
        None, description="cost of ridge regression and its residuals on the same rows, held out too"
    )
    gain_over_regression: dict[str, Any] | None = Field(None, description="paired difference; negative is better")
    promise: dict[str, Any] = Field(
        {},
        description="expected over realised cost on held-out rows, with its standard error; 1 is a promise kept",
    )
    promise_warning: str = Field("", description="what is wrong with promised costs and ranges, if anything")
    calibration: dict[str, Any] = Field(
        {}, description="predictive scenarios on held-out rows: PIT histogram, coverage of central ranges, mean score"
    )
    carriers: list[dict[str, Any]] = Field([], description="ways to carry outcomes to new contexts, with their scores")
    boosted_share: float | None = Field(
        None, description="auto: weight of departures from boosted trees; null below 1,000 rows"
    )
    forward_cost: dict[str, Any] | None = Field(
        None, description="with time: mean cost of each policy on later rows, by members that only knew the past"
    )
    forward: dict[str, Any] | None = Field(
        None,
        description="with time: realised and promised cost by stretch of time and by distance from what was learned, "
        "and the cost of deciding over the last eight same seasons",
    )
    update: dict[str, Any] | None = Field(
        None, description="learned on from an older posterior: which, and how the two compare on the newest rows"
    )
    origin: dict[str, Any] | None = Field(
        None,
        description="what it was learned from and with: the data set's revision and that revision's digest, and the "
        "versions of the service and of what it computes with; null where that was not noted yet",
    )
    order: float = Field(0.0, description="correlation of the errors of neighbouring rows; high where time matters")
    members: dict[str, Any] = Field(
        {}, description="how many, how much they disagree, how far they moved from the prior"
    )
    certificate: dict[str, Any] = Field(
        description="PAC-Bayes bound on the expected cost with its terms, or which assumption fails"
    )
    kl_weight: float
    inverse_temperature: float
    cost_scale: float = Field(description="what costs were divided by while learning")
    best_epochs: list[list[int]] = []
    stopped_early: bool | None = None
    trace: list[dict[str, Any]] = Field([], description="risk, KL, validation cost and mean scale by epoch, thinned")
    chains: dict[str, Any] = Field(
        {}, description="mh: acceptance, R-hat and effective sample sizes of loss and predictions, loss traces"
    )
    temperatures: list[dict[str, Any]] = Field([], description="mh: the inverse temperatures tried")
    prior: dict[str, Any] = Field({}, description="mh: family and scale of the prior")
    start: dict[str, Any] = Field({}, description="mh: how far each start was shifted, and its feasibility")
    history: dict[str, Any] = Field({}, description="mh: cost and feasibility of the decisions on the learned rows")
    held_out_feasibility: float | None = Field(
        None, description="mh: share of rows whose constraints hold under decisions made without the row"
    )
    effective_draws: float | None = Field(
        None, description="mh: least number of draws that a row's leave-one-out weights are worth"
    )
