"""Show a backtest over time: costs of every policy in each stretch, and differences summed up."""

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
from app.db import former_names
from bco_core.arrays import Integers
from bco_core.backtest.paired import Clusters, cumulate, cut_stretches


def over_time(planned: Backtest, summary: dict[str, Any], results: Iterable[bytes], most: int) -> OverTimeAnswer:
    """Return costs and differences in up to ``most`` stretches, from the results of all parts."""
    rows, costs = _costs(results, [one["name"] for one in summary["policies"]])
    places = planned.places
    if places is None:
        clusters, line = Clusters.of(None, None), torch.arange(len(rows))
        texts = [str(row) for row in rows.tolist()]
    else:
        line, series = (torch.from_numpy(values[rows]) for values in (places.periods, places.series))
        clusters = Clusters.of(line, series, planned.dataset.lead, places.season)
        texts = []
    stretch, count = cut_stretches(line, most)
    begins, ends = _ends(line, stretch, count)
    write = (lambda at: texts[at]) if places is None else places.clock.text
    words = {one["name"]: one["words"] for one in summary["policies"]}
    candidate = summary["candidate"]
    return OverTimeAnswer(
        candidate=candidate,
        against=summary["against"],
        by="rows" if places is None else "time",
        begins=[write(at) for at in begins],
        ends=[write(at) for at in ends],
        rows=torch.bincount(stretch, minlength=count).tolist(),
        policies=[_policy(name, words[name], cost, stretch, count) for name, cost in costs.items()],
        differences=[
            _difference(name, words[name], costs[candidate], cost, clusters, stretch, count)
            for name, cost in costs.items()
            if name != candidate
        ],
        intervals=summary["intervals"],
    )


def _costs(results: Iterable[bytes], names: list[str]) -> tuple[Integers, dict[str, Tensor]]:
    """Return the judged rows (n,), in order, and each policy's costs (n,), NaN where it did not decide."""
    pieces = []
    for result in results:
        table = pq.read_table(io.BytesIO(result), columns=["row", "policy", "cost"])
        if table.num_rows:
            cost = table.column("cost").to_numpy().astype(np.float64)
            policy = former_names.policy(table.column("policy")[0].as_py())
            pieces.append((policy, table.column("row").to_numpy(), cost))
    rows: Integers = np.unique(np.concatenate([row for _, row, _ in pieces]))
    costs = {name: np.full(len(rows), math.nan) for name in names}
    for name, row, cost in pieces:
        costs[name][np.searchsorted(rows, row)] = cost
    return rows, {name: torch.from_numpy(cost) for name, cost in costs.items()}


def _ends(line: Tensor, stretch: Tensor, count: int) -> tuple[list[int], list[int]]:
    """Return the first and the last place of each stretch."""
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
    difference = cumulate(ours, other, clusters, stretch, count)
    return CumulatedDifference(
        against=name,
        words=words,
        rows=difference.rows.tolist(),
        sum=_numbers(difference.sum),
        standard_error=_numbers(difference.standard_error),
        low=_numbers(difference.low),
        high=_numbers(difference.high),
    )


def _numbers(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
