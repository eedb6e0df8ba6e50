"""Traces are sent to OTEL_EXPORTER_OTLP_ENDPOINT, and nowhere without it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from app import tracing
from app.commands.serve import free_port
from tests.support.polling import wait_until


class Collector(ThreadingHTTPServer):
    """OTLP collector that accepts every post."""

    def __init__(self) -> None:
        received = self.received = list[tuple[str, bytes]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


def test_a_request_is_traced_to_the_collector(tmp_path: Path) -> None:
    collector, port = Collector(), free_port()
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    environment = os.environ | {
        "BCO_DATABASE_URL": f"sqlite:///{tmp_path / 'bco.db'}",
        "BCO_PORT": str(port),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    api = subprocess.Popen((sys.executable, "-m", "app.commands.cli", "api"), env=environment)
    try:

        def is_traced() -> bool:
            assert api.poll() is None
            with suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/livez")
            return any(path == "/v1/traces" and b"/livez" in body for path, body in collector.received)

        wait_until("a trace comes", is_traced)
    finally:
        api.terminate()
        api.wait(60)
        collector.shutdown()
        collector.server_close()


def test_without_an_endpoint_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert tracing.telemetry()["auto_configure"] is False


def test_without_the_tracing_packages_a_message_names_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setattr(tracing, "_PACKAGES", ("opentelemetry.not_there", "nor.this"))
    assert tracing.telemetry()["auto_configure"] is False
    (line,) = caplog.messages
    assert "bco-service[otel]" in line
