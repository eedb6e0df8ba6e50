"""Leave-one-out by reweighting draws, against posteriors computed without the row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bco_core.data import Sample
from bco_core.inference.mh.diagnostics import leave_one_out
from tests.support.nonlinear_demand import PROBLEM, target_of

Array = np.ndarray[Any, Any]
ROWS, LAMBDA = 8, 6.0


def make_sample() -> Sample:
    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(ROWS, 1))
    return Sample(torch.from_numpy(contexts), torch.from_numpy(50 + 10 * contexts + 4 * rng.normal(size=(ROWS, 1))))


SAMPLE = make_sample()
TARGET = target_of("linear", SAMPLE)
# The parameter space: five points of equal prior weight.
POINTS = torch.tensor([[s, b] for s, b in [(0.5, 0.0), (0.9, 0.1), (1.0, -0.3), (0.0, 0.4), (-0.5, 0.2)]]).double()


def plain_costs() -> Array:
    """Return the scaled newsvendor cost (K, n) of each point on each row."""
    x, y = SAMPLE.contexts.numpy()[:, 0], SAMPLE.outcomes.numpy()[:, 0]
    unit = (x - x.mean()) / x.std()
    predicted = y.mean() + y.std() * (POINTS.numpy()[:, :1] * unit + POINTS.numpy()[:, 1:])
    return (3 * (y - predicted).clip(0) + (predicted - y).clip(0)) / TARGET.cost_scale


def posterior(rows: Array) -> Array:
    """Return the exact weights (K,) of the points given some rows, each with λ = LAMBDA / n of all."""
    log = -LAMBDA / ROWS * plain_costs()[:, rows].sum(axis=1)
    weights: Array = np.exp(log - log.max())
    return weights / weights.sum()


def copies(count: int) -> tuple[torch.Tensor, Array]:
    """Return draws of the full posterior, each point in proportion to its weight, and those shares."""
    times = np.maximum((posterior(np.arange(ROWS)) * count).round().astype(int), 1)
    return POINTS[torch.from_numpy(np.repeat(np.arange(len(POINTS)), times))], times / times.sum()


def test_leave_one_out_equals_the_posterior_without_the_row() -> None:
    draws, shares = copies(20_000)
    found = leave_one_out(TARGET, torch.arange(ROWS), draws, LAMBDA)
    predicted = TARGET.predictor.predict(POINTS, SAMPLE.contexts)[..., 0].numpy()
    for row in range(ROWS):
        exact = posterior(np.delete(np.arange(ROWS), row))
        # The only error is rounding to whole draws.
        assert found.predictions[row].item() == pytest.approx(float(exact @ predicted[:, row]), rel=1e-3)
        reweighted = shares * np.exp(LAMBDA / ROWS * plain_costs()[:, row])
        np.testing.assert_allclose(reweighted / reweighted.sum(), exact, rtol=0.02)
        atoms = found.scenarios.outcomes[row, :, 0].numpy()
        held = np.array([np.isclose(atoms, value, atol=1e-6).mean() for value in predicted[:, row]])
        np.testing.assert_allclose(held, exact, atol=1.5 / len(atoms))
    torch.testing.assert_close(found.scenarios.mode, found.predictions)


def test_the_smallest_effective_number_of_draws_is_reported() -> None:
    draws, shares = copies(1000)
    found = leave_one_out(TARGET, torch.arange(ROWS), draws, LAMBDA)
    counts = shares * len(draws)
    effective = []
    for row in range(ROWS):
        each = np.repeat(np.exp(LAMBDA / ROWS * plain_costs()[:, row]), counts.round().astype(int))
        each = each.clip(max=math.sqrt(len(draws)) * each.mean())
        effective.append(each.sum() ** 2 / np.square(each).sum())
    assert found.effective == pytest.approx(min(effective), rel=1e-6)


def test_weights_are_truncated_at_root_n_times_their_mean() -> None:
    """One draw in a hundred with all the weight is truncated to ten times the mean."""
    good, odd = POINTS[1:2], torch.tensor([[0.0, 40.0]], dtype=torch.float64)
    draws = torch.cat([good.expand(99, -1), odd])
    row = torch.tensor([0])
    found = leave_one_out(TARGET, row, draws, 1e4)
    both = TARGET.predictor.predict(torch.cat([good, odd]), SAMPLE.contexts[:1])[:, 0]
    costs = PROBLEM.cost(both, SAMPLE.outcomes[0]) / TARGET.cost_scale * 1e4 / ROWS
    assert costs[1] - costs[0] > 100, "without the cut, all of the weight"
    mean = 1 / 100
    cut = math.sqrt(100) * mean
    share = cut / (cut + 99 * math.exp(-(costs[1] - costs[0]).item()))
    assert found.predictions.item() == pytest.approx(share * both[1].item() + (1 - share) * both[0].item(), rel=1e-6)
    # A draw of e times the others' weight is not truncated.
    mild = leave_one_out(TARGET, row, draws, 1e4 / (costs[1] - costs[0]).item())
    share = math.e / (math.e + 99)
    assert mild.predictions.item() == pytest.approx(share * both[1].item() + (1 - share) * both[0].item(), rel=1e-6)


def test_rows_are_returned_in_the_requested_order() -> None:
    draws, _ = copies(200)
    order = torch.tensor([5, 0, 3])
    some, all_of_them = (leave_one_out(TARGET, rows, draws, LAMBDA) for rows in (order, torch.arange(ROWS)))
    torch.testing.assert_close(some.predictions, all_of_them.predictions[order])
    torch.testing.assert_close(some.scenarios.outcomes, all_of_them.scenarios.outcomes[order])
