"""Prescribe for a whole table of contexts; the result is a file.

The contexts are checked and cut into parts when the job is made, so that a mistake is answered at once.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from pydantic import ConfigDict, Field

from app.datasets.encoding import ContextEncoding
from app.datasets.parsing import RawTable
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, PosteriorRow
from app.http.errors import InvalidRequest, NotFound
from app.http.rows import find
from app.jobs import queue
from app.jobs.kinds.base import Checkpoint, Draft, File, JobKind, Part
from app.posteriors import service as posteriors
from app.prescriptions import service
from app.prescriptions.cache import Ready, load_ready
from app.prescriptions.schemas import BatchOptions, NewBatch, PrescribeOptions
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core.progress import Progress

# Contexts are decided so many at a time that they meet about this many numbers: a second or two of work. A part is as
# many, or more where a job would have too many parts.
_NUMBERS_AT_ONCE = 2_000_000
_MOST_ROWS_AT_ONCE = 10_000
MOST_PARTS = 200
# What deciding takes: for each context, and for each number that it meets, in seconds.
_SECONDS_A_CONTEXT, _SECONDS_A_NUMBER = 1e-3, 5e-7


class NewPrescribeJob(NewBatch):
    """Decide for every row of a data set; the same as POST /v1/posteriors/{id}/batch-prescriptions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "prescribe",
                    "name": "bakery",
                    "posterior_id": "post_DEMO",
                    "dataset_id": "data_DEMO",
                    "scenarios": 100,
                }
            ]
        }
    )

    kind: Literal["prescribe"]
    posterior_id: str = Field(description="the posterior to decide with")


# the job, as it is made


def check(workspace: str, request: NewPrescribeJob) -> Draft:
    """Prescribe for every row of a data set."""
    try:
        posterior = posteriors.get(workspace, request.posterior_id)
    except NotFound as error:
        raise InvalidRequest.at(("posterior_id",), error.detail) from None
    with transaction() as session:
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
        table = read_table(session, dataset.id)
    columns = {name: table.column(name) for name in table.column_names}
    raw = RawTable(columns, table.num_rows, "dataset_id", lambda row, name: (("dataset_id",), f"row {row}"))
    return draft(posterior, request, raw, dataset.id)


def draft(posterior: PosteriorRow, options: BatchOptions, raw: RawTable, dataset_id: str | None = None) -> Draft:
    """Check the contexts and cut them into parts."""
    service.check(posterior, options)
    most = get_settings().max_rows
    if not 0 < raw.rows <= most:
        detail = f"at most {most} rows (BCO_MAX_ROWS)" if raw.rows else "there are no rows; send at least one context"
        raise InvalidRequest.at((raw.whole,), detail)
    table = ContextEncoding.of(posterior.columns).clean_table(raw)
    numbers = options.scenarios * len(outcome_names(posterior.problem))
    return Draft(
        name=options.name or posterior.name,
        problem_id=posterior.problem_id,
        dataset_id=dataset_id,
        posterior_id=posterior.id,
        spec=options.model_dump(exclude={"kind", "name", "dataset_id"}) | {"posterior_id": posterior.id},
        seconds=raw.rows * (_SECONDS_A_CONTEXT + numbers * _SECONDS_A_NUMBER),
        parts=_parts(table, numbers),
        warnings=_warnings(posterior, table),
    )


def _parts(table: pa.Table, numbers: int) -> Iterator[Part]:
    """Pieces of a table each of whose rows meets so many numbers."""
    rows = max(_rows_at_once(numbers), math.ceil(table.num_rows / MOST_PARTS))
    for first in range(0, table.num_rows, rows):
        piece = table.slice(first, rows)
        yield Part(piece.num_rows, _to_parquet(piece))


def _rows_at_once(numbers: int) -> int:
    return max(1, min(_MOST_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // numbers))


def _warnings(posterior: PosteriorRow, table: pa.Table) -> list[str]:
    quality, reason = posterior.diagnostics["quality"], posterior.diagnostics["reason"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {reason}"]
    for column in posterior.columns:
        if column["role"] == "context" and column["kind"] == "numeric":
            warnings += service.far_from_history(column, table.column(column["name"]).to_numpy())
    return warnings


# a part, as its worker sees it


@dataclass(frozen=True)
class Given:
    """What decides: a posterior, ready to prescribe, and how."""

    posterior: PosteriorRow
    loaded: Ready
    options: PrescribeOptions


def read(job: JobRow) -> Given:
    with transaction() as session:
        posterior = session.get_one(PosteriorRow, job.posterior_id)
    fields = {name: value for name, value in job.spec.items() if name in PrescribeOptions.model_fields}
    return Given(posterior, load_ready(posterior), PrescribeOptions(**fields))


def work(given: Given, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """Decide for the contexts of a part; the result holds contexts and decisions side by side."""
    table = _from_parquet(data)
    contexts = torch.from_numpy(given.loaded.encoding.encode_table(table))
    rows = _rows_at_once(given.options.scenarios * len(outcome_names(given.posterior.problem)))
    answers: list[Any] = []
    for some in contexts.split(rows):
        progress(len(answers) / len(contexts), f"{len(answers)} of {len(contexts)} contexts")
        answers += service.decide(given.posterior, given.loaded, some, given.options)
    return _to_parquet(_beside(table, pa.Table.from_pylist(answers)))


def _beside(contexts: pa.Table, answers: pa.Table) -> pa.Table:
    """Contexts and answers as one flat table; a context that is called like an answer gets ``context.`` before it."""
    while any(pa.types.is_struct(kind) for kind in answers.schema.types):
        answers = answers.flatten()
    taken = set(answers.column_names)
    columns = {f"context.{name}" if name in taken else name: contexts[name] for name in contexts.column_names}
    return pa.table(columns | {name: answers[name] for name in answers.column_names})


def _to_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _from_parquet(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data))


# the result


def _csv_pieces(results: Sequence[bytes]) -> Iterator[bytes]:
    for number, table in enumerate(map(_from_parquet, results)):
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(table, buffer, pyarrow.csv.WriteOptions(include_header=number == 0))
        yield buffer.getvalue()


def _parquet_pieces(results: Sequence[bytes]) -> Iterator[bytes]:
    # A column may be empty in one part and full of numbers or text in the next.
    schemas = [_from_parquet(result).schema for result in results]
    schema, pieces = pa.unify_schemas(schemas, promote_options="permissive"), _Pieces()
    with pq.ParquetWriter(pieces, schema) as writer:
        for table in map(_from_parquet, results):
            writer.write_table(table.cast(schema))
            yield pieces.taken()
    yield pieces.taken()


class _Pieces(io.RawIOBase):
    """A file that is taken away while it is written."""

    def __init__(self) -> None:
        self._written, self._position = [b""], 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        self._position += len(self._written[-1])
        return len(self._written[-1])

    def tell(self) -> int:
        return self._position

    def taken(self) -> bytes:
        data, self._written = b"".join(self._written), []
        return data


PRESCRIBE = JobKind(
    name="prescribe",
    queue=queue.WAITING,
    request=NewPrescribeJob,
    check=check,
    read=read,
    work=work,
    keeps_parts=True,
    unit="contexts",
    files={
        "csv": File("text/csv; charset=utf-8", _csv_pieces),
        "parquet": File("application/vnd.apache.parquet", _parquet_pieces),
    },
)
