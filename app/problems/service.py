"""Creating, listing, reading and deleting problems."""

from __future__ import annotations

import sqlalchemy as sa

from app.db.engine import transaction
from app.db.rows import delete_row, page, read
from app.db.tables import ProblemRow
from app.ids import new_id
from app.problems.schemas import NewProblem
from bco_core.problems.registry import build_problem

MISSING = "no problem has this id; GET /v1/problems lists them"


def create(request: NewProblem) -> ProblemRow:
    spec = request.spec.model_dump()
    build_problem(spec)
    with transaction() as session:
        row = ProblemRow(id=new_id("prob"), name=request.name, spec=spec)
        session.add(row)
    return row


def listing(limit: int, cursor: str | None) -> tuple[list[ProblemRow], str | None]:
    with transaction() as session:
        return page(session, sa.select(ProblemRow), ProblemRow.id, limit, cursor)


def get(problem_id: str) -> ProblemRow:
    return read(ProblemRow, problem_id, MISSING)


def delete(problem_id: str) -> None:
    with transaction() as session:
        delete_row(session, ProblemRow, problem_id, MISSING, "jobs use this problem; delete them first")
