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
from bco_core.select import ShareCosts, select, share_costs
from bco_core.timeline import blocks


@dataclass(frozen=True)
class Views:
    """How one kind of predictor sees rows that it holds out: under every configuration that competed, with the cost of
    its averaged decisions (m,), and under the chosen one with all its members."""

    competing: list[OutOfFold]
    costs: list[Tensor]
    chosen: int
    final: OutOfFold
    target: GibbsTarget | None = None


def stretches_of(target: GibbsTarget, rows: Tensor) -> Tensor | None:
    """The block of time (m,) of some rows, where what is mixed in departs from a boosted rule; None elsewhere.

    The more a boosted rule has learned from, the better it becomes beside others, so that of what did better in some
    stretches little may be left in the next.
    """
    timeline, departs = target.sample.timeline, target.predictor.features.bases is not None
    return None if timeline is None or not departs else blocks(timeline)[rows]


def blocks_of(folds: Folds, rows: int) -> Tensor:
    """The block (n,) of every row: its fold in the first partition, or a block of its own where it is in none."""
    blocks = torch.full((rows,), FOLDS, dtype=torch.long)
    for number, held_out in enumerate(folds.validation[:FOLDS]):
        blocks[held_out] = number
    return blocks


def judge(target: GibbsTarget, kinds: list[Views], kept: Kept, folds: Folds, generator: torch.Generator) -> Judged:
    """Judge one kind of predictor, or several that are mixed one after the other, on the rows of the history."""
    block = blocks_of(folds, len(target.sample))[kept.rows]
    outcomes, mixed = target.sample.outcomes[kept.rows], kinds[0].final.at(kept.rows)
    shares: list[ShareCosts] = []
    for kind in kinds[1:]:
        other = kind.final.at(kept.rows)
        stretches = None if kind.target is None else stretches_of(kind.target, kept.rows)
        shares.append(share_costs(target.problem, mixed.scenarios, other.scenarios, outcomes, stretches))
        mixed = pooled(mixed, other, shares[-1].best())
    seen: list[tuple[Tensor, Scenarios]] = []
    for number in block.unique().tolist():
        inside, outside = sides(block, number)
        views = [_view(kind, kept.rows, inside, outside) for kind in kinds]
        view = views[0]
        for other, costs in zip(views[1:], shares, strict=True):
            view = pooled(view, other, costs.best(outside))
        seen.append((inside.nonzero().flatten(), view.scenarios))
    return judge_scenarios(target, seen, kept, block, generator)


def _view(kind: Views, rows: Tensor, inside: Tensor, outside: Tensor) -> OutOfFold:
    """The rows inside a block as the configuration sees them that the rows outside would choose."""
    places = torch.searchsorted(kind.competing[0].rows, rows[outside])
    choice = select([costs[places] for costs in kind.costs], [{} for _ in kind.costs]).chosen
    view = kind.final if choice == kind.chosen else kind.competing[choice]
    return view.at(rows[inside])
