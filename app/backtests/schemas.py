"""Requests of backtests, and their answers over time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db.former_names import FORMER_ACTUAL
from app.http.schemas import Body, Name, PolicyName, Seed, StrictModel, TimeLimit
from app.posteriors import history
from app.posteriors.history import Features
from app.posteriors.options import AutoInference, InferenceSpec, PredictorSpec, learning_options
from bco_core.backtest.rules import RULES
from bco_core.backtest.splits import MOST_SPLITS
from bco_core.backtest.verdict import ACTUAL_DECISION
from bco_core.inference.options import LearningOptions

if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[tuple(RULES)]

SPLITS, JUDGED = 4, 0.3


class CandidateSpec(StrictModel):
    """A posterior to learn anew for every split, with the options of a learn job."""

    name: Name | None = Field(None, description="its name in results; by default its method")
    predictor: PredictorSpec = PredictorSpec()
    inference: InferenceSpec = AutoInference()
    policy: PolicyName | None = Field(
        None, description="by default the one that held-out rows recommend, split by split"
    )

    @property
    def label(self) -> str:
        return self.name or self.inference.method

    def learning_options(self, seed: int) -> LearningOptions:
        return learning_options(self.predictor, self.inference, self.policy, seed)


class BacktestOptions(StrictModel):
    """Policies to compare, and the rows to compare them on."""

    ours: list[CandidateSpec] = Field(
        [CandidateSpec()],
        max_length=4,
        description="posteriors to learn; the verdict is about the first, auto by default",
    )
    baselines: list[RuleName] | None = Field(
        None, max_length=len(RULES), description="rules to compare with; by default all that apply to the problem"
    )
    actual_decision: dict[str, str] = Field(
        {}, description="the decision actually taken: each decision's name and the data set's column of role decision"
    )
    features: Features = Field("auto", description=history.DESCRIPTION)
    splits: Annotated[int, Field(ge=1, le=MOST_SPLITS)] = Field(
        SPLITS, description="number of splits, each learned anew: consecutive blocks of time, or random parts"
    )
    judged: Annotated[float, Field(gt=0, le=0.9)] | None = Field(
        None, description=f"with a time column, the share of rows that are judged, the newest; {JUDGED} by default"
    )
    seed: Seed = 0

    @model_validator(mode="after")
    def names_differ(self) -> Self:
        names = [one.label for one in self.ours]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise ValueError("two of ours have the same name; give each a name of its own")
        # Parts of older backtests have the former name of the actual decision.
        taken = (ACTUAL_DECISION, FORMER_ACTUAL, *RULES)
        if any(name in taken for name in names):
            raise ValueError(
                f"names of ours cannot be one of {', '.join(taken)}, which name what they are compared with"
            )
        return self


class NewBacktest(BacktestOptions, Body):
    """Compare our policies with baselines and with the decisions actually taken, on rows that none of them has seen."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "backtest",
                    "name": "bakery",
                    "problem_id": "prob_DEMO",
                    "dataset_id": "data_DEMO",
                    "ours": [{"predictor": {"kind": "linear"}, "inference": {"method": "vi", "epochs": 20}}],
                    "baselines": ["constant", "regression"],
                }
            ]
        }
    )

    kind: Literal["backtest"]
    name: Name = Field("", validate_default=False)
    problem_id: str
    dataset_id: str
    posteriors: list[str] = Field(
        [],
        max_length=4,
        description="posteriors, or aliases, to compare instead of learning, on rows that none has learned from",
    )
    time_limit_seconds: TimeLimit | None = Field(
        None, description="time after which the job fails; by default the limit of the service"
    )

    @model_validator(mode="after")
    def learned_or_named(self) -> Self:
        unused = {"ours", "baselines", "features", "splits", "judged"} & self.model_fields_set
        if self.posteriors and unused:
            raise ValueError(
                "existing posteriors are compared with each other and with the decisions actually taken; leave out "
                f"{', '.join(sorted(unused))}"
            )
        if len(set(self.posteriors)) < len(self.posteriors):
            raise ValueError("a posterior is listed twice")
        if not self.posteriors and not self.ours:
            raise ValueError("name at least one of ours: the verdict is about the first")
        return self


Stretches = Annotated[int, Field(ge=1, le=200)]


class PolicyOverTime(BaseModel):
    name: str
    words: str = Field(description="its name in sentences")
    rows: list[int] = Field(description="rows that it decided for, in each stretch")
    cost: list[float | None] = Field(description="sum of their costs")


class CumulatedDifference(BaseModel):
    """The candidate's cost less another policy's on the same rows, summed up to the end of each stretch."""

    against: str
    words: str
    rows: list[int] = Field(description="rows so far for which both have a decision")
    sum: list[float | None] = Field(
        description="sum of the differences so far; negative where the candidate is cheaper"
    )
    standard_error: list[float | None] = Field(description="standard error of the sum; null where it is unknown")
    low: list[float | None] = Field(description="lower end of the sum's 95 % interval")
    high: list[float | None] = Field(
        description="upper end; in the last stretch it agrees with the interval of the mean difference"
    )


class OverTimeAnswer(BaseModel):
    """A backtest in stretches of time of equal length or, without a time column, of rows in their order."""

    candidate: str = Field(description="policy that the verdict is about")
    against: str | None = Field(description="policy that the verdict compares it with")
    by: Literal["time", "rows"]
    begins: list[str] = Field(description="first time, or row, of each stretch")
    ends: list[str] = Field(description="last time, or row, of each stretch")
    rows: list[int] = Field(description="judged rows in each stretch")
    policies: list[PolicyOverTime]
    differences: list[CumulatedDifference]
    intervals: str = Field(description="how intervals are computed")
