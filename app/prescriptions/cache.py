"""Posteriors ready to prescribe, kept in memory up to a budget; the least recently used ones go first."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import torch
from cachetools import LRUCache
from torch import Tensor

from app import metrics
from app.datasets.encoding import ContextEncoding
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.posteriors import service as posteriors
from app.posteriors import shared
from app.prescriptions.memory import size_of
from app.problems.schemas import decision_names
from app.settings import get_settings
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem

Value = TypeVar("Value")

# A posterior that is deleted by another process is gone here after at most so long.
FRESH_SECONDS = 1.0
_MOST_ROWS = 1_000


@dataclass(frozen=True)
class Ready:
    """A loaded posterior with its problem and the names that requests and answers use.

    Encoded contexts below ``lowest`` or above ``highest``, both (width,), are far outside the history.
    """

    posterior: Posterior
    problem: DecisionProblem
    encoding: ContextEncoding
    decisions: list[str]
    lowest: Tensor
    highest: Tensor


class _Kept(LRUCache[Hashable, tuple[Any, int]]):
    """The files of a posterior go when it does."""

    def popitem(self) -> tuple[Hashable, tuple[Any, int]]:
        key, value = super().popitem()
        if isinstance(key, str):
            shared.forget(key)
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
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value of ``key``, or what ``make`` returns, kept with its size in bytes."""
        with self._lock:
            found = self._entries.get(key)
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
            self._rows[posterior_id] = row, monotonic() + FRESH_SECONDS
        return row

    def forget(self, posterior_id: str) -> None:
        """Drop everything of a posterior that is no more."""
        with self._lock:
            self._rows.pop(posterior_id, None)
            for key in [key for key in self._entries if key == posterior_id or posterior_id in _parts(key)]:
                del self._entries[key]
        shared.forget(posterior_id)


def _parts(key: Hashable) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else ()


def of_settings() -> Cache:
    return Cache(get_settings().cache_mb * 1_000_000)


def load_ready(row: PosteriorRow) -> Ready:
    """The posterior of ``row`` from the database."""
    with transaction() as session:
        posterior = posteriors.load(session, row)
    encoding = ContextEncoding.of(row.columns)
    return Ready(posterior, build_problem(row.problem), encoding, decision_names(row.problem), *_reach(row, encoding))


def reach(column: dict[str, Any]) -> tuple[float, float]:
    """Beyond what a numeric context is far outside the history: its range there, and as much again on either side."""
    low, high = column["minimum"], column["maximum"]
    return 2 * low - high, 2 * high - low


def _reach(row: PosteriorRow, encoding: ContextEncoding) -> tuple[Tensor, Tensor]:
    """The same for every column of encoded contexts, (width,) each; categories reach everywhere."""
    profile = {column["name"]: column for column in row.columns}
    reached: list[tuple[float, float]] = []
    for name, categories in encoding.columns:
        reached += [reach(profile[name])] if categories is None else [(-math.inf, math.inf)] * len(categories)
    lowest, highest = torch.tensor(reached, dtype=torch.float64).view(-1, 2).unbind(dim=1)
    return lowest, highest


def ready(cache: Cache, row: PosteriorRow) -> Ready:
    """The posterior of ``row``, from memory or from the database."""

    def make() -> tuple[Ready, int]:
        made = load_ready(row)
        return made, size_of(made)

    return cache.get(row.id, make)


def draws(cache: Cache, row: PosteriorRow, posterior: Posterior, count: int, seed: int | None) -> Tensor:
    """K parameter vectors. Fresh draws cost more than a prescription, so recent ones are kept."""

    def make() -> tuple[Tensor, int]:
        drawn = posterior.draws(count, seed)
        return drawn, drawn.nbytes

    if seed is None and count <= len(posterior.particles):
        return posterior.draws(count)
    return cache.get((row.id, count, seed), make)
