"""What decisions cost on rows that neither taught, nor stopped, nor selected what made them.

Members hold out the rows they are judged on and are stopped by others (:mod:`bco_core.inference.vi.variational`). But
the same rows also pick the configuration, the share of the network and the policy, and the best of several looks better
than it is. So rows are judged a block at a time, under what all other blocks would have picked. Blocks are the folds of
the first partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds
from bco_core.gibbs import GibbsTarget
from bco_core.inference.vi.out_of_fold import OutOfFold, pooled
from bco_core.policies import POLICIES, RECOMMENDABLE, Terms, decide
from bco_core.problems.base import DecisionProblem
from bco_core.scenarios import Scenarios
from bco_core.select import select, share_costs


@dataclass(frozen=True)
class Views:
    """How one kind of predictor sees rows that it holds out: under every configuration that competed, with the cost of
    its averaged decisions (m,), and under the chosen one with all its members."""

    competing: list[OutOfFold]
    costs: list[Tensor]
    chosen: int
    final: OutOfFold


@dataclass(frozen=True)
class Judged:
    """Costs on ``rows`` (m,) of the sample: of every policy (m,), and of the policy that the other blocks recommend."""

    rows: Tensor
    policies: dict[str, Tensor]
    recommended: Tensor


def blocks_of(folds: Folds, rows: int) -> Tensor:
    """The block (n,) of every row: its fold in the first partition, or a block of its own where it is in none."""
    blocks = torch.full((rows,), FOLDS, dtype=torch.long)
    for number, held_out in enumerate(folds.validation[:FOLDS]):
        blocks[held_out] = number
    return blocks


def judge(target: GibbsTarget, kinds: list[Views], blocks: Tensor, generator: torch.Generator) -> Judged:
    """Judge one kind of predictor, or two that are mixed, by the costs of all policies."""
    problem, rows = target.problem, kinds[0].final.rows
    outcomes, block = target.sample.outcomes[rows], blocks[rows]
    shares = share_costs(problem, kinds[0].final.scenarios, kinds[1].final.scenarios, outcomes) if kinds[1:] else None
    policies = {name: torch.full((len(rows),), torch.nan, dtype=torch.float64) for name in POLICIES}
    for number in block.unique().tolist():
        inside, outside = block == number, block != number
        if not outside.any():
            outside = inside
        views = [_view(kind, rows, inside, outside) for kind in kinds]
        seen = views[0]
        if shares is not None:
            seen = pooled(views[0], views[1], shares.best(outside))
        costs = policy_costs(problem, seen.scenarios, outcomes[inside], generator)
        for name, values in costs.items():
            policies[name][inside] = values
    return Judged(rows, policies, _recommended(policies, block))


def _view(kind: Views, rows: Tensor, inside: Tensor, outside: Tensor) -> OutOfFold:
    """The rows inside a block as the configuration sees them that the rows outside would choose."""
    places = torch.searchsorted(kind.competing[0].rows, rows)
    choice = select([costs[places[outside]] for costs in kind.costs], [{} for _ in kind.costs]).chosen
    if choice == kind.chosen:
        return kind.final.only(inside.nonzero().flatten())
    return kind.competing[choice].only(places[inside])


def _recommended(policies: dict[str, Tensor], block: Tensor) -> Tensor:
    costs = torch.empty_like(policies[RECOMMENDABLE[0]])
    for number in block.unique().tolist():
        inside, outside = block == number, block != number
        if not outside.any():
            outside = inside
        choice = select([policies[name][outside] for name in RECOMMENDABLE], [{} for _ in RECOMMENDABLE]).chosen
        costs[inside] = policies[RECOMMENDABLE[choice]][inside]
    return costs


def policy_costs(
    problem: DecisionProblem, scenarios: Scenarios, outcomes: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Cost (m,) of every policy's decisions over scenarios for m contexts, under the outcomes (m, d_y)."""
    terms = Terms(generator)
    return {name: problem.cost(decide(problem, scenarios, name, terms).decisions, outcomes) for name in POLICIES}
