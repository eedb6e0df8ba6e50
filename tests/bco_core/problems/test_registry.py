"""The registry of problem kinds, and the defaults of a minimal problem."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem, Prescription
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


class Guess(DecisionProblem):
    """A minimal problem: guess two numbers."""

    @property
    def outcome_dim(self) -> int:
        return 2

    def decide(self, outcomes: Tensor) -> Tensor:
        return outcomes

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return (decisions - outcomes).square().sum(-1)

    def prescribe(self, outcomes: Tensor, weights: Tensor, *_: object) -> Prescription:
        return self.optimal((outcomes * weights[..., None]).sum(1), outcomes, weights)


def test_a_minimal_problem_inherits_the_defaults() -> None:
    problem = Guess()
    assert (problem.decision_dim, problem.differentiable, problem.cost_bound) == (2, True, None)
    assert problem.relaxation is problem
    assert problem.cost_floor == -torch.inf
    assert problem.feasible(torch.zeros(3, 1, 2), torch.ones(4, 2)).tolist() == [[True] * 4] * 3
    found = problem.prescribe(torch.tensor([[[0.0, 0.0], [4.0, 8.0]]]), torch.tensor([0.75, 0.25]))
    assert (found.decisions.tolist(), found.objective.tolist(), found.status) == ([[1.0, 2.0]], [15.0], ["optimal"])


def test_a_missing_cost_bound_is_explained_in_the_problems_terms() -> None:
    newsvendor = build_problem({"kind": "newsvendor", "items": [{"underage_cost": 3, "overage_cost": 1}]})
    assert "maximum_order" in newsvendor.cost_bound_remedy
    assert "maximum_demand" in newsvendor.cost_bound_breach
    for words in (Guess().cost_bound_remedy, Guess().cost_bound_breach):
        assert "item" not in words
        assert "demand" not in words
