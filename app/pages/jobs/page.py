"""Pages about jobs: what runs and has run, asking for a new one, and watching one as it goes."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, Call, Refused
from app.pages.jobs import forms as job_forms
from app.pages.jobs.forms import PLACES, Asked
from app.pages.jobs.traces import charts_of, figures_in
from app.pages.problems.kinds import written
from app.pages.problems.page import caller_may
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
KINDS = {"learn": "learning", "prescribe": "decisions for a table", "backtest": "backtest"}
UNFINISHED = ("queued", "running")
# Data sets and problems to choose from, and how many of them are looked at for whether they fit.
CHOICES, LOOKED_AT = 100, 20


@router.get("/jobs")
async def jobs(request: Request, caller: Reader, cursor: str = "", state: str = "", kind: str = "") -> Response:
    api = Api(request)
    page = await api.get("/v1/jobs", limit=50, cursor=cursor, state=state, kind=kind)
    running = any(job["state"] in UNFINISHED for job in page["items"])
    return render(
        request, "jobs.html", api=api, page=page, state=state, kind=kind, states=STATES, kinds=KINDS, running=running
    )


# a new one


@router.get("/jobs/new")
async def new_job(request: Request, caller: Reader, problem: str = "", dataset: str = "") -> Response:
    return await _form(request, job_forms.first(problem, dataset))


@router.post("/jobs/new")
async def make_job(request: Request, caller: Reader) -> Response:
    asked = job_forms.asked(await forms.submitted(request))
    if asked.wrong:
        return await _form(request, asked, status=422)
    try:
        made = await Api(request).post("/v1/jobs", asked.body)
    except Refused as refused:
        if refused.status not in (409, 422, 429):
            raise
        return await _form(request, asked, refused, refused.status)
    return see_other(f"/jobs/{made['id']}")


@router.post("/jobs/new/preview")
async def preview_job(request: Request, caller: Reader) -> Response:
    """What would be sent, as the form is now, and which choices go together: parts of a page."""
    asked = job_forms.asked(await forms.submitted(request))
    return render(request, "job_preview.html", **await _choices(request, asked))


async def _form(request: Request, asked: Asked, refused: Refused | None = None, status: int = 200) -> Response:
    shown = [pointer for pointers in PLACES.values() for pointer in pointers]
    return render(
        request,
        "job_new.html",
        status,
        refused=refused,
        places=PLACES,
        shown=shown,
        choices=job_forms,
        **await _choices(request, asked),
    )


async def _choices(request: Request, asked: Asked) -> dict[str, Any]:
    """What there is to choose from, what goes together, and the request that the form makes."""
    api, given = Api(request), asked.given
    problems, datasets = await asyncio.gather(
        api.get("/v1/problems", limit=CHOICES), api.get("/v1/datasets", limit=CHOICES)
    )
    problem = await _found(api, "/v1/problems/", given["problem_id"])
    dataset = await _found(api, "/v1/datasets/", given["dataset_id"])
    fits: dict[str, bool] = {}
    if problem is not None:
        asking = [_outcomes(api, one["id"]) for one in datasets["items"][:LOOKED_AT]]
        fits = {name: set(problem["outcomes"]) <= outcomes for name, outcomes in await asyncio.gather(*asking)}
    return {
        "asked": asked,
        "given": given,
        "problems": _with(problems["items"], problem),
        "datasets": _with(datasets["items"], dataset),
        "problem": problem,
        "dataset": dataset,
        "fits": fits,
        "lacking": _lacking(problem, dataset),
        "has_time": dataset is not None and any(column["role"] == "time" for column in dataset["columns"]),
        "call": Call("POST", "/v1/jobs", asked.body),
        "advanced": job_forms.is_advanced(given),
    }


async def _found(api: Api, path: str, identifier: str) -> dict[str, Any] | None:
    """What was chosen, if it is there."""
    if not identifier:
        return None
    try:
        found: dict[str, Any] = await api.get(path + identifier)
    except Refused as refused:
        if refused.status != 404:
            raise
        return None
    return found


async def _outcomes(api: Api, dataset_id: str) -> tuple[str, set[str]]:
    columns = (await api.get(f"/v1/datasets/{dataset_id}"))["columns"]
    return dataset_id, {column["name"] for column in columns if column["role"] == "outcome"}


def _with(listed: list[dict[str, Any]], chosen: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The list, and what was chosen although it is older than all that is listed."""
    known = {one["id"] for one in listed}
    return listed if chosen is None or chosen["id"] in known else [*listed, chosen]


def _lacking(problem: dict[str, Any] | None, dataset: dict[str, Any] | None) -> list[str] | None:
    """The outcomes that a problem needs and a data set has not; None while one of them is not chosen."""
    if problem is None or dataset is None:
        return None
    known = {column["name"] for column in dataset["columns"] if column["role"] == "outcome"}
    return [name for name in problem["outcomes"] if name not in known]


# one of them


@router.get("/jobs/{job_id}")
async def job(request: Request, job_id: str, caller: Reader) -> Response:
    return await _job(request, job_id)


async def _job(request: Request, job_id: str, refused: Refused | None = None) -> Response:
    api = Api(request)
    found = await api.get(f"/v1/jobs/{job_id}")
    log, problem, dataset = await asyncio.gather(
        api.get(f"/v1/jobs/{job_id}/log"),
        _found(Api(request), "/v1/problems/", found["problem_id"]),
        _found(Api(request), "/v1/datasets/", found["dataset_id"] or ""),
    )
    posterior = await _learned(Api(request), found)
    api.calls.append(Call("GET", f"/v1/jobs/{job_id}/events"))
    if caller_may(request, "train"):
        act = "cancel" if found["state"] in UNFINISHED else "retry"
        if found["state"] != "succeeded":
            api.calls.append(Call("POST", f"/v1/jobs/{job_id}/{act}"))
    return render(
        request,
        "job.html",
        409 if refused else 200,
        api=api,
        refused=refused,
        job=found,
        kinds=KINDS,
        running=found["state"] in UNFINISHED,
        lines=log["lines"],
        charts=_charts(found, log["lines"], posterior),
        problem=problem,
        dataset=dataset,
        posterior=posterior,
        text=written(found["spec"]),
    )


async def _learned(api: Api, job: dict[str, Any]) -> dict[str, Any] | None:
    """The posterior that a job has made, or uses, with its diagnostics; it may have been deleted since."""
    if not job["posterior_id"] or (job["kind"] == "learn" and job["state"] != "succeeded"):
        return None
    found = await _found(api, "/v1/posteriors/", job["posterior_id"])
    if found is None or job["kind"] != "learn":
        return found
    return found | {"diagnostics": await api.get(f"/v1/posteriors/{job['posterior_id']}/diagnostics")}


def _charts(job: dict[str, Any], lines: list[dict[str, Any]], posterior: dict[str, Any] | None) -> list[Any]:
    if job["kind"] != "learn":
        return []
    method = (job["spec"].get("inference") or {}).get("method", "auto")
    charts = charts_of(figures_in(lines), None if posterior is None else posterior["diagnostics"], method)
    # What ended without having met anything has nothing to draw.
    return charts if job["state"] in UNFINISHED or any(chart.x for chart in charts) else []


@router.get("/jobs/{job_id}/traces")
async def traces(request: Request, job_id: str, caller: Reader) -> Response:
    """The charts of a job as they are now: a part of a page."""
    api = Api(request)
    found = await api.get(f"/v1/jobs/{job_id}")
    log = await api.get(f"/v1/jobs/{job_id}/log")
    return render(request, "job_traces.html", charts=_charts(found, log["lines"], None))


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str, caller: Reader) -> Response:
    return await _act(request, job_id, "cancel")


@router.post("/jobs/{job_id}/retry")
async def retry_job(request: Request, job_id: str, caller: Reader) -> Response:
    return await _act(request, job_id, "retry")


async def _act(request: Request, job_id: str, act: str) -> Response:
    await forms.submitted(request)
    try:
        await Api(request).post(f"/v1/jobs/{job_id}/{act}")
    except Refused as refused:
        if refused.status != 409:
            raise
        return await _job(request, job_id, refused)
    return see_other(f"/jobs/{job_id}")
