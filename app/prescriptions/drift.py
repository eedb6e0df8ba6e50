"""Whether rows that came later cost what was promised: the posterior decides for them, and what happened is costed.

Rows are decided for newest first, so that a lack of time leaves out the oldest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from time import monotonic
from typing import Any, Literal

import pyarrow as pa
import torch
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from app.datasets.lookback import Past
from app.datasets.parsing import RawTable
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import read_table, unpacked
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, DatasetRow, PosteriorRow
from app.http.errors import InvalidRequest
from app.http.rows import find
from app.posteriors import service as posteriors
from app.prescriptions.cache import Cache, Ready, past, ready
from app.problems.schemas import outcome_names
from bco_core import deadline
from bco_core.drift import Drift, Promises, judge
from bco_core.prescribe import PrescribeOptions, PrescribeResult, prescribe

MOST_ROWS = 5_000
# Of the time that is left, what decisions may take; the rest is for costing them and for writing it down.
_DECIDING = 0.8
_WHERE = ("query", "dataset_id")

Source = Literal["dataset", "log"]


class ShareAnswer(BaseModel):
    """A share of the rows, with exact binomial bounds at 99 %."""

    share: float
    low: float
    high: float


class KeptAnswer(BaseModel):
    """How promises were kept over some rows; numbers are null where they have no meaning."""

    rows: int
    promised: float | None = Field(description="mean promised cost")
    realised: float | None = Field(description="mean cost with the outcomes that happened")
    ratio: float | None = Field(description="realised over promised; null where no positive cost was promised")
    standard_error: float | None = Field(description="of the ratio")
    above: ShareAnswer = Field(description="rows above the promised 95 % quantile; 0.05 belong there")
    outside: ShareAnswer = Field(description="rows outside the promised 5 to 95 % range; 0.10 belong there")


class StretchAnswer(KeptAnswer):
    first: str | None = Field(description="the time of its first row; null where the data set has no time")
    last: str | None = Field(description="the time of its last row")


class DriftAnswer(BaseModel):
    posterior_id: str
    digest: str
    policy: str
    source: Source = Field("dataset", description="where the judged rows are from: a data set, or the log")
    dataset_id: str | None
    learned_revision: int | None = Field(description="rows after this revision are judged; null: all rows are")
    revision: int | None = Field(description="the data set's newest")
    verdict: Literal["steady", "drifting", "too_few"]
    sentence: str
    left_out: int = Field(description="rows without a decision: for want of time, or of something that it needs")
    overall: KeptAnswer | None = Field(description="all judged rows, at most the latest 5,000; null without any")
    stretches: list[StretchAnswer] = Field(description="up to twelve stretches of them, oldest first")


def judge_rows(cache: Cache, workspace: str, named: str, dataset_id: str | None, until: float) -> DriftAnswer:
    """Compare promised with realised costs, until a moment of the monotonic clock."""
    row = cache.row(workspace, named)
    with transaction() as session:
        dataset, learned = _asked(session, row, dataset_id)
        table = _latest(session, dataset, learned or 0)
    loaded = ready(cache, row)
    before = past(cache, row, loaded) if learned is not None else _past_of(loaded, dataset)
    promises, order = _promises(row, loaded, before, table, until)
    return DriftAnswer(
        posterior_id=row.id,
        digest=row.digest,
        policy=row.policy,
        dataset_id=dataset.id,
        learned_revision=learned,
        revision=dataset.revision,
        left_out=table.num_rows - len(promises),
        **stretched(judge(promises), _times(dataset, table, order)),
    )


def stretched(found: Drift, times: list[str]) -> dict[str, Any]:
    """What a verdict says; ``times`` are those of the judged rows, oldest first, empty where they have none."""
    stretches, first = [], 0
    for one in found.stretches:
        last = first + one.rows
        edges = {"first": times[first], "last": times[last - 1]} if times else {"first": None, "last": None}
        stretches.append(StretchAnswer(**dataclasses.asdict(one), **edges))
        first = last
    overall = None if found.overall is None else KeptAnswer(**dataclasses.asdict(found.overall))
    return {"verdict": found.verdict, "sentence": found.sentence, "overall": overall, "stretches": stretches}


def _asked(session: Session, row: PosteriorRow, dataset_id: str | None) -> tuple[DatasetRow, int | None]:
    """The data set whose rows are judged, and the revision after which they are; None for all of them."""
    if dataset_id is None and row.dataset_id is None:
        detail = "the posterior was imported, and its data set is not here; name one by dataset_id"
        raise InvalidRequest.at(_WHERE, detail)
    dataset = find(session, DatasetRow, row.workspace, dataset_id or row.dataset_id or "")
    if dataset is None:
        raise InvalidRequest.at(_WHERE, NO_DATASET)
    if dataset.id != row.dataset_id:
        return dataset, None
    return dataset, posteriors.learned_revision(session, row)


def _latest(session: Session, dataset: DatasetRow, after: int) -> pa.Table:
    """The latest rows that came after a revision, oldest first: by their time, or else as they were sent."""
    chunk = DatasetChunkRow
    query = select(chunk).where(chunk.dataset_id == dataset.id, chunk.revision > after).order_by(chunk.seq.desc())
    time = _time_column(dataset)
    table: pa.Table | None = None
    # One piece at a time: a whole history may not fit into the memory of a solver process.
    with session.scalars(query, execution_options={"yield_per": 1}) as chunks:
        for piece in map(unpacked, chunks):
            table = piece if table is None else pa.concat_tables([piece, table])
            if time is not None:
                table = table.sort_by(time)
            table = table.slice(max(0, table.num_rows - MOST_ROWS))
            if time is None and table.num_rows == MOST_ROWS:
                break
    return pa.table({}) if table is None else table


def _time_column(dataset: DatasetRow) -> str | None:
    return next((column["name"] for column in dataset.columns if column["role"] == "time"), None)


def _times(dataset: DatasetRow, table: pa.Table, order: Iterable[int]) -> list[str]:
    """When the judged rows were, as text; empty where the data set has no time."""
    time = _time_column(dataset)
    if time is None or not table.num_rows:
        return []
    values = table.column(time).to_pylist()
    return [value.isoformat() if hasattr(value, "isoformat") else str(value) for value in (values[i] for i in order)]


def _past_of(loaded: Ready, dataset: DatasetRow) -> Past | None:
    """What rows of another data set look back on: their own."""
    if loaded.encoding.lookback is None:
        return None
    with transaction() as session:
        table = read_table(session, dataset.id, dataset.revision)
    _check_columns(loaded, table)
    return loaded.encoding.lookback.past(table, dataset.revision)


def _promises(
    row: PosteriorRow, loaded: Ready, before: Past | None, table: pa.Table, until: float
) -> tuple[Promises, list[int]]:
    """What was promised of the rows that got a decision and what they cost, oldest first, and which rows they are."""
    nothing = torch.zeros(0, dtype=torch.float64)
    if not table.num_rows:
        return Promises(nothing, nothing, nothing, nothing), []
    outcomes = _outcomes(row, table)
    contexts, usable = _contexts(loaded, before, table)
    usable = usable[outcomes[usable].isfinite().all(dim=1)].flip(0)
    if not len(usable):
        return Promises(nothing, nothing, nothing, nothing), []
    contexts, outcomes = contexts[usable], outcomes[usable]
    left = until - monotonic()
    options = PrescribeOptions(policy=row.policy)
    with deadline.until(until):
        found = prescribe(
            loaded.posterior, loaded.problem, contexts, options, seconds=left, solver_seconds=_DECIDING * left
        )
        decided = _decided(found)
        realised = loaded.problem.cost(found.decisions[decided], outcomes[decided]).double()
    quantiles = found.costs.quantiles[decided]
    promised = (found.costs.mean[decided], quantiles[:, 0], quantiles[:, -1], realised)
    return Promises(*(one.flip(0) for one in promised)), usable[decided].flip(0).tolist()


def _decided(found: PrescribeResult) -> Tensor:
    """The rows that have a decision whose cost is known."""
    return (found.decisions.isfinite().all(dim=1) & found.costs.mean.isfinite()).nonzero()[:, 0]


def _contexts(loaded: Ready, before: Past | None, table: pa.Table) -> tuple[Tensor, Tensor]:
    """The encoded contexts (n, width), looking back as far as was known then, and which of them can be decided for."""
    _check_columns(loaded, table)
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    raw = RawTable(columns, table.num_rows, "dataset_id", lambda row, name: (_WHERE, f"row {row} of those judged"))
    encoded = loaded.encoding.encode_table(loaded.encoding.checked(raw)[0], before)
    return torch.from_numpy(encoded.matrix), torch.from_numpy(encoded.usable)


def _check_columns(loaded: Ready, table: pa.Table) -> None:
    for name in loaded.encoding.names:
        if name not in table.column_names:
            raise InvalidRequest.at(_WHERE, f"the data set has no column '{name}', which the posterior needs")


def _outcomes(row: PosteriorRow, table: pa.Table) -> Tensor:
    """What happened (n, d_y)."""
    columns = []
    for name in outcome_names(row.problem):
        if name not in table.column_names or not pa.types.is_floating(table.schema.field(name).type):
            detail = f"the data set has no numbers called '{name}', which the posterior decides about"
            raise InvalidRequest.at(_WHERE, detail)
        columns.append(torch.tensor(table.column(name).to_numpy()))
    return torch.stack(columns, dim=1)
