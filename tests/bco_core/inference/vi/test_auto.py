"""``auto``: candidates, mixing, and members learned in parallel."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bco_core.data import Sample, make_folds
from bco_core.distributions import Mixture, equal_mixture
from bco_core.inference.learn import LearningPlan, learn
from bco_core.inference.method import Learned
from bco_core.inference.options import LearningOptions, make_options
from bco_core.inference.vi.diagnostics import VariationalDiagnostics
from bco_core.inference.vi.fold_mixture import embed as embed
from bco_core.inference.vi.fold_mixture import pack_fit, unpack_fit
from bco_core.inference.vi.hyperparameters import LINEAR, NETWORK, at_one_temperature, members_for, sweep_for
from bco_core.inference.vi.variational import VariationalOptions, fit_variational
from bco_core.policies import decide
from bco_core.posterior import Posterior, digest
from bco_core.predictors.registry import PredictorOptions
from tests.support.nonlinear_demand import PROBLEM, nonlinear_sample, target_of
from tests.support.seeds import seeded


def learn_diagnostics(sample: Sample, options: LearningOptions) -> VariationalDiagnostics:
    return diagnostics_of(learn(PROBLEM, sample, options))


def diagnostics_of(learned: Learned) -> VariationalDiagnostics:
    assert isinstance(learned.diagnostics, VariationalDiagnostics)
    return learned.diagnostics


def nonlinear_in_six(rows: int, seed: int) -> Sample:
    """Draw demand with curvature and interactions in six of eight columns, with little noise."""
    contexts = torch.randn(rows, 8, dtype=torch.float64, generator=seeded(seed))
    a, b, c, d, e, f = contexts[:, :6].T
    signal = 10 * torch.sin(1.5 * a) + 6 * b.clamp_min(0) * c + 5 * d.abs() + 3 * e - 2 * f
    noise = torch.randn(rows, dtype=torch.float64, generator=seeded(seed + 100))
    return Sample(contexts, (80 + signal + noise)[:, None])


def averaged_cost(posterior: Posterior, fresh: Sample) -> float:
    scenarios = posterior.scenarios(fresh.contexts, posterior.draws())
    return PROBLEM.cost(decide(PROBLEM, scenarios, "averaged").decisions, fresh.outcomes).mean().item()


def test_a_linear_mixture_embedded_in_a_network_predicts_the_same() -> None:
    sample = nonlinear_sample()
    linear, network = target_of("linear", sample), target_of("skip_mlp", sample, (8, 8))
    loc = torch.randn(3, linear.predictor.dim, generator=seeded())
    mixture = equal_mixture(linear.family, loc, torch.full_like(loc, 0.01))
    embedded = embed(linear, mixture, network, range(sample.contexts.shape[1]))
    alone = linear.predictor.predict(mixture.loc, sample.contexts)
    inside = network.predictor.predict(embedded.loc, sample.contexts)
    assert torch.allclose(alone, inside, atol=1e-4)
    predictions = network.predictor.predict(embedded.sample(50, seeded()), sample.contexts)
    assert (predictions.mean(0) - alone.mean(0)).abs().max() < 0.1 * sample.outcomes.std()


@pytest.mark.slow
def test_auto_beats_its_linear_candidate_on_nonlinear_demand() -> None:
    sample, fresh = nonlinear_sample(300), nonlinear_sample(2000, seed=9)
    options = make_options(hidden=(24,), epochs=80, seed=3)
    costs = {}
    for name, chosen in (("auto", options), ("linear", replace(options, predictor=PredictorOptions("linear")))):
        costs[name] = averaged_cost(learn(PROBLEM, sample, chosen).posterior, fresh)
    assert costs["auto"] < 0.75 * costs["linear"]


def test_auto_stores_its_candidate_table_and_recommends_a_policy() -> None:
    diagnostics = learn_diagnostics(nonlinear_sample(120), make_options(hidden=(8,), epochs=15))
    names = [(row["predictor"], row["name"]) for row in diagnostics.candidates]
    linear, network = sweep_for(120, LINEAR), sweep_for(120, NETWORK)
    assert names == [("linear", one.name) for one in linear] + [("skip_mlp", one.name) for one in network]
    assert sum(row["chosen"] for row in diagnostics.candidates) == 2
    assert diagnostics.policy in diagnostics.held_out_cost
    assert diagnostics.network_share is not None
    assert 0 <= diagnostics.network_share <= 1
    cheapest = min(row["cost"] for row in diagnostics.shares)
    assert next(r["cost"] for r in diagnostics.shares if r["share"] == diagnostics.network_share) == cheapest


def test_a_given_temperature_applies_to_every_candidate() -> None:
    diagnostics = learn_diagnostics(nonlinear_sample(120), make_options(hidden=(8,), epochs=10, kl_weight=3e-4))
    assert diagnostics.kl_weight == pytest.approx(3e-4)
    assert all(row["kl_factor"] == 1 for row in diagnostics.candidates)


def test_a_given_temperature_still_lets_narrow_starts_compete() -> None:
    held = at_one_temperature(sweep_for(5000, NETWORK))
    assert all(one.whole_kl_factor == 1 for one in held)
    assert {one.start.scale_factor for one in held} == {1.0, 0.3, 0.1}


def test_weaker_priors_and_narrower_starts_compete_given_many_rows() -> None:
    few, many = (sweep_for(rows, NETWORK) for rows in (300, 5000))
    assert min(one.whole_kl_factor for one in few) == pytest.approx(0.3)
    weakest = sorted({round(one.whole_kl_factor, 4) for one in many})
    assert weakest == [0.01, 0.0333, 0.1, 0.3, 1.0]
    assert {few[0].name, many[0].name} == {"default"}, "the one to be left only for a clear gain"


@pytest.mark.slow
def test_a_narrow_start_lets_a_network_fit_a_rich_signal() -> None:
    """With curvature, interactions and little noise, a narrow start is chosen and costs less on fresh rows."""
    sample, fresh = nonlinear_in_six(800, 1), nonlinear_in_six(4000, 2)
    options = make_options(predictor="skip_mlp", hidden=(64, 64), members=5, epochs=120, seed=3)
    free, held = learn(PROBLEM, sample, options), learn(PROBLEM, sample, replace(options, kl_weight=1e-3))
    chosen = next(row for row in diagnostics_of(free).candidates if row["chosen"])
    assert chosen["scale_factor"] < 1
    assert averaged_cost(free.posterior, fresh) < 0.85 * averaged_cost(held.posterior, fresh)


@pytest.mark.slow
def test_more_columns_and_rows_do_not_raise_held_out_cost_beyond_noise() -> None:
    rich = nonlinear_in_six(1200, 5)
    options = make_options(hidden=(32,), members=5, epochs=60, seed=3)
    few, all_columns = Sample(rich.contexts[:, :3], rich.outcomes), rich
    fewer_rows = rich.rows(torch.arange(300))
    found = [diagnostics_of(learn(PROBLEM, one, options)).judged_cost for one in (all_columns, few, fewer_rows)]
    for worse in found[1:]:
        assert found[0].mean < worse.mean + 2 * math.hypot(found[0].standard_error, worse.standard_error)


def test_more_rows_need_fewer_members() -> None:
    assert (members_for(300), members_for(3000), members_for(3001)) == (10, 10, 5)


def test_the_default_temperature_falls_with_the_square_root_of_the_rows() -> None:
    few, many = (
        learn_diagnostics(nonlinear_sample(rows), make_options(predictor="linear", epochs=1)).candidates
        for rows in (100, 400)
    )
    assert few[0]["kl_factor"] == many[0]["kl_factor"] == 1
    weights = [
        learn_diagnostics(nonlinear_sample(rows), make_options(method="vi", predictor="linear", epochs=1)).kl_weight
        for rows in (100, 400)
    ]
    assert weights[0] / weights[1] == pytest.approx(2.0)
    assert LINEAR.prior_scale == 1.0


def test_members_learned_in_any_order_give_the_same_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 150)
    sample = nonlinear_sample(150)
    options = make_options(method="vi", hidden=(8,), epochs=6, members=6, certify=True, seed=4)
    here = learn(PROBLEM, sample, options)
    learning = LearningPlan.of(PROBLEM, sample, options)
    parts = learning.split()
    done = [learning.work(part.data) for part in reversed(parts)]
    elsewhere = learning.join(done[::-1])
    assert digest(*elsewhere.posterior.to_arrays()) == digest(*here.posterior.to_arrays())
    assert elsewhere.diagnostics == here.diagnostics
    assert [int(part.data["member"][0]) for part in parts] == list(range(6))
    mixture = here.posterior.distribution
    assert isinstance(mixture, Mixture)
    assert len({fit.tobytes() for fit in mixture.loc.numpy()}) == len(mixture.loc), "members differ"


@pytest.mark.slow
def test_members_learned_separately_are_as_good_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # A tenth of its rows stops a member that learns alone, so there must be enough rows, as in practice.
    sample, fresh = nonlinear_sample(2000, seed=3), nonlinear_sample(2000, seed=9)
    options = make_options(method="vi", predictor="linear", members=5, epochs=120, seed=3)
    costs = []
    for rows in (10_000, 2000):
        monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", rows)
        costs.append(averaged_cost(learn(PROBLEM, sample, options).posterior, fresh))
    assert costs[1] == pytest.approx(costs[0], rel=0.1)


def test_the_trace_of_a_member_round_trips_through_packing() -> None:
    target = target_of("linear", nonlinear_sample(60))
    fit = fit_variational(target, make_folds(60, 1, seeded()), VariationalOptions(epochs=3, patience=None), seeded())
    again = unpack_fit(pack_fit(fit), target.family)
    assert again.trace == fit.trace
    assert again.trace[0].validation_cost is None
    assert torch.equal(again.mixture.loc, fit.mixture.loc)
