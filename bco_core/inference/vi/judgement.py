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
from bco_core.inference.held_out import Judged, Kept, judge_scenarios, sides
from bco_core.inference.vi.out_of_fold import OutOfFold, pooled
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


def blocks_of(folds: Folds, rows: int) -> Tensor:
    """The block (n,) of every row: its fold in the first partition, or a block of its own where it is in none."""
    blocks = torch.full((rows,), FOLDS, dtype=torch.long)
    for number, held_out in enumerate(folds.validation[:FOLDS]):
        blocks[held_out] = number
    return blocks


def judge(target: GibbsTarget, kinds: list[Views], kept: Kept, folds: Folds, generator: torch.Generator) -> Judged:
    """Judge one kind of predictor, or two that are mixed, on the rows of the history."""
    block = blocks_of(folds, len(target.sample))[kept.rows]
    shares = None
    if kinds[1:]:
        first, second = (kind.final.at(kept.rows).scenarios for kind in kinds)
        shares = share_costs(target.problem, first, second, target.sample.outcomes[kept.rows])
    seen: list[tuple[Tensor, Scenarios]] = []
    for number in block.unique().tolist():
        inside, outside = sides(block, number)
        views = [_view(kind, kept.rows, inside, outside) for kind in kinds]
        view = views[0] if shares is None else pooled(views[0], views[1], shares.best(outside))
        seen.append((inside.nonzero().flatten(), view.scenarios))
    return judge_scenarios(target, seen, kept, block, generator)


def _view(kind: Views, rows: Tensor, inside: Tensor, outside: Tensor) -> OutOfFold:
    """The rows inside a block as the configuration sees them that the rows outside would choose."""
    places = torch.searchsorted(kind.competing[0].rows, rows[outside])
    choice = select([costs[places] for costs in kind.costs], [{} for _ in kind.costs]).chosen
    view = kind.final if choice == kind.chosen else kind.competing[choice]
    return view.at(rows[inside])
