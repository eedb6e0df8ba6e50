"""What problems may say of a decision besides its cost, asked of anything that keeps the protocol.

Each function has an answer of its own for a problem that has none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bco_core.problems.base import Breach, DecisionProblem, Price, Problem


def promises(problem: DecisionProblem) -> bool:
    """Whether decisions promise something of what may happen."""
    return bool(getattr(problem, "promises", False))


def missed(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor, weights: Tensor) -> list[str]:
    """What each of the decisions (B, d_z) clearly misses of its promises over outcomes (B, K, d_y), if any promises."""
    if not promises(problem):
        return []
    sentences: list[str] = problem.missed(decisions, outcomes, weights, sure=False)  # type: ignore[attr-defined]
    return sentences


def breaches(problem: DecisionProblem, decision: Tensor) -> list[Breach]:
    """What a decision (d_z,) breaks that no outcome has a say in, as far as the problem can tell."""
    if not hasattr(problem, "breaches"):
        return []
    found: list[Breach] = problem.breaches(decision)
    return found


def prices(problem: DecisionProblem, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
    """The prices of the rules that bind a decision (d_z,) over outcomes (K, d_y), weights (K,), if it knows them."""
    if not hasattr(problem, "prices"):
        return []
    found: list[Price] = problem.prices(decision, outcomes, weights)
    return found


def covered(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> Tensor | None:
    """Whether each outcome is served by decisions (..., d_z), bool (..., d_y), if that means anything here."""
    if not hasattr(problem, "covered"):
        return None
    served: Tensor | None = problem.covered(decisions, outcomes)
    return served


def has_facts(problem: DecisionProblem) -> bool:
    """Whether the problem has more to say of its decisions than what they cost."""
    return getattr(type(problem), "facts", Problem.facts) is not Problem.facts


def facts(problem: DecisionProblem, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
    """What else the problem says of a decision (d_z,) over outcomes (K, d_y) with weights (K,), by name."""
    if not hasattr(problem, "facts"):
        return {}
    found: dict[str, Any] = problem.facts(decision, outcomes, weights)
    return found
