"""Pages about data sets: the list, one of them with what its columns hold, more rows for it, and its end."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, Call, ApiRefusal
from app.pages.datasets import new as dataset_new
from app.pages.datasets import shown as dataset_shown
from app.pages.datasets.new import redirect
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

_A_PAGE, _FIRST_ROWS, _USES = 25, 15, 10
# What has more rows is drawn after the page is there.
_DRAWN_AT_ONCE = 50_000


@router.get("/datasets")
async def list_page(request: Request, caller: Reader, cursor: str = "") -> Response:
    api = Api(request)
    found = await api.get("/v1/datasets", limit=_A_PAGE, cursor=cursor)
    return render(request, "datasets.html", api=api, datasets=found["items"], next_cursor=found["next_cursor"])


# before what has an id in its place
router.include_router(dataset_new.router)


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
    refused: ApiRefusal | None = None,
) -> Response:
    """A data set; ``refused`` says why something was not done with it."""
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
        refused=refused,
        dataset=dataset,
        verdict=dataset_shown.summary(dataset, drawn["series_count"] if drawn else None),
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
    """Charts and histograms, as a part of the page."""
    api = Api(request)
    dataset = await api.get(_address(dataset_id))
    drawn = await _charts(api, dataset, series, outcome)
    return render(request, "dataset_drawn.html", drawn["status"], dataset=dataset, drawn=drawn)


async def _charts(api: Api, dataset: dict[str, Any], series: str, outcome: str) -> dict[str, Any]:
    """What is to be drawn; of all series if the one that was asked for is not there, with a word on it."""
    at, wrong, status = f"{_address(dataset['id'])}/distribution", "", 200
    outcomes = [column["name"] for column in dataset["columns"] if column["role"] == "outcome"]
    shown = outcome if outcome in outcomes else outcomes[0] if len(outcomes) > dataset_shown.MOST_CHARTS else ""
    try:
        found = await api.get(at, series=series, outcome=shown)
    except ApiRefusal as refused:
        if refused.status != 422:
            raise
        wrong, status = refused.detail, 422
        found = await api.get(at, outcome=shown)
    over, count = found["over_time"], found["series_count"]
    return {
        "status": status,
        "wrong": wrong,
        "series_count": count,
        "series": found["series"],
        "chosen": series,
        "outcomes": outcomes if len(outcomes) > dataset_shown.MOST_CHARTS else [],
        "outcome": shown,
        "columns": dataset_shown.column_views(dataset, found["columns"]),
        "went": dataset_shown.outcome_charts(over, dataset["columns"][0], count) if over else [],
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
    except ApiRefusal as refused:
        if "hx-request" in request.headers:
            return render(request, "dataset_refused.html", refused.status, refused=refused)
        return await _render_dataset(request, dataset_id, refused.status, refused=refused)
    return redirect(request, f"/datasets/{grown['id']}?added={grown['rows'] - before['rows']}")


@router.post("/datasets/{dataset_id}/delete")
async def delete(request: Request, dataset_id: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(_address(dataset_id))
    except ApiRefusal as refused:
        if refused.status != 409:
            raise
        return await _render_dataset(request, dataset_id, 409, refused=refused)
    return see_other("/datasets")
