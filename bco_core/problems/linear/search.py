"""Searches by HiGHS for what no oracle answers over certain rows: whole numbers, and CVaR over scenarios."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace

import numpy as np
from scipy import sparse

from bco_core import deadline
from bco_core.problems.base import Risk, Status
from bco_core.problems.linear.extensive import NO_TIME, Program, Solution, judged, risk_of, solved
from bco_core.problems.linear.first_stage import program_at
from bco_core.problems.linear.model import Model
from bco_core.solvers.linear_form import Array
from bco_core.status import HIGHS

_KEPT = 64
# Scenarios × outcomes from which on a program over them counts as long work.
_LONG = 4_000


class Known:
    """The last decisions in whole numbers that searches found; a later one begins with the cheapest for its costs."""

    def __init__(self) -> None:
        self._decisions: deque[Array] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def add(self, decision: Array) -> None:
        with self._lock:
            if not any(np.array_equal(decision, one) for one in self._decisions):
                self._decisions.append(decision)

    def best(self, cost: Array) -> Array | None:
        """The cheapest (d_z,) at a cost (d_z,), if any is known."""
        with self._lock:
            known = list(self._decisions)
        return min(known, key=lambda one: float(cost @ one), default=None)


class Search:
    """Decisions for so many contexts, one after the other, each with its share of the time that is left."""

    def __init__(self, model: Model, known: Known, time_limit_seconds: float | None, contexts: int) -> None:
        self._model, self._known, self._left = model, known, contexts
        self._until = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds

    def at(self, outcome: Array) -> Solution:
        """The best decision for one outcome (d_y,)."""
        cost = self._model.cost.at(outcome[None])[0]
        found = self._solved(program_at(self._model, cost), cost, True)
        return self._judged(found, cost, float(cost @ found.decision))

    def over(self, atoms: Array, weights: Array, risk: Risk) -> Solution:
        """The decision of least risk over outcomes (K, d_y) with weights (K,)."""
        mean = self._model.cost.at((weights @ atoms)[None])[0]
        long = bool(self._model.integer.any()) or atoms.size >= _LONG
        found = self._solved(_with_tail(self._model, atoms, weights, risk, mean), mean, long)
        slopes = self._model.cost.by_outcome.T @ found.decision
        costs = float(self._model.cost.constant @ found.decision) + atoms @ slopes
        return self._judged(found, mean, risk_of(costs, weights, risk))

    def _solved(self, program: Program, mean: Array, long: bool) -> Solution:
        """The first d_z variables of the best; HiGHS sees costs in units of the largest where all are small."""
        (deadline.before_long_work if long else deadline.check)()
        dim, until = len(mean), self._turn()
        if until is not None and time.monotonic() >= until:
            return Solution(np.full(dim, np.nan), np.nan, Status.TIME_LIMIT, NO_TIME, HIGHS)
        whole = np.zeros(len(program.cost), dtype=bool)
        whole[:dim] = self._model.integer
        unit = min(float(np.abs(program.cost).max(initial=0)), 1.0) or 1.0
        gap = replace(self._model.gap, absolute=self._model.gap.absolute / unit)
        start = self._known.best(mean) if whole.any() and len(program.cost) == dim else None
        scaled = replace(program, cost=program.cost / unit)
        found = solved(scaled, whole, self._fixed(mean) / unit, until, gap, start)
        if whole.any() and np.isfinite(found.decision).all():
            self._known.add(found.decision[:dim])
        return replace(found, decision=found.decision[:dim], objective=found.objective * unit, bound=found.bound * unit)

    def _judged(self, found: Solution, mean: Array, objective: float) -> Solution:
        """The solution with its risk computed anew, and its gap."""
        return judged(replace(found, objective=objective), self._fixed(mean), self._model.gap)

    def _fixed(self, mean: Array) -> float:
        """What every decision costs on average, whatever it is."""
        return float(mean @ np.clip(0.0, self._model.lower, self._model.upper))

    def _turn(self) -> float | None:
        """When the next context must be decided, for each to have its share."""
        contexts, self._left = max(self._left, 1), self._left - 1
        if self._until is None:
            return None
        return self._until - max(self._until - time.monotonic(), 0.0) * (1 - 1 / contexts)


def _with_tail(model: Model, atoms: Array, weights: Array, risk: Risk, mean: Array) -> Program:
    """(1 − w)·c̄'z + w·(η + Σ_k p_k v_k/(1 − α)) with v_k ≥ c(y_k)'z − η, v ≥ 0.

    Variables are z, t = ∂c'z and s = c(0)'z, η, v: scenarios then have as many numbers as there are outcomes.
    """
    count, outcomes = atoms.shape
    rows, cost = model.technology.constant.shape[0], model.cost
    one = sparse.csr_array(np.ones((count, 1)))
    blocks = [
        [model.technology.constant, sparse.csr_array((rows, outcomes)), None, None, None],
        [cost.by_outcome.T, -sparse.eye_array(outcomes), None, None, None],
        [sparse.csr_array(cost.constant[None]), None, -sparse.eye_array(1), None, None],
        [None, sparse.csr_array(-atoms), -one, one, sparse.eye_array(count)],
    ]
    tail = risk.cvar_weight
    return Program(
        np.concatenate([(1 - tail) * mean, np.zeros(outcomes + 1), [tail], tail * weights / (1 - risk.cvar_level)]),
        sparse.csr_array(sparse.block_array(blocks, format="csr")),
        np.concatenate([model.senses, np.zeros(outcomes + 1, dtype=np.int64), np.ones(count, dtype=np.int64)]),
        np.concatenate([model.limits.constant, np.zeros(outcomes + 1 + count)]),
        np.concatenate([model.lower, np.full(outcomes + 2, -np.inf), np.zeros(count)]),
        np.concatenate([model.upper, np.full(outcomes + 2 + count, np.inf)]),
    )
