"""Selection of candidates by held-out cost: clear gains, stacking and boosted rules."""

from __future__ import annotations

import pytest
import torch

from bco_core.scenarios import Scenarios
from bco_core.select import ShareCosts, select, share_costs
from tests.support.nonlinear_demand import PROBLEM
from tests.support.seeds import seeded


def test_selection_leaves_the_default_only_for_a_clear_gain() -> None:
    default = torch.ones(400, dtype=torch.float64)
    noise = torch.randn(400, generator=seeded(), dtype=torch.float64)
    unclear = default - 0.01 + noise
    clear = default - 0.2 + 0.1 * noise
    better_mean_but_noisy = default - 0.04 + noise - noise.mean()
    labels = [{"name": str(index)} for index in range(3)]
    assert select([default, unclear - unclear.mean() + 0.99, better_mean_but_noisy], labels).best == 0
    assert select([default, unclear, clear], labels).best == 2
    table = select([default, unclear, clear], labels).table
    assert [row["chosen"] for row in table] == [False, False, True]
    assert table[2]["against_default"]["mean"] == pytest.approx(-0.2, abs=0.02)


def test_the_largest_of_several_clear_gains_is_chosen_at_any_position() -> None:
    default = torch.linspace(1, 2, 400, dtype=torch.float64)
    labels = [{"name": str(index)} for index in range(3)]
    assert select([default, default - 0.3, default - 0.1], labels).best == 1
    assert select([default, default - 0.1, default - 0.3], labels).best == 2


def test_stacking_finds_the_cheapest_share() -> None:
    outcomes = torch.full((50, 1), 10.0, dtype=torch.float64)
    low = Scenarios.equal(torch.full((50, 1, 1), 4.0, dtype=torch.float64), outcomes)
    high = Scenarios.equal(torch.full((50, 1, 1), 14.0, dtype=torch.float64), outcomes)
    shares = share_costs(PROBLEM, low, high, outcomes)
    assert shares.best() == pytest.approx(0.6)
    assert [row["cost"] for row in shares.table()][6] == pytest.approx(0.0)
    assert [row["share"] for row in shares.table()] == pytest.approx([step / 10 for step in range(11)])


def test_the_cheapest_share_of_a_subset_uses_only_its_rows() -> None:
    outcomes = torch.tensor([[10.0]] * 5 + [[4.0]] * 45, dtype=torch.float64)
    low = Scenarios.equal(torch.full((50, 1, 1), 4.0, dtype=torch.float64), outcomes)
    high = Scenarios.equal(torch.full((50, 1, 1), 14.0, dtype=torch.float64), outcomes)
    shares = share_costs(PROBLEM, low, high, outcomes)
    first = torch.arange(50) < 5
    assert shares.best(first) == pytest.approx(0.6)
    assert shares.best(~first) == 0.0
    assert shares.best() == 0.0


def test_a_boosted_rule_is_replaced_only_for_gains_in_both_last_stretches() -> None:
    stretches = torch.tensor([2, 2, 3, 3, 4, 4])
    # The first candidate was far better early on and worse recently.
    first, second = torch.tensor([0.0, 0, 0, 0, 9, 9]).double(), torch.full((6,), 5.0).double()
    costs = torch.stack([torch.lerp(first, second, share) for share in torch.linspace(0, 1, 11).double()])
    assert ShareCosts(costs).best() == 0.0
    assert ShareCosts(costs, stretches).best() == 1.0
    # Better in each of the last two: it is mixed in, up to a half.
    later = torch.stack([torch.lerp(first.flip(0), second, share) for share in torch.linspace(0, 1, 11).double()])
    assert ShareCosts(later, stretches).best() == 0.5
    assert ShareCosts(later, stretches).best(torch.arange(2)) == 1.0
