"""Pages about posteriors: the list, and one of them with all that speaks for and against it."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, Call, ApiRefusal
from app.pages.posteriors import charts as posterior_charts
from app.pages.posteriors import forward_charts as posterior_time
from app.pages.posteriors import learning as posterior_learning
from app.pages.posteriors import monitoring as posterior_since
from app.pages.posteriors import verdicts as verdicts
from app.pages.posteriors.figures import estimate, part, value
from app.pages.posteriors.origin import provenance, revision_of
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

_A_PAGE, _NAMED = 25, 200
_QUALITIES = {"": "All", "ok": "Good", "warn": "Take care", "bad": "Do not use"}
# So many moves of an alias are shown; the API has all of them.
_MOVES = 10
# So often a part that is worth another try is asked for.
_ATTEMPTS = 8


@router.get("/posteriors")
async def list_page(
    request: Request,
    caller: Reader,
    quality: str = "",
    problem_id: str = "",
    dataset_id: str = "",
    cursor: str = "",
) -> Response:
    api = Api(request)
    wanted = {"quality": quality, "problem_id": problem_id, "dataset_id": dataset_id}
    found, problems, datasets = await asyncio.gather(
        api.get("/v1/posteriors", limit=_A_PAGE, cursor=cursor, **wanted),
        api.get("/v1/problems", limit=_NAMED),
        api.get("/v1/datasets", limit=_NAMED),
    )
    return render(
        request,
        "posteriors.html",
        api=api,
        posteriors=found["items"],
        next_cursor=found["next_cursor"],
        problems=_names(problems),
        datasets=_names(datasets),
        qualities=_QUALITIES,
        wanted=wanted,
    )


def _names(page: Any) -> dict[str, str]:
    return {item["id"]: item["name"] or item["id"] for item in page["items"]}


@router.get("/posteriors/{named}")
async def posterior_page(request: Request, named: str, caller: Reader) -> Response:
    return await _render_posterior(request, named)


async def _render_posterior(
    request: Request,
    named: str,
    status: int = 200,
    *,
    refused: ApiRefusal | None = None,
    at: str = "",
    typed: str = "",
    taken: Any = None,
) -> Response:
    """A posterior; ``refused`` is what was wrong with a form of the page, which stands ``at`` names or at the end."""
    api = Api(request)
    posterior, told = await asyncio.gather(
        api.get(f"/v1/posteriors/{_safe(named)}"), api.get(f"/v1/posteriors/{_safe(named)}/diagnostics")
    )
    problem, dataset, job, alike = await asyncio.gather(
        _get_or_none(api, "problems", posterior["problem_id"]),
        _get_or_none(api, "datasets", posterior["dataset_id"]),
        _get_or_none(api, "jobs", posterior["job_id"]),
        api.get("/v1/posteriors", problem_id=posterior["problem_id"], limit=_NAMED),
    )
    aliases = posterior["aliases"]
    moves = await asyncio.gather(*(api.get(f"/v1/aliases/{name}/moves", limit=_MOVES) for name in aliases))
    recipe = posterior["recipe"]
    return render(
        request,
        "posterior.html",
        status,
        api=api,
        refused=refused,
        at=at,
        typed=typed,
        taken=taken,
        posterior=posterior,
        told=told,
        problem=problem,
        dataset=dataset,
        job=job,
        reason=verdicts.quality_reason(told),
        said=verdicts.verdict_sentences(told, posterior["problem"]),
        facts=verdicts.key_figures(told),
        forward=[posterior_time.over_time(told, recipe), posterior_time.by_distance(told, recipe)],
        season=estimate(told, "forward", "season"),
        promise=posterior_charts.promise(told),
        baselines=posterior_charts.baselines(told),
        policies=posterior_charts.policies(told),
        candidates=posterior_charts.candidates(told),
        shares=posterior_charts.shares(told),
        mixture=posterior_charts.mixture(told),
        pit=posterior_charts.pit(told),
        coverage=posterior_charts.coverage(told),
        coverage_words=verdicts.coverage_text(told),
        carriers=posterior_charts.carriers(told),
        skill=_skill(told),
        traces=posterior_learning.traces(told),
        stopped=posterior_learning.stopping_text(told),
        agreement=posterior_learning.agreement_text(told),
        chain_trace=posterior_learning.chain_trace(told),
        mixing=posterior_learning.mixing(told),
        chain_facts=posterior_learning.chain_facts(told),
        temperatures=posterior_learning.temperatures(told),
        certificate=posterior_learning.certificate(told),
        origin=provenance(posterior, told, dataset, job),
        names=[(name, found["items"]) for name, found in zip(aliases, moves, strict=True)],
        others=_others(alike["items"], posterior, told),
        grown=_grown(posterior, told, dataset, job),
        actions=_actions(posterior["id"]),
    )


def _safe(named: str) -> str:
    return quote(named, safe="")


async def _get_or_none(api: Api, what: str, identifier: str | None) -> Any:
    """An object that the posterior names; None where it has none, or it is gone."""
    if identifier is None:
        return None
    try:
        return await api.get(f"/v1/{what}/{identifier}")
    except ApiRefusal:
        return None


def _skill(told: Any) -> float | None:
    """By how much scenarios tell more of what happens than the history without any context does."""
    score, constant = value(told, "calibration", "score"), value(told, "calibration", "constant_score")
    return None if score is None or not constant else 1 - score / constant


def _grown(posterior: Any, told: Any, dataset: Any, job: Any) -> str:
    """How newer rows can be learned from: ``on`` from this posterior, ``again``, or not at all where there are none."""
    revision = revision_of(posterior, told, job)
    if dataset is None or revision is None or dataset["revision"] <= revision:
        return ""
    return "again" if part(posterior, "description", "family") == "chains" else "on"


def _others(alike: list[Any], posterior: Any, told: Any) -> list[Any]:
    """Aliases of other posteriors of the same problem, which may be moved here, and what is known of the two."""
    before, more = part(told, "update", "from_posterior"), estimate(told, "update", "difference")
    return [
        {"alias": name, "names": one, "more": more if one["id"] == before else None}
        for one in alike
        if one["id"] != posterior["id"]
        for name in one["aliases"]
    ]


def _actions(posterior_id: str) -> list[Call]:
    """How names are given, and the posterior deleted, without this page."""
    return [
        Call("PUT", "/v1/aliases/NAME", {"posterior_id": posterior_id}),
        Call("DELETE", f"/v1/posteriors/{posterior_id}"),
    ]


@router.get("/posteriors/{named}/drivers")
async def drivers_part(request: Request, named: str, caller: Reader, attempt: int = 1) -> Response:
    """What drives outcomes, for a page that is open already."""
    api, found, refused = Api(request), None, None
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    try:
        if posterior["dataset_id"] is not None:
            found = await posterior_since.drivers(api, posterior)
    except ApiRefusal as one:
        if _is_early(one, attempt):
            return _retry_later(request, posterior, "drivers", attempt)
        refused = one
    return render(request, "posterior_drivers.html", api=api, refused=refused, drivers=found, posterior=posterior)


@router.get("/posteriors/{named}/since")
async def monitoring_part(request: Request, named: str, caller: Reader, attempt: int = 1) -> Response:
    """Whether promises have held since it was learned, for a page that is open already."""
    api, found, refused = Api(request), [], None
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    try:
        found = await posterior_since.monitor(api, posterior)
    except ApiRefusal as one:
        if _is_early(one, attempt):
            return _retry_later(request, posterior, "since", attempt)
        refused = one
    return render(request, "posterior_since.html", api=api, refused=refused, since=found, posterior=posterior)


def _is_early(refused: ApiRefusal, attempt: int) -> bool:
    """Whether the same may be answered in a moment."""
    return refused.status == posterior_since.STARTING and attempt < _ATTEMPTS


def _retry_later(request: Request, posterior: Any, what: str, attempt: int) -> Response:
    return render(request, "posterior_later.html", posterior=posterior, what=what, attempt=attempt + 1)


@router.post("/posteriors/{named}/aliases")
async def give_name(request: Request, named: str, caller: Reader) -> Response:
    """Make an alias of the posterior or, where the form says what it names now, move one."""
    form, api = await forms.read_form(request), Api(request)
    name, names_now = forms.text(form, "name").strip(), forms.text(form, "names_now")
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    body = {"posterior_id": posterior["id"], "if_posterior_id": names_now or None}
    try:
        await api.put(f"/v1/aliases/{_alias(name)}", body)
    except ApiRefusal as refused:
        taken = await _get_or_none(Api(request), "aliases", _alias(name)) if refused.status == 409 else None
        return await _render_posterior(request, named, refused.status, refused=refused, at="names", typed=name, taken=taken)
    return see_other(f"/posteriors/{posterior['id']}#names")


def _alias(name: str) -> str:
    """A name as part of an address; one that would change the address becomes one that the API refuses."""
    return _safe(name.replace("/", " ") if name.strip(".") else " ")


@router.post("/posteriors/{named}/learn-on")
async def learn_on(request: Request, named: str, caller: Reader) -> Response:
    """Begin a job that goes on from this posterior with newer rows, and may move an alias."""
    form, api = await forms.read_form(request), Api(request)
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    alias = forms.text(form, "alias")
    body = {
        "name": posterior["name"],
        "problem_id": posterior["problem_id"],
        "dataset_id": posterior["dataset_id"],
        "from_posterior": {"posterior_id": posterior["id"]},
    }
    try:
        job = await api.post("/v1/jobs", body | ({"promote": {"alias": alias}} if alias else {}))
    except ApiRefusal as refused:
        return await _render_posterior(request, named, refused.status, refused=refused, at="since")
    return see_other(f"/jobs/{job['id']}")


@router.post("/posteriors/{named}/aliases/{name}/delete")
async def delete_name(request: Request, named: str, name: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(f"/v1/aliases/{_alias(name)}")
    except ApiRefusal as refused:
        return await _render_posterior(request, named, refused.status, refused=refused, at="names")
    return see_other(f"/posteriors/{named}#names")


@router.post("/posteriors/{named}/delete")
async def delete_posterior(request: Request, named: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(f"/v1/posteriors/{_safe(named)}")
    except ApiRefusal as refused:
        return await _render_posterior(request, named, refused.status, refused=refused, at="delete")
    return see_other("/posteriors")
