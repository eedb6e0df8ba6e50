"""Mutation testing: apply each mutant of the table to a copy of the tree and check that its tests fail.

    python -m tests.mutants.run                 all of them, as ``make mutants`` does
    python -m tests.mutants.run mh/ "class prior"   only mutants whose file or description contains a word

The tests must pass on the unchanged tree, and every mutant's text must occur exactly once in its file. Survivors and
mutants whose tests did not run are printed last; the exit code is then 1.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from queue import SimpleQueue

import numba
import pytest

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("app", "bco_core", "tests", "migrations", "benchmarks", "docs")
WORKERS = min(2, os.cpu_count() or 1)
# A mutant may never end.
SECONDS = 300
PASSED, FAILED, NO_VERDICT = 0, 1, 70
# Runs fork from a process that has already imported the slow packages.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "numba", "scipy.stats", "scipy.optimize", "pytest", "cvxpy"])


def main(words: list[str]) -> int:
    mutants = [one for one in MUTANTS if not words or any(word in one.file or word in one.breaks for word in words)]
    misplaced = [one for one in mutants if (ROOT / one.file).read_text().count(one.old) != 1]
    for one in misplaced:
        say(f"ERROR     {describe(one)}: its text must stand in the file once: {one.old!r}")
    if misplaced or not mutants:
        return 1
    with tempfile.TemporaryDirectory(prefix="bco-mutants-") as folder:
        pristine = Path(folder) / "pristine"
        copy_tree(ROOT, pristine)
        began = time.monotonic()
        if run_tests(pristine, sorted({test for one in mutants for test in one.tests}), None) != PASSED:
            say("ERROR     the tests fail without any mutant")
            return 1
        say(f"{len(mutants)} mutants; their tests pass without any in {time.monotonic() - began:.0f} s")
        # Copy after the tests have filled the cache of compiled kernels.
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            trees.put(shutil.copytree(pristine, Path(folder) / f"tree{number}"))
        with ThreadPoolExecutor(WORKERS) as pool:
            killed = list(pool.map(lambda one: is_killed(one, trees), mutants))
    survivors = [one for one, dead in zip(mutants, killed, strict=True) if not dead]
    for one in survivors:
        say(f"SURVIVED  {describe(one)}: {one.old!r} → {one.new!r}")
    say(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed")
    return 1 if survivors else 0


def is_killed(mutant: Mutant, trees: SimpleQueue[Path]) -> bool:
    """Whether one of the mutant's tests fails. Uses any free tree."""
    tree, began = trees.get(), time.monotonic()
    try:
        with apply_mutant(mutant, tree):
            result = run_tests(tree, mutant.tests, SECONDS, compiles(tree / mutant.file))
    finally:
        trees.put(tree)
    verdict = {PASSED: "survived", FAILED: "killed"}.get(result, f"no verdict (pytest ended with {result})")
    say(f"{verdict:9} {describe(mutant)}, {time.monotonic() - began:.0f} s")
    return result == FAILED


@contextmanager
def apply_mutant(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Apply the mutant to the tree for a while. The old modification time keeps cached bytecode valid."""
    path = tree / mutant.file
    text, stat = path.read_text(), path.stat()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def compiles(path: Path) -> bool:
    """Whether the file holds kernels. Callers in other files are cached with them and must be recompiled."""
    return any(mark in path.read_text() for mark in ("@njit", "@kernel", "@piece"))


def run_tests(tree: Path, tests: Sequence[str], seconds: float | None, fresh_kernels: bool = False) -> int | None:
    """Return pytest's exit code after the first failure; a timeout counts as a failure."""
    process = PROCESSES.Process(target=in_tree, args=(tree, tests, fresh_kernels))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return FAILED
    return process.exitcode


def in_tree(tree: Path, tests: Sequence[str], fresh_kernels: bool) -> None:
    """Run pytest in the tree and exit with its code. The project must not be imported before."""
    os.chdir(tree)
    sys.path[:0] = [str(tree)]
    sys.dont_write_bytecode = True
    # No mutant needs a plugin, and some take seconds to load.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryDirectory(prefix="bco-kernels-") as cache, open(os.devnull, "w") as nowhere:
        if fresh_kernels:
            numba.config.CACHE_DIR = cache
        try:
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                result = int(pytest.main(["-x", "-q", "--all", "-p", "no:cacheprovider", *tests]))
        except BaseException:
            # Otherwise the process would exit as if a test had failed.
            traceback.print_exc()
            result = NO_VERDICT
    sys.exit(result)


def copy_tree(source: Path, target: Path) -> None:
    target.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "results")
    for name in COPIED:
        shutil.copytree(source / name, target / name, ignore=ignored)
    shutil.copy2(source / "pyproject.toml", target)


def describe(mutant: Mutant) -> str:
    return f"{mutant.file}: {mutant.breaks}"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
