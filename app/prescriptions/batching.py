"""Requests that come while others are decided are decided together: many contexts cost hardly more than one.

Nobody waits for company. A request that finds the machine free is decided at once; one that has to wait for its turn
lets others join, as long as it waits. The digits of an answer do not depend on its company: only requests join whose
contexts are decided each on its own (:func:`bco_core.prescribe.decides_alone`): newsvendors and mean-variance
portfolios, which take as little as a fifteenth of the time in a group of 32. Two-stage problems and portfolios with a
return to reach are decided context by context by solvers, so a group would save nothing but the prediction (measured:
a group of 32 takes 0.4 to 3 times as long for each of its hedged decisions as one alone), and what a pool of bases has
learned from one context would show in the last digits of the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from app import metrics
from app.prescriptions.admission import turn

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


@dataclass
class _Group(Generic[Asked, Answered]):
    """Requests that wait for the same turn, and how many contexts they have."""

    asked: list[Asked] = field(default_factory=list)
    answers: list[asyncio.Future[Answered]] = field(default_factory=list)
    contexts: int = 0


class Batcher(Generic[Asked, Answered]):
    """Groups of up to ``most`` contexts, one group of a kind waiting at a time, decided in threads turn by turn."""

    def __init__(self, most: int, threads: anyio.CapacityLimiter) -> None:
        self._most, self._threads = most, threads
        self._turns = asyncio.Semaphore(1)
        self._waiting: dict[Hashable, _Group[Asked, Answered]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        kind: Hashable | None,
        asked: Asked,
        contexts: int,
        decide: Callable[[Sequence[Asked]], Sequence[Answered | Exception]],
    ) -> Answered:
        """What ``decide`` answers to a request of this kind; one of no kind, None, is decided alone."""
        group = None if kind is None else self._waiting.get(kind)
        if group is None or group.contexts + contexts > self._most:
            group = _Group()
            if kind is not None:
                self._waiting[kind] = group
            task = asyncio.create_task(self._decide(kind, group, decide))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        group.asked.append(asked)
        group.answers.append(answer)
        group.contexts += contexts
        return await answer

    async def _decide(
        self,
        kind: Hashable | None,
        group: _Group[Asked, Answered],
        decide: Callable[[Sequence[Asked]], Sequence[Answered | Exception]],
    ) -> None:
        found: Sequence[Answered | Exception]
        async with turn(self._turns):
            if self._waiting.get(kind) is group:
                del self._waiting[kind]
            metrics.TOGETHER.observe(len(group.asked))
            try:
                found = await anyio.to_thread.run_sync(decide, group.asked, limiter=self._threads)
            except Exception as error:
                found = [error] * len(group.asked)
        for answer, one in zip(group.answers, found, strict=True):
            if answer.done():
                # Its client has left.
                continue
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)
