"""A pool of solver processes for calls that may take long; each keeps the problems it has solved in memory.

A call waits for a process without a thread of its own. Its process is killed when its time is up, when its client
leaves and when the service stops, so that the place is free again at once. Errors cross the processes as plain values:
the API raises what would have been raised in itself.
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

from app.child_processes import ConnectionClosed, ForkedProcess, Header, Template
from app.http.errors import FieldProblem, HttpError, UnavailableError
from app.settings import get_settings
from bco_core import errors as core
from bco_core.errors import OutOfTime

log = logging.getLogger(__name__)

# A caller gets OutOfTime this long after the deadline. Its process may go on a little longer: if it was about to load
# a posterior, the next caller finds that in memory. Then it is killed.
GRACE_SECONDS = 0.4
LINGER_SECONDS = 2.0
# Time that calls under way still get when the service stops.
STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.2
# Problems that a process has in memory, roughly: it forgets the least recently used when memory is short.
_LOADED = 16

# A header and a body.
Answer = tuple[Header, bytes]


class OutOfMemory(Exception):
    """A solver process needed more memory than it may have."""


class Unforeseen(Exception):
    """A solver process met an unexpected error; its log has the traceback."""


class ClientLeft(HttpError):
    status = 499
    type = "client-left"
    title = "The client went away"


class _Call:
    """One request to a solver process; another thread may give it up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ForkedProcess | None = None
        self.given_up = False

    @property
    def has_begun(self) -> bool:
        return self._process is not None

    def begin(self, process: ForkedProcess) -> bool:
        """Note the process that serves the call; return whether the call is still wanted."""
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
        # One process is left to others, however many calls a workspace makes.
        self._most = max(1, processes - 1)
        self._shares: weakref.WeakValueDictionary[str, anyio.CapacityLimiter] = weakref.WeakValueDictionary()
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._templates: list[Template] = []
        self._idle: list[ForkedProcess] = []
        self._all: set[ForkedProcess] = set()
        # keys of the problems in each process's memory, the last one used last
        self._loaded: weakref.WeakKeyDictionary[ForkedProcess, dict[str, None]] = weakref.WeakKeyDictionary()
        self._lingering: set[asyncio.Future[Answer]] = set()
        self._end = weakref.finalize(self, _close, self._all, self._templates)

    def start(self) -> Template:
        """Return the template; start a new one if there is none, or if it has died."""
        with self._lock:
            if self._templates and not self._templates[0].alive:
                log.warning("the template of the solver processes died; starting another")
                _close(self._all, self._templates)
                self._idle.clear()
            if not self._templates:
                self._templates.append(_start_template(self._memory_mb))
            return self._templates[0]

    def close(self) -> None:
        """End all processes; the next call starts others."""
        with self._lock:
            _close(self._all, self._templates)
            self._idle.clear()

    def pids(self) -> list[int]:
        """Return the ids of the solver processes."""
        with self._lock:
            return [process.pid for process in self._all]

    async def solve(self, http: Request, workspace: str, task: str, key: str, body: bytes, deadline: float) -> Answer:
        """Return a task's answer to ``body``, from a process that has ``key`` in memory if there is one.

        Where there are several processes, no workspace may use all of them. ``deadline`` is a moment of the monotonic
        clock; OutOfTime is raised soon after it.
        """
        call, latest = _Call(), deadline + GRACE_SECONDS
        work = asyncio.ensure_future(self._work(call, workspace, task, key, body, latest + LINGER_SECONDS))
        alone = asyncio.ensure_future(_wait_for_leaving(http))
        lingers = False
        try:
            await asyncio.wait({work, alone}, timeout=latest - monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if alone.done():
                raise alone.result()
            if not self.start().ready:
                raise UnavailableError("the solver processes are starting; try again in a few seconds")
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
            # Read, so that asyncio does not report it: nobody waits for it any more.
            work.exception()

    async def _work(self, call: _Call, workspace: str, task: str, key: str, body: bytes, deadline: float) -> Answer:
        """Wait for the template, for the workspace's share and for a process, then for the answer in a thread."""
        while not self.start().ready:
            await asyncio.sleep(_LOOK_SECONDS / 4)
        share = self._shares.setdefault(workspace, anyio.CapacityLimiter(self._most))
        async with share:
            return await anyio.to_thread.run_sync(
                self._solve, call, task, key, body, deadline, limiter=self.places, abandon_on_cancel=True
            )

    def _solve(self, call: _Call, task: str, key: str, body: bytes, deadline: float) -> Answer:
        process = self._take(key)
        answered = False
        try:
            if not call.begin(process):
                raise OutOfTime("the call was given up")
            header, answer = process.ask({"task": task}, body, deadline)
            answered = "memory" not in header
            raise_error(header)
            return header, answer
        except TimeoutError:
            raise OutOfTime("the allowed time passed before there was an answer") from None
        except (ConnectionClosed, OutOfMemory):
            if call.given_up:
                raise OutOfTime("the call was given up") from None
            log.warning("solver process %d ended while it was solving, probably out of memory", process.pid)
            detail = f"this takes more memory than a solver process may have: {self._memory_mb} MB"
            raise UnavailableError(f"{detail} (BCO_SOLVER_MEMORY_MB); ask for fewer contexts or scenarios") from None
        finally:
            call.end()
            self._give_back(process, key, answered and not call.given_up)

    def _take(self, key: str) -> ForkedProcess:
        """Return an idle process, preferably one that has the key in memory; fork a new one while there may be more."""
        for _ in range(2):
            template = self.start()
            with self._lock:
                for dead in [process for process in self._idle if not process.alive]:
                    self._idle.remove(dead)
                    self._all.discard(dead)
                    dead.close()
                warm = [process for process in self._idle if key in self._loaded[process]]
                if warm or len(self._all) >= self.places.total_tokens:
                    process = (warm or self._idle)[0] if self._idle else None
                    if process is not None:
                        self._idle.remove(process)
                        return process
            try:
                process = template.fork()
            except ConnectionClosed:
                continue
            with self._lock:
                self._all.add(process)
                self._loaded[process] = {}
            return process
        raise UnavailableError("no solver process could be started; see the service's log")

    def _give_back(self, process: ForkedProcess, key: str, usable: bool) -> None:
        with self._lock:
            if usable:
                loaded = self._loaded[process]
                loaded.pop(key, None)
                loaded[key] = None
                while len(loaded) > _LOADED:
                    del loaded[next(iter(loaded))]
                self._idle.append(process)
            else:
                self._all.discard(process)
        if not usable:
            process.close()


def _start_template(memory_mb: int) -> Template:
    return Template(
        "app.commands.solver",
        str(memory_mb),
        # Arenas of threads reserve address space that is never used.
        MALLOC_ARENA_MAX="2",
        # A process with threads is not forked safely.
        OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
    )


def _close(processes: set[ForkedProcess], templates: list[Template]) -> None:
    for process in list(processes):
        process.close()
    for template in templates:
        template.close()
    processes.clear()
    templates.clear()


def describe_error(error: Exception) -> Header:
    """Return an error as the header of an answer, so that the API can raise it."""
    if isinstance(error, HttpError):
        fields = [field.model_dump() for field in error.fields]
        facts = {"status": error.status, "type": error.type, "title": error.title, "detail": error.detail}
        return {"api": facts | {"fields": fields, "headers": dict(error.headers or {})}}
    if isinstance(error, core.BcoError):
        return {"core": {"name": type(error).__name__, "text": str(error), "where": getattr(error, "where", ())}}
    # torch raises a RuntimeError that says so.
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return {"memory": True}
    log.error("unexpected error in a solver process", exc_info=error)
    return {"unforeseen": type(error).__name__}


def raise_error(header: Header) -> None:
    """Raise the error that a header describes, if it describes one."""
    if "api" in header:
        facts = header["api"]
        error = HttpError(facts["detail"], headers=facts["headers"])
        error.status, error.type, error.title = facts["status"], facts["type"], facts["title"]
        error.fields = [FieldProblem(**field) for field in facts["fields"]]
        raise error
    if "core" in header:
        facts = header["core"]
        kind = getattr(core, facts["name"])
        raise kind(facts["text"], tuple(facts["where"])) if facts["where"] else kind(facts["text"])
    if "memory" in header:
        raise OutOfMemory
    if "unforeseen" in header:
        raise Unforeseen(header["unforeseen"])


async def _wait_for_leaving(http: Request) -> HttpError:
    """Return once the client has left, or once the service has been stopping for a while."""
    stops_at: float | None = None
    while stops_at is None or monotonic() < stops_at:
        with contextlib.suppress(TimeoutError), anyio.fail_after(_LOOK_SECONDS):
            if (await http.receive())["type"] == "http.disconnect":
                return ClientLeft("the client went away before there was an answer")
        if stops_at is None and http.app.state.stopping():
            stops_at = monotonic() + STOP_SECONDS
    return UnavailableError("the service is stopping; try again in a moment")


def from_settings() -> Solvers:
    settings = get_settings()
    return Solvers(settings.solver_processes, settings.solver_memory_mb)
