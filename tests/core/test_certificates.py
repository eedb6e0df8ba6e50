from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from bco_core.certificates import ModelClass, certify
from bco_core.data import Sample
from bco_core.distributions import equal_mixture
from bco_core.families import FAMILIES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.policies import decide
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor

BOUNDED = Newsvendor.from_spec(
    {
        "items": [
            {"underage_cost": 3, "overage_cost": 1, "minimum_order": 0, "maximum_order": 50, "maximum_demand": 50},
        ]
    }
)
OPEN = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 0}]})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def demand(rows: int, seed: int) -> Sample:
    draw = generator(seed)
    contexts = torch.rand(rows, 1, generator=draw, dtype=torch.float64)
    noise = torch.rand(rows, 1, generator=draw, dtype=torch.float64)
    return Sample(contexts, 10 + 25 * contexts + 10 * noise)


def linear_target(sample: Sample, problem: Newsvendor = BOUNDED) -> GibbsTarget:
    return make_target(problem, build_predictor("linear", sample), sample, FAMILIES["laplace"])


def test_no_cost_exceeds_the_newsvendors_bound_and_some_cost_reaches_it() -> None:
    grid = torch.linspace(0, 50, 51, dtype=torch.float64)
    costs = BOUNDED.cost(grid[:, None, None].expand(51, 51, 1), grid[None, :, None].expand(51, 51, 1))
    assert costs.max().item() == pytest.approx(BOUNDED.cost_bound)


@pytest.mark.parametrize(
    ("problem", "rows", "words"),
    [(OPEN, torch.arange(50), "maximum_demand"), (BOUNDED, None, "certify")],
)
def test_a_certificate_that_cannot_hold_is_absent_and_says_why(
    problem: Newsvendor, rows: torch.Tensor | None, words: str
) -> None:
    target = linear_target(demand(60, 0), problem)
    mixture = equal_mixture(target.family, torch.zeros(1, 2), torch.ones(1, 2))
    certificate = certify([ModelClass(target, mixture, 1.0)], rows, 0.95, generator())
    assert certificate.bound is None
    assert words in certificate.reason


def test_outcomes_beyond_the_stated_bounds_void_the_certificate() -> None:
    sample = demand(60, 0)
    beyond = Sample(sample.contexts, sample.outcomes + 60)
    target = linear_target(beyond)
    mixture = equal_mixture(target.family, torch.zeros(1, 2), torch.full((1, 2), 0.1))
    certificate = certify([ModelClass(target, mixture, 1.0)], torch.arange(60), 0.95, generator())
    assert "beyond the stated bounds, such as demand above maximum_demand" in certificate.reason


def test_the_terms_are_those_of_the_lemma() -> None:
    target = linear_target(demand(500, 0))
    loc, scale = torch.tensor([[0.7, 0.2]]), torch.tensor([[0.05, 0.1]])
    rows = torch.arange(500)
    certificate = certify([ModelClass(target, equal_mixture(target.family, loc, scale), 1.0)], rows, 0.9, generator())
    terms, bound = certificate.terms, BOUNDED.cost_bound
    kl = sum(
        abs(m) + s * math.exp(-abs(m) / s) - math.log(s) - 1
        for m, s in zip(loc[0].tolist(), scale[0].tolist(), strict=True)
    )
    assert terms["kl"] == pytest.approx(kl, rel=1e-5)
    lam = terms["lambda"]
    assert terms["complexity"] == pytest.approx(bound * (kl + math.log(2 * 33 / 0.1)) / (lam * 500), rel=1e-5)
    assert terms["lambda_over_8"] == pytest.approx(bound * lam / 8)
    parts = ("empirical_risk", "monte_carlo_margin", "complexity", "lambda_over_8")
    assert certificate.bound == pytest.approx(sum(terms[name] for name in parts))


def test_the_bound_of_a_learned_linear_posterior_is_informative_and_holds_on_fresh_rows() -> None:
    fresh = demand(20_000, 99)
    for seed in range(3):
        options = make_options(predictor="linear", hidden=(), certify=True, epochs=60, seed=seed)
        learned = learn(BOUNDED, demand(1500, seed), options)
        posterior, certificate = learned.posterior, learned.diagnostics.certificate
        assert not certificate.vacuous
        assert certificate.bound is not None
        assert certificate.bound < 0.4 * BOUNDED.cost_bound
        scenarios = posterior.scenarios(fresh.contexts, posterior.draws())
        decisions = decide(BOUNDED, scenarios, "averaged").decisions
        assert BOUNDED.cost(decisions, fresh.outcomes).mean().item() < certificate.bound


def test_rows_set_aside_for_scaling_do_not_count_in_the_certificate() -> None:
    options = make_options(predictor="linear", hidden=(), certify=True, epochs=3)
    assert learn(BOUNDED, demand(200, 1), options).diagnostics.certificate.rows == 180
    without = learn(BOUNDED, demand(200, 1), replace(options, certify=False)).diagnostics.certificate
    assert without.bound is None
    assert without.to_json() == {"bound": None, "reason": without.reason}


def test_a_certificate_told_as_json_keeps_its_figures_and_leaves_out_the_reason_it_has_not() -> None:
    target = linear_target(demand(100, 0))
    mixture = equal_mixture(target.family, torch.zeros(1, 2), torch.ones(1, 2))
    certificate = certify([ModelClass(target, mixture, 1.0)], torch.arange(100), 0.95, generator())
    told = certificate.to_json()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert "reason" not in told
    assert (told["bound"], told["confidence"], told["rows"]) == (certificate.bound, 0.95, 100)
    assert told["policies"] == ["thompson", "averaged"]
    assert told["terms"]["cost_bound"] == BOUNDED.cost_bound
