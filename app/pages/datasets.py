"""Pages about data sets: the list, the upload with its preview, and one data set with charts of its columns."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import PurePath
from statistics import median
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData

from app.db.text import is_plain
from app.http.errors import InvalidRequest
from app.http.security import Reader, Trainer
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, Call
from app.pages.charts import Chart, Mark, Series
from app.pages.render import day, number, percent, render, see_other

ROLES = {
    "time": "time",
    "series": "series key",
    "context": "known when deciding",
    "outcome": "outcome",
    "decision": "decision taken",
}
# Columns with a histogram, and gaps listed as text.
MOST_COLUMNS, MOST_GAPS = 40, 6
# With more outcomes than this, the reader chooses one.
MOST_CHARTS = 3


def count_of(count: int, word: str) -> str:
    return f"{number(count, 9)} {word}{'' if count == 1 else 's'}"


def spacing(column: dict[str, Any]) -> str:
    """Return the spacing of times: ``each day``, ``every 15 minutes``."""
    unit, step = column["unit"], column["step"]
    if unit == "period":
        return "by period" if step == 1 else f"every {step} periods"
    return f"each {unit}" if step == 1 else f"every {step} {unit}s"


def summary(dataset: dict[str, Any], series_count: int | None) -> str:
    """Summarise the data set in a sentence or two."""
    columns = dataset["columns"]
    time = next((column for column in columns if column["role"] == "time"), None)
    texts = count_of(dataset["rows"], "row")
    keys = [column for column in columns if column["role"] == "series"]
    if keys:
        named = " and ".join(column["name"] for column in keys)
        count = series_count or (keys[0]["distinct"] if len(keys) == 1 else None)
        texts += f" of {number(count, 9)} series (by {named})" if count else f" of series by {named}"
    if time is None:
        return f"{texts} without a time column, in no particular order. Revision {dataset['revision']}."
    ahead = count_of(dataset["lead"] * (time["step"] or 1), time["unit"])
    texts += f", {spacing(time)} from {time['first']} to {time['last']}."
    return f"{texts} You decide {ahead} ahead. Revision {dataset['revision']}."


# columns


@dataclass(frozen=True)
class HistogramBarView:
    """One bar of a small histogram: label and count."""

    label: str
    count: int


@dataclass(frozen=True)
class ColumnView:
    """A column with its role, a summary, and a histogram with labels at both ends of its axis."""

    name: str
    role: str
    holds: str
    missing: int
    bars: Sequence[HistogramBarView] = ()
    ends: tuple[str, str] = ("", "")
    # rows with values that have no bar
    others: int = 0

    @property
    def description(self) -> str:
        """The histogram as text for screen readers."""
        if not self.bars:
            return ""
        top = max(self.bars, key=lambda bar: bar.count)
        return f"Distribution of {self.name}; most frequent: {top.label}, in {count_of(top.count, 'row')}"


def column_views(dataset: dict[str, Any], counted: Sequence[dict[str, Any]]) -> list[ColumnView]:
    """Return all columns; counted ones have bars."""
    result = {column["name"]: column for column in counted[:MOST_COLUMNS]}
    return [_column_view(profile, result.get(profile["name"])) for profile in dataset["columns"]]


def _column_view(profile: dict[str, Any], counted: dict[str, Any] | None) -> ColumnView:
    bars: list[HistogramBarView] = []
    ends = ("", "")
    if counted is not None and counted["edges"] is not None:
        bars, ends = _bins(profile, counted["edges"], counted["counts"])
    elif counted is not None:
        bars = [
            HistogramBarView(name, count) for name, count in zip(counted["categories"], counted["counts"], strict=True)
        ]
        ends = (_short(bars[0].label), _short(bars[-1].label) if len(bars) > 1 else "")
    others = counted["others"] if counted else 0
    return ColumnView(profile["name"], ROLES[profile["role"]], _holds(profile), profile["missing"], bars, ends, others)


def _short(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bins(
    profile: dict[str, Any], edges: Sequence[float], counts: Sequence[int]
) -> tuple[list[HistogramBarView], tuple[str, str]]:
    """Return bars of numbers or times; a bin around one integer is labelled with it."""
    dated = profile["role"] == "time" and profile["unit"] != "period"
    write = day if dated else number
    if not dated and all((edge + 0.5).is_integer() for edge in edges):
        spans = [(low + 0.5, high - 0.5) for low, high in pairwise(edges)]
    else:
        spans = list(pairwise(edges))
    named = [write(low) if low == high else f"{write(low)} to {write(high)}" for low, high in spans]
    bars = [HistogramBarView(name, count) for name, count in zip(named, counts, strict=True)]
    return bars, (write(spans[0][0]), write(spans[-1][1]) if spans[0][0] != spans[-1][1] else "")


def _holds(profile: dict[str, Any]) -> str:
    kind = profile["kind"]
    if kind == "time":
        return f"{profile['first']} to {profile['last']}, {spacing(profile)}"
    if kind == "key":
        return count_of(profile["distinct"], "different value")
    if kind == "categorical":
        most = 6 if len(profile["categories"]) > 8 else 8
        named, rest = profile["categories"][:most], len(profile["categories"]) - most
        listed = ", ".join(_short(name, 30) for name in named) + (f" and {rest} more" if rest > 0 else "")
        return f"{count_of(len(profile['categories']), 'category').replace('categorys', 'categories')}: {listed}"
    if profile["minimum"] == profile["maximum"]:
        return f"always {number(profile['minimum'])}"
    return f"{number(profile['minimum'])} to {number(profile['maximum'])}, mean {number(profile['mean'])}"


# over time


@dataclass(frozen=True)
class OutcomeChartView:
    """An outcome over time: its chart, and its gaps and shifts as text."""

    chart: Chart
    texts: list[str]


def outcome_charts(over: dict[str, Any], time: dict[str, Any], series_count: int) -> list[OutcomeChartView]:
    return [_outcome_chart(outcome, over, time, series_count) for outcome in over["outcomes"]]


def _outcome_chart(
    outcome: dict[str, Any], over: dict[str, Any], time: dict[str, Any], series_count: int
) -> OutcomeChartView:
    dated = time["unit"] != "period"
    place = _seconds if dated else float
    x = [place(text) for text in over["times"]]
    breaks = _breaks(x, [(place(gap["after"]), place(gap["before"])) for gap in over["gaps"]])
    x, (mean, low, high) = _insert_breaks(x, [outcome["mean"], outcome["minimum"], outcome["maximum"]], breaks)
    ranged = any(count > 1 for count in over["rows"])
    series = [Series("lowest to highest", low, "band", 0, upper=high)] if ranged else []
    series.append(Series("mean" if ranged else outcome["name"], mean, colour=0))
    marks = [Mark(place(gap["after"]), _gap_word(gap, time), place(gap["before"]), 1) for gap in over["gaps"]]
    marks += [Mark(place(shift["since"]), _shift_word(shift), colour=3) for shift in outcome["shifts"]]
    chart = Chart(
        f"{outcome['name']} over time",
        x,
        series,
        x_label="time" if dated else time["name"],
        y_label=outcome["name"],
        time=dated,
        marks=marks,
        note=_note(over, time, series_count),
        extra={"hours": time["unit"] in ("minute", "hour") and over["periods"] < 24},
    )
    return OutcomeChartView(chart, _mark_texts(outcome, over, time, series_count))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _breaks(x: Sequence[float], gaps: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """Return where lines break: the index before the gap and the x of the break. Gaps within a point are invisible."""
    if len(x) < 3:
        return []
    usual = median(high - low for low, high in pairwise(x))
    result = []
    for after, before in gaps:
        behind = bisect_right(x, after) - 1
        if 0 <= behind < len(x) - 1 and x[behind + 1] - x[behind] > 1.5 * usual:
            result.append((behind, min(max((after + before) / 2, x[behind] + usual / 2), x[behind + 1] - usual / 2)))
    return result


def _insert_breaks(
    x: Sequence[float], columns: Sequence[Sequence[float]], breaks: Sequence[tuple[int, float]]
) -> tuple[list[float], list[list[float | None]]]:
    """Insert a missing point at each break."""
    at = dict(breaks)
    points: list[float] = []
    values: list[list[float | None]] = [[] for _ in columns]
    for index, place in enumerate(x):
        points += [place, at[index]] if index in at else [place]
        for column, kept in zip(columns, values, strict=True):
            kept += [column[index], None] if index in at else [column[index]]
    return points, values


def _note(over: dict[str, Any], time: dict[str, Any], series_count: int) -> str:
    spans = over["periods"] * (time["step"] or 1)
    each = f"a point for {'each ' + time['unit'] if spans == 1 else count_of(spans, time['unit'])}"
    if over["series"] is not None:
        return f"{each}, {over['series']} alone"
    return f"{each}, all {number(series_count, 9)} series together" if series_count > 1 else each


def _gap_word(gap: dict[str, Any], time: dict[str, Any]) -> str:
    return f"no rows, {_periods(gap, time)}"


def _periods(gap: dict[str, Any], time: dict[str, Any]) -> str:
    return count_of(gap["periods"] * (time["step"] or 1), time["unit"])


def _shift_word(shift: dict[str, Any]) -> str:
    moved = shift["after"] - shift["before"]
    higher = "higher" if moved > 0 else "lower"
    if shift["before"] > 0:
        return f"{percent(abs(moved) / shift['before'])} {higher}"
    return f"{number(abs(moved), 3)} {higher}"


def _mark_texts(outcome: dict[str, Any], over: dict[str, Any], time: dict[str, Any], series_count: int) -> list[str]:
    """Return a sentence for each mark of the chart."""
    texts = [
        f"Since about {shift['since']} the level is {_shift_word(shift)}: {number(shift['before'])} became "
        f"{number(shift['after'])} on average."
        for shift in outcome["shifts"]
    ]
    gaps = over["gaps"]
    for gap in sorted(gaps, key=lambda gap: -gap["periods"])[:MOST_GAPS]:
        whose = f" of {number(gap['series'], 9)} series" if series_count > 1 and over["series"] is None else ""
        texts.append(f"No rows{whose} between {gap['after']} and {gap['before']}: {_periods(gap, time)}.")
    if len(gaps) > MOST_GAPS:
        texts.append(f"{len(gaps) - MOST_GAPS} shorter gaps are not listed.")
    return texts


router = APIRouter(include_in_schema=False)

# Roles of a column; "category" treats numbers as names.
USES = {
    "time": "time",
    "series": "series key, such as shop",
    "context": "known when deciding",
    "category": "known when deciding, categories",
    "outcome": "outcome: unknown when deciding",
    "decision": "decision actually taken",
    "out": "ignore",
}
MISSING = {
    "reject": "reject the file",
    "drop": "drop their rows",
    "impute": "fill in numbers",
}
UNSEEN = {"reject": "reject them", "other": "group them as “other”"}
# An empty list of names in the upload form.
NO_NAMES = "[]"
# Form fields that show their own errors.
FIELDS = ("name", "lead", "missing", "unseen", "sheet")
_LONGEST_NAME = 200


@router.get("/datasets/new")
async def new_page(request: Request, caller: Trainer, problem: str = "") -> Response:
    api = Api(request)
    about = await _problem(api, problem)
    return render(request, "dataset_new.html", api=api, problem=about)


async def _problem(api: Api, problem_id: str) -> Any:
    return await api.get(f"/v1/problems/{quote(problem_id, safe='')}") if problem_id else None


@router.post("/datasets/new/preview")
async def preview(request: Request, caller: Reader) -> Response:
    """Preview a file: a part of the page. Nothing is saved."""
    form = await forms.read_form(request)
    filename, content = await _read_file(form)
    api = Api(request)
    about = await _problem(api, forms.text(form, "problem"))
    # A sheet chosen earlier belongs to the earlier file.
    again = request.headers.get("hx-trigger-name") == "sheet"
    asked = {
        "sheet": forms.text(form, "sheet") if again else "",
        "outcomes": join_names(about["outcomes"] if about else []),
    }
    try:
        result = await api.upload("/v1/datasets/inspect", filename, content, asked)
    except ApiRefusal as refusal:
        return render(request, "dataset_refused.html", refusal.status, refusal=refusal)
    chosen = ColumnChoices(
        [column["name"] for column in result["columns"]],
        [_use(column) for column in result["columns"]],
        {
            "name": (forms.text(form, "name") if again else "") or _default_name(filename),
            "sheet": asked["sheet"],
            "lead": "1",
            "missing": result["missing"],
            "unseen": "reject",
        },
    )
    return render(
        request,
        "dataset_preview.html",
        found=result,
        filename=filename,
        chosen=chosen,
        upload=_call(filename, chosen),
        uses=USES,
        missing=MISSING,
        unseen=UNSEEN,
        has_time="time" in chosen.uses,
    )


@router.post("/datasets/new/call")
async def call(request: Request, caller: Reader) -> Response:
    """Show the upload as curl and Python, with the current roles."""
    form = await forms.read_form(request)
    chosen = ColumnChoices.of(form)
    return render(request, "dataset_call.html", upload=_call(forms.text(form, "filename") or "history.csv", chosen))


@router.post("/datasets/new")
async def upload_dataset(request: Request, caller: Reader) -> Response:
    form = await forms.read_form(request)
    filename, content = await _read_file(form)
    chosen = ColumnChoices.of(form)
    if not chosen.names:
        raise InvalidRequest.at(("file",), "wait for the preview, then check the roles of the columns")
    api = Api(request)
    try:
        made = await api.upload("/v1/datasets/upload", filename, content, chosen.fields(filename))
    except ApiRefusal as refusal:
        return render(request, "dataset_said.html", refusal.status, refusal=refusal, fields=FIELDS)
    return redirect(request, f"/datasets/{made['id']}")


def redirect(request: Request, address: str) -> Response:
    """Redirect, whether a script or the browser sent the form."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": address})
    return see_other(address)


async def _read_file(form: FormData) -> tuple[str, bytes]:
    """Read the file of a form; replace unprintable characters of its name."""
    name, content = await forms.read_upload(form)
    plain = "".join(mark if is_plain(mark) else "_" for mark in PurePath(name.replace("\\", "/")).name)
    return plain[-_LONGEST_NAME:] or "history", content


def _default_name(filename: str) -> str:
    return PurePath(filename).stem.replace("_", " ").strip() or filename


def _use(column: dict[str, Any]) -> str:
    """Return the suggested role of a column."""
    if column["role"] == "left out":
        return "out"
    return "category" if column["role"] == "context" and column["categorical"] else str(column["role"])


# the chosen roles


@dataclass(frozen=True)
class ColumnChoices:
    """The columns of a file with their roles, and the other fields of the form as typed."""

    names: list[str]
    uses: list[str]
    others: dict[str, str]

    @staticmethod
    def of(form: FormData) -> ColumnChoices:
        try:
            listed = json.loads(forms.text(form, "columns") or NO_NAMES)
        except ValueError:
            listed = []
        names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        uses = [forms.text(form, f"use.{index}") for index in range(len(names))]
        return ColumnChoices(names, uses, {name: forms.text(form, name).strip() for name in FIELDS})

    def used(self, *uses: str) -> list[str]:
        return [name for name, use in zip(self.names, self.uses, strict=True) if use in uses]

    def fields(self, filename: str) -> dict[str, str]:
        """Return the fields of the API's upload form; refuse several time columns."""
        times = self.used("time")
        if len(times) > 1:
            listed = " and ".join(f"'{name}'" for name in times[:5])
            detail = f"{listed} are both marked as time; choose one"
            errors = [{"pointer": "#/time", "detail": detail}]
            raise ApiRefusal(422, {"status": 422, "title": "", "detail": detail, "errors": errors})
        contexts = join_names(self.used("context", "category"))
        return {
            "name": self.others["name"] or _default_name(filename),
            # Without outcomes the API says that too few are chosen.
            "outcomes": join_names(self.used("outcome")) or NO_NAMES,
            "contexts": contexts or NO_NAMES,
            "categorical": join_names(self.used("category")),
            "time": "".join(times),
            "series": join_names(self.used("series")),
            "decisions": join_names(self.used("decision")),
            "lead": "" if self.others["lead"] == "1" else self.others["lead"],
            "missing": "" if self.others["missing"] == "reject" else self.others["missing"],
            "unseen": "" if self.others["unseen"] == "reject" else self.others["unseen"],
            "sheet": self.others["sheet"],
        }


def _call(filename: str, chosen: ColumnChoices) -> Call | None:
    """Return the upload as an API call; None while the choices are invalid."""
    try:
        fields = chosen.fields(filename)
    except ApiRefusal:
        return None
    return Call("POST", "/v1/datasets/upload", file=filename, fields={k: v for k, v in fields.items() if v})


def join_names(names: Sequence[str]) -> str:
    """Join names with commas, quoting names that contain commas or read as no names."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return f'"{NO_NAMES}"' if line.getvalue() == NO_NAMES else line.getvalue()


_A_PAGE, _FIRST_ROWS, _USES = 25, 15, 10
# Charts of larger data sets load after the page.
_DRAWN_AT_ONCE = 50_000


@router.get("/datasets")
async def list_page(request: Request, caller: Reader, cursor: str = "") -> Response:
    api = Api(request)
    result = await api.get("/v1/datasets", limit=_A_PAGE, cursor=cursor)
    return render(request, "datasets.html", api=api, datasets=result["items"], next_cursor=result["next_cursor"])


@router.get("/datasets/{dataset_id}")
async def dataset_page(
    request: Request, dataset_id: str, caller: Reader, series: str = "", outcome: str = "", added: str = ""
) -> Response:
    return await _render_dataset(request, dataset_id, series=series, outcome=outcome, added=added)


async def _render_dataset(
    request: Request,
    dataset_id: str,
    status: int = 200,
    *,
    series: str = "",
    outcome: str = "",
    added: str = "",
    refusal: ApiRefusal | None = None,
) -> Response:
    """Render a data set; ``refusal`` is the error of the last action."""
    api, at = Api(request), _address(dataset_id)
    dataset, rows, jobs, posteriors = await asyncio.gather(
        api.get(at),
        api.get(f"{at}/rows", limit=_FIRST_ROWS),
        api.get("/v1/jobs", dataset_id=dataset_id, limit=_USES),
        api.get("/v1/posteriors", dataset_id=dataset_id, limit=_USES),
    )
    drawn = None
    if dataset["rows"] <= _DRAWN_AT_ONCE:
        drawn = await _charts(api, dataset, series, outcome)
        status = max(status, drawn["status"])
    return render(
        request,
        "dataset.html",
        status,
        api=api,
        refusal=refusal,
        dataset=dataset,
        verdict=summary(dataset, drawn["series_count"] if drawn else None),
        added=int(added) if added.isdecimal() and len(added) < 10 else 0,
        rows=rows["items"],
        jobs=jobs,
        posteriors=posteriors,
        drawn=drawn,
        asked={"series": series, "outcome": outcome},
        append=Call("POST", f"{at}/rows/upload", file="more.csv"),
        remove=Call("DELETE", at),
    )


def _address(dataset_id: str) -> str:
    return f"/v1/datasets/{quote(dataset_id, safe='')}"


@router.get("/datasets/{dataset_id}/drawn")
async def drawn_part(
    request: Request, dataset_id: str, caller: Reader, series: str = "", outcome: str = ""
) -> Response:
    """Charts and histograms: a part of the page."""
    api = Api(request)
    dataset = await api.get(_address(dataset_id))
    drawn = await _charts(api, dataset, series, outcome)
    return render(request, "dataset_drawn.html", drawn["status"], dataset=dataset, drawn=drawn)


async def _charts(api: Api, dataset: dict[str, Any], series: str, outcome: str) -> dict[str, Any]:
    """Return what to draw; all series, with an error, if the chosen one does not exist."""
    at, wrong, status = f"{_address(dataset['id'])}/distribution", "", 200
    outcomes = [column["name"] for column in dataset["columns"] if column["role"] == "outcome"]
    shown = outcome if outcome in outcomes else outcomes[0] if len(outcomes) > MOST_CHARTS else ""
    try:
        result = await api.get(at, series=series, outcome=shown)
    except ApiRefusal as refusal:
        if refusal.status != 422:
            raise
        wrong, status = refusal.detail, 422
        result = await api.get(at, outcome=shown)
    over, count = result["over_time"], result["series_count"]
    return {
        "status": status,
        "wrong": wrong,
        "series_count": count,
        "series": result["series"],
        "chosen": series,
        "outcomes": outcomes if len(outcomes) > MOST_CHARTS else [],
        "outcome": shown,
        "columns": column_views(dataset, result["columns"]),
        "went": outcome_charts(over, dataset["columns"][0], count) if over else [],
    }


@router.post("/datasets/{dataset_id}/rows")
async def append(request: Request, dataset_id: str, caller: Reader) -> Response:
    form = await forms.read_form(request)
    filename, content = await forms.read_upload(form)
    api = Api(request)
    before = await api.get(_address(dataset_id))
    fields = {"sheet": forms.text(form, "sheet")}
    try:
        grown = await api.upload(f"{_address(dataset_id)}/rows/upload", filename, content, fields)
    except ApiRefusal as refusal:
        if "hx-request" in request.headers:
            return render(request, "dataset_refused.html", refusal.status, refusal=refusal)
        return await _render_dataset(request, dataset_id, refusal.status, refusal=refusal)
    return redirect(request, f"/datasets/{grown['id']}?added={grown['rows'] - before['rows']}")


@router.post("/datasets/{dataset_id}/delete")
async def delete(request: Request, dataset_id: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(_address(dataset_id))
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        return await _render_dataset(request, dataset_id, 409, refusal=refusal)
    return see_other("/datasets")
