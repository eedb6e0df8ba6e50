"""Evaluate's request and answer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.http.schemas import Name, StrictModel
from app.prescriptions.schemas import EXAMPLE_CONTEXTS, PosteriorsAnswer, PrescribeRequest, PrescriptionAnswer
from bco_core.problems.base import Status

# The status of a context whose alternatives are judged.
EVALUATED = "evaluated"

Amount = Annotated[float, Field(ge=-1e12, le=1e12)]
Decision = dict[str, Amount | None]


class Alternative(StrictModel):
    """A decision of the caller's own. What it leaves out, or gives as null, is left to us: the rest as it is given."""

    name: Name | None = Field(None, description="what to call it in the answer; its number by default")
    decision: Decision = Field(examples=[{"croissants": 120, "loaves": None}])


class EvaluateRequest(PrescribeRequest):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "contexts": EXAMPLE_CONTEXTS,
                    "alternatives": [
                        {"name": "as always", "decision": {"croissants": 120, "loaves": 60}},
                        {"name": "fewer croissants", "decision": {"croissants": 80, "loaves": None}},
                    ],
                }
            ]
        }
    )

    alternatives: list[Alternative] | None = Field(
        None, min_length=1, description="what to judge in every context; or give decisions"
    )
    decisions: list[Decision | list[Alternative]] | None = Field(
        None, min_length=1, description="what to judge in each context: a decision or several alternatives for each"
    )

    @model_validator(mode="after")
    def says_what_to_judge(self) -> Self:
        if (self.alternatives is None) == (self.decisions is None):
            raise ValueError("give alternatives for all contexts, or decisions for each: exactly one of the two")
        return self

    def by_context(self) -> list[list[Alternative]]:
        """The alternatives of each context."""
        if self.alternatives is not None:
            return [self.alternatives] * len(self.contexts)
        return [
            [Alternative.model_construct(name=None, decision=each)] if isinstance(each, dict) else each
            for each in self.decisions or ()
        ]

    @property
    def work(self) -> int:
        return len(self.contexts) + sum(map(len, self.by_context()))


class OurAnswer(PrescriptionAnswer):
    """What we decide, as in the answer of prescribe."""

    service_level: dict[str, float | None] | None = Field(
        None, description="the share of scenarios in which each outcome is served, where that means something"
    )


class AlternativeAnswer(BaseModel):
    """What an alternative may cost, over the scenarios that ours is judged by. Numbers are null where there is no
    decision, or no recourse in some scenario."""

    name: str
    decision: dict[str, float | None] = Field(description="with what was left to us filled in")
    filled: list[str] = Field(description="the names that were left to us")
    status: Status | Literal["given", "ours"] = Field(
        description="given, if nothing was left to us; ours, if everything was; or how the rest was found"
    )
    reason: str = Field(description="why there is no decision or no judgement, or what it keeps too seldom")
    breaches: list[str] = Field(description="what the decision breaks of the problem's rules, a sentence each")
    expected_cost: float | None
    cost_quantiles: dict[str, float | None]
    cvar_95: float | None = Field(description="mean cost of the worst 5 % of scenarios")
    feasibility: float | None = Field(
        description="where constraints are uncertain: the share of scenarios in which the decision keeps them"
    )
    service_level: dict[str, float | None] | None = Field(
        description="the share of scenarios in which each outcome is served, where that means something"
    )
    extra_cost: float | None = Field(description="its expected cost less ours; negative where it costs less")
    extra_cost_standard_error: float | None = Field(description="Monte Carlo standard error of extra_cost")
    extra_cost_quantiles: dict[str, float | None] = Field(
        description="of the difference of costs, scenario by scenario"
    )
    worse_in: float | None = Field(description="the share of scenarios in which it costs more than ours")


class EvaluationAnswer(BaseModel):
    status: Literal["evaluated", "refused"] = Field(description="refused if the context cannot be decided for")
    reason: str = ""
    ours: OurAnswer
    alternatives: list[AlternativeAnswer] = Field(description="as asked for; none if the context is refused")
    warnings: list[str] = Field([], description="what is unusual about the context")


class EvaluateAnswer(PosteriorsAnswer):
    evaluations: list[EvaluationAnswer]
