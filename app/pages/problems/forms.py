"""Read problem forms: a table of items, or a specification as JSON text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData

from app.pages import forms
from app.pages.api_client import ApiRefusal, sentence
from app.pages.forms import parse_number

# Columns of the table of items: form field and API field.
COLUMNS = {
    "item": "name",
    "few": "underage_cost",
    "many": "overage_cost",
    "least": "minimum_order",
    "most": "maximum_order",
    "stock": "stock",
    "pack": "pack_size",
    "level": "minimum_service_level",
    "whole": "integer",
}
MORE = ("stock", "pack", "level", "whole")
# Errors of longer texts have no line numbers.
_SEARCHED = 200_000

Row = dict[str, str]


@dataclass(frozen=True)
class ProblemFormView:
    """A form as filled in, and the request it makes; ``wrong`` says why there is none."""

    name: str
    kind: str
    rows: list[Row] = field(default_factory=list)
    level: str = ""
    text: str = ""
    body: dict[str, Any] | None = None
    wrong: str = ""

    @property
    def is_table(self) -> bool:
        return bool(self.rows)

    @property
    def shows_more(self) -> bool:
        return any(row.get(name) for row in self.rows for name in MORE)


def read_problem_form(form: FormData) -> ProblemFormView:
    """Read a form of either kind."""
    name, kind = forms.text(form, "name"), forms.text(form, "kind")
    if form.getlist("item"):
        rows, level = _rows(form), forms.text(form, "level_of_all").strip()
        spec: dict[str, Any] = {"kind": "newsvendor", "items": [_item(row) for row in rows]}
        if level:
            spec["minimum_service_level"] = _share(level)
        return ProblemFormView(name, kind, rows or [{}], level, body={"name": name, "spec": spec})
    text = forms.text(form, "spec")
    spec_or_none, wrong = parse_json(text)
    return ProblemFormView(
        name, kind, text=text, body=None if wrong else {"name": name, "spec": spec_or_none}, wrong=wrong
    )


def _rows(form: FormData) -> list[Row]:
    """Return the rows of the table that are not empty."""
    columns = {name: [str(value) for value in form.getlist(name)] for name in COLUMNS}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]
    return [row for row in rows if any(value.strip() for name, value in row.items() if name != "whole")]


def _item(row: Mapping[str, str]) -> dict[str, Any]:
    """Convert a row to an item, without empty fields."""
    item: dict[str, Any] = {}
    for name, value in row.items():
        value = value.strip()
        if name == "item":
            item["name"] = value
        elif name == "whole":
            item |= {"integer": True} if value else {}
        elif value:
            item[COLUMNS[name]] = _share(value) if name == "level" else parse_number(value)
    return item


def _share(text: str) -> Any:
    """Parse a share, also as a percentage: 95 % is 0.95."""
    value = parse_number(text.rstrip(" %"))
    if text.rstrip().endswith("%") and not isinstance(value, str):
        return round(value / 100, 6)
    return value


def form_of_spec(name: str, spec: Mapping[str, Any]) -> ProblemFormView | None:
    """Return the form of a stored newsvendor; None if the table cannot hold it."""
    known = {*COLUMNS.values()}
    if spec["kind"] != "newsvendor" or spec.get("decision_rows"):
        return None
    rows = []
    for item in spec["items"]:
        if any(value is not None for field_, value in item.items() if field_ not in known | {"maximum_demand"}):
            return None
        if item.get("maximum_demand") is not None or item.get("minimum_order") is None:
            return None
        rows.append({short: _typed(item.get(long)) for short, long in COLUMNS.items()})
    return ProblemFormView(name, "newsvendor", rows, _typed(spec.get("minimum_service_level")))


def _typed(value: Any) -> str:
    """Format a value for a field; empty for defaults."""
    if value is None or value is False or value == 0:
        return ""
    if value is True:
        return "yes"
    return value if isinstance(value, str) else f"{value:.12g}"


def parse_json(text: str) -> tuple[Any, str]:
    """Parse a JSON object; return it and an error message, which may be empty."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        words = error.msg[:1].lower() + error.msg[1:]
        return None, f"Invalid JSON at line {error.lineno}, column {error.colno}: {words}."
    except (ValueError, RecursionError) as error:
        return None, f"Invalid JSON: {error}."
    return value, "" if isinstance(value, dict) else "The JSON must be an object: { … }."


@dataclass(frozen=True)
class SpecErrorView:
    """An error of the API with its place in the text."""

    place: str
    sentence: str
    line: int | None = None


def spec_errors(refusal: ApiRefusal, text: str = "") -> list[SpecErrorView]:
    """Return the API's errors with their places and lines in the text."""
    result = []
    for one in refusal.problem.get("errors", []):
        path = one["pointer"].removeprefix("#/").split("/")
        inside = path[1:] if path[:1] == ["spec"] else []
        line = line_of(text, inside) if path[:1] == ["spec"] and 0 < len(text) <= _SEARCHED else None
        place = " › ".join(str(int(part) + 1) if part.isdigit() else part.replace("_", " ") for part in inside or path)
        result.append(SpecErrorView(place, sentence(one["detail"]), line))
    return result or [SpecErrorView("", refusal.detail)]


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line of a path in a JSON text, or of its nearest existing parent."""
    tokens = [(match.group(), match.start()) for match in _TOKEN.finditer(text)]
    if not tokens:
        return None
    at, result = 0, 0
    for part in path:
        inner = _inside(tokens, at, part)
        if inner is None:
            break
        at = result = inner
    return text.count("\n", 0, tokens[result][1]) + 1


def _inside(tokens: Sequence[tuple[str, int]], at: int, part: str) -> int | None:
    """Return the token index of an object's or list's member; ``at`` is the opening bracket."""
    if at >= len(tokens) or tokens[at][0] not in "{[":
        return None
    is_object, place, entry = tokens[at][0] == "{", at + 1, 0
    while place < len(tokens) and tokens[place][0] not in "}]":
        value = place + 2 if is_object else place
        key = json.loads(tokens[place][0]) if is_object else str(entry)
        if key == part.replace("~1", "/").replace("~0", "~"):
            return value if value < len(tokens) else None
        place = _after(tokens, value)
        if place < len(tokens) and tokens[place][0] == ",":
            place += 1
        entry += 1
    return None


def _after(tokens: Sequence[tuple[str, int]], at: int) -> int:
    """Return the index of the token after a value."""
    depth = 0
    while at < len(tokens):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(tokens[at][0], 0)
        at += 1
        if depth <= 0:
            return at
    return at
