"""The HTTP application: routers, middleware and state."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import torch
from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse

from app import metrics, solving
from app.aliases.router import router as aliases
from app.aliases.service import FRESH_SECONDS
from app.datasets.router import router as datasets
from app.db.engine import get_engine
from app.http import errors
from app.http.health import is_ready
from app.http.middleware import BodyLimit, RequestRecord
from app.http.routes import refuse_unknown_query
from app.http.security import Admin, Authentication, LookupCache, TokenBucket
from app.jobs import events
from app.jobs.router import batch_router as batches
from app.jobs.router import router as jobs
from app.jobs.status import router as status
from app.log.router import router as prescription_log
from app.log.writer import Writer
from app.model_files.router import router as model_files
from app.pages import api_client, docs, home
from app.pages import backtests as backtest_pages
from app.pages import datasets as dataset_pages
from app.pages import jobs as job_pages
from app.pages import log as log_pages
from app.pages.decide import page as decide_pages
from app.pages.error_pages import ErrorPages
from app.pages.posteriors import page as posterior_pages
from app.pages.problems import page as problem_pages
from app.posteriors.router import router as posteriors
from app.prescriptions import cache
from app.prescriptions.admission import AdmissionLimit
from app.prescriptions.batching import Batcher
from app.prescriptions.fast_path import FastPath
from app.prescriptions.offload import slow_calls
from app.prescriptions.router import router as prescriptions
from app.problems.router import router as problems
from app.settings import get_settings
from app.tracing import telemetry
from app.webhooks.router import router as webhooks

log = logging.getLogger(__name__)

# Threads for prescriptions only, so that many of them do not delay other requests.
PRESCRIBERS = 8
CHECKERS = 2

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
    problem: dict[str, Any] = {"model": errors.ErrorBody, "content": {"application/problem+json": {}}}
    app = FastAPI(
        title="BCO Service",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_lifespan,
        telemetry=telemetry(),
        # Generated clients name their functions by these: create_dataset, list_jobs, prescribe.
        generate_unique_id_function=lambda route: route.name,
        responses=dict.fromkeys(("400", "401", "403", "404", "409", "413", "422", "429", "500", "503"), problem),
    )
    _prepare_state(app)
    errors.install(app)
    api_client.install(app)
    # The last one added is the first to see a request.
    app.add_middleware(FastPath, of=app)
    app.add_middleware(
        BodyLimit, max_bytes=settings.max_body_mb * 1_000_000, max_total_bytes=settings.max_bodies_mb * 1_000_000
    )
    app.add_middleware(Authentication, lookups=app.state.lookups, buckets=app.state.buckets)
    app.add_middleware(RequestRecord)
    app.add_middleware(ErrorPages)
    for router in (
        problems,
        model_files,
        datasets,
        jobs,
        posteriors,
        aliases,
        prescriptions,
        prescription_log,
        batches,
        webhooks,
        status,
    ):
        app.include_router(router, dependencies=[Depends(refuse_unknown_query)])
    for pages in (
        docs,
        home,
        dataset_pages,
        problem_pages,
        job_pages,
        posterior_pages,
        decide_pages,
        backtest_pages,
        log_pages,
    ):
        app.include_router(pages.router)
    app.mount("/docs/assets", docs.assets())
    app.mount("/assets", home.assets())

    @app.get("/livez", tags=["health"], response_class=PlainTextResponse)
    async def check_alive() -> str:
        """The process answers."""
        return "ok"

    @app.get("/readyz", tags=["health"], response_class=PlainTextResponse)
    def check_ready() -> str:
        """The database answers, can be written and has the tables that this version needs."""
        if not is_ready(app.state):
            raise errors.UnavailableError("the database cannot be used; is it running, and has 'bco migrate' been run?")
        return "ok"

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    def read_metrics(caller: Admin) -> str:
        """For Prometheus: requests, latencies, the queue, jobs, caches and solvers."""
        return metrics.exposition().decode()

    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Write the log of prescriptions and end the solver processes when the service stops."""
    yield
    await anyio.to_thread.run_sync(app.state.log.close)
    await anyio.to_thread.run_sync(app.state.solvers.close)


def _prepare_state(app: FastAPI) -> None:
    """Create the state that requests of this application share."""
    state, settings = app.state, get_settings()
    # create the engine now, before two threads do so at once
    get_engine()
    buckets: dict[str, TokenBucket] = {}
    # lookups of keys, and their rates
    state.lookups, state.buckets = LookupCache(), buckets
    # lookups of aliases
    state.aliases = LookupCache(FRESH_SECONDS)
    # loaded posteriors; places, threads and turns of prescribe calls
    state.posteriors = cache.cache_from_settings()
    state.admission = AdmissionLimit(settings.max_prescriptions, settings.max_workspace_prescriptions)
    state.prescribers = anyio.CapacityLimiter(PRESCRIBERS)
    state.batcher = Batcher(settings.max_batched_contexts, state.prescribers)
    # answers on their way into the log
    state.log = Writer()
    # calls that took long lately, and the processes they go to
    state.slow, state.solvers = slow_calls(), solving.from_settings()
    # threads that check new problems; few, because they keep the interpreter busy
    state.checkers = anyio.CapacityLimiter(CHECKERS)
    # polls of jobs that clients follow; whether the server is stopping
    state.poll_limiter = anyio.CapacityLimiter(events.MOST_POLLS)
    state.stopping = lambda: False
    # when old idempotent answers were last removed; when the disk was last full
    state.swept_at, state.full_at = -math.inf, -math.inf
    # identity of the database file, to notice when it is replaced
    state.database_file = None
