"""Authentication and authorisation: API keys, scopes, workspaces and rate limits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.commands import cli
from app.db.engine import transaction
from app.db.tables import KeyRow, PosteriorRow, WebhookRow
from app.demo import as_csv
from app.http import security
from app.ids import new_id
from app.keys import service as keys
from app.main import create_app
from tests.support.in_process import forget_caches
from tests.support.journey import (
    CONTEXTS,
    QUICK,
    ROWS,
    Json,
    check_json,
    create_dataset,
    create_problem,
    learn,
    learn_posterior,
    prescribe,
)

METHODS = ("get", "post", "put", "patch", "delete")
NOWHERE = "01JCXV7Q0GZ3M5W8K2T4N6P9RS"


@pytest.fixture
def make_key(client: TestClient) -> Iterator[Callable[..., str]]:
    """Create keys and delete them after the test, so that other tests need none."""

    def make(workspace: str = "default", scopes: str = "read,train,admin", days: float | None = None) -> str:
        return keys.create("test", workspace, scopes.split(","), days)[1]

    yield make
    with transaction() as session:
        session.execute(sa.delete(KeyRow))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def status(client: TestClient, key: str | None = None) -> int:
    return client.get("/v1/problems", headers=bearer(key) if key else {}).status_code


def operations(client: TestClient) -> list[tuple[str, str, Json]]:
    document = check_json(client.get("/openapi.json"))
    return [
        (method.upper(), path, entry[method])
        for path, entry in document["paths"].items()
        for method in METHODS
        if method in entry
    ]


# authentication


def test_local_calls_need_no_key_while_none_exists(client: TestClient) -> None:
    assert status(client) == 200


def test_once_a_key_exists_every_call_needs_one(client: TestClient, make_key: Callable[..., str]) -> None:
    key = make_key()
    refused = client.get("/v1/problems")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.headers["content-type"] == "application/problem+json"
    assert "API key" in refused.json()["detail"]
    assert status(client, key) == 200


def test_without_active_keys_access_needs_allow_anonymous(
    client: TestClient, make_key: Callable[..., str], settings: Callable[..., None]
) -> None:
    key = make_key()
    assert status(client) == 401
    keys.revoke(keys.listing()[0].id)
    assert (status(client), status(client, key)) == (401, 401)
    expired = make_key(days=0)
    assert (status(client), status(client, expired)) == (401, 401)
    settings(allow_anonymous="true")
    assert (status(client), status(client, expired)) == (200, 401)
    settings(host="0.0.0.0")  # noqa: S104
    assert status(client) == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "bco.internal"])  # noqa: S104
def test_a_service_on_a_public_host_needs_a_key(
    client: TestClient, settings: Callable[..., None], host: str, make_key: Callable[..., str]
) -> None:
    settings(host=host)
    assert status(client) == 401
    assert status(client, make_key()) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_service_on_localhost_needs_no_key(client: TestClient, settings: Callable[..., None], host: str) -> None:
    settings(host=host)
    assert status(client) == 200


def test_docs_and_health_checks_need_no_key_and_name_no_objects(
    client: TestClient, make_key: Callable[..., str]
) -> None:
    problem = create_problem(client)
    assert problem["id"] in client.get("/openapi.json").text
    make_key()
    for path in ("/docs", "/redoc", "/login", "/openapi.json", "/livez", "/readyz", "/docs/assets/swagger-ui.css"):
        assert client.get(path).status_code == 200, path
    assert problem["id"] not in client.get("/openapi.json").text


def test_every_other_path_needs_a_key_whether_it_exists_or_not(
    client: TestClient, make_key: Callable[..., str]
) -> None:
    make_key()
    addresses = [(method, path.replace("{", "").replace("}", "")) for method, path, _ in operations(client)]
    addresses += [("GET", "/metrics"), ("GET", "/v1/nothing"), ("GET", "//v1/problems"), ("GET", "/admin")]
    guarded = [found for found in addresses if found[1] not in ("/livez", "/readyz")]
    assert len(guarded) >= 20
    for method, path in guarded:
        assert client.request(method, path).status_code == 401, path


def test_a_body_without_a_key_is_not_read(client: TestClient, make_key: Callable[..., str]) -> None:
    make_key()
    read = []

    def body() -> Iterator[bytes]:
        for index in range(100):
            read.append(index)
            yield b"x" * 1000

    async def call() -> list[Any]:
        sent: list[Any] = []
        chunks = body()

        async def receive() -> Json:
            return {"type": "http.request", "body": next(chunks), "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/problems", "headers": [], "query_string": b""}
        await create_app()(scope, receive, send)
        return sent

    assert anyio.run(call)[0]["status"] == 401
    assert read == []


def replace_character(key: str, place: int) -> str:
    return key[:place] + ("A" if key[place] != "A" else "B") + key[place + 1 :]


BAD_HEADERS: dict[str, Callable[[str], str]] = {
    "an empty one": lambda key: "",
    "no scheme": lambda key: key,
    "another scheme": lambda key: f"Basic {key}",
    "no key": lambda key: "Bearer ",
    "another secret": lambda key: f"Bearer {replace_character(key, -1)}",
    "another id": lambda key: f"Bearer {replace_character(key, 12)}",
    "no secret": lambda key: f"Bearer {key[:30]}",
    "half of it": lambda key: f"Bearer {key[:-10]}",
    "more than it": lambda key: f"Bearer {key}A",
    "its id": lambda key: f"Bearer key_{key[4:30]}",
    "its hash": lambda key: f"Bearer {keys._hash(key)}",
    "other letters": lambda key: f"Bearer {key[:31]}é£",
    "a very long one": lambda key: f"Bearer bco_{'A' * 10_000}",
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_an_invalid_key_is_refused_and_not_echoed(
    client: TestClient, make_key: Callable[..., str], header: Callable[[str], str]
) -> None:
    sent = header(make_key())
    answer = client.get("/v1/problems", headers=[(b"authorization", sent.encode("latin-1"))])
    assert answer.status_code == 401
    assert not sent.strip() or sent not in answer.text


def test_the_scheme_is_case_insensitive(client: TestClient, make_key: Callable[..., str]) -> None:
    key = make_key()
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert client.get("/v1/problems", headers={"Authorization": f"{scheme}  {key} "}).status_code == 200


# cross-site requests from a browser on this machine

FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"},
    {"Host": "evil.example:8000"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "203.0.113.9"},
    {"Host": "[2001:db8::1]:8000"},
    {"Host": "[nonsense"},
    {"Host": "intranet:8000"},
    {"Host": "localhost:8000", "Origin": "http://intranet"},
    {"Host": "localhost.:8000"},
    {"Origin": "null"},
    {"Origin": ""},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_without_a_key_cross_site_requests_are_refused(
    client: TestClient, headers: dict[str, str], make_key: Callable[..., str]
) -> None:
    answer = client.get("/v1/problems", headers=headers)
    assert answer.status_code == 403
    assert "this machine" in answer.json()["detail"]
    assert client.get("/v1/problems", headers=headers | bearer(make_key())).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"},
        {"Host": "localhost:8000", "Origin": "http://localhost:3000"},
        {"Host": "[::1]:8000"},
        {"Host": "LOCALHOST"},
    ],
)
def test_local_pages_can_use_the_service(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/v1/problems", headers=headers).status_code == 200


# storage and cache


def test_only_the_hash_of_a_key_is_stored(client: TestClient, make_key: Callable[..., str]) -> None:
    key = make_key()
    with transaction() as session:
        row = session.scalars(sa.select(KeyRow)).one()
        kept = repr([getattr(row, column.name) for column in KeyRow.__table__.columns])
    secret = key.split("_", 2)[2]
    assert len(secret) >= 43
    assert secret not in kept
    assert row.sha256 == keys._hash(key)


def test_keys_are_cached_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "CACHE_SECONDS", 0.3)
    looked = threading.Semaphore(0)

    async def count_lookups() -> int:
        cache, count = security.LookupCache(), 0

        def look_up() -> bool:
            nonlocal count
            count += 1
            looked.release()
            return True

        for _ in range(5):
            await cache.get("key", look_up)
        assert count == 1
        with anyio.fail_after(30):
            while count == 1:
                await anyio.sleep(0.05)
                await cache.get("key", look_up)
        return count

    assert anyio.run(count_lookups) == 2


def test_a_refused_key_is_not_cached() -> None:
    async def look_up_twice() -> list[Any]:
        cache, answers = security.LookupCache(), iter([None, "known"])
        return [await cache.get("key", lambda: next(answers)) for _ in range(2)]

    assert anyio.run(look_up_twice) == [None, "known"]


# scopes


def test_every_operation_documents_its_scope_and_enforces_it(client: TestClient, make_key: Callable[..., str]) -> None:
    held = {scope: bearer(make_key(scopes=scope)) for scope in keys.SCOPES}
    seen = set()
    for method, path, operation in operations(client):
        if path in ("/livez", "/readyz"):
            continue
        ((needed,),) = [next(iter(entry.values())) for entry in operation["security"]]
        seen.add(needed)
        expected = {"GET": "read", "POST": "train", "PUT": "train", "DELETE": "admin"}[method]
        if path.endswith(("/prescribe", "/evaluate", "/reproduce")):
            expected = "read"
        if path.startswith("/v1/webhooks") and method == "POST":
            expected = "admin"
        assert needed == ("admin" if path == "/metrics" else expected), path
        address = re.sub(r"{(\w+)}", NOWHERE, path)
        for scope, header in held.items():
            answer = client.request(method, address, headers=header)
            assert (answer.status_code == 403) == (scope != needed), (method, path, scope)
            if scope != needed:
                assert f"'{needed}'" in answer.json()["detail"]
    assert seen == set(keys.SCOPES)


# workspaces


@dataclass
class TwoWorkspaces:
    """Two workspaces, each with a posterior created in the same way."""

    ours: TestClient
    theirs: TestClient
    mine: Json
    other: Json


@pytest.fixture
def two(client: TestClient, make_key: Callable[..., str]) -> Iterator[TwoWorkspaces]:
    app = create_app()
    with (
        TestClient(app, headers=bearer(make_key("bakery-north")), raise_server_exceptions=False) as ours,
        TestClient(app, headers=bearer(make_key("bakery-south")), raise_server_exceptions=False) as theirs,
    ):
        yield TwoWorkspaces(
            ours,
            theirs,
            add_prescription_and_webhook(ours, learn_posterior(ours)),
            add_prescription_and_webhook(theirs, learn_posterior(theirs)),
        )


def add_prescription_and_webhook(client: TestClient, posterior: Json) -> Json:
    """Add a logged prescription and a webhook, and return the posterior with their ids."""
    body = {"contexts": CONTEXTS[:1]}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    with transaction() as session:
        workspace = session.get_one(PosteriorRow, posterior["id"]).workspace
        hook = WebhookRow(id=new_id("hook"), workspace=workspace, url="https://planner.example/", events=[])
        session.add(hook)
    return posterior | {"prescription_id": answer["id"], "webhook_id": hook.id}


def ids_of(posterior: Json) -> dict[str, str]:
    named = ("problem_id", "dataset_id", "job_id", "prescription_id", "webhook_id")
    return {name: posterior[name] for name in named} | {
        "posterior_id": posterior["id"],
        "name": f"alias-of-{posterior['id'][-26:]}",
    }


def test_a_workspace_lists_only_its_own_objects(two: TwoWorkspaces) -> None:
    for kind in ("problem", "dataset", "job", "posterior"):
        listed = check_json(two.ours.get(f"/v1/{kind}s"))["items"]
        assert [item["id"] for item in listed] == [ids_of(two.mine)[f"{kind}_id"]]


def body_for(path: str, mine: Json) -> Json:
    """Return a valid body for a path."""
    if path.endswith("/prescribe"):
        return {"json": {"contexts": CONTEXTS[:1]}}
    if path.endswith("/evaluate"):
        return {"json": {"contexts": CONTEXTS[:1], "alternatives": [{"decision": {}}]}}
    if path.endswith("/batch-prescriptions"):
        return {"json": {"dataset_id": mine["dataset_id"]}}
    if path.endswith("/outcome"):
        return {"json": {"outcomes": {"loaves": 1.0}}}
    if path.endswith("/rows"):
        return {"json": {"rows": ROWS[:1]}}
    if path.endswith("/upload"):
        return {"files": {"file": ("days.csv", as_csv(ROWS).encode())}}
    return {}


def test_objects_of_other_workspaces_look_like_missing_ones(two: TwoWorkspaces) -> None:
    """Every path with an id gives the same answer as for an unknown id."""
    checked = 0
    target = {"posterior_id": two.other["id"]}
    check_json(two.theirs.put(f"/v1/aliases/{ids_of(two.other)['name']}", json=target))
    for method, path, _ in operations(two.ours):
        # Each workspace has its own alias names; the tests of aliases cover PUT.
        if "{" not in path or method == "PUT":
            continue
        theirs = re.sub(r"{(\w+)}", lambda found: ids_of(two.other)[found[1]], path)
        nobodys = re.sub(r"{(\w+)}", lambda found: ids_of(two.other)[found[1]][:-26] + NOWHERE, path)
        body = body_for(path, two.mine)
        answer, missing = (two.ours.request(method, address, **body) for address in (theirs, nobodys))
        assert answer.status_code == 404, (method, path, answer.text)
        assert answer.json() == missing.json()
        checked += 1
    assert checked >= 12
    assert prescribe(two.theirs, two.other["id"])["digest"] == two.other["digest"]


def test_a_job_cannot_use_objects_of_other_workspaces(two: TwoWorkspaces) -> None:
    quick = {"predictor": {"kind": "linear"}, "inference": QUICK}
    for field in ("problem_id", "dataset_id"):
        body = quick | {name: two.mine[name] for name in ("problem_id", "dataset_id")} | {field: two.other[field]}
        answer = two.ours.post("/v1/jobs", json=body)
        assert answer.status_code == 422
        missing = two.ours.post("/v1/jobs", json=body | {field: two.other[field][:5] + NOWHERE})
        assert answer.json() == missing.json()
        assert answer.json()["errors"][0]["pointer"] == f"#/{field}"


def test_a_batch_cannot_use_a_data_set_of_another_workspace(two: TwoWorkspaces) -> None:
    path = f"/v1/posteriors/{two.mine['id']}/batch-prescriptions"
    answer = two.ours.post(path, json={"dataset_id": two.other["dataset_id"]})
    missing = two.ours.post(path, json={"dataset_id": two.other["dataset_id"][:5] + NOWHERE})
    assert answer.status_code == 422
    assert answer.json() == missing.json()
    assert two.ours.post(path, json={"dataset_id": two.mine["dataset_id"]}).status_code == 202


def test_objects_created_without_a_key_belong_to_the_default_workspace(
    client: TestClient, make_key: Callable[..., str]
) -> None:
    problem = create_problem(client)
    mine, others = make_key("default"), make_key("elsewhere")
    address = f"/v1/problems/{problem['id']}"
    assert client.get(address, headers=bearer(mine)).status_code == 200
    assert client.get(address, headers=bearer(others)).status_code == 404


def test_a_posterior_belongs_to_the_workspace_of_its_job(two: TwoWorkspaces) -> None:
    ids = {name: two.mine[name] for name in ("problem_id", "dataset_id")}
    job = check_json(two.ours.post("/v1/jobs", json=ids | {"predictor": {"kind": "linear"}, "inference": QUICK}), 202)
    waiting = f"/v1/posteriors/{job['posterior_id']}"
    assert (two.ours.get(waiting).status_code, two.theirs.get(waiting).status_code) == (409, 404)
    assert learn(two.ours, job["id"])["state"] == "succeeded"
    assert (two.ours.get(waiting).status_code, two.theirs.get(waiting).status_code) == (200, 404)
    with transaction() as session:
        assert session.get_one(PosteriorRow, job["posterior_id"]).workspace == "bakery-north"


# rate limits


def test_calls_of_a_key_are_rate_limited(
    client: TestClient, make_key: Callable[..., str], settings: Callable[..., None]
) -> None:
    settings(requests_per_second=1)
    busy, calm = make_key(), make_key()
    app = create_app()
    with TestClient(app) as fresh:
        answers = [fresh.get("/v1/problems", headers=bearer(busy)) for _ in range(12)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert [answer.status_code for answer in answers[:2]] == [200, 200]
        assert len(refused) >= 1
        assert int(refused[0].headers["retry-after"]) >= 1
        assert refused[0].headers["content-type"] == "application/problem+json"
        assert "BCO_REQUESTS_PER_SECOND" in refused[0].json()["detail"]
        assert status(fresh, calm) == 200


def test_a_token_bucket_allows_a_burst_and_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(security, "monotonic", lambda: clock[0])
    bucket = security.TokenBucket(10)
    assert [bucket.take() for _ in range(20)] == [0.0] * 20
    assert bucket.take() == pytest.approx(0.1)
    clock[0] += 0.05
    assert bucket.take() == pytest.approx(0.05)
    clock[0] += 0.0625
    assert bucket.take() == 0.0
    clock[0] += 1000
    assert [bucket.take() > 0 for _ in range(21)] == [False] * 20 + [True]


def test_a_rate_of_zero_means_no_limit(
    client: TestClient, make_key: Callable[..., str], settings: Callable[..., None]
) -> None:
    settings(requests_per_second=0)
    key = make_key()
    assert {status(client, key) for _ in range(20)} == {200}


# database outage


def test_without_its_database_every_key_is_refused() -> None:
    from tests.support.in_process import service_on

    with service_on("postgresql://nobody@/nowhere?host=/nonexistent"):
        client = TestClient(create_app(), raise_server_exceptions=False)
        answer = client.get("/v1/problems", headers=bearer("bco_x_y"))
        assert answer.status_code == 401
        answer = client.get("/v1/problems")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


# the command


@pytest.fixture
def bco(database_url: str, make_key: Callable[..., str]) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli.app, ["keys", *arguments], env={"COLUMNS": "160"})

    return run


def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(client: TestClient, bco: Callable[..., Any]) -> None:
    made = bco("create", "planning system", "--workspace", "planning", "--scopes", "read,train", "--days", "30")
    assert made.exit_code == 0
    key = made.stdout.strip()
    assert "\n" not in key
    assert "workspace 'planning' (read, train; expires" in made.stderr
    assert status(client, key) == 200
    listed = bco("list").stdout
    key_id = f"key_{key[4:30]}"
    for shown in (key_id, "planning system", "planning", "read, train", "works until"):
        assert shown in listed
    assert key not in listed
    assert key.split("_", 2)[2] not in listed
    assert bco("revoke", key_id).exit_code == 0
    assert bco("revoke", key_id).exit_code == 0
    assert "revoked" in bco("list").stdout
    assert status(client, key) == 401


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "x", "--workspace", "Not This!"), "lower-case letters"),
        (("create", "x", "--scopes", "read,write"), "read, train, admin"),
        (("create", " "), "name"),
        (("create", "x", "--days", "-1"), "days"),
        (("revoke", "key_nowhere"), "bco keys list"),
    ],
)
def test_an_invalid_argument_is_explained_and_creates_no_key(
    bco: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    result = bco(*arguments)
    assert result.exit_code != 0
    assert words in result.output
    assert "Traceback" not in result.output
    assert keys.listing() == []


def test_an_empty_list_explains_that_no_key_is_needed(bco: Callable[..., Any]) -> None:
    assert "need none" in bco("list").stdout


def test_without_a_migrated_database_the_command_suggests_migrate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, database_url: str
) -> None:
    monkeypatch.setenv("BCO_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    forget_caches()
    result = CliRunner().invoke(cli.app, ["keys", "list"])
    monkeypatch.undo()
    forget_caches()
    assert result.exit_code == 1
    assert "bco migrate" in result.output


def test_a_data_set_of_another_workspace_cannot_be_deleted(two: TwoWorkspaces) -> None:
    made = create_dataset(two.theirs)
    assert two.ours.delete(f"/v1/datasets/{made['id']}").status_code == 404
    assert two.theirs.get(f"/v1/datasets/{made['id']}").status_code == 200
