"""Requests and answers of the log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.http.schemas import Body, StrictModel

Kind = Literal["prescribe", "evaluate"]
Format = Literal["csv", "parquet"]
Values = dict[str, float | None]


class PrescriptionSummary(BaseModel):
    """A logged call in a list; GET /v1/prescriptions/{id} has its request and its answer."""

    id: str
    kind: Kind
    created_at: datetime
    posterior_id: str
    digest: str = Field(description="of the posterior")
    key_id: str | None = Field(description="the key of the caller; null without one")
    contexts: int
    recorded: int = Field(description="number of contexts with a recorded outcome")


class FirstAnswer(BaseModel):
    """The first context of a call and its answer."""

    context: Any
    decision: dict[str, float | None]
    expected_cost: float | None
    status: str


class ListedPrescription(PrescriptionSummary):
    first: FirstAnswer | None = Field(
        None, description="with the query first; null for calls that are too large for a list"
    )


class ContextOutcome(StrictModel):
    index: Annotated[int, Field(ge=0)] = Field(description="number of the context in the call, from 0")
    outcomes: Values = Field({}, description="realised outcomes; null or omitted if unknown")
    actual_decision: Values = Field({}, description="the decision actually taken, if known")


class NewOutcome(Body):
    """Outcomes of a prescription: ``outcomes`` and ``actual_decision`` of its one context, or ``rows`` for several."""

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

    outcomes: Values = Field({}, description="realised outcomes; null or omitted if unknown")
    actual_decision: Values = Field({}, description="the decision actually taken, if known")
    rows: list[ContextOutcome] = Field([], description="outcomes by context, for a call with several")
    replace: bool = Field(False, description="replace recorded values; without it other values get 409")

    @model_validator(mode="after")
    def says_something_once(self) -> Self:
        if self.rows and (self.outcomes or self.actual_decision):
            raise ValueError("send outcomes and actual_decision of the one context, or rows for several, not both")
        if not (self.rows or self.outcomes or self.actual_decision):
            raise ValueError("send outcomes, actual_decision or rows; there is nothing to record")
        return self


class RecordedOutcome(BaseModel):
    """Realised outcomes and their costs; a cost is null if a number is missing, or no recourse is feasible."""

    index: int
    outcomes: Values
    actual_decision: Values
    promised_cost: float | None = Field(description="expected cost in the answer")
    realised_cost: float | None = Field(description="cost of the answered decision with the realised outcomes")
    actual_decision_cost: float | None = Field(description="cost of the decision actually taken")
    best_cost: float | None = Field(description="cost with perfect foresight")
    regret: float | None = Field(description="extra cost against perfect foresight: realised_cost less best_cost")
    actual_decision_regret: float | None = Field(description="actual_decision_cost less best_cost")
    saved: float | None = Field(description="actual_decision_cost less realised_cost: saving of the answered decision")
    recorded_at: datetime
    recorded_by: str | None = Field(description="the key that recorded it last; null without one")


class RecordedAnswer(BaseModel):
    id: str
    posterior_id: str
    contexts: int
    recorded: int = Field(description="number of contexts with an outcome recorded so far")
    rows: list[RecordedOutcome] = Field(description="the rows of this request")


class PrescriptionRecord(PrescriptionSummary):
    request: dict[str, Any] = Field(description="with its defaults")
    answer: dict[str, Any] = Field(description="as it was sent, byte for byte")
    outcomes: list[RecordedOutcome]


class AnswerDifference(BaseModel):
    pointer: str = Field(description="JSON pointer into the answer", examples=["#/prescriptions/0/expected_cost"])
    recorded: Any
    now: Any


class ReproduceAnswer(BaseModel):
    id: str
    identical: bool = Field(description="whether the answer is the same but for the wording of sentences")
    largest_difference: float | None = Field(
        description="largest relative difference of two numbers; null if something else differs"
    )
    differing: int = Field(description="number of places that differ")
    differences: list[AnswerDifference] = Field(description="the first 20 differences")
    answer: dict[str, Any] = Field(description="the new answer")
