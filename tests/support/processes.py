"""Real processes over real HTTP: start, stop and inspect them, and run the user journey."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from app.db.engine import create_engine
from app.demo import MORNINGS, as_csv, bakery_rows, example_problem
from app.settings import Settings
from tests.support.journey import Json, check_json
from tests.support.polling import wait_until, within

ROOT = str(Path(__file__).parents[2])
# The command of this checkout, whatever the working directory.
BCO = (sys.executable, "-m", "app.commands.cli")
SMALL = {"predictor": {"kind": "mlp", "hidden": [8]}}
DEADLINE = {"BCO_WORKER_DEADLINE_SECONDS": "3"}


def descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs and is no zombie. It may end between the two checks."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def alive(processes: set[psutil.Process]) -> set[psutil.Process]:
    return {process for process in processes if is_alive(process)}


def worker_processes(processes: set[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in alive(processes):
        with suppress(psutil.NoSuchProcess):
            if "app.jobs.worker" in process.cmdline():
                found.append(process)
    return found


def kill(processes: set[psutil.Process]) -> None:
    """Kill the processes that a failed test left behind."""
    for process in alive(processes):
        with suppress(psutil.NoSuchProcess):
            process.kill()


# the user journey over HTTP


def prepare(client: httpx.Client, days: int = 300) -> Json:
    """Create the bakery problem and upload its history as CSV."""
    problem = check_json(client.post("/v1/problems", json=example_problem()), 201)
    form = {"name": "bakery", "outcomes": "croissants,loaves"}
    file = {"file": ("bakery.csv", as_csv(bakery_rows(days)).encode())}
    dataset = check_json(client.post("/v1/datasets/upload", data=form, files=file), 201)
    assert dataset["rows"] == days
    return {"problem_id": problem["id"], "dataset_id": dataset["id"]}


def submit(client: httpx.Client, ids: Json, epochs: int, **changes: object) -> str:
    inference = {"method": "vi", "members": 2, "epochs": epochs, "patience": 100_000, "particles": 50}
    body = ids | SMALL | {"inference": inference, "seed": 7} | changes
    job_id: str = check_json(client.post("/v1/jobs", json=body), 202)["id"]
    return job_id


def read(client: httpx.Client, job_id: str) -> Json:
    return check_json(client.get(f"/v1/jobs/{job_id}"))


def is_computing(client: httpx.Client, job_id: str) -> bool:
    job = read(client, job_id)
    return job["state"] == "running" and job["progress"] > 0


def wait_for_job(client: httpx.Client, job_id: str) -> Json:
    """Wait for a job to end and return it."""
    wait_until(f"{job_id} ends", lambda: read(client, job_id)["state"] not in ("queued", "running"))
    return read(client, job_id)


def run_user_journey(client: httpx.Client) -> Json:
    """Go from rows to decisions and return the ids for further jobs."""
    ids = prepare(client)
    progress, job_id = [0.0], submit(client, ids, epochs=60)
    while (job := read(client, job_id))["state"] in ("queued", "running"):
        progress.append(job["progress"])
        time.sleep(0.05)
    assert (job["state"], job["error"], job["attempts"], job["progress"]) == ("succeeded", None, 1, 1.0)
    assert progress == sorted(progress)
    body = {"contexts": MORNINGS, "costs_over": "posterior"}
    answer = check_json(client.post(f"/v1/posteriors/{job['posterior_id']}/prescribe", json=body))
    assert len(answer["prescriptions"]) == 3
    for found in answer["prescriptions"]:
        assert set(found["decision"]) == {"croissants", "loaves"}
        assert found["expected_cost"] > 0
        assert found["hedging_gain"] >= -1e-9
    return ids


def epochs_for(client: httpx.Client, ids: Json, seconds: float) -> int:
    """Return how many epochs take about ``seconds`` on this machine."""
    epochs = 200
    began = time.monotonic()
    job = wait_for_job(client, submit(client, ids, epochs))
    assert job["state"] == "succeeded"
    return max(epochs, int(epochs * seconds / (time.monotonic() - began)))


def in_database(url: str, statement: str, job_id: str) -> list[Any]:
    """Run a statement about a job directly in the database and return its rows."""
    engine = create_engine(Settings(database_url=url).sqlalchemy_url)
    try:
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement), {"job_id": job_id})
            return list(result) if result.returns_rows else []
    finally:
        engine.dispose()


def posteriors_of(url: str, job_id: str) -> int:
    return len(in_database(url, "SELECT id FROM posteriors WHERE job_id = :job_id", job_id))


class Part:
    """One ``bco`` command as a process, with its messages in a file."""

    def __init__(self, folder: Path, name: str, *arguments: str, **environment: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*BCO, *arguments],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": ROOT} | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        kill(descendants(self.process.pid))
        self.process.kill()
        self.process.wait()

    def messages(self) -> str:
        return self.log.read_text()

    def stop(self, seconds: float = 8) -> int:
        """Send SIGTERM, check that all children end, and return the exit code."""
        everyone = descendants(self.process.pid)
        self.process.terminate()
        within("it has stopped", lambda: self.process.poll() is not None, seconds)
        within("its children are gone", lambda: not alive(everyone), 15)
        return self.process.wait()

    def done(self) -> int:
        """Wait for the process and return its exit code."""
        wait_until("it is done", lambda: self.process.poll() is not None)
        return self.process.wait()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False
