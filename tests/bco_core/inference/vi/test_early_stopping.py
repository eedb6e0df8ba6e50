"""Early stopping, selection and judgement use different rows: no row judges a decision that it influenced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bco_core.data import Folds, Sample
from bco_core.gibbs import GibbsTarget
from bco_core.inference.held_out import StoredHistory
from bco_core.inference.vi.cross_validation import CandidateViews, OutOfFoldView, blocks_of, judge_nested
from bco_core.inference.vi.method import _stop_inside
from bco_core.inference.vi.variational import VariationalFit, VariationalOptions, fit_variational
from bco_core.policies import RECOMMENDABLE
from bco_core.predictive import Carrier, History
from bco_core.scenarios import Scenarios
from tests.support.nonlinear_demand import PROBLEM, target_of
from tests.support.seeds import seeded

MEMBERS, TAUGHT, FOLD = 4, 40, 12
# All members learn from the first rows. Each holds out its own rows, which train no member, so that their outcomes
# affect early stopping only.
APART = Folds(torch.arange(TAUGHT).repeat(MEMBERS, 1), TAUGHT + torch.arange(MEMBERS * FOLD).view(MEMBERS, FOLD))
# No member leaves the batch early: the time at which most peers stop depends slightly on all rows.
OPTIONS = VariationalOptions(
    kl_weight=1e-4,
    policy="averaged",
    epochs=25,
    patience=25,
    batch_size=16,
    learning_rate=0.05,
    initial_scale=0.05,
    peers=MEMBERS,
)


def make_target(changed: int | None = None, seed: int = 0) -> GibbsTarget:
    """Return a linear target with noise, where the outcomes held out by the ``changed`` member are shifted far down."""
    draw = seeded(seed)
    contexts = torch.randn(TAUGHT + MEMBERS * FOLD, 6, generator=draw, dtype=torch.float64)
    outcomes = 100 + 10 * contexts[:, :1] + 20 * torch.randn(len(contexts), 1, generator=draw, dtype=torch.float64)
    target = target_of("linear", Sample(contexts, outcomes))
    if changed is not None:
        outcomes = outcomes.clone()
        outcomes[APART.validation[changed]] = 60 - 30 * contexts[APART.validation[changed], :1]
        target = replace(target, sample=Sample(contexts, outcomes))
    return target


def fit_members(target: GibbsTarget, options: VariationalOptions, folds: Folds = APART) -> VariationalFit:
    return fit_variational(target, folds, options, seeded(3))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("member", range(MEMBERS))
def test_a_members_fit_does_not_depend_on_its_held_out_outcomes(member: int, seed: int) -> None:
    plain, changed = (fit_members(make_target(one, seed), OPTIONS) for one in (None, member))
    assert changed.best_epochs[member] == plain.best_epochs[member]
    assert torch.equal(changed.mixture.loc[member], plain.mixture.loc[member])
    assert torch.equal(changed.mixture.scale[member], plain.mixture.scale[member])


def test_a_members_held_out_rows_stop_the_others() -> None:
    plain, changed = (fit_members(make_target(one), OPTIONS) for one in (None, 1))
    assert changed.best_epochs != plain.best_epochs


def test_a_member_that_stops_on_its_own_held_out_rows_depends_on_them() -> None:
    alone = replace(OPTIONS, peers=1)
    plain, changed = (fit_members(make_target(one), alone) for one in (None, 1))
    assert changed.best_epochs[1] != plain.best_epochs[1]
    others = [0, 2, 3]
    assert [changed.best_epochs[other] for other in others] == [plain.best_epochs[other] for other in others]


def test_rows_held_out_by_two_members_stop_neither() -> None:
    shared = Folds(APART.train[:3], APART.validation[torch.tensor([0, 1, 0])])
    options, moved = replace(OPTIONS, peers=3), []
    for seed in range(3):
        plain, changed = (fit_members(make_target(one, seed), options, shared) for one in (None, 0))
        for member in (0, 2):
            assert torch.equal(changed.mixture.loc[member], plain.mixture.loc[member])
        moved.append(changed.best_epochs[1] != plain.best_epochs[1])
    assert any(moved), "the one that does not hold them out is stopped by them"


def test_configurations_in_one_batch_stop_separately() -> None:
    twice = Folds(APART.train.repeat(2, 1), APART.validation.repeat(2, 1))
    endless = replace(OPTIONS, patience=1000, epochs=20)
    rates = torch.tensor([0.05] * MEMBERS + [0.001] * MEMBERS)
    both = fit_variational(make_target(), twice, replace(endless, learning_rate=rates), seeded(3))
    slow, quick = both.best_epochs[MEMBERS:], both.best_epochs[:MEMBERS]
    assert min(slow) > max(quick)


def test_a_single_member_stops_on_rows_used_for_neither_training_nor_judgement() -> None:
    inside = _stop_inside(APART[1:2])
    taught, stopping, judged = (
        set(rows[0].tolist()) for rows in (inside.train, inside.validation, APART.validation[1:2])
    )
    assert len(stopping) == TAUGHT // 10
    assert taught | stopping == set(range(TAUGHT))
    assert taught & stopping == set()
    assert (taught | stopping) & judged == set()


# judgement


ROWS = 200


def views(costs_of: Tensor, levels: tuple[float, ...], outcomes: Tensor) -> CandidateViews:
    """Return configurations whose decisions are off by ``levels`` on every row, with the costs (m,) reported for
    each."""
    seen = [
        OutOfFoldView(
            torch.arange(ROWS), Scenarios.equal((outcomes + level)[:, None].expand(-1, 4, -1), outcomes + level)
        )
        for level in levels
    ]
    return CandidateViews(seen, list(costs_of), 0, seen[0])


def judged_costs(outcomes: Tensor, costs_of: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Return the judged cost of the blocks' decisions, row by row."""
    target = target_of("linear", Sample(torch.zeros(ROWS, 1, dtype=torch.float64), outcomes))
    unit = torch.ones(1, dtype=torch.float64)
    history = History(outcomes, outcomes, unit, Carrier("shift", None, unit))
    kept = StoredHistory(history, torch.arange(ROWS), [], 0.0)
    folds = Folds(torch.empty(5, 0, dtype=torch.long), torch.arange(ROWS).view(5, -1))
    return judge_nested(target, [views(costs_of, levels, outcomes)], kept, folds, seeded()).policy_costs


def test_a_block_is_judged_with_the_configuration_chosen_on_other_blocks() -> None:
    outcomes = 100 + torch.randn(ROWS, 1, generator=seeded(1), dtype=torch.float64)
    noise = 0.1 * torch.randn(2, ROWS, generator=seeded(2), dtype=torch.float64)
    costs = 10 + noise
    first = torch.arange(ROWS) < ROWS // 5
    # The second configuration is far better in the first block alone, and a little worse in all others.
    costs[1, first] -= 9
    costs[1, ~first] += 1
    found = judged_costs(outcomes, costs, (0.0, 5.0))
    over = PROBLEM.cost(outcomes + 5.0, outcomes)
    # All other blocks see the first one's gain and choose the second configuration; the first block does not.
    assert costs[1].mean() < costs[0].mean()
    torch.testing.assert_close(found[first], torch.zeros(int(first.sum())).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(found[~first], over[~first])


@pytest.mark.parametrize("block", range(5))
def test_the_choice_for_a_block_does_not_depend_on_its_rows(block: int) -> None:
    outcomes = 100 + torch.randn(ROWS, 1, generator=seeded(1), dtype=torch.float64)
    costs = 10 + torch.randn(3, ROWS, generator=seeded(3), dtype=torch.float64)
    inside = torch.arange(ROWS) // (ROWS // 5) == block
    levels = (0.0, 3.0, 7.0)
    plain = judged_costs(outcomes, costs, levels)
    for favourite in range(3):
        flattered = costs.clone()
        flattered[favourite, inside] -= 100
        assert torch.equal(judged_costs(outcomes, flattered, levels)[inside], plain[inside])


def test_blocks_are_the_first_partitions_folds_and_one_for_the_rest() -> None:
    folds = Folds(torch.empty(7, 0, dtype=torch.long), torch.tensor([[r, r + 5] for r in range(5)] + [[0, 1], [2, 3]]))
    assert blocks_of(folds, 12).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 5]


def test_the_policy_of_a_block_is_recommended_by_the_other_blocks() -> None:
    """Draws are off in the first block only, where hedging over predictive scenarios would be far better."""
    outcomes = 100 + 10 * torch.randn(ROWS, 1, generator=seeded(4), dtype=torch.float64)
    target = target_of("linear", Sample(torch.zeros(ROWS, 1, dtype=torch.float64), outcomes))
    unit = torch.ones(1, dtype=torch.float64)
    middle = torch.full_like(outcomes, 100.0)
    history = History(middle, outcomes, unit, Carrier("shift", None, unit))
    kept = StoredHistory(history, torch.arange(ROWS), [], 0.0)
    folds = Folds(torch.empty(5, 0, dtype=torch.long), torch.arange(ROWS).view(5, -1))
    first = (torch.arange(ROWS) < ROWS // 5)[:, None]
    # Predictions are exact except in the first block.
    draws = torch.where(first, middle, outcomes)[:, None].expand(-1, 4, -1)
    seen = OutOfFoldView(torch.arange(ROWS), Scenarios.equal(draws, draws[:, 0]))
    costs = torch.ones(ROWS, dtype=torch.float64)
    found = judge_nested(target, [CandidateViews([seen], [costs], 0, seen)], kept, folds, seeded())
    inside = first.flatten()
    predictive, averaged = found.costs["predictive"], found.costs["averaged"]
    assert predictive[inside].mean() < 0.9 * averaged[inside].mean()
    assert found.policy in RECOMMENDABLE
    torch.testing.assert_close(found.policy_costs[inside], averaged[inside])
