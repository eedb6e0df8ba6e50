"""Speed of a backtest in one process: rows times policies per second of wall time, learning included."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch

from app.backtests.backtest import Backtest
from app.backtests.schemas import BacktestOptions
from app.datasets.parsing import parse_rows
from app.datasets.profile import profile
from app.datasets.roles import ColumnRoles
from app.db.tables import DatasetRow
from app.settings import Settings
from bco_core.progress import no_progress

_DAYS, _SHOPS, _SPLITS = 400, 10, 3
_SPEC = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3.0, "overage_cost": 1.0}]}
_QUICK = {"name": "ours", "predictor": {"kind": "linear"}, "inference": {"method": "vi", "members": 5, "epochs": 20}}


def backtest_rows_per_s() -> dict[str, float]:
    """Backtest one of our methods and all baselines on the newest 1,200 of 4,000 rows of ten shops, in three splits."""
    torch.set_num_threads(1)
    planned = _planned(_rows())
    began = perf_counter()
    tables = [planned.work(step, no_progress) for step in planned.steps]
    summary = planned.summary(tables)
    seconds = perf_counter() - began
    return {
        "backtest_rows_per_s": sum(table.num_rows for table in tables) / seconds,
        "backtest_rows": float(summary["rows"]),
        "backtest_policies": float(len(summary["policies"])),
        "backtest_seconds": seconds,
    }


def _rows() -> list[dict[str, Any]]:
    draw = np.random.default_rng(1)
    result = []
    for day, moment in enumerate(np.datetime_as_string(np.datetime64("2024-01-01") + np.arange(_DAYS))):
        for shop in range(_SHOPS):
            promotion = int(draw.random() < 0.2)
            level = (30 + 10 * shop) * (1 + 0.4 * (day % 7 == 5) + 0.3 * promotion)
            sold = max(0, round(level * draw.normal(1, 0.15)))
            result.append(
                {"day": moment, "shop": f"s{shop}", "promotion": promotion, "sold": sold, "stocked": level * 1.1}
            )
    return result


def _planned(rows: list[dict[str, Any]]) -> Backtest:
    roles = ColumnRoles(["sold"], None, [], time="day", series=["shop"], decisions=["stocked"])
    result = profile(parse_rows(rows, Settings()), roles, Settings())
    dataset = DatasetRow(columns=result.columns, lead=roles.lead, handling=roles.handling, revision=1)
    asked = {"ours": [_QUICK], "splits": _SPLITS, "actual_decision": {"sold": "stocked"}}
    return Backtest(_SPEC, dataset, result.table, BacktestOptions.model_validate(asked))
