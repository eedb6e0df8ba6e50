from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Categorical, Independent, Laplace, MixtureSameFamily, Normal

from bco_core.distributions import FAMILIES, ChainDraws, Distribution, Mixture, distribution_from_arrays
from bco_core.errors import InvalidInput

TORCH = {"gaussian": Normal, "laplace": Laplace}
SCIPY = {"gaussian": stats.norm, "laplace": stats.laplace}

names = st.sampled_from(sorted(FAMILIES))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_mixture(name: str, weights: list[float], dim: int, seed: int) -> Mixture:
    draw = generator(seed)
    shape = (len(weights), dim)
    loc = torch.randn(shape, generator=draw, dtype=torch.float64)
    scale = 0.2 + torch.rand(shape, generator=draw, dtype=torch.float64)
    return Mixture(FAMILIES[name], double(*weights), loc, scale)


@given(
    name=names,
    parts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    count=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_member_contributes_its_share_of_the_draws_up_to_rounding(
    name: str, parts: list[int], count: int, seed: int
) -> None:
    weights = double(*parts) / sum(parts)
    loc = 1000 * torch.arange(len(parts), dtype=torch.float64)[:, None].expand(-1, 2)
    draws = Mixture(FAMILIES[name], weights, loc, torch.full_like(loc, 0.1)).sample(count, generator(seed))
    assert draws.shape == (count, 2)
    member = (draws / 1000).round().long()
    assert torch.equal(member[:, 0], member[:, 1])
    drawn = torch.bincount(member[:, 0], minlength=len(parts))
    for share, times in zip(parts, drawn.tolist(), strict=True):
        assert abs(times - count * share / sum(parts)) < 1 + 1e-9
        assert share or not times


def test_the_first_draws_already_mix_the_members() -> None:
    loc = torch.tensor([[0.0], [1000.0]])
    draws = Mixture(FAMILIES["gaussian"], torch.tensor([0.5, 0.5]), loc, torch.ones(2, 1)).sample(100, generator(0))
    assert 10 <= (draws[:50] > 500).sum().item() <= 40


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_draws_have_the_location_and_spread_of_their_member(name: str) -> None:
    loc, scale = double(-3.0, 0.0, 8.0), double(0.1, 1.0, 2.5)
    draws = Mixture(FAMILIES[name], double(1.0), loc[None], scale[None]).sample(40_000, generator(6))
    unit = (draws - loc) / scale
    variance = SCIPY[name].var()
    assert unit.mean(0).abs().max().item() < 5 * math.sqrt(variance / 40_000)
    assert torch.allclose(unit.var(0), torch.full((3,), variance, dtype=torch.float64), rtol=0.06)


@given(
    name=names,
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    dim=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_mixture_density_equals_that_of_torch_whether_or_not_weights_sum_to_one(
    name: str, parts: list[int], dim: int, seed: int
) -> None:
    mixture = random_mixture(name, [float(part) for part in parts], dim, seed)
    theta = 2 * torch.randn(7, dim, generator=generator(seed), dtype=torch.float64)
    members = Independent(TORCH[name](mixture.loc, mixture.scale), 1)
    expected = MixtureSameFamily(Categorical(probs=mixture.weights), members).log_prob(theta)
    assert torch.allclose(mixture.log_prob(theta), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_mixture_density_in_one_dimension_integrates_to_one(name: str) -> None:
    mixture = random_mixture(name, [0.2, 0.5, 0.3], 1, seed=0)
    kinks = sorted([-60.0, *mixture.loc.flatten().tolist(), 60.0])
    mass = sum(
        integrate.quad(lambda t: mixture.log_prob(double(t)[:, None]).exp().item(), a, b, limit=200)[0]
        for a, b in pairwise(kinks)
    )
    assert mass == pytest.approx(1, abs=1e-7)


@given(name=names, members=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_the_mode_of_equally_heavy_members_is_the_densest_location(name: str, members: int, seed: int) -> None:
    close = random_mixture(name, [1 / members] * members, 3, seed)
    apart = close.loc + 1000 * torch.arange(members)[:, None]
    mixture = Mixture(close.family, close.weights, apart, close.scale)
    assert torch.equal(mixture.mode(), apart[mixture.log_prob(apart).argmax()])


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_mode_belongs_to_the_heaviest_member_however_narrow_the_others_are(name: str) -> None:
    loc, scale = double(-5.0, 0.0, 5.0)[:, None], double(1e-6, 1.0, 0.5)[:, None]
    assert Mixture(FAMILIES[name], double(0.3, 0.4, 0.3), loc, scale).mode().tolist() == [0]
    assert Mixture(FAMILIES[name], double(0.2, 0.4, 0.4), loc, scale).mode().tolist() == [5]


@pytest.mark.parametrize(
    ("weights", "loc", "scale"),
    [((2,), (2, 3), (2, 4)), ((3,), (2, 3), (2, 3)), ((2, 1), (2, 3), (2, 3))],
)
def test_a_mixture_of_mismatched_shapes_is_refused(
    weights: tuple[int, ...], loc: tuple[int, ...], scale: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidInput, match=r"weights \(R,\), locations \(R, d\) and scales \(R, d\)"):
        Mixture(FAMILIES["gaussian"], torch.ones(weights), torch.ones(loc), torch.ones(scale))


def test_fresh_draws_of_chains_take_every_kept_draw_once_before_any_twice() -> None:
    draws = ChainDraws(torch.arange(5.0)[:, None], 2)
    taken = draws.sample(7, generator(0))[:, 0]
    assert sorted(taken[:5].tolist()) == [0, 1, 2, 3, 4]
    assert draws.mode().item() == 2


@pytest.mark.parametrize(("loc", "best"), [((5,), 0), ((5, 2), 5), ((5, 2), -1), ((0, 2), 0)])
def test_chains_without_draws_or_whose_best_is_none_of_them_are_refused(loc: tuple[int, ...], best: int) -> None:
    with pytest.raises(InvalidInput, match="the best must be one of them"):
        ChainDraws(torch.zeros(loc), best)


@pytest.mark.parametrize(
    "distribution",
    [*(random_mixture(name, [0.3, 0.7], 3, 1) for name in FAMILIES), ChainDraws(torch.arange(12.0).view(4, 3), 2)],
    ids=[*FAMILIES, "chains"],
)
def test_a_distribution_restored_from_json_and_arrays_draws_bit_identically(distribution: Distribution) -> None:
    description, arrays = distribution.to_arrays()
    restored = distribution_from_arrays(json.loads(json.dumps(description)), arrays)
    assert type(restored) is type(distribution)
    assert restored.dim == distribution.dim == 3
    assert torch.equal(restored.sample(9, generator(3)), distribution.sample(9, generator(3)))
    assert torch.equal(restored.mode(), distribution.mode())
