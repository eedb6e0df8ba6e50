"""Throttling of wrong keys, revoked keys, and readiness without a database."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.blobs import CorruptBlob
from app.db.engine import transaction
from app.db.migrate import migrate
from app.db.tables import KeyRow
from app.demo import example_problem
from app.http import security
from app.keys import service as keys
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import check_json, create_problem
from tests.support.polling import crowding, within


@pytest.fixture
def make_key(client: TestClient) -> Iterator[Callable[[], dict[str, str]]]:
    yield lambda: {"Authorization": f"Bearer {keys.create('test', 'default', list(keys.SCOPES), None)[1]}"}
    with transaction() as session:
        session.execute(sa.delete(KeyRow))


# wrong keys


def seconds_of(client: TestClient, headers: dict[str, str], status: int) -> float:
    began = time.perf_counter()
    assert client.get("/v1/problems", headers=headers).status_code == status
    return time.perf_counter() - began


def test_wrong_keys_are_throttled_and_valid_ones_are_not(
    client: TestClient, make_key: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "WRONG_KEYS_PER_SECOND", 0.001)
    monkeypatch.setattr(security, "WRONG_KEY_WAIT_SECONDS", 3.0)
    right, wrong = make_key(), {"Authorization": "Bearer bco_01JCXV7Q0GZ3M5W8K2T4N6P9RS_guess"}
    with TestClient(create_app()) as fresh:
        assert seconds_of(fresh, wrong, 401) >= 3.0
        assert seconds_of(fresh, right, 200) < 3.0 * crowding()
        assert seconds_of(fresh, wrong, 401) >= 3.0


def test_a_few_wrong_keys_are_answered_at_once() -> None:
    wrong = security.WrongKeys()
    assert [wrong.wait("a") for _ in range(5)] == [0.0] * 5
    assert sum(wrong.wait("a") > 0 for _ in range(100)) > 50
    assert wrong.wait("b") == 0.0


def test_the_number_of_throttled_addresses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "_CACHED_KEYS", 10)
    wrong = security.WrongKeys()
    for number in range(1000):
        wrong.wait(str(number))
    assert len(wrong._buckets) == 10


# revoked keys


def test_an_event_stream_ends_when_its_key_is_revoked(
    client: TestClient, make_key: Callable[[], dict[str, str]]
) -> None:
    key, other = make_key(), make_key()
    problem = check_json(client.post("/v1/problems", json=example_problem(), headers=key), 201)
    dataset = _dataset(client, key)
    body = {"problem_id": problem["id"], "dataset_id": dataset}
    job = check_json(client.post("/v1/jobs", json=body, headers=key), 202)["id"]
    received: list[str] = []

    def follow(headers: dict[str, str]) -> None:
        received.append(client.get(f"/v1/jobs/{job}/events", headers=headers).text)

    streams = [threading.Thread(target=follow, args=(headers,)) for headers in (key, other)]
    for stream in streams:
        stream.start()
    time.sleep(1.0)
    try:
        assert all(stream.is_alive() for stream in streams)
        keys.revoke("key_" + key["Authorization"].split("_")[1])
        within("the stream ends with its key", lambda: not streams[0].is_alive(), 5)
        assert streams[1].is_alive()
        assert "queued" in received[0]
    finally:
        client.post(f"/v1/jobs/{job}/cancel", headers=other)
        for stream in streams:
            stream.join(30)


def _dataset(client: TestClient, headers: dict[str, str]) -> str:
    rows = [{"x": index, "croissants": index % 7, "loaves": index % 5} for index in range(50)]
    body = {"name": "days", "outcomes": ["croissants", "loaves"], "rows": rows}
    found: str = check_json(client.post("/v1/datasets", json=body, headers=headers), 201)["id"]
    return found


# names


@pytest.mark.parametrize("sign", ["\x07", "\x1b[31m", "\u202e", "\u2066", "\u200f", "\n", "\x85"])
def test_names_with_control_characters_are_refused(client: TestClient, sign: str) -> None:
    answer = client.post("/v1/problems", json=example_problem() | {"name": f"in{sign}voice"})
    assert answer.status_code == 422
    assert "control or bidirectional character" in answer.json()["detail"]
    with pytest.raises(keys.InvalidKey):
        keys.create(f"in{sign}voice", "default", ["read"], None)
    check_json(client.post("/v1/problems", json=example_problem() | {"name": "Bäckerei 🥐 متجر"}), 201)


# the database


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Iterator[Path]:
    with service_on(f"sqlite:///{tmp_path / 'bco.db'}"):
        migrate(get_settings().sqlalchemy_url)
        yield tmp_path / "bco.db"


@pytest.mark.slow
def test_a_missing_database_file_makes_the_service_unready(sqlite_file: Path) -> None:
    with TestClient(create_app(), raise_server_exceptions=False) as client:
        create_problem(client)
        assert client.get("/readyz").status_code == 200
        away = sqlite_file.with_name("away.db")
        os.rename(sqlite_file, away)
        for _ in range(3):
            client.get("/v1/problems")
            assert client.get("/readyz").status_code == 503
        os.rename(away, sqlite_file)
        assert client.get("/readyz").status_code == 200
        assert len(check_json(client.get("/v1/problems"))["items"]) == 1


def test_a_full_disk_makes_the_service_unready(sqlite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.http import health

    with TestClient(create_app()) as client:
        assert client.get("/readyz").status_code == 200
        monkeypatch.setattr(health, "LEAST_FREE_BYTES", 10**18)
        assert client.get("/readyz").status_code == 503


def test_damaged_data_is_reported_as_damaged(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.problems import service

    def raise_corrupt(*_: object) -> None:
        raise CorruptBlob("stored data does not match its checksum; restore the database from a backup")

    monkeypatch.setattr(service, "get", raise_corrupt)
    answer = client.get("/v1/problems/prob_01JCXV7Q0GZ3M5W8K2T4N6P9RS")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:bco:error:damaged-data")
    assert "restore the database from a backup" in answer.json()["detail"]
