"""API docs and the OpenAPI document, self-hosted; Swagger UI comes from an installed package."""

from __future__ import annotations

import logging
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, PosteriorRow, PrescriptionRow, ProblemRow, WebhookRow
from app.demo import DEMO_NAME
from app.http.security import key_required
from app.pages.render import ASSETS

log = logging.getLogger(__name__)
router = APIRouter(include_in_schema=False)

_PLACEHOLDERS: dict[str, Any] = {
    "prob_DEMO": ProblemRow,
    "data_DEMO": DatasetRow,
    "job_DEMO": JobRow,
    "post_DEMO": PosteriorRow,
}
_PARAMETERS = {
    "problem_id": "prob_DEMO",
    "dataset_id": "data_DEMO",
    "job_id": "job_DEMO",
    "posterior_id": "post_DEMO",
    "prescription_id": "pres_DEMO",
    "webhook_id": "hook_DEMO",
    # An alias has no id; the PUT example creates this one.
    "name": DEMO_NAME,
}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>BCO Service – API</title>
<link rel="stylesheet" href="/docs/assets/swagger-ui.css">
<link rel="icon" href="/docs/assets/favicon-32x32.png">
</head>
<body>
<div id="docs"></div>
<script src="/docs/assets/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_REFERENCE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>BCO Service – API reference</title>
<link rel="icon" href="/docs/assets/favicon-32x32.png">
</head>
<body>
<redoc spec-url="/openapi.json" disable-search="true" suppress-warnings="true"></redoc>
<script src="/docs/redoc.js"></script>
</body>
</html>
"""
# ReDoc loads its logo from here; ours replaces it, because pages load nothing from other hosts.
_OUTSIDE = "https://cdn.redoc.ly/redoc/logo-mini.svg"
_START = """SwaggerUIBundle({url: "/openapi.json", dom_id: "#docs", deepLinking: true, displayRequestDuration: true,
                 tryItOutEnabled: true, validatorUrl: null});
"""


def assets() -> StaticFiles:
    """Serve Swagger UI's files from the ``swagger_ui`` package without importing it."""
    spec = find_spec("swagger_ui")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package swagger-ui-py is not installed")
    return StaticFiles(directory=Path(spec.origin).parent / "static")


@router.get("/docs")
def docs() -> HTMLResponse:
    return HTMLResponse(_PAGE)


@router.get("/redoc")
def reference() -> HTMLResponse:
    """The API reference for reading."""
    return HTMLResponse(_REFERENCE)


@lru_cache
def _reference_script() -> bytes:
    text = (ASSETS / "vendor" / "redoc.standalone.js").read_text(encoding="utf-8")
    return text.replace(_OUTSIDE, "/assets/icon.svg").encode()


@router.get("/docs/redoc.js")
def reference_script() -> Response:
    return Response(_reference_script(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


@router.get("/docs/start.js")
def start() -> Response:
    """The start script, in a file because the content policy forbids inline scripts."""
    return Response(_START, media_type="text/javascript")


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """The OpenAPI document, with ids of the newest demo objects as examples, so that 'Try it out' works."""
    document = request.app.openapi()
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                # Examples of query filters would hide other objects from lists.
                if parameter["in"] == "path" and parameter["name"] in _PARAMETERS:
                    parameter["example"] = _PARAMETERS[parameter["name"]]
    text = orjson.dumps(document).decode()
    for placeholder, newest in _demo_ids().items():
        text = text.replace(placeholder, newest)
    return Response(text, media_type="application/json")


def _newest(table: Any) -> sa.Select[str]:
    return sa.select(sa.func.max(table.id)).where(table.name == DEMO_NAME, table.workspace == DEFAULT_WORKSPACE)


def _demo_ids() -> dict[str, str]:
    """Return the newest id of each kind of demo object; none while the database cannot be read.

    The page is public, so it names ids only where no key is required.
    """
    try:
        if key_required():
            return {}
        with transaction() as session:
            result = {placeholder: session.scalar(_newest(table)) for placeholder, table in _PLACEHOLDERS.items()}
            kept = PrescriptionRow.workspace == DEFAULT_WORKSPACE, PrescriptionRow.posterior_id == result["post_DEMO"]
            result["pres_DEMO"] = session.scalar(sa.select(sa.func.max(PrescriptionRow.id)).where(*kept))
            hooks = sa.select(sa.func.max(WebhookRow.id)).where(WebhookRow.workspace == DEFAULT_WORKSPACE)
            result["hook_DEMO"] = session.scalar(hooks)
    except sa.exc.SQLAlchemyError:
        log.warning("the database cannot be read, so the docs page shows no ids of the demo")
        return {}
    return {placeholder: newest for placeholder, newest in result.items() if newest}
