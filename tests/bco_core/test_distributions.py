"""Closed forms, sampling and storage of noise families, mixtures and chain draws."""

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
from tests.support.seeds import seeded

TORCH = {"gaussian": Normal, "laplace": Laplace}
SCIPY = {"gaussian": stats.norm, "laplace": stats.laplace}
TAIL = {"gaussian": 12.0, "laplace": 60.0}
EVEN_MOMENTS = {"gaussian": (1, 3, 15, 105), "laplace": (2, 24, 720, 40_320)}

names = st.sampled_from(sorted(FAMILIES))
locations = st.floats(-5, 5)
scales = st.floats(0.05, 5)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# families


@given(name=names, loc=locations, scale=scales, prior_scale=scales)
def test_closed_form_kl_equals_numerical_integration(name: str, loc: float, scale: float, prior_scale: float) -> None:
    def log_density(t: float, loc: float, scale: float) -> float:
        unit = abs(t - loc) / scale
        if name == "gaussian":
            return -(unit**2) / 2 - math.log(scale * math.sqrt(2 * math.pi))
        return -unit - math.log(2 * scale)

    def integrand(t: float) -> float:
        log_q = log_density(t, loc, scale)
        return math.exp(log_q) * (log_q - log_density(t, 0, prior_scale))

    kinks = sorted({loc - TAIL[name] * scale, loc, loc + TAIL[name] * scale, 0.0})
    pieces = [integrate.quad(integrand, a, b, epsabs=1e-11, limit=200)[0] for a, b in pairwise(kinks)]
    closed = FAMILIES[name].kl(double(loc), double(scale), double(prior_scale)).item()
    assert closed == pytest.approx(sum(pieces), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize(("loc", "scale", "prior_scale"), [(0.0, 0.3, 1.0), (-1.5, 0.5, 2.0), (0.7, 1.4, 0.6)])
def test_closed_form_kl_equals_its_monte_carlo_mean(name: str, loc: float, scale: float, prior_scale: float) -> None:
    family = FAMILIES[name]
    theta = loc + scale * family.noise((200_000,), seeded(3), torch.float64)
    gaps = TORCH[name](loc, scale).log_prob(theta) - TORCH[name](0.0, prior_scale).log_prob(theta)
    closed = family.kl(double(loc), double(scale), double(prior_scale)).item()
    standard_error = gaps.std().item() / math.sqrt(len(gaps))
    assert abs(closed - gaps.mean().item()) < 4 * standard_error


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("draws", [1, 3])
def test_the_gradient_of_risk_plus_kl_equals_autograd(name: str, draws: int) -> None:
    family, draw, members, dim = FAMILIES[name], seeded(5), 4, 257
    # Scales from 1e-6 to 20 and locations from 1e-8 to 100: near and far from the prior, and where exp(−|μ|/σ)
    # underflows.
    loc = 10 ** torch.linspace(-8, 2, members * dim).view(members, dim)[:, torch.randperm(dim, generator=draw)]
    loc = loc * torch.randn(loc.shape, generator=draw).sign()
    scale = 10 ** torch.linspace(-6, 1.3, dim).expand(members, dim)
    noise = torch.randn(members, draws, dim, generator=draw)
    by_theta = torch.randn(members, draws, dim, generator=draw)
    prior, kl_weight = torch.tensor(0.3), torch.tensor([1e-6, 1e-3, 0.5, 2.0])
    found = family.gradient(by_theta, noise, loc, scale.contiguous(), prior, kl_weight)

    rho = (scale.double() + torch.log(-torch.expm1(-scale.double()))).requires_grad_()
    mean = loc.double().requires_grad_()
    sigma = torch.nn.functional.softplus(rho, threshold=50)
    objective = ((mean[:, None] + sigma[:, None] * noise) * by_theta).sum()
    objective = objective + (kl_weight * family.kl(mean, sigma, prior.double()).sum(dim=1)).sum()
    expected = torch.stack(torch.autograd.grad(objective, (mean, rho)))
    assert torch.allclose(found.double(), expected, rtol=2e-5, atol=2e-6)


@given(name=names, loc=locations, scale=scales, prior_scale=scales)
def test_kl_is_positive_away_from_the_prior_and_zero_at_it(
    name: str, loc: float, scale: float, prior_scale: float
) -> None:
    kl = FAMILIES[name].kl
    assert kl(double(0.0), double(prior_scale), double(prior_scale)).abs().item() < 1e-15
    assert kl(double(loc), double(scale), double(prior_scale)).item() > -1e-14
    assert kl(double(loc + math.copysign(0.1, loc)), double(scale), double(prior_scale)).item() > 1e-5


@given(name=names, theta=st.floats(-20, 20), loc=locations, scale=scales)
def test_log_density_equals_torch(name: str, theta: float, loc: float, scale: float) -> None:
    ours = FAMILIES[name].log_prob(double(theta), double(loc), double(scale))
    assert ours.item() == pytest.approx(
        TORCH[name](double(loc), double(scale)).log_prob(double(theta)).item(), abs=1e-9
    )


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_follows_the_standard_distribution_of_its_family(name: str, dtype: torch.dtype) -> None:
    noise = FAMILIES[name].noise((400, 250), seeded(1), dtype)
    assert noise.dtype == dtype
    values, even = noise.double().flatten(), EVEN_MOMENTS[name]
    for power, moment in ((1, 0), (2, even[0]), (3, 0), (4, even[1])):
        standard_error = math.sqrt((even[power - 1] - moment**2) / len(values))
        assert abs((values**power).mean().item() - moment) < 4 * standard_error
    assert stats.kstest(values.numpy(), SCIPY[name](0, 1).cdf).pvalue > 0.01


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_noise_is_reproduced_by_its_seed(name: str) -> None:
    first, again, other = (FAMILIES[name].noise((9,), seeded(seed), torch.float32) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("uniform", [0.0, 0.5])
def test_laplace_noise_is_finite_at_the_ends_and_middle_of_the_unit_interval(
    dtype: torch.dtype, uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def constant(numbers: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
        return numbers.fill_(low + uniform * (high - low))

    monkeypatch.setattr(torch.Tensor, "uniform_", constant)
    noise = FAMILIES["laplace"].noise((3,), seeded(0), dtype)
    assert torch.isfinite(noise).all()
    assert (noise == 0).all() == (uniform == 0.5)


# distributions over parameters


def random_mixture(name: str, weights: list[float], dim: int, seed: int) -> Mixture:
    draw = seeded(seed)
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
    draws = Mixture(FAMILIES[name], weights, loc, torch.full_like(loc, 0.1)).sample(count, seeded(seed))
    assert draws.shape == (count, 2)
    member = (draws / 1000).round().long()
    assert torch.equal(member[:, 0], member[:, 1])
    counts = torch.bincount(member[:, 0], minlength=len(parts))
    for share, times in zip(parts, counts.tolist(), strict=True):
        assert abs(times - count * share / sum(parts)) < 1 + 1e-9
        assert share or not times


def test_the_first_draws_come_from_all_members() -> None:
    loc = torch.tensor([[0.0], [1000.0]])
    draws = Mixture(FAMILIES["gaussian"], torch.tensor([0.5, 0.5]), loc, torch.ones(2, 1)).sample(100, seeded(0))
    assert 10 <= (draws[:50] > 500).sum().item() <= 40


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_draws_have_the_location_and_spread_of_their_member(name: str) -> None:
    loc, scale = double(-3.0, 0.0, 8.0), double(0.1, 1.0, 2.5)
    draws = Mixture(FAMILIES[name], double(1.0), loc[None], scale[None]).sample(40_000, seeded(6))
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
def test_mixture_density_equals_torch_also_for_unnormalised_weights(
    name: str, parts: list[int], dim: int, seed: int
) -> None:
    mixture = random_mixture(name, [float(part) for part in parts], dim, seed)
    theta = 2 * torch.randn(7, dim, generator=seeded(seed), dtype=torch.float64)
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
def test_the_mode_belongs_to_the_heaviest_member_even_if_others_are_narrow(name: str) -> None:
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


def test_fresh_draws_of_chains_use_every_stored_draw_before_repeating_any() -> None:
    draws = ChainDraws(torch.arange(5.0)[:, None], 2)
    first_column = draws.sample(7, seeded(0))[:, 0]
    assert sorted(first_column[:5].tolist()) == [0, 1, 2, 3, 4]
    assert draws.mode().item() == 2


@pytest.mark.parametrize(("loc", "best"), [((5,), 0), ((5, 2), 5), ((5, 2), -1), ((0, 2), 0)])
def test_chains_without_draws_or_with_a_best_index_out_of_range_are_refused(loc: tuple[int, ...], best: int) -> None:
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
    assert torch.equal(restored.sample(9, seeded(3)), distribution.sample(9, seeded(3)))
    assert torch.equal(restored.mode(), distribution.mode())
