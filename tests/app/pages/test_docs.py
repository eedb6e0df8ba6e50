"""The API docs page: it loads nothing from outside, and its examples can be sent unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from httpx import Response
from starlette.testclient import TestClient

from app.demo import DEMO_NAME, as_csv, bakery_rows
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import (
    CONTEXTS,
    QUICK,
    Json,
    await_solvers,
    check_json,
    create_dataset,
    create_job,
    create_problem,
    learn,
    learn_posterior,
)
from tests.support.model_files import MPS

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def allowed_host(client: TestClient) -> Iterator[None]:
    """Allow the host that the webhook example names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BCO_WEBHOOK_HOSTS", "planner.example")
        get_settings.cache_clear()
        yield
    get_settings.cache_clear()


@pytest.fixture(scope="module")
def demo(client: TestClient, allowed_host: None) -> Json:
    """Create a quick version of the demo, named 'bakery', and newer objects with other names."""
    await_solvers(client)
    rows = bakery_rows(60)
    dataset = create_dataset(client, name=DEMO_NAME, rows=rows)
    problem = create_problem(client)
    assert problem["name"] == DEMO_NAME
    posterior = learn_posterior(client, name=DEMO_NAME, problem_id=problem["id"], dataset_id=dataset["id"])
    other = create_problem(client, name="other")
    learn_posterior(client, name="other", problem_id=other["id"], dataset_id=create_dataset(client, rows=rows)["id"])
    address, body = f"/v1/posteriors/{posterior['id']}/prescribe", {"contexts": CONTEXTS[:3]}
    answer = check_json(client.post(address, json=body))
    check_json(client.get(f"/v1/prescriptions/{answer['id']}"))
    check_json(client.post("/v1/webhooks/secret"), 201)
    hook = check_json(client.post("/v1/webhooks", json={"url": "https://planner.example/"}), 201)
    return posterior | {"prescription_id": answer["id"], "webhook_id": hook["id"]}


@pytest.fixture
def document(client: TestClient, demo: Json) -> Json:
    return check_json(client.get("/openapi.json"))


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, entry in document["paths"].items():
        for method in METHODS:
            if method in entry:
                yield method.upper(), path, entry[method]


def resolve(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def address(path: str, operation: Json) -> str:
    """Fill the path with the examples of its parameters."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
    assert "{" not in path
    return path


# the page


def test_the_docs_page_and_all_it_loads_come_from_this_service(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
    assert len(links) >= 3
    for link in links:
        assert link.startswith("/")
        asset = client.get(link)
        assert asset.status_code == 200
        assert len(asset.content) > 100
    assert not re.search(r"https?://|//cdn", page.text)


def test_the_stylesheet_loads_nothing_from_outside(client: TestClient) -> None:
    style = client.get("/docs/assets/swagger-ui.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "url(" in style.text
    assert re.findall(r"""@import|url\((?!\s*["']?data:)[^)]*""", style.text) == []


def test_the_page_uses_no_external_validator(client: TestClient) -> None:
    assert "validatorUrl: null" in client.get("/docs/start.js").text


def test_the_home_page_links_to_the_docs(client: TestClient) -> None:
    assert 'href="/docs"' in client.get("/").text
    assert client.get("/docs").status_code == 200


def test_files_outside_the_assets_folder_cannot_be_read(client: TestClient) -> None:
    for path in ("../__init__.py", "%2e%2e/__init__.py", "..%2f__init__.py", "/etc/passwd"):
        assert client.get(f"/docs/assets/{path}").status_code == 404


# the document


def test_the_openapi_document_lists_every_path_and_no_server(client: TestClient, document: Json) -> None:
    assert {(method, path) for method, path, _ in operations(document)} >= {
        ("POST", "/v1/problems"),
        ("GET", "/v1/problems"),
        ("GET", "/v1/problems/{problem_id}"),
        ("DELETE", "/v1/problems/{problem_id}"),
        ("POST", "/v1/datasets"),
        ("POST", "/v1/datasets/upload"),
        ("GET", "/v1/datasets"),
        ("GET", "/v1/datasets/{dataset_id}"),
        ("DELETE", "/v1/datasets/{dataset_id}"),
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/{job_id}"),
        ("POST", "/v1/jobs/{job_id}/cancel"),
        ("DELETE", "/v1/jobs/{job_id}"),
        ("GET", "/v1/posteriors"),
        ("GET", "/v1/posteriors/{posterior_id}"),
        ("DELETE", "/v1/posteriors/{posterior_id}"),
        ("GET", "/v1/posteriors/{posterior_id}/diagnostics"),
        ("GET", "/v1/posteriors/{posterior_id}/particles"),
        ("POST", "/v1/posteriors/{posterior_id}/prescribe"),
    }
    assert "servers" not in document


def test_every_reference_in_the_document_resolves(document: Json) -> None:
    references = set(re.findall(r"'\$ref': '([^']+)'", str(document)))
    assert references
    for reference in references:
        assert resolve(document, {"$ref": reference})


def test_errors_are_documented_as_problem_json_for_every_operation(document: Json) -> None:
    for _, path, operation in operations(document):
        for status in ("404", "422", "500"):
            content = operation["responses"][status]["content"]
            assert "application/problem+json" in content, path


def test_every_request_body_has_an_example(document: Json) -> None:
    bodies = [(path, op["requestBody"]["content"]) for _, path, op in operations(document) if "requestBody" in op]
    assert len(bodies) >= 5
    for path, content in bodies:
        for kind, entry in content.items():
            schema = resolve(document, entry["schema"])
            if kind == "application/json":
                assert schema["examples"], path
            else:
                required = [name for name in schema["required"] if name != "file"]
                assert all(schema["properties"][name]["examples"] for name in required), path


def test_path_parameter_examples_are_ids_of_the_demo(document: Json, demo: Json) -> None:
    expected = {
        "problem_id": demo["problem_id"],
        "dataset_id": demo["dataset_id"],
        "job_id": demo["job_id"],
        "posterior_id": demo["id"],
        "prescription_id": demo["prescription_id"],
        "webhook_id": demo["webhook_id"],
        "name": DEMO_NAME,
    }
    seen = set()
    for _, _, operation in operations(document):
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert parameter["example"] == expected[parameter["name"]]
                seen.add(parameter["name"])
    assert seen == set(expected)
    assert "_DEMO" not in str(document)


def send_example(client: TestClient, document: Json, method: str, path: str, operation: Json) -> list[Response]:
    """Send every example of an operation literally, as 'Try it out' does."""
    target = address(path, operation)
    answers = []
    for kind, entry in operation["requestBody"]["content"].items():
        schema = resolve(document, entry["schema"])
        if kind == "application/json":
            answers += [client.request(method, target, json=example) for example in schema["examples"]]
        else:
            properties = schema["properties"].items()
            form = {name: entry["examples"][0] for name, entry in properties if "examples" in entry}
            content = MPS if path.endswith("/import") else as_csv(bakery_rows(60))
            file = {"file": ("bakery", content.encode())}
            answers.append(client.request(method, target, data=form, files=file))
    return answers


def test_every_request_example_succeeds_unchanged(client: TestClient, document: Json) -> None:
    sent = 0
    for method, path, operation in operations(document):
        if "requestBody" in operation:
            for answer in send_example(client, document, method, path, operation):
                assert answer.is_success, f"{method} {path}: {answer.text}"
                sent += 1
    assert sent >= 5


def test_every_get_with_the_example_ids_succeeds(client: TestClient, document: Json) -> None:
    # The demo makes no alias; the page's own example does.
    alias = "/v1/aliases/{name}"
    (made,) = send_example(client, document, "PUT", alias, document["paths"][alias]["put"])
    assert made.status_code == 200, made.text
    read = 0
    for method, path, operation in operations(document):
        # Other tests cover these: the events of a queued job do not end, a learn job has no result file, and the bakery
        # is not a linear model.
        if method == "GET" and not path.endswith(("/events", "/result", "/over-time", "/compiled", "/mps")):
            answer = client.get(address(path, operation))
            assert answer.status_code == 200, f"{path}: {answer.text}"
            read += 1
    assert read >= 12


def test_the_example_job_runs_and_its_posterior_prescribes(client: TestClient, document: Json) -> None:
    schema = document["components"]["schemas"]["LearnRequest"]
    (example,) = schema["examples"]
    small = example | {"predictor": {"kind": "linear"}, "inference": QUICK}
    job = learn(client, check_json(client.post("/v1/jobs", json=small), 202)["id"])
    assert job["state"] == "succeeded"
    newest = check_json(client.get("/openapi.json"))
    path = "/v1/posteriors/{posterior_id}/prescribe"
    operation = newest["paths"][path]["post"]
    assert job["posterior_id"] in address(path, operation)
    assert [answer.status_code for answer in send_example(client, newest, "POST", path, operation)] == [200]


def test_the_cancel_example_names_the_newest_job_of_the_demo(client: TestClient, demo: Json) -> None:
    ids = {"problem_id": demo["problem_id"], "dataset_id": demo["dataset_id"]}
    job = create_job(client, name=DEMO_NAME, **ids)
    document = check_json(client.get("/openapi.json"))
    path = "/v1/jobs/{job_id}/cancel"
    target = address(path, document["paths"][path]["post"])
    assert job["id"] in target
    assert client.post(target).status_code == 202


# before the migration


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def unmigrated_client(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> Iterator[TestClient]:
    with (
        service_on(empty_database(request.param)),
        TestClient(create_app(), raise_server_exceptions=False) as client,
    ):
        yield client


def test_a_process_is_live_but_not_ready_before_migration(unmigrated_client: TestClient) -> None:
    assert unmigrated_client.get("/livez").text == "ok"
    response = unmigrated_client.get("/readyz")
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:bco:error:unavailable"
    assert "bco migrate" in response.json()["detail"]
    assert "SELECT" not in response.text


def test_the_docs_page_can_be_read_before_the_database_is_migrated(unmigrated_client: TestClient) -> None:
    assert unmigrated_client.get("/docs").status_code == 200
    assert unmigrated_client.get("/openapi.json").status_code == 200


def test_a_process_is_not_ready_without_its_database() -> None:
    with service_on("postgresql://nobody@/nowhere?host=/nonexistent"):
        client = TestClient(create_app(), raise_server_exceptions=False)
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 503


def test_a_process_with_a_migrated_database_is_ready(client: TestClient) -> None:
    for path in ("/livez", "/readyz"):
        response = client.get(path)
        assert (response.status_code, response.text) == (200, "ok")
