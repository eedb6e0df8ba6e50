"""OpenAPI names for generated clients: operation ids, tags and schema names."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from app.main import create_app
from tests.support.journey import Json

METHODS = ("get", "post", "put", "patch", "delete")
VERBS = {
    "append",
    "cancel",
    "check",
    "create",
    "delete",
    "download",
    "evaluate",
    "export",
    "follow",
    "import",
    "inspect",
    "list",
    "make",
    "move",
    "ping",
    "prescribe",
    "read",
    "record",
    "reproduce",
    "retry",
    "upload",
}
# Ids that existing programs use; renaming one would break their next generated client.
KNOWN = {
    "create_problem": "POST /v1/problems",
    "create_dataset": "POST /v1/datasets",
    "upload_dataset": "POST /v1/datasets/upload",
    "append_dataset_rows": "POST /v1/datasets/{dataset_id}/rows",
    "create_job": "POST /v1/jobs",
    "list_jobs": "GET /v1/jobs",
    "read_job": "GET /v1/jobs/{job_id}",
    "download_job_result": "GET /v1/jobs/{job_id}/result",
    "read_posterior": "GET /v1/posteriors/{posterior_id}",
    "prescribe": "POST /v1/posteriors/{posterior_id}/prescribe",
    "create_batch": "POST /v1/posteriors/{posterior_id}/batch-prescriptions",
    "move_alias": "PUT /v1/aliases/{name}",
}


@pytest.fixture(scope="module")
def document() -> Json:
    found: Json = create_app().openapi()
    return found


def operations(document: Json) -> dict[str, tuple[str, Json]]:
    found = [
        (entry[method]["operationId"], f"{method.upper()} {path}", entry[method])
        for path, entry in document["paths"].items()
        for method in METHODS
        if method in entry
    ]
    repeated = [name for name, count in Counter(name for name, _, _ in found).items() if count > 1]
    assert repeated == []
    return {name: (where, operation) for name, where, operation in found}


def test_every_operation_id_is_unique_and_begins_with_a_verb(document: Json) -> None:
    names = operations(document)
    assert len(names) >= 35
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
    assert {name.partition("_")[0] for name in names} <= VERBS


def test_operation_ids_in_use_are_stable(document: Json) -> None:
    names = operations(document)
    assert {name: names[name][0] for name in KNOWN} == KNOWN


def test_every_operation_has_one_tag_and_a_summary(document: Json) -> None:
    found = operations(document)
    assert [name for name, (_, operation) in found.items() if len(operation.get("tags", [])) != 1] == []
    assert [name for name, (_, operation) in found.items() if not operation.get("summary")] == []


def test_schema_names_are_class_names(document: Json) -> None:
    names = document["components"]["schemas"]
    assert {"DatasetAnswer", "JobSummary", "PrescribeRequest"} <= set(names)
    # Generators leave out the underscores of a page: PageJobSummary.
    assert [name for name in names if not re.fullmatch(r"([A-Z][a-z]*)+|Page_([A-Z][a-z]*)+_", name)] == []
