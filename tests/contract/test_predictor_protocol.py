"""Contract of every predictor, feature kind, family and distribution; its rows are in ``contract_tables``."""

from __future__ import annotations

import json
from typing import get_args

import pytest
import torch
from torch import Tensor

from app.posteriors.options import METHODS as API_METHODS
from app.posteriors.options import PredictorSpec
from bco_core.data import Sample, fold_numbers
from bco_core.distributions import DISTRIBUTIONS, FAMILIES, Mixture, distribution_from_arrays
from bco_core.errors import InvalidInput
from bco_core.features.base import Features
from bco_core.features.registry import FEATURES, features_from_arrays, features_to_arrays
from bco_core.posterior import Posterior, digest
from bco_core.predictors.base import Predictor
from bco_core.predictors.registry import PREDICTORS, build_predictor, predictor_from_arrays, predictor_to_arrays
from bco_core.problems.registry import build_problem
from tests.contract.contract_tables import (
    DISTRIBUTION_ROWS,
    FAMILY_ROWS,
    FEATURE_ROWS,
    PREDICTOR_ROWS,
    PROBLEM_ROWS,
    learn_quickly,
)
from tests.support.seeds import seeded

pytestmark = pytest.mark.usefixtures("one_thread")


# predictors


def test_every_registered_predictor_has_a_row_in_the_contract_and_a_name_in_the_api() -> None:
    offered = set(get_args(PredictorSpec.model_fields["kind"].annotation))
    assert set(PREDICTOR_ROWS) == set(PREDICTORS) == offered - {"auto", "boosted"}


def history(rows: int = 30) -> Sample:
    generator = seeded(17)
    contexts = torch.randn(rows, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.01]) + 7
    return Sample(contexts, 100 + 10 * torch.randn(rows, 2, generator=generator, dtype=torch.float64))


@pytest.fixture(params=PREDICTORS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return build_predictor(request.param, history(), PREDICTOR_ROWS[request.param]["hidden"])


def parameters(predictor: Predictor, count: int) -> Tensor:
    return predictor.initial(count, seeded(18)) + 0.3 * torch.randn(count, predictor.dim, generator=seeded(19))


def test_the_number_of_parameters_follows_from_the_layers(predictor: Predictor) -> None:
    assert predictor.dim == PREDICTOR_ROWS[predictor.kind]["dim"]
    assert predictor.initial(5, seeded()).shape == (5, predictor.dim)


def test_a_predictor_gives_finite_predictions_in_the_users_units(predictor: Predictor) -> None:
    predictions = predictor.predict(parameters(predictor, 4), history().contexts)
    assert (predictions.shape, predictions.dtype) == ((4, 30, 2), torch.float64)
    assert torch.isfinite(predictions).all()
    assert 50 < predictions.mean() < 150


def test_parameter_vectors_and_contexts_do_not_influence_each_other(predictor: Predictor) -> None:
    theta, contexts = parameters(predictor, 4), history().contexts
    together = predictor.predict(theta, contexts)
    for s in range(4):
        torch.testing.assert_close(predictor.predict(theta[s : s + 1], contexts)[0], together[s], rtol=1e-5, atol=1e-4)
    for n in (0, 29):
        torch.testing.assert_close(
            predictor.predict(theta, contexts[n : n + 1])[:, 0], together[:, n], rtol=1e-5, atol=1e-4
        )


def test_contexts_may_differ_for_each_parameter_vector(predictor: Predictor) -> None:
    theta, encoded = parameters(predictor, 3), predictor.encode(history().contexts)
    each = torch.stack([encoded[:10], encoded[10:20], encoded[20:]])
    expected = torch.stack([predictor.forward(theta[s : s + 1], each[s])[0] for s in range(3)])
    torch.testing.assert_close(predictor.forward(theta, each), expected, rtol=1e-5, atol=1e-4)


def test_a_predictors_gradient_matches_finite_differences(predictor: Predictor) -> None:
    theta = parameters(predictor, 1).double().requires_grad_()
    encoded = predictor.encode(history().contexts, torch.float64)
    (gradient,) = torch.autograd.grad(predictor.forward(theta, encoded).sum(), theta)
    with torch.no_grad():
        steps = 1e-6 * torch.eye(predictor.dim, dtype=torch.float64)
        up, down = (predictor.forward(theta + sign * steps, encoded).sum(dim=(1, 2)) for sign in (1, -1))
    torch.testing.assert_close(gradient[0], (up - down) / 2e-6, rtol=1e-4, atol=1e-3)


def test_a_predictor_round_trips_through_plain_arrays(predictor: Predictor) -> None:
    description, arrays = predictor_to_arrays(predictor)
    again = predictor_from_arrays(json.loads(json.dumps(description)), arrays)
    theta = parameters(predictor, 2)
    assert torch.equal(again.predict(theta, history().contexts), predictor.predict(theta, history().contexts))


@pytest.mark.all_variants
@pytest.mark.parametrize("kind", PREDICTORS)
def test_every_predictor_learns_reproducibly_and_survives_storage(kind: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    problem = build_problem(row.spec)
    options = {"predictor": kind, "hidden": PREDICTOR_ROWS[kind]["hidden"] or None}
    first, again = (learn_quickly(problem, row, **options).posterior.to_arrays() for _ in range(2))
    assert digest(*first) == digest(*again)
    restored = Posterior.from_arrays(json.loads(json.dumps(first[0])), first[1])
    assert digest(*restored.to_arrays()) == digest(*first)


def test_the_length_of_theta_follows_from_the_widths_alone(predictor: Predictor) -> None:
    assert PREDICTORS[predictor.kind].size(predictor.widths) == predictor.dim
    assert predictor.widths[0] == predictor.features.width
    assert predictor.widths[-1] == predictor.outcome_dim == 2


def test_theta_ends_with_a_linear_path_of_the_stated_length(predictor: Predictor) -> None:
    assert predictor.linear_dim in (0, (3 + 1) * 2)
    theta, encoded = parameters(predictor, 4).double(), predictor.encode(history().contexts, torch.float64)
    inputs = encoded.expand(4, -1, -1)
    change = torch.zeros_like(theta)
    length = predictor.linear_dim or 2
    change[:, -length:] = torch.randn(4, length, generator=seeded(24), dtype=torch.float64)
    moved = predictor.outputs(theta + change, inputs) - predictor.outputs(theta, inputs)
    expected = change[:, None, -2:]
    if predictor.linear_dim:
        expected = inputs @ change[:, -length:-2].view(4, 3, 2) + expected
    torch.testing.assert_close(moved, expected.expand_as(moved))


def test_only_networks_have_hidden_layers(predictor: Predictor) -> None:
    kind = PREDICTORS[predictor.kind]
    assert kind.is_network == bool(PREDICTOR_ROWS[predictor.kind]["hidden"])
    with pytest.raises(InvalidInput) as refusal:
        build_predictor(predictor.kind, history(), () if kind.is_network else (5,))
    assert refusal.value.where == ("predictor", "hidden")


def test_starting_vectors_are_reproduced_by_their_seed(predictor: Predictor) -> None:
    first, again, other = (predictor.initial(3, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_units_scale_weights_by_feature_spread_and_leave_biases_alone(predictor: Predictor) -> None:
    units = predictor.units()
    assert units.shape == (predictor.dim,)
    spread = history().contexts.std(dim=0, correction=0)
    torch.testing.assert_close(
        units[: 3 * predictor.widths[1]].view(3, -1)[:, 0], spread / spread.square().mean().sqrt()
    )
    assert (units[-2:] == 1).all()


def test_clipping_is_idempotent(predictor: Predictor) -> None:
    predictions = torch.linspace(-3, 3, 14, dtype=torch.float64).view(1, 7, 2)
    assert torch.equal(predictor.clip(predictor.clip(predictions)), predictor.clip(predictions))
    theta, encoded = parameters(predictor, 2), predictor.encode(history().contexts)
    unclipped = predictor.unclipped(theta, encoded)
    assert torch.equal(predictor.forward(theta, encoded), predictor.clip(unclipped))
    assert torch.equal(predictor.predict_encoded(theta, encoded), predictor.predict(theta, history().contexts))


# features


def test_every_registered_kind_of_features_has_a_row_in_the_contract() -> None:
    assert set(FEATURE_ROWS) == set(FEATURES)
    assert all(kind.name == name for name, kind in FEATURES.items())


@pytest.fixture(params=FEATURES)
def features(request: pytest.FixtureRequest) -> Features:
    return fit_features(request.param, history())


def fit_features(kind: str, sample: Sample) -> Features:
    return FEATURES[kind].fit(sample, fold_numbers(len(sample), 0))


def base_columns(features: Features) -> int:
    """Return the number of base columns after the features."""
    return 0 if features.bases is None else len(features.bases.mean)


def test_bases_are_the_last_features_and_scatter_as_stated(features: Features) -> None:
    if features.bases is None:
        assert features.base_columns == ()
        return
    values = features.of_history(history())
    assert torch.equal(values[:, list(features.base_columns)], values[:, features.width :])
    errors = features.bases.apply(history().outcomes) - values[:, features.width :]
    torch.testing.assert_close(errors.square().mean(dim=0).sqrt(), features.shrink)


def test_features_have_the_stated_number_of_columns(features: Features) -> None:
    width = FEATURE_ROWS[features.kind]
    assert (features.context_dim, features.width) == (3, width)
    assert features.of_history(history()).shape == (30, width + base_columns(features))
    assert features.spread.shape == (width,)
    assert (features.spread > 0).all()


@pytest.mark.parametrize("leading", [(), (1,), (5,), (2, 3), (0,)], ids=str)
def test_features_of_new_contexts_are_batched_over_leading_dimensions(
    features: Features, leading: tuple[int, ...]
) -> None:
    contexts = 7 + torch.randn(*leading, 3, generator=seeded(25), dtype=torch.float64)
    found = features.of_new(contexts)
    width = features.width + base_columns(features)
    assert (found.shape, found.dtype) == ((*leading, width), torch.float64)
    for one, alone in zip(contexts.view(-1, 3), found.view(-1, width), strict=True):
        torch.testing.assert_close(features.of_new(one), alone)


def test_features_of_a_history_row_do_not_depend_on_its_own_outcome(features: Features) -> None:
    before = features.of_history(history())
    for row in (0, 17):
        outcomes = history().outcomes.clone()
        outcomes[row] += 1
        changed = Sample(history().contexts, outcomes)
        again = fit_features(features.kind, changed)
        after = again.of_history(changed)
        if features.bases is not None and again.bases is not None:
            # All outcomes together set the unit of the bases; the values in that unit stay the same.
            mine, theirs = (one.bases.undo(values[row, 5:]) for one, values in ((features, before), (again, after)))
            torch.testing.assert_close(theirs, mine)
            continue
        torch.testing.assert_close(after[row], before[row])
        if not FEATURES[features.kind].sees_outcomes:
            torch.testing.assert_close(after, before)


def test_features_round_trip_through_plain_arrays_under_distinct_names(features: Features) -> None:
    description, arrays = features_to_arrays(features)
    again = features_from_arrays(json.loads(json.dumps(description)), arrays)
    assert again.kind == features.kind
    assert torch.equal(again.of_new(history().contexts), features.of_new(history().contexts))
    assert torch.equal(again.spread, features.spread)
    others = {"outcome_mean", "outcome_scale", "particles", "history_predictions", "history_outcomes"}
    others |= {name for one in DISTRIBUTION_ROWS.values() for name in one.to_arrays()[1]}
    assert not others & set(arrays)


# families


def test_every_registered_family_has_a_row_in_the_contract_and_a_name_in_the_api() -> None:
    for method in API_METHODS.values():
        assert set(FAMILY_ROWS) == set(FAMILIES) == set(get_args(method.model_fields["family"].annotation))
    assert all(family.name == name for name, family in FAMILIES.items())


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def grid() -> tuple[Tensor, float]:
    points = torch.linspace(-60, 60, 400_001, dtype=torch.float64)
    return points, 120 / 400_000


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_noise_is_centred_unit_scale_and_reproduced_by_its_generator(family: str) -> None:
    noise = FAMILIES[family].noise((200_000,), seeded(20), torch.float64)
    assert noise.mean().abs() < 0.01
    assert noise.abs().mean().item() == pytest.approx(FAMILY_ROWS[family], rel=0.01)
    assert torch.equal(noise, FAMILIES[family].noise((200_000,), seeded(20), torch.float64))
    assert torch.isfinite(FAMILIES[family].noise((200_000,), seeded(21), torch.float32)).all()


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (2.5, 0.3), (-4.0, 3.0)])
def test_a_density_integrates_to_one(family: str, loc: float, scale: float) -> None:
    points, width = grid()
    density = FAMILIES[family].log_prob(points, scalar(loc), scalar(scale)).exp()
    assert (density.sum() * width).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("loc", "scale", "prior"), [(0.0, 1.0, 1.0), (0.7, 0.2, 1.0), (-3.0, 2.0, 0.9)])
def test_the_closed_form_kl_equals_its_integral(family: str, loc: float, scale: float, prior: float) -> None:
    member = FAMILIES[family]
    points, width = grid()
    ours = member.log_prob(points, scalar(loc), scalar(scale))
    theirs = member.log_prob(points, scalar(0.0), scalar(prior))
    integral = (ours.exp() * (ours - theirs)).sum() * width
    assert member.kl(scalar(loc), scalar(scale), scalar(prior)).item() == pytest.approx(integral.item(), abs=1e-5)


def test_the_kl_of_the_prior_with_itself_is_zero_and_grows_with_distance(family: str) -> None:
    kl = FAMILIES[family].kl
    assert kl(scalar(0.0), scalar(0.8), scalar(0.8)).item() == pytest.approx(0, abs=1e-12)
    distances = torch.tensor([kl(scalar(loc), scalar(0.8), scalar(0.8)) for loc in (0.0, 0.1, 1.0, 5.0)])
    assert (distances.diff() > 0).all()


def test_samples_of_a_mixture_follow_its_density(family: str) -> None:
    mixture = Mixture(
        FAMILIES[family],
        torch.tensor([0.25, 0.75], dtype=torch.float64),
        torch.tensor([[-5.0], [3.0]], dtype=torch.float64),
        torch.tensor([[0.5], [1.0]], dtype=torch.float64),
    )
    draws = mixture.sample(20_000, seeded(22))
    assert (draws < -1).double().mean().item() == pytest.approx(0.25, abs=0.02)
    points, width = grid()
    density = mixture.log_prob(points[:, None]).exp()
    assert (density.sum() * width).item() == pytest.approx(1, abs=1e-5)
    assert (density * points).sum().item() * width == pytest.approx(draws.mean().item(), abs=0.05)


def test_every_family_learns_a_posterior(family: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    posterior = learn_quickly(build_problem(row.spec), row, family=family).posterior
    assert posterior.to_arrays()[0]["family"] == family
    assert torch.isfinite(posterior.particles).all()


# distributions


def test_every_registered_distribution_has_a_row_in_the_contract() -> None:
    assert set(DISTRIBUTION_ROWS) == set(DISTRIBUTIONS)
    for name, one in DISTRIBUTION_ROWS.items():
        assert one.to_arrays()[0]["family"] == name


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_draws_the_requested_number_from_its_generator(name: str) -> None:
    one = DISTRIBUTION_ROWS[name]
    assert one.dim == 3
    for count in (1, 10, 50):
        first, again, other = (one.sample(count, seeded(seed)) for seed in (1, 1, 2))
        assert first.shape == (count, 3)
        assert torch.equal(first, again)
        assert count == 1 or not torch.equal(first, other)
    assert one.mode().shape == (3,)


@pytest.mark.all_variants
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_round_trips_through_plain_arrays(name: str) -> None:
    one = DISTRIBUTION_ROWS[name]
    description, arrays = one.to_arrays()
    again = distribution_from_arrays(json.loads(json.dumps(description)), arrays)
    assert torch.equal(again.sample(20, seeded(3)), one.sample(20, seeded(3)))
    assert torch.equal(again.mode(), one.mode())
    assert again.to_arrays()[0] == description
