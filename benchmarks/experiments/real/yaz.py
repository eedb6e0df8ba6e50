"""The Yaz restaurant: the one figure of its own experiment that is also reported with the real histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.experiments.real.run import Figure
from benchmarks.experiments.yaz import run as yaz
from benchmarks.experiments.yaz.data import read_days


def mean_ratio(folder: Path, advance: Callable[[str], None]) -> Iterator[list[Figure]]:
    """Yield the mean cost of ``auto`` relative to plain SAA."""
    ratios = yaz.compare(read_days(folder), ["auto"], lambda method: advance(f"yaz: {method}"))
    yield [Figure("yaz", 0.75, "auto", "yaz_mean_ratio", yaz.mean_ratio(ratios["auto"]))]
