"""Calibration against its definitions: counts of where outcomes lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bco_core.calibration import BINS, LEVELS, calibrate
from bco_core.predictive import Carrier, History
from tests.support.predictive_history import leave_one_out, make_history


@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize(("carry", "bandwidth"), [("shift", None), ("shift", 0.3), ("keep", 0.2)])
def test_coverage_and_pit_count_outcomes_among_leave_one_out_scenarios(
    items: int, carry: str, bandwidth: float | None
) -> None:
    history, features = make_history(items, carry, bandwidth)
    found = calibrate(history, features)
    places: list[float] = []
    for row in range(len(history)):
        atoms, shares = leave_one_out(history, row)
        for item in range(items):
            truth = history.outcomes[row, item].item()
            below, equal = shares[atoms[:, item] < truth].sum(), shares[atoms[:, item] == truth].sum()
            places.append(min(float(below + 0.5 * equal), 1.0))
    counts, _ = np.histogram(places, bins=BINS, range=(0, 1))
    assert found.pit == pytest.approx((counts / len(places)).tolist(), abs=1e-6)
    inside = {str(level): np.mean([abs(place - 0.5) <= level / 2 for place in places]) for level in LEVELS}
    assert found.coverage == pytest.approx(inside)
    assert (found.rows, found.carry, found.bandwidth) == (60, carry, bandwidth)


@pytest.mark.parametrize("chances", [[1.0], [0.97, 0.03], [0.6, 0.3, 0.1], [0.2] * 5])
def test_discrete_outcomes_from_the_right_distribution_look_calibrated(chances: list[float]) -> None:
    """Constant, rare, zero-inflated or few-valued: despite ties, ranges have their stated coverage."""
    rows = 300
    counts = (torch.tensor(chances, dtype=torch.float64) * rows).round().long()
    outcomes = torch.arange(len(chances)).repeat_interleave(counts).double()[:, None]
    carrier = Carrier("keep", None, torch.ones(1, dtype=torch.float64))
    found = calibrate(History(torch.zeros_like(outcomes), outcomes, torch.ones(1), carrier), torch.zeros(rows, 1))
    assert found.coverage == pytest.approx({str(level): level for level in LEVELS}, abs=0.01)
    assert found.pit == pytest.approx([1 / BINS] * BINS, abs=0.01)


def test_a_tie_counts_for_every_rank_it_covers() -> None:
    """Among three others, outcome 1 has one below and one tie, 0 has none below, and 2 has all below."""
    outcomes = torch.tensor([[0.0], [1.0], [1.0], [2.0]], dtype=torch.float64)
    carrier = Carrier("keep", None, torch.ones(1, dtype=torch.float64))
    found = calibrate(History(torch.zeros_like(outcomes), outcomes, torch.ones(1), carrier), torch.zeros(4, 1))
    # PIT values 0 and 1, and twice uniform on 1/3 to 2/3.
    middle = [0.5 * 3 * max(0.0, min((k + 1) / 10, 2 / 3) - max(k / 10, 1 / 3)) for k in range(10)]
    assert found.pit == pytest.approx([0.25 * (k in (0, 9)) + middle[k] for k in range(10)], abs=1e-9)
    assert found.coverage["0.5"] == pytest.approx(0.5)


def test_the_constant_score_is_the_score_of_unconditional_outcomes() -> None:
    history, features = make_history(1, "shift", None)
    outcomes = history.outcomes[:, 0].numpy()
    expected = []
    for row, truth in enumerate(outcomes):
        others = np.delete(outcomes, row)
        pairs = np.abs(others[:, None] - others[None]).mean()
        expected.append((np.abs(others - truth).mean() - 0.5 * pairs) / history.spread.item())
    assert calibrate(history, features).constant_score == pytest.approx(float(np.mean(expected)))
