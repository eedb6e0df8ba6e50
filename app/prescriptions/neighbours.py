"""The history of a posterior, prepared for a search for the rows most like a context."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from app.datasets.lookback import HistoryGrid
from app.datasets.service import count_rows, read_table
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError
from app.posteriors import service as posteriors
from app.posteriors.history import column_of, outcomes_of
from app.prescriptions.cache import LoadedPosterior, PosteriorCache
from app.problems.schemas import outcome_names
from bco_core import deadlines
from bco_core.explain.neighbours import Neighbourhood

# Only the latest rows of a longer history are searched, and no more numbers than this.
MOST_ROWS = 100_000
_MOST_NUMBERS = 10_000_000
# With more rows, preparation takes longer than a quick call may.
_MANY_ROWS = 5_000
GONE = "neighbours are rows of the history that the posterior was learned from, and that history was deleted"


@dataclass(frozen=True)
class SearchableHistory:
    """Rows of the history with their neighbourhood search, their outcomes (n, d_y) and their table."""

    neighbourhood: Neighbourhood
    outcomes: Tensor
    table: pa.Table

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def nbytes(self) -> int:
        return int(self.neighbourhood.contexts.nbytes + self.outcomes.nbytes + self.table.nbytes)


def load_history(row: PosteriorRow, loaded: LoadedPosterior, past: HistoryGrid | None) -> SearchableHistory:
    """Read the rows of the revision that the posterior was learned from."""
    if row.dataset_id is None:
        raise ConflictError(GONE)
    with transaction() as session:
        revision = posteriors.learned_revision(session, row)
        count = count_rows(session, row.dataset_id, revision)
        if not count:
            raise ConflictError(GONE)
        if count > _MANY_ROWS:
            deadlines.before_long_work()
        table = read_table(session, row.dataset_id, revision)
    time = column_of(row.columns, "time")
    if time is not None:
        table = table.sort_by(time["name"])
    most = min(MOST_ROWS, _MOST_NUMBERS // loaded.encoding.width)
    table = table.slice(max(0, table.num_rows - most))
    encoded = loaded.encoding.encode_table(table, past, notes=False)
    table = table.take(pa.array(encoded.usable))
    if not table.num_rows:
        raise ConflictError(GONE)
    contexts = torch.from_numpy(encoded.matrix[encoded.usable])
    outcomes = torch.from_numpy(outcomes_of(table, outcome_names(row.problem)))
    return SearchableHistory(Neighbourhood.of(contexts), outcomes, table)


def cached_history(
    cache: PosteriorCache, row: PosteriorRow, loaded: LoadedPosterior, past: HistoryGrid | None
) -> SearchableHistory:
    """Return the searchable history from memory, or read it."""

    def make() -> tuple[SearchableHistory, int]:
        history = load_history(row, loaded, past)
        return history, history.nbytes

    return cache.get((row.id, "history"), make)
