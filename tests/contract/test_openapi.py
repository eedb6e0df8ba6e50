"""The API answers as its OpenAPI document announces, whatever is sent, and never with a server error.

Schemathesis generates requests from the document: its examples, boundary values of every parameter, random values, and
sequences of operations that use each other's objects. They go to a real ``bco api`` over HTTP.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from app.commands.serve import free_port
from app.db.migrate import migrate
from app.keys import service as keys
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import learn_posterior
from tests.support.polling import wait_until

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
# The document cannot express every rule (columns that exist, bounds in order), so a request
# that fits it may still be refused; one that does not must be. A request repeated with its Idempotency-Key is
# answered with the first result, even if that has been deleted since.
NOT_PROMISED = "positive_data_acceptance,ensure_resource_availability"


@contextmanager
def running_api(url: str, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Start the API on a database with some data; return its address, a Schemathesis configuration and a key."""
    with service_on(url):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app()) as client:
            posterior, doomed = learn_posterior(client, name="bakery"), learn_posterior(client)
        key = keys.create("contract", "default", list(keys.SCOPES), None)[1]
    configuration = folder / "schemathesis.toml"
    configuration.write_text(
        f"""
        # Reading needs a posterior that is there, and deleting one that nobody misses.
        [[operations]]
        include-path-regex = "/v1/posteriors/.posterior_id."
        include-method = ["GET", "POST"]
        parameters = {{ posterior_id = "{posterior["id"]}" }}
        [[operations]]
        include-name = "DELETE /v1/posteriors/{{posterior_id}}"
        parameters = {{ posterior_id = "{doomed["id"]}" }}
        """
    )
    port = str(free_port())
    address = f"http://127.0.0.1:{port}"
    environment = {"BCO_DATABASE_URL": url, "BCO_PORT": port, "BCO_REQUESTS_PER_SECOND": "0"}
    log = folder / "api.log"
    with log.open("w") as output:
        api = subprocess.Popen(
            (sys.executable, "-m", "app.commands.cli", "api"), env=os.environ | environment, stderr=output
        )
    try:
        wait_until("the API is ready", lambda: api.poll() is not None or is_ready(address))
        assert api.poll() is None, log.read_text()
        drift, header = f"{address}/v1/posteriors/{posterior['id']}/drift", {"Authorization": f"Bearer {key}"}
        wait_until("its solvers are ready", lambda: httpx.get(drift, headers=header, timeout=90).is_success)
        yield address, configuration, key
        assert is_ready(address), "the API has died"
        assert '"level":"ERROR"' not in log.read_text(), log.read_text()[-20_000:]
    finally:
        api.kill()
        api.wait()


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz").is_success
    except httpx.TransportError:
        return False


def assert_kept(address: str, configuration: Path, key: str, examples: int, phases: str) -> None:
    command = (
        *(str(SCHEMATHESIS), "--config-file", str(configuration), "--no-color", "run", f"{address}/openapi.json"),
        *("--header", f"Authorization: Bearer {key}", "--exclude-checks", NOT_PROMISED, "--phases", phases),
        *("--max-examples", str(examples), "--seed", "7", "--generation-deterministic"),
        # Must exceed BCO_PRESCRIBE_SECONDS.
        *("--request-timeout", "90"),
        # A job's event stream lasts as long as the job.
        *("--exclude-path-regex", "/events$"),
    )
    result = subprocess.run(command, capture_output=True, text=True, cwd=configuration.parent)
    assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-5_000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "phases", ["examples", pytest.param("coverage,fuzzing,stateful", marks=pytest.mark.slow)], ids=["examples", "rest"]
)
def test_every_answer_conforms_to_the_openapi_document(phases: str, tmp_path: Path) -> None:
    with running_api(f"sqlite:///{tmp_path / 'bco.db'}", tmp_path) as (address, configuration, key):
        assert_kept(address, configuration, key, 4, phases)


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_every_answer_conforms_in_a_long_run(kind: str, empty_database: Callable[[str], str], tmp_path: Path) -> None:
    with running_api(empty_database(kind), tmp_path) as (address, configuration, key):
        assert_kept(address, configuration, key, 200, "examples,coverage,fuzzing,stateful")


def test_an_unsupported_http_method_is_answered_with_the_supported_ones(tmp_path: Path) -> None:
    with service_on(f"sqlite:///{tmp_path / 'bco.db'}"):
        migrate(get_settings().sqlalchemy_url)
        client = TestClient(create_app())
        answer: httpx.Response = client.put("/v1/problems/prob_x")
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")
        assert client.delete("/v1/problems").headers["allow"] == "GET, POST"
        assert client.post("/docs").headers["allow"] == "GET"
