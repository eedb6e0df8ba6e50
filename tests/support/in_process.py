"""The application in this process, connected to one database at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app import solving
from app.db.engine import get_engine
from app.jobs.queue import client as job_client
from app.settings import Settings, get_settings
from tests.support.shared_template import ForkedTemplate, first_template

DATABASES = ("sqlite", "postgresql")


def read_settings() -> None:
    """Read the settings again, until the cache holds them. A thread that started earlier may still store the old
    ones."""
    now = Settings()
    while get_settings() != now:
        get_settings.cache_clear()


def forget_caches() -> None:
    """Reset the objects cached for the process: settings, engine and job client."""
    if get_engine.cache_info().currsize:
        get_engine().dispose()
    for cached in (get_settings, get_engine, job_client):
        cached.cache_clear()


@contextmanager
def service_on(url: str, **environment: str) -> Iterator[None]:
    """Connect the application in this process to a database, with optional settings."""
    # Otherwise the first request that needs a solver process would wait for its imports, and time out.
    first_template()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "Template", ForkedTemplate)
        for name in Settings.model_fields:
            patch.delenv(f"BCO_{name.upper()}", raising=False)
        for name, value in {"BCO_DATABASE_URL": url, **environment}.items():
            patch.setenv(name, value)
        forget_caches()
        read_settings()
        try:
            yield
        finally:
            forget_caches()
