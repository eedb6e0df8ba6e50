"""Kept prescriptions as answered, and outcomes as sent."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.http.schemas import Body, StrictModel

Kind = Literal["prescribe", "evaluate"]
Format = Literal["csv", "parquet"]
Values = dict[str, float | None]


class PrescriptionSummary(BaseModel):
    """A kept call in a list; GET /v1/prescriptions/{id} has its request and its answer."""

    id: str
    kind: Kind
    created_at: datetime
    posterior_id: str
    digest: str = Field(description="of the posterior")
    key_id: str | None = Field(description="the key of the caller; null without one")
    contexts: int
    recorded: int = Field(description="contexts whose outcome is recorded")


class FirstAnswer(BaseModel):
    """The first context of a call, and what was answered to it."""

    context: Any
    decision: dict[str, float | None]
    expected_cost: float | None
    status: str


class ListedPrescription(PrescriptionSummary):
    first: FirstAnswer | None = Field(
        None, description="where it is asked for; null for calls that are too large to be opened in a list"
    )


class ContextOutcome(StrictModel):
    index: Annotated[int, Field(ge=0)] = Field(description="which of the call's contexts, from 0")
    outcomes: Values = Field({}, description="what happened; null or left out where nobody knows")
    actual_decision: Values = Field({}, description="the decision actually taken, if anybody knows")


class NewOutcome(Body):
    """What happened after a prescription: ``outcomes`` and ``actual_decision`` for one context, or ``rows``
    for some of many."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "rows": [
                        {
                            "index": 0,
                            "outcomes": {"croissants": 118, "loaves": 61},
                            "actual_decision": {"croissants": 130, "loaves": 70},
                        }
                    ]
                }
            ]
        }
    )

    outcomes: Values = Field({}, description="what happened; null or left out where nobody knows")
    actual_decision: Values = Field({}, description="the decision actually taken, if anybody knows")
    rows: list[ContextOutcome] = Field([], description="the same for contexts of a call that had many")
    replace: bool = Field(False, description="put these in place of what was recorded; else other values get 409")

    @model_validator(mode="after")
    def says_something_once(self) -> Self:
        if self.rows and (self.outcomes or self.actual_decision):
            raise ValueError("send outcomes and actual_decision of the one context, or rows for several, not both")
        if not (self.rows or self.outcomes or self.actual_decision):
            raise ValueError("send outcomes, actual_decision or rows; there is nothing to record")
        return self


class Recorded(BaseModel):
    """What happened, and what it cost; a cost is null where a number that it needs is missing, or nothing helps."""

    index: int
    outcomes: Values
    actual_decision: Values
    promised_cost: float | None = Field(description="the expected cost that was answered")
    realised_cost: float | None = Field(description="what the answered decision costs with what happened")
    actual_decision_cost: float | None = Field(description="cost of the decision actually taken")
    best_cost: float | None = Field(description="cost with perfect foresight")
    regret: float | None = Field(description="extra cost against perfect foresight: realised_cost less best_cost")
    actual_decision_regret: float | None = Field(description="actual_decision_cost less best_cost")
    saved: float | None = Field(
        description="actual_decision_cost less realised_cost: what the answered decision would have saved"
    )
    recorded_at: datetime
    recorded_by: str | None = Field(description="the key that recorded it last; null without one")


class RecordedAnswer(BaseModel):
    id: str
    posterior_id: str
    contexts: int
    recorded: int = Field(description="contexts whose outcome is recorded by now")
    rows: list[Recorded] = Field(description="those of this request")


class PrescriptionRecord(PrescriptionSummary):
    request: dict[str, Any] = Field(description="as it was understood, defaults written out")
    answer: dict[str, Any] = Field(description="as it was sent, byte for byte")
    outcomes: list[Recorded]


class Differing(BaseModel):
    pointer: str = Field(description="JSON pointer into the answer", examples=["#/prescriptions/0/expected_cost"])
    recorded: Any
    now: Any


class ReproduceAnswer(BaseModel):
    id: str
    identical: bool = Field(description="whether the answer is the same, byte for byte")
    largest_difference: float | None = Field(
        description="between two numbers, as a share of the larger one; null where something else differs"
    )
    differing: int = Field(description="places that differ")
    differences: list[Differing] = Field(description="the first 20 of them")
    answer: dict[str, Any] = Field(description="decided anew")
