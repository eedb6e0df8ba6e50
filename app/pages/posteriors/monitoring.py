"""What is asked of a posterior after the page has come: what drives outcomes, and whether promises held since."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.pages.api_client import Api, ApiRefusal
from app.pages.charts import Chart, Series
from app.pages.posteriors.figures import Json, lines, part, value
from app.pages.posteriors.forward_charts import LevelChart

# So many of the latest rows are drawn from, and so many drawn: each takes some predictions for every column.
_LATEST, _DRAWN = 120, 12
_SECONDS = 20.0
_NEEDED = ("context", "time", "series")
# Solver processes are starting, or all places are taken: worth another try in a moment.
STARTING = 503


@dataclass(frozen=True)
class DriverView:
    """A column and how much it moves an outcome on average; ``width`` is that beside the largest, up to 100."""

    name: str
    role: str
    size: float
    width: float


@dataclass(frozen=True)
class DriversView:
    rows: int
    latest: int
    outcomes: list[tuple[str, list[DriverView]]]
    # told once: how the shares are computed, and what they are beside
    method: str = ""
    baseline: str = ""


async def drivers(api: Api, posterior: Json) -> DriversView:
    """Mean absolute Shapley values of the context columns over some of the latest rows of the data set."""
    columns = [column for column in posterior["columns"] if column["role"] in _NEEDED]
    path = f"/v1/datasets/{posterior['dataset_id']}/rows"
    latest = _by_time((await api.get(path, limit=_LATEST, last="true"))["items"], columns)
    drawn = random.Random(0).sample(latest, min(_DRAWN, len(latest)))  # noqa: S311
    contexts = [{column["name"]: row.get(column["name"]) for column in columns} for row in drawn]
    body = {"contexts": contexts, "include": ["sensitivity"], "time_limit_seconds": _SECONDS}
    answer = await api.post(f"/v1/posteriors/{posterior['id']}/prescribe", body, kept=False)
    told = [found for one in answer["prescriptions"] if (found := part(one, "sensitivity", "attribution"))]
    roles = {column["name"]: column["role"] for column in columns}
    names = list(told[0]["outcomes"]) if told else []
    return DriversView(
        len(told),
        len(latest),
        [(name, _ranked([part(one, "outcomes", name, "contributions") for one in told], roles)) for name in names],
        str(told[0].get("method", "")) if told else "",
        str(told[0].get("baseline", "")) if told else "",
    )


def _by_time(rows: list[dict[str, Any]], columns: Iterable[Json]) -> list[dict[str, Any]]:
    """Oldest first; rows without a time are as they came."""
    time = next((column["name"] for column in columns if column["role"] == "time"), None)
    return rows if time is None else sorted(rows, key=lambda row: row[time])


def _ranked(contributions: list[Any], roles: Mapping[str, str]) -> list[DriverView]:
    sizes: dict[str, list[float]] = {}
    for one in contributions:
        for name in one or {}:
            found = value(one, name)
            if found is not None:
                sizes.setdefault(name, []).append(abs(found))
    means = {name: sum(found) / len(found) for name, found in sizes.items()}
    most = max(means.values(), default=0.0) or 1.0
    ordered = sorted(means.items(), key=lambda one: -one[1])
    return [DriverView(name, roles.get(name, ""), size, round(100 * size / most, 2)) for name, size in ordered]


@dataclass(frozen=True)
class MonitoringView:
    """How promises have held since, by one source: what is said, and a chart where there is something to draw."""

    words: str
    verdict: str
    sentence: str
    overall: Json | None
    left_out: int
    chart: Chart | None

    @property
    def is_empty(self) -> bool:
        return self.verdict == "too_few" and self.overall is None


_SOURCES = {
    "dataset": "Rows that were appended to the data set",
    "log": "Prescriptions whose outcome was recorded",
}


async def monitor(api: Api, posterior: Json) -> list[MonitoringView]:
    """What later rows and the log say; what the API refuses is said with its sentence."""
    found = []
    for source, words in _SOURCES.items():
        if source == "dataset" and posterior["dataset_id"] is None:
            continue
        try:
            told = await api.get(f"/v1/posteriors/{posterior['id']}/drift", source=source)
        except ApiRefusal as refused:
            if refused.status == STARTING:
                raise
            found.append(MonitoringView(words, "", refused.detail, None, 0, None))
            continue
        chart = _stretches(told, words) if len(lines(told, "stretches")) > 1 else None
        found.append(
            MonitoringView(words, told["verdict"], told["sentence"], told["overall"], int(told.get("left_out") or 0), chart)
        )
    return found


def _stretches(told: Json, words: str) -> Chart:
    """Promised and realised cost by stretch, over time where the rows have one."""
    table = lines(told, "stretches")
    spans = [(_seconds(line.get("first")), _seconds(line.get("last"))) for line in table]
    is_time = all(first is not None and last is not None for first, last in spans)
    edges = [edge for span in spans for edge in span] if is_time else []
    places: list[float] = [edge for edge in edges if edge is not None]
    if not is_time:
        places = [float(index + half) for index in range(len(table)) for half in (0, 1)]
    cells = [
        [
            places[2 * index] if is_time else stretch_name(index),
            str(line.get("last") or "")[:16] if is_time else stretch_name(index),
            *(value(line, name) for name in ("rows", "promised", "realised", "ratio")),
            _share(line),
        ]
        for index, line in enumerate(table)
    ]
    return LevelChart(
        title="Promised and realised cost since",
        note=f"{words}.",
        x=places,
        series=[
            Series("realised", [value(line, "realised") for line in table for _ in range(2)], "line", 0),
            Series("promised", [value(line, "promised") for line in table for _ in range(2)], "line", 1, dashed=True),
        ],
        x_label="time" if is_time else "stretch",
        y_label="mean cost",
        time=is_time,
        zero=True,
        height=200,
        heads=["from", "to", "rows", "promised", "realised", "realised ÷ promised", "% above the promised 95 % limit"],
        cells=cells,
    )


def stretch_name(index: int) -> str:
    return f"stretch {index + 1}"


def _share(line: Json) -> float | None:
    found = value(line, "above", "share")
    return None if found is None else 100 * found


def _seconds(text: Any) -> float | None:
    """Seconds since 1970; None for what is not a moment."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
