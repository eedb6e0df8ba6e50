"""A minimal endpoint for comparison: one LightGBM model, its residuals and a quantile, behind bare FastAPI.

A planner might write it in an afternoon. It has no keys, limits, records or cost distributions: it is a yardstick for
the time of a request, not for the quality of the answer.
"""

from __future__ import annotations

import sys
from typing import Any

import lightgbm
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from app.demo import WEEKDAYS, bakery_rows

_ITEM, _FRACTILE = "croissants", 0.75


class BaselineRequest(BaseModel):
    contexts: list[dict[str, Any]]


def _encode_contexts(contexts: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    numbers = ("temperature", "rain", "promotion", "holiday")
    rows = [[WEEKDAYS.index(one["weekday"]), *(float(one[name]) for name in numbers)] for one in contexts]
    return np.array(rows)


def create_app() -> FastAPI:
    rows = bakery_rows()
    inputs, outcomes = _encode_contexts(rows), np.array([row[_ITEM] for row in rows], dtype=np.float64)
    settings = {"objective": "regression", "num_leaves": 31, "learning_rate": 0.07, "num_threads": 1, "verbosity": -1}
    model = lightgbm.train(settings, lightgbm.Dataset(inputs, outcomes, categorical_feature=[0]), 300)
    residuals = outcomes - model.predict(inputs, num_threads=1)
    app = FastAPI()

    @app.post("/prescribe")
    def prescribe(asked: BaselineRequest) -> dict[str, list[float]]:
        predicted = np.asarray(model.predict(_encode_contexts(asked.contexts), num_threads=1))
        orders = np.quantile(predicted[:, None] + residuals, _FRACTILE, axis=1)
        return {"decisions": orders.tolist()}

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
