"""What the blocking client can do, the asynchronous one can do too, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from bco_client import AsyncClient, AsyncLearned, Client, Learned
from bco_client import aio as asynchronous
from bco_client import client as blocking

RESOURCES = ("Aliases", "Datasets", "Jobs", "Posteriors", "Prescriptions", "Problems")
PAIRS = [
    (Client, AsyncClient),
    (Learned, AsyncLearned),
    *((getattr(blocking, name), getattr(asynchronous, f"Async{name}")) for name in RESOURCES),
]


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_have_the_same_methods_with_the_same_arguments_and_words(one: type[Any], other: type[Any]) -> None:
    mine, theirs = public(one), public(other)
    assert list(mine) == list(theirs)
    assert mine
    for name, method in mine.items():
        if isinstance(method, property):
            assert isinstance(theirs[name], property)
            continue
        assert inspect.iscoroutinefunction(theirs[name]), name
        assert not inspect.iscoroutinefunction(method), name
        same = inspect.signature(method).parameters.items()
        assert list(same) == list(inspect.signature(theirs[name]).parameters.items()), name
        assert method.__doc__ == theirs[name].__doc__


def test_both_are_made_alike_and_have_the_same_resources() -> None:
    one, other = (inspect.signature(kind).parameters for kind in (Client, AsyncClient))
    assert list(one) == list(other)
    found = [
        {name: type(value).__name__.removeprefix("Async") for name, value in vars(made).items() if name[0] != "_"}
        for made in (Client(), AsyncClient())
    ]
    assert found[0] == found[1] == {name.lower(): name for name in RESOURCES}


def test_help_shows_the_arguments_and_the_result() -> None:
    signature = inspect.signature(Client().datasets.get)
    assert str(signature) == "(dataset_id: 'str') -> 'Dataset'"
