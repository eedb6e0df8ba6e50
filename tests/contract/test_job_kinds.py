"""Contract of every job kind, whoever computes its parts. A new kind needs a row in ``ROWS``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.backtests.schemas import CandidateSpec
from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.migrate import migrate
from app.db.tables import JobPartRow, JobRow
from app.jobs import compute, parts, queue, service
from app.jobs.kinds import DEFAULT, KINDS
from app.jobs.kinds import prescribe as batches
from app.jobs.kinds.base import JobKind, JobPart
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import (
    QUICK,
    Json,
    check_json,
    counts,
    create_dataset,
    create_problem,
    learn_posterior,
    prepare_fund,
)

CHAINS: Json = {"method": "mh", "chains": 2, "steps": 60, "burn_in": 30, "particles": 20, "inverse_temperature": 100}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with service_on(f"sqlite:///{tmp_path_factory.mktemp('kinds') / 'bco.db'}"):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app(), raise_server_exceptions=False) as client:
            yield client


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_MOST_ROWS_AT_ONCE", 25)


def learn_alone(client: TestClient) -> Json:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    return ids | {"predictor": {"kind": "linear"}, "inference": QUICK, "seed": 3}


def learn_by_chains(client: TestClient) -> Json:
    return prepare_fund(client) | {"kind": "learn", "predictor": {"kind": "linear"}, "inference": CHAINS}


def prescribe(client: TestClient) -> Json:
    ids = {"posterior_id": learn_posterior(client)["id"], "dataset_id": create_dataset(client)["id"]}
    return ids | {"kind": "prescribe", "scenarios": 20}


def backtest(client: TestClient) -> Json:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    quick = CandidateSpec.model_validate({"name": "quick", "predictor": {"kind": "linear"}, "inference": QUICK})
    asked = {"ours": [quick.model_dump()], "baselines": ["constant", "regression"], "splits": 2, "seed": 3}
    return ids | {"kind": "backtest"} | asked


# Name, kind, a function that builds a request, and the number of parts.
ROWS: dict[str, tuple[str, Callable[[TestClient], Json], int]] = {
    "learning in one process": ("learn", learn_alone, 0),
    "learning by chains": ("learn", learn_by_chains, 2),
    "prescribing": ("prescribe", prescribe, 3),
    "backtesting": ("backtest", backtest, 6),
}
EVERY_ROW = pytest.mark.parametrize(("name", "body_of", "count"), ROWS.values(), ids=ROWS.keys())
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def test_every_job_kind_has_a_row_and_its_own_name() -> None:
    assert {name for name, _, _ in ROWS.values()} == set(KINDS)
    assert {kind.name: kind for kind in KINDS.values()} == KINDS
    assert DEFAULT in KINDS


@EVERY_KIND
def test_a_kind_fits_its_queue(kind: JobKind) -> None:
    assert kind.queue in (queue.COMPUTING, queue.WAITING)
    if kind.waits:
        # No process splits or joins it: its parts are fixed at creation and are its result.
        assert (kind.split, kind.join, kind.keeps_parts) == (None, None, True)
    else:
        assert kind.join is not None
    if kind.files:
        assert kind.keeps_parts


@EVERY_KIND
def test_a_kind_is_requested_by_name_and_documents_its_request(kind: JobKind) -> None:
    schema = kind.request.model_json_schema()
    assert schema["properties"]["kind"]["const"] == kind.name
    assert schema["examples"]
    for example in schema["examples"]:
        assert example.get("kind", DEFAULT) == kind.name
    assert "time_limit_seconds" in schema["properties"]


@EVERY_KIND
def test_an_invalid_request_is_refused_with_its_pointer_and_stores_nothing(client: TestClient, kind: JobKind) -> None:
    before = counts()
    body = {"kind": kind.name, "time_limit_seconds": "long"}
    refusal = check_json(client.post("/v1/jobs", json=body), 422)
    pointers = {found["pointer"] for found in refusal["errors"]}
    required = {f"#/{name}" for name in kind.request.model_json_schema()["required"]} - {"#/kind"}
    assert pointers == {"#/time_limit_seconds"} | required
    assert counts() == before


@pytest.mark.parametrize("kind", ["dance", "", None, 7, ["learn"], {}])
def test_an_unknown_kind_is_refused_with_the_known_ones(client: TestClient, kind: Any) -> None:
    refusal = check_json(client.post("/v1/jobs", json={"kind": kind}), 422)
    (found,) = refusal["errors"]
    assert found == {"pointer": "#/kind", "detail": "the job kind must be one of learn, prescribe, backtest"}


# from the request to the result


def submit(client: TestClient, body: Json) -> JobRow:
    job_id = check_json(client.post("/v1/jobs", json=body), 202)["id"]
    return service.get(DEFAULT_WORKSPACE, job_id)


def parts_of(job_id: str) -> list[JobPart]:
    query = sa.select(JobPartRow).where(JobPartRow.job_id == job_id).order_by(JobPartRow.seq)
    with transaction() as session:
        return [JobPart(row.work, row.data) for row in session.scalars(query)]


def silent(fraction: float, message: str) -> None:
    assert 0 <= fraction <= 1
    assert message


def forget(data: bytes) -> None:
    """Discard a checkpoint."""


def outcome(client: TestClient, job_id: str, results: Sequence[bytes] | None = None) -> list[Any]:
    """Return everything a job has made, for comparison. Files are built from ``results`` if given."""
    job = check_json(client.get(f"/v1/jobs/{job_id}"))
    assert job["state"] == "succeeded", job["error"]
    kind = KINDS[job["kind"]]
    made: list[Any] = [job["summary"]] if job["summary"] else []
    for name, file in kind.files.items():
        address = f"/v1/jobs/{job_id}/result"
        kept = (
            client.get(address, params={"format": name}).content if results is None else b"".join(file.write(results))
        )
        made.append(kept)
    if kind.makes_posterior:
        made.append(check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))["digest"])
    assert made
    return made


@pytest.mark.all_variants
@EVERY_ROW
def test_split_work_and_join_equal_the_engines_result(
    client: TestClient, name: str, body_of: Callable[[TestClient], Json], count: int
) -> None:
    body, kind = body_of(client), KINDS[name]
    by_hand, alone, shared = (submit(client, body) for _ in range(3))

    attempt = service.start(by_hand.id)
    assert attempt is not None
    given = kind.read(by_hand)
    made = parts_of(by_hand.id) if kind.split is None else kind.split(given, silent)
    assert len(made) == count
    assert all(part.work > 0 for part in made)
    results = [kind.work(given, part.data, silent, forget) for part in made]
    if kind.join is not None:
        service.succeed(by_hand.id, attempt, kind.join(given, results, silent))
        expected = outcome(client, by_hand.id, results)
    else:
        expected = [b"".join(file.write(results)) for file in kind.files.values()]

    run(alone)
    assert outcome(client, alone.id) == expected
    run(shared, by_others=True)
    assert outcome(client, shared.id) == expected
    assert len(parts_of(shared.id)) == (count if kind.keeps_parts else 0)


def run(job: JobRow, by_others: bool = False) -> None:
    """Run a job in this process. Its parts run here, or by other workers in between."""
    attempt = service.start(job.id)
    assert attempt is not None
    left = iter(range(100))

    def worker() -> None:
        seq = next(left)
        assert parts.start(job.id, seq)
        compute.run_part(job.id, seq)

    compute.run(job.id, attempt, worker if by_others or KINDS[job.kind].waits else None)


@EVERY_ROW
def test_a_part_resumed_from_a_checkpoint_ends_the_same(
    client: TestClient,
    name: str,
    body_of: Callable[[TestClient], Json],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bco_core.inference.mh.metropolis.CHECKPOINT_SECONDS", -1.0)
    kind, job = KINDS[name], submit(client, body_of(client))
    given = kind.read(job)
    for part in parts_of(job.id) if kind.split is None else kind.split(given, silent):
        left: list[bytes] = [part.data]
        result = kind.work(given, part.data, silent, left.append)
        assert kind.work(given, left[-1], silent, forget) == result
        assert kind.work(given, left[len(left) // 2], silent, forget) == result


@EVERY_ROW
def test_a_job_is_listed_by_kind_waits_in_its_queue_and_shows_its_request(
    client: TestClient, name: str, body_of: Callable[[TestClient], Json], count: int
) -> None:
    body = body_of(client)
    job = check_json(client.post("/v1/jobs", json=body), 202)
    assert job["kind"] == name
    listed = check_json(client.get("/v1/jobs", params={"kind": name, "limit": 200}))["items"]
    assert {field: value for field, value in job.items() if field not in ("spec", "summary")} in listed
    assert {found["kind"] for found in listed} == {name}
    (queued,) = queue.client().list_queued_workflows(workflow_ids=[job["id"]])
    assert queued.queue_name == KINDS[name].queue
    named = {"kind", "name", "problem_id", "dataset_id"}
    for field in set(body) - named - {"predictor", "inference"}:
        assert job["spec"][field] == body[field]
    assert not named & set(job["spec"])


@EVERY_ROW
def test_a_missing_result_file_is_refused_with_the_place_of_the_result(
    client: TestClient, name: str, body_of: Callable[[TestClient], Json], count: int
) -> None:
    job, kind = submit(client, body_of(client)), KINDS[name]
    response = client.get(f"/v1/jobs/{job.id}/result")
    assert response.status_code == 409
    if not kind.files:
        assert "no file" in response.json()["detail"]
    if kind.makes_posterior:
        assert job.id.replace("job_", "post_") in response.json()["detail"]
