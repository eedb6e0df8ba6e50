"""The history of a posterior, ready to be searched for rows like a context."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from app.datasets.lookback import Past
from app.datasets.service import count_rows, read_table
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError
from app.posteriors import service as posteriors
from app.posteriors.history import outcomes_of
from app.prescriptions.cache import LoadedPosterior, PosteriorCache
from app.problems.schemas import outcome_names
from bco_core import deadline
from bco_core.explain.neighbours import Neighbourhood

# Of a longer history the latest rows are searched: so many, and no more numbers than this.
MOST_ROWS = 100_000
_MOST_NUMBERS = 10_000_000
# From so many rows on preparing takes longer than a quick call may.
_MANY_ROWS = 5_000
GONE = "neighbours are rows of the history that the posterior learned from, and these are not here any more"


@dataclass(frozen=True)
class SearchableHistory:
    """Rows that can be searched, their outcomes (n, d_y), and the rows themselves."""

    neighbourhood: Neighbourhood
    outcomes: Tensor
    table: pa.Table

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def nbytes(self) -> int:
        return int(self.neighbourhood.contexts.nbytes + self.outcomes.nbytes + self.table.nbytes)


def load_history(row: PosteriorRow, loaded: LoadedPosterior, past: Past | None) -> SearchableHistory:
    """The rows of the revision that the posterior was learned from."""
    if row.dataset_id is None:
        raise ConflictError(GONE)
    with transaction() as session:
        revision = posteriors.learned_revision(session, row)
        count = count_rows(session, row.dataset_id, revision)
        if not count:
            raise ConflictError(GONE)
        if count > _MANY_ROWS:
            deadline.before_long_work()
        table = read_table(session, row.dataset_id, revision)
    most = min(MOST_ROWS, _MOST_NUMBERS // loaded.encoding.width)
    table = _sorted(row, table).slice(max(0, table.num_rows - most))
    encoded = loaded.encoding.encode_table(table, past, notes=False)
    table = table.take(pa.array(encoded.usable))
    if not table.num_rows:
        raise ConflictError(GONE)
    contexts = torch.from_numpy(encoded.matrix[encoded.usable])
    outcomes = torch.from_numpy(outcomes_of(table, outcome_names(row.problem)))
    return SearchableHistory(Neighbourhood.of(contexts), outcomes, table)


def cached_history(
    cache: PosteriorCache, row: PosteriorRow, loaded: LoadedPosterior, past: Past | None
) -> SearchableHistory:
    """The same, kept in memory beside the posterior."""

    def make() -> tuple[SearchableHistory, int]:
        made = load_history(row, loaded, past)
        return made, made.nbytes

    return cache.get((row.id, "similar"), make)


def _sorted(row: PosteriorRow, table: pa.Table) -> pa.Table:
    """Rows by their time, where they have one, so that the last are the latest."""
    time = next((column["name"] for column in row.columns if column["role"] == "time"), None)
    return table if time is None else table.sort_by(time)
