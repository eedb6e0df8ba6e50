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
    one, other = Client(), AsyncClient()
    resources = [(getattr(one, name.lower()), getattr(other, name.lower())) for name in RESOURCES]
    return [(one, other), (RemotePosterior(one, POSTERIOR), AsyncRemotePosterior(other, POSTERIOR)), *resources]


def methods(instance: Any) -> dict[str, Any]:
    return {
        name: getattr(instance, name) for name in dir(instance) if name[0] != "_" and callable(getattr(instance, name))
    }


@pytest.mark.parametrize(("one", "other"), pairs(), ids=lambda instance: type(instance).__name__)
def test_both_have_the_same_methods_with_the_same_arguments_and_words(one: Any, other: Any) -> None:
    mine, theirs = methods(one), methods(other)
    assert list(mine) == list(theirs)
    assert mine
    for name, method in mine.items():
        assert inspect.iscoroutinefunction(theirs[name]), name
        assert not inspect.iscoroutinefunction(method), name
        same = inspect.signature(method).parameters.items()
        assert list(same) == list(inspect.signature(theirs[name]).parameters.items()), name
        assert method.__doc__ == theirs[name].__doc__


def test_both_are_made_alike_and_have_the_same_resources() -> None:
    one, other = (inspect.signature(kind).parameters for kind in (Client, AsyncClient))
    assert list(one) == list(other)
    resources = [
        {name: type(value).__name__ for name, value in vars(client).items() if name[0] != "_"}
        for client in (Client(), AsyncClient())
    ]
    assert resources[0] == resources[1] == {name.lower(): name for name in RESOURCES}


def test_help_shows_the_arguments_and_the_result() -> None:
    signature = inspect.signature(Client().datasets.get)
    assert str(signature) == "(dataset_id: 'str') -> 'DatasetRecord'"
