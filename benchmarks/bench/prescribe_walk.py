"""The functions of ``app`` and ``bco_core`` that one warm prescribe request calls, by file.

``python -m benchmarks.bench.prescribe_walk`` learns a small posterior in this process, answers two requests to warm up,
and prints the calls of the next one in order of first call. A coroutine counts each time that it resumes.
Comprehensions and generated methods of dataclasses do not count. Writing the log follows the answer and does not count
either.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from starlette.testclient import TestClient

ROOT = Path(__file__).parents[2]
PACKAGES = (f"{ROOT}/app/", f"{ROOT}/bco_core/")
_ROWS = 60


class Walk:
    """Calls of Python functions by file and qualified name, counted in every thread while ``recording``."""

    def __init__(self) -> None:
        self.recording = False
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if self.recording and event == "call" and code.co_filename.startswith(PACKAGES) and code.co_name[0] != "<":
            self.calls[code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname] += 1

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))


@contextmanager
def application() -> Iterator[tuple[TestClient, str]]:
    """Yield an application on an empty database in this process, and the prescribe address of a new posterior."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BCO_DATABASE_URL"] = f"sqlite:///{Path(folder) / 'walk.db'}"
        from app.db.migrate import migrate
        from app.main import create_app

        migrate(os.environ["BCO_DATABASE_URL"])
        with TestClient(create_app(), base_url="http://localhost") as client:
            yield client, _learn(client)


def _learn(client: TestClient) -> str:
    from app.demo import bakery_rows, example_problem
    from app.jobs import compute, service

    outcomes = [item["name"] for item in example_problem()["spec"]["items"]]
    problem = client.post("/v1/problems", json=example_problem()).raise_for_status().json()
    history = {"name": "walk", "outcomes": outcomes, "rows": bakery_rows(_ROWS)}
    dataset = client.post("/v1/datasets", json=history).json()
    body = {"problem_id": problem["id"], "dataset_id": dataset["id"], "predictor": {"kind": "linear"}}
    job = client.post("/v1/jobs", json=body).raise_for_status().json()
    attempt = service.start(job["id"])
    if attempt is None:
        raise RuntimeError("the job did not start")
    compute.run(job["id"], attempt)
    learned = client.get(f"/v1/jobs/{job['id']}").json()
    return f"/v1/posteriors/{learned['posterior_id']}/prescribe"


def walk() -> Walk:
    """Record the calls of one prescribe request to a posterior that is in memory."""
    from app.demo import MORNINGS
    from bco_core.compile_kernels import warm_up

    warm_up()
    recorded = Walk()
    # A profile function applies to threads that start later, so set it before the application starts.
    threading.setprofile(recorded)
    try:
        with application() as (client, address):
            for recording in (False, False, True):
                recorded.recording = recording
                client.post(address, json={"contexts": MORNINGS[:1]}).raise_for_status()
                recorded.recording = False
    finally:
        threading.setprofile(None)
    return recorded


def main() -> None:
    console, recorded = Console(highlight=False, soft_wrap=True), walk()
    for file in recorded.files:
        names = [f"{name}×{count}" if count > 1 else name for (at, name), count in recorded.calls.items() if at == file]
        console.print(f"{file}: {', '.join(names)}")
    for package in ("app", "bco_core"):
        inside = {key: count for key, count in recorded.calls.items() if key[0].startswith(f"{package}/")}
        files = len({file for file, _ in inside})
        console.print(f"{package}: {sum(inside.values())} calls of {len(inside)} functions in {files} files")
    console.print(
        f"together: {recorded.calls.total()} calls of {len(recorded.calls)} functions in {len(recorded.files)} files"
    )


if __name__ == "__main__":
    main()
