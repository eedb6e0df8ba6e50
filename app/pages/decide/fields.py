"""The form for a context: a field for each context column, with default values."""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from starlette.datastructures import ImmutableMultiDict

from app.http.errors import pointer
from app.pages.api_client import Api, ApiRefusal
from app.pages.forms import parse_number
from app.pages.render import number

# Prefix of context fields, so that a column cannot clash with other fields.
PREFIX = "c."
FieldKind = Literal["date", "moment", "choice", "suggested", "yes", "number", "text"]
FormValues = ImmutableMultiDict[str, Any]

# With more categories, a text field with suggestions replaces the list.
_MOST_CHOICES = 40
# Rows searched for series keys that the posterior does not list.
_ROWS_OF_SERIES = 300
_YES, _NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_SPAN = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(1), "week": timedelta(7)}
_PERIODS = {"minute": "minutes", "hour": "hours", "day": "days", "week": "weeks", "month": "months"}


@dataclass(frozen=True)
class ContextField:
    """One column of a context: its kind of field and its text."""

    name: str
    kind: FieldKind
    value: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return PREFIX + self.name

    @property
    def pointer(self) -> str:
        """JSON pointer of its errors."""
        return pointer(("contexts", 0, self.name))

    @property
    def shown_as(self) -> str:
        """The type of its input; text where a date picker cannot show the value."""
        if self.kind in ("date", "moment") and self.value and _moment(self.value) is None:
            return "text"
        return {"date": "date", "moment": "datetime-local"}.get(self.kind, "text")

    @property
    def is_yes(self) -> bool:
        return self.value.strip().lower() in _YES

    def request_value(self) -> Any:
        """Return the value for the API: a number, or text that the API may refuse; None if empty."""
        return value_of(self.kind, self.value)


def value_of(kind: FieldKind, text: str) -> Any:
    """Convert a text of a form or a pasted table for the API."""
    text = text.strip()
    if not text:
        return None
    if kind == "yes" and text.lower() in _YES | _NO:
        return int(text.lower() in _YES)
    if kind in ("number", "yes"):
        return parse_number(text)
    return text


def context_columns(posterior: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the columns of a context in order; with time and series keys if the posterior uses past outcomes."""
    recipe = posterior["recipe"] or {}
    looks_back, listed = bool(recipe.get("recipe")), recipe.get("keys", {})

    def is_needed(column: Mapping[str, Any]) -> bool:
        if column["role"] == "series":
            return looks_back or column["name"] in listed
        return column["role"] == "context" or (column["role"] == "time" and looks_back)

    return [column for column in posterior["columns"] if is_needed(column)]


def kind_of(column: Mapping[str, Any], choices: Sequence[str]) -> FieldKind:
    if column["role"] == "time":
        return {"iso datetime": "moment", "period": "text"}.get(column["format"], "date")  # type: ignore[return-value]
    if column["kind"] in ("categorical", "key"):
        are_all = column["kind"] == "categorical" or len(choices) >= (column["distinct"] or 0)
        return "choice" if are_all and 0 < len(choices) <= _MOST_CHOICES else "suggested"
    is_flag = (column["distinct"], column["minimum"], column["maximum"]) == (2, 0.0, 1.0)
    return "yes" if is_flag else "number"


def field_kinds(posterior: Mapping[str, Any]) -> dict[str, FieldKind]:
    """Return the kind of field of each context column."""
    return {column["name"]: kind_of(column, _choices(posterior, column, [])) for column in context_columns(posterior)}


def read_fields(posterior: Mapping[str, Any], given: FormValues) -> list[ContextField] | None:
    """Read the sent fields, without hints and choices; None if one is missing."""
    fields = []
    for name, kind in field_kinds(posterior).items():
        text = _last(given, PREFIX + name)
        if text is None:
            return None
        fields.append(ContextField(name, kind, text))
    return fields


def out_of_range(posterior: Mapping[str, Any], fields: Sequence[ContextField]) -> list[str]:
    """Describe the numbers outside the range of the history."""
    texts, values = [], {field.name: field.request_value() for field in fields}
    for column in context_columns(posterior):
        value, least, most = values.get(column["name"]), column["minimum"], column["maximum"]
        if isinstance(value, int | float) and least is not None and not least <= value <= most:
            texts.append(f"{column['name']} is outside the range of the history ({number(least)} to {number(most)})")
    return texts


async def form_fields(api: Api, posterior: Mapping[str, Any], given: FormValues) -> tuple[list[ContextField], str]:
    """Return all fields, filled from what was sent or else the data set's last row, and a sentence on their source."""
    dataset, rows = await _history(api, posterior)
    where = "the last row of the history" if rows else "median values, because the training data is unavailable"
    source = f"Filled in from {where}. Change values as needed."
    if read_fields(posterior, given) is not None:
        source = "Filled in from the link."
    fields = []
    for column in context_columns(posterior):
        choices = _choices(posterior, column, rows)
        kind = kind_of(column, choices)
        newest = _same(column, dataset)
        text = _last(given, PREFIX + column["name"])
        if text is None:
            text = _first_value(column, newest, kind, choices, rows, _lead(posterior, dataset))
        hint = _hint(column, newest, kind, _lead(posterior, dataset))
        fields.append(ContextField(column["name"], kind, text, hint, choices))
    return fields, source


async def _history(api: Api, posterior: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Get the training data set and its last rows, if they still exist."""
    if posterior["dataset_id"] is None:
        return None, []
    address = f"/v1/datasets/{posterior['dataset_id']}"
    unlisted = any(
        column["role"] == "series" and not _choices(posterior, column, []) for column in context_columns(posterior)
    )
    try:
        dataset = await api.get(address)
        page = await api.get(f"{address}/rows", limit=_ROWS_OF_SERIES if unlisted else 1, last="true")
    except ApiRefusal as refusal:
        if refusal.status != 404:
            raise
        return None, []
    return dataset, page["items"]


def _same(column: dict[str, Any], dataset: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the column of the newest revision of the data set."""
    result = next((one for one in dataset["columns"] if one["name"] == column["name"]), None) if dataset else None
    return result or column


def _lead(posterior: Mapping[str, Any], dataset: Mapping[str, Any] | None) -> int:
    recipe = (posterior["recipe"] or {}).get("recipe") or {}
    return int(recipe.get("lead") or (dataset or {}).get("lead", 1))


def _choices(
    posterior: Mapping[str, Any], column: Mapping[str, Any], rows: Sequence[dict[str, Any]]
) -> tuple[str, ...]:
    """Return the known values of a column."""
    if column["kind"] == "categorical":
        return tuple(column["categories"] or ())
    if column["kind"] != "key":
        return ()
    listed = (posterior["recipe"] or {}).get("keys", {}).get(column["name"])
    return tuple(listed or sorted({_text(row[column["name"]]) for row in rows}))


def _first_value(
    column: Mapping[str, Any],
    newest: Mapping[str, Any],
    kind: FieldKind,
    choices: Sequence[str],
    rows: Sequence[dict[str, Any]],
    lead: int,
) -> str:
    """Return the default value of a field."""
    if column["role"] == "time":
        return add_periods(newest, lead)
    last = rows[-1].get(column["name"]) if rows else None
    if last is not None:
        return _text(last)
    if kind in ("choice", "suggested"):
        return choices[0] if choices else ""
    middle = column["median"] if column["median"] is not None else column["mean"]
    return "" if middle is None else _text(round(middle) if kind == "yes" else float(f"{middle:.4g}"))


def _text(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _hint(column: Mapping[str, Any], newest: Mapping[str, Any], kind: FieldKind, lead: int) -> str:
    """Return the hint of a field."""
    if column["role"] == "time":
        unit = _PERIODS.get(newest["unit"], "periods")
        ahead = f"{lead * (newest['step'] or 1)} {unit if lead * (newest['step'] or 1) > 1 else unit[:-1]}"
        zone = f" {newest['zone']}" if newest["zone"] else ""
        return f"The history ends at {newest['last']}{zone}; you decide {ahead} ahead."
    if kind == "number":
        return f"{number(column['minimum'])} to {number(column['maximum'])} in the history"
    return ""


def add_periods(column: Mapping[str, Any], periods: int) -> str:
    """Return the last time of a column plus a number of periods."""
    last, count = str(column["last"]), periods * (column["step"] or 1)
    if column["format"] == "period":
        return str(int(last) + count)
    moment = _moment(last)
    if moment is None:
        return last
    try:
        moved = _months_later(moment, count) if column["unit"] == "month" else moment + count * _SPAN[column["unit"]]
    except (OverflowError, ValueError):
        # Calendars end in year 9999, which some data use for "never".
        return last
    return moved.isoformat(timespec="minutes") if column["format"] == "iso datetime" else moved.date().isoformat()


def _months_later(moment: datetime, months: int) -> datetime:
    """Add months; the last day of a month stays the last."""
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    is_last = moment.day == calendar.monthrange(moment.year, moment.month)[1]
    longest = calendar.monthrange(year, month + 1)[1]
    day = longest if is_last else min(moment.day, longest)
    return datetime.combine(date(year, month + 1, day), moment.time())


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _last(given: FormValues, key: str) -> str | None:
    """Return the last value sent under a name: a ticked checkbox follows its hidden default."""
    result = [value for value in given.getlist(key) if isinstance(value, str)]
    return result[-1] if result else None
