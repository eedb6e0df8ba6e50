"""Pages about problems: what is decided and what it costs, as a model, in words, and as a form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData, UploadFile

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, Call
from app.pages.problems.catalogue import KINDS, pretty_json
from app.pages.problems.forms import ProblemFormView, form_of_spec, parse_json, read_problem_form, spec_errors
from app.pages.problems.notation import ModelView, model_of
from app.pages.problems.spec_tables import facts_of, tables_of
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

# Data sets checked for a match, and posteriors shown.
LOOKED_AT, SHOWN = 20, 5
# Characters of a specification that are shown.
LONG = 20_000
_EMPTY_ROW = dict.fromkeys(("item", "few", "many", "least", "most", "stock", "pack", "level", "whole"), "")
_EXAMPLE_ROWS = [
    _EMPTY_ROW | {"item": "croissants", "few": "1.8", "many": "0.6"},
    _EMPTY_ROW | {"item": "loaves", "few": "2.4", "many": "1.2", "most": "160"},
]
_DESCRIPTION = {
    "decisions": ["order"],
    "outcomes": [{"name": "demand", "minimum": 0}],
    "entries": [{"row": "meet", "column": None, "outcomes": {"demand": 1}}],
}


@router.get("/problems")
async def problems(request: Request, caller: Reader, cursor: str = "", kind: str = "") -> Response:
    api = Api(request)
    page = await api.get("/v1/problems", limit=50, cursor=cursor, kind=kind)
    return render(request, "problems.html", api=api, page=page, kinds=KINDS, kind=kind)


@router.get("/problems/new")
async def new_problem(request: Request, caller: Reader, kind: str = "", text: str = "", like: str = "") -> Response:
    """Choose a kind, then fill in its form."""
    if like:
        result = await Api(request).get(f"/v1/problems/{like}")
        form = form_of_spec(result["name"], result["spec"])
        if form is None or text:
            form = ProblemFormView(result["name"], result["spec"]["kind"], text=pretty_json(result["spec"]))
        return _render_form(request, form)
    if kind not in KINDS:
        return render(request, "problem_new.html", kinds=KINDS)
    if kind == "newsvendor" and not text:
        return _render_form(request, ProblemFormView("", kind, _EXAMPLE_ROWS))
    return _render_form(request, ProblemFormView("", kind, text=KINDS[kind].text))


def _render_form(
    request: Request, form: ProblemFormView, refusal: ApiRefusal | None = None, status: int = 200
) -> Response:
    result = spec_errors(refusal, form.text) if refusal is not None else []
    kind = KINDS.get(form.kind) or KINDS["linear"]
    return render(request, "problem_form.html", status, refusal=refusal, form=form, kind=kind, mistakes=result)


@router.post("/problems/new")
async def create_problem(request: Request, caller: Reader) -> Response:
    form = read_problem_form(await forms.read_form(request))
    if form.body is None:
        return _render_form(request, form, status=422)
    try:
        made = await Api(request).post("/v1/problems", form.body)
    except ApiRefusal as refusal:
        if refusal.status != 422:
            raise
        return _render_form(request, form, refusal, 422)
    return see_other(f"/problems/{made['id']}")


@router.post("/problems/check")
async def check_problem(request: Request, caller: Reader) -> Response:
    """Check an unfinished form: a part of a page."""
    form = read_problem_form(await forms.read_form(request))
    shown: dict[str, Any] = {"form": form, "checked": None, "model": None, "mistakes": [], "call": None}
    if form.body is not None:
        # A missing name must not hide other errors.
        body = form.body | {"name": form.name.strip() or "without a name"}
        if len(form.text) <= LONG:
            shown["call"] = Call("POST", "/v1/problems", body)
        try:
            checked = await Api(request).post("/v1/problems/check", body)
            shown |= {"checked": checked, "model": model_of(body["spec"], checked["compiled"])}
        except ApiRefusal as refusal:
            if refusal.status not in (413, 422, 503):
                raise
            shown["mistakes"] = spec_errors(refusal, form.text)
    return render(request, "problem_check.html", **shown)


@router.get("/problems/import")
async def import_page(request: Request, caller: Reader) -> Response:
    return _render_import(request, {"name": "", "description": pretty_json(_DESCRIPTION)})


def _render_import(
    request: Request, given: dict[str, str], refusal: ApiRefusal | None = None, wrong: str = ""
) -> Response:
    status = 422 if refusal or wrong else 200
    fields = {"description": json.dumps({"name": given["name"] or "bread"} | _DESCRIPTION)}
    call = Call("POST", "/v1/problems/import", file="model.mps", fields=fields)
    return render(request, "problem_import.html", status, refusal=refusal, given=given, wrong=wrong, call=call)


@router.post("/problems/import")
async def import_problem(request: Request, caller: Reader) -> Response:
    form = await forms.read_form(request)
    given = {name: forms.text(form, name) for name in ("name", "description")}
    files = {name: result for name in ("file", "time", "scenarios") if (result := await _file(form, name)) is not None}
    await form.close()
    described, wrong = parse_json(given["description"].strip() or "{}")
    if wrong or "file" not in files:
        return _render_import(request, given, wrong=wrong or "Choose a file first.")
    api, main = Api(request), files.pop("file")
    fields = {"description": pretty_json(described | {"name": given["name"]})}
    try:
        made = await api.upload("/v1/problems/import", *main, fields, beside=files)
    except ApiRefusal as refusal:
        if refusal.status not in (413, 422):
            raise
        return _render_import(request, given, refusal)
    if not made["notes"] and made["dataset_id"] is None:
        return see_other(f"/problems/{made['id']}")
    return render(request, "problem_imported.html", 201, api=api, made=made)


async def _file(form: FormData, name: str) -> tuple[str, bytes] | None:
    result = form.get(name)
    if not isinstance(result, UploadFile) or not result.filename:
        return None
    return result.filename, await result.read()


@router.get("/problems/{problem_id}")
async def problem(request: Request, problem_id: str, caller: Reader) -> Response:
    return await _render_problem(request, problem_id)


async def _render_problem(request: Request, problem_id: str, refusal: ApiRefusal | None = None) -> Response:
    api = Api(request)
    result = await api.get(f"/v1/problems/{problem_id}")
    kind = KINDS[result["spec"]["kind"]]
    model = await _model(api, result, kind.linear)
    posteriors = await api.get("/v1/posteriors", problem_id=problem_id, limit=SHOWN)
    fitting = await _fitting(Api(request), result["outcomes"])
    if caller_may(request, "admin"):
        api.calls.append(Call("DELETE", f"/v1/problems/{problem_id}"))
    return render(
        request,
        "problem.html",
        409 if refusal else 200,
        api=api,
        refusal=refusal,
        problem=result,
        kind=kind,
        model=model,
        facts=facts_of(result["spec"]),
        tables=tables_of(result["spec"]),
        posteriors=posteriors["items"],
        fitting=fitting,
        text=_shortened(pretty_json(result["spec"])),
    )


def _shortened(text: str) -> str:
    """Cut a long text; the API has all of it."""
    return text if len(text) <= LONG else f"{text[:LONG]}\n…"


async def _model(api: Api, problem: dict[str, Any], linear: bool) -> ModelView:
    """Return the notation; ready-made linear problems are shown compiled."""
    compiled = None
    if linear and problem["spec"]["kind"] != "linear":
        compiled = (await api.get(f"/v1/problems/{problem['id']}/compiled"))["spec"]
    return model_of(problem["spec"], compiled)


async def _fitting(api: Api, outcomes: list[str]) -> list[dict[str, Any]]:
    """Return the newest data sets that have the problem's outcomes."""
    listed = (await api.get("/v1/datasets", limit=LOOKED_AT))["items"]
    described = await asyncio.gather(*(api.get(f"/v1/datasets/{one['id']}") for one in listed))
    known = [{column["name"] for column in one["columns"] if column["role"] == "outcome"} for one in described]
    return [one for one, names in zip(listed, known, strict=True) if set(outcomes) <= names]


def caller_may(request: Request, scope: str) -> bool:
    return scope in request.scope["caller"].scopes


@router.post("/problems/{problem_id}/delete")
async def delete_problem(request: Request, problem_id: str, caller: Reader) -> Response:
    await forms.read_form(request)
    try:
        await Api(request).delete(f"/v1/problems/{problem_id}")
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        return await _render_problem(request, problem_id, refusal)
    return see_other("/problems")
