"""The package exports what a library user needs, and the example in its docstring works."""

from __future__ import annotations

import doctest
import inspect

import pytest

import bco_core


@pytest.mark.parametrize("name", bco_core.__all__)
def test_every_export_is_importable_and_documented(name: str) -> None:
    exported = getattr(bco_core, name)
    assert exported.__name__ == name
    # A dataclass without a docstring gets its signature as docstring.
    assert not inspect.getdoc(exported).startswith(f"{name}(")


def test_exports_are_sorted_and_unique() -> None:
    names = bco_core.__all__
    assert sorted(set(names), key=lambda name: (name.islower(), name)) == names


def test_every_error_of_the_core_is_exported() -> None:
    errors = {name for name, kind in vars(bco_core.errors).items() if isinstance(kind, type) and name != "annotations"}
    assert errors <= set(bco_core.__all__)


def test_the_example_in_the_docstring_works() -> None:
    results = doctest.testmod(bco_core)
    assert (results.failed, results.attempted) == (0, 7)
