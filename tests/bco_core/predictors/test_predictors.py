"""Predictors against torch.nn layers: batching, chunks, gradients, initial values and storage."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.predictors import base
from bco_core.predictors.base import Predictor
from bco_core.predictors.registry import build_predictor, predictor_from_arrays, predictor_to_arrays
from tests.support.seeds import seeded

SHAPES = [("linear", ()), ("relu_affine", ()), ("mlp", (7,)), ("mlp", (6, 5)), ("skip_mlp", (7,)), ("skip_mlp", (6, 5))]


def make_sample(rows: int = 12, context_dim: int = 3, outcome_dim: int = 2) -> Sample:
    draw = seeded(5)
    contexts = 40 + 9 * torch.randn(rows, context_dim, generator=draw, dtype=torch.float64)
    return Sample(contexts, 2 + 5 * torch.randn(rows, outcome_dim, generator=draw, dtype=torch.float64))


def random_theta(predictor: Predictor, count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, predictor.dim, generator=seeded(seed), dtype=torch.float64)


def by_linear_layers(predictor: Predictor, sample: Sample, theta: Tensor, contexts: Tensor) -> Tensor:
    """Apply one parameter vector (d,) through torch.nn.Linear layers, with statistics computed from the sample."""
    inputs = hidden = (contexts - sample.contexts.mean(0)) / sample.contexts.std(0, correction=0)
    rest = theta

    def next_layer(fan_in: int, fan_out: int) -> torch.nn.Linear:
        nonlocal rest
        weight, bias, rest = rest.split([fan_in * fan_out, fan_out, len(rest) - (fan_in + 1) * fan_out])
        linear = torch.nn.Linear(fan_in, fan_out, dtype=theta.dtype).requires_grad_(False)
        linear.weight.copy_(weight.reshape(fan_in, fan_out).T)
        linear.bias.copy_(bias)
        return linear

    for layer, (fan_in, fan_out) in enumerate(pairwise(predictor.widths)):
        hidden = next_layer(fan_in, fan_out)(hidden if layer == 0 else hidden.clamp_min(0))
    if predictor.kind == "skip_mlp":
        hidden = hidden + next_layer(predictor.widths[0], predictor.widths[-1])(inputs)
    assert len(rest) == 0
    prediction = sample.outcomes.mean(0) + sample.outcomes.std(0, correction=0) * hidden
    return prediction.clamp_min(0) if predictor.kind == "relu_affine" else prediction


@pytest.mark.parametrize(("kind", "hidden"), SHAPES)
def test_batched_forward_equals_a_loop_over_linear_layers_on_shared_contexts(
    kind: str, hidden: tuple[int, ...]
) -> None:
    sample = make_sample()
    predictor = build_predictor(kind, sample, hidden)
    theta = random_theta(predictor, 4)
    expected = torch.stack([by_linear_layers(predictor, sample, t, sample.contexts) for t in theta])
    predictions = predictor.forward(theta, predictor.encode(sample.contexts, torch.float64))
    assert predictions.shape == (4, 12, 2)
    assert torch.allclose(predictions, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "hidden"), SHAPES)
def test_batched_forward_gives_each_member_its_own_contexts(kind: str, hidden: tuple[int, ...]) -> None:
    sample = make_sample()
    predictor = build_predictor(kind, sample, hidden)
    theta = random_theta(predictor, 3)
    contexts = 40 + 9 * torch.randn(3, 8, 3, generator=seeded(1), dtype=torch.float64)
    expected = torch.stack(
        [by_linear_layers(predictor, sample, t, own) for t, own in zip(theta, contexts, strict=True)]
    )
    predictions = predictor.forward(theta, predictor.encode(contexts, torch.float64))
    assert torch.allclose(predictions, expected, rtol=1e-12, atol=1e-12)


def test_a_network_8_128_128_1_has_17793_parameters() -> None:
    predictor = build_predictor("mlp", make_sample(context_dim=8, outcome_dim=1), (128, 128))
    assert predictor.dim == 17_793
    assert predictor.initial(2, seeded(0)).shape == (2, 17_793)


@pytest.mark.parametrize("kind", ["linear", "relu_affine"])
def test_an_affine_predictor_has_a_weight_for_each_column_and_a_bias(kind: str) -> None:
    assert build_predictor(kind, make_sample(context_dim=3, outcome_dim=2)).dim == (3 + 1) * 2


def test_relu_affine_is_never_negative_in_user_units_but_linear_can_be() -> None:
    sample = make_sample()
    linear, clipped = build_predictor("linear", sample), build_predictor("relu_affine", sample)
    theta = random_theta(linear, 50)
    free, kept = linear.predict(theta, sample.contexts), clipped.predict(theta, sample.contexts)
    assert free.min() < 0
    assert torch.equal(kept, free.clamp_min(0))


def test_prediction_in_chunks_equals_one_forward_pass_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = make_sample(rows=101)
    predictor = build_predictor("mlp", sample, (16,))
    theta = random_theta(predictor, 5)
    whole = predictor.forward(theta, predictor.encode(sample.contexts, torch.float64))
    forward, rows = Predictor.forward, []

    def count_calls(self: Predictor, theta: Tensor, encoded: Tensor) -> Tensor:
        rows.append(len(encoded))
        return forward(self, theta, encoded)

    monkeypatch.setattr(Predictor, "forward", count_calls)
    monkeypatch.setattr(base, "_CHUNK_NUMBERS", 16 * 5 * 10)
    assert torch.allclose(predictor.predict(theta, sample.contexts), whole, rtol=1e-12, atol=1e-12)
    assert rows == [10] * 10 + [1]


def test_prediction_goes_row_by_row_when_one_row_exceeds_the_memory_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = make_sample()
    predictor = build_predictor("linear", sample)
    theta = random_theta(predictor, 5)
    whole = predictor.predict(theta, sample.contexts)
    monkeypatch.setattr(base, "_CHUNK_NUMBERS", 1)
    assert torch.allclose(predictor.predict(theta, sample.contexts), whole, rtol=1e-12, atol=1e-12)


def test_prediction_leaves_no_gradient_behind() -> None:
    sample = make_sample()
    predictor = build_predictor("linear", sample)
    theta = random_theta(predictor, 2).requires_grad_()
    assert predictor.forward(theta, predictor.encode(sample.contexts, torch.float64)).requires_grad
    assert not predictor.predict(theta, sample.contexts).requires_grad


@pytest.mark.parametrize(("kind", "hidden"), SHAPES)
def test_gradients_agree_with_finite_differences(kind: str, hidden: tuple[int, ...]) -> None:
    sample = make_sample(rows=4)
    predictor = build_predictor(kind, sample, hidden)
    encoded = predictor.encode(sample.contexts, torch.float64)
    theta = random_theta(predictor, 2, seed=8)

    def weighted_sum(theta: Tensor) -> Tensor:
        predictions = predictor.forward(theta, encoded)
        return (predictions * torch.arange(predictions.numel()).view_as(predictions)).sum()

    (gradient,) = torch.autograd.grad(weighted_sum(theta.requires_grad_()), theta)
    steps = 1e-6 * torch.eye(theta.numel(), dtype=torch.float64).view(-1, *theta.shape)
    differences = [((weighted_sum(theta + step) - weighted_sum(theta - step)) / 2e-6).item() for step in steps]
    assert gradient.abs().max() > 1
    assert torch.allclose(gradient.flatten(), torch.tensor(differences, dtype=torch.float64), rtol=1e-6, atol=1e-4)


def test_float32_parameters_keep_precision_on_outcomes_with_a_huge_mean() -> None:
    contexts = torch.randn(50, 3, generator=seeded(0), dtype=torch.float64)
    outcomes = 1e9 + torch.randn(50, 1, generator=seeded(1), dtype=torch.float64)
    sample = Sample(contexts, outcomes)
    predictor = build_predictor("mlp", sample, (8,))
    theta = random_theta(predictor, 3)
    exact = torch.stack([by_linear_layers(predictor, sample, t, contexts) for t in theta])
    predictions = predictor.predict(theta.float(), contexts)
    assert predictions.dtype == torch.float64
    assert (predictions - exact).abs().max() < 1e-4


def test_the_unit_of_a_context_column_does_not_change_predictions() -> None:
    sample = make_sample()
    in_other_units = Sample(sample.contexts * torch.tensor([1e-3, 1.0, 1e6]) + 17, sample.outcomes)
    first, second = (build_predictor("mlp", s, (6,)) for s in (sample, in_other_units))
    theta = random_theta(first, 3)
    assert torch.allclose(
        first.predict(theta, sample.contexts), second.predict(theta, in_other_units.contexts), rtol=1e-8, atol=1e-8
    )


def test_starting_vectors_have_the_stated_variances_and_zero_biases() -> None:
    predictor = build_predictor("mlp", make_sample(context_dim=8, outcome_dim=2), (32, 16))
    theta = predictor.initial(200, seeded(0))
    first, first_bias, second, second_bias, last, last_bias = theta.split([8 * 32, 32, 32 * 16, 16, 16 * 2, 2], dim=1)
    for weights, variance in ((first, 2 / 8), (second, 2 / 32), (last, 1 / 16)):
        tolerance = 5 * variance * math.sqrt(2 / weights.numel())
        assert abs(weights.var().item() - variance) < tolerance
    for bias in (first_bias, second_bias, last_bias):
        assert not bias.any()


def test_with_a_skip_path_the_network_starts_small_and_the_path_at_zero() -> None:
    sample = make_sample(context_dim=4, outcome_dim=2)
    plain, skipping = (build_predictor(kind, sample, (16,)) for kind in ("mlp", "skip_mlp"))
    assert skipping.dim == plain.dim + (4 + 1) * 2
    network, path = skipping.initial(300, seeded(0)).split([plain.dim, 10], dim=1)
    assert not path.any()
    last = network[:, -(16 + 1) * 2 : -2]
    assert last.std().item() == pytest.approx(0.1 / math.sqrt(16), rel=0.05)


@pytest.mark.parametrize(("kind", "hidden"), SHAPES)
def test_the_last_coordinates_are_an_output_bias_in_every_kind(kind: str, hidden: tuple[int, ...]) -> None:
    sample = make_sample()
    predictor = build_predictor(kind, sample, hidden)
    low = random_theta(predictor, 3)
    low[:, -2:] += 1000
    high = low.clone()
    high[:, -2:] += torch.tensor([1.0, 7.0])
    difference = predictor.predict(high, sample.contexts) - predictor.predict(low, sample.contexts)
    expected = torch.tensor([1.0, 7.0]) * sample.outcomes.std(0, correction=0)
    assert torch.allclose(difference, expected.expand_as(difference), rtol=1e-9)


def test_a_linear_model_is_a_skip_network_whose_network_is_zero() -> None:
    sample = make_sample()
    linear, network = build_predictor("linear", sample), build_predictor("skip_mlp", sample, (5,))
    theta = random_theta(linear, 3)
    embedded = torch.cat([torch.zeros(3, network.dim - linear.linear_dim, dtype=torch.float64), theta], dim=1)
    assert torch.allclose(network.predict(embedded, sample.contexts), linear.predict(theta, sample.contexts))


@pytest.mark.parametrize(
    ("kind", "hidden", "where", "message"),
    [
        ("forest", (), ("predictor", "kind"), "the predictor must be one of linear, relu_affine, mlp, skip_mlp"),
        ("mlp", (), ("predictor", "hidden"), "a network needs at least one hidden layer"),
        ("skip_mlp", (), ("predictor", "hidden"), "a network needs at least one hidden layer"),
        ("linear", (8,), ("predictor", "hidden"), "hidden layers belong to mlp and skip_mlp"),
        ("relu_affine", (8,), ("predictor", "hidden"), "hidden layers belong to mlp and skip_mlp"),
        ("mlp", (8, 0), ("predictor", "hidden"), "hidden layers need at least one unit"),
    ],
)
def test_an_impossible_predictor_is_refused_at_the_field_that_is_wrong(
    kind: str, hidden: tuple[int, ...], where: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        build_predictor(kind, make_sample(), hidden)
    assert refusal.value.where == where


@pytest.mark.parametrize(("kind", "hidden"), SHAPES)
def test_a_predictor_restored_from_json_and_arrays_predicts_bit_identically(kind: str, hidden: tuple[int, ...]) -> None:
    sample = make_sample()
    predictor = build_predictor(kind, sample, hidden)
    description, arrays = predictor_to_arrays(predictor)
    restored = predictor_from_arrays(json.loads(json.dumps(description)), arrays)
    theta = random_theta(predictor, 3)
    assert restored.widths == predictor.widths
    assert torch.equal(restored.predict(theta, sample.contexts), predictor.predict(theta, sample.contexts))


def test_without_context_columns_every_row_gets_the_same_prediction() -> None:
    sample = make_sample(context_dim=0, outcome_dim=1)
    predictor = build_predictor("linear", sample)
    bias = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    predictions = predictor.predict(bias, sample.contexts)
    expected = sample.outcomes.mean() + sample.outcomes.std(correction=0) * bias
    assert torch.allclose(predictions, expected[:, None].expand(2, 12, 1))


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_contexts_with_the_wrong_number_of_columns_are_refused(columns: int) -> None:
    predictor = build_predictor("linear", make_sample(context_dim=3))
    with pytest.raises(InvalidInput):
        predictor.predict(random_theta(predictor, 2), torch.zeros(5, columns, dtype=torch.float64))


def test_parameter_units_scale_by_the_column_spread_only() -> None:
    sample = make_sample(rows=60, outcome_dim=1)
    stretched = Sample(sample.contexts * torch.tensor([10.0, 1.0, 0.1]), sample.outcomes)
    predictor = build_predictor("linear", stretched)
    units = predictor.units()
    spread = stretched.contexts.std(dim=0, correction=0)
    columns, bias = units[: len(spread)], units[len(spread) :]
    torch.testing.assert_close(columns, spread / spread.square().mean().sqrt())
    assert (bias == 1).all()
    network = build_predictor("skip_mlp", stretched, (3,))
    assert torch.equal(network.units()[: 3 * len(spread)], columns.repeat_interleave(3))
    assert torch.equal(network.units()[-len(spread) - 1 : -1], columns)
