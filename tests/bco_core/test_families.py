from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Laplace, Normal

from bco_core.distributions import FAMILIES

TORCH = {"gaussian": Normal, "laplace": Laplace}
SCIPY = {"gaussian": stats.norm, "laplace": stats.laplace}
TAIL = {"gaussian": 12.0, "laplace": 60.0}
EVEN_MOMENTS = {"gaussian": (1, 3, 15, 105), "laplace": (2, 24, 720, 40_320)}

names = st.sampled_from(sorted(FAMILIES))
locations = st.floats(-5, 5)
scales = st.floats(0.05, 5)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
    theta = loc + scale * family.noise((200_000,), generator(3), torch.float64)
    gaps = TORCH[name](loc, scale).log_prob(theta) - TORCH[name](0.0, prior_scale).log_prob(theta)
    closed = family.kl(double(loc), double(scale), double(prior_scale)).item()
    standard_error = gaps.std().item() / math.sqrt(len(gaps))
    assert abs(closed - gaps.mean().item()) < 4 * standard_error


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("draws", [1, 3])
def test_the_gradient_of_risk_plus_kl_is_what_autograd_finds(name: str, draws: int) -> None:
    family, draw, members, dim = FAMILIES[name], generator(5), 4, 257
    # Scales from 1e-6 to 20 beside locations from 1e-8 to 100: near and far from the prior, and where exp(−|μ|/σ) is 0.
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
def test_log_density_equals_that_of_torch(name: str, theta: float, loc: float, scale: float) -> None:
    ours = FAMILIES[name].log_prob(double(theta), double(loc), double(scale))
    assert ours.item() == pytest.approx(
        TORCH[name](double(loc), double(scale)).log_prob(double(theta)).item(), abs=1e-9
    )


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_follows_the_standard_distribution_of_its_family(name: str, dtype: torch.dtype) -> None:
    noise = FAMILIES[name].noise((400, 250), generator(1), dtype)
    assert noise.dtype == dtype
    values, even = noise.double().flatten(), EVEN_MOMENTS[name]
    for power, moment in ((1, 0), (2, even[0]), (3, 0), (4, even[1])):
        standard_error = math.sqrt((even[power - 1] - moment**2) / len(values))
        assert abs((values**power).mean().item() - moment) < 4 * standard_error
    assert stats.kstest(values.numpy(), SCIPY[name](0, 1).cdf).pvalue > 0.01


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_noise_is_reproduced_by_its_seed(name: str) -> None:
    first, again, other = (FAMILIES[name].noise((9,), generator(seed), torch.float32) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("uniform", [0.0, 0.5])
def test_laplace_noise_is_finite_at_the_ends_and_the_middle_of_the_unit_interval(
    dtype: torch.dtype, uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def constant(numbers: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
        return numbers.fill_(low + uniform * (high - low))

    monkeypatch.setattr(torch.Tensor, "uniform_", constant)
    noise = FAMILIES["laplace"].noise((3,), generator(0), dtype)
    assert torch.isfinite(noise).all()
    assert (noise == 0).all() == (uniform == 0.5)
