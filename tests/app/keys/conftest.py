"""Look up keys in the database on every request."""

from __future__ import annotations

import pytest

from app.http import security


@pytest.fixture(autouse=True)
def _no_key_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "CACHE_SECONDS", 0.0)
