"""Newsvendor reports: broken rules, covered demand, prices of rules, and service levels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bco_core import PrescribeOptions, Sample, build_problem, learn, make_options, prescribe
from bco_core.errors import InvalidInput
from bco_core.problems.base import Price, Risk, Status
from bco_core.problems.newsvendor import Newsvendor
from bco_core.weighted_stats import weighted_quantile
from tests.support.newsvendor_reference import Spec, random_items, random_scenarios, reference

BAKERY: Spec = {
    "items": [
        {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6, "minimum_order": 5, "maximum_order": 40},
        {"name": "loaves", "price": 4.0, "unit_cost": 1.5, "salvage_value": 0.3, "pack_size": 6, "stock": 4},
        {"name": "cakes", "underage_cost": 9.0, "overage_cost": 4.0, "integer": True},
    ],
    "decision_rows": [
        {"name": "budget", "coefficients": {"croissants": 0.5, "loaves": 1.5, "cakes": 4.0}, "sense": "<=", "limit": 90}
    ],
}


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_costs_follow_from_price_cost_salvage_and_penalty() -> None:
    item = {"price": 5.0, "unit_cost": 2.0, "salvage_value": 0.5, "shortage_penalty": 0.25}
    problem = Newsvendor.from_spec({"items": [item]})
    assert (problem.underage.tolist(), problem.overage.tolist()) == ([3.25], [1.5])


def test_stock_meets_demand_first_and_reduces_no_order_below_zero() -> None:
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1, "stock": 10}]})
    assert problem.decide(tensor([4.0], [12.0])).tolist() == [[0.0], [2.0]]
    assert problem.cost(tensor([0.0], [2.0], [0.0]), tensor([4.0], [12.0], [12.0])).tolist() == [6.0, 0.0, 6.0]


def test_without_extra_rules_orders_equal_the_closed_form_exactly() -> None:
    items = [
        {"underage_cost": 0.7 + j, "overage_cost": 1.3, "minimum_order": 0.1, "maximum_order": 9.0} for j in range(4)
    ]
    problem = Newsvendor.from_spec({"items": items})
    generator = torch.Generator().manual_seed(5)
    outcomes = torch.randn(30, 40, 4, generator=generator, dtype=torch.float64).exp() * 4
    weights = torch.rand(40, generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    under, over = tensor(*(i["underage_cost"] for i in items)), tensor(*(i["overage_cost"] for i in items))
    decisions = weighted_quantile(outcomes, weights, under / (under + over)).clamp(
        tensor(*[0.1] * 4), tensor(*[9.0] * 4)
    )
    short = outcomes - decisions[:, None]
    objective = (torch.where(short > 0, under * short, -over * short).sum(-1) * weights).sum(-1)
    found = problem.prescribe(outcomes, weights)
    assert torch.equal(found.decisions, decisions)
    assert torch.equal(found.objective, objective)
    assert torch.equal(problem.fractiles, under / (under + over))  # type: ignore[arg-type]
    assert problem.relaxation is problem
    assert found.solvers == ()


@pytest.mark.slow
def test_batching_does_not_change_a_budgeted_order() -> None:
    items = random_items(3, 5)
    for packs in ({}, {"pack_size": 2.0}):
        row = {"coefficients": {item["name"]: 1.0 for item in items}, "sense": "<=", "limit": 31.0}
        problem = Newsvendor.from_spec({"items": [item | packs for item in items], "decision_rows": [row]})
        assert problem.decides_alone
        outcomes, weights = random_scenarios(3, 40, 11, 5)
        outcomes = outcomes + 0.1 * torch.rand(outcomes.shape, generator=torch.Generator().manual_seed(1)).double()
        together = problem.prescribe(outcomes, weights)
        alone = [problem.prescribe(outcomes[b : b + 1], weights[b : b + 1]) for b in range(40)]
        assert torch.equal(together.decisions, torch.cat([one.decisions for one in alone]))
        assert torch.equal(together.objective, torch.cat([one.objective for one in alone]))


def test_a_breach_names_its_rule_amount_and_numbers() -> None:
    problem = Newsvendor.from_spec(BAKERY)
    assert problem.breaches(tensor(8.5, 12.0, 3.0)) == []
    found = {breach.where: breach for breach in problem.breaches(tensor(44.0, 13.0, 12.5))}
    assert set(found) == {
        ("items", 0, "maximum_order"),
        ("items", 1, "pack_size"),
        ("items", 2, "integer"),
        ("decision_rows", 0),
    }
    assert found["items", 0, "maximum_order"].by == pytest.approx(4)
    assert found["items", 1, "pack_size"].by == pytest.approx(1)
    assert found["decision_rows", 0].by == pytest.approx(22 + 19.5 + 50 - 90)
    assert found["decision_rows", 0].sentence == "budget is 91.5, and must be at most 90"
    assert problem.breaches(tensor(2.0, 0.0, 0.0))[0].where == ("items", 0, "minimum_order")
    assert not problem.within(tensor([44.0, 13.0, 12.5], [44.0, 12.0, 3.0], [8.0, 13.0, 3.0])).any()


def test_available_units_cover_demand_up_to_their_number() -> None:
    problem = Newsvendor.from_spec(BAKERY)
    covered = problem.covered(tensor(10.0, 6.0, 2.0), tensor([10.0, 10.0, 2.0], [10.1, 10.1, 2.1]))
    assert covered.tolist() == [[True] * 3, [False] * 3]


@pytest.mark.parametrize("seed", range(6))
def test_prices_match_the_saving_of_relaxing_a_rule(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outcomes = torch.rand(9, 3, generator=generator, dtype=torch.float64) * 20
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)
    items = random_items(seed, 3, minimum_service_level=0.6 if seed % 2 else 0.0)
    items[0]["maximum_order"] = 4.0
    rows = [
        {"coefficients": {item["name"]: 1.0 + j for j, item in enumerate(items)}, "sense": "<=", "limit": 47.3},
        {"coefficients": {items[1]["name"]: 1.0}, "sense": "<=", "limit": 9.123},
    ]
    spec: Spec = {"items": items, "decision_rows": rows[: 1 + seed % 2]}
    if seed % 3 == 2:
        spec["minimum_service_level"] = 0.3
    problem = Newsvendor.from_spec(spec)
    decision = problem.prescribe(outcomes[None], weights).decisions[0]
    found = problem.prices(decision, outcomes, weights)
    best = reference(spec, outcomes, weights)
    if math.isinf(best):
        assert found == []
        return
    prices = {price.where: price.value for price in found}
    for i, row in enumerate(spec["decision_rows"]):
        more = [*spec["decision_rows"]]
        more[i] = row | {"limit": row["limit"] + 1e-4}
        saved = (best - reference(spec | {"decision_rows": more}, outcomes, weights)) / 1e-4
        assert prices.get(("decision_rows", i), 0.0) == pytest.approx(saved, abs=1e-4)
    roomy = [items[0] | {"maximum_order": 4.0 + 1e-4}, *items[1:]]
    saved = (best - reference(spec | {"items": roomy}, outcomes, weights)) / 1e-4
    assert prices.get(("items", 0, "maximum_order"), 0.0) == pytest.approx(saved, abs=1e-4)
    assert all(isinstance(price, Price) and price.value > 0 for price in found)


def test_service_beyond_the_budget_is_a_reported_best_effort() -> None:
    items = [
        {"name": name, "underage_cost": 2, "overage_cost": 1, "minimum_order": 0, "minimum_service_level": 0.9}
        for name in ("tea", "milk")
    ]
    row = {"name": "shelf", "coefficients": {"tea": 1, "milk": 1}, "sense": "<=", "limit": 12}
    problem = Newsvendor.from_spec({"items": items, "decision_rows": [row]})
    outcomes = tensor([[9.0, 9.0], [10.0, 10.0]], [[1.0, 2.0], [2.0, 1.0]])
    found = problem.prescribe(outcomes, tensor(0.5, 0.5))
    assert found.status == [Status.BEST_EFFORT, Status.OPTIMAL]
    assert found.reasons[0].endswith("of the scenarios, and 90.0% is required")
    assert found.decisions[0].sum().item() == pytest.approx(12)
    assert found.decisions[1].tolist() == [2.0, 2.0]
    assert math.isnan(found.gaps[0])  # type: ignore[index]


def test_an_unreachable_fill_rate_is_reported_and_missed_minimally() -> None:
    items = [{"name": "tea", "underage_cost": 2, "overage_cost": 1, "minimum_order": 0, "maximum_order": 3}]
    problem = Newsvendor.from_spec({"items": items, "minimum_service_level": 0.99})
    found = problem.prescribe(tensor([[1.0], [9.0]]), tensor(0.5, 0.5))
    assert found.status == [Status.BEST_EFFORT]
    assert found.reasons == ("40.0% of all demand is expected to be met, and 99.0% is required",)
    assert found.decisions.tolist() == [[3.0]]


def test_incompatible_rules_are_refused_at_construction() -> None:
    rows = [
        {"coefficients": {"croissants": 1, "cakes": 1}, "sense": "<=", "limit": 20},
        {"coefficients": {"croissants": 1, "cakes": 1}, "sense": ">=", "limit": 21},
    ]
    with pytest.raises(InvalidInput, match="no order keeps all decision rows") as refusal:
        Newsvendor.from_spec(BAKERY | {"decision_rows": rows})
    assert refusal.value.where == ("decision_rows",)
    third = {"name": "crates", "coefficients": {"loaves": 1}, "sense": "=", "limit": 15}
    with pytest.raises(InvalidInput, match="in the required packs or whole numbers"):
        Newsvendor.from_spec(BAKERY | {"decision_rows": [third]})


def test_a_time_limit_returns_the_best_orders_and_reports_it() -> None:
    items = random_items(1, 20, integer=True)
    coefficients = {item["name"]: 3.0 + (j * 37 % 11) for j, item in enumerate(items)}
    row = {"coefficients": coefficients, "sense": "<=", "limit": 500.0}
    problem = Newsvendor.from_spec({"items": items, "decision_rows": [row]})
    found = problem.prescribe(*random_scenarios(1, 2, 40, 20), time_limit_seconds=1e-6)
    assert found.status == [Status.TIME_LIMIT] * 2
    assert all("time limit" in reason for reason in found.reasons)


def history(rows: int, seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.rand(rows, 2, dtype=torch.float64, generator=generator)
    noise = torch.randn(rows, 2, dtype=torch.float64, generator=generator).exp()
    return Sample(contexts, torch.cat([20 + 30 * contexts[:, :1], 40 - 20 * contexts[:, 1:]], dim=1) + 6 * noise)


def test_service_levels_hold_on_fresh_rows() -> None:
    items = [
        {"name": "tea", "underage_cost": 1, "overage_cost": 1, "minimum_order": 0, "minimum_service_level": 0.9},
        {"name": "milk", "underage_cost": 1, "overage_cost": 1, "minimum_order": 0},
    ]
    problem = build_problem({"kind": "newsvendor", "items": items})
    learned = learn(problem, history(400, 1), make_options("vi", predictor="linear", members=2, epochs=5, seed=3))
    assert learned.diagnostics.policy == "predictive"
    later = history(300, 2)
    answer = prescribe(learned.posterior, problem, later.contexts, PrescribeOptions(policy="predictive", scenarios=100))
    assert set(answer.status) == {Status.OPTIMAL}
    service = (later.outcomes <= answer.decisions).double().mean(0)
    assert service[0] > 0.9 - 3 * math.sqrt(0.09 / 300)
    assert service[0] < 0.97
    assert service[1] < 0.65
    median = prescribe(learned.posterior, problem, later.contexts, PrescribeOptions(policy="map", scenarios=100))
    reasons = [reason for status, reason in zip(median.status, median.reasons, strict=True) if status == "best_effort"]
    assert len(reasons) > 150
    assert reasons[0].startswith("tea: demand is met in")


@pytest.mark.parametrize("method", ["vi", "auto"])
def test_a_learned_newsvendor_decides_within_its_budget(method: str) -> None:
    items = [
        {"name": "tea", "underage_cost": 6, "overage_cost": 1, "minimum_order": 0, "pack_size": 2},
        {"name": "milk", "underage_cost": 3, "overage_cost": 1, "minimum_order": 0, "integer": True},
    ]
    row = {"name": "budget", "coefficients": {"tea": 2, "milk": 1}, "sense": "<=", "limit": 101}
    problem = build_problem({"kind": "newsvendor", "items": items, "decision_rows": [row]})
    options = make_options(method, predictor="linear", members=2, epochs=20, seed=3)
    learned = learn(problem, history(200, 1), options)
    later = history(40, 2)
    answer = prescribe(learned.posterior, problem, later.contexts, PrescribeOptions("predictive", scenarios=60))
    assert set(answer.status) == {Status.OPTIMAL}
    assert problem.feasible(answer.decisions, later.outcomes).all()
    assert (answer.decisions @ tensor(2.0, 1.0)).max() > 99
    costs = problem.cost(answer.decisions, later.outcomes).mean().item()
    constant = problem.prescribe(history(200, 1).outcomes[None], torch.full((200,), 0.005, dtype=torch.float64))
    assert costs < problem.cost(constant.decisions, later.outcomes).mean().item()
    careful = prescribe(
        learned.posterior, problem, later.contexts[:3], PrescribeOptions(scenarios=30, risk=Risk(1.0, 0.9))
    )
    assert set(careful.status) == {Status.OPTIMAL}
    assert problem.feasible(careful.decisions, later.outcomes[:3]).all()


def test_packs_are_relaxed_in_learning_and_rows_are_kept() -> None:
    problem = Newsvendor.from_spec(BAKERY)
    free = problem.relaxation
    assert free is not problem
    assert free.relaxation is free
    wanted = tensor([30.0, 50.0, 20.0]).requires_grad_()
    decision = free.decide(wanted)
    assert free.within(decision.detach()).all()
    assert free.fractiles is None
    (gradient,) = torch.autograd.grad(decision.sum(), wanted)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
