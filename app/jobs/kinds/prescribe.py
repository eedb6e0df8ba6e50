"""Prescribe for a whole table of contexts; the result is a file.

The contexts are checked and cut into parts when the job is created, so that mistakes are reported at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import orjson
import pyarrow as pa
from pydantic import ConfigDict, Field
from torch import Tensor

from app.datasets.encoding import REFUSED, ContextEncoding, Refusal
from app.datasets.lookback import HistoryGrid
from app.datasets.parsing import RawTable
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import newest_revision, read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, PosteriorRow
from app.http.errors import ConflictError, InvalidRequest, NotFoundError
from app.http.rows import find
from app.http.tables import CSV, PARQUET, XLSX, csv_pieces, from_parquet, parquet_pieces, to_parquet, xlsx_pieces
from app.jobs import queue
from app.jobs.kinds.base import Checkpoint, JobDraft, JobKind, JobPart, ResultFormat
from app.posteriors import service as posteriors
from app.prescriptions.cache import NO_ROWS, LoadedPosterior, Range, load_past, load_posterior
from app.prescriptions.context import PreparedRequest, check_include, checked_options, core_options, far_from_history
from app.prescriptions.include import add_parts
from app.prescriptions.neighbours import GONE, SearchableHistory, load_history
from app.prescriptions.patching import PatchedProblem, build_patched_problem
from app.prescriptions.prescribe import decide_usable
from app.prescriptions.schemas import BatchOptions, DecisionOptions, NewBatch
from app.prescriptions.tables import flatten_parts
from app.problems import patch as patches
from app.problems.check import QUICK_SECONDS as CHECK_SECONDS
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.prescribe import PrescribeOptions
from bco_core.problems.registry import build_problem
from bco_core.progress import Progress

log = logging.getLogger(__name__)

# Contexts are decided in chunks of about this many numbers (contexts × scenarios × outcomes): about a second of work. A
# part is a chunk, or several where a job would have too many parts.
_NUMBERS_AT_ONCE = 2_000_000
_MOST_ROWS_AT_ONCE = 10_000
MOST_PARTS = 200
# Limit of numbers with include, in multiples of that of a prescribe call.
_TIMES_INCLUDED = 25
# Seconds that deciding takes: for each context, and for each of its numbers.
_SECONDS_A_CONTEXT, _SECONDS_A_NUMBER = 1e-3, 5e-7
# How many times longer it takes with include.
_INCLUDE_FACTOR = 20


class PrescribeJobRequest(NewBatch):
    """Prescribe for every row of a data set; the same as POST /v1/posteriors/{id}/batch-prescriptions."""

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
    posterior_id: str = Field(description="posterior that decides")


# creating the job


def check(workspace: str, request: PrescribeJobRequest) -> JobDraft:
    """Draft a job for every row of a data set."""
    try:
        posterior = posteriors.get(workspace, request.posterior_id)
    except NotFoundError as error:
        raise InvalidRequest.at(("posterior_id",), error.detail) from None
    with transaction() as session:
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
        table = read_table(session, dataset.id)
    columns = {name: table.column(name) for name in table.column_names}
    raw = RawTable(columns, table.num_rows, "dataset_id", lambda row, name: (("dataset_id",), f"row {row}"))
    return draft(posterior, request, raw, dataset.id)


def draft(posterior: PosteriorRow, options: BatchOptions, raw: RawTable, dataset_id: str | None = None) -> JobDraft:
    """Check the contexts and cut them into parts."""
    core = checked_options(posterior, options)
    most = get_settings().max_rows
    if not 0 < raw.rows <= most:
        detail = f"at most {most} rows (BCO_MAX_ROWS)" if raw.rows else "there are no rows; send at least one context"
        raise InvalidRequest.at((raw.whole,), detail)
    patch_warnings = _check_patch(posterior, options)
    encoding = ContextEncoding.of(posterior.columns, posterior.recipe)
    table, refused = encoding.check_upload(raw)
    if options.include:
        check_include(posterior, options, core, raw.rows, raw.whole, times=_TIMES_INCLUDED)
    if "neighbours" in options.include and posterior.dataset_id is None:
        raise ConflictError(GONE)
    if len(refused) == raw.rows:
        place, words = raw.place(0, refused[0].column)
        raise InvalidRequest.at(place, f"{words}: {refused[0].sentence}; the other rows cannot be used either")
    numbers = options.scenarios * len(outcome_names(posterior.problem))
    return JobDraft(
        name=options.name or posterior.name,
        problem_id=posterior.problem_id,
        dataset_id=dataset_id,
        posterior_id=posterior.id,
        spec=options.model_dump(exclude={"kind", "name", "dataset_id"})
        | {"posterior_id": posterior.id}
        | _history_revision(posterior, encoding),
        estimate_seconds=raw.rows
        * (_SECONDS_A_CONTEXT + numbers * _SECONDS_A_NUMBER)
        * (_INCLUDE_FACTOR if options.include else 1),
        parts=_parts(table, numbers),
        warnings=_warnings(posterior, table, refused) + patch_warnings,
    )


def _check_patch(posterior: PosteriorRow, options: BatchOptions) -> list[str]:
    """Return warnings about a problem patch; refuse one that no problem can be built from.

    A problem that takes long to build is left to the worker.
    """
    if options.problem_patch is None:
        return []
    spec, differs = patches.apply(posterior.problem, options.problem_patch)
    try:
        with deadlines.until(monotonic() + CHECK_SECONDS, quick=True):
            build_problem(spec)
    except InvalidInput as error:
        raise InvalidRequest.at((patches.PLACE, *patches.named(spec, error.where)), str(error)) from None
    except OutOfTime:
        log.info("a patched problem takes long to build; the worker will check it")
    return [patches.warning(differs)]


def _history_revision(posterior: PosteriorRow, encoding: ContextEncoding) -> dict[str, int]:
    """Return the revision of the data set that features of all parts come from, however long they wait."""
    if encoding.lookback is None:
        return {}
    if posterior.dataset_id is None:
        raise ConflictError(NO_ROWS)
    return {"revision": newest_revision(posterior.dataset_id)}


def _parts(table: pa.Table, numbers: int) -> Iterator[JobPart]:
    """Cut a table into parts; each of its rows takes ``numbers`` scenarios × outcomes."""
    rows = max(_rows_at_once(numbers), math.ceil(table.num_rows / MOST_PARTS))
    for first in range(0, table.num_rows, rows):
        piece = table.slice(first, rows)
        yield JobPart(piece.num_rows, to_parquet(piece))


def _rows_at_once(numbers: int) -> int:
    return max(1, min(_MOST_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // numbers))


def _warnings(posterior: PosteriorRow, table: pa.Table, refused: Mapping[int, Refusal]) -> list[str]:
    quality, reason = posterior.diagnostics["quality"], posterior.diagnostics["reason"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {reason}"]
    for column in posterior.columns:
        if column["role"] == "context" and column["kind"] == "numeric":
            known = Range(column["name"], column["minimum"], column["maximum"])
            values = table.column(known.name).to_numpy()
            far = int(((values < known.reach()[0]) | (values > known.reach()[1])).sum())
            warnings += [known.warning(f" in {far} context(s)")] if far else []
    if refused:
        first = min(refused)
        sentence = refused[first].sentence
        warnings.append(
            f"{len(refused)} row(s) cannot be used; the result has the reason of each. Row {first}: {sentence}"
        )
    return warnings


# computing a part


@dataclass(frozen=True)
class PrescribeInputs:
    """A loaded posterior, its draws (K, d), the problem and how to decide; ``history`` is searched for neighbours."""

    posterior: PosteriorRow
    loaded: LoadedPosterior
    patched: PatchedProblem
    past: HistoryGrid | None
    request: DecisionOptions
    options: PrescribeOptions
    draws: Tensor
    history: SearchableHistory | None

    def prepare(self, table: pa.Table) -> PreparedRequest:
        """Encode the contexts of a table, and prepare their decisions."""
        encoding, contexts = self.loaded.encoding, []
        encoded = encoding.encode_table(table, self.past)
        if self.request.include:
            contexts = [list(row.values()) for row in table.select(encoding.names).to_pylist()]
        return PreparedRequest(
            self.posterior,
            self.loaded,
            self.patched,
            self.request,
            self.options,
            self.draws,
            encoded,
            far_from_history(self.loaded, encoded),
            self.past,
            contexts,
        )


def read(job: JobRow) -> PrescribeInputs:
    with transaction() as session:
        posterior = session.get_one(PosteriorRow, job.posterior_id)
    fields = {name: value for name, value in job.spec.items() if name in DecisionOptions.model_fields}
    loaded = load_posterior(posterior)
    past = load_past(posterior, loaded.encoding, job.spec["revision"]) if loaded.encoding.lookback else None
    request = DecisionOptions(**fields)
    patched = build_patched_problem(posterior, loaded.problem, request.problem_patch)
    history = load_history(posterior, loaded, past) if "neighbours" in request.include else None
    options = core_options(posterior, request)
    draws = loaded.posterior.draws(request.scenarios, request.seed)
    return PrescribeInputs(posterior, loaded, patched, past, request, options, draws, history)


def work(inputs: PrescribeInputs, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """Decide for the contexts of a part; return contexts and decisions side by side, as Parquet."""
    table = from_parquet(data)
    rows = _rows_at_once(inputs.request.scenarios * len(outcome_names(inputs.posterior.problem)))
    answers: list[Any] = []
    for first in range(0, table.num_rows, rows):
        progress(first / table.num_rows, f"{first} of {table.num_rows} contexts")
        prepared = inputs.prepare(table.slice(first, rows))
        prescriptions = decide_usable(prepared)
        if inputs.request.include:
            add_parts(prepared, prescriptions, inputs.history)
            for prescription in prescriptions:
                flatten_parts(prescription, inputs.posterior, inputs.loaded)
        answers += prescriptions
    carried = table.drop_columns([name for name in (REFUSED,) if name in table.column_names])
    return to_parquet(_side_by_side(carried, pa.Table.from_pylist(answers)))


def _side_by_side(contexts: pa.Table, answers: pa.Table) -> pa.Table:
    """Return contexts and answers as one flat table; a context named like an answer gets the prefix ``context.``."""
    while any(pa.types.is_struct(kind) for kind in answers.schema.types):
        answers = answers.flatten()
    if "facts" in answers.column_names:  # empty here; where there are facts, each has a column
        answers = answers.drop_columns(["facts"])
    for number, field in enumerate(answers.schema):
        if pa.types.is_list(field.type) and field.name != "warnings":
            texts = [None if value is None else orjson.dumps(value).decode() for value in answers[number].to_pylist()]
            answers = answers.set_column(number, field.name, pa.array(texts, pa.string()))
    taken = set(answers.column_names)
    columns = {f"context.{name}" if name in taken else name: contexts[name] for name in contexts.column_names}
    return pa.table(columns | {name: answers[name] for name in answers.column_names})


# the result


def _csv_file(results: Sequence[bytes]) -> Iterator[bytes]:
    return csv_pieces(_whole(results)[0])


def _parquet_file(results: Sequence[bytes]) -> Iterator[bytes]:
    return parquet_pieces(*_whole(results)[:2])


def _xlsx_file(results: Sequence[bytes]) -> Iterator[bytes]:
    return xlsx_pieces(*_whole(results))


def _warnings_of(table: pa.Table) -> list[list[str]]:
    """Return the warnings of each context; parts of earlier versions have them as one text."""
    return [[one] if isinstance(one, str) and one else list(one or ()) for one in table["warnings"].to_pylist()]


def _whole(results: Sequence[bytes]) -> tuple[Iterator[pa.Table], pa.Schema, int]:
    """Return the tables of all parts with the same columns, their schema, and the number of rows.

    A column may be empty or missing in one part and full of numbers or text in the next. Each warning of a context gets
    a column of its own.
    """
    kinds, rows, most = [], 0, 0
    for table in map(from_parquet, results):
        rows += table.num_rows
        if "warnings" in table.column_names:
            most = max([most, *map(len, _warnings_of(table))])
            table = table.set_column(table.column_names.index("warnings"), "warnings", [[""] * table.num_rows])
        kinds.append(table.schema)
    names = [f"warning.{number}" for number in range(1, most + 1)]
    schema = pa.unify_schemas(kinds, promote_options="permissive")
    schema = pa.schema([*schema, *((name, pa.string()) for name in names)])

    def tables() -> Iterator[pa.Table]:
        for table in map(from_parquet, results):
            columns: dict[str, Any] = {name: pa.nulls(table.num_rows) for name in schema.names}
            columns |= {name: table[name] for name in table.column_names}
            if "warnings" in columns:
                warnings = _warnings_of(table)
                columns["warnings"] = ["; ".join(one) for one in warnings]
                for number, name in enumerate(names):
                    columns[name] = [one[number] if number < len(one) else None for one in warnings]
            yield pa.table(columns).select(schema.names).cast(schema)

    return tables(), schema, rows


PRESCRIBE = JobKind(
    name="prescribe",
    queue=queue.WAITING,
    request=PrescribeJobRequest,
    check=check,
    read=read,
    work=work,
    keeps_parts=True,
    unit="contexts",
    files={
        "csv": ResultFormat(CSV, _csv_file),
        "parquet": ResultFormat(PARQUET, _parquet_file),
        "xlsx": ResultFormat(XLSX, _xlsx_file),
    },
)
