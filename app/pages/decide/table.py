"""Decide for a table that was pasted or uploaded, with a CSV download."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fastapi import APIRouter, Request, Response

from app.http.errors import InvalidRequest
from app.http.security import Reader
from app.http.tables import CSV, csv_pieces
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, sentence
from app.pages.decide.answer import STATUS_WORDS, Money, money_of
from app.pages.decide.fields import FieldKind, field_kinds, value_of
from app.pages.decide.query import DecideQuery
from app.pages.render import render, see_other

router = APIRouter(include_in_schema=False)

# Longer tables run as a job.
MOST_ROWS = 500
# Entries of a decision in the page's table; the file has all.
_MOST_ENTRIES = 8
_QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")


class UnreadableTable(Exception):
    """A pasted text is not a table; the message says why."""


@dataclass(frozen=True)
class PastedTable:
    """A pasted table: header, rows, and the index of each context column."""

    header: list[str]
    rows: list[list[str]]
    places: dict[str, int]

    def context(self, row: list[str], known: Mapping[str, FieldKind]) -> dict[str, Any]:
        return {name: value_of(known[name], row[place]) for name, place in self.places.items()}

    def as_csv(self, known: Mapping[str, FieldKind]) -> bytes:
        """Return the table as CSV for the API; rows of another length are padded or cut."""
        names = {place: name for name, place in self.places.items()}
        buffer = io.StringIO()
        out = csv.writer(buffer, lineterminator="\n")
        out.writerow([names.get(place, name) for place, name in enumerate(self.header)])
        for row in self.rows:
            whole = (row + [""] * len(self.header))[: len(self.header)]
            out.writerow(
                [value_of(known[names[place]], cell) if place in names else cell for place, cell in enumerate(whole)]
            )
        return buffer.getvalue().encode()


@dataclass(frozen=True)
class TableRowView:
    """A row with its decision, or the reason for none."""

    cells: list[str]
    prescription: Mapping[str, Any] | None
    reason: str = ""

    @property
    def status(self) -> str:
        return "refused" if self.prescription is None else str(self.prescription["status"])

    @property
    def why(self) -> str:
        return self.reason or (self.prescription or {}).get("reason", "")

    @property
    def warnings(self) -> list[str]:
        return [] if self.prescription is None else list(self.prescription["warnings"])


def parse_table(text: str, known: Mapping[str, FieldKind]) -> PastedTable:
    """Parse a text separated by tabs, semicolons or commas, with a header line."""
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()]
    if len(lines) < 2:
        raise UnreadableTable("paste a header line with the column names, then one line per decision")
    separator = max("\t;,", key=lines[0].count)
    try:
        header, *rows = csv.reader(io.StringIO("\n".join(lines)), delimiter=separator)
    except csv.Error as error:
        raise UnreadableTable(f"this is not a table: {error}") from None
    header = [name.strip().removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}") for name in header]
    by_name = {name.lower(): place for place, name in enumerate(header)} | {
        name: place for place, name in enumerate(header)
    }
    places = {name: by_name[key] for name in known for key in (name, name.lower()) if key in by_name}
    lacking = [name for name in known if name not in places]
    if lacking:
        raise UnreadableTable(f"the header lacks {', '.join(lacking)}; it must name {', '.join(known)}, in any order")
    return PastedTable(header, [[cell.strip() for cell in row] for row in rows], places)


@router.get("/posteriors/{named}/decide/table")
async def form(named: str, request: Request, caller: Reader) -> Response:
    api = Api(request)
    query = DecideQuery.of(named, [], request.query_params)
    posterior = await api.get(query.api)
    return _render_table(request, query, posterior, "")


@router.post("/posteriors/{named}/decide/table")
async def decide_table(named: str, request: Request, caller: Reader) -> Response:
    """Decide for every row and log the decisions; the CSV download is not logged again."""
    given = await forms.read_form(request)
    api = Api(request)
    query = DecideQuery.of(named, [], given)
    posterior = await api.get(query.api)
    text, as_file = forms.text(given, "table"), forms.text(given, "as") == "csv"
    known = field_kinds(posterior)
    try:
        name, content = await _file(given)
        if content:
            if content[:4] in (b"PK\x03\x04", b"PAR1"):
                return await _batch(api, query, name, content)
            text = content.decode()
        pasted = parse_table(text, known)
        if len(pasted.rows) > MOST_ROWS:
            return await _batch(api, query, "contexts.csv", pasted.as_csv(known))
        answer, lines = await _decide_rows(api, query, pasted, known, kept=not as_file)
    except (UnreadableTable, UnicodeDecodeError) as error:
        wrong = "the file is not CSV, Excel or Parquet" if isinstance(error, UnicodeDecodeError) else str(error)
        return _render_table(request, query, posterior, text[:200_000], 422, wrong=sentence(wrong) + ".")
    except ApiRefusal as refusal:
        wrong = refusal.detail
        if refusal.status == 403:
            wrong = (
                f"This page decides for at most {MOST_ROWS} rows. Longer tables run as a job, which needs a key with "
                "the scope train."
            )
        return _render_table(request, query, posterior, text[:200_000], refusal.status, wrong=wrong)
    if as_file:
        body = b"".join(csv_pieces([_decision_table(pasted, lines)]))
        headers = {"Content-Disposition": f'attachment; filename="decisions-{posterior["id"]}.csv"'}
        return Response(body, media_type=CSV, headers=headers)
    prescription = next((line.prescription for line in lines if line.prescription is not None), None)
    return _render_table(
        request,
        query,
        posterior,
        text,
        answer=answer,
        pasted=pasted,
        lines=lines,
        entries=list(prescription["decision"])[:_MOST_ENTRIES] if prescription else [],
        left_out=max(0, len(prescription["decision"]) - _MOST_ENTRIES) if prescription else 0,
        money=money_of(prescription) if prescription else Money(False),
        asking=api.calls[-1:],
    )


async def _file(given: Any) -> tuple[str, bytes]:
    try:
        return await forms.read_upload(given)
    except InvalidRequest:
        # Without a file, the pasted text counts.
        return "", b""


async def _batch(api: Api, query: DecideQuery, name: str, content: bytes) -> Response:
    """Start a job for a long table."""
    fields = {"policy": query.policy, "cvar_weight": query.risk}
    job = await api.upload(f"{query.api}/batch-prescriptions/upload", name, content, fields)
    return see_other(f"/jobs/{job['id']}")


async def _decide_rows(
    api: Api, query: DecideQuery, pasted: PastedTable, known: Mapping[str, FieldKind], *, kept: bool
) -> tuple[Mapping[str, Any] | None, list[TableRowView]]:
    """Return the API's answer, None if every row is refused, and the view of each row."""
    fitting = [row for row in pasted.rows if len(row) == len(pasted.header)]
    contexts = [pasted.context(row, known) for row in fitting]
    answer, result = None, []
    if contexts:
        body = {"contexts": contexts} | query.options()
        try:
            answer = await api.post(f"{query.api}/prescribe", body, kept=kept)
            result = [(prescription, "") for prescription in answer["prescriptions"]]
        except ApiRefusal as refusal:
            reasons = _reasons(refusal)
            if not reasons:
                raise
            result = [(None, reasons.get(number, refusal.detail)) for number in range(len(contexts))]
    prescriptions, lines = iter(result), []
    for row in pasted.rows:
        if len(row) == len(pasted.header):
            prescription, reason = next(prescriptions)
            refused_here = prescription is not None and prescription["status"] == "refused"
            lines.append(
                TableRowView(
                    row, None if refused_here else prescription, prescription["reason"] if refused_here else reason
                )
            )
        else:
            words = f"this line has {len(row)} values, but the header has {len(pasted.header)} names"
            lines.append(TableRowView(row[: len(pasted.header)], None, words))
    return answer, lines


def _reasons(refusal: ApiRefusal) -> dict[int, str]:
    """Return why each context is refused; empty if other errors occur."""
    reasons: dict[int, str] = {}
    for one in refusal.problem.get("errors", []):
        parts = one["pointer"].split("/")
        if len(parts) < 3 or parts[1] != "contexts" or not parts[2].isdigit():
            return {}
        reasons.setdefault(int(parts[2]), one["detail"])
    return reasons


def _decision_table(pasted: PastedTable, lines: list[TableRowView]) -> pa.Table:
    """Return the table with its decisions, in the columns of a batch result."""
    prescription = [line.prescription or {} for line in lines]
    entries = next((list(one["decision"]) for one in prescription if one), [])
    numbers = {f"decision.{name}": [one["decision"][name] if one else None for one in prescription] for name in entries}
    numbers |= {name: [one.get(name) for one in prescription] for name in ("expected_cost", "cvar_95")}
    for level in _QUANTILES:
        numbers[f"cost_quantiles.{level}"] = [one["cost_quantiles"][level] if one else None for one in prescription]
    texts: dict[str, list[Any]] = {"status": [line.status for line in lines], "reason": [line.why for line in lines]}
    for place in range(max((len(line.warnings) for line in lines), default=0)):
        said = [line.warnings[place] if place < len(line.warnings) else None for line in lines]
        texts[f"warning.{place + 1}"] = said
    columns: dict[str, pa.Array] = {}
    for place, name in enumerate(pasted.header):
        # Columns of a pasted earlier result are replaced.
        if name not in numbers and name not in texts:
            cells = [line.cells[place] if place < len(line.cells) else None for line in lines]
            columns[name if name not in columns else f"{name} {place + 1}"] = pa.array(cells, pa.string())
    columns |= {name: pa.array(values, pa.float64()) for name, values in numbers.items()}
    return pa.table(columns | {name: pa.array(values, pa.string()) for name, values in texts.items()})


def _render_table(
    request: Request, query: DecideQuery, posterior: Mapping[str, Any], text: str, status: int = 200, **given: Any
) -> Response:
    prescription: dict[str, Any] = {
        "wrong": "",
        "answer": None,
        "pasted": None,
        "lines": [],
        "asking": [],
        "entries": [],
        "left_out": 0,
    }
    return render(
        request,
        "decide_table.html",
        status,
        query=query,
        posterior=posterior,
        text=text,
        columns=list(field_kinds(posterior)),
        most_rows=MOST_ROWS,
        words=STATUS_WORDS,
        **prescription | {"money": Money(False)} | given,
    )
