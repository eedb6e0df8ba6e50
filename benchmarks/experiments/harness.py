"""Experiments that can be stopped and repeated: a result is a row of a CSV file and is not computed again."""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

# Key of a run, such as (noisy, n, seed, run): names are in the file's header, values in its rows.
Key = tuple[int | float, ...]
Run = TypeVar("Run", bound=Hashable)
Found = TypeVar("Found")


class RunResult(Protocol):
    """The part of a result that matters here: its run and its method."""

    @property
    def run(self) -> Any: ...

    @property
    def method(self) -> str: ...


class Finding(NamedTuple):
    """The value that a method reached in a run, and the processor seconds it took."""

    run: Key
    method: str
    value: float
    seconds: float


def missing(runs: Iterable[Run], methods: Sequence[str], done: Iterable[RunResult]) -> list[tuple[Run, list[str]]]:
    """Return the runs that are not in the file yet, each with the methods it lacks."""
    known = {(result.run, result.method) for result in done}
    todo = [(run, [method for method in methods if (run, method) not in known]) for run in runs]
    return [(run, lacking) for run, lacking in todo if lacking]


def perform_all(
    perform: Callable[[Run, Sequence[str]], list[Found]],
    todo: Sequence[tuple[Run, Sequence[str]]],
    keep: Callable[[list[Found]], None],
    jobs: int,
) -> Iterator[list[Found]]:
    """Perform the runs in ``jobs`` processes; keep the results of each run, then yield them.

    A failed run does not stop the others; the first failure is raised after they end.
    """
    if not todo:
        return
    spawn = multiprocessing.get_context("spawn")
    failures: list[BaseException] = []
    with ProcessPoolExecutor(min(jobs, len(todo)), spawn, torch.set_num_threads, (1,)) as executor:
        futures = {executor.submit(perform, run, methods): run for run, methods in todo}
        try:
            for future in as_completed(futures):
                failure = future.exception()
                if failure:
                    failure.add_note(f"in {futures[future]}")
                    failures.append(failure)
                    continue
                keep(future.result())
                yield future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
    if failures:
        raise failures[0]


def append_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Append rows to a CSV file; create it with its header if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(header)
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by the names in its header; none if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, names: Sequence[str], findings: Iterable[Finding]) -> None:
    rows = ([*run, method, f"{value:.6g}", f"{seconds:.2f}"] for run, method, value, seconds in findings)
    append_rows(path, [*names, "method", "value", "seconds"], rows)


def read(path: Path, names: Sequence[str]) -> list[Finding]:
    return [
        Finding(
            tuple(int(row[name]) if row[name].lstrip("-").isdigit() else float(row[name]) for name in names),
            row["method"],
            float(row["value"]),
            float(row["seconds"]),
        )
        for row in read_rows(path)
    ]
