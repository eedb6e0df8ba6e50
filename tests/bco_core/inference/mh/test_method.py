"""Learning by chains: feasible starts, temperature, diagnostics, resuming, thinning."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from bco_core.data import Arrays, Sample
from bco_core.distributions import FAMILIES, ChainDraws
from bco_core.estimates import Estimate
from bco_core.gibbs import make_target
from bco_core.inference.learn import LearningPlan, learn
from bco_core.inference.mh.diagnostics import ChainDiagnostics, ChainReport, Convergence, convergence, judge_chains
from bco_core.inference.mh.metropolis import MetropolisOptions
from bco_core.inference.mh.starts import choose_predictor, find_starts
from bco_core.inference.mh.temperature import LADDER
from bco_core.inference.mh.thinning import thin
from bco_core.inference.options import LearningOptions, make_options
from bco_core.policies import decide
from bco_core.posterior import Posterior, digest
from bco_core.predictors.registry import AUTO, PredictorOptions, build_predictor
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio
from tests.support.held_out_report import HELD_OUT

NEWSVENDOR = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})
ASSETS = 6
PROBLEM = ReturnConstrainedPortfolio.from_spec(
    {
        "assets": [{"name": f"a{j}"} for j in range(ASSETS)],
        "factors": {"loadings": [[0.005]] * ASSETS, "residual_variances": [4e-4] * ASSETS},
        "target_return": 0.08,
    }
)


def make_sample(rows: int = 80, seed: int = 0) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    slopes = 0.02 * torch.randn(2, ASSETS, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    noise = 0.02 * torch.randn(rows, ASSETS, generator=generator, dtype=torch.float64)
    return Sample(contexts, 0.1 + contexts @ slopes + noise)


QUICK = make_options(
    method="mh", predictor="linear", chains=3, steps=120, burn_in=60, particles=30, inverse_temperature=200.0
)


def learn_chains(options: LearningOptions, sample: Sample | None = None) -> tuple[Posterior, ChainDiagnostics]:
    found = learn(PROBLEM, sample or make_sample(), options)
    assert isinstance(found.diagnostics, ChainDiagnostics)
    return found.posterior, found.diagnostics


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_starts_are_feasible_only_with_their_shift(kind: str) -> None:
    sample = make_sample()
    predictor = build_predictor(kind, sample, (8,) if kind == "mlp" else ())
    target = make_target(PROBLEM, predictor, sample, FAMILIES["gaussian"])
    starts = find_starts(target, 3, 0.9, torch.Generator().manual_seed(1))
    assert starts.feasibility.min() >= 0.9
    assert (starts.shift < 0).all()
    assert not torch.equal(starts.theta[0], starts.theta[1])
    unshifted = starts.theta.clone()
    unshifted[:, -ASSETS:] -= starts.shift[:, None].float() - 0.0
    decisions = PROBLEM.decide(predictor.predict(unshifted, sample.contexts))
    assert (PROBLEM.slack(decisions, sample.outcomes) >= 0).double().mean(dim=1).max() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("bent", "kind"), [(False, "linear"), (True, "skip_mlp")])
def test_auto_takes_a_linear_model_unless_a_network_is_clearly_better(bent: bool, kind: str) -> None:
    sample = make_sample(200)
    if bent:
        sample = Sample(sample.contexts, 0.1 + 0.03 * sample.contexts.prod(dim=1, keepdim=True) + 0 * sample.outcomes)
    options = replace(QUICK, predictor=PredictorOptions("auto", (16,)))
    chosen, errors = choose_predictor(PROBLEM, sample, options)
    assert chosen == kind
    linear, network = (error.mean for error in errors)
    assert (network < 0.9 * linear) == bent
    posterior, told = learn_chains(options, sample)
    assert posterior.predictor.kind == kind
    assert [(row["predictor"], row["chosen"]) for row in told.candidates] == [(one, one == kind) for one in AUTO]
    assert [row["squared_error"]["mean"] for row in told.candidates] == [linear, network]


@pytest.mark.slow
def test_learning_by_chains_is_reproducible_and_round_trips_through_storage() -> None:
    first, diagnostics = learn_chains(QUICK)
    again, _ = learn_chains(QUICK)
    assert digest(*first.to_arrays()) == digest(*again.to_arrays())
    restored = Posterior.from_arrays(*first.to_arrays())
    assert digest(*restored.to_arrays()) == digest(*first.to_arrays())
    assert torch.equal(restored.draws(50, seed=3), first.draws(50, seed=3))
    other, _ = learn_chains(replace(QUICK, seed=1))
    assert digest(*other.to_arrays()) != digest(*first.to_arrays())
    assert first.particles.shape == (30, first.predictor.dim)
    assert diagnostics.inference == "mh"
    assert (diagnostics.prior.family, diagnostics.prior.scale) == ("laplace", 1.0)


@pytest.mark.slow
def test_chains_split_and_resumed_give_the_same_posterior_and_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(QUICK, inverse_temperature=None)
    whole, diagnostics = learn_chains(options)
    monkeypatch.setattr("bco_core.inference.mh.metropolis.CHECKPOINT_SECONDS", -1.0)

    learning = LearningPlan.of(PROBLEM, make_sample(), options)
    parts = learning.split()
    assert [part.work for part in parts] == [120] * 3
    done: dict[int, Arrays] = {}
    for seq in reversed(range(len(parts))):
        # Interrupt every chain, run the last ones first, and resume each from its checkpoint.
        left: list[Arrays] = []
        learning.work(parts[seq].data, checkpoint=left.append)
        done[seq] = learning.work(left[seq % 2])
    found = learning.join([done[seq] for seq in range(len(parts))])
    assert digest(*found.posterior.to_arrays()) == digest(*whole.to_arrays())
    assert found.diagnostics == diagnostics


def test_the_mode_is_the_densest_stored_draw() -> None:
    posterior, diagnostics = learn_chains(QUICK)
    draws = posterior.distribution
    assert isinstance(draws, ChainDraws)
    target = make_target(PROBLEM, posterior.predictor, make_sample(), FAMILIES["laplace"])
    density = target.log_density(draws.loc, diagnostics.inverse_temperature)
    assert density.argmax() == draws.best


@pytest.mark.slow
def test_decisions_from_chains_meet_the_return_and_point_predictions_do_not() -> None:
    sample, fresh = make_sample(200), make_sample(600, seed=5)
    posterior, _ = learn_chains(replace(QUICK, particles=100), sample)
    scenarios = posterior.scenarios(fresh.contexts, posterior.particles)
    ours = PROBLEM.feasible(decide(PROBLEM, scenarios, "bcp").decisions, fresh.outcomes).double().mean()
    inputs = np.c_[sample.contexts.numpy(), np.ones(200)]
    slopes = np.linalg.lstsq(inputs, sample.outcomes.numpy(), rcond=None)[0]
    point = torch.from_numpy(np.c_[fresh.contexts.numpy(), np.ones(600)] @ slopes)
    theirs = PROBLEM.feasible(PROBLEM.decide(point), fresh.outcomes).double().mean()
    assert ours >= 0.95
    assert theirs < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("rows", [320, 640])
def test_chains_require_feasibility_plus_two_standard_errors_on_the_history(rows: int) -> None:
    _, told = learn_chains(replace(QUICK, steps=60, burn_in=30), make_sample(rows))
    assert min(told.start.feasibility) >= min(1.0, 0.95 + 2 * math.sqrt(0.95 * 0.05 / rows)) - 1e-12
    assert told.history.required_feasibility == pytest.approx(0.95 + 2 * math.sqrt(0.95 * 0.05 / rows))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["settle", "validation"])
def test_an_omitted_temperature_is_searched_and_reported(temperature: str) -> None:
    options = replace(QUICK, inverse_temperature=None, temperature=temperature)
    _, diagnostics = learn_chains(options)
    chosen = [row for row in diagnostics.temperatures if row["chosen"]]
    assert len(chosen) == 1
    assert diagnostics.inverse_temperature == chosen[0]["inverse_temperature"]
    assert diagnostics.inverse_temperature in LADDER
    names = {"settle": {"loss_before", "loss_after"}, "validation": {"cost", "feasibility"}}[temperature]
    assert set(chosen[0]) == names | {"inverse_temperature", "chosen"}
    if temperature == "settle":
        assert chosen[0]["loss_after"] == pytest.approx(chosen[0]["loss_before"], rel=0.05)


@pytest.mark.slow
def test_raw_costs_can_be_requested() -> None:
    _, scaled = learn_chains(QUICK)
    _, raw = learn_chains(replace(QUICK, scale_costs=False))
    assert raw.cost_scale == 1.0
    assert scaled.cost_scale < 0.01


PLAN = MetropolisOptions(100.0, minimum_feasibility=0.98)
MIXED = Convergence(r_hat=1.0, ess_bulk=1000.0, ess_tail=1000.0)
REPORT = ChainReport(
    count=2,
    steps=100,
    burn_in=50,
    draws=100,
    acceptance=[0.2, 0.25],
    loss=MIXED,
    predictions=MIXED,
    between_over_within=2.0,
    mean_loss=[1.0, 1.0],
    trace=[],
    rejected_unseen=[0.0, 0.0],
    rejected_early=[0.0, 0.0],
)


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "ok", "the chains agree"),
        ({"predictions": replace(MIXED, r_hat=1.8)}, "warn", "chains disagree: R-hat is 1.80"),
        ({"predictions": replace(MIXED, r_hat=1.8)}, "warn", "predictions differ 2.0 times as much between chains"),
        ({"predictions": replace(MIXED, r_hat=1.05)}, "warn", "chains nearly agree: R-hat is 1.050 (1.01 is advised)"),
        ({"loss": replace(MIXED, r_hat=1.009, ess_bulk=401)}, "ok", "the chains agree"),
        ({"loss": replace(MIXED, ess_bulk=399)}, "warn", "sample size is 399 (400 is advised)"),
        ({"loss": replace(MIXED, ess_bulk=20)}, "warn", "sample size is 20"),
        ({"acceptance": [0.2, 0.0]}, "bad", "did not move"),
        ({"loss": Convergence(None, None, None)}, "warn", "chains disagree"),
    ],
)
def test_the_verdict_on_chains_names_the_problem(changes: dict[str, Any], verdict: str, words: str) -> None:
    quality = judge_chains(100, replace(REPORT, **changes), PLAN, PROBLEM, HELD_OUT, 0.95)
    assert quality.verdict == verdict
    assert words in quality.reason


def test_chains_on_few_rows_are_warned_of_even_if_they_mix() -> None:
    quality = judge_chains(20, REPORT, PLAN, PROBLEM, HELD_OUT, 0.95)
    assert quality.verdict == "warn"
    assert "only 20 rows" in quality.reason


def test_chains_with_lower_feasibility_than_required_are_bad() -> None:
    quality = judge_chains(100, REPORT, replace(PLAN, minimum_feasibility=0.5), PROBLEM, HELD_OUT, 0.95)
    assert quality.verdict == "bad"
    assert quality.reason == (
        "no model was found whose decisions satisfy their constraints in 95% of the history; "
        "the chains require only 50.0%"
    )


def test_chains_infeasible_on_held_out_rows_are_warned_of() -> None:
    # 95 % of 400 rows: two and a half standard errors are 2.7 %, plus a tolerance of 1 %.
    far, near = (judge_chains(400, REPORT, PLAN, PROBLEM, HELD_OUT, share) for share in (0.905, 0.92))
    assert (far.verdict, near.verdict) == ("warn", "ok")
    assert far.reason == "on held-out rows decisions satisfy their constraints in 90.5%, and 95% is required"


@pytest.mark.parametrize(
    ("gain", "verdict", "words"),
    [
        (Estimate(-10.0, 1.0), "ok", "held-out rows confirm them"),
        (Estimate(-1.0, 1.0), "warn", "do not clearly beat one constant decision"),
        (Estimate(2.0, 1.0), "bad", "cost more than one constant decision"),
    ],
)
def test_chains_of_certain_constraints_are_judged_by_held_out_costs(gain: Estimate, verdict: str, words: str) -> None:
    held_out = replace(HELD_OUT, over_constant=gain)
    quality = judge_chains(100, REPORT, replace(PLAN, minimum_feasibility=None), NEWSVENDOR, held_out, 1.0)
    assert quality.verdict == verdict
    assert words in quality.reason


def test_separated_chains_have_a_large_r_hat_and_mixed_ones_do_not() -> None:
    noise = np.random.default_rng(0).normal(size=(4, 200, 3))
    mixed, apart = convergence(noise), convergence(noise + 5 * np.arange(4)[:, None, None])
    assert mixed.r_hat is not None
    assert apart.r_hat is not None
    assert mixed.r_hat < 1.05
    assert apart.r_hat > 2
    assert mixed.ess_bulk is not None
    assert 400 < mixed.ess_bulk < 1600
    assert convergence(np.zeros((4, 200, 1))) == Convergence(None, None, None)


def split_r_hat(values: np.ndarray[Any, Any]) -> float:
    """√(((N − 1)/N · W + B/N) / W) over the halves of chains (chains, draws), by the textbook."""
    half = values.shape[1] // 2
    halves = np.concatenate([values[:, :half], values[:, -half:]])
    within, between = halves.var(axis=1, ddof=1).mean(), half * halves.mean(axis=1).var(ddof=1)
    return float(np.sqrt(((half - 1) / half * within + between / half) / within))


def rank_normalized(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return normal scores of the ranks over all chains (Vehtari et al., 2021, equation 14)."""
    ranks = rankdata(values).reshape(values.shape)
    return np.asarray(norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4)))


@pytest.mark.parametrize("kind", ["mixed", "heavy tails", "one chain is wider", "one chain is apart"])
def test_r_hat_is_the_maximum_of_rank_and_folded_rank_r_hat(kind: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_cauchy((4, 200)) if kind == "heavy tails" else rng.normal(size=(4, 200))
    if kind == "one chain is wider":
        values[0] *= 10
    if kind == "one chain is apart":
        values[0] += 1
    folded = np.abs(values - np.median(values))
    expected = max(split_r_hat(rank_normalized(values)), split_r_hat(rank_normalized(folded)))
    assert convergence(values[:, :, None]).r_hat == pytest.approx(expected, rel=1e-6)
    assert (expected > 1.1) == kind.startswith("one chain")


def test_one_unmixed_quantity_is_not_hidden_by_mixed_ones() -> None:
    noise = np.random.default_rng(0).normal(size=(4, 200, 3))
    stuck = noise.copy()
    stuck[:, :, 1] += 5 * np.arange(4)[:, None]
    found, alone = convergence(stuck), convergence(stuck[:, :, 1:2])
    assert found == alone
    assert alone.r_hat is not None
    assert alone.r_hat > 2
    slow = noise.copy()
    slow[:, :, 2] = slow[:, :, 2].cumsum(axis=1)
    found, alone = convergence(slow), convergence(slow[:, :, 2:])
    assert (found.ess_bulk, found.ess_tail) == (alone.ess_bulk, alone.ess_tail)
    assert alone.ess_bulk is not None
    assert alone.ess_bulk < 50


def test_burn_in_losses_are_excluded_from_mixing_diagnostics() -> None:
    _, told = learn_chains(QUICK)
    losses = np.array([point["loss"] for point in told.chains.trace])
    assert told.chains.loss.r_hat == pytest.approx(convergence(losses[60:].T[:, :, None]).r_hat, rel=1e-6)
    assert told.chains.loss.r_hat != pytest.approx(convergence(losses.T[:, :, None]).r_hat, rel=1e-6)


def test_the_report_counts_steps_draws_and_acceptance_of_the_sampled_steps() -> None:
    posterior, told = learn_chains(QUICK)
    chains = told.chains
    assert (chains.count, chains.steps, chains.burn_in, chains.draws) == (3, 120, 60, 180)
    assert isinstance(posterior.distribution, ChainDraws)
    assert len(posterior.distribution.loc) == chains.draws
    assert all(0 < share < 1 for share in chains.acceptance)
    assert [point["step"] for point in chains.trace] == list(range(1, 121))
    late = [[point["loss"][chain] for point in chains.trace[60:]] for chain in range(3)]
    assert chains.mean_loss == pytest.approx([sum(losses) / 60 for losses in late])


def test_diagnostics_of_chains_are_plain_json() -> None:
    _, told = learn_chains(QUICK)
    plain = told.to_json()
    assert plain["temperatures"] == [
        {"inverse_temperature": 200.0, "loss_before": None, "loss_after": None, "chosen": 1.0}
    ]
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["chains"]["loss"]["r_hat"] == told.chains.loss.r_hat
    assert plain["certificate"] == {"bound": None, "reason": "a certificate needs variational inference"}


def test_reported_feasibility_of_training_rows_is_that_of_bcp_decisions() -> None:
    sample = make_sample()
    posterior, told = learn_chains(QUICK, sample)
    predictions = posterior.predictor.predict(posterior.particles, sample.contexts).transpose(0, 1)
    decisions = PROBLEM.prescribe(predictions, torch.full((30,), 1 / 30, dtype=torch.float64)).decisions
    kept = PROBLEM.feasible(decisions, sample.outcomes).double().mean().item()
    assert told.history.rows == 80
    assert told.history.cost.mean == pytest.approx(PROBLEM.cost(decisions, sample.outcomes).mean().item())
    assert told.history.feasibility == pytest.approx(kept)
    assert min(told.history.chain_feasibility) >= (told.history.required_feasibility or 0) > 0


def test_regular_thinning_takes_evenly_spaced_draws_of_every_chain() -> None:
    sample = make_sample()
    predictor = build_predictor("linear", sample)
    kept = torch.zeros(100, 4, predictor.dim)
    chosen = thin(predictor, kept, sample.contexts, 20, "regular")
    steps, chains = chosen // 4, chosen % 4
    assert chains.bincount().tolist() == [5, 5, 5, 5]
    assert sorted(steps[chains == 2].tolist()) == [10, 30, 50, 70, 90]
    assert math.isclose(len(thin(predictor, kept, sample.contexts, 1000, "regular")), 400)
