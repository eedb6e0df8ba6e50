"""Cross-validation of fold mixtures: out-of-fold views of rows, and nested judgement of decisions.

The out-of-fold view of a row holds the predictions of the members that did not learn from it. Selection and judgement
use these views.

Members hold out the rows they are judged on and are stopped by others (:mod:`bco_core.inference.vi.variational`). But
the same rows also select the configuration, the share of the network and the policy, and the best of several looks
better than it is. So rows are judged one block at a time, under the selection of all other blocks, which is nested
cross-validation. Blocks are the folds of the first partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds
from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.held_out import PolicyResults, StoredHistory, judge_policies, sides
from bco_core.inference.vi.variational import member_scenarios
from bco_core.policies import decide, first_policy
from bco_core.scenarios import Scenarios
from bco_core.select import ShareCosts, select, share_costs
from bco_core.timeline import blocks

OUT_OF_FOLD_DRAWS = 16


@dataclass(frozen=True)
class OutOfFoldView:
    """Scenarios for ``rows`` (m,) of the sample from the members that held them out, with equal weights."""

    rows: Tensor
    scenarios: Scenarios

    def at(self, rows: Tensor) -> OutOfFoldView:
        """Return the view of some of its rows, by their numbers in the sample."""
        places, seen = torch.searchsorted(self.rows, rows), self.scenarios
        return OutOfFoldView(rows, Scenarios(seen.outcomes[places], seen.weights, seen.mode[places]))


def out_of_fold(target: GibbsTarget, folds: Folds, mixture: Mixture, generator: torch.Generator) -> OutOfFoldView:
    """Return the view of every row that each full partition holds out, by draws of the members that did not see it."""
    members, size = folds.validation.shape
    partitions = max(1, members // FOLDS)
    used = min(members, partitions * FOLDS)
    noise = mixture.family.noise((used, OUT_OF_FOLD_DRAWS, mixture.dim), generator, mixture.loc.dtype)
    held_out, encoded = folds.validation[:used], target.encoded(mixture.loc.dtype)
    seen = member_scenarios(target, held_out, encoded, mixture.loc[:used], mixture.scale[:used], noise)

    count, outcome_dim = len(target.sample), target.predictor.outcome_dim
    partition = torch.arange(used).repeat_interleave(size) // FOLDS
    atoms = torch.full((count, partitions, OUT_OF_FOLD_DRAWS, outcome_dim), torch.nan, dtype=torch.float64)
    modes = torch.full((count, partitions, outcome_dim), torch.nan, dtype=torch.float64)
    atoms[held_out.flatten(), partition] = seen.outcomes
    modes[held_out.flatten(), partition] = seen.mode
    rows = (~modes.isnan().any(dim=2).any(dim=1)).nonzero().flatten()
    return OutOfFoldView(rows, Scenarios.equal(atoms[rows].flatten(1, 2), modes[rows, 0]))


def averaged_costs(target: GibbsTarget, seen: OutOfFoldView) -> Tensor:
    """Return the cost (m,) of the default policy's decisions on each row of the view."""
    decisions = decide(target.problem, seen.scenarios, first_policy(target.problem)).decisions
    return target.problem.cost(decisions, target.sample.outcomes[seen.rows])


def pool_views(first: OutOfFoldView, second: OutOfFoldView, share: float) -> OutOfFoldView:
    """Return the view of the mixture that gives ``share`` of its weight to ``second``."""
    parts = (first.scenarios, 1 - share), (second.scenarios, share)
    outcomes = torch.cat([scenarios.outcomes for scenarios, _ in parts], dim=1)
    weights = torch.cat([scenarios.weights * part for scenarios, part in parts])
    # Like the mixture's own mode: that of the heavier class and, of equals, the one of fewer dimensions.
    mode = (second if share > 0.5 else first).scenarios.mode
    return OutOfFoldView(first.rows, Scenarios(outcomes, weights, mode))


@dataclass(frozen=True)
class CandidateViews:
    """Out-of-fold views of one kind of predictor: ``by_configuration``, with ``costs`` (m,) of its decisions,
    and ``final``, under the chosen one with all its members."""

    by_configuration: list[OutOfFoldView]
    costs: list[Tensor]
    chosen: int
    final: OutOfFoldView
    target: GibbsTarget | None = None


def stretches_of(target: GibbsTarget, rows: Tensor) -> Tensor | None:
    """Return the blocks of time (m,) of some rows if the target is a residual model of a boosted rule, else None.

    A boosted rule improves with more rows relative to others, so a candidate that did better in some stretches of time
    may not do so in the next.
    """
    timeline, departs = target.sample.timeline, target.predictor.features.bases is not None
    return None if timeline is None or not departs else blocks(timeline)[rows]


def blocks_of(folds: Folds, rows: int) -> Tensor:
    """Return the block (n,) of every row: its fold in the first partition, or one more block if it is in none."""
    blocks = torch.full((rows,), FOLDS, dtype=torch.long)
    for number, held_out in enumerate(folds.validation[:FOLDS]):
        blocks[held_out] = number
    return blocks


def judge_nested(
    target: GibbsTarget, kinds: list[CandidateViews], stored: StoredHistory, folds: Folds, generator: torch.Generator
) -> PolicyResults:
    """Judge one kind of predictor, or several that are mixed one after another, on the rows of the history."""
    block = blocks_of(folds, len(target.sample))[stored.rows]
    outcomes, mixed = target.sample.outcomes[stored.rows], kinds[0].final.at(stored.rows)
    shares: list[ShareCosts] = []
    for kind in kinds[1:]:
        other = kind.final.at(stored.rows)
        stretches = None if kind.target is None else stretches_of(kind.target, stored.rows)
        shares.append(share_costs(target.problem, mixed.scenarios, other.scenarios, outcomes, stretches))
        mixed = pool_views(mixed, other, shares[-1].best())
    seen: list[tuple[Tensor, Scenarios]] = []
    for number in block.unique().tolist():
        inside, outside = sides(block, number)
        views = [_view(kind, stored.rows, inside, outside) for kind in kinds]
        view = views[0]
        for other, costs in zip(views[1:], shares, strict=True):
            view = pool_views(view, other, costs.best(outside))
        seen.append((inside.nonzero().flatten(), view.scenarios))
    return judge_policies(target, seen, stored, block, generator)


def _view(kind: CandidateViews, rows: Tensor, inside: Tensor, outside: Tensor) -> OutOfFoldView:
    """Return the view of the rows inside a block under the configuration that the rows outside select."""
    places = torch.searchsorted(kind.by_configuration[0].rows, rows[outside])
    choice = select([costs[places] for costs in kind.costs], [{} for _ in kind.costs]).best
    view = kind.final if choice == kind.chosen else kind.by_configuration[choice]
    return view.at(rows[inside])
