"""Uploading a data set: a file is looked at first, and kept once its columns have the right roles."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData

from app.db.text import is_plain
from app.http.errors import InvalidRequest
from app.http.security import Reader, Trainer
from app.pages import forms
from app.pages.api_client import Api, Call, Refused
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

# How a form says that there are no names.
NO_NAMES = "[]"
# What a column can be used as, in the words of a planner; the second of the contexts makes names of its numbers.
USES = {
    "time": "time",
    "series": "key of a series, such as shop",
    "context": "known when deciding",
    "category": "known when deciding, as categories",
    "outcome": "outcome: not known yet",
    "decision": "what was really done",
    "out": "leave it out",
}
MISSING = {
    "reject": "refuse the file",
    "drop": "leave out their rows",
    "impute": "fill in numbers",
}
UNSEEN = {"reject": "refuse them", "other": "group them as “other”"}
# Places of the API's form that have a field of their own here; others stand above the columns.
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
    """What a file holds, as a part of the page. Nothing of it is kept."""
    form = await forms.submitted(request)
    filename, content = await _file(form)
    api = Api(request)
    about = await _problem(api, forms.text(form, "problem"))
    # A sheet that was chosen before belongs to the file that was chosen before.
    again = request.headers.get("hx-trigger-name") == "sheet"
    asked = {
        "sheet": forms.text(form, "sheet") if again else "",
        "outcomes": joined(about["outcomes"] if about else []),
    }
    try:
        found = await api.upload("/v1/datasets/inspect", filename, content, asked)
    except Refused as refused:
        return render(request, "dataset_refused.html", refused.status, refused=refused)
    chosen = Chosen(
        [column["name"] for column in found["columns"]],
        [_use(column) for column in found["columns"]],
        {
            "name": (forms.text(form, "name") if again else "") or _called(filename),
            "sheet": asked["sheet"],
            "lead": "1",
            "missing": found["missing"],
            "unseen": "reject",
        },
    )
    return render(
        request,
        "dataset_preview.html",
        found=found,
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
    """How the same is sent without this page, with the roles as they are chosen now."""
    form = await forms.submitted(request)
    chosen = Chosen.of(form)
    return render(request, "dataset_call.html", upload=_call(forms.text(form, "filename") or "history.csv", chosen))


@router.post("/datasets/new")
async def keep(request: Request, caller: Reader) -> Response:
    form = await forms.submitted(request)
    filename, content = await _file(form)
    chosen = Chosen.of(form)
    if not chosen.names:
        raise InvalidRequest.at(("file",), "wait until the file has been looked at, then say what its columns are")
    api = Api(request)
    try:
        made = await api.upload("/v1/datasets/upload", filename, content, chosen.fields(filename))
    except Refused as refused:
        return render(request, "dataset_said.html", refused.status, refused=refused, fields=FIELDS)
    return went_to(request, f"/datasets/{made['id']}")


def went_to(request: Request, address: str) -> Response:
    """Where to look next, whether a form was sent by a script of the page or by the browser itself."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": address})
    return see_other(address)


async def _file(form: FormData) -> tuple[str, bytes]:
    """The file of a form; of its name only what is shown as it is written."""
    name, content = await forms.uploaded(form)
    plain = "".join(mark if is_plain(mark) else "_" for mark in PurePath(name.replace("\\", "/")).name)
    return plain[-_LONGEST_NAME:] or "history", content


def _called(filename: str) -> str:
    return PurePath(filename).stem.replace("_", " ").strip() or filename


def _use(column: dict[str, Any]) -> str:
    """The use that is suggested for a column."""
    if column["role"] == "left out":
        return "out"
    return "category" if column["role"] == "context" and column["categorical"] else str(column["role"])


# what was chosen


@dataclass(frozen=True)
class Chosen:
    """The columns of a file with what they are to be used as, and the other choices of the form as they were typed."""

    names: list[str]
    uses: list[str]
    others: dict[str, str]

    @staticmethod
    def of(form: FormData) -> Chosen:
        try:
            listed = json.loads(forms.text(form, "columns") or NO_NAMES)
        except ValueError:
            listed = []
        names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        uses = [forms.text(form, f"use.{index}") for index in range(len(names))]
        return Chosen(names, uses, {name: forms.text(form, name).strip() for name in FIELDS})

    def used(self, *uses: str) -> list[str]:
        return [name for name, use in zip(self.names, self.uses, strict=True) if use in uses]

    def fields(self, filename: str) -> dict[str, str]:
        """The fields of an upload by the API; several times are refused as the API refuses them."""
        times = self.used("time")
        if len(times) > 1:
            listed = " and ".join(f"'{name}'" for name in times[:5])
            detail = f"{listed} are both marked as time; a data set has one"
            errors = [{"pointer": "#/time", "detail": detail}]
            raise Refused(422, {"status": 422, "title": "", "detail": detail, "errors": errors})
        contexts = joined(self.used("context", "category"))
        return {
            "name": self.others["name"] or _called(filename),
            # No outcomes at all are too few, and the API says so.
            "outcomes": joined(self.used("outcome")) or NO_NAMES,
            "contexts": contexts or NO_NAMES,
            "categorical": joined(self.used("category")),
            "time": "".join(times),
            "series": joined(self.used("series")),
            "decisions": joined(self.used("decision")),
            "lead": "" if self.others["lead"] == "1" else self.others["lead"],
            "missing": "" if self.others["missing"] == "reject" else self.others["missing"],
            "unseen": "" if self.others["unseen"] == "reject" else self.others["unseen"],
            "sheet": self.others["sheet"],
        }


def _call(filename: str, chosen: Chosen) -> Call | None:
    """The upload as a call of the API, as far as the choices make one."""
    try:
        fields = chosen.fields(filename)
    except Refused:
        return None
    return Call("POST", "/v1/datasets/upload", file=filename, fields={k: v for k, v in fields.items() if v})


def joined(names: Sequence[str]) -> str:
    """Names with commas between, in quotes where they hold commas themselves or would be read as no names."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return f'"{NO_NAMES}"' if line.getvalue() == NO_NAMES else line.getvalue()
