"""A backtest as it went along: what every policy cost in each stretch of time, and differences summed up."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from app.backtests.backtest import Backtest
from app.backtests.schemas import CumulatedDifference, OverTimeAnswer, PolicyOverTime
from app.datasets.encode_values import Whole
from app.db import former_names
from bco_core.backtest.cumulated import cumulated, stretches
from bco_core.backtest.paired import Clusters


def over_time(planned: Backtest, told: dict[str, Any], results: Iterable[bytes], most: int) -> OverTimeAnswer:
    """What the results of all parts say of up to ``most`` stretches; ``told`` is the backtest's summary."""
    rows, costs = _costs(results, [one["name"] for one in told["policies"]])
    places = planned.places
    if places is None:
        clusters, line = Clusters.of(None, None), torch.arange(len(rows))
        texts = [str(row) for row in rows.tolist()]
    else:
        line, series = (torch.from_numpy(values[rows]) for values in (places.periods, places.series))
        clusters = Clusters.of(line, series, planned.dataset.lead, places.season)
        texts = []
    stretch, count = stretches(line, most)
    begins, ends = _ends(line, stretch, count)
    written = (lambda at: texts[at]) if places is None else places.clock.text
    words = {one["name"]: one["words"] for one in told["policies"]}
    candidate = told["candidate"]
    return OverTimeAnswer(
        candidate=candidate,
        against=told["against"],
        by="rows" if places is None else "time",
        begins=[written(at) for at in begins],
        ends=[written(at) for at in ends],
        rows=torch.bincount(stretch, minlength=count).tolist(),
        policies=[_policy(name, words[name], cost, stretch, count) for name, cost in costs.items()],
        differences=[
            _difference(name, words[name], costs[candidate], cost, clusters, stretch, count)
            for name, cost in costs.items()
            if name != candidate
        ],
        intervals=told["intervals"],
    )


def _costs(results: Iterable[bytes], names: list[str]) -> tuple[Whole, dict[str, Tensor]]:
    """The rows (n,) that were judged, in order, and what each policy cost on them (n,), NaN where it did not decide."""
    pieces = []
    for result in results:
        table = pq.read_table(io.BytesIO(result), columns=["row", "policy", "cost"])
        if table.num_rows:
            cost = table.column("cost").to_numpy().astype(np.float64)
            pieces.append(
                (former_names.policy(table.column("policy")[0].as_py()), table.column("row").to_numpy(), cost)
            )
    rows: Whole = np.unique(np.concatenate([row for _, row, _ in pieces]))
    costs = {name: np.full(len(rows), math.nan) for name in names}
    for name, row, cost in pieces:
        costs[name][np.searchsorted(rows, row)] = cost
    return rows, {name: torch.from_numpy(cost) for name, cost in costs.items()}


def _ends(line: Tensor, stretch: Tensor, count: int) -> tuple[list[int], list[int]]:
    """The first and the last place of each stretch."""
    low, high = torch.full((count,), int(line.max())), torch.full((count,), int(line.min()))
    low.scatter_reduce_(0, stretch, line, "amin")
    high.scatter_reduce_(0, stretch, line, "amax")
    return low.tolist(), high.tolist()


def _policy(name: str, words: str, cost: Tensor, stretch: Tensor, count: int) -> PolicyOverTime:
    there = ~cost.isnan()
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, stretch[there], cost[there])
    rows = torch.bincount(stretch[there], minlength=count)
    return PolicyOverTime(name=name, words=words, rows=rows.tolist(), cost=_numbers(sums))


def _difference(
    name: str, words: str, ours: Tensor, other: Tensor, clusters: Clusters, stretch: Tensor, count: int
) -> CumulatedDifference:
    found = cumulated(ours, other, clusters, stretch, count)
    return CumulatedDifference(
        against=name,
        words=words,
        rows=found.rows.tolist(),
        sum=_numbers(found.sum),
        standard_error=_numbers(found.standard_error),
        low=_numbers(found.low),
        high=_numbers(found.high),
    )


def _numbers(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
