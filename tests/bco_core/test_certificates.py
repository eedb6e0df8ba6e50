"""Certificates of posteriors: bounds on cost, terms, margins, and when they are absent."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import rel_entr

from bco_core import certificates
from bco_core.certificates import BOUNDS, Certificate, ModelClass, Moments, certify, largest_average
from bco_core.data import Sample
from bco_core.distributions import FAMILIES, Mixture, equal_mixture
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.learn import learn
from bco_core.inference.method import Task
from bco_core.inference.options import make_options
from bco_core.inference.vi import method as vi_method
from bco_core.inference.vi.warm_start import ridge
from bco_core.policies import decide
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor
from tests.support.seeds import seeded

BOUNDED = Newsvendor.from_spec(
    {
        "items": [
            {"underage_cost": 3, "overage_cost": 1, "minimum_order": 0, "maximum_order": 50, "maximum_demand": 50},
        ]
    }
)
OPEN = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 0}]})


def demand(rows: int, seed: int) -> Sample:
    draw = seeded(seed)
    contexts = torch.rand(rows, 1, generator=draw, dtype=torch.float64)
    noise = torch.rand(rows, 1, generator=draw, dtype=torch.float64)
    return Sample(contexts, 10 + 25 * contexts + 10 * noise)


def linear_target(sample: Sample, problem: Newsvendor = BOUNDED) -> GibbsTarget:
    return make_target(problem, build_predictor("linear", sample), sample, FAMILIES["laplace"])


@pytest.mark.parametrize(("underage", "overage", "most"), [(3, 1, 50), (1, 3, 50), (1, 1, 20), (2, 1, 90)])
def test_the_newsvendors_cost_bound_holds_and_is_attained(underage: float, overage: float, most: float) -> None:
    item = {"underage_cost": underage, "overage_cost": overage, "minimum_order": 5, "maximum_order": 50}
    problem = Newsvendor.from_spec({"items": [item | {"maximum_demand": most}]})
    orders, demands = (torch.linspace(*ends, 46, dtype=torch.float64) for ends in ((5, 50), (0, most)))
    costs = problem.cost(orders[:, None, None].expand(46, 46, 1), demands[None, :, None].expand(46, 46, 1))
    assert costs.max().item() == pytest.approx(problem.cost_bound)


def certify_classes(
    classes: list[ModelClass], rows: torch.Tensor | None, confidence: float = 0.95, particles: int = 200
) -> Certificate:
    return certify(classes, rows, confidence, particles, seeded())


def point_class(target: GibbsTarget, weight: float = 1.0, loc: tuple[float, float] = (0.7, 0.2)) -> ModelClass:
    """Return a posterior with almost no spread: its draws cost as much as its location."""
    return ModelClass(target, equal_mixture(target.family, torch.tensor([loc]), torch.full((1, 2), 1e-6)), weight)


def laplace_kl(loc: list[float], scale: list[float]) -> float:
    return sum(abs(m) + s * math.exp(-abs(m) / s) - math.log(s) - 1 for m, s in zip(loc, scale, strict=True))


def mean_cost(target: GibbsTarget, loc: tuple[float, float], rows: torch.Tensor, power: int = 1) -> float:
    predictions = target.predictor.predict(torch.tensor([loc]), target.sample.contexts[rows])[0]
    return BOUNDED.cost(predictions.clamp(0, 50), target.sample.outcomes[rows]).pow(power).mean().item()


@pytest.mark.parametrize(
    ("problem", "rows", "words"),
    [(OPEN, torch.arange(50), "maximum_demand"), (BOUNDED, None, "certify")],
)
def test_an_impossible_certificate_is_absent_with_a_reason(
    problem: Newsvendor, rows: torch.Tensor | None, words: str
) -> None:
    target = linear_target(demand(60, 0), problem)
    mixture = equal_mixture(target.family, torch.zeros(1, 2), torch.ones(1, 2))
    certificate = certify_classes([ModelClass(target, mixture, 1.0)], rows)
    assert certificate.bound is None
    assert words in certificate.reason


def test_outcomes_beyond_their_bounds_void_the_certificate() -> None:
    sample = demand(60, 0)
    beyond = Sample(sample.contexts, sample.outcomes + 60)
    target = linear_target(beyond)
    mixture = equal_mixture(target.family, torch.zeros(1, 2), torch.full((1, 2), 0.1))
    certificate = certify_classes([ModelClass(target, mixture, 1.0)], torch.arange(60))
    assert "beyond the bounds that the problem states" in certificate.reason


@pytest.mark.parametrize(
    ("value", "words"),
    [(58.0, "outcome 0 is 58 in row 7, above the 50"), (-5.0, "outcome 0 is -5 in row 7, below the 0")],
)
@pytest.mark.parametrize("first", [0, 20], ids=["among the judged rows", "among the rows set aside"])
def test_an_outcome_beyond_its_bounds_is_named_even_if_all_costs_are_within(
    value: float, words: str, first: int
) -> None:
    sample = demand(60, 0)
    sample.outcomes[7] = value
    target = linear_target(sample)
    assert mean_cost(target, (0.7, 0.2), torch.tensor([7])) < BOUNDED.cost_bound
    certificate = certify_classes([point_class(target)], torch.arange(first, 60))
    assert certificate.bound is None
    assert words in certificate.reason
    assert "1 of 60 rows" in certificate.reason
    assert "maximum_demand" in certificate.reason


def test_outcomes_at_their_bounds_keep_the_certificate() -> None:
    sample = demand(60, 0)
    sample.outcomes[:2] = torch.tensor([[0.0], [50.0]])
    assert certify_classes([point_class(linear_target(sample))], torch.arange(60)).bound is not None


def test_the_second_item_is_named_by_its_number() -> None:
    item = {"underage_cost": 3, "overage_cost": 1, "minimum_order": 0, "maximum_order": 50}
    two = Newsvendor.from_spec({"items": [item | {"maximum_demand": 90}, item | {"maximum_demand": 20}]})
    sample = demand(40, 0)
    pairs = Sample(sample.contexts, torch.cat([2 * sample.outcomes, sample.outcomes / 3], dim=1))
    pairs.outcomes[11, 1] = 20.5
    target = linear_target(pairs, two)
    mixture = equal_mixture(target.family, torch.zeros(1, 4), torch.ones(1, 4))
    reason = certify_classes([ModelClass(target, mixture, 1.0)], torch.arange(40)).reason
    assert "outcome 1 is 20.5 in row 11, above the 20" in reason


def test_costs_beyond_the_bound_void_the_certificate_without_outcome_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Newsvendor, "outcome_bounds", None)
    sample = demand(60, 0)
    target = linear_target(Sample(sample.contexts, sample.outcomes + 300))
    reason = certify_classes([point_class(target, loc=(0.0, -30.0))], torch.arange(60)).reason
    assert "the history holds" in reason


def test_a_posterior_without_spread_has_the_terms_of_its_location() -> None:
    target, loc, rows = linear_target(demand(500, 0)), (0.7, 0.2), torch.arange(500)
    certificate = certify_classes([point_class(target, loc=loc)], rows, 0.9)
    terms, bound = certificate.terms, BOUNDED.cost_bound
    assert terms["kl"] == pytest.approx(laplace_kl([0.7, 0.2], [1e-6] * 2), rel=1e-5)
    # A million costs, drawn with replacement.
    assert terms["empirical_risk"] == pytest.approx(mean_cost(target, loc, rows), rel=0.01)
    assert terms["mean_squared_cost"] == pytest.approx(mean_cost(target, loc, rows, 2), rel=0.01)
    risk = (terms["empirical_risk"] + terms["monte_carlo_margin"]) / bound
    square = (terms["mean_squared_cost"] + terms["mean_squared_cost_margin"]) / bound**2
    for name, formula in BOUNDS.items():
        expected = formula(Moments(risk, square), terms["kl"], 500, certificate.failure[name])
        assert certificate.bounds[name] == pytest.approx(bound * expected.value, rel=1e-9)
        if expected.inverse_temperature is not None:
            assert terms[f"lambda_{name}"] == expected.inverse_temperature
    assert certificate.bound == min(certificate.bounds.values()) == certificate.bounds[certificate.by]
    parts = ("empirical_risk", "monte_carlo_margin", "deviation")
    assert certificate.bound == pytest.approx(sum(terms[name] for name in parts))


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_the_failure_probability_is_split_over_all_bounds(confidence: float) -> None:
    certificate = certify_classes([point_class(linear_target(demand(100, 0)))], torch.arange(100), confidence)
    assert set(certificate.failure) == {"draws", *BOUNDS}
    assert sum(certificate.failure.values()) == pytest.approx(1 - confidence)


@pytest.mark.parametrize("classes", [1, 2])
def test_the_margin_of_equal_draws_is_bernsteins_second_term(classes: int) -> None:
    """All rows are alike, so the draws have no variance and only the term without variance remains."""
    sample = Sample(torch.zeros(80, 1, dtype=torch.float64), torch.full((80, 1), 30.0, dtype=torch.float64))
    parts = [point_class(linear_target(sample), 1 / classes, (0.0, 0.0)) for _ in range(classes)]
    certificate = certify_classes(parts, torch.arange(80))
    # The two averages of each class share a tenth of η.
    log = math.log(2 * 2 * classes / 0.005)
    assert certificate.failure["draws"] == pytest.approx(0.005)
    second = BOUNDED.cost_bound * 7 * log / (3 * (certificates._DRAWS - 1))
    assert certificate.terms["monte_carlo_margin"] == pytest.approx(second, rel=1e-3)
    assert certificate.terms["mean_squared_cost_margin"] == pytest.approx(BOUNDED.cost_bound * second, rel=1e-3)


@pytest.mark.parametrize("weight", [0.3, 0.5, 1.0])
def test_classes_pay_for_their_weight_against_an_equal_prior(weight: float) -> None:
    """KL(Σ w ρ_c ‖ Σ ½ ρ_0c) for posteriors without overlap: Σ w (KL_c + ln 2w)."""
    target = linear_target(demand(100, 0))
    first, second = point_class(target, weight, (0.7, 0.2)), point_class(target, 1 - weight, (-0.4, 0.9))
    found = certify_classes([first, second], torch.arange(100)).terms["kl"]
    divergences = laplace_kl([0.7, 0.2], [1e-6] * 2), laplace_kl([0.4, 0.9], [1e-6] * 2)
    expected = sum(w * (kl + math.log(2 * w)) for w, kl in zip((weight, 1 - weight), divergences, strict=True) if w > 0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_risk_weighs_classes_by_their_weights() -> None:
    target, rows = linear_target(demand(300, 0)), torch.arange(300)
    parts = [point_class(target, 0.3, (0.7, 0.2)), point_class(target, 0.7, (0.0, -1.5))]
    expected = 0.3 * mean_cost(target, (0.7, 0.2), rows) + 0.7 * mean_cost(target, (0.0, -1.5), rows)
    assert certify_classes(parts, rows).terms["empirical_risk"] == pytest.approx(expected, rel=0.01)


def test_members_of_a_mixture_count_by_their_weights() -> None:
    target, rows = linear_target(demand(300, 0)), torch.arange(300)
    locs = torch.tensor([[0.7, 0.2], [0.0, -1.5]])
    mixture = Mixture(target.family, torch.tensor([0.2, 0.8]), locs, torch.full((2, 2), 1e-6))
    terms = certify_classes([ModelClass(target, mixture, 1.0)], rows).terms
    risk = 0.2 * mean_cost(target, (0.7, 0.2), rows) + 0.8 * mean_cost(target, (0.0, -1.5), rows)
    assert terms["empirical_risk"] == pytest.approx(risk, rel=0.02)
    kl = 0.2 * laplace_kl([0.7, 0.2], [1e-6] * 2) + 0.8 * laplace_kl([0.0, 1.5], [1e-6] * 2)
    assert terms["kl"] == pytest.approx(kl, rel=1e-5)


def test_only_the_certified_rows_count_in_the_risk() -> None:
    """The other rows are cheap here: they would make the risk far too low."""
    sample, loc = demand(400, 0), (0.0, 0.0)
    target = linear_target(sample)
    order = BOUNDED.cost(target.predictor.predict(torch.tensor([loc]), sample.contexts)[0], sample.outcomes).argsort()
    dear = order[200:]
    certificate = certify_classes([point_class(target, loc=loc)], dear)
    assert certificate.rows == 200
    assert certificate.terms["empirical_risk"] == pytest.approx(mean_cost(target, loc, dear), rel=0.01)
    assert mean_cost(target, loc, dear) > 1.3 * mean_cost(target, loc, torch.arange(400))


def test_the_prior_does_not_depend_on_the_certified_rows() -> None:
    """Predictors are scaled with the rows set aside only, so changes of other rows have no effect."""
    sample = demand(200, 0)
    options = make_options(method="vi", predictor="linear", hidden=(), certify=True)
    plan = vi_method._plan(Task(BOUNDED, sample, options))
    assert plan.judged is not None
    assert sorted([*plan.judged.tolist(), *plan.scaling.tolist()]) == list(range(200))
    changed = Sample(sample.contexts.clone(), sample.outcomes.clone())
    changed.contexts[plan.judged] *= 7
    changed.outcomes[plan.judged] = 50 - changed.outcomes[plan.judged]
    before, after = plan.target("linear"), vi_method._plan(Task(BOUNDED, changed, options)).target("linear")
    theta, contexts = torch.tensor([[0.7, 0.2]]), demand(20, 3).contexts
    assert torch.equal(before.predictor.predict(theta, contexts), after.predictor.predict(theta, contexts))
    assert torch.equal(before.prior_scale, after.prior_scale)


def test_the_particles_margin_depends_on_their_number() -> None:
    certificate = certify_classes([point_class(linear_target(demand(100, 0)))], torch.arange(100), particles=50)
    found, scale = certificate.particles, BOUNDED.cost_bound
    assert certificate.bound is not None
    mean = certificate.bound / scale
    expected = brentq(lambda q: 50 * rel_entr([q, 1 - q], [mean, 1 - mean]).sum() - math.log(20), mean, 1 - 1e-12)
    assert found["bound"] == pytest.approx(scale * expected)
    assert found["margin"] == pytest.approx(found["bound"] - certificate.bound)
    assert (found["count"], found["failure"], found["confidence"]) == (50, 0.05, 0.9)
    more = certify_classes([point_class(linear_target(demand(100, 0)))], torch.arange(100), particles=5000).particles
    assert 0 < more["margin"] < 0.15 * found["margin"]


def test_uneven_particles_per_member_add_the_rounding_error() -> None:
    """Three members and four particles: one member has two, a half instead of a third."""
    target = linear_target(demand(2000, 0))
    mixture = equal_mixture(target.family, torch.tensor([[0.7, 0.2]] * 3), torch.full((3, 2), 0.05))
    certificate = certify_classes([ModelClass(target, mixture, 1.0)], torch.arange(2000), particles=4)
    assert certificate.bound is not None
    mean = certificate.bound / BOUNDED.cost_bound + 1 / 6
    assert certificate.particles["bound"] == pytest.approx(
        BOUNDED.cost_bound * largest_average(mean, 4, 0.05), rel=1e-6
    )


@pytest.mark.slow
def test_the_bound_holds_for_posteriors_learned_from_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_DRAWS", 2048)
    fresh, held, informative = demand(5000, 99), 0, 0
    scaling = demand(50, 98)
    predictor = build_predictor("linear", scaling)
    for seed in range(60):
        sample = demand(60, seed)
        target = make_target(BOUNDED, predictor, sample, FAMILIES["laplace"])
        standardized = predictor.outcomes.apply(sample.outcomes)
        loc = ridge(target.encoded(torch.float64), standardized).flatten().float()[None]
        mixture = equal_mixture(target.family, loc, torch.full_like(loc, 0.3))
        certificate = certify_classes([ModelClass(target, mixture, 1.0)], torch.arange(60), 0.8)
        assert certificate.bound is not None
        draws = predictor.predict(mixture.sample(200, seeded(seed)), fresh.contexts)
        truth = BOUNDED.cost(BOUNDED.decide(draws), fresh.outcomes).mean().item()
        held += truth <= certificate.bound
        informative += not certificate.vacuous
    assert held >= 0.95 * 60
    assert informative == 60


@pytest.mark.slow
def test_a_linear_posteriors_bound_is_tight_and_holds_on_fresh_rows() -> None:
    fresh = demand(20_000, 99)
    for seed in range(3):
        options = make_options(predictor="linear", hidden=(), certify=True, epochs=60, seed=seed)
        learned = learn(BOUNDED, demand(1500, seed), options)
        posterior, certificate = learned.posterior, learned.diagnostics.certificate
        assert not certificate.vacuous
        assert certificate.bound is not None
        scenarios = posterior.scenarios(fresh.contexts, posterior.draws())
        decisions = decide(BOUNDED, scenarios, "averaged").decisions
        truth = BOUNDED.cost(decisions, fresh.outcomes).mean().item()
        assert truth < certificate.bound < 2 * truth
        assert certificate.bound < certificate.bounds["lemma"] / 2
        assert certificate.particles["count"] == len(posterior.particles)
        assert certificate.bound < certificate.particles["bound"] < 4 * truth


def test_rows_set_aside_for_scaling_do_not_count_in_the_certificate() -> None:
    options = make_options(predictor="linear", hidden=(), certify=True, epochs=3)
    assert learn(BOUNDED, demand(200, 1), options).diagnostics.certificate.rows == 180
    without = learn(BOUNDED, demand(200, 1), replace(options, certify=False)).diagnostics.certificate
    assert without.bound is None
    assert without.to_json() == {"bound": None, "reason": without.reason}


def test_certificate_json_has_its_numbers_and_no_empty_reason() -> None:
    target = linear_target(demand(100, 0))
    mixture = equal_mixture(target.family, torch.zeros(1, 2), torch.ones(1, 2))
    certificate = certify_classes([ModelClass(target, mixture, 1.0)], torch.arange(100))
    fields = certificate.to_json()
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert "reason" not in fields
    assert (fields["bound"], fields["confidence"], fields["rows"]) == (certificate.bound, 0.95, 100)
    assert fields["policies"] == ["thompson", "averaged"]
    assert fields["terms"]["cost_bound"] == BOUNDED.cost_bound
    assert fields["by"] in fields["bounds"]
    assert "exact posterior" in fields["holds_for"]
