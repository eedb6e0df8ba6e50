"""Damaged data is reported as damaged, and an interrupted download is detectable."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sa
import uvicorn
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, JobPartRow, PosteriorBlockRow
from app.jobs import compute, parts, service
from app.jobs.kinds import prescribe as batches
from app.main import create_app
from tests.support.journey import CONTEXTS, Json, check_json, create_dataset, learn, learn_posterior
from tests.support.polling import wait_until


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client)


@pytest.fixture
def batch(client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch) -> str:
    """A succeeded batch of several parts."""
    monkeypatch.setattr(batches, "_MOST_ROWS_AT_ONCE", 20)
    body = {"dataset_id": create_dataset(client)["id"]}
    job_id: str = check_json(client.post(f"/v1/posteriors/{posterior['id']}/batch-prescriptions", json=body), 202)["id"]
    with transaction() as session:
        seqs = session.scalars(sa.select(JobPartRow.seq).where(JobPartRow.job_id == job_id)).all()
    assert len(seqs) == 3
    for seq in seqs:
        assert parts.start(job_id, seq)
        compute.run_part(job_id, seq)
    assert learn(client, job_id)["state"] == "succeeded"
    return job_id


def assert_damaged(response: httpx.Response) -> None:
    assert response.status_code == 500
    body = response.json()
    assert body["type"] == "urn:bco:error:damaged-data"
    assert "checksum" in body["detail"]
    assert "trying again" not in response.text


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_result_with_a_damaged_part_is_refused_before_sending(client: TestClient, batch: str, format: str) -> None:
    with transaction() as session:
        session.get_one(JobPartRow, (batch, 2)).result = b"something else"
    assert_damaged(client.get(f"/v1/jobs/{batch}/result", params={"format": format}))


def test_a_damaged_posterior_or_data_set_is_reported_as_damaged(client: TestClient) -> None:
    posterior = learn_posterior(client)
    with transaction() as session:
        session.execute(
            sa.update(PosteriorBlockRow).where(PosteriorBlockRow.posterior_id == posterior["id"]).values(data=b"x")
        )
    assert_damaged(client.get(f"/v1/posteriors/{posterior['id']}/particles"))
    assert_damaged(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json={"contexts": CONTEXTS[:1]}))
    dataset, whole = create_dataset(client), learn_posterior(client)
    with transaction() as session:
        session.execute(sa.update(DatasetChunkRow).where(DatasetChunkRow.dataset_id == dataset["id"]).values(data=b"x"))
    body = {"dataset_id": dataset["id"]}
    assert_damaged(client.post(f"/v1/posteriors/{whole['id']}/batch-prescriptions", json=body))


@pytest.fixture
def address(client: TestClient) -> Iterator[str]:
    """Run the application on a real server and return its URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(), log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        wait_until("the server has started", lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_download_that_fails_half_way_ends_with_a_protocol_error(
    client: TestClient, address: str, batch: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def fail_late(results: parts.Results, seq: int) -> bytes:
        reads.append(seq)
        # Two passes check for damage and read the columns; the third fails half way.
        if len(reads) > 6 + 1:
            raise sa.exc.OperationalError("SELECT", {}, Exception("disk I/O error"))
        return read(results, seq)

    read = parts.Results._read
    monkeypatch.setattr(parts.Results, "_read", fail_late)
    url = f"{address}/v1/jobs/{batch}/result"
    with httpx.stream("GET", url, params={"format": format}) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
    assert service.get("default", batch).state == "succeeded"
