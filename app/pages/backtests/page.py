"""Pages about backtests: the list, the form that asks for one, and what came out."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, Call, Refused
from app.pages.backtests.form import BASELINES, Typed, learned_like, proposed, request_of
from app.pages.backtests.result import Result, asked_again
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

# How many a list shows, and how many of each kind a form offers.
LISTED, OFFERED = 25, 200


@router.get("/backtests")
async def list_backtests(request: Request, caller: Reader, cursor: str | None = None) -> Response:
    api = Api(request)
    jobs, datasets, problems = await asyncio.gather(
        api.get("/v1/jobs", kind="backtest", limit=LISTED, cursor=cursor),
        api.get("/v1/datasets", limit=OFFERED),
        api.get("/v1/problems", limit=OFFERED),
    )
    names = {one["id"]: one["name"] for page in (datasets, problems) for one in page["items"]}
    can_be_made = bool(datasets["items"] and problems["items"])
    return render(request, "backtests.html", api=api, jobs=jobs, names=names, can_be_made=can_be_made)


@router.get("/backtests/new")
async def new_backtest(request: Request, caller: Reader) -> Response:
    api = Api(request)
    return await _form(request, api, Typed.of(request.query_params))


@router.post("/backtests")
async def create_backtest(request: Request, caller: Reader) -> Response:
    form = await forms.submitted(request)
    api, typed = Api(request), Typed.of(form)
    there = await _there(api, typed)
    try:
        job = await api.post("/v1/jobs", request_of(typed, there["has_time"], there["like"]))
    except Refused as refused:
        if refused.status in (401, 403):
            raise
        return await _form(request, api, typed, refused)
    return see_other(f"/backtests/{job['id']}")


async def _there(api: Api, typed: Typed) -> dict[str, Any]:
    """What the form is about: the data set, the problem and the posterior that are chosen, as far as there are any."""
    posterior = await _maybe(api, "posteriors", typed.posterior)
    if posterior is not None:
        typed.dataset = typed.dataset or posterior["dataset_id"] or ""
        typed.problem = typed.problem or posterior["problem_id"]
    dataset, problem = await asyncio.gather(
        _maybe(api, "datasets", typed.dataset), _maybe(api, "problems", typed.problem)
    )
    job = None if posterior is None else await _maybe(api, "jobs", posterior["job_id"] or "")
    columns = [] if dataset is None else dataset["columns"]
    return {
        "dataset": dataset,
        "problem": problem,
        "posterior": posterior,
        "like": None if posterior is None or job is None else learned_like(posterior["name"], job["spec"]),
        "has_time": any(column["role"] == "time" for column in columns),
        "decision_columns": [column["name"] for column in columns if column["role"] == "decision"],
    }


async def _maybe(api: Api, kind: str, identifier: str) -> dict[str, Any] | None:
    """The object with this id; None if there is none, which the API says when the form is sent."""
    if not identifier:
        return None
    try:
        found: dict[str, Any] = await api.get(f"/v1/{kind}/{identifier}")
    except Refused:
        return None
    return found


async def _form(request: Request, api: Api, typed: Typed, refused: Refused | None = None) -> Response:
    datasets, problems, posteriors = await asyncio.gather(
        *(api.get(f"/v1/{kind}", limit=OFFERED) for kind in ("datasets", "problems", "posteriors"))
    )
    if refused is None and not typed.posterior:
        await _propose(api, typed, datasets["items"], problems["items"])
    there = await _there(api, typed)
    decisions = [] if there["problem"] is None else there["problem"]["decisions"]
    typed.actual_decision = proposed(decisions, there["decision_columns"], typed.actual_decision)
    body = request_of(typed, there["has_time"], there["like"])
    return render(
        request,
        "backtest_new.html",
        200 if refused is None else 422,
        refused=refused,
        typed=typed,
        datasets=datasets["items"],
        problems=problems["items"],
        posteriors=[one for one in posteriors["items"] if one["problem_id"] == typed.problem],
        baselines=BASELINES,
        asked=Call("POST", "/v1/jobs", body),
        **there,
    )


async def _propose(api: Api, typed: Typed, datasets: list[dict[str, Any]], problems: list[dict[str, Any]]) -> None:
    """Fill in the data set and the problem that were learned from last or, before that, the newest ones."""
    if typed.dataset and typed.problem:
        return
    about = {"problem_id": typed.problem, "dataset_id": typed.dataset}
    last = (await api.get("/v1/jobs", kind="learn", limit=1, **about))["items"]
    if last:
        typed.dataset, typed.problem = last[0]["dataset_id"], last[0]["problem_id"]
    typed.dataset = typed.dataset or (datasets[0]["id"] if datasets else "")
    typed.problem = typed.problem or (problems[0]["id"] if problems else "")


@router.get("/backtests/{job_id}")
async def show_backtest(request: Request, caller: Reader, job_id: str) -> Response:
    api = Api(request)
    job = await api.get(f"/v1/jobs/{job_id}")
    if job["kind"] != "backtest":
        return see_other(f"/jobs/{job_id}")
    asked, ended = asked_again(job), job["state"] == "succeeded"
    problem, dataset, named, (over_time, gone) = await asyncio.gather(
        api.get(f"/v1/problems/{job['problem_id']}"),
        api.get(f"/v1/datasets/{job['dataset_id']}"),
        _named(api, job),
        _over_time(api, job_id, ended),
    )
    if not ended:
        return render(request, "backtest_running.html", api=api, job=job, problem=problem, dataset=dataset, asked=asked)
    query = request.query_params
    result = Result(job["summary"], over_time, named, query.get("against"), query.getlist("show"))
    return render(
        request,
        "backtest.html",
        api=api,
        job=job,
        problem=problem,
        dataset=dataset,
        asked=asked,
        result=result,
        gone=gone,
    )


async def _named(api: Api, job: dict[str, Any]) -> dict[str, str]:
    """How posteriors that are compared are called, by their ids."""
    ids = job["spec"]["posteriors"]
    found = await asyncio.gather(*(_maybe(api, "posteriors", one) for one in ids))
    return {identifier: one["name"] for identifier, one in zip(ids, found, strict=True) if one is not None}


async def _over_time(api: Api, job_id: str, ended: bool) -> tuple[dict[str, Any] | None, str]:
    """What there is to draw, or why there is nothing any more."""
    if not ended:
        return None, ""
    try:
        return await api.get(f"/v1/jobs/{job_id}/backtest/over-time"), ""
    except Refused as refused:
        if refused.status != 409:
            raise
        return None, refused.detail


@router.post("/backtests/{job_id}/cancel")
async def cancel_backtest(request: Request, caller: Reader, job_id: str) -> Response:
    return await _told(request, job_id, "cancel")


@router.post("/backtests/{job_id}/retry")
async def retry_backtest(request: Request, caller: Reader, job_id: str) -> Response:
    return await _told(request, job_id, "retry")


async def _told(request: Request, job_id: str, what: str) -> Response:
    await forms.submitted(request)
    await Api(request).post(f"/v1/jobs/{job_id}/{what}")
    return see_other(f"/backtests/{job_id}")
