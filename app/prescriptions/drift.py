"""Compare promised with realised costs, on later rows of a data set or on logged prescriptions.

For rows of a data set the posterior decides, and the decisions are costed with the rows' outcomes. It decides for the
newest rows first, so that a lack of time leaves out the oldest.
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

from app.datasets.lookback import HistoryGrid
from app.datasets.parsing import RawTable
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import read_chunk, read_table
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, DatasetRow, OutcomeRow, PosteriorRow, PrescriptionRow
from app.http.errors import InvalidRequest
from app.http.rows import find
from app.posteriors import service as posteriors
from app.posteriors.history import column_of
from app.prescriptions.cache import LoadedPosterior, PosteriorCache, cached_past, cached_posterior
from app.problems.schemas import outcome_names
from bco_core import deadlines
from bco_core.drift import Drift, Promises, judge
from bco_core.prescribe import PrescribeOptions, prescribe

MOST_ROWS = 5_000
# Share of the remaining time that decisions may take; the rest is for costing and serialising.
_DECIDING = 0.8
_WHERE = ("query", "dataset_id")

Source = Literal["dataset", "log"]


class ShareAnswer(BaseModel):
    """A share of the rows, with exact binomial bounds at 99 %."""

    share: float
    low: float
    high: float


class PromiseAnswer(BaseModel):
    """Promised and realised costs over some rows; numbers are null where they have no meaning."""

    rows: int
    promised: float | None = Field(description="mean promised cost")
    realised: float | None = Field(description="mean cost with the realised outcomes")
    ratio: float | None = Field(description="realised over promised; null if no positive cost was promised")
    standard_error: float | None = Field(description="of the ratio")
    above: ShareAnswer = Field(description="rows above the promised 95 % quantile; 0.05 is right")
    outside: ShareAnswer = Field(description="rows outside the promised 5 to 95 % range; 0.10 is right")


class StretchAnswer(PromiseAnswer):
    first: str | None = Field(description="the time of its first row; null if the data set has no time")
    last: str | None = Field(description="the time of its last row")


class DriftAnswer(BaseModel):
    posterior_id: str
    digest: str
    policy: str
    source: Source = Field("dataset", description="source of the judged rows: a data set, or the log")
    dataset_id: str | None
    learned_revision: int | None = Field(description="rows after this revision are judged; null: all rows")
    revision: int | None = Field(description="the data set's newest")
    verdict: Literal["steady", "drifting", "too_few"]
    sentence: str
    left_out: int = Field(description="rows without a decision, for lack of time or of a value that it needs")
    overall: PromiseAnswer | None = Field(description="all judged rows, at most the latest 5,000; null without any")
    stretches: list[StretchAnswer] = Field(description="up to twelve consecutive groups of them, oldest first")


def judge_rows(
    cache: PosteriorCache, workspace: str, posterior_id: str, dataset_id: str | None, deadline: float
) -> DriftAnswer:
    """Compare costs on the rows of a data set, until a moment of the monotonic clock."""
    row = cache.row(workspace, posterior_id)
    with transaction() as session:
        dataset, learned = _dataset(session, row, dataset_id)
        table = _latest(session, dataset, learned or 0)
    loaded = cached_posterior(cache, row)
    before = cached_past(cache, row, loaded) if learned is not None else _past_of(loaded, dataset)
    promises, order = _promises(row, loaded, before, table, deadline)
    return DriftAnswer(
        posterior_id=row.id,
        digest=row.digest,
        policy=row.policy,
        dataset_id=dataset.id,
        learned_revision=learned,
        revision=dataset.revision,
        left_out=table.num_rows - len(promises),
        **_verdict(judge(promises), _times(dataset, table, order)),
    )


def judge_log(workspace: str, name: str) -> DriftAnswer:
    """Compare costs on the latest logged prescriptions with a recorded outcome."""
    posterior = posteriors.get(workspace, name)
    logged, outcome = PrescriptionRow, OutcomeRow
    whose = logged.workspace == workspace, logged.posterior_id == posterior.id, logged.digest == posterior.digest
    query = select(logged.created_at, outcome.promised, outcome.low, outcome.high, outcome.realised_cost)
    query = query.join(outcome, outcome.prescription_id == logged.id).where(*whose, logged.kind == "prescribe")
    with transaction() as session:
        rows = session.execute(query.order_by(logged.id.desc(), outcome.number.desc()).limit(MOST_ROWS)).all()
    complete = [row for row in reversed(rows) if None not in row]
    costs = torch.tensor([row[1:] for row in complete], dtype=torch.float64).view(-1, 4)
    return DriftAnswer(
        posterior_id=posterior.id,
        digest=posterior.digest,
        policy=posterior.policy,
        source="log",
        dataset_id=None,
        learned_revision=None,
        revision=None,
        left_out=len(rows) - len(complete),
        **_verdict(judge(Promises(*costs.unbind(dim=1))), [row.created_at.isoformat() for row in complete]),
    )


def _verdict(drift: Drift, times: list[str]) -> dict[str, Any]:
    """Return the fields of a verdict; ``times`` are those of the judged rows, oldest first, or empty."""
    stretches, first = [], 0
    for one in drift.stretches:
        last = first + one.rows
        edges = {"first": times[first], "last": times[last - 1]} if times else {"first": None, "last": None}
        stretches.append(StretchAnswer(**dataclasses.asdict(one), **edges))
        first = last
    overall = None if drift.overall is None else PromiseAnswer(**dataclasses.asdict(drift.overall))
    return {"verdict": drift.verdict, "sentence": drift.sentence, "overall": overall, "stretches": stretches}


def _dataset(session: Session, row: PosteriorRow, dataset_id: str | None) -> tuple[DatasetRow, int | None]:
    """Return the data set to judge, and the revision after which its rows count; None for all rows."""
    if dataset_id is None and row.dataset_id is None:
        detail = "the posterior was imported without its data set; name one by dataset_id"
        raise InvalidRequest.at(_WHERE, detail)
    dataset = find(session, DatasetRow, row.workspace, dataset_id or row.dataset_id or "")
    if dataset is None:
        raise InvalidRequest.at(_WHERE, NO_DATASET)
    if dataset.id != row.dataset_id:
        return dataset, None
    return dataset, posteriors.learned_revision(session, row)


def _latest(session: Session, dataset: DatasetRow, after: int) -> pa.Table:
    """Return the latest rows added after a revision, oldest first: by their time, or else in the order sent."""
    chunk = DatasetChunkRow
    query = select(chunk).where(chunk.dataset_id == dataset.id, chunk.revision > after).order_by(chunk.seq.desc())
    time = column_of(dataset.columns, "time")
    table: pa.Table | None = None
    # One chunk at a time: a whole history may not fit into the memory of a solver process.
    with session.scalars(query, execution_options={"yield_per": 1}) as chunks:
        for piece in map(read_chunk, chunks):
            table = piece if table is None else pa.concat_tables([piece, table])
            if time is not None:
                table = table.sort_by(time["name"])
            table = table.slice(max(0, table.num_rows - MOST_ROWS))
            if time is None and table.num_rows == MOST_ROWS:
                break
    return pa.table({}) if table is None else table


def _times(dataset: DatasetRow, table: pa.Table, order: Iterable[int]) -> list[str]:
    """Return the times of the judged rows as text; empty if the data set has no time."""
    time = column_of(dataset.columns, "time")
    if time is None or not table.num_rows:
        return []
    values = table.column(time["name"]).to_pylist()
    return [value.isoformat() if hasattr(value, "isoformat") else str(value) for value in (values[i] for i in order)]


def _past_of(loaded: LoadedPosterior, dataset: DatasetRow) -> HistoryGrid | None:
    """Return what rows of another data set look back on: the rows of that data set."""
    if loaded.encoding.lookback is None:
        return None
    with transaction() as session:
        table = read_table(session, dataset.id, dataset.revision)
    _check_columns(loaded, table)
    return loaded.encoding.lookback.past(table, dataset.revision)


def _promises(
    row: PosteriorRow, loaded: LoadedPosterior, before: HistoryGrid | None, table: pa.Table, deadline: float
) -> tuple[Promises, list[int]]:
    """Return promised and realised costs of the rows with a decision, oldest first, and the numbers of these rows."""
    nothing = torch.zeros(0, dtype=torch.float64)
    if not table.num_rows:
        return Promises(nothing, nothing, nothing, nothing), []
    outcomes = _outcomes(row, table)
    contexts, usable = _contexts(loaded, before, table)
    usable = usable[outcomes[usable].isfinite().all(dim=1)].flip(0)
    if not len(usable):
        return Promises(nothing, nothing, nothing, nothing), []
    contexts, outcomes = contexts[usable], outcomes[usable]
    left = deadline - monotonic()
    options = PrescribeOptions(policy=row.policy)
    with deadlines.until(deadline):
        prescribed = prescribe(loaded.posterior, loaded.problem, contexts, options, time_limit_seconds=_DECIDING * left)
        known = prescribed.decisions.isfinite().all(dim=1) & prescribed.costs.mean.isfinite()
        decided = known.nonzero()[:, 0]
        realised = loaded.problem.cost(prescribed.decisions[decided], outcomes[decided]).double()
    quantiles = prescribed.costs.quantiles[decided]
    promised = (prescribed.costs.mean[decided], quantiles[:, 0], quantiles[:, -1], realised)
    return Promises(*(one.flip(0) for one in promised)), usable[decided].flip(0).tolist()


def _contexts(loaded: LoadedPosterior, before: HistoryGrid | None, table: pa.Table) -> tuple[Tensor, Tensor]:
    """Return encoded contexts (n, width), each from rows known at its decision, and the numbers of the usable ones."""
    _check_columns(loaded, table)
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    raw = RawTable(columns, table.num_rows, "dataset_id", lambda row, name: (_WHERE, f"row {row} of those judged"))
    encoded = loaded.encoding.encode_table(loaded.encoding.check_upload(raw)[0], before)
    return torch.from_numpy(encoded.matrix), torch.from_numpy(encoded.usable)


def _check_columns(loaded: LoadedPosterior, table: pa.Table) -> None:
    for name in loaded.encoding.names:
        if name not in table.column_names:
            raise InvalidRequest.at(_WHERE, f"the data set has no column '{name}', which the posterior needs")


def _outcomes(row: PosteriorRow, table: pa.Table) -> Tensor:
    """Return the realised outcomes (n, d_y)."""
    columns = []
    for name in outcome_names(row.problem):
        if name not in table.column_names or not pa.types.is_floating(table.schema.field(name).type):
            detail = f"the data set has no numeric column '{name}', an outcome of the posterior's problem"
            raise InvalidRequest.at(_WHERE, detail)
        columns.append(torch.tensor(table.column(name).to_numpy()))
    return torch.stack(columns, dim=1)
