"""Logs: one JSON object a line for machines, plain lines for a terminal, each with the request or job it belongs to.

Keys and passwords are redacted wherever they occur, also in errors of libraries.
"""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

from app.settings import Settings

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
job_id: ContextVar[str | None] = ContextVar("job_id", default=None)

# An API key's secret; a password in a URL; whatever follows "Bearer" or "password=".
_SECRETS = re.compile(
    r"(bco_[0-9A-Z]{26}_)[\w-]+|(://[^:/@\s]*:)[^@/\s]+(?=@)|(\bbearer\s+)[^\s'\"]+|(\bpassword=)[^\s&'\"]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return the text without secrets."""
    return _SECRETS.sub(lambda match: next(part for part in match.groups() if part is not None) + "***", text)


def configure(settings: Settings) -> None:
    """Send this process's logs to stderr."""
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for chatty in ("alembic", "dbos", "httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _context(record: logging.LogRecord) -> dict[str, Any]:
    """Return the request or job of a line, and its fields from ``extra={"fields": …}``."""
    ids = {"request_id": request_id.get(), "job_id": job_id.get()}
    return {name: value for name, value in ids.items() if value} | getattr(record, "fields", {})


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        } | _context(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return redact(orjson.dumps(line, default=str).decode())


class PlainLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        context = " ".join(f"{name}={value}" for name, value in _context(record).items())
        return redact(super().format(record) + (f"  [{context}]" if context else ""))
