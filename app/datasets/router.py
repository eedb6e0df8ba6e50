"""/v1/datasets"""

from __future__ import annotations

import csv
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Form, Query, Response

from app.datasets import revisions, service
from app.datasets.distribution import DistributionQuery, read_distribution
from app.datasets.inspect import inspect
from app.datasets.parsing import parse_file, parse_rows
from app.datasets.roles import ColumnRoles
from app.datasets.schemas import (
    DatasetAnswer,
    DatasetUpload,
    DistributionAnswer,
    FileToInspect,
    Inspection,
    ListedDataset,
    NewDataset,
    NewRows,
    Only,
    OutcomeName,
    RevisionNumber,
    RowLimit,
    RowsPage,
    RowsUpload,
    SeriesName,
)
from app.db.tables import DatasetRow
from app.http.errors import InvalidRequest
from app.http.idempotency import IdempotentRoute
from app.http.schemas import Limit, Name, Page
from app.http.security import Admin, Reader, Trainer
from app.settings import get_settings

router = APIRouter(prefix="/v1/datasets", tags=["data sets"], route_class=IdempotentRoute)

# An empty list in a field of a form; an empty field means the default.
NO_NAMES = "[]"


def _created(row: DatasetRow, response: Response) -> DatasetAnswer:
    response.headers["Location"] = f"/v1/datasets/{row.id}"
    return DatasetAnswer.model_validate(row, from_attributes=True)


@router.post("", status_code=201)
def create_dataset(request: NewDataset, caller: Trainer, response: Response) -> DatasetAnswer:
    """Send history as JSON rows with named columns. The answer profiles every column and warns of oddities."""
    roles = ColumnRoles(
        request.outcomes,
        request.contexts,
        request.categorical,
        request.missing,
        request.time,
        request.series,
        request.lead,
        request.unseen,
        request.decisions,
    )
    return _created(
        service.create(caller.workspace, request.name, parse_rows(request.rows, get_settings()), roles), response
    )


@router.post("/upload", status_code=201)
def upload_dataset(
    upload: Annotated[DatasetUpload, Form(media_type="multipart/form-data")], caller: Trainer, response: Response
) -> DatasetAnswer:
    """Send history as a CSV, Parquet or Excel file."""
    roles = ColumnRoles(
        _names("outcomes", upload.outcomes),
        _names("contexts", upload.contexts) if upload.contexts.strip() else None,
        _names("categorical", upload.categorical),
        upload.missing,
        upload.time.strip() or None,
        _names("series", upload.series),
        upload.lead,
        upload.unseen,
        _names("decisions", upload.decisions),
    )
    raw = parse_file(upload.file.file.read(), get_settings(), upload.sheet)
    return _created(service.create(caller.workspace, upload.name, raw, roles), response)


@router.post("/inspect")
def inspect_file(
    upload: Annotated[FileToInspect, Form(media_type="multipart/form-data")], caller: Trainer
) -> Inspection:
    """Inspect a file without storing it: its columns, suggested roles, and warnings."""
    raw = parse_file(upload.file.file.read(), get_settings(), upload.sheet)
    return inspect(raw, _names("outcomes", upload.outcomes), get_settings())


def _names(field: str, text: str) -> list[str]:
    """Split ``croissants, loaves`` into names; one with a comma is quoted, as in a CSV file; none in ``[]``."""
    if text.strip() == NO_NAMES:
        return []
    parts = text.split(",")
    if '"' in text:
        with suppress(csv.Error):
            parts = next(csv.reader([text], skipinitialspace=True))
    names = [name.strip() for name in parts if name.strip()]
    if text.strip() and not names:
        raise InvalidRequest.at((field,), f"a comma alone names no column; send {NO_NAMES} for no columns")
    return names


@router.get("")
def list_datasets(
    caller: Reader, limit: Limit = 50, cursor: str | None = None, name: Name | None = None
) -> Page[ListedDataset]:
    """List data sets, all or those with a name."""
    rows, next_cursor = service.listing(caller.workspace, limit, cursor, name)
    return Page(
        items=[ListedDataset.model_validate(row, from_attributes=True) for row in rows], next_cursor=next_cursor
    )


@router.get("/{dataset_id}")
def read_dataset(dataset_id: str, caller: Reader) -> DatasetAnswer:
    """Read a data set: its columns with their profiles, its warnings and its revision."""
    return DatasetAnswer.model_validate(service.get(caller.workspace, dataset_id), from_attributes=True)


@router.post("/{dataset_id}/rows", status_code=201)
def append_dataset_rows(dataset_id: str, request: NewRows, caller: Trainer, response: Response) -> DatasetAnswer:
    """Append rows with the same columns: a new revision of the data set. Posteriors keep the one they learned from."""
    raw = parse_rows(request.rows, get_settings())
    return _created(revisions.append(caller.workspace, dataset_id, raw), response)


@router.post("/{dataset_id}/rows/upload", status_code=201)
def upload_dataset_rows(
    dataset_id: str,
    upload: Annotated[RowsUpload, Form(media_type="multipart/form-data")],
    caller: Trainer,
    response: Response,
) -> DatasetAnswer:
    """Append the rows of a file with the same columns."""
    raw = parse_file(upload.file.file.read(), get_settings(), upload.sheet)
    return _created(revisions.append(caller.workspace, dataset_id, raw), response)


@router.get("/{dataset_id}/rows")
def read_dataset_rows(
    dataset_id: str,
    caller: Reader,
    limit: RowLimit = 100,
    cursor: str | None = None,
    revision: RevisionNumber | None = None,
    last: Annotated[bool, Query(description="the last rows instead of the first; they have no next page")] = False,
) -> RowsPage:
    """Read the rows of a revision, by default the newest, in the order of storage."""
    if last and cursor is not None:
        raise InvalidRequest.at(("query", "cursor"), "the last rows are one page; leave out cursor or last")
    if last:
        return service.last_rows(caller.workspace, dataset_id, limit, revision)
    return service.rows(caller.workspace, dataset_id, limit, cursor, revision)


@router.get("/{dataset_id}/distribution")
def read_dataset_distribution(
    dataset_id: str,
    caller: Reader,
    series: SeriesName | None = None,
    outcome: OutcomeName | None = None,
    only: Only | None = None,
) -> DistributionAnswer:
    """Read data for charts: frequencies of each column's values, and outcomes over time with gaps and shifts."""
    return read_distribution(caller.workspace, dataset_id, DistributionQuery(series, outcome, only))


@router.delete("/{dataset_id}", status_code=204)
def delete_dataset(dataset_id: str, caller: Admin) -> None:
    """Delete a data set that no job uses."""
    service.delete(caller.workspace, dataset_id)
