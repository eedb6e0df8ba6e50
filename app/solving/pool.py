"""A bounded number of solver processes, kept warm by problem, for calls that may take long.

A call waits for a place without a thread of its own. Its process is killed when its time is up, when its client goes
away and when the service stops, so that the place is free again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from time import monotonic

import anyio
from fastapi import Request

from app.http.errors import HttpError, UnavailableError
from app.settings import get_settings
from app.solving import wire
from app.solving.failures import OutOfMemory, raise_error
from app.solving.processes import Process, Template
from bco_core.errors import OutOfTime

log = logging.getLogger(__name__)

# A caller is told that the time is up so long after the deadline. Its process may go on a little longer: if it was
# about to load a posterior, the next caller finds that in memory. Then it is killed.
GRACE_SECONDS = 0.4
LINGER_SECONDS = 2.0
# How long calls under way may go on when the service is told to stop.
STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.2
# So many problems a process has in memory, more or less: it forgets the least recently used when memory is short.
_KEPT = 16


# Facts, and an answer.
Answer = tuple[wire.Header, bytes]


class ClientLeft(HttpError):
    status = 499
    type = "client-left"
    title = "The client went away"


class _Call:
    """One request to a solver process, which can be given up from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self.given_up = False

    @property
    def has_begun(self) -> bool:
        return self._process is not None

    def begin(self, process: Process) -> bool:
        """Whether the call is still wanted."""
        with self._lock:
            self._process = process
            return not self.given_up

    def end(self) -> None:
        with self._lock:
            self._process = None

    def give_up(self) -> None:
        with self._lock:
            self.given_up = True
            if self._process is not None:
                self._process.kill()


class Solvers:
    """The solver processes of one API process; the template starts with the first call, or by ``start``."""

    def __init__(self, processes: int, memory_mb: int) -> None:
        self.places = anyio.CapacityLimiter(processes)
        # One process is left to others, whatever a workspace asks for.
        self._most = max(1, processes - 1)
        self._shares: weakref.WeakValueDictionary[str, anyio.CapacityLimiter] = weakref.WeakValueDictionary()
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._templates: list[Template] = []
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._lingering: set[asyncio.Future[Answer]] = set()
        self._end = weakref.finalize(self, _close, self._all, self._templates)

    def start(self) -> Template:
        """The template; a new one where there is none, or where it has died."""
        with self._lock:
            if self._templates and not self._templates[0].alive:
                log.warning("the template of the solver processes died; starting another")
                _close(self._all, self._templates)
                self._idle.clear()
            if not self._templates:
                self._templates.append(Template(self._memory_mb))
            return self._templates[0]

    def close(self) -> None:
        """End all processes; the next call would start others."""
        with self._lock:
            _close(self._all, self._templates)
            self._idle.clear()

    def pids(self) -> list[int]:
        """The solver processes there are."""
        with self._lock:
            return [process.pid for process in self._all]

    async def solve(self, http: Request, workspace: str, task: str, key: str, body: bytes, until: float) -> Answer:
        """What a task answers to ``body``, from a process that has ``key`` in memory if there is one.

        No workspace has all processes to itself, where there are several.
        ``until`` is a moment of the monotonic clock. OutOfTime soon after it, unless the task answers in time.
        """
        call, last = _Call(), until + GRACE_SECONDS
        work = asyncio.ensure_future(self._work(call, workspace, task, key, body, last + LINGER_SECONDS))
        alone = asyncio.ensure_future(_nobody_waits(http))
        lingers = False
        try:
            await asyncio.wait({work, alone}, timeout=last - monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if alone.done():
                raise alone.result()
            if not self.start().ready:
                raise UnavailableError("the solver processes are starting; try again in some seconds")
            lingers = call.has_begun
            raise OutOfTime("the allowed time passed before there was an answer")
        finally:
            alone.cancel()
            if lingers:
                self._lingering.add(work)
                work.add_done_callback(self._forget)
            else:
                call.give_up()
                work.cancel()
            await asyncio.gather(alone, *(() if lingers else (work,)), return_exceptions=True)

    def _forget(self, work: asyncio.Future[Answer]) -> None:
        self._lingering.discard(work)
        if not work.cancelled():
            # Nobody is interested any more.
            work.exception()

    async def _work(self, call: _Call, workspace: str, task: str, key: str, body: bytes, until: float) -> Answer:
        """Wait for the template, for the workspace's share and for a place, then for the answer in a thread."""
        while not self.start().ready:
            await asyncio.sleep(_LOOK_SECONDS / 4)
        share = self._shares.setdefault(workspace, anyio.CapacityLimiter(self._most))
        async with share:
            return await anyio.to_thread.run_sync(
                self._solve, call, task, key, body, until, limiter=self.places, abandon_on_cancel=True
            )

    def _solve(self, call: _Call, task: str, key: str, body: bytes, until: float) -> Answer:
        process = self._take(key)
        answered = False
        try:
            if not call.begin(process):
                raise OutOfTime("the call was given up")
            header, answer = process.ask({"task": task}, body, until)
            answered = "memory" not in header
            raise_error(header)
            return header, answer
        except TimeoutError:
            raise OutOfTime("the allowed time passed before there was an answer") from None
        except (wire.Ended, OutOfMemory):
            if call.given_up:
                raise OutOfTime("the call was given up") from None
            log.warning("solver process %d ended while it was solving, most likely for want of memory", process.pid)
            detail = f"this takes more memory than a solver process may have: {self._memory_mb} MB"
            raise UnavailableError(f"{detail} (BCO_SOLVER_MEMORY_MB); ask for fewer contexts or scenarios") from None
        finally:
            call.end()
            self._give_back(process, key, answered and not call.given_up)

    def _take(self, key: str) -> Process:
        """An idle process, best one that has the key in memory; a new one while there may be more."""
        for _ in range(2):
            template = self.start()
            with self._lock:
                for dead in [process for process in self._idle if not process.alive]:
                    self._idle.remove(dead)
                    self._all.discard(dead)
                    dead.close()
                warm = [process for process in self._idle if key in process.kept]
                if warm or len(self._all) >= self.places.total_tokens:
                    process = (warm or self._idle)[0] if self._idle else None
                    if process is not None:
                        self._idle.remove(process)
                        return process
            try:
                process = template.fork()
            except wire.Ended:
                continue
            with self._lock:
                self._all.add(process)
            return process
        raise UnavailableError("no solver process could be started; the service's log has more")

    def _give_back(self, process: Process, key: str, usable: bool) -> None:
        with self._lock:
            if usable:
                process.kept.pop(key, None)
                process.kept[key] = None
                while len(process.kept) > _KEPT:
                    del process.kept[next(iter(process.kept))]
                self._idle.append(process)
            else:
                self._all.discard(process)
        if not usable:
            process.close()


def _close(processes: set[Process], templates: list[Template]) -> None:
    for process in list(processes):
        process.close()
    for template in templates:
        template.close()
    processes.clear()
    templates.clear()


async def _nobody_waits(http: Request) -> HttpError:
    """Return once the client has gone away, or once the service has been stopping for a while."""
    stops_at: float | None = None
    while stops_at is None or monotonic() < stops_at:
        with contextlib.suppress(TimeoutError), anyio.fail_after(_LOOK_SECONDS):
            if (await http.receive())["type"] == "http.disconnect":
                return ClientLeft("the client went away before there was an answer")
        if stops_at is None and http.app.state.stopping():
            stops_at = monotonic() + STOP_SECONDS
    return UnavailableError("the service is stopping; try again in a moment")


def of_settings() -> Solvers:
    settings = get_settings()
    return Solvers(settings.solver_processes, settings.solver_memory_mb)
