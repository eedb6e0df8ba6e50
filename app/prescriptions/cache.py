"""Posteriors ready to prescribe, kept in memory up to a budget; the least recently used ones go first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from cachetools import LRUCache
from torch import Tensor

from app import metrics
from app.datasets.encoding import ContextEncoding
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.posteriors.service import load
from app.problems.schemas import decision_names
from app.settings import get_settings
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ready:
    """A loaded posterior with its problem and the names that requests and answers use."""

    posterior: Posterior
    problem: DecisionProblem
    encoding: ContextEncoding
    decisions: list[str]


class Cache:
    """Values by key within a budget of bytes. Two callers that miss at once both make the value; either serves."""

    def __init__(self, max_bytes: int) -> None:
        # A value larger than the whole budget counts as all of it, so it is kept alone.
        self._entries: LRUCache[Hashable, tuple[Any, int]] = LRUCache(
            max_bytes, getsizeof=lambda entry: min(entry[1], max_bytes)
        )
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


def of_settings() -> Cache:
    return Cache(get_settings().cache_mb * 1_000_000)


def load_ready(row: PosteriorRow) -> Ready:
    """The posterior of ``row`` from the database."""
    with transaction() as session:
        posterior = load(session, row)
    return Ready(posterior, build_problem(row.problem), ContextEncoding.of(row.columns), decision_names(row.problem))


def ready(cache: Cache, row: PosteriorRow) -> Ready:
    """The posterior of ``row``, from memory or from the database."""

    def make() -> tuple[Ready, int]:
        made = load_ready(row)
        _, arrays = made.posterior.to_arrays()
        return made, sum(array.nbytes for array in arrays.values())

    return cache.get(row.id, make)


def draws(cache: Cache, row: PosteriorRow, posterior: Posterior, count: int, seed: int | None) -> Tensor:
    """K parameter vectors. Fresh draws cost more than a prescription, so recent ones are kept."""

    def make() -> tuple[Tensor, int]:
        drawn = posterior.draws(count, seed)
        return drawn, drawn.nbytes

    if seed is None and count <= len(posterior.particles):
        return posterior.draws(count)
    return cache.get((row.id, count, seed), make)
