"""Learning by chains: starts that keep constraints, temperatures, diagnostics in words, resuming, support points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bco_core.data import Sample
from bco_core.families import FAMILIES
from bco_core.gibbs import make_target
from bco_core.inference.chains import LADDER, choose_predictor, continue_chain, find_starts, judge_chains, thin
from bco_core.inference.learn import LearningOptions, learn
from bco_core.inference.metropolis import MetropolisOptions
from bco_core.inference.training import Progress
from bco_core.policies import POLICIES
from bco_core.posterior import Arrays, ChainDraws, Posterior, digest
from bco_core.predictors import build_predictor
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio

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


QUICK = LearningOptions(
    method="mh", predictor="linear", chains=3, steps=120, burn_in=60, particles=30, inverse_temperature=200.0
)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_starts_keep_the_constraints_and_a_smaller_shift_would_not(kind: str) -> None:
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


@pytest.mark.parametrize(("bent", "kind"), [(False, "linear"), (True, "skip_mlp")])
def test_auto_takes_a_linear_model_unless_a_network_predicts_clearly_better(bent: bool, kind: str) -> None:
    sample = make_sample(200)
    if bent:
        sample = Sample(sample.contexts, 0.1 + 0.03 * sample.contexts.prod(dim=1, keepdim=True) + 0 * sample.outcomes)
    chosen, table = choose_predictor(PROBLEM, sample, replace(QUICK, hidden=(16,)))
    assert chosen == kind
    assert [row["predictor"] for row in table if row["chosen"]] == [kind]


def test_learning_by_chains_is_reproducible_and_survives_storage() -> None:
    first, diagnostics = learn(PROBLEM, make_sample(), QUICK)
    again, _ = learn(PROBLEM, make_sample(), QUICK)
    assert digest(*first.to_arrays()) == digest(*again.to_arrays())
    restored = Posterior.from_arrays(*first.to_arrays())
    assert digest(*restored.to_arrays()) == digest(*first.to_arrays())
    assert torch.equal(restored.draws(50, seed=3), first.draws(50, seed=3))
    other, _ = learn(PROBLEM, make_sample(), replace(QUICK, seed=1))
    assert digest(*other.to_arrays()) != digest(*first.to_arrays())
    assert first.particles.shape == (30, first.predictor.dim)
    assert diagnostics["inference"] == "mh"
    assert diagnostics["prior"] == {"family": "laplace", "scale": 1.0}


def test_chains_dealt_out_and_resumed_give_the_same_posterior_and_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(QUICK, inverse_temperature=None)
    whole, diagnostics = learn(PROBLEM, make_sample(), options)
    monkeypatch.setattr("bco_core.inference.metropolis.CHECKPOINT_SECONDS", -1.0)

    def deal(parts: Callable[[], list[tuple[int, Arrays]]], progress: Progress) -> list[Arrays]:
        """Every chain is interrupted, the last ones come first, and each goes on from what it had left behind."""
        dealt = [part for _, part in parts()]
        assert len(dealt) == options.chains
        done = {}
        for seq in reversed(range(len(dealt))):
            left: list[Arrays] = []
            continue_chain(PROBLEM, make_sample(), options, dealt[seq], checkpoint=left.append)
            done[seq] = continue_chain(PROBLEM, make_sample(), options, left[seq % 2])
        return [done[seq] for seq in range(len(dealt))]

    again, found = learn(PROBLEM, make_sample(), options, deal=deal)
    assert digest(*again.to_arrays()) == digest(*whole.to_arrays())
    assert found == diagnostics


def test_the_mode_is_the_densest_of_the_kept_draws() -> None:
    posterior, diagnostics = learn(PROBLEM, make_sample(), QUICK)
    draws = posterior.mixture
    assert isinstance(draws, ChainDraws)
    target = make_target(PROBLEM, posterior.predictor, make_sample(), FAMILIES["laplace"])
    density = target.log_density(draws.loc, diagnostics["inverse_temperature"])
    assert density.argmax() == draws.best


def test_fresh_draws_take_every_kept_draw_once_before_any_twice() -> None:
    draws = ChainDraws(torch.arange(5.0)[:, None], 2)
    taken = draws.sample(7, torch.Generator().manual_seed(0))[:, 0]
    assert sorted(taken[:5].tolist()) == [0, 1, 2, 3, 4]
    assert draws.mode().item() == 2


def test_decisions_from_chains_keep_the_return_more_often_than_the_point_decision() -> None:
    sample, fresh = make_sample(200), make_sample(600, seed=5)
    posterior, _ = learn(PROBLEM, sample, replace(QUICK, particles=100))
    scenarios = posterior.scenarios(fresh.contexts, posterior.particles)
    generator = torch.Generator()
    kept = {
        name: PROBLEM.feasible(POLICIES[name](PROBLEM, scenarios, generator).decisions, fresh.outcomes).double().mean()
        for name in ("bcp", "map")
    }
    assert kept["bcp"] >= kept["map"]
    assert kept["bcp"] > 0.85


@pytest.mark.parametrize("temperature", ["settle", "validation"])
def test_a_temperature_that_is_not_given_is_found_and_shown(temperature: str) -> None:
    options = replace(QUICK, inverse_temperature=None, temperature=temperature)
    _, diagnostics = learn(PROBLEM, make_sample(), options)
    chosen = [row for row in diagnostics["temperatures"] if row["chosen"]]
    assert len(chosen) == 1
    assert diagnostics["inverse_temperature"] == chosen[0]["inverse_temperature"]
    assert diagnostics["inverse_temperature"] in LADDER
    names = {"settle": {"loss_before", "loss_after"}, "validation": {"cost", "feasibility"}}[temperature]
    assert set(chosen[0]) == names | {"inverse_temperature", "chosen"}
    if temperature == "settle":
        assert chosen[0]["loss_after"] == pytest.approx(chosen[0]["loss_before"], rel=0.05)


def test_raw_costs_may_be_asked_for() -> None:
    _, scaled = learn(PROBLEM, make_sample(), QUICK)
    _, raw = learn(PROBLEM, make_sample(), replace(QUICK, scale_costs=False))
    assert raw["cost_scale"] == 1.0
    assert scaled["cost_scale"] < 0.01


def convergence(r_hat: float = 1.0, ess: float = 1000.0) -> dict[str, float | None]:
    return {"r_hat": r_hat, "ess_bulk": ess, "ess_tail": ess}


PLAN = MetropolisOptions(100.0, minimum_feasibility=0.95)


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "ok", "the chains agree"),
        ({"predictions": convergence(r_hat=1.8)}, "warn", "chains disagree: R-hat is 1.80"),
        ({"loss": convergence(ess=20)}, "warn", "worth 20 independent ones"),
        ({"rows": 20}, "warn", "only 20 rows"),
        ({"accepted": torch.tensor([0.2, 0.0])}, "bad", "did not move"),
        ({"plan": replace(PLAN, minimum_feasibility=0.5)}, "bad", "in 95% of the history"),
        ({"loss": {"r_hat": None, "ess_bulk": None, "ess_tail": None}}, "warn", "chains disagree"),
    ],
)
def test_the_verdict_on_chains_is_in_words(changes: dict[str, Any], verdict: str, words: str) -> None:
    facts = {
        "rows": 100,
        "loss": convergence(),
        "predictions": convergence(),
        "accepted": torch.tensor([0.2, 0.25]),
        "ratio": 2.0,
        "plan": PLAN,
        "problem": PROBLEM,
    }
    quality = judge_chains(**(facts | changes))
    assert quality.verdict == verdict
    assert words in quality.reason


def test_separate_chains_have_an_r_hat_far_from_one_and_mixed_ones_do_not() -> None:
    from bco_core.inference.chains import _convergence

    noise = np.random.default_rng(0).normal(size=(4, 200, 3))
    mixed, apart = _convergence(noise), _convergence(noise + 5 * np.arange(4)[:, None, None])
    assert mixed["r_hat"] is not None
    assert apart["r_hat"] is not None
    assert mixed["r_hat"] < 1.05
    assert apart["r_hat"] > 2
    assert mixed["ess_bulk"] is not None
    assert 400 < mixed["ess_bulk"] < 1600
    assert _convergence(np.zeros((4, 200, 1))) == {"r_hat": None, "ess_bulk": None, "ess_tail": None}


# thinning


def test_regular_thinning_takes_the_same_share_of_every_chain_at_even_intervals() -> None:
    sample = make_sample()
    predictor = build_predictor("linear", sample)
    kept = torch.zeros(100, 4, predictor.dim)
    chosen = thin(predictor, kept, sample.contexts, 20, "regular")
    steps, chains = chosen // 4, chosen % 4
    assert chains.bincount().tolist() == [5, 5, 5, 5]
    assert sorted(steps[chains == 2].tolist()) == [10, 30, 50, 70, 90]
    assert math.isclose(len(thin(predictor, kept, sample.contexts, 1000, "regular")), 400)
