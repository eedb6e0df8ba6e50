"""Decide waiting requests together: many contexts cost hardly more than one.

No request waits for others to arrive. If the machine is idle it is decided at once; otherwise others join while it
waits for its turn. Answers do not depend on the batch: only requests whose contexts are decided independently are
batched (:func:`bco_core.prescribe.decides_alone`). These are newsvendors and mean-variance portfolios, which take as
little as a fifteenth of the time in a batch of 32. Solvers decide two-stage problems and portfolios with a target
return context by context, so a batch would save only the prediction (measured: in a batch of 32 each hedged decision
takes 0.4 to 3 times as long as alone), and the last digits of one context would depend on the bases of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from app import metrics

# Work that takes longer no longer keeps the next group waiting.
TURN_SECONDS = 0.05

Call = TypeVar("Call")
Answer = TypeVar("Answer")


@asynccontextmanager
async def turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for a turn, first come first served; pass it on after the work, or after ``TURN_SECONDS``.

    Short computations in parallel would compete for the interpreter, and all of them would end later.
    """
    await turns.acquire()
    passed = False

    def pass_on() -> None:
        nonlocal passed
        if not passed:
            passed = True
            turns.release()

    overdue = asyncio.get_running_loop().call_later(TURN_SECONDS, pass_on)
    try:
        yield
    finally:
        overdue.cancel()
        pass_on()


@dataclass
class _Group(Generic[Call, Answer]):
    """Calls that wait for the same turn, their answers to come, and the number of their contexts."""

    calls: list[Call] = field(default_factory=list)
    answers: list[asyncio.Future[Answer]] = field(default_factory=list)
    contexts: int = 0


class Batcher(Generic[Call, Answer]):
    """Groups of up to ``most`` contexts, at most one waiting for each key, decided in threads turn by turn."""

    def __init__(self, most: int, threads: anyio.CapacityLimiter) -> None:
        self._most, self._threads = most, threads
        self._turns = asyncio.Semaphore(1)
        self._waiting: dict[Hashable, _Group[Call, Answer]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        key: Hashable | None,
        call: Call,
        contexts: int,
        decide: Callable[[Sequence[Call]], Sequence[Answer | Exception]],
    ) -> Answer:
        """Return what ``decide`` answers to a call, decided with others of the same key; alone if the key is None."""
        group = None if key is None else self._waiting.get(key)
        if group is None or group.contexts + contexts > self._most:
            group = _Group()
            if key is not None:
                self._waiting[key] = group
            task = asyncio.create_task(self._decide(key, group, decide))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        group.calls.append(call)
        group.answers.append(answer)
        group.contexts += contexts
        return await answer

    async def _decide(
        self,
        key: Hashable | None,
        group: _Group[Call, Answer],
        decide: Callable[[Sequence[Call]], Sequence[Answer | Exception]],
    ) -> None:
        results: Sequence[Answer | Exception]
        async with turn(self._turns):
            if self._waiting.get(key) is group:
                del self._waiting[key]
            metrics.CALLS_PER_BATCH.observe(len(group.calls))
            try:
                results = await anyio.to_thread.run_sync(decide, group.calls, limiter=self._threads)
            except Exception as error:
                results = [error] * len(group.calls)
        for answer, result in zip(group.answers, results, strict=True):
            if answer.done():
                # The client has left.
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
