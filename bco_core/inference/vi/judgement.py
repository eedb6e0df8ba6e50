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
from bco_core.policies import POLICIES, RECOMMENDABLE, Terms, decide_over
from bco_core.predictive import History, predictive_scenarios
from bco_core.scenarios import Scenarios, expected_cost
from bco_core.select import select, share_costs

_ATOMS = 100


@dataclass(frozen=True)
class Views:
    """How one kind of predictor sees rows that it holds out: under every configuration that competed, with the cost of
    its averaged decisions (m,), and under the chosen one with all its members."""

    competing: list[OutOfFold]
    costs: list[Tensor]
    chosen: int
    final: OutOfFold


@dataclass(frozen=True)
class Kept:
    """The history that a posterior keeps, and which ``rows`` (H,) of the sample it is made of, in its order."""

    history: History
    rows: Tensor


@dataclass(frozen=True)
class Judged:
    """What policies do on ``rows`` (m,) of the sample: cost (m,) and decisions (m, d_z) of each, and of the policy that
    the other blocks recommend; ``atoms`` are what may happen on each row, made without it."""

    rows: Tensor
    costs: dict[str, Tensor]
    decisions: dict[str, Tensor]
    recommended: str
    recommended_costs: Tensor
    recommended_decisions: Tensor
    atoms: Scenarios

    def under(self, policy: str | None) -> Judged:
        """The same with a policy of the caller's choice."""
        if policy is None:
            return self
        chosen = self.costs[policy], self.decisions[policy]
        return Judged(self.rows, self.costs, self.decisions, policy, *chosen, self.atoms)


def blocks_of(folds: Folds, rows: int) -> Tensor:
    """The block (n,) of every row: its fold in the first partition, or a block of its own where it is in none."""
    blocks = torch.full((rows,), FOLDS, dtype=torch.long)
    for number, held_out in enumerate(folds.validation[:FOLDS]):
        blocks[held_out] = number
    return blocks


def judge(target: GibbsTarget, kinds: list[Views], kept: Kept, folds: Folds, generator: torch.Generator) -> Judged:
    """Judge one kind of predictor, or two that are mixed, on the rows of the history."""
    problem, final = target.problem, kinds[0].final
    places = torch.searchsorted(final.rows, kept.rows)
    outcomes, block = target.sample.outcomes[kept.rows], blocks_of(folds, len(target.sample))[kept.rows]
    shares = None
    if kinds[1:]:
        first, second = (kind.final.only(places).scenarios for kind in kinds)
        shares = share_costs(problem, first, second, outcomes)
    seen: list[tuple[Tensor, Scenarios]] = []
    for number in block.unique().tolist():
        inside, outside = _sides(block, number)
        views = [_view(kind, kept.rows, inside, outside) for kind in kinds]
        view = views[0] if shares is None else pooled(views[0], views[1], shares.best(outside))
        seen.append((inside.nonzero().flatten(), view.scenarios))
    return judge_scenarios(target, seen, kept, block, outcomes, generator)


def judge_scenarios(
    target: GibbsTarget,
    seen: list[tuple[Tensor, Scenarios]],
    kept: Kept,
    block: Tensor,
    outcomes: Tensor,
    generator: torch.Generator,
) -> Judged:
    """Judge every policy over scenarios that are given for groups of the history's rows, by their places in it."""
    problem, terms = target.problem, Terms(generator)
    count = len(kept.rows)
    decisions = {name: torch.empty(count, problem.decision_dim, dtype=torch.float64) for name in POLICIES}
    atoms = torch.empty(count, _ATOMS, problem.outcome_dim, dtype=torch.float64)
    features = target.features[kept.rows]
    for places, scenarios in seen:
        what = predictive_scenarios(kept.history, scenarios.mean(), _ATOMS, features[places], own=places)
        atoms[places] = what.outcomes
        for name in POLICIES:
            decisions[name][places] = decide_over(problem, scenarios, what, name, terms).decisions.double()
    costs = {name: problem.cost(values, outcomes) for name, values in decisions.items()}
    chosen = select([costs[name] for name in RECOMMENDABLE], [{} for _ in RECOMMENDABLE]).chosen
    best_costs, best_decisions = costs[RECOMMENDABLE[0]].clone(), decisions[RECOMMENDABLE[0]].clone()
    for number in block.unique().tolist():
        inside, outside = _sides(block, number)
        name = RECOMMENDABLE[select([costs[one][outside] for one in RECOMMENDABLE], [{} for _ in RECOMMENDABLE]).chosen]
        best_costs[inside], best_decisions[inside] = costs[name][inside], decisions[name][inside]
    mode = torch.cat([scenarios.mode for _, scenarios in seen])
    return Judged(
        kept.rows,
        costs,
        decisions,
        RECOMMENDABLE[chosen],
        best_costs,
        best_decisions,
        Scenarios.equal(atoms, mode),
    )


def promised_costs(target: GibbsTarget, judged: Judged) -> Tensor:
    """What each judged decision was expected to cost, (m,)."""
    return expected_cost(target.problem, judged.recommended_decisions, judged.atoms)


def _sides(block: Tensor, number: int) -> tuple[Tensor, Tensor]:
    inside, outside = block == number, block != number
    return inside, outside if outside.any() else inside


def _view(kind: Views, rows: Tensor, inside: Tensor, outside: Tensor) -> OutOfFold:
    """The rows inside a block as the configuration sees them that the rows outside would choose."""
    places = torch.searchsorted(kind.competing[0].rows, rows)
    choice = select([costs[places[outside]] for costs in kind.costs], [{} for _ in kind.costs]).chosen
    if choice == kind.chosen:
        return kind.final.only(torch.searchsorted(kind.final.rows, rows[inside]))
    return kind.competing[choice].only(places[inside])
