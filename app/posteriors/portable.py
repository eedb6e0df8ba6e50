"""Export and import a posterior as one file: a zip of JSON and .npy arrays, each with its sha256.

The file has everything that prescribing needs, with the problem and the columns, and of the history only the outcomes
behind predictive scenarios. If features look back, it has the newest rows of each series too; importing creates a data
set of them, to which rows can be appended. The file has no code, and everything in it is checked before use.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError, model_validator
from sqlalchemy.orm import Session

from app.aliases.service import real_id
from app.datasets.encoding import ContextEncoding
from app.datasets.schemas import ColumnSchema
from app.datasets.service import cut_into_chunks, read_table, stored_units
from app.datasets.service import digest as digest_of_chunks
from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.former_names import exported_dataset
from app.db.tables import DatasetChunkRow, DatasetRow, PosteriorRow, ProblemRow
from app.http.schemas import Name
from app.ids import is_id, new_id
from app.posteriors import service
from app.posteriors.schemas import DiagnosticsAnswer
from app.problems.schemas import NewProblem
from app.settings import get_settings
from bco_core import deadlines
from bco_core.data import Arrays
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.posterior import Posterior, strip_particles
from bco_core.problems.registry import build_problem

MANIFEST, ROWS = "manifest.json", "rows.parquet"
_MANIFEST_BYTES = 50_000_000


class DatasetFacts(BaseModel):
    """Description of the rows in the file: the data set's name, profile and lead, and the sha256 of the rows."""

    name: Name
    columns: list[dict[str, Any]]
    lead: int
    handling: dict[str, str]
    sha256: str

    @model_validator(mode="before")
    @classmethod
    def former_names(cls, facts: Any) -> Any:
        return exported_dataset(facts) if isinstance(facts, dict) else facts


class Manifest(BaseModel):
    """Everything but the arrays."""

    format: Literal["bco-posterior"] = "bco-posterior"
    version: Literal[1] = 1
    id: str
    name: Name
    created_at: datetime
    problem_id: str
    problem_name: Name
    problem: dict[str, Any]
    columns: list[dict[str, Any]]
    recipe: dict[str, Any] | None = None
    description: dict[str, Any]
    diagnostics: dict[str, Any]
    policy: str
    digest: str
    files: dict[str, str]
    dataset: DatasetFacts | None = None


def export(named: str, path: Path, workspace: str = DEFAULT_WORKSPACE) -> Manifest:
    """Write a posterior, by its id or an alias of a workspace, to a file; InvalidInput if it does not exist."""
    with transaction() as session:
        posterior_id = real_id(session, workspace, named)
        row = session.get(PosteriorRow, posterior_id) if is_id(posterior_id) else None
        if row is None:
            raise InvalidInput(f"no posterior has the id {named!r}, and no alias of workspace {workspace} this name")
        problem = session.get_one(ProblemRow, row.problem_id)
        # With particles: another machine may draw other digits.
        arrays = service.load_arrays(session, row)
        facts, rows = _rows(session, row)
    files = {f"arrays/{name}.npy": _npy(array) for name, array in arrays.items()}
    fields = {name: getattr(row, name) for name in Manifest.model_fields if hasattr(row, name)}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = Manifest(**fields, problem_name=problem.name, files=sums, dataset=facts)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
            for name, data in (files | ({ROWS: rows} if facts else {})).items():
                archive.writestr(name, data)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror})") from None
    return manifest


def _rows(session: Session, row: PosteriorRow) -> tuple[DatasetFacts | None, bytes]:
    """Return the rows that features look back on as Parquet, with their description."""
    lookback = ContextEncoding.of(row.columns, row.recipe).lookback
    if lookback is None:
        return None, b""
    if row.dataset_id is None:
        raise InvalidInput("the posterior needs earlier rows of its data set, which was deleted")
    dataset = session.get_one(DatasetRow, row.dataset_id)
    buffer = io.BytesIO()
    pq.write_table(lookback.recent(read_table(session, dataset.id)), buffer)
    facts = {name: getattr(dataset, name) for name in DatasetFacts.model_fields if hasattr(dataset, name)}
    return DatasetFacts(**facts, sha256=hashlib.sha256(buffer.getvalue()).hexdigest()), buffer.getvalue()


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def read(path: Path) -> tuple[Manifest, Arrays, pa.Table | None]:
    """Read a file and check everything in it: arrays, and rows if there are any. InvalidInput says what is wrong."""
    rows = None
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = Manifest.model_validate_json(_member(archive, MANIFEST, _MANIFEST_BYTES))
            parts = manifest.files | ({ROWS: manifest.dataset.sha256} if manifest.dataset else {})
            if set(archive.namelist()) != {MANIFEST, *parts}:
                raise InvalidInput("the file has other parts than its manifest lists")
            room = get_settings().max_posterior_mb * 1_000_000
            arrays: Arrays = {}
            for name, sha256 in parts.items():
                data = _member(archive, name, room)
                room -= len(data)
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise InvalidInput(f"{name} does not match its checksum; the file is damaged")
                if name == ROWS:
                    rows = stored_units(pq.read_table(io.BytesIO(data)))
                    continue
                arrays[name.removeprefix("arrays/").removesuffix(".npy")] = np.load(
                    io.BytesIO(data), allow_pickle=False
                )
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
        raise InvalidInput(f"this is not a file written by bco export ({error})") from None
    except (ValidationError, ValueError, KeyError) as error:
        raise InvalidInput(f"a part of the file cannot be read ({str(error).splitlines()[0]})") from None
    _check(manifest, arrays, rows)
    return manifest, arrays, rows


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read one part; refuse one that is larger than declared, or than ``most`` bytes."""
    if archive.getinfo(name).file_size > most:
        raise InvalidInput(f"{name} is larger than this service allows (BCO_MAX_POSTERIOR_MB)")
    with archive.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidInput(f"{name} is larger than this service allows (BCO_MAX_POSTERIOR_MB)")
    return data


def _check(manifest: Manifest, arrays: Arrays, rows: pa.Table | None) -> None:
    if service.digest_of(manifest.description, manifest.recipe, arrays) != manifest.digest:
        raise InvalidInput("the arrays do not match the posterior's digest; the file was changed")
    try:
        for column in manifest.columns:
            ColumnSchema.model_validate(column)
        DiagnosticsAnswer.model_validate(manifest.diagnostics)
        spec = NewProblem.model_validate({"name": manifest.problem_name, "spec": manifest.problem}).spec.model_dump()
        with deadlines.until(monotonic() + get_settings().prescribe_seconds):
            build_problem(spec)
        Posterior.from_arrays(manifest.description, arrays)
        lookback = ContextEncoding.of(manifest.columns, manifest.recipe).lookback
        if (lookback is None) != (rows is None):
            raise InvalidInput("the file must have rows if and only if the posterior has features of earlier rows")
        if lookback is not None and rows is not None and manifest.dataset is not None:
            for column in manifest.dataset.columns:
                ColumnSchema.model_validate(column)
            if [column["name"] for column in manifest.dataset.columns] != rows.column_names:
                raise InvalidInput("the rows have other columns than their profile")
            lookback.past(rows, 1)
    except OutOfTime:
        detail = f"the problem in the file could not be checked within {get_settings().prescribe_seconds} s"
        raise InvalidInput(f"{detail} (BCO_PRESCRIBE_SECONDS)") from None
    except (ValidationError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InvalidInput(
            f"this service cannot use the posterior in the file ({str(error).splitlines()[0]})"
        ) from None


def import_(path: Path, workspace: str) -> tuple[PosteriorRow, bool]:
    """Store the posterior of a file in a workspace, with its id if that is free; False if it exists already."""
    manifest, arrays, rows = read(path)
    stored = strip_particles(manifest.description, arrays)
    with transaction() as session:
        there = session.get(PosteriorRow, manifest.id) if is_id(manifest.id) else None
        if there is not None and (there.workspace, there.digest) == (workspace, manifest.digest):
            return there, False
        keeps = is_id(manifest.id) and manifest.id.startswith("post_") and there is None
        row = PosteriorRow(
            id=manifest.id if keeps else new_id("post"),
            workspace=workspace,
            problem_id=_problem(session, manifest, workspace),
            dataset_id=_dataset(session, manifest, workspace, rows),
            particles=len(arrays["particles"]),
            **manifest.model_dump(
                include={
                    "name",
                    "created_at",
                    "problem",
                    "columns",
                    "recipe",
                    "description",
                    "diagnostics",
                    "policy",
                    "digest",
                }
            ),
        )
        service.add(session, row, stored)
    return row, True


def _dataset(session: Session, manifest: Manifest, workspace: str, rows: pa.Table | None) -> str | None:
    """Create a data set of the rows in the file, and return its id."""
    facts = manifest.dataset
    if facts is None or rows is None:
        return None
    chunks = cut_into_chunks(rows)
    row = DatasetRow(
        id=new_id("data"),
        workspace=workspace,
        name=facts.name,
        rows=rows.num_rows,
        columns=facts.columns,
        warnings=[f"newest rows of each series, imported with {manifest.id}"],
        lead=facts.lead,
        revision=1,
        digest=digest_of_chunks(sha256 for sha256, _ in chunks),
        handling=facts.handling,
    )
    session.add(row)
    session.flush()
    for seq, (sha256, data) in enumerate(chunks):
        session.add(DatasetChunkRow(dataset_id=row.id, seq=seq, revision=1, sha256=sha256, data=data))
    return row.id


def _problem(session: Session, manifest: Manifest, workspace: str) -> str:
    """Return the id of the same problem in the workspace; create it if it does not exist."""
    there = session.get(ProblemRow, manifest.problem_id) if is_id(manifest.problem_id) else None
    if there is not None and (there.workspace, there.spec) == (workspace, manifest.problem):
        return there.id
    keeps = is_id(manifest.problem_id) and manifest.problem_id.startswith("prob_") and there is None
    row = ProblemRow(
        id=manifest.problem_id if keeps else new_id("prob"),
        workspace=workspace,
        name=manifest.problem_name,
        spec=manifest.problem,
    )
    session.add(row)
    session.flush()
    return row.id
