"""The docs page needs nothing from outside, and what it shows can be sent as it is."""

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
    answered,
    await_solvers,
    create_dataset,
    create_job,
    create_problem,
    learn,
    learned,
)
from tests.support.model_files import MPS

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def allowed_host(client: TestClient) -> Iterator[None]:
    """The one that the example of a webhook names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BCO_WEBHOOK_HOSTS", "planner.example")
        get_settings.cache_clear()
        yield
    get_settings.cache_clear()


@pytest.fixture(scope="module")
def demo(client: TestClient, allowed_host: None) -> Json:
    """What the demo leaves behind, learned quickly: everything is called 'bakery', and other things are newer."""
    await_solvers(client)
    rows = bakery_rows(60)
    dataset = create_dataset(client, name=DEMO_NAME, rows=rows)
    problem = create_problem(client)
    assert problem["name"] == DEMO_NAME
    posterior = learned(client, name=DEMO_NAME, problem_id=problem["id"], dataset_id=dataset["id"])
    other = create_problem(client, name="other")
    learned(client, name="other", problem_id=other["id"], dataset_id=create_dataset(client, rows=rows)["id"])
    address, body = f"/v1/posteriors/{posterior['id']}/prescribe", {"contexts": CONTEXTS[:3]}
    answer = answered(client.post(address, json=body))
    answered(client.get(f"/v1/prescriptions/{answer['id']}"))
    answered(client.post("/v1/webhooks/secret"), 201)
    hook = answered(client.post("/v1/webhooks", json={"url": "https://planner.example/"}), 201)
    return posterior | {"prescription_id": answer["id"], "webhook_id": hook["id"]}


@pytest.fixture
def document(client: TestClient, demo: Json) -> Json:
    return answered(client.get("/openapi.json"))


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, entry in document["paths"].items():
        for method in METHODS:
            if method in entry:
                yield method.upper(), path, entry[method]


def resolved(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def address(path: str, operation: Json) -> str:
    """The path with the example of each of its parameters."""
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


def test_the_pages_style_loads_nothing_from_outside(client: TestClient) -> None:
    style = client.get("/docs/assets/swagger-ui.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "url(" in style.text
    assert re.findall(r"""@import|url\((?!\s*["']?data:)[^)]*""", style.text) == []


def test_the_page_does_not_ask_an_outside_validator(client: TestClient) -> None:
    assert "validatorUrl: null" in client.get("/docs/start.js").text


def test_pages_lead_to_the_docs_and_the_docs_are_open(client: TestClient) -> None:
    assert 'href="/docs"' in client.get("/").text
    assert client.get("/docs").status_code == 200


def test_files_beside_the_assets_cannot_be_read(client: TestClient) -> None:
    for path in ("../__init__.py", "%2e%2e/__init__.py", "..%2f__init__.py", "/etc/passwd"):
        assert client.get(f"/docs/assets/{path}").status_code == 404


# the document


def test_the_document_names_every_address_and_no_outside_server(client: TestClient, document: Json) -> None:
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


def test_every_reference_in_the_document_leads_somewhere(document: Json) -> None:
    references = set(re.findall(r"'\$ref': '([^']+)'", str(document)))
    assert references
    for reference in references:
        assert resolved(document, {"$ref": reference})


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
            schema = resolved(document, entry["schema"])
            if kind == "application/json":
                assert schema["examples"], path
            else:
                required = [name for name in schema["required"] if name != "file"]
                assert all(schema["properties"][name]["examples"] for name in required), path


def test_every_path_parameter_has_the_id_of_the_demos_own_object_as_its_example(document: Json, demo: Json) -> None:
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
        schema = resolved(document, entry["schema"])
        if kind == "application/json":
            answers += [client.request(method, target, json=example) for example in schema["examples"]]
        else:
            properties = schema["properties"].items()
            form = {name: entry["examples"][0] for name, entry in properties if "examples" in entry}
            content = MPS if path.endswith("/import") else as_csv(bakery_rows(60))
            file = {"file": ("bakery", content.encode())}
            answers.append(client.request(method, target, data=form, files=file))
    return answers


def test_every_request_example_can_be_sent_as_it_is(client: TestClient, document: Json) -> None:
    sent = 0
    for method, path, operation in operations(document):
        if "requestBody" in operation:
            for answer in send_example(client, document, method, path, operation):
                assert answer.is_success, f"{method} {path}: {answer.text}"
                sent += 1
    assert sent >= 5


def test_every_read_with_the_example_ids_answers(client: TestClient, document: Json) -> None:
    # The demo makes no alias; the page's own example does.
    alias = "/v1/aliases/{name}"
    (made,) = send_example(client, document, "PUT", alias, document["paths"][alias]["put"])
    assert made.status_code == 200, made.text
    read = 0
    for method, path, operation in operations(document):
        # The story of a job that waits has no end, one that learns makes no file, and a bakery is no linear model: they
        # have tests of their own.
        if method == "GET" and not path.endswith(("/events", "/result", "/over-time", "/compiled", "/mps")):
            answer = client.get(address(path, operation))
            assert answer.status_code == 200, f"{path}: {answer.text}"
            read += 1
    assert read >= 12


def test_the_job_that_the_example_makes_can_be_run_and_prescribed_from(client: TestClient, document: Json) -> None:
    schema = document["components"]["schemas"]["LearnRequest"]
    (example,) = schema["examples"]
    small = example | {"predictor": {"kind": "linear"}, "inference": QUICK}
    job = learn(client, answered(client.post("/v1/jobs", json=small), 202)["id"])
    assert job["state"] == "succeeded"
    newest = answered(client.get("/openapi.json"))
    path = "/v1/posteriors/{posterior_id}/prescribe"
    operation = newest["paths"][path]["post"]
    assert job["posterior_id"] in address(path, operation)
    assert [answer.status_code for answer in send_example(client, newest, "POST", path, operation)] == [200]


def test_the_newest_job_of_the_demo_can_be_cancelled_from_the_docs_page(client: TestClient, demo: Json) -> None:
    ids = {"problem_id": demo["problem_id"], "dataset_id": demo["dataset_id"]}
    job = create_job(client, name=DEMO_NAME, **ids)
    document = answered(client.get("/openapi.json"))
    path = "/v1/jobs/{job_id}/cancel"
    target = address(path, document["paths"][path]["post"])
    assert job["id"] in target
    assert client.post(target).status_code == 202


# before anything is there


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def unmigrated(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> Iterator[TestClient]:
    with (
        service_on(empty_database(request.param)),
        TestClient(create_app(), raise_server_exceptions=False) as client,
    ):
        yield client


def test_a_process_lives_and_is_not_ready_until_its_database_is_migrated(unmigrated: TestClient) -> None:
    assert unmigrated.get("/livez").text == "ok"
    response = unmigrated.get("/readyz")
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:bco:error:unavailable"
    assert "bco migrate" in response.json()["detail"]
    assert "SELECT" not in response.text


def test_the_docs_page_can_be_read_before_the_database_is_migrated(unmigrated: TestClient) -> None:
    assert unmigrated.get("/docs").status_code == 200
    assert unmigrated.get("/openapi.json").status_code == 200


def test_a_process_is_not_ready_while_its_database_cannot_be_reached() -> None:
    with service_on("postgresql://nobody@/nowhere?host=/nonexistent"):
        client = TestClient(create_app(), raise_server_exceptions=False)
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 503


def test_a_process_with_a_migrated_database_is_ready(client: TestClient) -> None:
    for path in ("/livez", "/readyz"):
        response = client.get(path)
        assert (response.status_code, response.text) == (200, "ok")
