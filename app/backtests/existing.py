"""Compare existing posteriors on rows that none of them has learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from sqlalchemy.orm import Session
from torch import Tensor

from app.datasets.parsing import RawTable
from app.datasets.service import count_rows, read_table
from app.db.tables import DatasetRow, PosteriorRow
from app.http.errors import InvalidRequest
from app.posteriors import service as posteriors
from app.prescriptions.cache import LoadedPosterior
from app.problems.schemas import decision_names, outcome_names
from bco_core.arrays import Booleans, Integers
from bco_core.backtest.rules import decide_all
from bco_core.prescribe import PrescribeOptions
from bco_core.progress import Progress


@dataclass(frozen=True)
class ExistingPosterior:
    """A loaded posterior and its label in results."""

    label: str
    row: PosteriorRow
    loaded: LoadedPosterior

    def decisions(self, table: pa.Table, rows: Integers, progress: Progress) -> Tensor:
        """Return decisions (m, d_z) for rows (m,) of a table, NaN where the posterior cannot decide.

        Features look back on rows of the table that were known in time.
        """
        encoding = self.loaded.encoding
        past = encoding.lookback.past(table, 0) if encoding.lookback is not None else None
        encoded = encoding.encode_table(_to_encodable(self, table.take(pa.array(rows))), past, notes=False)
        usable = encoded.usable
        decisions = torch.full((len(rows), self.loaded.problem.decision_dim), torch.nan, dtype=torch.float64)
        if len(usable):
            contexts = torch.from_numpy(encoded.matrix[usable])
            options = PrescribeOptions(policy=self.row.policy)
            decisions[torch.from_numpy(usable)] = decide_all(
                self.loaded.posterior, self.loaded.problem, contexts, options, progress
            )
        return decisions


def _to_encodable(one: ExistingPosterior, table: pa.Table) -> pa.Table:
    columns = {name: table.column(name) for name in table.column_names}
    raw = RawTable(columns, table.num_rows, "dataset_id", lambda row, name: (("dataset_id",), f"row {row}"))
    return one.loaded.encoding.check_upload(raw)[0]


def check(spec: dict[str, object], rows: Sequence[PosteriorRow]) -> None:
    """Refuse posteriors whose decisions or outcomes are not those of the problem."""
    for index, row in enumerate(rows):
        same = decision_names(row.problem) == decision_names(spec) and outcome_names(row.problem) == outcome_names(spec)
        if not same:
            detail = "the posterior does not match the problem: its decisions or outcomes have other names"
            raise InvalidRequest.at(("posteriors", index), detail)


def unseen(
    session: Session, dataset: DatasetRow, revision: int, rows: Sequence[PosteriorRow]
) -> tuple[Integers, list[str]]:
    """Return the rows of a data set that no posterior has learned from, and notes on the others."""
    table = read_table(session, dataset.id, revision)
    fresh = np.ones(table.num_rows, dtype=bool)
    notes = []
    for row in rows:
        learned = _mark_learned_rows(session, dataset, table, row)
        if learned is None:
            notes.append(f"the training data of {row.id} is unavailable, so it may have learned from these rows")
            continue
        if learned.any():
            notes.append(f"{int(learned.sum())} rows are left out because {row.id} has learned from them")
        fresh &= ~learned
    if not fresh.any():
        detail = "the posteriors have learned from all rows of this data set; append newer rows, or name another one"
        raise InvalidRequest.at(("dataset_id",), detail)
    return np.flatnonzero(fresh), notes


def _mark_learned_rows(session: Session, dataset: DatasetRow, table: pa.Table, row: PosteriorRow) -> Booleans | None:
    """Mark the rows (n,) that a posterior has learned from: those of its revision, or equal rows elsewhere."""
    if row.dataset_id is None:
        return None
    revision = posteriors.learned_revision(session, row)
    if row.dataset_id == dataset.id:
        return np.arange(table.num_rows) < count_rows(session, dataset.id, revision)
    own = read_table(session, row.dataset_id, revision)
    shared = [name for name in table.column_names if name in own.column_names]
    learned: Booleans = np.asarray(pc.is_in(_fingerprints(table, shared), value_set=_fingerprints(own, shared)))
    return learned


def _fingerprints(table: pa.Table, names: list[str]) -> pa.ChunkedArray:
    texts = [pc.fill_null(table.column(name).cast(pa.string()), "") for name in names]
    return pc.binary_join_element_wise(*texts, "\x1f")
