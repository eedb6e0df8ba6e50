"""Memory of loaded posteriors is counted, shared between processes and released."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.posteriors import service, shared
from app.prescriptions import cache
from app.prescriptions.cache import size_of
from bco_core.posterior import Posterior
from tests.support.journey import Json, learn_posterior, prescribe

RELEASE_SCRIPT = """
import numpy as np, psutil
from app.prescriptions.cache import give_back_early
give_back_early()
before = psutil.Process().memory_info().rss
for _ in range(3):
    kept = [np.ones(500_000) for _ in range(50)]
    small = [bytes(100_000) for _ in range(5)]
    del kept
print((psutil.Process().memory_info().rss - before) / 1e6)
"""


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, seed=4)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder where processes share arrays."""
    monkeypatch.setenv(shared.FOLDER, str(tmp_path))
    return tmp_path / "posteriors"


def load_posterior(posterior_id: str) -> Any:
    with transaction() as session:
        return service.load(session, session.get_one(PosteriorRow, posterior_id))


def test_every_nested_array_counts_once() -> None:
    @dataclass(frozen=True)
    class Deep:
        tensor: torch.Tensor
        more: Any

    # Sizes are followed into our own objects only.
    Deep.__module__ = "bco_core.deep"
    tensor, array = torch.zeros(100, dtype=torch.float64), np.zeros((10, 10))
    assert size_of(Deep(tensor, {"a": [array, array[2:]], "b": (tensor[:5], "text", 3)})) == 1600


def test_a_loaded_posterior_is_counted_with_its_problem(client: TestClient, posterior: Json) -> None:
    client.app.state.posteriors = found = cache.cache_from_settings()
    prescribe(client, posterior["id"], scenarios=40)
    _, ready = found.in_memory(posterior["id"])
    _, arrays = ready.posterior.to_arrays()
    alone = sum(array.nbytes for array in arrays.values())
    assert alone < found._entries.currsize == size_of(ready) < alone + 10_000


def test_processes_map_the_same_files(client: TestClient, posterior: Json, folder: Path) -> None:
    first, second = load_posterior(posterior["id"]), load_posterior(posterior["id"])
    assert sorted(file.stem for file in (folder / posterior["id"]).iterdir()) == sorted(first.to_arrays()[1])
    for name, values in first.to_arrays()[1].items():
        assert np.array_equal(values, second.to_arrays()[1][name])
    mapped = Path("/proc/self/maps").read_text().count(f"{posterior['id']}/particles.npy")
    assert mapped == 2


def test_shared_files_give_the_same_answer_as_the_database(client: TestClient, posterior: Json, folder: Path) -> None:
    answer = prescribe(client, posterior["id"])
    for _ in range(2):
        client.app.state.posteriors = cache.cache_from_settings()
        assert prescribe(client, posterior["id"]) == answer
    assert folder.is_dir()


def test_deleting_a_posterior_deletes_its_files(client: TestClient, folder: Path) -> None:
    made = learn_posterior(client)
    client.app.state.posteriors = cache.cache_from_settings()
    prescribe(client, made["id"])
    assert (folder / made["id"]).is_dir()
    client.delete(f"/v1/posteriors/{made['id']}")
    assert not (folder / made["id"]).exists()


def test_fresh_draws_are_shared_and_deleted_with_their_posterior(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learn_posterior(client)
    client.app.state.posteriors = cache.cache_from_settings()
    alone = prescribe(client, made["id"], seed=5)
    # Another process starts with an empty cache and draws nothing.
    client.app.state.posteriors = cache.cache_from_settings()
    with monkeypatch.context() as patch:
        patch.setattr(Posterior, "draws", lambda *_: pytest.fail("drawn again"))
        assert prescribe(client, made["id"], seed=5) == alone
    assert len([place for place in folder.iterdir() if place.name.startswith(made["id"])]) == 2
    client.delete(f"/v1/posteriors/{made['id']}")
    assert [place for place in folder.iterdir() if place.name.startswith(made["id"])] == []


def test_evicting_a_posterior_deletes_its_files(folder: Path) -> None:
    kept = cache.PosteriorCache(100)
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        kept.get(name, lambda: (0, 80))
    assert [place.name for place in folder.iterdir()] == ["two"]


def test_without_disk_space_posteriors_are_read_into_memory(
    client: TestClient, posterior: Json, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_disk_full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", raise_disk_full)
    assert len(load_posterior(posterior["id"]).particles) == posterior["particles"]
    assert "No space left" in caplog.text
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_memory_of_large_arrays_is_released() -> None:
    command = [sys.executable, "-c", RELEASE_SCRIPT]
    kept = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kept < 30
