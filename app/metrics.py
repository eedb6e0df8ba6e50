"""Metrics for Prometheus at ``/metrics``: requests of this process, and all jobs in the database."""

from __future__ import annotations

import logging
import os
from collections import Counter as TallyOf
from collections.abc import Iterator, Sequence
from datetime import timedelta

import sqlalchemy as sa
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.metrics_core import GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.db.base import now
from app.db.engine import transaction
from app.db.tables import JobRow, WorkerRow
from bco_core.status import HIGHS, Status

log = logging.getLogger(__name__)

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_JOB_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_ENDED = ("succeeded", "failed", "cancelled")
_RECENT = timedelta(hours=1)

REQUESTS = Counter("bco_requests", "Requests answered, by route and status", ["method", "route", "status"])
REQUEST_SECONDS = Histogram("bco_request_seconds", "Time to answer, by route", ["method", "route"], buckets=_SECONDS)
REFUSED_CONNECTIONS = Counter("bco_refused_connections", "Connections that exceeded a limit, by which", ["reason"])
CACHE = Counter("bco_posterior_cache", "Posteriors and draws found in memory (hit) or not (miss)", ["result"])
PRESCRIPTIONS = Counter(
    "bco_prescriptions",
    "Decisions, by status of the solve and by solver",
    [
        "status",
        "solver",
    ],
)
FALLBACKS = Counter("bco_solver_fallbacks", "Decisions that the fast solver left to HiGHS, or that are a best effort")
CALLS_PER_BATCH = Histogram(
    "bco_prescriptions_together", "Prescribe calls decided in one batch", buckets=(1, 2, 4, 8, 16, 32, 64)
)
IN_FLIGHT = Gauge("bco_prescriptions_in_flight", "Prescribe calls running or waiting", multiprocess_mode="livesum")
LOGGED = Counter(
    "bco_logged_prescriptions",
    "Answers by whether they were logged, or why not: tried on a page, above the rate, too large, queue full, lost",
    ["result"],
)
LOG_WAITING = Gauge(
    "bco_logged_prescriptions_waiting", "Answers that wait to be written to the log", multiprocess_mode="livesum"
)


def count_prescriptions(statuses: Sequence[str], solvers: Sequence[str]) -> None:
    """Count decisions by status and solver; those not optimal, or solved by HiGHS, are fallbacks."""
    counts = TallyOf(zip(statuses, solvers or ["formula"] * len(statuses), strict=True))
    for (status, solver), number in counts.items():
        PRESCRIPTIONS.labels(status, solver).inc(number)
        if solver == HIGHS or status != Status.OPTIMAL:
            FALLBACKS.inc(number)


def counted_prescriptions() -> list[tuple[str, str, int]]:
    """Return the decisions of this process since the last call: status, solver and number."""
    samples = [one for metric in PRESCRIPTIONS.collect() for one in metric.samples if one.name.endswith("_total")]
    PRESCRIPTIONS.clear()
    return [(one.labels["status"], one.labels["solver"], int(one.value)) for one in samples]


def exposition() -> bytes:
    """Return this process's metrics or, if it is one of several, those of all of them."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    registry.register(_Jobs())
    return generate_latest(registry)


class _Jobs(Collector):
    """The queue at this moment, and the running times of the jobs of the last hour."""

    def describe(self) -> list[Metric]:
        # Registering must not read a database that may not exist yet.
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            yield from _jobs()
        except sa.exc.SQLAlchemyError:
            log.warning("the database cannot be read, so job metrics are left out")


def _jobs() -> list[Metric]:
    job = JobRow
    ended = sa.select(job.state, job.started_at, job.finished_at)
    ended = ended.where(job.finished_at > now() - _RECENT, job.started_at.is_not(None))
    with transaction() as session:
        count = dict(session.execute(sa.select(job.state, sa.func.count()).group_by(job.state)).all())
        oldest = session.scalar(sa.select(sa.func.min(job.created_at)).where(job.state == "queued"))
        recent = session.execute(ended).all()
        workers = session.scalar(sa.select(sa.func.count()).select_from(WorkerRow)) or 0
    waited = 0.0 if oldest is None else (now() - oldest).total_seconds()
    jobs = GaugeMetricFamily("bco_jobs", "Jobs in the database, by state", labels=["state"])
    lasted = GaugeHistogramMetricFamily(
        "bco_job_seconds", "Running time of the jobs that ended in the last hour", labels=["state"]
    )
    for state in ("queued", "running", *_ENDED):
        jobs.add_metric([state], count.get(state, 0))
    for state in _ENDED:
        seconds = [
            (end - start).total_seconds() for ended_as, start, end in recent if ended_as == state and start and end
        ]
        buckets = [(str(float(limit)), float(sum(s <= limit for s in seconds))) for limit in _JOB_SECONDS]
        lasted.add_metric([state], [*buckets, ("+Inf", float(len(seconds)))], sum(seconds))
    return [
        jobs,
        GaugeMetricFamily("bco_queue_depth", "Jobs that wait for a worker", value=count.get("queued", 0)),
        GaugeMetricFamily("bco_queue_oldest_seconds", "Waiting time of the job that waits longest", value=waited),
        GaugeMetricFamily("bco_workers", "Workers with a heartbeat", value=workers),
        lasted,
    ]


REGISTRY.register(_Jobs())
