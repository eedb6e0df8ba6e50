"""Solver processes: same answers, limited memory, and replacement when they die."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient

from app import solving
from app.child_processes import Template
from app.main import create_app
from app.prescriptions import offload
from app.problems import check
from app.solving import Answer, Solvers, _Call, _start_template
from bco_core.policies import POLICIES
from tests.support.hard_searches import market_split
from tests.support.journey import (
    ASSETS,
    CONTEXTS,
    FUND,
    QUICK,
    Json,
    check_json,
    create_dataset,
    learn_posterior,
    months,
    without_id,
)
from tests.support.polling import wait_until
from tests.support.processes import is_alive


@pytest.fixture(scope="module")
def bakery(client: TestClient) -> Json:
    return learn_posterior(client)


@pytest.fixture(scope="module")
def fund(client: TestClient) -> Json:
    spec = {"kind": "mean_variance_portfolio", "assets": FUND["assets"], "covariance": FUND["covariance"]}
    problem = check_json(client.post("/v1/problems", json={"name": "fund", "spec": spec}), 201)
    dataset = create_dataset(client, outcomes=ASSETS, rows=months())
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], inference=QUICK)


@pytest.fixture(scope="module")
def split(client: TestClient) -> Json:
    """A small market split that is solved at once."""
    spec = market_split(rows=2, columns=8)
    problem = check_json(client.post("/v1/problems", json={"name": "split", "spec": spec}), 201)
    rows = [{"hour": float(hour), "shift": float(hour % 5)} for hour in range(40)]
    dataset = create_dataset(client, outcomes=["shift"], rows=rows)
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], inference=QUICK)


@pytest.fixture
def solver_processes(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Solvers:
    """Send every call to a solver process."""
    monkeypatch.setattr(offload, "LARGE", 0)
    solvers: Solvers = client.app.state.solvers
    wait_until("the template is ready", lambda: solvers.start().ready)
    return solvers


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Template]]:
    """Start a template in its own interpreter, as a service does."""
    monkeypatch.setattr(solving, "Template", Template)
    started: list[Template] = []

    def start() -> Template:
        started.append(_start_template(256))
        wait_until("the template is ready or gone", lambda: started[0].ready or not started[0].alive)
        return started[0]

    yield start
    started[0].close()


def post_prescribe(client: TestClient, posterior: Json, contexts: list[Any], **changes: Any) -> Any:
    body = {"contexts": contexts, "scenarios": 30} | changes
    return client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["bakery", "fund", "split"])
def test_a_solver_process_gives_the_same_answer_bit_for_bit(
    client: TestClient, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str, policy: str
) -> None:
    posterior = request.getfixturevalue(kind)
    moods = [{"mood": row["mood"], "rates": row["rates"]} for row in months(3)]
    contexts = {"bakery": CONTEXTS[:7], "fund": moods, "split": [{"hour": 3.0}]}[kind]
    here = post_prescribe(client, posterior, contexts, policy=policy)
    request.getfixturevalue("solver_processes")
    there = post_prescribe(client, posterior, contexts, policy=policy)
    assert client.app.state.solvers.pids()
    assert (here.status_code, there.status_code) == (200, 200), there.text
    assert without_id(here.content) == without_id(there.content)


@pytest.mark.slow
def test_solver_processes_write_no_metrics_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: Callable[[], Template]
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert "PROMETHEUS_MULTIPROC_DIR" not in psutil.Process(template()._process.pid).environ()
    assert list(tmp_path.iterdir()) == []


def test_solver_processes_give_the_same_refusals(client: TestClient, bakery: Json, solver_processes: Solvers) -> None:
    for contexts, where in (([{}], "#/contexts/0"), ([CONTEXTS[0] | {"weekday": "never"}], "#/contexts/0/weekday")):
        response = post_prescribe(client, bakery, contexts)
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["errors"][0]["pointer"].startswith(where)
    assert post_prescribe(client, {"id": "post_NONE"}, CONTEXTS[:1]).status_code == 404


def test_decisions_of_solver_processes_are_counted(client: TestClient, bakery: Json, solver_processes: Solvers) -> None:
    def decision_count() -> float:
        lines = client.get("/metrics").text.splitlines()
        name = 'bco_prescriptions_total{solver="formula",status="optimal"} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = decision_count()
    check_json(post_prescribe(client, bakery, CONTEXTS[:5]))
    assert decision_count() == before + 5


def test_a_solver_process_that_dies_is_replaced(client: TestClient, bakery: Json, solver_processes: Solvers) -> None:
    check_json(post_prescribe(client, bakery, CONTEXTS[:1]))
    before = solver_processes.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until("the processes are dead", lambda: not any(is_alive(psutil.Process(pid)) for pid in before))
    check_json(post_prescribe(client, bakery, CONTEXTS[:1]))
    assert solver_processes.pids()
    assert not set(before) & set(solver_processes.pids())


def test_a_template_that_dies_is_replaced(client: TestClient, bakery: Json, solver_processes: Solvers) -> None:
    check_json(post_prescribe(client, bakery, CONTEXTS[:1]))
    template = solver_processes.start()
    template._process.kill()
    wait_until("it is gone", lambda: not template.alive)
    wait_until("another is ready", lambda: solver_processes.start().ready)
    check_json(post_prescribe(client, bakery, CONTEXTS[:1]))


def test_calls_for_one_problem_reuse_its_solver_process(
    client: TestClient, bakery: Json, solver_processes: Solvers
) -> None:
    check_json(post_prescribe(client, bakery, CONTEXTS[:1]))
    before = sorted(solver_processes.pids())
    for _ in range(3):
        check_json(post_prescribe(client, bakery, CONTEXTS[:1]))
    assert sorted(solver_processes.pids()) == before


def test_a_call_above_the_memory_limit_is_refused_with_a_message(
    database_url: str, bakery: Json, settings: Callable[..., None]
) -> None:
    settings(solver_memory_mb=64)
    with TestClient(create_app(), raise_server_exceptions=False) as small:
        solvers: Solvers = small.app.state.solvers
        wait_until("the template is ready", lambda: solvers.start().ready)
        response = post_prescribe(small, bakery, CONTEXTS[:1] * 20_000, scenarios=2_000)
        assert response.status_code == 503
        assert response.json()["detail"] == (
            "this takes more memory than a solver process may have: 64 MB (BCO_SOLVER_MEMORY_MB); "
            "ask for fewer contexts or scenarios"
        )
        assert solvers.pids() == []
        solvers.close()


def test_large_problems_are_checked_in_a_solver_process(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, solver_processes: Solvers
) -> None:
    monkeypatch.setattr(check, "LARGE", 0)
    spec = market_split(rows=2, columns=8)
    check_json(client.post("/v1/problems", json={"name": "split", "spec": spec}), 201)
    spec["recourse"] = spec["recourse"][:2]
    for row in spec["rows"]:
        row["recourse"] = {name: value for name, value in row["recourse"].items() if name.startswith("missing")}
    response = client.post("/v1/problems", json={"name": "split", "spec": spec})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"].startswith("#/spec/rows/")
    assert "there is not always a recourse" in response.json()["detail"]


@pytest.mark.slow
def test_solver_processes_ignore_modules_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: Callable[[], Template]
) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    started = template()
    assert started.ready
    started.fork().close()


def test_a_workspace_cannot_take_all_solver_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three calls of one workspace, the call of another starts although none has ended."""
    solvers, begun, go_on = Solvers(2, 512), [], threading.Event()

    def solve(call: object, task: str, key: str, body: bytes, until: float) -> Answer:
        begun.append(key)
        assert go_on.wait(60)
        return {}, b""

    async def run_all() -> None:
        calls = [asyncio.create_task(solvers._work(_Call(), key, "", key, b"", 0.0)) for key in ("a", "a", "a", "b")]
        while len(begun) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert sorted(begun) == ["a", "b"]
        go_on.set()
        await asyncio.gather(*calls)

    monkeypatch.setattr(solvers, "start", lambda: SimpleNamespace(ready=True))
    monkeypatch.setattr(solvers, "_solve", solve)
    asyncio.run(run_all())
    assert sorted(begun) == ["a", "a", "a", "b"]
