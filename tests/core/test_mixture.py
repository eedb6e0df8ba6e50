from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from bco_core.inference.mixture import (
    LINEAR,
    NETWORK,
    linear_in_network,
    members_for,
    out_of_fold,
    packed,
    sweep_for,
    unpacked,
    warm_start,
)
from torch import Tensor

from bco_core.data import Arrays, Sample, make_folds
from bco_core.distributions import Mixture, equal_mixture
from bco_core.families import FAMILIES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.learn import continue_part, learn
from bco_core.inference.select import pooled, select, stack
from bco_core.inference.vi.variational import VariationalOptions, fit_variational
from bco_core.inference.vi.warm_start import ridge, shift_to_decisions
from bco_core.policies import averaged, bcp, blended
from bco_core.posterior import digest
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor
from bco_core.progress import Progress
from bco_core.scenarios import Scenarios

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def wavy(rows: int = 200, seed: int = 0) -> Sample:
    draw = generator(seed)
    contexts = torch.rand(rows, 3, generator=draw, dtype=torch.float64)
    signal = 40 * torch.sin(6 * contexts[:, :1]) + 20 * contexts[:, 1:2]
    return Sample(contexts, 100 + signal + 5 * torch.randn(rows, 1, generator=draw, dtype=torch.float64))


def target_of(kind: str, sample: Sample, hidden: tuple[int, ...] = ()) -> GibbsTarget:
    return make_target(PROBLEM, build_predictor(kind, sample, hidden), sample, FAMILIES["laplace"])


def test_ridge_without_need_for_shrinking_is_least_squares() -> None:
    contexts = torch.randn(400, 3, generator=generator(), dtype=torch.float64)
    slopes = torch.tensor([[2.0, 0.0], [-1.0, 0.5], [0.3, 4.0]], dtype=torch.float64)
    outcomes = contexts @ slopes + torch.tensor([5.0, -7.0])
    design = torch.cat([contexts, torch.ones(400, 1)], dim=1)
    expected = torch.linalg.lstsq(design, outcomes).solution
    assert torch.allclose(ridge(contexts, outcomes), expected, atol=5e-3)


def test_ridge_chooses_the_penalty_of_least_leave_one_out_error() -> None:
    draw = generator(3)
    contexts = torch.randn(20, 6, generator=draw, dtype=torch.float64)
    outcomes = torch.randn(20, 1, generator=draw, dtype=torch.float64)

    def fit(x: Tensor, y: Tensor, penalty: float) -> Tensor:
        centred = x - x.mean(0)
        slopes = torch.linalg.solve(centred.T @ centred + len(x) * penalty * torch.eye(6), centred.T @ (y - y.mean(0)))
        return torch.cat([slopes, (y.mean(0) - x.mean(0) @ slopes)[None]])

    def leave_one_out(penalty: float) -> float:
        # The penalty is of the full sample's size throughout, as in the closed form.
        errors = []
        for row in range(20):
            keep = torch.arange(20) != row
            theta = fit(contexts[keep], outcomes[keep], penalty * 20 / 19)
            errors.append((outcomes[row] - contexts[row] @ theta[:-1] - theta[-1]).square().item())
        return sum(errors)

    penalties = [10.0**power for power in torch.linspace(-3, 1, 17).tolist()]
    best = min(penalties, key=leave_one_out)
    assert torch.allclose(ridge(contexts, outcomes), fit(contexts, outcomes, best), atol=1e-8)


def test_ridge_survives_repeated_and_constant_columns() -> None:
    column = torch.randn(30, 1, generator=generator(), dtype=torch.float64)
    contexts = torch.cat([column, column, torch.zeros(30, 1)], dim=1)
    fitted = ridge(contexts, 3 * column)
    prediction = contexts @ fitted[:-1] + fitted[-1]
    assert torch.isfinite(fitted).all()
    assert (prediction - 3 * column).abs().max() < 0.05


@pytest.mark.parametrize("kind", ["linear", "relu_affine", "skip_mlp"])
def test_the_shift_moves_predictions_to_the_quantile_of_the_residuals(kind: str) -> None:
    sample = wavy()
    target = target_of(kind, sample, (8,) if kind == "skip_mlp" else ())
    rows = torch.arange(200)[None]
    encoded = target.predictor.encode(sample.contexts)
    loc = target.predictor.initial(1, generator())
    shifted = shift_to_decisions(target, encoded, rows, loc)
    residuals = sample.outcomes - target.predictor.forward(loc, encoded)[0]
    expected = residuals.quantile(0.75) / target.predictor.outcomes.scale
    assert (shifted - loc)[0, -1].item() == pytest.approx(expected.item(), abs=0.03)
    assert torch.equal(shifted[:, :-1], loc[:, :-1])


def test_a_warm_start_predicts_far_better_than_a_random_one() -> None:
    sample = wavy()
    target = target_of("skip_mlp", sample, (16,))
    folds = make_folds(200, 5, generator())
    options = VariationalOptions(policy="averaged", epochs=60, validation_draws=4, kl_weight=2e-4)
    loc, _ = warm_start(target, folds, NETWORK, options, generator())
    random = target.predictor.initial(5, generator())
    assert target.empirical_risk(loc).mean() < 0.5 * target.empirical_risk(random).mean()


def test_every_row_is_judged_only_by_members_that_did_not_learn_from_it() -> None:
    sample = wavy(53)
    target = target_of("linear", sample)
    folds = make_folds(53, 10, generator())
    # Each member predicts its own number, so a judgement shows who made it.
    loc = torch.zeros(10, target.predictor.dim)
    loc[:, -1] = torch.arange(10.0)
    mixture = equal_mixture(target.family, loc, torch.full_like(loc, 1e-9))
    seen = out_of_fold(target, folds, mixture, generator())
    judged_by = target.predictor.outcomes.apply(seen.scenarios.outcomes).round().long()[..., 0]
    for row, members in zip(seen.rows.tolist(), judged_by, strict=True):
        for member in members.unique().tolist():
            assert row in folds.validation[member].tolist()
            assert row not in folds.train[member].tolist()
    assert len(seen.rows) >= 53 - 2 * 3


def test_a_linear_mixture_inside_the_network_predicts_the_same() -> None:
    sample = wavy()
    linear, network = target_of("linear", sample), target_of("skip_mlp", sample, (8, 8))
    loc = torch.randn(3, linear.predictor.dim, generator=generator())
    mixture = equal_mixture(linear.family, loc, torch.full_like(loc, 0.01))
    embedded = linear_in_network(network, mixture)
    alone = linear.predictor.predict(mixture.loc, sample.contexts)
    inside = network.predictor.predict(embedded.loc, sample.contexts)
    assert torch.allclose(alone, inside, atol=1e-4)
    drawn = network.predictor.predict(embedded.sample(50, generator()), sample.contexts)
    assert (drawn.mean(0) - alone.mean(0)).abs().max() < 0.1 * sample.outcomes.std()


def test_selection_leaves_the_default_only_for_a_clear_gain() -> None:
    default = torch.ones(400, dtype=torch.float64)
    noise = torch.randn(400, generator=generator(), dtype=torch.float64)
    unclear = default - 0.01 + noise
    clear = default - 0.2 + 0.1 * noise
    better_mean_but_noisy = default - 0.04 + noise - noise.mean()
    labels = [{"name": str(index)} for index in range(3)]
    assert select([default, unclear - unclear.mean() + 0.99, better_mean_but_noisy], labels).chosen == 0
    assert select([default, unclear, clear], labels).chosen == 2
    table = select([default, unclear, clear], labels).table
    assert [row["chosen"] for row in table] == [False, False, True]
    assert table[2]["against_default"]["mean"] == pytest.approx(-0.2, abs=0.02)


def test_stacking_finds_the_cheapest_share() -> None:
    outcomes = torch.full((50, 1), 10.0, dtype=torch.float64)
    weights = torch.ones(1, dtype=torch.float64)
    low = Scenarios(torch.full((50, 1, 1), 4.0, dtype=torch.float64), weights, outcomes)
    high = Scenarios(torch.full((50, 1, 1), 14.0, dtype=torch.float64), weights, outcomes)
    share, table = stack(PROBLEM, low, high, outcomes)
    assert share == pytest.approx(0.6)
    assert [row["cost"] for row in table][6] == pytest.approx(0.0)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_pooled_scenarios_average_to_the_stacked_decision(share: float) -> None:
    sample = wavy(60)
    target = target_of("linear", sample)
    folds = make_folds(60, 5, generator())
    views = []
    for seed in (1, 2):
        loc = torch.randn(5, target.predictor.dim, generator=generator(seed))
        views.append(out_of_fold(target, folds, equal_mixture(target.family, loc, 0.1 + 0 * loc), generator(seed)))
    both = pooled(*views, share)
    each = [averaged(PROBLEM, view.scenarios, generator()).decisions for view in views]
    assert torch.allclose(averaged(PROBLEM, both.scenarios, generator()).decisions, torch.lerp(*each, share))
    assert both.scenarios.weights.sum().item() == pytest.approx(1.0)


def test_blended_goes_from_the_mean_prediction_to_bcp() -> None:
    outcomes = torch.randn(20, 30, 1, generator=generator(), dtype=torch.float64)
    weights = torch.full((30,), 1 / 30, dtype=torch.float64)
    scenarios = Scenarios(outcomes, weights, outcomes[:, 0])
    at_mean = PROBLEM.decide(outcomes.mean(dim=1))
    assert torch.allclose(blended(PROBLEM, scenarios, generator(), alpha=0.0).decisions, at_mean)
    assert torch.allclose(
        blended(PROBLEM, scenarios, generator(), alpha=1.0).decisions, bcp(PROBLEM, scenarios, generator()).decisions
    )


def test_auto_beats_its_own_linear_candidate_where_the_truth_bends() -> None:
    sample, fresh = wavy(300), wavy(2000, seed=9)
    options = make_options(hidden=(24,), epochs=80, seed=3)
    costs = {}
    for name, chosen in (("auto", options), ("linear", replace(options, predictor="linear", hidden=()))):
        posterior, _ = learn(PROBLEM, sample, chosen)
        scenarios = posterior.scenarios(fresh.contexts, posterior.draws())
        costs[name] = PROBLEM.cost(averaged(PROBLEM, scenarios, generator()).decisions, fresh.outcomes).mean().item()
    assert costs["auto"] < 0.75 * costs["linear"]


def test_auto_keeps_the_table_it_chose_from_and_recommends_a_policy() -> None:
    _, diagnostics = learn(PROBLEM, wavy(120), make_options(hidden=(8,), epochs=15))
    names = [(row["predictor"], row["name"]) for row in diagnostics["candidates"]]
    linear, network = sweep_for(120, LINEAR), sweep_for(120, NETWORK)
    assert names == [("linear", one.name) for one in linear] + [("skip_mlp", one.name) for one in network]
    assert sum(row["chosen"] for row in diagnostics["candidates"]) == 2
    assert diagnostics["policy"] in diagnostics["held_out_cost"]
    assert 0 <= diagnostics["network_share"] <= 1
    cheapest = min(row["cost"] for row in diagnostics["shares"])
    assert next(r["cost"] for r in diagnostics["shares"] if r["share"] == diagnostics["network_share"]) == cheapest


def test_an_explicit_temperature_holds_for_every_candidate() -> None:
    _, diagnostics = learn(PROBLEM, wavy(120), make_options(hidden=(8,), epochs=10, kl_weight=3e-4))
    assert diagnostics["kl_weight"] == pytest.approx(3e-4)
    assert all(row["kl_factor"] == 1 for row in diagnostics["candidates"])


def test_more_rows_need_fewer_members() -> None:
    assert (members_for(300), members_for(3000), members_for(3001)) == (10, 10, 5)


def test_the_default_temperature_falls_with_the_square_root_of_the_rows() -> None:
    few, many = (
        learn(PROBLEM, wavy(rows), make_options(predictor="linear", hidden=(), epochs=1))[1]["candidates"]
        for rows in (100, 400)
    )
    assert few[0]["kl_factor"] == many[0]["kl_factor"] == 1
    weights = [
        learn(PROBLEM, wavy(rows), make_options(method="vi", predictor="linear", hidden=(), epochs=1))[1]["kl_weight"]
        for rows in (100, 400)
    ]
    assert weights[0] / weights[1] == pytest.approx(2.0)
    assert LINEAR.prior_scale == 1.0


def test_the_mode_is_that_of_the_heaviest_component() -> None:
    loc = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    scale = torch.tensor([[1e-6, 1e-6], [1.0, 1.0]])
    mixture = Mixture(FAMILIES["laplace"], torch.tensor([0.4, 0.6]), loc, scale)
    assert torch.equal(mixture.mode(), loc[1])


def test_own_units_move_a_column_by_its_spread_and_nothing_else() -> None:
    sample = wavy(60)
    stretched = Sample(sample.contexts * torch.tensor([10.0, 1.0, 0.1]), sample.outcomes)
    predictor = build_predictor("linear", stretched)
    units = predictor.units()
    spread = predictor.contexts.scale
    columns, bias = units[: len(spread)], units[len(spread) :]
    torch.testing.assert_close(columns, spread / spread.square().mean().sqrt())
    assert (bias == 1).all()
    network = build_predictor("skip_mlp", stretched, (3,))
    assert torch.equal(network.units()[: 3 * len(spread)], columns.repeat_interleave(3))
    assert torch.equal(network.units()[-len(spread) - 1 : -1], columns)


@pytest.mark.parametrize("method", ["auto", "vi"])
def test_members_dealt_out_give_the_same_posterior_whoever_learns_them(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 150)
    sample = wavy(150)
    options = make_options(method=method, hidden=(8,), epochs=6, members=6, certify=True, seed=4)
    here, diagnostics = learn(PROBLEM, sample, options)
    dealt: list[Arrays] = []

    def deal(parts: Callable[[], list[tuple[int, Arrays]]], progress: Progress) -> list[Arrays]:
        dealt.extend(part for _, part in parts())
        done = [continue_part(PROBLEM, sample, options, part) for part in reversed(dealt)]
        return done[::-1]

    elsewhere, found = learn(PROBLEM, sample, options, deal=deal)
    assert digest(*elsewhere.to_arrays()) == digest(*here.to_arrays())
    assert found == diagnostics
    kinds = ["linear"] * 6 + ["skip_mlp"] * 6 if method == "auto" else ["mlp"] * 6
    assert [str(part["kind"][0]) for part in dealt] == kinds
    assert [int(part["member"][0]) for part in dealt] == list(range(6)) * (len(kinds) // 6)
    assert len({fit.tobytes() for fit in here.mixture.loc.numpy()}) == len(here.mixture.loc), "members differ"
    assert [len(epochs) for epochs in diagnostics["best_epochs"]] == [6] * len(set(kinds))


def test_dealt_members_learn_as_well_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, fresh = wavy(300), wavy(2000, seed=9)
    options = make_options(hidden=(24,), epochs=80, seed=3)
    costs = []
    for rows in (10_000, 300):
        monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", rows)
        posterior, _ = learn(PROBLEM, sample, options)
        scenarios = posterior.scenarios(fresh.contexts, posterior.draws())
        costs.append(PROBLEM.cost(averaged(PROBLEM, scenarios, generator()).decisions, fresh.outcomes).mean().item())
    assert costs[1] == pytest.approx(costs[0], rel=0.1)


def test_the_trace_of_a_member_survives_being_packed() -> None:
    target = target_of("linear", wavy(60))
    fit = fit_variational(
        target, make_folds(60, 1, generator()), VariationalOptions(epochs=3, patience=None), generator()
    )
    (again,) = unpacked(packed([fit]), target.family)
    assert again.trace == fit.trace
    assert again.trace[0].validation_cost is None
    assert torch.equal(again.mixture.loc, fit.mixture.loc)
