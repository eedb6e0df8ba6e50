"""Policies: BCP, averaged, blended, MAP and Thompson decisions over weighted scenarios."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bco_core.policies import POLICIES, Terms, decide
from bco_core.problems.base import Prescription, Status
from bco_core.problems.newsvendor import Newsvendor
from bco_core.scenarios import Scenarios
from tests.support.seeds import seeded

PROBLEM = Newsvendor.from_spec(
    {
        "items": [
            {"underage_cost": 3, "overage_cost": 1, "minimum_order": 0, "maximum_order": 12},
            {"underage_cost": 0.5, "overage_cost": 2},
        ]
    }
)

seeds = st.integers(0, 2**32 - 1)


def make_scenarios(seed: int, contexts: int = 4, atoms: int = 9) -> Scenarios:
    draw = seeded(seed)
    outcomes = 8 + 6 * torch.randn(contexts, atoms, 2, generator=draw, dtype=torch.float64)
    weights = torch.rand(atoms, generator=draw, dtype=torch.float64)
    mode = 8 + 6 * torch.randn(contexts, 2, generator=draw, dtype=torch.float64)
    return Scenarios(outcomes, weights / weights.sum(), mode)


def decide_by(policy: str, scenarios: Scenarios, seed: int = 0, alpha: float = 0.5) -> Prescription:
    return decide(PROBLEM, scenarios, policy, Terms(seeded(seed), alpha=alpha))


def plain_expected_cost(scenarios: Scenarios, context: int, decision: list[float]) -> float:
    total = 0.0
    for weight, (first, second) in zip(scenarios.weights.tolist(), scenarios.outcomes[context].tolist(), strict=True):
        total += weight * (3 * max(first - decision[0], 0) + max(decision[0] - first, 0))
        total += weight * (0.5 * max(second - decision[1], 0) + 2 * max(decision[1] - second, 0))
    return total


@given(seed=seeds)
def test_bcp_is_the_weighted_quantile_for_newsvendor(seed: int) -> None:
    scenarios = make_scenarios(seed)
    decisions = decide_by("bcp", scenarios).decisions
    for context, decision in enumerate(decisions.tolist()):
        for item, level in enumerate((0.75, 0.2)):
            values = scenarios.outcomes[context, :, item]
            quantile = min(v for v in values.tolist() if scenarios.weights[values <= v].sum() >= level)
            expected = min(max(quantile, 0), 12) if item == 0 else quantile
            assert decision[item] == expected


@given(seed=seeds)
def test_bcp_equals_the_problems_prescription(seed: int) -> None:
    scenarios = make_scenarios(seed)
    ours = decide_by("bcp", scenarios)
    prescribed = PROBLEM.prescribe(scenarios.outcomes, scenarios.weights)
    assert torch.equal(ours.decisions, prescribed.decisions)
    assert torch.equal(ours.objective, prescribed.objective)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_objective_is_the_expected_cost_over_the_scenarios(policy: str) -> None:
    scenarios = make_scenarios(1)
    prescription = decide_by(policy, scenarios)
    expected = [plain_expected_cost(scenarios, b, z) for b, z in enumerate(prescription.decisions.tolist())]
    assert prescription.objective.tolist() == pytest.approx(expected, rel=1e-12)
    assert prescription.status == [Status.OPTIMAL] * 4


@given(seed=seeds)
def test_no_policy_has_a_lower_expected_cost_than_bcp(seed: int) -> None:
    scenarios = make_scenarios(seed)
    objectives = {name: decide_by(name, scenarios, seed).objective for name in POLICIES}
    for objective in objectives.values():
        assert (objectives["bcp"] <= objective * (1 + 1e-12)).all()


@given(seed=seeds)
def test_averaged_is_the_weighted_mean_of_the_draws_decisions(seed: int) -> None:
    scenarios = make_scenarios(seed)
    decisions = decide_by("averaged", scenarios).decisions
    for decision, outcomes in zip(decisions.tolist(), scenarios.outcomes.tolist(), strict=True):
        own = [(min(max(first, 0), 12), second) for first, second in outcomes]
        weights = scenarios.weights.tolist()
        mean = [sum(w * z[item] for w, z in zip(weights, own, strict=True)) for item in range(2)]
        assert decision == pytest.approx(mean, rel=1e-12, abs=1e-12)


@given(seed=seeds)
def test_averaged_never_costs_more_than_the_average_draw(seed: int) -> None:
    scenarios = make_scenarios(seed)
    averaged = decide_by("averaged", scenarios).decisions
    realised = 8 + 10 * torch.randn(50, 1, 2, generator=seeded(seed), dtype=torch.float64)
    draws = PROBLEM.cost(PROBLEM.decide(scenarios.outcomes), realised[:, None])
    mean_draw = (draws * scenarios.weights).sum(-1)
    assert (PROBLEM.cost(averaged, realised) <= mean_draw * (1 + 1e-12)).all()


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("atoms", [10, 49])
@pytest.mark.parametrize("bound", [0.1, 7.7])
def test_decisions_of_draws_beyond_an_order_bound_stay_within_it(policy: str, atoms: int, bound: float) -> None:
    spec = {"underage_cost": 3, "overage_cost": 1}
    problem = Newsvendor.from_spec({"items": [spec | {"maximum_order": bound}, spec | {"minimum_order": bound}]})
    outcomes = torch.tensor([bound + 5, bound - 5], dtype=torch.float64).repeat(2, atoms, 1)
    weights = torch.full((atoms,), 1 / atoms, dtype=torch.float64)
    decisions = decide(problem, Scenarios(outcomes, weights, outcomes[:, 0]), policy, Terms(seeded(0))).decisions
    assert problem.feasible(decisions, outcomes[:, 0]).tolist() == [True, True]


@given(seed=seeds)
def test_blending_runs_from_the_decision_for_the_mean_prediction_to_bcp(seed: int) -> None:
    scenarios = make_scenarios(seed)
    mean = (scenarios.outcomes * scenarios.weights[:, None]).sum(1)
    none, all_of_it = (decide_by("blended", scenarios, alpha=alpha).decisions for alpha in (0.0, 1.0))
    assert torch.allclose(none, PROBLEM.decide(mean), rtol=1e-12, atol=1e-12)
    assert torch.allclose(all_of_it, decide_by("bcp", scenarios).decisions, rtol=1e-12, atol=1e-12)


@given(seed=seeds)
def test_half_blended_is_bcp_over_predictions_shrunk_halfway_to_the_mean(seed: int) -> None:
    scenarios = make_scenarios(seed)
    mean = (scenarios.outcomes * scenarios.weights[:, None]).sum(1, keepdim=True)
    half_way = PROBLEM.prescribe((mean + scenarios.outcomes) / 2, scenarios.weights).decisions
    decisions = decide_by("blended", scenarios).decisions
    assert torch.allclose(decisions, half_way, rtol=1e-12, atol=1e-12)


@given(seed=seeds)
def test_map_decides_for_the_mode_only(seed: int) -> None:
    scenarios = make_scenarios(seed)
    decisions = decide_by("map", scenarios).decisions
    assert decisions[:, 0].tolist() == [min(max(first, 0), 12) for first in scenarios.mode[:, 0].tolist()]
    assert decisions[:, 1].tolist() == scenarios.mode[:, 1].tolist()


@given(seed=seeds)
def test_thompson_takes_the_decision_of_one_draw_in_each_context(seed: int) -> None:
    scenarios = make_scenarios(seed, contexts=6)
    decisions = decide_by("thompson", scenarios, seed).decisions
    for decision, outcomes in zip(decisions.tolist(), scenarios.outcomes.tolist(), strict=True):
        assert decision in [[min(max(first, 0), 12), second] for first, second in outcomes]


def test_thompson_is_reproduced_by_its_seed_and_differs_for_another() -> None:
    scenarios = make_scenarios(0, contexts=20)
    first, again, other = (decide_by("thompson", scenarios, seed).decisions for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_thompson_draws_afresh_for_each_context_in_proportion_to_the_weights() -> None:
    outcomes = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64).repeat(20_000, 1, 1)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 1, "overage_cost": 1}]})
    decisions = decide(problem, Scenarios(outcomes, weights, outcomes[:, 0]), "thompson", Terms(seeded(0))).decisions
    shares = torch.bincount(decisions.flatten().long(), minlength=3) / 20_000
    assert shares.tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.015)


def test_thompson_never_takes_a_draw_without_weight() -> None:
    outcomes = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64).repeat(1000, 1, 1)
    weights = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 1, "overage_cost": 1}]})
    decisions = decide(problem, Scenarios(outcomes, weights, outcomes[:, 0]), "thompson", Terms(seeded(0))).decisions
    assert decisions.unique().tolist() == [1]


@given(seed=seeds, atoms=st.integers(1, 60))
def test_policies_agree_when_all_draws_are_equal(seed: int, atoms: int) -> None:
    certain = make_scenarios(seed).mode
    scenarios = Scenarios(
        certain[:, None].expand(-1, atoms, -1), torch.full((atoms,), 1 / atoms, dtype=torch.float64), certain
    )
    for policy in POLICIES:
        decisions = decide_by(policy, scenarios).decisions
        assert torch.allclose(decisions, PROBLEM.decide(certain), rtol=1e-13, atol=0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_contexts_give_no_decisions(policy: str) -> None:
    prescription = decide_by(policy, make_scenarios(0, contexts=0))
    assert prescription.decisions.shape == (0, 2)
    assert prescription.status == []
