"""OpenTelemetry, switched on by OTEL_EXPORTER_OTLP_ENDPOINT; FastAPI sends traces and metrics."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec

from fastapi.telemetry import TelemetryConfig

log = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def telemetry() -> TelemetryConfig:
    """Return FastAPI's configuration: export if an endpoint is set and the packages are installed."""
    wanted = bool(os.environ.get(_ENDPOINT))
    if wanted and not all(_is_installed(name) for name in _PACKAGES):
        log.warning("%s is set, but nothing is sent: install the extra, pip install 'bco-service[otel]'", _ENDPOINT)
        wanted = False
    return {"auto_configure": wanted, "tracing": wanted, "metrics": wanted, "logs": False}


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
