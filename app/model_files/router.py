"""/v1/problems/import and /v1/problems/{problem_id}/mps"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse

from app.http.errors import InvalidRequest
from app.http.idempotency import IdempotentRoute
from app.http.security import Reader, Trainer
from app.model_files import service
from app.model_files.schemas import ImportAnswer, ProblemImport
from app.problems import service as problems
from app.problems.check import check
from app.settings import get_settings

router = APIRouter(prefix="/v1/problems", tags=["problems"], route_class=IdempotentRoute)

At = Annotated[
    list[str] | None,
    Query(max_length=200, description="values of outcomes at which uncertain numbers are written, such as demand=120"),
]


@router.post("/import", status_code=201)
async def import_problem(
    upload: Annotated[ProblemImport, Form(media_type="multipart/form-data")],
    caller: Trainer,
    http: Request,
    response: Response,
) -> ImportAnswer:
    """Create a problem from a model in MPS, free MPS or LP, and a data set from the scenarios of an SMPS file."""
    text = upload.description if isinstance(upload.description, str) else await upload.description.read()
    description = service.parse_description(text.encode() if isinstance(text, str) else text)
    sent = {"file": upload.file, "time": upload.time, "scenarios": upload.scenarios}
    parts = {part: await file.read() for part, file in sent.items() if file is not None}
    model = await run_in_threadpool(service.read_import, parts, description, get_settings())
    try:
        await check(http, model.problem)
    except InvalidRequest as error:
        where = error.fields[0].pointer.removeprefix("#/").split("/")
        path = tuple(int(part) if part.isdigit() else part for part in where)
        raise service.refuse_in_file(path, error.detail, model.problem.spec.model_dump()) from None
    row, dataset_id = await run_in_threadpool(service.create, caller.workspace, model)
    response.headers["Location"] = f"/v1/problems/{row.id}"
    answer = ImportAnswer.model_validate(row, from_attributes=True)
    return answer.model_copy(update={"dataset_id": dataset_id, "notes": model.notes})


@router.get(
    "/{problem_id}/mps",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {}, "application/json": {}}}},
)
def export_problem(
    problem_id: str, caller: Reader, part: Literal["model", "description"] = "model", at: At = None
) -> Response:
    """A linear problem as free MPS; ``part=description`` is the JSON with which the file can be imported again."""
    text, description = service.export_mps(problems.get(caller.workspace, problem_id), at or [])
    return PlainTextResponse(text) if part == "model" else JSONResponse(description)
