"""Posteriors ready to prescribe, kept in memory up to a budget; what was used least recently goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

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

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], tuple[Value, int]], budget: int) -> Value:
        """The value of ``key``, or what ``make`` returns, kept with its size in bytes."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                metrics.CACHE.labels("hit").inc()
                found: Value = self._entries[key][0]
                return found
        metrics.CACHE.labels("miss").inc()
        value, size = make()
        with self._lock:
            self._entries[key] = value, size
            while len(self._entries) > 1 and sum(entry[1] for entry in self._entries.values()) > budget:
                self._entries.popitem(last=False)
        return value


_cache = Cache()


def ready(row: PosteriorRow) -> Ready:
    """The posterior of ``row``, from memory or from the database."""

    def make() -> tuple[Ready, int]:
        with transaction() as session:
            posterior = load(session, row)
        _, arrays = posterior.to_arrays()
        problem = build_problem(row.problem)
        made = Ready(posterior, problem, ContextEncoding.of(row.columns), decision_names(row.problem))
        return made, sum(array.nbytes for array in arrays.values())

    return _cache.get(row.id, make, get_settings().cache_mb * 1_000_000)


def draws(row: PosteriorRow, posterior: Posterior, count: int, seed: int | None) -> Tensor:
    """K parameter vectors. Fresh draws cost more than a prescription, so recent ones are kept."""

    def make() -> tuple[Tensor, int]:
        drawn = posterior.draws(count, seed)
        return drawn, drawn.nbytes

    if seed is None and count <= len(posterior.particles):
        return posterior.draws(count)
    return _cache.get((row.id, count, seed), make, get_settings().cache_mb * 1_000_000)
