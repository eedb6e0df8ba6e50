"""The asynchronous client has the methods of the blocking one, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from bco_client import AsyncClient, AsyncRemotePosterior, Client, PosteriorRecord, RemotePosterior
from bco_client.records import read

RESOURCES = ("Aliases", "Datasets", "Jobs", "Posteriors", "Prescriptions", "Problems")
POSTERIOR = read(
    PosteriorRecord,
    {
        "id": "post_1",
        "name": "bakery",
        "created_at": "2026-01-01T00:00:00Z",
        "problem_id": "prob_1",
        "policy": "averaged",
        "particles": 200,
        "digest": "0",
        "quality": "ok",
        "reason": "",
    },
)


def pairs() -> list[Any]:
    blocking, asynchronous = Client(), AsyncClient()
    resources = [(getattr(blocking, name.lower()), getattr(asynchronous, name.lower())) for name in RESOURCES]
    return [
        (blocking, asynchronous),
        (RemotePosterior(blocking, POSTERIOR), AsyncRemotePosterior(asynchronous, POSTERIOR)),
        *resources,
    ]


def methods(instance: Any) -> dict[str, Any]:
    return {
        name: getattr(instance, name) for name in dir(instance) if name[0] != "_" and callable(getattr(instance, name))
    }


@pytest.mark.parametrize(("blocking", "asynchronous"), pairs(), ids=lambda instance: type(instance).__name__)
def test_both_clients_have_the_same_methods_arguments_and_docstrings(blocking: Any, asynchronous: Any) -> None:
    blocking_methods, asynchronous_methods = methods(blocking), methods(asynchronous)
    assert list(blocking_methods) == list(asynchronous_methods)
    assert blocking_methods
    for name, method in blocking_methods.items():
        assert inspect.iscoroutinefunction(asynchronous_methods[name]), name
        assert not inspect.iscoroutinefunction(method), name
        parameters = inspect.signature(method).parameters.items()
        assert list(parameters) == list(inspect.signature(asynchronous_methods[name]).parameters.items()), name
        assert method.__doc__ == asynchronous_methods[name].__doc__


def test_both_clients_have_the_same_constructor_and_resources() -> None:
    blocking, asynchronous = (inspect.signature(kind).parameters for kind in (Client, AsyncClient))
    assert list(blocking) == list(asynchronous)
    resources = [
        {name: type(value).__name__ for name, value in vars(client).items() if name[0] != "_"}
        for client in (Client(), AsyncClient())
    ]
    assert resources[0] == resources[1] == {name.lower(): name for name in RESOURCES}


def test_help_shows_the_arguments_and_the_result() -> None:
    signature = inspect.signature(Client().datasets.get)
    assert str(signature) == "(dataset_id: 'str') -> 'DatasetRecord'"
