"""Loaded posteriors, kept in memory up to a budget in bytes; the least recently used ones go first."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from cachetools import LRUCache
from torch import Tensor

from app import metrics
from app.datasets.encoding import ContextEncoding
from app.datasets.lookback import HistoryGrid
from app.datasets.service import newest_revision, read_table
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError
from app.posteriors import service as posteriors
from app.posteriors import shared
from app.problems.schemas import decision_names
from app.settings import get_settings
from bco_core.errors import InvalidInput
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem

Value = TypeVar("Value")

# A posterior that another process deletes is gone here after at most this long.
FRESH_SECONDS = 1.0
_MOST_ROWS = 1_000
NO_ROWS = (
    "the posterior needs earlier rows of its data set, and it was imported without them; import it again with rows"
)


class Range(NamedTuple):
    """Name of a column of encoded contexts, and its range in the history."""

    name: str
    low: float
    high: float

    def reach(self) -> tuple[float, float]:
        """Return the bounds beyond which a value is far outside the history: the range, extended by its width."""
        return 2 * self.low - self.high, 2 * self.high - self.low

    def warning(self, where: str = "") -> str:
        return f"'{self.name}' is far outside the history's range {self.low:g} to {self.high:g}{where}"


@dataclass(frozen=True)
class LoadedPosterior:
    """A posterior in memory with its problem, its encoding and the names of its decisions.

    Encoded contexts below ``lowest`` or above ``highest``, both (width,), are far outside the history; ``ranges`` has
    the name and range of each column, None for a column without one.
    """

    posterior: Posterior
    problem: DecisionProblem
    encoding: ContextEncoding
    decisions: list[str]
    lowest: Tensor
    highest: Tensor
    ranges: list[Range | None]


class _Entries(LRUCache[Hashable, tuple[Any, int]]):
    """Values with their sizes. An entry that is dropped takes its files for other processes with it."""

    def popitem(self) -> tuple[Hashable, tuple[Any, int]]:
        key, value = super().popitem()
        shared.forget(_name(key))
        return key, value


class PosteriorCache:
    """Values by key within a budget of bytes. Two callers that miss at once both make the value, and one is kept.

    A key is a posterior's id, or a tuple that contains it. Rows of posteriors are kept as well: they never change, so
    the database is only asked whether they still exist.
    """

    def __init__(self, max_bytes: int) -> None:
        # A value larger than the budget counts as the whole budget, so it is kept alone.
        self._entries = _Entries(max_bytes, getsizeof=lambda entry: min(entry[1], max_bytes))
        self._rows: LRUCache[str, tuple[PosteriorRow, float]] = LRUCache(_MOST_ROWS)
        self._revisions: LRUCache[str, tuple[int, float]] = LRUCache(_MOST_ROWS)
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, make: Callable[[], tuple[Value, int]], serves: Callable[[Value], bool] | None = None
    ) -> Value:
        """Return the value of ``key`` if it ``serves``; otherwise keep what ``make`` returns, with its size."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None and serves is not None and not serves(entry[0]):
            entry = None
        metrics.CACHE.labels("miss" if entry is None else "hit").inc()
        if entry is None:
            entry = make()
            with self._lock:
                self._entries[key] = entry
        value: Value = entry[0]
        return value

    def in_memory(self, posterior_id: str) -> tuple[PosteriorRow, LoadedPosterior] | None:
        """Return a posterior with its row if both are in memory; the database is not asked."""
        with self._lock:
            row, loaded = self._rows.get(posterior_id), self._entries.get(posterior_id)
        return None if row is None or loaded is None else (row[0], loaded[0])

    def row(self, workspace: str, posterior_id: str) -> PosteriorRow:
        """Return the row of a posterior of the workspace; the database is asked at most once a second."""
        with self._lock:
            row, expires_at = self._rows.get(posterior_id, (None, 0.0))
        if row is not None and row.workspace == workspace:
            if monotonic() < expires_at:
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
        """Return the newest revision of a data set; the database is asked at most once a second."""
        with self._lock:
            revision, expires_at = self._revisions.get(dataset_id, (0, 0.0))
        if monotonic() >= expires_at:
            revision = newest_revision(dataset_id)
            with self._lock:
                self._revisions[dataset_id] = revision, monotonic() + FRESH_SECONDS
        return revision

    def forget(self, posterior_id: str) -> None:
        """Drop everything of a deleted posterior."""
        with self._lock:
            self._rows.pop(posterior_id, None)
            for key in [key for key in self._entries if key == posterior_id or posterior_id in _parts(key)]:
                del self._entries[key]
                shared.forget(_name(key))
        shared.forget(posterior_id)


def _parts(key: Hashable) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else ()


def _name(key: Hashable) -> str:
    """Return the name of a key's arrays in the files of other processes."""
    return "-".join(str(part) for part in _parts(key) or (key,))


def cache_from_settings() -> PosteriorCache:
    return PosteriorCache(get_settings().cache_mb * 1_000_000)


def load_posterior(row: PosteriorRow) -> LoadedPosterior:
    """Load the posterior of ``row`` from the database."""
    with transaction() as session:
        posterior = posteriors.load(session, row)
    encoding = ContextEncoding.of(row.columns, row.recipe)
    ranges = _ranges(row, encoding)
    bounds = [(-inf, inf) if known is None else known.reach() for known in ranges]
    lowest, highest = torch.tensor(bounds, dtype=torch.float64).view(-1, 2).unbind(dim=1)
    return LoadedPosterior(
        posterior, build_problem(row.problem), encoding, decision_names(row.problem), lowest, highest, ranges
    )


def _ranges(row: PosteriorRow, encoding: ContextEncoding) -> list[Range | None]:
    """Return the ranges (width,) of encoded contexts; categories and calendar features have none."""
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
        by_feature = [Range(*feature) for feature in zip(recipe.names, lowest, highest, strict=True)]
        ranges += [None] * of_calendar
        ranges += by_feature[of_calendar:]
    return ranges


def load_past(row: PosteriorRow, encoding: ContextEncoding, revision: int) -> HistoryGrid:
    """Read the earlier rows that features look back on from a revision of the posterior's data set."""
    if encoding.lookback is None or row.dataset_id is None:
        raise ConflictError(NO_ROWS)
    with transaction() as session:
        table = read_table(session, row.dataset_id, revision)
    try:
        return encoding.lookback.past(table, revision)
    except InvalidInput as error:
        raise ConflictError(
            f"no features can be computed from the rows of data set {row.dataset_id}: {error}"
        ) from None


def cached_past(
    cache: PosteriorCache, row: PosteriorRow, loaded: LoadedPosterior, at: int | None = None
) -> HistoryGrid | None:
    """Return the rows that features look back on, at revision ``at`` or the newest; None if no feature looks back.

    The newest revision is kept in memory; any other is read.
    """
    lookback = loaded.encoding.lookback
    if lookback is None:
        return None
    if row.dataset_id is None:
        raise ConflictError(NO_ROWS)
    if at is not None:
        return load_past(row, loaded.encoding, at)
    revision = cache.revision(row.dataset_id)

    def make() -> tuple[HistoryGrid, int]:
        past = load_past(row, loaded.encoding, revision)
        return past, size_of(past)

    # Posteriors of one data set share its rows.
    key = ("past", row.dataset_id, lookback.recipe.clock, lookback.recipe.outcomes)
    return cache.get(key, make, lambda past: past.revision >= revision)


def cached_posterior(cache: PosteriorCache, row: PosteriorRow) -> LoadedPosterior:
    """Return the posterior of ``row``, from memory or from the database."""

    def make() -> tuple[LoadedPosterior, int]:
        loaded = load_posterior(row)
        return loaded, size_of(loaded)

    return cache.get(row.id, make)


def cached_draws(
    cache: PosteriorCache, row: PosteriorRow, posterior: Posterior, count: int, seed: int | None
) -> Tensor:
    """Return ``count`` parameter vectors (K, d).

    Fresh draws cost more than a prescription, so recent ones are kept, and shared with other processes.
    """
    if seed is None and count <= len(posterior.particles):
        return posterior.draws(count)
    key = (row.id, count, seed)

    def make() -> tuple[Tensor, int]:
        arrays = shared.read_shared(_name(key), lambda: {"draws": posterior.draws(count, seed).numpy()})
        draws = torch.from_numpy(arrays["draws"])
        return draws, draws.nbytes

    return cache.get(key, make)


# Settings of glibc's malloc: arrays from this size on get their own mapping, which returns to the system when they are
# freed; and threads share few heaps, instead of each keeping memory that it once needed.
_LARGE_BYTES = 1 << 20
_HEAPS = 2
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
# Only objects of these packages are searched; others lead to modules and compilers.
_OURS = ("app", "bco_core")


def give_back_early() -> None:
    """Make this process return memory to the system when arrays are freed."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _HEAPS)


def size_of(value: Any) -> int:
    """Return the bytes of all arrays in a value, however deep, each memory once."""
    sizes: dict[int, int] = {}
    _collect(value, sizes, set())
    return sum(sizes.values())


def _collect(value: Any, sizes: dict[int, int], seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    elif isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        sizes[value.ctypes.data] = max(value.nbytes, sizes.get(value.ctypes.data, 0))
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, sizes, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            _collect(part, sizes, seen)
    elif type(value).__module__.partition(".")[0] in _OURS and hasattr(value, "__dict__"):
        for part in list(vars(value).values()):
            _collect(part, sizes, seen)
