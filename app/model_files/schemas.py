"""Schemas of model import."""

from __future__ import annotations

from fastapi import UploadFile
from pydantic import ConfigDict, Field

from app.http.schemas import Body, Name, StrictModel
from app.problems.linear import LinearOutcome
from app.problems.newsvendor import AbsoluteGap, Coefficient, Coefficients, RelativeGap
from app.problems.schemas import ProblemAnswer

_EXAMPLE = (
    '{"name": "bread", "decisions": ["order"], "outcomes": [{"name": "demand", "minimum": 0}], '
    '"entries": [{"row": "meet", "column": null, "outcomes": {"demand": 1}}]}'
)


class ImportEntry(StrictModel):
    """An entry of the file that depends on outcomes: constant + Σ factor · outcome replaces its value in the file."""

    row: Name | None = Field(description="the name of its row; null for the objective")
    column: Name | None = Field(
        description="the name of its column; null for the right-hand side, or for a constant of the objective"
    )
    outcomes: Coefficients
    constant: Coefficient = 0.0


class ImportDescription(Body):
    """The information that a model file lacks: first-stage decisions and uncertain entries."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "bread",
                    "decisions": ["order"],
                    "outcomes": [{"name": "demand", "minimum": 0}],
                    "entries": [{"row": "meet", "column": None, "outcomes": {"demand": 1}}],
                }
            ]
        }
    )

    name: Name
    decisions: list[Name] | None = Field(None, description="columns that are decided now; all of them by default")
    outcomes: list[LinearOutcome] = Field([], description="uncertain quantities; a .sto file replaces them")
    entries: list[ImportEntry] = Field([], description="which entries depend on outcomes")
    columns: dict[Name, Name] = Field({}, description="other names for columns of the file")
    rows: dict[Name, Name] = Field({}, description="other names for rows of the file")
    relative_gap: RelativeGap = None
    absolute_gap: AbsoluteGap = None


class ProblemImport(StrictModel):
    """A model file and its description: the parts of a multipart form."""

    file: UploadFile = Field(description="the model: MPS, free MPS or LP, not compressed")
    description: str | UploadFile = Field(
        description="JSON, as text or as a file: name, decisions, outcomes, entries", examples=[_EXAMPLE]
    )
    time: UploadFile | None = Field(None, description="an SMPS .tim file of two periods, instead of decisions")
    scenarios: UploadFile | None = Field(
        None, description="an SMPS .sto file, instead of outcomes and entries; its scenarios become a data set"
    )


class ImportAnswer(ProblemAnswer):
    """The problem, the data set of its scenarios if it has any, and notes on how the file was read."""

    dataset_id: str | None = Field(None, description="the data set of the scenarios, without contexts")
    notes: list[str] = Field([], description="parts of the file that were left out or approximated")
