"""Import model files with their scenarios, and export models."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.child_processes import FileReaders
from app.datasets import service as datasets
from app.datasets.parsing import RawTable
from app.datasets.reader import ask_reader
from app.datasets.roles import ColumnRoles
from app.db.engine import transaction
from app.db.tables import ProblemRow
from app.http.errors import ConflictError, InvalidRequest
from app.http.routes import parse_json
from app.model_files.schemas import ImportDescription
from app.model_files.write_mps import write_mps
from app.problems import service as problems
from app.problems.schemas import NewProblem
from app.settings import Settings
from bco_core.problems.linear.model import MAXIMUM_PARTS
from bco_core.problems.registry import PROBLEMS

# HiGHS and numpy start threads, whose stacks count as memory.
readers = FileReaders("app.model_files.child", {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
NOT_LINEAR = "a problem of this kind is not a linear model, so it cannot be written as MPS"


class ImportedModel(NamedTuple):
    """The content of an imported file: a problem as it would be posted, the table of its scenarios, and notes."""

    problem: NewProblem
    table: RawTable | None
    notes: list[str]


def parse_description(text: bytes) -> ImportDescription:
    """Parse the description that came with a file."""
    try:
        value = parse_json(text)
    except ValueError:
        raise InvalidRequest.at(("description",), "the description is not valid JSON") from None
    try:
        return ImportDescription.model_validate(value)
    except ValidationError as error:
        places = [{**entry, "loc": ("body", "description", *entry["loc"])} for entry in error.errors()]
        raise RequestValidationError(places) from None


def read_import(parts: Mapping[str, bytes], description: ImportDescription, settings: Settings) -> ImportedModel:
    """Read the files of an import in a child process."""
    with tempfile.TemporaryDirectory(prefix="bco-import-") as folder:
        for part, content in parts.items():
            Path(folder, part).write_bytes(content)
        question = {
            "folder": folder,
            "parts": list(parts),
            "description": description.model_dump(),
            "rows": MAXIMUM_PARTS["rows"],
            "columns": MAXIMUM_PARTS["decisions"] + MAXIMUM_PARTS["recourse"],
            "entries": settings.max_json_values,
        }
        ask_reader(readers, question, settings, "send a smaller model")
        result: dict[str, Any] = orjson.loads(Path(folder, "result").read_bytes())
    try:
        problem = NewProblem.model_validate({"name": description.name, "spec": result["spec"]})
    except ValidationError as error:
        first = error.errors()[0]
        detail = first["msg"].removeprefix("Value error, ")
        raise refuse_in_file(("spec", *first["loc"][2:]), detail, result["spec"]) from None
    return ImportedModel(
        problem, _table(result["names"], result["rows"]) if "rows" in result else None, result["notes"]
    )


def _table(names: list[str], rows: list[list[float]]) -> RawTable:
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return RawTable(columns, len(rows), "scenarios", lambda row, name: (("scenarios",), f"scenario {row}, '{name}'"))


def refuse_in_file(where: tuple[str | int, ...], detail: str, spec: dict[str, Any]) -> InvalidRequest:
    """Return a refusal of a place in the specification, which the caller has not seen, in terms of the file."""
    _, part, *rest = (*where, "")
    if part in ("decisions", "recourse", "outcomes", "rows") and rest and isinstance(rest[0], int):
        word = {"decisions": "decision", "recourse": "recourse", "outcomes": "outcome", "rows": "row"}[str(part)]
        name = spec[str(part)][rest[0]].get("name") or rest[0] + 1
        detail = f"{word} '{name}': {detail}"
    return InvalidRequest.at(("file",), detail)


def create(workspace: str, model: ImportedModel) -> tuple[ProblemRow, str | None]:
    """Store a problem that has been checked and the data set of its scenarios, both or neither."""
    name = model.problem.name
    dataset_id = None
    with transaction() as session:
        if model.table is not None:
            roles = ColumnRoles(list(model.table.columns), [], [])
            dataset_id = datasets.add(session, workspace, f"scenarios of {name}"[:200], model.table, roles).id
        return problems.add(session, workspace, model.problem), dataset_id


def export_mps(row: ProblemRow, at: list[str]) -> tuple[str, dict[str, Any]]:
    """Write a problem as free MPS, uncertain numbers ``at`` values such as demand=120, and its description."""
    compiled = PROBLEMS[row.spec["kind"]].compiled
    if compiled is None:
        raise ConflictError(NOT_LINEAR)
    spec = compiled(row.spec)
    return write_mps(spec, row.name, _values(at, {outcome["name"] for outcome in spec["outcomes"]}))


def _values(at: list[str], known: set[str]) -> dict[str, float]:
    values = {}
    for index, text in enumerate(at):
        name, _, number = text.rpartition("=")
        if name not in known:
            detail = f"write an outcome's name, = and a number; the outcomes are {', '.join(sorted(known)[:20])}"
            raise InvalidRequest.at(("query", "at", index), detail)
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = float("nan")
        if not abs(values[name]) <= 1e12:
            raise InvalidRequest.at(("query", "at", index), "the value is not a number between −1e12 and 1e12")
    return values
