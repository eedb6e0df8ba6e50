"""A posterior as one file that can be taken elsewhere: a zip of JSON and .npy arrays, every one with its sha256.

It holds what prescribing needs, the problem and the columns included, and none of the history's rows but the outcomes
that predictive scenarios are made of. Nothing in it is code, and nothing of it is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa
from pydantic import BaseModel, ValidationError
from sqlalchemy.orm import Session

from app.datasets.schemas import Column
from app.db.engine import transaction
from app.db.tables import PosteriorBlockRow, PosteriorRow, ProblemRow
from app.http.schemas import Name
from app.ids import is_id, new_id
from app.posteriors import service
from app.posteriors.schemas import Diagnostics
from app.problems.schemas import NewProblem
from app.settings import get_settings
from bco_core.data import Arrays
from bco_core.errors import InvalidInput
from bco_core.posterior import Posterior, digest
from bco_core.problems.registry import build_problem

MANIFEST = "manifest.json"
_MANIFEST_BYTES = 50_000_000


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
    description: dict[str, Any]
    diagnostics: dict[str, Any]
    policy: str
    digest: str
    files: dict[str, str]


def export(posterior_id: str, path: Path) -> Manifest:
    """Write a posterior to a file. Raises InvalidInput with a sentence if there is no such posterior."""
    with transaction() as session:
        row = session.get(PosteriorRow, posterior_id) if is_id(posterior_id) else None
        if row is None:
            raise InvalidInput(f"no posterior has the id {posterior_id!r}")
        problem = session.get_one(ProblemRow, row.problem_id)
        block = PosteriorBlockRow
        names = session.scalars(sa.select(block.array).where(block.posterior_id == row.id).distinct()).all()
        arrays = {name: service.load_array(session, row.id, name) for name in sorted(names)}
    files = {f"arrays/{name}.npy": _npy(array) for name, array in arrays.items()}
    fields = {name: getattr(row, name) for name in Manifest.model_fields if hasattr(row, name)}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = Manifest(**fields, problem_name=problem.name, files=sums)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
            for name, data in files.items():
                archive.writestr(name, data)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror})") from None
    return manifest


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def read(path: Path) -> tuple[Manifest, Arrays]:
    """A file, with everything in it checked; InvalidInput says what is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = Manifest.model_validate_json(_member(archive, MANIFEST, _MANIFEST_BYTES))
            if set(archive.namelist()) != {MANIFEST, *manifest.files}:
                raise InvalidInput("the file holds other parts than its manifest names")
            room = get_settings().max_posterior_mb * 1_000_000
            arrays: Arrays = {}
            for name, sha256 in manifest.files.items():
                data = _member(archive, name, room)
                room -= len(data)
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise InvalidInput(f"{name} does not match its checksum; the file is damaged")
                arrays[name.removeprefix("arrays/").removesuffix(".npy")] = np.load(
                    io.BytesIO(data), allow_pickle=False
                )
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
        raise InvalidInput(f"this is not a file that bco export has written ({error})") from None
    except (ValidationError, ValueError, KeyError) as error:
        raise InvalidInput(f"a part of the file cannot be read ({str(error).splitlines()[0]})") from None
    _check(manifest, arrays)
    return manifest, arrays


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """One part, unpacked only if it is not larger than it says and than there is room for."""
    if archive.getinfo(name).file_size > most:
        raise InvalidInput(f"{name} is larger than this service takes (BCO_MAX_POSTERIOR_MB)")
    with archive.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidInput(f"{name} is larger than this service takes (BCO_MAX_POSTERIOR_MB)")
    return data


def _check(manifest: Manifest, arrays: Arrays) -> None:
    if digest(manifest.description, arrays) != manifest.digest:
        raise InvalidInput("the arrays do not match the posterior's digest; the file was changed")
    try:
        for column in manifest.columns:
            Column.model_validate(column)
        Diagnostics.model_validate(manifest.diagnostics)
        spec = NewProblem.model_validate({"name": manifest.problem_name, "spec": manifest.problem}).spec.model_dump()
        build_problem(spec)
        Posterior.from_arrays(manifest.description, arrays)
    except (ValidationError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InvalidInput(
            f"this service cannot use the posterior in the file ({str(error).splitlines()[0]})"
        ) from None


def import_(path: Path, workspace: str) -> tuple[PosteriorRow, bool]:
    """Store the posterior of a file in a workspace; False if exactly it is there already. It keeps its id if it can."""
    manifest, arrays = read(path)
    with transaction() as session:
        there = session.get(PosteriorRow, manifest.id) if is_id(manifest.id) else None
        if there is not None and (there.workspace, there.digest) == (workspace, manifest.digest):
            return there, False
        keeps = is_id(manifest.id) and manifest.id.startswith("post_") and there is None
        row = PosteriorRow(
            id=manifest.id if keeps else new_id("post"),
            workspace=workspace,
            problem_id=_problem(session, manifest, workspace),
            particles=len(arrays["particles"]),
            **manifest.model_dump(
                include={"name", "created_at", "problem", "columns", "description", "diagnostics", "policy", "digest"}
            ),
        )
        service.add(session, row, arrays)
    return row, True


def _problem(session: Session, manifest: Manifest, workspace: str) -> str:
    """The id of the same problem in the workspace, made if it is not there."""
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
