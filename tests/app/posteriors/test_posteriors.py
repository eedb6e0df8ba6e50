"""Posteriors over HTTP: provenance, particles, blocks, damage, deletion and the cache."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db import blobs
from app.db.blobs import CorruptBlob
from app.db.engine import transaction
from app.db.tables import PosteriorBlockRow, PosteriorRow
from app.jobs.kinds import learn
from app.main import create_app
from app.posteriors import service
from app.prescriptions import cache
from bco_core.policies import POLICIES
from bco_core.posterior import digest, draw_particles
from bco_core.predictive import CARRIES
from tests.support.journey import (
    CONTEXTS,
    QUICK,
    ROWS,
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    learn_posterior,
    pages,
    prescribe,
)
from tests.support.journey import learn as run

Array = np.ndarray[Any, Any]
ARRAYS = {
    "context_mean",
    "context_scale",
    "history_shrink",
    "outcome_mean",
    "outcome_scale",
    "weights",
    "loc",
    "scale",
    "particles",
    "history_predictions",
    "history_outcomes",
}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, name="shared", seed=11)


@contextmanager
def storing_particles() -> Iterator[pytest.MonkeyPatch]:
    """Store particles too, as for chains and in earlier versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "strip_particles", lambda description, arrays: arrays)
        yield patch


@pytest.fixture(scope="module")
def split(client: TestClient) -> Json:
    """The same posterior with stored particles, in blocks of three."""
    with storing_particles() as patch:
        patch.setattr(blobs, "BLOCK_BYTES", 300)
        return learn_posterior(client, name="split", seed=11)


def download(client: TestClient, posterior_id: str, **query: int) -> dict[str, Array]:
    response = client.get(f"/v1/posteriors/{posterior_id}/particles", params=query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"] == f'attachment; filename="{posterior_id}.npz"'
    with np.load(io.BytesIO(response.content), allow_pickle=False) as file:
        return dict(file)


def arrays_of(posterior_id: str) -> dict[str, Array]:
    with transaction() as session:
        return service.load_arrays(session, session.get_one(PosteriorRow, posterior_id))


def stored_arrays(posterior_id: str) -> set[str]:
    with transaction() as session:
        where = PosteriorBlockRow.posterior_id == posterior_id
        return set(session.scalars(sa.select(PosteriorBlockRow.array).where(where)))


def flip_a_byte(posterior_id: str, array: str, block: int = 0) -> None:
    """Damage the data, not the header, of one stored block."""
    where = (PosteriorBlockRow.posterior_id == posterior_id, PosteriorBlockRow.array == array)
    with transaction() as session:
        row = session.scalars(sa.select(PosteriorBlockRow).where(*where).order_by(PosteriorBlockRow.first_row)).all()[
            block
        ]
        row.data = row.data[:-1] + bytes([row.data[-1] ^ 1])


@pytest.fixture
def blocks_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the checksums of blocks that are read from the database."""
    read: list[str] = []

    def verified(data: bytes, sha256: str) -> bytes:
        read.append(sha256)
        return blobs.verify(data, sha256)

    monkeypatch.setattr(service, "verify", verified)
    return read


def test_a_posterior_shows_its_provenance_and_its_columns(client: TestClient, posterior: Json) -> None:
    job = check_json(client.get(f"/v1/jobs/{posterior['job_id']}"))
    assert posterior["id"] == job["posterior_id"]
    assert (posterior["problem_id"], posterior["dataset_id"]) == (job["problem_id"], job["dataset_id"])
    assert posterior["problem"] == check_json(client.get(f"/v1/problems/{posterior['problem_id']}"))["spec"]
    assert posterior["columns"] == check_json(client.get(f"/v1/datasets/{posterior['dataset_id']}"))["columns"]
    history = posterior["description"]["history"]
    assert history["carry"] in CARRIES
    assert history["bandwidth"] is None or history["bandwidth"] > 0
    assert posterior["description"] == {
        "family": "laplace",
        "seed": 11,
        "predictor": {"kind": "linear", "widths": [11, 2]},
        "history": {"carry": history["carry"], "bandwidth": history["bandwidth"]},
    }
    assert (posterior["name"], posterior["policy"], posterior["particles"]) == ("shared", "bcp", 40)


def test_posteriors_are_listed_newest_first_a_page_at_a_time(client: TestClient, posterior: Json) -> None:
    for _ in range(3):
        learn_posterior(client)
    found = pages(client, "/v1/posteriors", 2)
    ids = [item["id"] for page in found for item in page]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == len(ids) == counts()["posteriors"]
    listed = next(item for page in found for item in page if item["id"] == posterior["id"])
    assert listed.items() <= posterior.items()
    assert listed["quality"] == posterior["quality"]


def test_diagnostics_compare_every_policy_with_the_best_constant_decision(client: TestClient, posterior: Json) -> None:
    found = check_json(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))
    assert set(found["held_out_cost"]) == set(POLICIES)
    assert (found["quality"], found["reason"]) == (posterior["quality"], posterior["reason"])
    # Each of two members holds out a fifth of the 60 rows.
    assert found["held_out_rows"] == 24
    bcp, constant = found["held_out_cost"]["bcp"]["mean"], found["constant_decision_cost"]["mean"]
    assert found["gain_over_constant"]["mean"] == pytest.approx(bcp - constant)
    assert [point["epoch"] for point in found["trace"]] == [1, 2]
    assert [len(epochs) for epochs in found["best_epochs"]] == [QUICK["members"]]


def test_diagnostics_show_the_provenance_of_training(client: TestClient) -> None:
    dataset = create_dataset(client)
    job = create_job(client, dataset_id=dataset["id"])
    rows = {"rows": [ROWS[0]]}
    assert check_json(client.post(f"/v1/datasets/{dataset['id']}/rows", json=rows), 201)["digest"] != dataset["digest"]
    posterior = check_json(client.get(f"/v1/posteriors/{run(client, job['id'])['posterior_id']}"))
    origin = check_json(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))["origin"]
    assert (origin["revision"], origin["dataset_digest"]) == (1, dataset["digest"])
    assert origin["versions"]["bco-service"] == version("bco-service")
    assert origin["versions"]["torch"] == version("torch")


def test_the_particles_file_equals_the_stored_arrays(client: TestClient, posterior: Json) -> None:
    arrays = download(client, posterior["id"])
    assert set(arrays) == {"particles", "context_mean", "context_scale", "outcome_mean", "outcome_scale"}
    for name, values in arrays.items():
        expected = arrays_of(posterior["id"])[name]
        assert values.dtype == expected.dtype
        np.testing.assert_array_equal(values, expected)
    assert arrays["particles"].shape == (40, (11 + 1) * 2)
    assert arrays["particles"].dtype == np.float32


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"first": 5}, slice(5, None)),
        ({"count": 3}, slice(0, 3)),
        ({"first": 7, "count": 20}, slice(7, 27)),
        ({"first": 38, "count": 20}, slice(38, 40)),
        ({"first": 40}, slice(40, 40)),
        ({"first": 2**31, "count": 2**31}, slice(40, 40)),
        ({"count": 2**31}, slice(0, 40)),
    ],
    ids=str,
)
def test_a_range_of_particles_equals_that_range_of_all(
    client: TestClient, posterior: Json, split: Json, query: dict[str, int], expected: slice
) -> None:
    everything = arrays_of(posterior["id"])["particles"]
    for made in (posterior, split):
        np.testing.assert_array_equal(download(client, made["id"], **query)["particles"], everything[expected])


def test_a_posterior_in_many_blocks_is_the_same_posterior(posterior: Json, split: Json) -> None:
    with transaction() as session:
        where = (PosteriorBlockRow.posterior_id == split["id"], PosteriorBlockRow.array == "particles")
        firsts = session.scalars(sa.select(PosteriorBlockRow.first_row).where(*where)).all()
    assert sorted(firsts) == list(range(0, 40, 3))
    assert split["digest"] == posterior["digest"]
    one, other = arrays_of(posterior["id"]), arrays_of(split["id"])
    assert set(one) == set(other) == ARRAYS
    for name in ARRAYS:
        np.testing.assert_array_equal(one[name], other[name])


def test_reproducible_particles_are_redrawn_instead_of_stored(client: TestClient, posterior: Json, split: Json) -> None:
    assert stored_arrays(posterior["id"]) == ARRAYS - {"particles"}
    assert stored_arrays(split["id"]) == ARRAYS
    answers = []
    for made in (posterior, split):
        for changes in ({}, {"policy": "thompson"}, {"scenarios": 60}, {"seed": 3}):
            # Load from the database, as after a restart.
            client.app.state.posteriors = cache.cache_from_settings()
            answers.append(prescribe(client, made["id"], **changes)["prescriptions"])
    assert answers[:4] == answers[4:]


def test_the_particles_of_chains_are_stored(client: TestClient) -> None:
    chains = {"method": "mh", "chains": 2, "steps": 60, "burn_in": 20, "particles": 40, "inverse_temperature": 100}
    assert "particles" in stored_arrays(learn_posterior(client, inference=chains)["id"])


def test_particles_that_differ_by_rounding_are_used_with_a_warning(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = learn_posterior(client)
    before = arrays_of(made["id"])["particles"]
    assert not any("other digits" in message for message in caplog.messages)

    def draw_with_rounding(*arguments: Any) -> Array:
        return np.nextafter(draw_particles(*arguments), np.float32(np.inf))

    monkeypatch.setattr(service, "draw_particles", draw_with_rounding)
    np.testing.assert_allclose(arrays_of(made["id"])["particles"], before, rtol=1e-6)
    assert any(made["id"] in message and "other digits" in message for message in caplog.messages)


@pytest.mark.parametrize(("first", "count", "blocks"), [(0, 3, 1), (2, 2, 2), (9, 3, 1), (10, 7, 3), (39, 1, 1)])
def test_reading_a_range_reads_only_its_blocks(
    split: Json, blocks_read: list[str], first: int, count: int, blocks: int
) -> None:
    with transaction() as session:
        values = service.load_array(session, split["id"], "particles", first, count)
    assert len(blocks_read) == blocks
    np.testing.assert_array_equal(values, arrays_of(split["id"])["particles"][first : first + count])


def test_the_digest_covers_the_description_and_every_array(posterior: Json) -> None:
    arrays = arrays_of(posterior["id"])
    assert digest(posterior["description"], arrays) == posterior["digest"]
    for name, values in arrays.items():
        changed = values.copy()
        changed.flat[0] = np.nextafter(changed.flat[0], np.inf, dtype=changed.dtype)
        assert digest(posterior["description"], arrays | {name: changed}) != posterior["digest"]


def test_no_stored_block_is_a_pickle(split: Json) -> None:
    with transaction() as session:
        where = PosteriorBlockRow.posterior_id == split["id"]
        blocks = session.scalars(sa.select(PosteriorBlockRow).where(where)).all()
    assert {block.array for block in blocks} == ARRAYS
    for block in blocks:
        np.load(io.BytesIO(block.data), allow_pickle=False)


@pytest.fixture(scope="module")
def damaged(client: TestClient) -> Json:
    """A posterior to damage and repair."""
    with storing_particles():
        return learn_posterior(client, name="damaged")


@pytest.mark.parametrize("array", sorted(ARRAYS))
def test_a_posterior_with_a_flipped_byte_is_refused(client: TestClient, damaged: Json, array: str) -> None:
    client.app.state.posteriors = cache.cache_from_settings()
    flip_a_byte(damaged["id"], array)
    with transaction() as session, pytest.raises(CorruptBlob):
        service.load(session, session.get_one(PosteriorRow, damaged["id"]))
    response = client.post(f"/v1/posteriors/{damaged['id']}/prescribe", json={"contexts": CONTEXTS[:1]})
    flip_a_byte(damaged["id"], array)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:bco:error:damaged-data"
    for leak in ("Corrupt", array, "sha256", "Traceback"):
        assert leak not in response.text
    assert client.post(f"/v1/posteriors/{damaged['id']}/prescribe", json={"contexts": CONTEXTS[:1]}).is_success


def test_damage_to_one_block_leaves_the_others_readable(client: TestClient) -> None:
    with storing_particles() as patch:
        patch.setattr(blobs, "BLOCK_BYTES", 300)
        damaged = learn_posterior(client)
    flip_a_byte(damaged["id"], "particles", block=5)
    assert len(download(client, damaged["id"], first=0, count=15)["particles"]) == 15
    assert len(download(client, damaged["id"], first=18)["particles"]) == 22
    path = f"/v1/posteriors/{damaged['id']}/particles"
    for query in ({}, {"first": 15, "count": 1}, {"first": 10, "count": 8}):
        assert client.get(path, params=query).status_code == 500


def test_a_deleted_posterior_is_gone_with_its_blocks_and_cache_entry(client: TestClient) -> None:
    made = learn_posterior(client)
    path = f"/v1/posteriors/{made['id']}"
    prescribe(client, made["id"])
    before = counts()
    assert before["posterior_blocks"] >= len(ARRAYS) - 1
    response = client.delete(path)
    assert (response.status_code, response.content) == (204, b"")
    after = counts()
    assert before["posteriors"] - after["posteriors"] == 1
    assert before["posterior_blocks"] - after["posterior_blocks"] == len(ARRAYS) - 1
    body = {"contexts": CONTEXTS[:1]}
    answers = [
        client.get(path),
        client.get(f"{path}/diagnostics"),
        client.get(f"{path}/particles"),
        client.post(f"{path}/prescribe", json=body),
        client.delete(path),
    ]
    assert [answer.status_code for answer in answers] == [404] * 5


def test_the_cache_of_posteriors_is_limited_and_keeps_the_latest() -> None:
    kept = cache.PosteriorCache(100)
    for key in range(5):
        assert kept.get(key, lambda key=key: (key * 10, 40)) == key * 10
    assert list(kept._entries) == [3, 4]
    kept.get(3, lambda: (0, 40))
    kept.get(5, lambda: (50, 40))
    assert list(kept._entries) == [3, 5]


def test_two_applications_in_one_process_share_no_cache(client: TestClient, posterior: Json) -> None:
    other = create_app()
    with TestClient(other) as second:
        prescribe(client, posterior["id"])
        assert list(other.state.posteriors._entries) == []
        prescribe(second, posterior["id"])
    assert posterior["id"] in other.state.posteriors._entries


def test_a_value_larger_than_the_cache_is_still_returned() -> None:
    kept = cache.PosteriorCache(100)
    assert kept.get("big", lambda: ("value", 1000)) == "value"
    assert kept.get("big", lambda: ("made again", 1000)) == "value"
