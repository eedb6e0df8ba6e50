"""The HTTP application."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import sqlalchemy as sa
import torch
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from app import metrics
from app.datasets.router import router as datasets
from app.db import outage
from app.db.engine import get_engine
from app.db.migrate import is_current
from app.http import errors
from app.http.middleware import BodyLimit, RequestRecord
from app.http.security import Admin, Guard
from app.jobs import events
from app.jobs.batch_router import router as batches
from app.jobs.router import router as jobs
from app.pages.router import assets
from app.pages.router import router as pages
from app.posteriors.router import router as posteriors
from app.prescriptions.router import router as prescriptions
from app.problems.router import router as problems
from app.settings import get_settings
from app.tracing import telemetry

log = logging.getLogger(__name__)

DESCRIPTION = """
Prescriptions under uncertainty: send history and a decision problem, get back decisions that hedge.

1. **POST /v1/problems** – what you decide and what it costs.
2. **POST /v1/datasets** – what happened before: contexts and outcomes.
3. **POST /v1/jobs** – learn a posterior; follow it at **GET /v1/jobs/{id}**.
4. **POST /v1/posteriors/{id}/prescribe** – a decision for each new context, in milliseconds.

Errors are `application/problem+json` with a JSON pointer to what was wrong and a sentence on what would be right.
"""


def create_app() -> FastAPI:
    settings = get_settings()
    torch.set_num_threads(settings.threads)
    problem: dict[str, Any] = {"model": errors.Problem, "content": {"application/problem+json": {}}}
    app = FastAPI(
        title="BCO Service",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=telemetry(),
        responses=dict.fromkeys(("400", "401", "403", "404", "409", "413", "422", "429", "500", "503"), problem),
    )
    app.state.lookers = anyio.CapacityLimiter(events.LOOKERS)
    app.state.turns = asyncio.Semaphore(1)
    app.state.stopping = lambda: False
    errors.install(app)
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_mb * 1_000_000)
    app.add_middleware(Guard)
    app.add_middleware(RequestRecord)
    for router in (problems, datasets, jobs, posteriors, prescriptions, batches, pages):
        app.include_router(router)
    app.mount("/docs/assets", assets())

    @app.get("/livez", tags=["health"], response_class=PlainTextResponse)
    def livez() -> str:
        """The process answers."""
        return "ok"

    @app.get("/readyz", tags=["health"], response_class=PlainTextResponse)
    def readyz() -> str:
        """The database answers, takes what is written and has the tables this version needs."""
        try:
            ready = is_current(get_engine()) and not outage.full_lately()
        except sa.exc.SQLAlchemyError as error:
            log.warning("not ready: %s", outage.in_words(error))
            ready = False
        if not ready:
            raise errors.Unavailable("the database cannot be used; is it running, and has 'bco migrate' been run?")
        return "ok"

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    def read_metrics(caller: Admin) -> str:
        """For Prometheus: requests, latencies, the queue, jobs, caches and solvers."""
        return metrics.exposition().decode()

    return app
