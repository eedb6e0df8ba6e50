"""/v1/problems"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import AfterValidator, WithJsonSchema

from app.http.idempotency import IdempotentRoute
from app.http.schemas import Limit, Name, Page
from app.http.security import Admin, Reader, Trainer
from app.problems import service
from app.problems.check import check
from app.problems.schemas import CompiledProblemAnswer, NewProblem, ProblemAnswer, ProblemCheckAnswer, ProblemSummary
from bco_core.problems.registry import PROBLEMS

router = APIRouter(prefix="/v1/problems", tags=["problems"], route_class=IdempotentRoute)


def _check_kind(kind: str) -> str:
    if kind not in PROBLEMS:
        raise ValueError(f"the problem kind must be one of {', '.join(PROBLEMS)}")
    return kind


KnownKind = Annotated[str, AfterValidator(_check_kind), WithJsonSchema({"type": "string", "enum": list(PROBLEMS)})]


@router.post("", status_code=201)
async def create_problem(request: NewProblem, caller: Trainer, http: Request, response: Response) -> ProblemAnswer:
    """Describe a decision problem once; jobs refer to it by id."""
    await check(http, request)
    row = await run_in_threadpool(service.create, caller.workspace, request)
    response.headers["Location"] = f"/v1/problems/{row.id}"
    return ProblemAnswer.model_validate(row, from_attributes=True)


@router.post("/check")
async def check_problem(request: NewProblem, caller: Trainer, http: Request) -> ProblemCheckAnswer:
    """Check a problem: refuse what POST /v1/problems would refuse, and store nothing."""
    await check(http, request)
    return await run_in_threadpool(service.describe_check, request)


@router.get("")
def list_problems(
    caller: Reader,
    limit: Limit = 50,
    cursor: str | None = None,
    name: Name | None = None,
    kind: KnownKind | None = None,
) -> Page[ProblemSummary]:
    """List problems, optionally with a name or of a kind."""
    rows, next_cursor = service.list_problems(caller.workspace, limit, cursor, name, kind)
    return Page(
        items=[ProblemSummary.model_validate(row, from_attributes=True) for row in rows], next_cursor=next_cursor
    )


@router.get("/{problem_id}")
def read_problem(problem_id: str, caller: Reader) -> ProblemAnswer:
    """Read a problem and its specification."""
    return ProblemAnswer.model_validate(service.get(caller.workspace, problem_id), from_attributes=True)


@router.get("/{problem_id}/compiled")
def read_compiled_problem(problem_id: str, caller: Reader) -> CompiledProblemAnswer:
    """Return the problem as a specification of kind ``linear``, the model by names behind ready-made problems."""
    return service.compile_problem(caller.workspace, problem_id)


@router.delete("/{problem_id}", status_code=204)
def delete_problem(problem_id: str, caller: Admin) -> None:
    """Delete a problem that no job uses."""
    service.delete(caller.workspace, problem_id)
