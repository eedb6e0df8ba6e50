"""Prescription log of several API processes, of stopped or killed ones, and during a database outage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.commands.serve import free_port
from app.db.engine import create_engine
from app.db.migrate import migrate
from app.db.tables import PrescriptionRow
from app.main import create_app
from app.settings import Settings, get_settings
from tests.support.fleet import new_postgres
from tests.support.in_process import service_on
from tests.support.journey import CONTEXTS, learn_posterior
from tests.support.polling import wait_until
from tests.support.processes import Part, is_ready

BODY = {"contexts": CONTEXTS[:1], "scenarios": 40}


class Api:
    """``bco api`` on a database with a posterior to prescribe from."""

    def __init__(self, folder: Path, url: str, posterior_id: str, **environment: str) -> None:
        port = free_port()
        self.database, self.url = url, f"http://127.0.0.1:{port}"
        self.path = f"/v1/posteriors/{posterior_id}/prescribe"
        settings = {"BCO_DATABASE_URL": url, "BCO_PORT": str(port), "BCO_LOG_RATE": "100000"}
        self.part = Part(folder, "api", "api", **settings | environment)
        self.http = httpx.Client(base_url=self.url, timeout=60)
        wait_until("the API is ready", lambda: is_ready(self.http))

    def prescribe(self, client: httpx.Client | None = None) -> str | None:
        response = (client or self.http).post(self.path, json=BODY)
        assert response.status_code == 200, response.text
        identifier: str | None = response.json()["id"]
        return identifier

    def stored_ids(self) -> set[str]:
        """Return the ids in the database."""
        engine = create_engine(Settings(database_url=self.database).sqlalchemy_url)
        with engine.connect() as connection:
            found = set(connection.scalars(sa.select(PrescriptionRow.id)))
        engine.dispose()
        return found


@contextmanager
def api_on(url: str, folder: Path, **environment: str) -> Iterator[Api]:
    with service_on(url):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app()) as client:
            posterior = learn_posterior(client)
    made = Api(folder, url, posterior["id"], **environment)
    with made.part, closing(made.http):
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'bco.db'}"
    made: str = request.getfixturevalue("empty_database")("postgresql")
    return made


@pytest.mark.slow
def test_several_processes_share_one_log(url: str, tmp_path: Path) -> None:
    with api_on(url, tmp_path, BCO_PROCESSES="2") as api:
        ids = []
        for _ in range(30):
            # Each connection may reach either process.
            with httpx.Client(base_url=api.url, timeout=60) as one, httpx.Client(base_url=api.url, timeout=60) as other:
                ids.append(api.prescribe(one))
                assert other.get(f"/v1/prescriptions/{ids[-1]}").status_code == 200
        assert len(set(ids)) == 30
        assert set(ids) <= api.stored_ids()
        text = api.http.get("/metrics").text
        assert 'bco_logged_prescriptions_total{result="kept"} 30.0' in text
        # On a clean stop, they write their queues.
        last = [api.prescribe() for _ in range(20)]
        api.part.stop(60)
        assert set(last) <= api.stored_ids()


@pytest.mark.slow
def test_a_killed_process_loses_at_most_its_last_second(url: str, tmp_path: Path) -> None:
    with api_on(url, tmp_path) as api:
        api.prescribe()
        ids, end = [], time.monotonic() + 3
        while time.monotonic() < end:
            ids.append((time.monotonic(), api.prescribe()))
        killed = time.monotonic()
        api.part.__exit__()
        kept = api.stored_ids()
        settled = [identifier for at, identifier in ids if at < killed - 1]
        assert len(settled) > 10
        assert set(settled) <= kept


@pytest.mark.slow
def test_answers_given_during_an_outage_are_logged_afterwards(tmp_path: Path) -> None:
    with new_postgres() as server, api_on(server.url, tmp_path) as api:
        before = [api.prescribe() for _ in range(5)]
        server.kill()
        statuses, during = set(), []
        for _ in range(25):
            response = api.http.post(api.path, json=BODY)
            statuses.add(response.status_code)
            if response.status_code == 200:
                during.append(response.json()["id"])
        # The caller sees an outage only where the answer needs the database, never because of the log.
        assert statuses <= {200, 503}
        server.start()
        wait_until("the API is ready again", lambda: is_ready(api.http))
        wait_until("the queue is written", lambda: {*before, *during} <= api.stored_ids())
        assert api.prescribe() is not None
        assert 'bco_logged_prescriptions_total{result="lost"} 0.0' in api.http.get("/metrics").text
