"""Pages about jobs: the list, the form for a new job, and one job with its log and training charts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, Call
from app.pages.charts import Chart, Mark, Number, Series
from app.pages.forms import parse_number
from app.pages.problems.catalogue import pretty_json
from app.pages.problems.forms import parse_json
from app.pages.problems.page import caller_may
from app.pages.render import render, see_other

# Options with their descriptions, the default first.
METHODS = {
    "auto": "chosen and tuned automatically (recommended)",
    "vi": "variational inference with your own settings",
    "mh": "Metropolis–Hastings chains: slower, asymptotically exact",
}
PREDICTORS = {
    "auto": "chosen and mixed by held-out cost",
    "linear": "linear model: fast, easy to interpret",
    "skip_mlp": "linear model plus network",
    "mlp": "network",
    "relu_affine": "linear model, clipped at zero",
    "boosted": "boosted trees with learned corrections",
}
POLICIES = {
    "": "recommended by held-out cost",
    "averaged": "averaged: mean of all models' decisions",
    "bcp": "bcp: lowest mean cost over all models",
    "blended": "blended: between averaged and bcp",
    "predictive": "predictive: lowest mean cost over outcomes, including noise",
    "map": "map: the single most likely model",
    "thompson": "thompson: one random model",
}
FEATURES = {"auto": "calendar, lags and windows, chosen by the spacing of the rows", "none": "no features of time"}
FIELDS = (
    "name",
    "problem_id",
    "dataset_id",
    "method",
    "predictor",
    "seed",
    "features",
    "features_text",
    "options",
    "policy",
    "time_limit_seconds",
)
DEFAULTS = {"method": "auto", "predictor": "auto", "seed": "0", "features": "auto"}
# JSON pointers of the API's errors, by form field.
PLACES = {
    "name": ("#/name",),
    "problem_id": ("#/problem_id",),
    "dataset_id": ("#/dataset_id",),
    "method": ("#/inference/method",),
    "predictor": ("#/predictor", "#/predictor/kind", "#/predictor/hidden"),
    "seed": ("#/seed",),
    "features": ("#/features",),
    "policy": ("#/policy",),
    "time_limit_seconds": ("#/time_limit_seconds",),
}


@dataclass(frozen=True)
class JobFormView:
    """The form as filled in, the request it makes, and errors by field."""

    fields: dict[str, str]
    body: dict[str, Any]
    wrong: dict[str, str] = field(default_factory=dict)


def empty_form(problem: str, dataset: str) -> JobFormView:
    """Return the form with defaults."""
    return _job_form(dict.fromkeys(FIELDS, "") | DEFAULTS | {"problem_id": problem, "dataset_id": dataset})


def read_job_form(form: FormData) -> JobFormView:
    fields = {name: forms.text(form, name) for name in FIELDS}
    return _job_form({name: value or DEFAULTS.get(name, "") for name, value in fields.items()})


def _job_form(fields: dict[str, str]) -> JobFormView:
    """Build the request, without fields that have their default."""
    wrong: dict[str, str] = {}
    body: dict[str, Any] = {name: fields[name].strip() for name in ("name", "problem_id", "dataset_id")}
    if not body["name"]:
        del body["name"]
    options = _options(fields["options"], "options", wrong)
    if fields["method"] != "auto" or options:
        body["inference"] = {"method": fields["method"]} | options
    if fields["predictor"] != "auto":
        body["predictor"] = {"kind": fields["predictor"]}
    if fields["features"] == "own":
        body["features"] = _options(fields["features_text"], "features_text", wrong)
    elif fields["features"] != "auto":
        body["features"] = fields["features"]
    if fields["policy"]:
        body["policy"] = fields["policy"]
    body["seed"] = parse_number(fields["seed"])
    if fields["time_limit_seconds"].strip():
        body["time_limit_seconds"] = parse_number(fields["time_limit_seconds"])
    return JobFormView(fields, body, wrong)


def _options(text: str, name: str, wrong: dict[str, str]) -> dict[str, Any]:
    if not text.strip():
        return {}
    value, why = parse_json(text)
    if why:
        wrong[name] = why
        return {}
    result: dict[str, Any] = value
    return result


def is_advanced(fields: Mapping[str, str]) -> bool:
    """Whether a field of the folded section is filled in."""
    return any(fields[name].strip() for name in ("options", "policy", "time_limit_seconds"))


Json = Mapping[str, Any]
# With fewer logged points, the stored trace of the last fit is drawn.
_ENOUGH_POINTS = 6
_CHAINS_SHOWN = 7


def log_figures(lines: Sequence[Json]) -> list[dict[str, float]]:
    """Return the figures of a job's log since its last retry."""
    result: list[dict[str, float]] = []
    for line in lines:
        if line["text"] == "asked to run again":
            result = []
        result += line.get("figures") or []
    return result


def training_charts(figures: Sequence[Json], diagnostics: Json | None, method: str) -> list[Chart]:
    """Return the training charts of a job, empty before the first figures."""
    diagnostics = diagnostics or {}
    chains = (diagnostics.get("chains") or {}).get("trace") or []
    if chains:
        return [_chains({place + 1: _loss(chains, place) for place in range(len(chains[0]["loss"]))})]
    if any("step" in one for one in figures) or (method == "mh" and not figures):
        return [_chains(_by_part(figures, "step", "loss"))]
    epochs = [one for one in figures if "epoch" in one]
    if any("part" in one for one in epochs):
        return _members(epochs)
    trace = diagnostics.get("trace") or []
    return _epochs(epochs if len(epochs) >= _ENOUGH_POINTS or not trace else trace)


def _loss(trace: Sequence[Json], chain: int) -> list[tuple[float, float]]:
    return [(point["step"], point["loss"][chain]) for point in trace]


def _by_part(figures: Sequence[Json], along: str, what: str) -> dict[int, list[tuple[float, float]]]:
    """Return the points of each part, in order and without repeats."""
    result: dict[int, dict[float, float]] = {}
    for one in figures:
        if along in one and what in one:
            result.setdefault(int(one.get("part", 1)), {})[one[along]] = one[what]
    return {part: sorted(points.items()) for part, points in sorted(result.items())}


def _chains(by_chain: Mapping[int, Sequence[tuple[float, float]]]) -> Chart:
    shown = dict(list(by_chain.items())[:_CHAINS_SHOWN])
    x, series = _align(shown, "chain")
    return Chart(
        "Cost by chain",
        x,
        series,
        x_label="step",
        y_label="mean cost of the history",
        note="Converged chains move around one level.",
        key="trace-chains",
    )


def _members(figures: Sequence[Json]) -> list[Chart]:
    """Return the charts of members trained in parallel."""
    x, costs = _align(_by_part(figures, "epoch", "validation_cost"), "member")
    at, divergences = _align(_by_part(figures, "epoch", "kl"), "member")
    return [_cost_chart(x, costs), _divergence_chart(at, divergences)]


def _align(lines: Mapping[int, Sequence[tuple[float, float]]], word: str) -> tuple[list[float], list[Series]]:
    """Put lines with different x values on one axis by linear interpolation."""
    x = sorted({at for points in lines.values() for at, _ in points})
    series = [
        Series(f"{word} {part}", [_interpolate(points, at) for at in x], colour=place % 7)
        for place, (part, points) in enumerate(lines.items())
    ]
    return x, series


def _interpolate(points: Sequence[tuple[float, float]], at: float) -> Number:
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[0][1] if len(points) == 1 and points[0][0] == at else None


def _epochs(points: Sequence[Json]) -> list[Chart]:
    """Return the charts of successive fits; epochs restart with each fit."""
    x: list[float] = []
    held_out: list[Number] = []
    learned: list[Number] = []
    begins: list[int] = []
    done, last = 0.0, 0.0
    for one in points:
        if one["epoch"] <= last:
            # A gap separates the fits.
            done += last
            x.append(done + 0.5)
            held_out.append(None)
            learned.append(None)
            begins.append(len(x))
        last = one["epoch"]
        x.append(done + last)
        held_out.append(one.get("validation_cost"))
        learned.append(one.get("risk"))
    series = [Series("held-out rows", held_out), Series("training rows", learned, colour=1, dashed=True)]
    marks = [Mark(x[begin - 1], f"fit {number}") for number, begin in enumerate(begins, 2) if begin < len(x)]
    # Divergences of models of different sizes are not comparable, so only the last fit is drawn.
    latest = points[_last_fit(points) :]
    divergences = [Series("KL", [one.get("kl") for one in latest], colour=2)] if latest else []
    return [
        _cost_chart(x, series if x else [], marks),
        _divergence_chart([float(one["epoch"]) for one in latest], divergences),
    ]


def _last_fit(points: Sequence[Json]) -> int:
    return max([at for at in range(1, len(points)) if points[at]["epoch"] <= points[at - 1]["epoch"]], default=0)


def _in_view(series: Sequence[Series]) -> list[float] | None:
    """Return a y range without the first epochs, which may be far above the rest."""
    values = sorted(value for one in series for value in one.values if value is not None)
    if len(values) < _ENOUGH_POINTS:
        return None
    low, usual = values[0], values[int(0.8 * (len(values) - 1))]
    high = low + 1.5 * (usual - low)
    return [low, high] if low < high < values[-1] else None


def _cost_chart(x: Sequence[float], series: Sequence[Series], marks: Sequence[Mark] = ()) -> Chart:
    view = _in_view(series)
    note = "Each restart fits another model." if marks else "Training stops when held-out cost no longer falls."
    return Chart(
        "Cost of decisions",
        x,
        series,
        x_label="epoch",
        y_label="mean cost",
        marks=marks,
        note=f"{note} The first epochs are above the range shown." if view else note,
        height=200,
        key="trace-cost",
        extra={"yRange": view} if view else {},
    )


def _divergence_chart(x: Sequence[float], series: Sequence[Series]) -> Chart:
    return Chart(
        "Distance from the prior (KL)",
        x,
        series,
        x_label="epoch",
        y_label="KL divergence",
        note="Latest fit, mean over the members still training.",
        height=200,
        key="trace-kl",
    )


router = APIRouter(include_in_schema=False)

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
KINDS = {"learn": "training", "prescribe": "decisions for a table", "backtest": "backtest"}
UNFINISHED = ("queued", "running")
# Data sets and problems to choose from, and how many of them are checked for a match.
CHOICES, LOOKED_AT = 100, 20


@router.get("/jobs")
async def jobs(request: Request, caller: Reader, cursor: str = "", state: str = "", kind: str = "") -> Response:
    api = Api(request)
    page = await api.get("/v1/jobs", limit=50, cursor=cursor, state=state, kind=kind)
    running = any(job["state"] in UNFINISHED for job in page["items"])
    return render(
        request, "jobs.html", api=api, page=page, state=state, kind=kind, states=STATES, kinds=KINDS, running=running
    )


# a new job


@router.get("/jobs/new")
async def new_job(request: Request, caller: Reader, problem: str = "", dataset: str = "") -> Response:
    return await _render_form(request, empty_form(problem, dataset))


@router.post("/jobs/new")
async def create_job(request: Request, caller: Reader) -> Response:
    form = read_job_form(await forms.read_form(request))
    if form.wrong:
        return await _render_form(request, form, status=422)
    try:
        made = await Api(request).post("/v1/jobs", form.body)
    except ApiRefusal as refusal:
        if refusal.status not in (409, 422, 429):
            raise
        return await _render_form(request, form, refusal, refusal.status)
    return see_other(f"/jobs/{made['id']}")


@router.post("/jobs/new/preview")
async def preview_job(request: Request, caller: Reader) -> Response:
    """Preview the request and whether problem and data match: parts of a page."""
    form = read_job_form(await forms.read_form(request))
    return render(request, "job_preview.html", **await _choices(request, form))


async def _render_form(
    request: Request, form: JobFormView, refusal: ApiRefusal | None = None, status: int = 200
) -> Response:
    shown = [pointer for pointers in PLACES.values() for pointer in pointers]
    return render(
        request,
        "job_new.html",
        status,
        refusal=refusal,
        places=PLACES,
        shown=shown,
        methods=METHODS,
        predictors=PREDICTORS,
        policies=POLICIES,
        **await _choices(request, form),
    )


async def _choices(request: Request, form: JobFormView) -> dict[str, Any]:
    """Return the options, whether they match, and the request that the form makes."""
    api, fields = Api(request), form.fields
    problems, datasets = await asyncio.gather(
        api.get("/v1/problems", limit=CHOICES), api.get("/v1/datasets", limit=CHOICES)
    )
    problem = await api.find("/v1/problems", fields["problem_id"])
    dataset = await api.find("/v1/datasets", fields["dataset_id"])
    fits: dict[str, bool] = {}
    if problem is not None:
        asking = [_outcomes(api, one["id"]) for one in datasets["items"][:LOOKED_AT]]
        fits = {name: set(problem["outcomes"]) <= outcomes for name, outcomes in await asyncio.gather(*asking)}
    return {
        "form": form,
        "fields": fields,
        "problems": _include_chosen(problems["items"], problem),
        "datasets": _include_chosen(datasets["items"], dataset),
        "problem": problem,
        "dataset": dataset,
        "fits": fits,
        "lacking": _missing_outcomes(problem, dataset),
        "has_time": dataset is not None and any(column["role"] == "time" for column in dataset["columns"]),
        "call": Call("POST", "/v1/jobs", form.body),
        "advanced": is_advanced(fields),
    }


async def _outcomes(api: Api, dataset_id: str) -> tuple[str, set[str]]:
    columns = (await api.get(f"/v1/datasets/{dataset_id}"))["columns"]
    return dataset_id, {column["name"] for column in columns if column["role"] == "outcome"}


def _include_chosen(listed: list[dict[str, Any]], chosen: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the list, with the chosen object appended if it is not listed."""
    known = {one["id"] for one in listed}
    return listed if chosen is None or chosen["id"] in known else [*listed, chosen]


def _missing_outcomes(problem: dict[str, Any] | None, dataset: dict[str, Any] | None) -> list[str] | None:
    """Return the problem's outcomes that the data set lacks; None until both are chosen."""
    if problem is None or dataset is None:
        return None
    known = {column["name"] for column in dataset["columns"] if column["role"] == "outcome"}
    return [name for name in problem["outcomes"] if name not in known]


# one job


@router.get("/jobs/{job_id}")
async def job(request: Request, job_id: str, caller: Reader) -> Response:
    return await _render_job(request, job_id)


async def _render_job(request: Request, job_id: str, refusal: ApiRefusal | None = None) -> Response:
    api = Api(request)
    result = await api.get(f"/v1/jobs/{job_id}")
    log, problem, dataset = await asyncio.gather(
        api.get(f"/v1/jobs/{job_id}/log"),
        Api(request).find("/v1/problems", result["problem_id"]),
        Api(request).find("/v1/datasets", result["dataset_id"]),
    )
    posterior = await _posterior_of(Api(request), result)
    api.calls.append(Call("GET", f"/v1/jobs/{job_id}/events"))
    if caller_may(request, "train"):
        act = "cancel" if result["state"] in UNFINISHED else "retry"
        if result["state"] != "succeeded":
            api.calls.append(Call("POST", f"/v1/jobs/{job_id}/{act}"))
    return render(
        request,
        "job.html",
        409 if refusal else 200,
        api=api,
        refusal=refusal,
        job=result,
        kinds=KINDS,
        running=result["state"] in UNFINISHED,
        lines=log["lines"],
        charts=_charts(result, log["lines"], posterior),
        problem=problem,
        dataset=dataset,
        posterior=posterior,
        text=pretty_json(result["spec"]),
    )


async def _posterior_of(api: Api, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the posterior that a job made or uses; None if it was deleted."""
    if not job["posterior_id"] or (job["kind"] == "learn" and job["state"] != "succeeded"):
        return None
    result: dict[str, Any] | None = await api.find("/v1/posteriors", job["posterior_id"])
    if result is None or job["kind"] != "learn":
        return result
    return result | {"diagnostics": await api.get(f"/v1/posteriors/{job['posterior_id']}/diagnostics")}


def _charts(job: dict[str, Any], lines: list[dict[str, Any]], posterior: dict[str, Any] | None) -> list[Any]:
    if job["kind"] != "learn":
        return []
    method = (job["spec"].get("inference") or {}).get("method", "auto")
    charts = training_charts(log_figures(lines), None if posterior is None else posterior["diagnostics"], method)
    # Jobs that ended before the first figures have no charts.
    return charts if job["state"] in UNFINISHED or any(chart.x for chart in charts) else []


@router.get("/jobs/{job_id}/traces")
async def traces(request: Request, job_id: str, caller: Reader) -> Response:
    """The current charts of a job: a part of a page."""
    api = Api(request)
    result = await api.get(f"/v1/jobs/{job_id}")
    log = await api.get(f"/v1/jobs/{job_id}/log")
    return render(request, "job_traces.html", charts=_charts(result, log["lines"], None))


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str, caller: Reader) -> Response:
    return await _act(request, job_id, "cancel")


@router.post("/jobs/{job_id}/retry")
async def retry_job(request: Request, job_id: str, caller: Reader) -> Response:
    return await _act(request, job_id, "retry")


async def _act(request: Request, job_id: str, act: str) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).post(f"/v1/jobs/{job_id}/{act}")
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        return await _render_job(request, job_id, refusal)
    return see_other(f"/jobs/{job_id}")
