"""Export and import: a posterior in another service makes exactly the same decisions."""

from __future__ import annotations

import io
import json
import logging
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.commands import cli
from app.db.base import DEFAULT_WORKSPACE
from app.db.migrate import migrate
from app.main import create_app
from app.posteriors import portable
from app.settings import get_settings
from bco_core.errors import InvalidInput
from tests.support.in_process import service_on
from tests.support.journey import Json, check_json, counts, learn_posterior, prescribe


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, predictor={"kind": "skip_mlp", "hidden": [8]}, name="spring")


@pytest.fixture
def exported_file(posterior: Json, tmp_path: Path) -> Path:
    path = tmp_path / "spring.bco"
    portable.export(posterior["id"], path)
    return path


def command(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@contextmanager
def other_service(tmp_path: Path) -> Iterator[TestClient]:
    """Run another service on its own database."""
    with service_on(f"sqlite:///{tmp_path / 'elsewhere.db'}"):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app(), raise_server_exceptions=False) as client:
            yield client


@pytest.fixture(autouse=True)
def _restore_log_handlers() -> Iterator[None]:
    """The command logs to its own stderr, which is closed afterwards."""
    handlers = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers


def test_an_imported_posterior_makes_the_same_decisions(
    client: TestClient, posterior: Json, exported_file: Path, tmp_path: Path
) -> None:
    here = [prescribe(client, posterior["id"], **options) for options in ({}, {"seed": 3, "policy": "bcp"})]
    with other_service(tmp_path) as other:
        result = command("import", exported_file)
        assert (result.exit_code, posterior["id"] in result.output) == (0, True), result.output
        there = [prescribe(other, posterior["id"], **options) for options in ({}, {"seed": 3, "policy": "bcp"})]
        assert there == here
        found = check_json(other.get(f"/v1/posteriors/{posterior['id']}"))
        assert found == posterior | {"job_id": None, "dataset_id": None}
        assert check_json(other.get(f"/v1/problems/{posterior['problem_id']}"))["spec"] == posterior["problem"]
        for path in ("diagnostics", "particles"):
            assert other.get(f"/v1/posteriors/{posterior['id']}/{path}").status_code == 200
        again = command("import", exported_file)
        assert (again.exit_code, "already" in again.output) == (0, True)
        assert counts()["posteriors"] == 1
        assert other.delete(f"/v1/posteriors/{posterior['id']}").status_code == 204


def test_importing_into_another_workspace_makes_a_copy(
    client: TestClient, posterior: Json, exported_file: Path
) -> None:
    before = counts()
    row, new = portable.import_(exported_file, "planning")
    assert new
    assert row.id != posterior["id"]
    assert row.problem_id != posterior["problem_id"]
    assert (row.workspace, row.digest) == ("planning", posterior["digest"])
    after = counts()
    assert (after["posteriors"] - before["posteriors"], after["problems"] - before["problems"]) == (1, 1)


def test_importing_into_the_exporting_workspace_changes_nothing(exported_file: Path, posterior: Json) -> None:
    before = counts()
    row, new = portable.import_(exported_file, DEFAULT_WORKSPACE)
    assert (row.id, new) == (posterior["id"], False)
    assert counts() == before


def test_the_file_is_plain_json_and_arrays(exported_file: Path, posterior: Json) -> None:
    with zipfile.ZipFile(exported_file) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert manifest["digest"] == posterior["digest"]
        for name in manifest["files"]:
            np.load(io.BytesIO(archive.read(name)), allow_pickle=False)


def test_exporting_a_missing_posterior_fails_with_a_message(client: TestClient, tmp_path: Path) -> None:
    for name in ("post_nowhere", "post_" + "0" * 26):
        result = command("export", name, tmp_path / "x.bco")
        assert result.exit_code == 1
        assert "no posterior has the id" in result.output
        assert not (tmp_path / "x.bco").exists()


def test_an_unwritable_file_fails_with_a_message(posterior: Json, tmp_path: Path) -> None:
    result = command("export", posterior["id"], tmp_path / "nowhere" / "x.bco")
    assert result.exit_code == 1
    assert "cannot be written" in result.output


# tampered files


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def with_manifest(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def change(parts: dict[str, bytes]) -> None:
        parts["manifest.json"] = json.dumps(json.loads(parts["manifest.json"]) | changes).encode()

    return change


def _flip(parts: dict[str, bytes]) -> None:
    data = bytearray(parts["arrays/particles.npy"])
    data[-1] ^= 1
    parts["arrays/particles.npy"] = bytes(data)


def _flip_and_sign(parts: dict[str, bytes]) -> None:
    import hashlib

    _flip(parts)
    files = json.loads(parts["manifest.json"])["files"]
    files["arrays/particles.npy"] = hashlib.sha256(parts["arrays/particles.npy"]).hexdigest()
    with_manifest(files=files)(parts)


def _pickle(parts: dict[str, bytes]) -> None:
    import hashlib

    data = pickle.dumps({"a": 1})
    files = json.loads(parts["manifest.json"])["files"] | {"arrays/particles.npy": hashlib.sha256(data).hexdigest()}
    parts["arrays/particles.npy"] = data
    with_manifest(files=files)(parts)


WRONG: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "a flipped bit": (_flip, "checksum"),
    "a flipped bit under a new checksum": (_flip_and_sign, "digest"),
    "a pickle": (_pickle, "cannot be read"),
    "a part that nobody named": (lambda parts: parts.update({"../../evil": b"x"}), "other parts"),
    "a part that is missing": (lambda parts: parts.pop("arrays/particles.npy") and None, "other parts"),
    "another format": (with_manifest(format="mine"), "cannot be read"),
    "a newer version": (with_manifest(version=2), "cannot be read"),
    "no JSON": (lambda parts: parts.update({"manifest.json": b"{"}), "cannot be read"),
    "no manifest": (lambda parts: parts.pop("manifest.json") and None, "cannot be read"),
    "another problem kind": (with_manifest(problem={"kind": "dice"}), "cannot use"),
    "columns that are none": (with_manifest(columns=[{"name": 1}]), "cannot use"),
    "diagnostics that are none": (with_manifest(diagnostics={}), "cannot use"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_tampered_file_is_refused_with_a_reason_and_not_stored(
    exported_file: Path, change: Callable[[dict[str, bytes]], None], words: str
) -> None:
    rewrite(exported_file, change)
    before = counts()
    with pytest.raises(InvalidInput, match=words):
        portable.import_(exported_file, DEFAULT_WORKSPACE)
    assert counts() == before


def test_a_file_of_another_kind_is_refused_with_a_reason(tmp_path: Path, client: TestClient) -> None:
    path = tmp_path / "x.bco"
    path.write_bytes(b"PK\x03\x04 not really")
    result = command("import", path)
    assert result.exit_code == 1
    assert "bco export" in result.output
    assert "Traceback" not in result.output


def test_a_file_beyond_the_size_limit_is_not_decompressed(
    exported_file: Path, settings: Callable[..., None], posterior: Json
) -> None:
    def swell(parts: dict[str, bytes]) -> None:
        parts["arrays/particles.npy"] = b"\0" * 3_000_000

    with zipfile.ZipFile(exported_file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    swell(parts)
    with zipfile.ZipFile(exported_file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    settings(max_posterior_mb=1)
    with pytest.raises(InvalidInput, match="BCO_MAX_POSTERIOR_MB"):
        portable.import_(exported_file, DEFAULT_WORKSPACE)
