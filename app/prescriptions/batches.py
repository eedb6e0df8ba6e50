"""Prescriptions for a whole table of contexts: a job in parts that any worker may take (:mod:`app.jobs.parts`).

The contexts are checked and cut into parts when the job is made, so that a mistake is answered at once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import sqlalchemy as sa
import torch

from app.datasets.encoding import ContextEncoding
from app.datasets.parsing import RawTable
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.outage import insist
from app.db.tables import BatchRow, DatasetRow, JobRow, PosteriorRow
from app.http.errors import Conflict, InvalidRequest
from app.http.idempotency import made
from app.http.rows import find
from app.ids import sibling_id
from app.jobs import parts, queue
from app.jobs import service as jobs
from app.posteriors import service as posteriors
from app.prescriptions import service
from app.prescriptions.cache import ready
from app.prescriptions.schemas import BatchOptions, NewBatch, PrescribeOptions
from app.problems.schemas import outcome_names
from app.settings import get_settings

# A part is so many contexts that they meet about this many numbers: a second or two of work.
_PART_NUMBERS = 2_000_000
_MOST_PART_ROWS = 10_000
_LOG_STEPS = 20

Format = Literal["csv", "parquet"]


def create_from_dataset(workspace: str, posterior_id: str, request: NewBatch) -> JobRow:
    """Prescribe for every row of a data set."""
    posteriors.get(workspace, posterior_id)
    with transaction() as session:
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
        table = read_table(session, dataset.id)
    columns = {name: table.column(name) for name in table.column_names}
    raw = RawTable(columns, table.num_rows, "dataset_id", lambda row, name: (("dataset_id",), f"row {row}"))
    return create(workspace, posterior_id, request, raw, dataset.id)


def create(
    workspace: str, posterior_id: str, options: BatchOptions, raw: RawTable, dataset_id: str | None = None
) -> JobRow:
    """Check the contexts, cut them into parts and queue the job, all or nothing."""
    posterior = posteriors.get(workspace, posterior_id)
    service.check(posterior, options)
    jobs.check_time_limit(options.time_limit_seconds)
    most = get_settings().max_rows
    if not 0 < raw.rows <= most:
        detail = f"at most {most} rows (BCO_MAX_ROWS)" if raw.rows else "there are no rows; send at least one context"
        raise InvalidRequest.at((raw.whole,), detail)
    table = ContextEncoding.of(posterior.columns).clean_table(raw)
    numbers = options.scenarios * len(outcome_names(posterior.problem))
    rows = max(1, min(_MOST_PART_ROWS, _PART_NUMBERS // numbers))
    pieces = [table.slice(first, rows) for first in range(0, table.num_rows, rows)]
    spec = options.model_dump(exclude={"name", "dataset_id"}) | {"posterior_id": posterior.id}
    with transaction() as session:
        job = jobs.queued_row(
            session,
            workspace,
            kind="prescribe",
            problem_id=posterior.problem_id,
            dataset_id=dataset_id,
            name=options.name or posterior.name,
            spec=spec,
        )
        session.add(BatchRow(job_id=job.id, posterior_id=posterior.id, rows=table.num_rows, shards=len(pieces)))
        try:
            session.flush()
        except sa.exc.IntegrityError:
            raise Conflict("the posterior was deleted while the job was being made") from None
        parts.add(session, job.id, ((piece.num_rows, _parquet(piece)) for piece in pieces))
        for warning in _warnings(posterior, table):
            jobs.note(session, job.id, f"warning: {warning}")
        queue.enqueue(session, job)
        made(session, f"/v1/jobs/{job.id}")
    return job


def _warnings(posterior: PosteriorRow, table: pa.Table) -> list[str]:
    quality, reason = posterior.diagnostics["quality"], posterior.diagnostics["reason"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {reason}"]
    for column in posterior.columns:
        if column["role"] == "context" and column["kind"] == "numeric":
            warnings += service.far_from_history(column, table.column(column["name"]).to_numpy())
    return warnings


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


# the job, as its worker sees it


def queue_parts(job_id: str) -> None:
    with transaction() as session:
        parts.offer(session, session.get_one(JobRow, job_id))


def advance(job_id: str, attempt: int) -> bool:
    """Note how far the parts have come and, when all are there, that the job has succeeded; False when it is over."""
    with transaction() as session:
        job, batch = session.get_one(JobRow, job_id), session.get_one(BatchRow, job_id)
        if (job.state, job.attempts) != ("running", attempt):
            return False
        found = parts.amounts(session, job_id)
        if found.finished == found.parts:
            jobs.succeed(session, job_id, attempt)
            return False
    progress = found.done / batch.rows
    if progress == job.progress and job.message != "starting":
        return True
    message = f"{found.done} of {batch.rows} contexts"
    step = int(progress * _LOG_STEPS) > int(job.progress * _LOG_STEPS)
    return jobs.report(job_id, attempt, progress, message, message if step else None)


# a part, as its worker sees it


def prescribe_part(job_id: str, seq: int) -> None:
    """Decide for the contexts of a part and store what was decided beside them."""
    found = insist(lambda: _read(job_id, seq))
    if found is None:
        return
    table, posterior, options = found
    loaded = insist(lambda: ready(posterior))
    contexts = torch.from_numpy(loaded.encoding.encode_table(table))
    answers = service.decide(posterior, loaded, contexts, options)
    data = _parquet(_beside(table, pa.Table.from_pylist(answers)))
    insist(lambda: parts.store(job_id, seq, data))


def _read(job_id: str, seq: int) -> tuple[pa.Table, PosteriorRow, PrescribeOptions] | None:
    with transaction() as session:
        job = session.get(JobRow, job_id)
        if job is None or (data := parts.read(session, job_id, seq)) is None:
            return None
        posterior = session.get_one(PosteriorRow, job.spec["posterior_id"])
    fields = {name: value for name, value in job.spec.items() if name in PrescribeOptions.model_fields}
    table = pq.read_table(io.BytesIO(data))
    return table, posterior, PrescribeOptions(**fields)


# the result


def _beside(contexts: pa.Table, answers: pa.Table) -> pa.Table:
    """Contexts and answers as one flat table; a context that is called like an answer gets ``context.`` before it."""
    while any(pa.types.is_struct(kind) for kind in answers.schema.types):
        answers = answers.flatten()
    taken = set(answers.column_names)
    columns = {f"context.{name}" if name in taken else name: contexts[name] for name in contexts.column_names}
    return pa.table(columns | {name: answers[name] for name in answers.column_names})


def result(workspace: str, job_id: str, kind: Format) -> Iterator[bytes]:
    """The file in pieces, a part at a time: neither memory nor a connection is held for all of it."""
    job = jobs.get(workspace, job_id)
    if job.kind != "prescribe":
        raise Conflict(f"this job learns; its result is the posterior {sibling_id(job.id, 'post')}")
    if job.state != "succeeded":
        raise Conflict(f"the job is {job.state} ({job.progress:.0%}); the result is there once it has succeeded")
    with transaction() as session:
        shards = session.get_one(BatchRow, job_id).shards
    if kind == "csv":
        return _csv_pieces(_parts(job_id, shards))
    # A column may be empty in one part and full of numbers or text in the next.
    schemas = [part.schema for part in _parts(job_id, shards)]
    return _parquet_pieces(_parts(job_id, shards), pa.unify_schemas(schemas, promote_options="permissive"))


def _parts(job_id: str, shards: int) -> Iterator[pa.Table]:
    return (_result_part(job_id, seq) for seq in range(shards))


def _result_part(job_id: str, seq: int) -> pa.Table:
    with transaction() as session:
        return pq.read_table(io.BytesIO(parts.result(session, job_id, seq)))


def _csv_pieces(tables: Iterator[pa.Table]) -> Iterator[bytes]:
    for number, table in enumerate(tables):
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(table, buffer, pyarrow.csv.WriteOptions(include_header=number == 0))
        yield buffer.getvalue()


def _parquet_pieces(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    pieces = _Pieces()
    with pq.ParquetWriter(pieces, schema) as writer:
        for table in tables:
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
