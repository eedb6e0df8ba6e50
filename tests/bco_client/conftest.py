"""A running service for the tests of the client, and a quickly learned posterior."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.commands.serve import LocalService
from app.demo import bakery_rows
from bco_client import Client, RemotePosterior

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def problem() -> dict[str, Any]:
    return {
        "kind": "newsvendor",
        "items": [
            {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6},
            {"name": "loaves", "underage_cost": 2.4, "overage_cost": 1.2},
        ],
    }


@pytest.fixture(scope="session")
def quick() -> dict[str, Any]:
    """Options that make learning take a fraction of a second."""
    inference = {"method": "vi", "members": 2, "epochs": 2, "particles": 40}
    return {"predictor": {"kind": "linear"}, "inference": inference}


@pytest.fixture(scope="session")
def history() -> list[dict[str, Any]]:
    return bakery_rows(120)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    database = f"sqlite:///{tmp_path_factory.mktemp('client') / 'bco.db'}"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BCO_")]:
            patch.delenv(name)
        with LocalService(BCO_DATABASE_URL=database, PYTHONPATH=str(ROOT)) as service:
            yield service


@pytest.fixture
def client(service: LocalService) -> Iterator[Client]:
    with Client(service.url, quiet=True) as client:
        yield client


@pytest.fixture(scope="session")
def posterior_id(service: LocalService, history: list[Any], problem: dict[str, Any], quick: dict[str, Any]) -> str:
    with Client(service.url, quiet=True) as client:
        return client.learn(history, problem, name="bakery", **quick).id


@pytest.fixture
def learned(client: Client, posterior_id: str) -> RemotePosterior:
    return client.load(posterior_id)
