"""A file that is looked at and not kept: what is sent, and what is said of it."""

from __future__ import annotations

from typing import Literal

from fastapi import UploadFile
from pydantic import BaseModel, Field

from app.datasets.schemas import FILE, SHEET, Missing
from app.http.schemas import StrictModel

Role = Literal["time", "series", "context", "outcome", "decision", "left out"]
Kind = Literal["time", "numeric", "categorical", "empty"]


class FileToInspect(StrictModel):
    """A file of history: the fields of a multipart form."""

    file: UploadFile = Field(description=FILE)
    sheet: str = Field("", description=SHEET)
    outcomes: str = Field("", description="outcome columns as far as they are known, separated by commas")


class InspectedColumn(BaseModel):
    """What a column holds, and what it may be used as."""

    name: str
    kind: Kind = Field(description="what its values are; empty if it has none")
    missing: int
    distinct: int = Field(description="how many different values there are")
    minimum: float | None = None
    maximum: float | None = None
    samples: list[str] = Field(description="some of its values; long ones are cut")
    role: Role = Field(description="what it seems to be")
    categorical: bool = Field(description="whether its numbers seem to be mere names, as context")
    reason: str = Field(description="why it seems so")


class Inspection(BaseModel):
    """What a file holds. Nothing of it was kept."""

    format: Literal["csv", "parquet", "xlsx"]
    sheets: list[str] = Field(description="of a workbook; the first hundred")
    rows: int
    column_count: int = Field(description="of these, as many as a data set may have are described, the first ones")
    columns: list[InspectedColumn]
    missing: Missing = Field(description="what may be done about missing values with these roles")
    first_rows: list[list[str | None]] = Field(description="the first ones, in the order of the columns")
    odd: list[str] = Field(description="what looks odd, or keeps the file from being used with these roles")
