"""Estimates: means with standard errors, and paired differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bco_core.estimates import estimate, paired_difference


def test_an_estimate_is_the_mean_with_the_sample_standard_error() -> None:
    values = np.random.default_rng(0).normal(3, 2, size=40)
    result = estimate(torch.from_numpy(values))
    assert result.mean == pytest.approx(values.mean())
    assert result.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(40))


def test_a_single_observation_has_an_infinite_standard_error() -> None:
    result = estimate(torch.tensor([4.0]))
    assert (result.mean, result.standard_error) == (4, math.inf)


def test_cheaper_decisions_have_a_negative_difference() -> None:
    difference = paired_difference(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([2.0, 4.0, 9.0]))
    assert difference.mean == pytest.approx(-2)
    assert difference.standard_error == pytest.approx(1 / math.sqrt(3))


def test_shared_noise_does_not_widen_a_paired_difference() -> None:
    shared = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100
    difference = paired_difference(shared - 1, shared)
    assert difference.mean == pytest.approx(-1)
    assert difference.standard_error < 1e-12
