"""The out-of-fold view: every row as the members see it that did not learn from it. Selection and judgement use it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds
from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.vi.variational import member_scenarios
from bco_core.policies import decide, first_policy
from bco_core.scenarios import Scenarios

OUT_OF_FOLD_DRAWS = 16


@dataclass(frozen=True)
class OutOfFold:
    """Scenarios for ``rows`` (m,) of the sample from the members that held them out, with equal weights."""

    rows: Tensor
    scenarios: Scenarios

    def at(self, rows: Tensor) -> OutOfFold:
        """The view of some of its rows, by their numbers in the sample."""
        places, seen = torch.searchsorted(self.rows, rows), self.scenarios
        return OutOfFold(rows, Scenarios(seen.outcomes[places], seen.weights, seen.mode[places]))


def out_of_fold(target: GibbsTarget, folds: Folds, mixture: Mixture, generator: torch.Generator) -> OutOfFold:
    """Judge every row that each full partition of the folds holds out, by draws of the members that did not see it."""
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
    return OutOfFold(rows, Scenarios.equal(atoms[rows].flatten(1, 2), modes[rows, 0]))


def averaged_costs(target: GibbsTarget, seen: OutOfFold) -> Tensor:
    """What averaged decisions, or those of the problem's own first policy, cost on each row of the view (m,)."""
    decisions = decide(target.problem, seen.scenarios, first_policy(target.problem)).decisions
    return target.problem.cost(decisions, target.sample.outcomes[seen.rows])


def pooled(first: OutOfFold, second: OutOfFold, share: float) -> OutOfFold:
    """Out-of-fold scenarios of the mixture that gives ``share`` of its weight to ``second``."""
    parts = (first.scenarios, 1 - share), (second.scenarios, share)
    outcomes = torch.cat([scenarios.outcomes for scenarios, _ in parts], dim=1)
    weights = torch.cat([scenarios.weights * part for scenarios, part in parts])
    # As the mixture's own mode: the heavier class, and of equals the one of fewer dimensions, which is denser.
    mode = (second if share > 0.5 else first).scenarios.mode
    return OutOfFold(first.rows, Scenarios(outcomes, weights, mode))
