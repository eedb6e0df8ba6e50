"""Thinning of draws to support points."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bco_core.inference.mh.thinning import support_points


def energy_distance(distances: Tensor, chosen: Tensor) -> float:
    """Return the energy distance between the chosen (K,) and all N points, from distances (N, N)."""
    between = distances[chosen].mean()
    return (2 * between - distances[chosen][:, chosen].mean() - distances.mean()).item()


def cloud(count: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    two = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    two[: count // 4] += torch.tensor([6.0, 0.0, 0.0])
    return two


@pytest.mark.parametrize("count", [1, 5, 20, 60])
def test_support_points_have_lower_energy_distance_than_random_draws(count: int) -> None:
    points = cloud()
    distances = torch.cdist(points, points)
    chosen = support_points(points, count)
    assert len(set(chosen.tolist())) == count
    generator = torch.Generator().manual_seed(1)
    at_random = [energy_distance(distances, torch.randperm(400, generator=generator)[:count]) for _ in range(20)]
    assert energy_distance(distances, chosen) < min(at_random)


def test_all_points_are_their_own_support_points() -> None:
    points = cloud(30)
    assert sorted(support_points(points, 50).tolist()) == list(range(30))
    distances = torch.cdist(points, points)
    assert energy_distance(distances, torch.arange(30)) == pytest.approx(0, abs=1e-12)


def test_the_first_support_points_cover_both_clusters() -> None:
    points = cloud()
    far = points[support_points(points, 40)[:8], 0] > 3
    assert 1 <= int(far.sum()) <= 4
