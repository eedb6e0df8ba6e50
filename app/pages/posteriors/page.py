"""Pages about posteriors: the list, and one posterior with its diagnostics, provenance, drivers and monitoring."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, Call
from app.pages.charts import Chart, Series
from app.pages.posteriors import charts, verdicts
from app.pages.posteriors.charts import LevelChart, clock_of, kind_words, periods
from app.pages.posteriors.diagnostics import Json, estimate, lines, part, value
from app.pages.render import number, percent, render, see_other

_FAMILIES = {
    "laplace": "Laplace",
    "gaussian": "Gaussian",
    "matrix_gaussian": "Gaussian around a regression",
    "chains": "raw draws of chains",
}
_METHODS = {
    "auto": "automatic",
    "vi": "variational inference",
    "mh": "Metropolis–Hastings chains",
}


@dataclass(frozen=True)
class ProvenanceView:
    """A fact; ``word`` is its glossary term, ``link`` its page; ``code`` marks text to copy."""

    name: str
    value: str
    note: str = ""
    word: str = ""
    link: str = ""
    code: bool = False


def provenance(posterior: Any, diagnostics: Any, dataset: Any, job: Any) -> list[ProvenanceView]:
    """Return all provenance facts in order."""
    result = [
        *_data(posterior, diagnostics, dataset, job),
        *_learning(posterior, diagnostics, job),
        *_features(posterior),
    ]
    result.append(ProvenanceView("Posterior digest", posterior["digest"], word="digest", code=True))
    versions = part(diagnostics, "origin", "versions")
    if isinstance(versions, dict) and versions:
        result.append(ProvenanceView("Versions", ", ".join(f"{name} {of}" for name, of in versions.items())))
    return result


def revision_of(posterior: Any, diagnostics: Any, job: Any) -> float | None:
    """Return the data set revision that a posterior was trained on, if known."""
    noted = value(posterior, "recipe", "revision") or value(diagnostics, "origin", "revision")
    return noted or value(job, "spec", "revision")


def _data(posterior: Any, diagnostics: Any, dataset: Any, job: Any) -> list[ProvenanceView]:
    if dataset is None:
        return [ProvenanceView("Data", "unavailable", "the posterior was imported, or its data set was deleted")]
    revision, newest = revision_of(posterior, diagnostics, job), dataset["revision"]
    rows = value(posterior, "recipe", "rows")
    words = f"{number(dataset['rows'], 9)} rows now" if rows is None else f"trained on {number(rows, 9)} rows"
    left_out = value(posterior, "recipe", "left_out")
    words += f", {number(left_out, 9)} left out for lack of earlier rows" if left_out else ""
    result = [ProvenanceView("Data", dataset["name"] or dataset["id"], words, link=f"/datasets/{dataset['id']}")]
    if revision is not None:
        later = "the newest" if revision == newest else f"the newest is {newest}"
        result.append(ProvenanceView("Revision", number(revision, 9), later, word="revision"))
    digest = part(diagnostics, "origin", "dataset_digest") or (dataset["digest"] if revision == newest else None)
    if digest:
        result.append(ProvenanceView("Data digest", digest, word="digest", code=True))
    return result


def _learning(posterior: Any, diagnostics: Any, job: Any) -> list[ProvenanceView]:
    description = posterior["description"]
    method, why = str(part(diagnostics, "method") or ""), str(part(diagnostics, "inference_reason") or "")
    result = [ProvenanceView("Method", _METHODS.get(method, method or "unknown"), why)]
    predictor = str(part(description, "predictor", "kind") or "")
    if predictor:
        trees = part(description, "predictor", "features", "kind") == "boosted"
        result.append(ProvenanceView("Predictor", kind_words(predictor) + (" on boosted trees" if trees else "")))
    family = str(part(description, "family") or "")
    if family:
        result.append(ProvenanceView("Posterior family", _FAMILIES.get(family, family)))
    result.append(ProvenanceView("Loss", posterior["loss_meaning"] or posterior["loss"]))
    seed = value(description, "seed")
    if seed is not None:
        result.append(ProvenanceView("Seed", str(int(seed)), word="seed"))
    temperature = value(diagnostics, "inverse_temperature")
    if temperature is not None:
        scale = value(diagnostics, "cost_scale")
        units = "" if scale is None else f"for costs divided by {number(scale)}"
        result.append(ProvenanceView("Inverse temperature", number(temperature), units, word="inverse temperature"))
    result.append(ProvenanceView("Stored draws", number(posterior["particles"], 9)))
    result += _before(diagnostics, job)
    if job is not None:
        result.append(ProvenanceView("Job", job["name"] or job["id"], _took(job), link=f"/jobs/{job['id']}"))
    else:
        result.append(ProvenanceView("Job", "unavailable", "the posterior was imported"))
    return result


def _took(job: Any) -> str:
    attempts = int(job.get("attempts") or 1)
    return "" if attempts == 1 else f"{attempts} attempts"


def _before(diagnostics: Any, job: Any) -> list[ProvenanceView]:
    """Return the posterior that this one updates."""
    before = part(diagnostics, "update", "from_posterior")
    if not before:
        return []
    new = value(diagnostics, "update", "new_rows")
    words = "" if new is None else f"with {number(new, 9)} new rows"
    if part(job, "spec", "from_posterior", "as_prior"):
        forgotten = value(job, "spec", "from_posterior", "forgetting") or 0.0
        words += ", as the prior" + (f", forgetting {percent(forgotten)}" if forgotten else "")
    return [ProvenanceView("Updated from", str(before), words, link=f"/posteriors/{before}")]


def _features(posterior: Any) -> list[ProvenanceView]:
    """Describe the recipe of time features."""
    recipe = part(posterior, "recipe", "recipe")
    if not isinstance(recipe, dict):
        return []
    unit = periods(posterior["recipe"])
    words = []
    for name, text in (
        ("calendar", "calendar: {}"),
        ("lags", f"outcomes {{}} {unit} ago"),
        ("windows", f"means and quantiles over {{}} {unit}"),
    ):
        given = recipe.get(name)
        if given:
            words.append(text.format(", ".join(map(str, given))))
    words += ["trend"] * bool(recipe.get("trend"))
    words += [f"public holidays of {recipe['holidays']}"] * bool(recipe.get("holidays"))
    keys = part(posterior, "recipe", "keys")
    words += [f"series by {', '.join(keys)}"] * bool(keys)
    result = [ProvenanceView("Time features", "; ".join(words) or "none")]
    lead = value(recipe, "lead")
    if lead is not None:
        result.append(ProvenanceView("Lead", f"{number(lead, 9)} {unit[:-1] if lead == 1 else unit}", word="lead"))
    until, clock = value(posterior, "recipe", "learned_until"), clock_of(posterior["recipe"])
    if until is not None and clock is not None:
        result.append(ProvenanceView("Last training row", clock.text(int(until))))
    return result


# Drivers use a sample of the latest rows: each row takes several predictions per column.
_LATEST, _DRAWN = 120, 12
_SECONDS = 20.0
_NEEDED = ("context", "time", "series")
# Solver processes are starting or busy: worth a retry.
STARTING = 503


@dataclass(frozen=True)
class DriverView:
    """A column and its mean absolute effect on an outcome; ``width`` is relative to the largest, up to 100."""

    name: str
    role: str
    size: float
    width: float


@dataclass(frozen=True)
class DriversView:
    rows: int
    latest: int
    outcomes: list[tuple[str, list[DriverView]]]
    # how effects are computed, and relative to what
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
    report = [result for one in answer["prescriptions"] if (result := part(one, "sensitivity", "attribution"))]
    roles = {column["name"]: column["role"] for column in columns}
    names = list(report[0]["outcomes"]) if report else []
    return DriversView(
        len(report),
        len(latest),
        [(name, _ranked([part(one, "outcomes", name, "contributions") for one in report], roles)) for name in names],
        str(report[0].get("method", "")) if report else "",
        str(report[0].get("baseline", "")) if report else "",
    )


def _by_time(rows: list[dict[str, Any]], columns: Iterable[Json]) -> list[dict[str, Any]]:
    """Sort by time, if the rows have one."""
    time = next((column["name"] for column in columns if column["role"] == "time"), None)
    return rows if time is None else sorted(rows, key=lambda row: row[time])


def _ranked(contributions: list[Any], roles: Mapping[str, str]) -> list[DriverView]:
    sizes: dict[str, list[float]] = {}
    for one in contributions:
        for name in one or {}:
            result = value(one, name)
            if result is not None:
                sizes.setdefault(name, []).append(abs(result))
    means = {name: sum(result) / len(result) for name, result in sizes.items()}
    most = max(means.values(), default=0.0) or 1.0
    ordered = sorted(means.items(), key=lambda one: -one[1])
    return [DriverView(name, roles.get(name, ""), size, round(100 * size / most, 2)) for name, size in ordered]


@dataclass(frozen=True)
class MonitoringView:
    """Expected and realised cost of recent data from one source, with a chart if there are several periods."""

    label: str
    verdict: str
    sentence: str
    overall: Json | None
    left_out: int
    chart: Chart | None

    @property
    def is_empty(self) -> bool:
        return self.verdict == "too_few" and self.overall is None


_SOURCES = {
    "dataset": "Rows appended to the data set",
    "log": "Logged decisions with recorded outcomes",
}


async def monitor(api: Api, posterior: Json) -> list[MonitoringView]:
    """Get the drift report of later rows and of the log; a refusal is shown as text."""
    result = []
    for source, words in _SOURCES.items():
        if source == "dataset" and posterior["dataset_id"] is None:
            continue
        try:
            report = await api.get(f"/v1/posteriors/{posterior['id']}/drift", source=source)
        except ApiRefusal as refusal:
            if refusal.status == STARTING:
                raise
            result.append(MonitoringView(words, "", refusal.detail, None, 0, None))
            continue
        chart = _stretches(report, words) if len(lines(report, "stretches")) > 1 else None
        result.append(
            MonitoringView(
                words, report["verdict"], report["sentence"], report["overall"], int(report.get("left_out") or 0), chart
            )
        )
    return result


def _stretches(report: Json, words: str) -> Chart:
    """Draw expected and realised cost by period, over time if the rows have one."""
    table = lines(report, "stretches")
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
        title="Expected and realised cost of recent data",
        note=f"{words}.",
        x=places,
        series=[
            Series("realised", [value(line, "realised") for line in table for _ in range(2)], "line", 0),
            Series("expected", [value(line, "promised") for line in table for _ in range(2)], "line", 1, dashed=True),
        ],
        x_label="time" if is_time else "stretch",
        y_label="mean cost",
        time=is_time,
        zero=True,
        height=200,
        heads=["from", "to", "rows", "expected", "realised", "realised ÷ expected", "% above the 95 % limit"],
        cells=cells,
    )


def stretch_name(index: int) -> str:
    return f"period {index + 1}"


def _share(line: Json) -> float | None:
    result = value(line, "above", "share")
    return None if result is None else 100 * result


def _seconds(text: Any) -> float | None:
    """Return seconds since 1970; None if the text is not a time."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


router = APIRouter(include_in_schema=False)

_A_PAGE, _NAMED = 25, 200
_QUALITIES = {"": "All", "ok": "Good", "warn": "Use with care", "bad": "Do not use"}
# Moves of an alias that are shown; the API has all.
_MOVES = 10
# Retries of a part of the page.
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
    result, problems, datasets = await asyncio.gather(
        api.get("/v1/posteriors", limit=_A_PAGE, cursor=cursor, **wanted),
        api.get("/v1/problems", limit=_NAMED),
        api.get("/v1/datasets", limit=_NAMED),
    )
    return render(
        request,
        "posteriors.html",
        api=api,
        posteriors=result["items"],
        next_cursor=result["next_cursor"],
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
    refusal: ApiRefusal | None = None,
    at: str = "",
    typed: str = "",
    taken: Any = None,
) -> Response:
    """A posterior; ``refused`` is what was wrong with a form of the page, which stands ``at`` names or at the end."""
    api = Api(request)
    posterior, diagnostics = await asyncio.gather(
        api.get(f"/v1/posteriors/{_safe(named)}"), api.get(f"/v1/posteriors/{_safe(named)}/diagnostics")
    )
    problem, dataset, job, alike = await asyncio.gather(
        api.find("/v1/problems", posterior["problem_id"]),
        api.find("/v1/datasets", posterior["dataset_id"]),
        api.find("/v1/jobs", posterior["job_id"]),
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
        refusal=refusal,
        at=at,
        typed=typed,
        taken=taken,
        posterior=posterior,
        diagnostics=diagnostics,
        problem=problem,
        dataset=dataset,
        job=job,
        reason=verdicts.quality_reason(diagnostics),
        said=verdicts.verdict_sentences(diagnostics, posterior["problem"]),
        facts=verdicts.key_figures(diagnostics),
        forward=[charts.over_time(diagnostics, recipe), charts.by_distance(diagnostics, recipe)],
        season=estimate(diagnostics, "forward", "season"),
        promise=charts.promise(diagnostics),
        baselines=charts.baselines(diagnostics),
        policies=charts.policies(diagnostics),
        candidates=charts.candidates(diagnostics),
        shares=charts.shares(diagnostics),
        mixture=charts.mixture(diagnostics),
        pit=charts.pit(diagnostics),
        coverage=charts.coverage(diagnostics),
        coverage_words=verdicts.coverage_text(diagnostics),
        carriers=charts.carriers(diagnostics),
        skill=_skill(diagnostics),
        traces=charts.traces(diagnostics),
        stopped=charts.stopping_text(diagnostics),
        agreement=charts.agreement_text(diagnostics),
        chain_trace=charts.chain_trace(diagnostics),
        mixing=charts.mixing(diagnostics),
        chain_facts=charts.chain_facts(diagnostics),
        temperatures=charts.temperatures(diagnostics),
        certificate=charts.certificate(diagnostics),
        origin=provenance(posterior, diagnostics, dataset, job),
        names=[(name, result["items"]) for name, result in zip(aliases, moves, strict=True)],
        others=_others(alike["items"], posterior, diagnostics),
        grown=_newer_rows_action(posterior, diagnostics, dataset, job),
        actions=_actions(posterior["id"]),
    )


def _safe(named: str) -> str:
    return quote(named, safe="")


def _skill(diagnostics: Any) -> float | None:
    """Return the skill score of scenarios compared with the unconditional history."""
    score, constant = value(diagnostics, "calibration", "score"), value(diagnostics, "calibration", "constant_score")
    return None if score is None or not constant else 1 - score / constant


def _newer_rows_action(posterior: Any, diagnostics: Any, dataset: Any, job: Any) -> str:
    """Return how to train on newer rows: ``on`` updates, ``again`` starts over, empty without newer rows."""
    revision = revision_of(posterior, diagnostics, job)
    if dataset is None or revision is None or dataset["revision"] <= revision:
        return ""
    return "again" if part(posterior, "description", "family") == "chains" else "on"


def _others(alike: list[Any], posterior: Any, diagnostics: Any) -> list[Any]:
    """Return aliases of other posteriors of the problem, with the cost difference if known."""
    before, more = part(diagnostics, "update", "from_posterior"), estimate(diagnostics, "update", "difference")
    return [
        {"alias": name, "names": one, "more": more if one["id"] == before else None}
        for one in alike
        if one["id"] != posterior["id"]
        for name in one["aliases"]
    ]


def _actions(posterior_id: str) -> list[Call]:
    """Return the calls that set an alias and delete the posterior."""
    return [
        Call("PUT", "/v1/aliases/NAME", {"posterior_id": posterior_id}),
        Call("DELETE", f"/v1/posteriors/{posterior_id}"),
    ]


@router.get("/posteriors/{named}/drivers")
async def drivers_part(request: Request, named: str, caller: Reader, attempt: int = 1) -> Response:
    """Drivers of outcomes: a part of the page."""
    api, result, refusal = Api(request), None, None
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    try:
        if posterior["dataset_id"] is not None:
            result = await drivers(api, posterior)
    except ApiRefusal as one:
        if _is_early(one, attempt):
            return _retry_later(request, posterior, "drivers", attempt)
        refusal = one
    return render(request, "posterior_drivers.html", api=api, refusal=refusal, drivers=result, posterior=posterior)


@router.get("/posteriors/{named}/since")
async def monitoring_part(request: Request, named: str, caller: Reader, attempt: int = 1) -> Response:
    """Monitoring of recent data: a part of the page."""
    api, result, refusal = Api(request), [], None
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    try:
        result = await monitor(api, posterior)
    except ApiRefusal as one:
        if _is_early(one, attempt):
            return _retry_later(request, posterior, "since", attempt)
        refusal = one
    return render(request, "posterior_since.html", api=api, refusal=refusal, since=result, posterior=posterior)


def _is_early(refusal: ApiRefusal, attempt: int) -> bool:
    """Whether a retry may succeed."""
    return refusal.status == STARTING and attempt < _ATTEMPTS


def _retry_later(request: Request, posterior: Any, what: str, attempt: int) -> Response:
    return render(request, "posterior_later.html", posterior=posterior, what=what, attempt=attempt + 1)


@router.post("/posteriors/{named}/aliases")
async def give_name(request: Request, named: str, caller: Reader) -> Response:
    """Create an alias or, if the form names its current posterior, move it."""
    form, api = await forms.read_form(request), Api(request)
    name, names_now = forms.text(form, "name").strip(), forms.text(form, "names_now")
    posterior = await api.get(f"/v1/posteriors/{_safe(named)}")
    body = {"posterior_id": posterior["id"], "if_posterior_id": names_now or None}
    try:
        await api.put(f"/v1/aliases/{_alias(name)}", body)
    except ApiRefusal as refusal:
        taken = await Api(request).find("/v1/aliases", _alias(name)) if refusal.status == 409 else None
        return await _render_posterior(
            request, named, refusal.status, refusal=refusal, at="names", typed=name, taken=taken
        )
    return see_other(f"/posteriors/{posterior['id']}#names")


def _alias(name: str) -> str:
    """Quote an alias for a URL; a name that would change the path becomes one that the API refuses."""
    return _safe(name.replace("/", " ") if name.strip(".") else " ")


@router.post("/posteriors/{named}/learn-on")
async def learn_on(request: Request, named: str, caller: Reader) -> Response:
    """Start a job that updates this posterior with newer rows, and may move an alias."""
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
    except ApiRefusal as refusal:
        return await _render_posterior(request, named, refusal.status, refusal=refusal, at="since")
    return see_other(f"/jobs/{job['id']}")


@router.post("/posteriors/{named}/aliases/{name}/delete")
async def delete_name(request: Request, named: str, name: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(f"/v1/aliases/{_alias(name)}")
    except ApiRefusal as refusal:
        return await _render_posterior(request, named, refusal.status, refusal=refusal, at="names")
    return see_other(f"/posteriors/{named}#names")


@router.post("/posteriors/{named}/delete")
async def delete_posterior(request: Request, named: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(f"/v1/posteriors/{_safe(named)}")
    except ApiRefusal as refusal:
        return await _render_posterior(request, named, refusal.status, refusal=refusal, at="delete")
    return see_other("/posteriors")
