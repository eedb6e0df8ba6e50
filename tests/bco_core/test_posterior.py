"""Stored posteriors: round trip, digest, particles, fresh draws and scenarios."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bco_core.data import Sample
from bco_core.distributions import FAMILIES, Mixture
from bco_core.errors import InvalidInput
from bco_core.policies import POLICIES, Terms, decide
from bco_core.posterior import Posterior, digest
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor
from tests.support.seeds import seeded

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}] * 2})
ARRAYS = [
    "context_mean",
    "context_scale",
    "loc",
    "outcome_mean",
    "outcome_scale",
    "particles",
    "scale",
    "weights",
]


def make_contexts(rows: int = 12) -> Tensor:
    return 5 + 3 * torch.randn(rows, 3, generator=seeded(0), dtype=torch.float64)


def make_posterior(family: str = "laplace", seed: int = 7) -> Posterior:
    outcomes = 100 + 10 * torch.randn(12, 2, generator=seeded(1), dtype=torch.float64)
    predictor = build_predictor("mlp", Sample(make_contexts(), outcomes), (6,))
    loc = torch.randn(3, predictor.dim, generator=seeded(2))
    scale = 0.1 + torch.rand(3, predictor.dim, generator=seeded(3))
    mixture = Mixture(FAMILIES[family], torch.tensor([0.5, 0.3, 0.2]), loc, scale)
    return Posterior(predictor, mixture, mixture.sample(40, seeded(seed)), seed)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("count", "seed"), [(None, None), (55, None), (10, 3)])
def test_a_restored_posterior_prescribes_bit_identically(
    policy: str, family: str, count: int | None, seed: int | None
) -> None:
    posterior = make_posterior(family)
    description, arrays = posterior.to_arrays()
    restored = Posterior.from_arrays(json.loads(json.dumps(description)), arrays)
    first, second = (
        decide(PROBLEM, p.scenarios(make_contexts(), p.draws(count, seed)), policy, Terms(seeded(5)))
        for p in (posterior, restored)
    )
    assert torch.equal(first.decisions, second.decisions)
    assert torch.equal(first.objective, second.objective)
    assert digest(*restored.to_arrays()) == digest(description, arrays)


def test_a_restored_posterior_shares_no_memory_with_the_arrays_it_came_from() -> None:
    description, arrays = make_posterior().to_arrays()
    arrays = {name: values.copy() for name, values in arrays.items()}
    restored = Posterior.from_arrays(description, arrays)
    before = restored.particles.clone()
    arrays["particles"][:] = 0
    assert torch.equal(restored.particles, before)


def test_the_digest_covers_every_array() -> None:
    assert sorted(make_posterior().to_arrays()[1]) == ARRAYS


@given(name=st.sampled_from(ARRAYS), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_the_digest_changes_with_any_bit_of_any_array(name: str, place: float, bit: int) -> None:
    description, arrays = make_posterior().to_arrays()
    changed = {key: values.copy() for key, values in arrays.items()}
    data = changed[name].reshape(-1).view(np.uint8)
    data[int(place * len(data))] ^= 1 << bit
    assert digest(description, changed) != digest(description, arrays)


def test_the_digest_changes_with_names_types_shapes_and_description() -> None:
    description, arrays = make_posterior().to_arrays()
    renamed = {("location" if name == "loc" else name): values for name, values in arrays.items()}
    variants = [
        (description, renamed),
        (description, arrays | {"weights": arrays["weights"].view(np.int32)}),
        (description, arrays | {"loc": arrays["loc"].T.copy().reshape(arrays["loc"].shape)}),
        (description, arrays | {"particles": arrays["particles"].reshape(-1)}),
        (description | {"seed": 8}, arrays),
        (description | {"family": "gaussian"}, arrays),
    ]
    digests = [digest(description, arrays), *(digest(*variant) for variant in variants)]
    assert len(set(digests)) == len(digests)


def test_the_digest_depends_on_content_and_not_on_order_or_memory_layout() -> None:
    description, arrays = make_posterior().to_arrays()
    reordered = {name: np.asfortranarray(arrays[name]) for name in reversed(arrays)}
    assert digest(dict(reversed(description.items())), reordered) == digest(description, arrays)


def test_stored_particles_are_used_first() -> None:
    posterior = make_posterior()
    assert torch.equal(posterior.draws(), posterior.particles)
    assert torch.equal(posterior.draws(40), posterior.particles)
    assert torch.equal(posterior.draws(9), posterior.particles[:9])


def test_a_seed_gives_fresh_reproducible_draws() -> None:
    posterior = make_posterior()
    first, again, other = posterior.draws(10, seed=1), posterior.draws(10, seed=1), posterior.draws(10, seed=2)
    assert first.shape == (10, posterior.predictor.dim)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert posterior.draws(seed=1).shape == posterior.particles.shape


def test_the_posteriors_own_seed_reproduces_its_particles() -> None:
    posterior = make_posterior()
    assert torch.equal(posterior.draws(seed=7), posterior.particles)


def test_more_draws_than_stored_come_fresh_from_the_posteriors_seed() -> None:
    posterior = make_posterior()
    more = posterior.draws(100)
    assert more.shape == (100, posterior.predictor.dim)
    assert len(more.unique(dim=0)) == 100
    assert torch.equal(more, posterior.draws(100))
    assert torch.equal(more, posterior.draws(100, seed=7))


def test_scenarios_are_the_predictions_of_each_draw_and_of_the_mode() -> None:
    posterior, contexts = make_posterior(), make_contexts(5)
    scenarios = posterior.scenarios(contexts, posterior.draws(8))
    assert scenarios.outcomes.shape == (5, 8, 2)
    assert scenarios.weights.tolist() == [0.125] * 8
    for k, theta in enumerate(posterior.particles[:8]):
        alone = posterior.predictor.predict(theta[None], contexts)[0]
        assert torch.allclose(scenarios.outcomes[:, k], alone, rtol=1e-6)
    mode = posterior.predictor.predict(posterior.distribution.mode()[None], contexts)[0]
    assert torch.allclose(scenarios.mode, mode, rtol=1e-6)


def test_particles_of_the_wrong_length_are_refused() -> None:
    posterior = make_posterior()
    with pytest.raises(InvalidInput, match=f"particles do not fit a predictor of {posterior.predictor.dim} parameters"):
        replace(posterior, particles=torch.zeros(40, 3))


@pytest.mark.parametrize("shape", [(40,), (2, 40, 38)])
def test_particles_must_be_two_dimensional(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="particles are a table of parameter vectors"):
        replace(make_posterior(), particles=torch.zeros(shape))


def test_locations_of_the_wrong_length_are_refused() -> None:
    posterior = make_posterior()
    narrow = Mixture(FAMILIES["laplace"], torch.ones(1), torch.zeros(1, 4), torch.ones(1, 4))
    with pytest.raises(InvalidInput, match=f"locations do not fit a predictor of {posterior.predictor.dim} parameters"):
        replace(posterior, distribution=narrow)
