from __future__ import annotations

from typing import Any

import pytest

from bco_core.errors import InvalidInput
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.registry import build_problem


def test_a_specification_becomes_the_problem_of_its_kind() -> None:
    problem = build_problem({"kind": "newsvendor", "items": [{"underage_cost": 3, "overage_cost": 1}]})
    assert isinstance(problem, Newsvendor)
    assert (problem.underage.tolist(), problem.overage.tolist()) == ([3], [1])


@pytest.mark.parametrize("spec", [{}, {"kind": None}, {"kind": "lottery"}])
def test_an_unknown_kind_is_refused_with_the_known_ones(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"the problem kind must be one of .*newsvendor") as refusal:
        build_problem(spec)
    assert refusal.value.where == ("kind",)
