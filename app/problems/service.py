"""Create, list, read and delete problems."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.engine import transaction
from app.db.tables import ProblemRow
from app.http.errors import ConflictError
from app.http.idempotency import record_location
from app.http.rows import delete_row, matching, page, read
from app.ids import new_id
from app.problems.schemas import CompiledProblemAnswer, NewProblem, ProblemCheckAnswer, decision_names, outcome_names
from bco_core.problems.registry import PROBLEMS

MISSING = "no problem has this id; GET /v1/problems lists them"


def create(workspace: str, request: NewProblem) -> ProblemRow:
    """Store a problem that has been checked."""
    with transaction() as session:
        return add(session, workspace, request)


def add(session: Session, workspace: str, request: NewProblem) -> ProblemRow:
    """Store a problem that has been checked, within a transaction."""
    row = ProblemRow(id=new_id("prob"), workspace=workspace, name=request.name, spec=request.spec.model_dump())
    session.add(row)
    record_location(session, f"/v1/problems/{row.id}")
    return row


def list_problems(
    workspace: str, limit: int, cursor: str | None, name: str | None = None, kind: str | None = None
) -> tuple[list[sa.Row[Any]], str | None]:
    """Return a page of problems, optionally with a name and of a kind."""
    conditions = matching(ProblemRow, name=name)
    if kind is not None:
        conditions.append(ProblemRow.spec["kind"].as_string() == kind)
    columns = [ProblemRow.id, ProblemRow.name, ProblemRow.created_at, ProblemRow.spec["kind"].as_string().label("kind")]
    with transaction() as session:
        return page(session, ProblemRow, workspace, limit, cursor, *conditions, columns=columns)


def get(workspace: str, problem_id: str) -> ProblemRow:
    return read(ProblemRow, workspace, problem_id, MISSING)


def compile_problem(workspace: str, problem_id: str) -> CompiledProblemAnswer:
    """Write a problem as a linear model by names; 409 where it is none."""
    row = get(workspace, problem_id)
    kind = row.spec["kind"]
    compile_ = PROBLEMS[kind].compiled
    if compile_ is None:
        linear = ", ".join(name for name, other in PROBLEMS.items() if other.compiled is not None)
        raise ConflictError(f"problems of kind {kind} are not linear models by names; these kinds are: {linear}")
    return CompiledProblemAnswer(id=row.id, kind=kind, spec=compile_(row.spec))


def describe_check(request: NewProblem) -> ProblemCheckAnswer:
    """Describe a problem that has been checked and is not stored."""
    spec = request.spec.model_dump()
    kind = spec["kind"]
    compile_ = None if kind == "linear" else PROBLEMS[kind].compiled
    return ProblemCheckAnswer(
        kind=kind,
        outcomes=outcome_names(spec),
        decisions=decision_names(spec),
        compiled=None if compile_ is None else compile_(spec),
    )


def delete(workspace: str, problem_id: str) -> None:
    with transaction() as session:
        delete_row(session, ProblemRow, workspace, problem_id, MISSING, "jobs use this problem; delete them first")
