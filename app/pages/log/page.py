"""Pages about what was prescribed: the list, and one call with what came of it."""

from __future__ import annotations

import asyncio
import re
from datetime import date, timedelta
from typing import Any

import httpx
from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, Refused, sentence
from app.pages.format import in_a_line, written
from app.pages.log.entry import ACTUAL_DECISION, OUTCOME, Entry, outcome_request, place
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

LISTED, OFFERED = 25, 200
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@router.get("/log")
async def list_log(request: Request, caller: Reader) -> Response:
    api, query = Api(request), request.query_params
    typed = {name: query.get(name, "").strip() for name in ("posterior", "kind", "since", "until", "outcome")}
    wanted = {
        "posterior_id": typed["posterior"],
        "kind": typed["kind"],
        "since": _moment(typed["since"]),
        "until": _moment(typed["until"], days=1),
        "has_outcome": {"yes": "true", "no": "false"}.get(typed["outcome"], typed["outcome"]),
    }
    refused: Refused | None = None
    kept: dict[str, Any] = {"items": [], "next_cursor": None}
    posteriors, status = await asyncio.gather(api.get("/v1/posteriors", limit=OFFERED), api.get("/v1/status"))
    try:
        kept = await api.get("/v1/prescriptions", limit=LISTED, cursor=query.get("cursor"), first="true", **wanted)
    except Refused as error:
        if error.status != 422:
            raise
        refused = error
    chosen = {name: value for name, value in wanted.items() if value}
    return render(
        request,
        "log.html",
        200 if refused is None else 422,
        api=api,
        refused=refused,
        typed=typed,
        is_filtered=bool(chosen),
        kept=kept,
        rows=[_said(one) for one in kept["items"]],
        posteriors=posteriors["items"],
        names={one["id"]: one["name"] for one in posteriors["items"]},
        is_on=status["log_prescriptions"],
        exports={kind: _export(chosen, kind) for kind in ("csv", "parquet")},
    )


def _moment(text: str, days: int = 0) -> str:
    """The beginning of a day, or of one so many days later, as the API takes it; what is no day stays as it is."""
    if not _DAY.fullmatch(text):
        return text
    try:
        return f"{date.fromisoformat(text) + timedelta(days=days)}T00:00:00Z"
    except (ValueError, OverflowError):
        return text


def _export(chosen: dict[str, str], kind: str) -> str:
    return f"/v1/prescriptions/export?{httpx.QueryParams(chosen | {'format': kind})}"


def _said(one: dict[str, Any]) -> dict[str, Any]:
    first = one["first"] or {"context": {}, "decision": {}, "expected_cost": None}
    return one | {
        "context": in_a_line(first["context"]),
        "decision": in_a_line(first["decision"]),
        "expected_cost": first["expected_cost"],
    }


@router.get("/log/{prescription_id}")
async def show_entry(request: Request, caller: Reader, prescription_id: str) -> Response:
    return await _entry(request, Api(request), prescription_id, _index(request.query_params.get("context", "0")))


@router.post("/log/{prescription_id}/outcome")
async def record_outcome(request: Request, caller: Reader, prescription_id: str) -> Response:
    form = await forms.submitted(request)
    api, index = Api(request), _index(forms.text(form, "context"))
    values = {name: forms.text(form, name) for name in form if name.startswith((OUTCOME, ACTUAL_DECISION))}
    replace = bool(forms.text(form, "replace"))
    try:
        await api.post(f"/v1/prescriptions/{prescription_id}/outcome", outcome_request(index, values, replace))
    except Refused as refused:
        if refused.status not in (409, 422):
            raise
        return await _entry(request, api, prescription_id, index, refused=refused, values=values)
    return see_other(f"/log/{prescription_id}?context={index}#later")


@router.post("/log/{prescription_id}/reproduce")
async def reproduce(request: Request, caller: Reader, prescription_id: str) -> Response:
    form = await forms.submitted(request)
    api, index = Api(request), _index(forms.text(form, "context"))
    try:
        again = await api.post(f"/v1/prescriptions/{prescription_id}/reproduce")
    except Refused as refused:
        if refused.status not in (409, 503):
            raise
        again = {"refused": refused.detail}
    return await _entry(request, api, prescription_id, index, again=again)


async def _entry(
    request: Request,
    api: Api,
    prescription_id: str,
    index: int,
    *,
    refused: Refused | None = None,
    values: dict[str, str] | None = None,
    again: dict[str, Any] | None = None,
) -> Response:
    record = await api.get(f"/v1/prescriptions/{prescription_id}")
    try:
        posterior = await api.get(f"/v1/posteriors/{record['posterior_id']}")
    except Refused as gone:
        if gone.status != 404:
            raise
        posterior = None
    entry = Entry(record, posterior, min(index, record["contexts"] - 1))
    kinds = (
        (OUTCOME, "What happened", entry.outcome_names),
        (ACTUAL_DECISION, "The decision actually taken", entry.decision_names),
    )
    shown = [place(kind, name) for kind, _, names in kinds for name in names]
    return render(
        request,
        "log_entry.html",
        200 if refused is None else refused.status,
        api=api,
        refused=refused,
        entry=entry,
        values=values,
        again=again,
        place=place,
        kinds=kinds,
        unplaced=_unplaced(refused, shown),
        in_a_line=in_a_line,
        written=written,
    )


def _unplaced(refused: Refused | None, shown: list[str]) -> list[str]:
    """What is wrong, but not with a field that is shown."""
    if refused is None:
        return []
    errors = refused.problem.get("errors", [])
    elsewhere = [f"{sentence(one['detail'])}." for one in errors if one["pointer"] not in shown]
    return elsewhere if errors else [refused.detail]


def _index(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0
