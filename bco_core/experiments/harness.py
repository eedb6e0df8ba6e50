"""Experiments that can be stopped and repeated: a result is a row of a CSV file, and what is there is not redone."""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import torch

# What tells runs apart, such as (noisy, n, seed, run): names in the file's header, values in its rows.
Key = tuple[int | float, ...]


class Finding(NamedTuple):
    """What a method reached in a run, and the processor seconds it took."""

    key: Key
    method: str
    value: float
    seconds: float


Perform = Callable[[Key, Sequence[str]], list[Finding]]


def missing(keys: Iterable[Key], methods: Sequence[str], done: Iterable[Finding]) -> list[tuple[Key, list[str]]]:
    """What is still to do."""
    known = {(finding.key, finding.method) for finding in done}
    todo = [(key, [method for method in methods if (key, method) not in known]) for key in keys]
    return [(key, lacking) for key, lacking in todo if lacking]


def perform_all(
    perform: Perform, todo: Sequence[tuple[Key, Sequence[str]]], names: Sequence[str], path: Path, jobs: int
) -> Iterator[list[Finding]]:
    """Perform in ``jobs`` processes; findings are added to ``path``, then yielded; failures are raised at the end."""
    if not todo:
        return
    spawn = multiprocessing.get_context("spawn")
    failures: list[BaseException] = []
    with ProcessPoolExecutor(min(jobs, len(todo)), spawn, torch.set_num_threads, (1,)) as executor:
        futures = {executor.submit(perform, key, methods): key for key, methods in todo}
        try:
            for future in as_completed(futures):
                failure = future.exception()
                if failure:
                    failure.add_note(f"in run {futures[future]}")
                    failures.append(failure)
                    continue
                append(path, names, future.result())
                yield future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
    if failures:
        raise failures[0]


def append(path: Path, names: Sequence[str], findings: Iterable[Finding]) -> None:
    """Add findings to a CSV file, which is begun if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow([*names, "method", "value", "seconds"])
        for key, method, value, seconds in findings:
            writer.writerow([*key, method, f"{value:.6g}", f"{seconds:.2f}"])


def read(path: Path, names: Sequence[str]) -> list[Finding]:
    """All findings in a CSV file; none when there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Finding(
                tuple(int(row[name]) if row[name].lstrip("-").isdigit() else float(row[name]) for name in names),
                row["method"],
                float(row["value"]),
                float(row["seconds"]),
            )
            for row in csv.DictReader(file)
        ]
