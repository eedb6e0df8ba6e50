"""Posteriors ready to prescribe, kept in memory up to a budget; the least recently used ones go first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import torch
from cachetools import LRUCache
from torch import Tensor

from app import metrics
from app.datasets.encoding import ContextEncoding
from app.datasets.lookback import Past
from app.datasets.service import newest_revision, read_table
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError
from app.posteriors import service as posteriors
from app.posteriors import shared
from app.prescriptions.memory import size_of
from app.problems.schemas import decision_names
from app.settings import get_settings
from bco_core.errors import InvalidInput
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem

Value = TypeVar("Value")

# A posterior that is deleted by another process is gone here after at most so long.
FRESH_SECONDS = 1.0
_MOST_ROWS = 1_000
NO_ROWS = (
    "the posterior looks back on rows of its data set, and it was imported without them; import it again with rows"
)


class Range(NamedTuple):
    """What a column of encoded contexts is called, and its range in the history."""

    name: str
    low: float
    high: float

    def reach(self) -> tuple[float, float]:
        """Beyond what a value is far outside the history: the range, and as much again on either side."""
        return 2 * self.low - self.high, 2 * self.high - self.low

    def warning(self, where: str = "") -> str:
        return f"'{self.name}' is far outside the history's range {self.low:g} to {self.high:g}{where}"


@dataclass(frozen=True)
class Ready:
    """A loaded posterior with its problem and the names that requests and answers use.

    Encoded contexts below ``lowest`` or above ``highest``, both (width,), are far outside the history; ``ranges`` has
    what each column is called and held there, None where every value is as good.
    """

    posterior: Posterior
    problem: DecisionProblem
    encoding: ContextEncoding
    decisions: list[str]
    lowest: Tensor
    highest: Tensor
    ranges: list[Range | None]


class _Kept(LRUCache[Hashable, tuple[Any, int]]):
    """What is shared with other processes goes when it is dropped here."""

    def popitem(self) -> tuple[Hashable, tuple[Any, int]]:
        key, value = super().popitem()
        shared.forget(_name(key))
        return key, value


class Cache:
    """Values by key within a budget of bytes. Two callers that miss at once both make the value; either serves.

    A key is a posterior's id, or begins with it. Rows of posteriors are kept beside: they never change, so a second
    look only asks whether they are still there.
    """

    def __init__(self, max_bytes: int) -> None:
        # A value larger than the whole budget counts as all of it, so it is kept alone.
        self._entries = _Kept(max_bytes, getsizeof=lambda entry: min(entry[1], max_bytes))
        self._rows: LRUCache[str, tuple[PosteriorRow, float]] = LRUCache(_MOST_ROWS)
        self._revisions: LRUCache[str, tuple[int, float]] = LRUCache(_MOST_ROWS)
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, make: Callable[[], tuple[Value, int]], serves: Callable[[Value], bool] | None = None
    ) -> Value:
        """The value of ``key`` if it ``serves``, or what ``make`` returns, kept with its size in bytes."""
        with self._lock:
            found = self._entries.get(key)
        if found is not None and serves is not None and not serves(found[0]):
            found = None
        metrics.CACHE.labels("miss" if found is None else "hit").inc()
        if found is None:
            found = make()
            with self._lock:
                self._entries[key] = found
        value: Value = found[0]
        return value

    def seen(self, posterior_id: str) -> tuple[PosteriorRow, Ready] | None:
        """A posterior's row and what is loaded of it, if both are in memory; the database is not asked."""
        with self._lock:
            row, loaded = self._rows.get(posterior_id), self._entries.get(posterior_id)
        return None if row is None or loaded is None else (row[0], loaded[0])

    def row(self, workspace: str, posterior_id: str) -> PosteriorRow:
        """The posterior's row, if the workspace has it; the database is asked at most once a second."""
        with self._lock:
            row, until = self._rows.get(posterior_id, (None, 0.0))
        if row is not None and row.workspace == workspace:
            if monotonic() < until:
                return row
            if not posteriors.exists(posterior_id):
                self.forget(posterior_id)
                row = None
        if row is None or row.workspace != workspace:
            row = posteriors.get(workspace, posterior_id)
        with self._lock:
            self._rows[row.id] = row, monotonic() + FRESH_SECONDS
        return row

    def revision(self, dataset_id: str) -> int:
        """The newest revision of a data set; the database is asked at most once a second."""
        with self._lock:
            revision, until = self._revisions.get(dataset_id, (0, 0.0))
        if monotonic() >= until:
            revision = newest_revision(dataset_id)
            with self._lock:
                self._revisions[dataset_id] = revision, monotonic() + FRESH_SECONDS
        return revision

    def forget(self, posterior_id: str) -> None:
        """Drop everything of a posterior that is no more."""
        with self._lock:
            self._rows.pop(posterior_id, None)
            for key in [key for key in self._entries if key == posterior_id or posterior_id in _parts(key)]:
                del self._entries[key]
                shared.forget(_name(key))
        shared.forget(posterior_id)


def _parts(key: Hashable) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else ()


def _name(key: Hashable) -> str:
    """What other processes call the arrays of a key."""
    return "-".join(str(part) for part in _parts(key) or (key,))


def of_settings() -> Cache:
    return Cache(get_settings().cache_mb * 1_000_000)


def load_ready(row: PosteriorRow) -> Ready:
    """The posterior of ``row`` from the database."""
    with transaction() as session:
        posterior = posteriors.load(session, row)
    encoding = ContextEncoding.of(row.columns, row.recipe)
    ranges = _ranges(row, encoding)
    reached = [(-inf, inf) if known is None else known.reach() for known in ranges]
    lowest, highest = torch.tensor(reached, dtype=torch.float64).view(-1, 2).unbind(dim=1)
    return Ready(posterior, build_problem(row.problem), encoding, decision_names(row.problem), lowest, highest, ranges)


def _ranges(row: PosteriorRow, encoding: ContextEncoding) -> list[Range | None]:
    """The ranges (width,) of encoded contexts; categories and what the calendar says have none."""
    profile = {column["name"]: column for column in row.columns}
    ranges: list[Range | None] = []
    for column in encoding.columns:
        known = profile[column.name]
        first = None if column.categories else Range(column.name, known["minimum"], known["maximum"])
        ranges += [first] + [None] * (column.width - 1)
    if encoding.lookback is not None and row.recipe is not None:
        recipe, before = encoding.lookback.recipe, len(ranges)
        of_calendar = recipe.width - len(recipe.outcomes) * recipe.columns_an_outcome
        lowest, highest = row.recipe["lowest"][before:], row.recipe["highest"][before:]
        held = [Range(*known) for known in zip(recipe.names, lowest, highest, strict=True)]
        ranges += [None] * of_calendar
        ranges += held[of_calendar:]
    return ranges


def load_past(row: PosteriorRow, encoding: ContextEncoding, revision: int) -> Past:
    """What a revision of the posterior's data set has to look back on."""
    if encoding.lookback is None or row.dataset_id is None:
        raise ConflictError(NO_ROWS)
    with transaction() as session:
        table = read_table(session, row.dataset_id, revision)
    try:
        return encoding.lookback.past(table, revision)
    except InvalidInput as error:
        raise ConflictError(f"the rows of data set {row.dataset_id} cannot be looked back on: {error}") from None


def past(cache: Cache, row: PosteriorRow, loaded: Ready, at: int | None = None) -> Past | None:
    """What there is to look back on in a revision of the posterior's data set; None where it does not look back.

    The newest revision is kept in memory; one that is named, by ``at``, is read.
    """
    lookback = loaded.encoding.lookback
    if lookback is None:
        return None
    if row.dataset_id is None:
        raise ConflictError(NO_ROWS)
    if at is not None:
        return load_past(row, loaded.encoding, at)
    revision = cache.revision(row.dataset_id)

    def make() -> tuple[Past, int]:
        made = load_past(row, loaded.encoding, revision)
        return made, size_of(made)

    # Posteriors of one data set look back on the same rows.
    key = ("past", row.dataset_id, lookback.recipe.clock, lookback.recipe.outcomes)
    return cache.get(key, make, lambda kept: kept.revision >= revision)


def ready(cache: Cache, row: PosteriorRow) -> Ready:
    """The posterior of ``row``, from memory or from the database."""

    def make() -> tuple[Ready, int]:
        made = load_ready(row)
        return made, size_of(made)

    return cache.get(row.id, make)


def draws(cache: Cache, row: PosteriorRow, posterior: Posterior, count: int, seed: int | None) -> Tensor:
    """K parameter vectors. Fresh draws cost more than a prescription, so recent ones are kept, and shared."""
    if seed is None and count <= len(posterior.particles):
        return posterior.draws(count)
    key = (row.id, count, seed)

    def make() -> tuple[Tensor, int]:
        arrays = shared.mapped(_name(key), lambda: {"draws": posterior.draws(count, seed).numpy()})
        drawn = torch.from_numpy(arrays["draws"])
        return drawn, drawn.nbytes

    return cache.get(key, make)
