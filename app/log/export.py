"""Export logged prescriptions as a table with a row for each context, which can be uploaded as a data set.

Columns are the context, the realised outcomes, our decision (``decision.…``), the decision actually taken
(``actual_decision.…``) and costs; their names are those of the newest prescription. Rows are oldest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from app.datasets.encoding import ContextEncoding
from app.db.engine import transaction
from app.db.tables import OutcomeRow, PosteriorRow, PrescriptionRow
from app.http.errors import NotFoundError
from app.http.rows import find
from app.http.tables import CSV, PARQUET, csv_pieces, parquet_pieces
from app.log import service
from app.log.schemas import Format
from app.log.service import LogEntry, LogFilter
from app.problems.schemas import decision_names, outcome_names

MEDIA_TYPES: dict[Format, str] = {"csv": CSV, "parquet": PARQUET}
NOTHING = "the log has no such prescription, so there is nothing to export"
AT_ONCE = 20
_COSTS = ("expected_cost", "realised_cost", "actual_decision_cost", "best_cost")


@dataclass(frozen=True)
class Columns:
    """Names of context columns, outcomes and decisions, and which of the context columns are numeric."""

    contexts: tuple[str, ...]
    numeric: frozenset[str]
    outcomes: tuple[str, ...]
    decisions: tuple[str, ...]

    def schema(self) -> pa.Schema:
        """Return the schema; a context column with the name of another column gets the prefix ``context.``."""
        number, text = pa.float64(), pa.string()
        fields = [("prescription", text), ("kind", text), ("answered_at", text), ("index", pa.int64())]
        after = [(name, number) for name in self.outcomes]
        after += [(f"{what}.{name}", number) for what in ("decision", "actual_decision") for name in self.decisions]
        after += [(name, number) for name in _COSTS]
        taken = {name for name, _ in (*fields, *after)}
        contexts = [
            (f"context.{name}" if name in taken else name, number if name in self.numeric else text)
            for name in self.contexts
        ]
        return pa.schema([*fields, *contexts, *after])


def columns(workspace: str, only: LogFilter) -> Columns:
    """Return the columns for these prescriptions; 404 if there are none."""
    newest = sa.select(PrescriptionRow).where(PrescriptionRow.workspace == workspace, *only.conditions())
    with transaction() as session:
        row = session.scalar(newest.order_by(PrescriptionRow.id.desc()).limit(1))
        if row is None:
            raise NotFoundError(NOTHING)
        posterior = find(session, PosteriorRow, workspace, row.posterior_id)
        recorded = service.outcomes_of(session, [row.id])
    if posterior is not None:
        kinds = {column["name"]: column["kind"] for column in posterior.columns}
        names = ContextEncoding.of(posterior.columns, posterior.recipe).names
        numeric = frozenset(name for name in names if kinds[name] == "numeric")
        return Columns(
            names, numeric, tuple(outcome_names(posterior.problem)), tuple(decision_names(posterior.problem))
        )
    # The posterior was deleted: only the log has the names.
    entry = service.log_entry(row)
    first, decision = entry.contexts()[0], entry.decided()[0]["decision"]
    names = tuple(first) if isinstance(first, dict) else tuple(f"context.{number}" for number in range(len(first)))
    outcomes = dict.fromkeys(name for one in recorded for name in one.outcomes)
    return Columns(names, frozenset(), tuple(outcomes), tuple(decision))


def pieces(workspace: str, only: LogFilter, known: Columns, format: Format) -> Iterator[bytes]:
    """Yield the file in pieces, oldest prescriptions first."""
    schema = known.schema()
    tables = (pa.Table.from_pylist(rows, schema) for rows in _rows(workspace, only, known, schema))
    return csv_pieces(tables) if format == "csv" else parquet_pieces(tables, schema)


def _rows(workspace: str, only: LogFilter, known: Columns, schema: pa.Schema) -> Iterator[list[dict[str, Any]]]:
    row, after = PrescriptionRow, ""
    while True:
        query = sa.select(row).where(row.workspace == workspace, row.id > after, *only.conditions())
        with transaction() as session:
            rows = list(session.scalars(query.order_by(row.id).limit(AT_ONCE)))
            recorded = service.outcomes_of(session, [one.id for one in rows])
        if not rows:
            return
        outcomes = {(one.prescription_id, one.number): one for one in recorded}
        yield [line for one in rows for line in _lines(service.log_entry(one), outcomes, known, schema)]
        after = rows[-1].id


def _lines(
    entry: LogEntry, outcomes: dict[tuple[str, int], OutcomeRow], known: Columns, schema: pa.Schema
) -> Iterator[dict[str, Any]]:
    row = entry.row
    first = schema.names.index("index") + 1
    columns = dict(zip(known.contexts, schema.names[first : first + len(known.contexts)], strict=True))
    for number, (context, decided) in enumerate(zip(entry.contexts(), entry.decided(), strict=True)):
        values = context if isinstance(context, dict) else dict(zip(known.contexts, context, strict=False))
        line: dict[str, Any] = {
            "prescription": row.id,
            "kind": row.kind,
            "answered_at": row.created_at.astimezone(UTC).isoformat(timespec="milliseconds"),
            "index": number,
            "expected_cost": decided["expected_cost"],
        }
        line |= {columns[name]: _cell(values.get(name), name in known.numeric) for name in known.contexts}
        line |= {f"decision.{name}": decided["decision"].get(name) for name in known.decisions}
        outcome = outcomes.get((row.id, number))
        if outcome is not None:
            line |= {name: outcome.outcomes.get(name) for name in known.outcomes}
            line |= {f"actual_decision.{name}": outcome.actual_decision.get(name) for name in known.decisions}
            line |= {name: getattr(outcome, name) for name in _COSTS[1:]}
        yield line


def _cell(value: Any, is_number: bool) -> Any:
    if is_number:
        return float(value) if isinstance(value, int | float) else None
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
