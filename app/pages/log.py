"""Pages about logged prescriptions: the list, and one call with its outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from fastapi import APIRouter, Request, Response

from app.db.former_names import logged_answer
from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, Call, sentence
from app.pages.format import format_value, one_line
from app.pages.forms import parse_number
from app.pages.render import render, see_other

# Contexts and columns shown of a long call.
MOST_ROWS, MOST_COLUMNS = 50, 10
OUTCOME, ACTUAL = "outcome.", "actual_decision."

Json = Mapping[str, Any]


@dataclass(frozen=True)
class LogEntryView:
    """A record of the log, its posterior (None if deleted), and the index of the context shown."""

    record: Json
    posterior: Json | None
    index: int = 0

    @property
    def contexts(self) -> list[Any]:
        result: list[Any] = self.record["request"]["contexts"]
        return result

    @cached_property
    def answers(self) -> list[Json]:
        """The decision for each context."""
        answer = self.record["answer"]
        if self.record["kind"] == "evaluate":
            return [one["ours"] for one in answer["evaluations"]]
        result: list[Json] = answer["prescriptions"]
        return result

    @property
    def answer(self) -> Json:
        return self.answers[self.index]

    @property
    def alternatives(self) -> list[Json]:
        """Other decisions evaluated for the context."""
        if self.record["kind"] != "evaluate":
            return []
        result: list[Json] = logged_answer(self.record["answer"])["evaluations"][self.index]["alternatives"]
        return result

    @property
    def problem_changes(self) -> list[Json]:
        """Numbers of the problem that the request changed."""
        return logged_answer(self.record["answer"]).get("problem_differs") or []

    @property
    def outcomes(self) -> dict[int, Json]:
        return {one["index"]: one for one in self.record["outcomes"]}

    @property
    def outcome(self) -> Json | None:
        return self.outcomes.get(self.index)

    # contexts as a table

    def context(self, index: int) -> dict[str, Any]:
        """Return a context by column name; it may have been sent as a list in the order of the posterior's columns."""
        given = self.contexts[index]
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, list):
            return dict(zip(self._names, given, strict=False))
        return {}

    @property
    def _names(self) -> list[str]:
        columns = [] if self.posterior is None else self.posterior["columns"]
        return [column["name"] for column in columns if column["role"] not in ("outcome", "decision")]

    @cached_property
    def columns(self) -> list[str]:
        names: dict[str, None] = {}
        for index in range(self.context_count):
            names |= dict.fromkeys(self.context(index))
        return list(names)[:MOST_COLUMNS]

    @property
    def context_count(self) -> int:
        return min(len(self.contexts), MOST_ROWS)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The first contexts with decision and outcome."""
        result = []
        for index in range(self.context_count):
            context, answer, happened = self.context(index), self.answers[index], self.outcomes.get(index)
            result.append(
                {
                    "index": index,
                    "cells": [format_value(context[name]) if name in context else "" for name in self.columns],
                    "decision": one_line(answer["decision"], 3),
                    "status": answer["status"],
                    "expected_cost": answer["expected_cost"],
                    "realised": None if happened is None else happened["realised_cost"],
                    "recorded": happened is not None,
                }
            )
        return result

    # the request

    @property
    def how(self) -> list[tuple[str, str]]:
        request, answer = self.record["request"], self.record["answer"]
        scenarios = answer["scenarios"]
        texts = [
            ("Policy", f"{answer['policy']}{'' if request['policy'] else ', as recommended'}"),
            ("Scenarios", f"{scenarios['count']} ({scenarios['source']}, seed {scenarios['seed']})"),
        ]
        risk = request.get("risk")
        if risk:
            weight, level = risk["cvar_weight"], risk["cvar_level"]
            texts.append(("Risk", f"weight {weight:.0%} on the worst {1 - level:.0%} of cases, the rest on the mean"))
        if answer.get("history"):
            past = answer["history"]
            texts.append(("History", f"rows up to {past['last']} (revision {past['revision']})"))
        if self.problem_changes:
            texts.append(("Changed numbers", f"{len(self.problem_changes)} of the problem, for this request only"))
        return texts

    @property
    def warnings(self) -> list[str]:
        return [*self.record["answer"]["warnings"], *self.answer.get("warnings", [])]

    @property
    def again(self) -> str:
        """The URL that decides for the same context again."""
        pairs = [(f"c.{name}", _typed(value)) for name, value in self.context(self.index).items() if value is not None]
        request = self.record["request"]
        if request["policy"]:
            pairs.append(("policy", request["policy"]))
        if request.get("risk"):
            pairs.append(("risk", _typed(request["risk"]["cvar_weight"])))
        place = quote(self.record["posterior_id"], safe="")
        return f"/posteriors/{place}/decide?{urlencode(pairs, quote_via=quote)}"

    # the outcome

    @property
    def outcome_names(self) -> list[str]:
        columns = [] if self.posterior is None else self.posterior["columns"]
        return [column["name"] for column in columns if column["role"] == "outcome"]

    @property
    def decision_names(self) -> list[str]:
        return list(self.answer["decision"])

    def recorded(self, values: Mapping[str, str] | None, kind: str, name: str) -> str:
        """Return a field's text: as typed or, at first, as recorded."""
        if values is not None:
            return values.get(f"{kind}{name}", "")
        known = {} if self.outcome is None else self.outcome["outcomes" if kind == OUTCOME else "actual_decision"]
        return "" if known.get(name) is None else _typed(known[name])

    @property
    def example(self) -> Call:
        """A call that records an outcome, with the decision as example numbers."""
        values = {name: _rounded(self.answer["decision"].get(name)) for name in self.decision_names}
        happened = {name: values.get(name, 0) for name in self.outcome_names}
        body = {"rows": [{"index": self.index, "outcomes": happened, "actual_decision": values}]}
        return Call("POST", f"/v1/prescriptions/{self.record['id']}/outcome", body)

    @property
    def reproducing(self) -> Call:
        return Call("POST", f"/v1/prescriptions/{self.record['id']}/reproduce")


def outcome_request(index: int, values: Mapping[str, str], replace: bool) -> dict[str, Any]:
    """Build the API's request from a form about one context; empty fields are left out."""
    row: dict[str, Any] = {"index": index}
    for field, prefix in (("outcomes", OUTCOME), ("actual_decision", ACTUAL)):
        numbers = {
            name.removeprefix(prefix): parse_number(text) for name, text in values.items() if name.startswith(prefix)
        }
        if numbers := {name: value for name, value in numbers.items() if value != ""}:
            row[field] = numbers
    return {"rows": [row]} | ({"replace": True} if replace else {})


def _typed(value: Any) -> str:
    """Format a value for a field."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _rounded(value: Any) -> Any:
    return round(value) if isinstance(value, float) else value


def pointer_of(kind: str, name: str) -> str:
    """Return the JSON pointer of a field's errors; the request has one row."""
    field = "outcomes" if kind == OUTCOME else "actual_decision"
    return f"#/rows/0/{field}/{name.replace('~', '~0').replace('/', '~1')}"


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
    refusal: ApiRefusal | None = None
    kept: dict[str, Any] = {"items": [], "next_cursor": None}
    posteriors, status = await asyncio.gather(api.get("/v1/posteriors", limit=OFFERED), api.get("/v1/status"))
    try:
        kept = await api.get("/v1/prescriptions", limit=LISTED, cursor=query.get("cursor"), first="true", **wanted)
    except ApiRefusal as error:
        if error.status != 422:
            raise
        refusal = error
    chosen = {name: value for name, value in wanted.items() if value}
    return render(
        request,
        "log.html",
        200 if refusal is None else 422,
        api=api,
        refusal=refusal,
        typed=typed,
        is_filtered=bool(chosen),
        kept=kept,
        rows=[_row_view(one) for one in kept["items"]],
        posteriors=posteriors["items"],
        names={one["id"]: one["name"] for one in posteriors["items"]},
        is_on=status["log_prescriptions"],
        exports={kind: _export(chosen, kind) for kind in ("csv", "parquet")},
    )


def _moment(text: str, days: int = 0) -> str:
    """Return the start of a day, ``days`` later, in the API's format; other text stays unchanged."""
    if not _DAY.fullmatch(text):
        return text
    try:
        return f"{date.fromisoformat(text) + timedelta(days=days)}T00:00:00Z"
    except (ValueError, OverflowError):
        return text


def _export(chosen: dict[str, str], kind: str) -> str:
    return f"/v1/prescriptions/export?{httpx.QueryParams(chosen | {'format': kind})}"


def _row_view(one: dict[str, Any]) -> dict[str, Any]:
    first = one["first"] or {"context": {}, "decision": {}, "expected_cost": None}
    return one | {
        "context": one_line(first["context"]),
        "decision": one_line(first["decision"]),
        "expected_cost": first["expected_cost"],
    }


@router.get("/log/{prescription_id}")
async def show_entry(request: Request, caller: Reader, prescription_id: str) -> Response:
    return await _render_entry(request, Api(request), prescription_id, _index(request.query_params.get("context", "0")))


@router.post("/log/{prescription_id}/outcome")
async def record_outcome(request: Request, caller: Reader, prescription_id: str) -> Response:
    form = await forms.read_form(request)
    api, index = Api(request), _index(forms.text(form, "context"))
    values = {name: forms.text(form, name) for name in form if name.startswith((OUTCOME, ACTUAL))}
    replace = bool(forms.text(form, "replace"))
    try:
        await api.post(f"/v1/prescriptions/{prescription_id}/outcome", outcome_request(index, values, replace))
    except ApiRefusal as refusal:
        if refusal.status not in (409, 422):
            raise
        return await _render_entry(request, api, prescription_id, index, refusal=refusal, values=values)
    return see_other(f"/log/{prescription_id}?context={index}#later")


@router.post("/log/{prescription_id}/reproduce")
async def reproduce(request: Request, caller: Reader, prescription_id: str) -> Response:
    form = await forms.read_form(request)
    api, index = Api(request), _index(forms.text(form, "context"))
    try:
        again = await api.post(f"/v1/prescriptions/{prescription_id}/reproduce")
    except ApiRefusal as refusal:
        if refusal.status not in (409, 503):
            raise
        again = {"refused": refusal.detail}
    return await _render_entry(request, api, prescription_id, index, again=again)


async def _render_entry(
    request: Request,
    api: Api,
    prescription_id: str,
    index: int,
    *,
    refusal: ApiRefusal | None = None,
    values: dict[str, str] | None = None,
    again: dict[str, Any] | None = None,
) -> Response:
    record = await api.get(f"/v1/prescriptions/{prescription_id}")
    posterior = await api.find("/v1/posteriors", record["posterior_id"])
    entry = LogEntryView(record, posterior, min(index, record["contexts"] - 1))
    kinds = (
        (OUTCOME, "Observed outcome", entry.outcome_names),
        (ACTUAL, "Decision actually taken", entry.decision_names),
    )
    shown = [pointer_of(kind, name) for kind, _, names in kinds for name in names]
    return render(
        request,
        "log_entry.html",
        200 if refusal is None else refusal.status,
        api=api,
        refusal=refusal,
        entry=entry,
        values=values,
        again=again,
        place=pointer_of,
        kinds=kinds,
        unplaced=_unplaced(refusal, shown),
        in_a_line=one_line,
        written=format_value,
    )


def _unplaced(refusal: ApiRefusal | None, shown: list[str]) -> list[str]:
    """Return the errors that belong to no visible field."""
    if refusal is None:
        return []
    errors = refusal.problem.get("errors", [])
    elsewhere = [f"{sentence(one['detail'])}." for one in errors if one["pointer"] not in shown]
    return elsewhere if errors else [refusal.detail]


def _index(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0
