"""Progress bar of a job: drawn by rich if it is installed, else lines of text, or nothing.

It goes to standard error, so that a program's own output stays clean.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Protocol, TextIO

from bco_client.records import JobRecord

# Below this share of a job, its estimate is more reliable than the pace so far.
_TELLING = 0.05
# Where lines cannot be overwritten, one is written for each further share of this size.
_STEP = 0.1


def remaining_seconds(job: JobRecord, now: datetime | None = None) -> float | None:
    """Return the remaining seconds of a running job, as the service says, by its pace or, at first, by its estimate.

    None if unknown.
    """
    if job.started_at is None or job.has_ended:
        return None
    if job.remaining_seconds is not None:
        return job.remaining_seconds
    elapsed = max(0.0, ((now or datetime.now(UTC)) - job.started_at).total_seconds())
    if job.progress >= _TELLING:
        return elapsed * (1 - job.progress) / job.progress
    return None if job.estimate_seconds is None else max(0.0, job.estimate_seconds - elapsed)


def in_words(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"about {rest} s left"
    hours, minutes = divmod(minutes, 60)
    return f"about {hours} h {minutes:02d} min left" if hours else f"about {minutes} min {rest:02d} s left"


class ProgressBar(Protocol):
    def show(self, job: JobRecord) -> None: ...

    def close(self) -> None: ...


def make_bar(quiet: bool, out: TextIO | None = None) -> ProgressBar:
    if quiet:
        return _Nothing()
    return _Rich() if out is None and find_spec("rich") is not None else _Lines(out or sys.stderr)


class _Nothing:
    def show(self, job: JobRecord) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """On a terminal one line, overwritten each time; in a file a line for each tenth of the job."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._over = out.isatty()
        self._shown: tuple[str, str, int] | None = None

    def show(self, job: JobRecord) -> None:
        now = (job.id, job.state, int(job.progress / _STEP + 1e-9))
        if not self._over and now == self._shown:
            return
        self._shown = now
        words = ", ".join(filter(None, [job.message, in_words(remaining_seconds(job))]))
        line = f"{job.kind} {job.state} {job.progress:4.0%} {words}"
        self._out.write(f"\r\x1b[K{line}" if self._over else f"{line}\n")
        self._out.flush()

    def close(self) -> None:
        if self._over and self._shown is not None:
            self._out.write("\n")
        self._shown = None


class _Rich:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.fields[kind]} {task.fields[state]}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, int] = {}

    def show(self, job: JobRecord) -> None:
        words = ", ".join(filter(None, [in_words(remaining_seconds(job)), job.message]))
        if job.id not in self._tasks:
            self._bars.start()
            self._tasks[job.id] = self._bars.add_task("", total=1.0, kind=job.kind, state=job.state, words=words)
        task = self._tasks[job.id]
        self._bars.update(task, completed=job.progress, state=job.state, words=words)  # type: ignore[arg-type]

    def close(self) -> None:
        if self._tasks:
            self._bars.stop()
