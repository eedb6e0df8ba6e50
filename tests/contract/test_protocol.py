"""Contract of every problem kind and policy; its rows are in ``contract_tables``."""

from __future__ import annotations

import json
import math
from typing import get_args

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from app.http.schemas import PolicyName
from app.problems.schemas import NewProblem, decision_names, outcome_names
from bco_core.policies import POLICIES, RECOMMENDABLE, Terms, decide, decide_over
from bco_core.prescribe import PrescribeOptions
from bco_core.problems.base import DecisionProblem, Prescription, Risk, Status, UncertainConstraints
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.uncertain_cost import UncertainCostLinear
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.registry import PROBLEMS, build_problem
from bco_core.problems.surrogate import Surrogate
from bco_core.scenarios import Scenarios, expected_cost
from tests.contract.contract_tables import POLICY_ROWS, PROBLEM_ROWS, ProblemRow, learn_quickly
from tests.support.seeds import seeded

pytestmark = pytest.mark.usefixtures("one_thread")


# problems

ROWS = [(f"{kind} {index}", row) for kind, rows in PROBLEM_ROWS.items() for index, row in enumerate(rows)]


@pytest.fixture(params=[row for _, row in ROWS], ids=[name for name, _ in ROWS])
def row(request: pytest.FixtureRequest) -> ProblemRow:
    found: ProblemRow = request.param
    return found


@pytest.fixture
def problem(row: ProblemRow) -> DecisionProblem:
    return build_problem(row.spec)


def test_every_registered_problem_kind_has_a_row_in_the_contract() -> None:
    assert set(PROBLEM_ROWS) == set(PROBLEMS)
    for kind, rows in PROBLEM_ROWS.items():
        assert {row.spec["kind"] for row in rows} == {kind}


def test_the_api_offers_exactly_the_registered_kinds() -> None:
    definitions = NewProblem.model_json_schema()["$defs"].values()
    offered = {entry["properties"]["kind"]["const"] for entry in definitions if "kind" in entry["properties"]}
    assert offered == set(PROBLEMS)


def test_a_kind_declares_whether_its_problems_are_differentiable(row: ProblemRow, problem: DecisionProblem) -> None:
    assert PROBLEMS[row.spec["kind"]].differentiable == problem.differentiable


def test_a_specification_round_trips_through_the_api_unchanged(row: ProblemRow) -> None:
    request = NewProblem.model_validate_json(json.dumps({"name": "contract", "spec": row.spec}))
    dumped = request.spec.model_dump()
    again = NewProblem.model_validate_json(json.dumps({"name": "contract", "spec": dumped}))
    assert again == request
    assert again.spec.model_dump() == dumped == json.loads(json.dumps(dumped))
    assert dumped["kind"] == row.spec["kind"]


def test_a_specification_read_back_from_the_api_is_the_same_problem(row: ProblemRow) -> None:
    direct = build_problem(NewProblem(name="contract", spec=row.spec).spec.model_dump())  # type: ignore[arg-type]
    stored = build_problem(json.loads(json.dumps(NewProblem(name="c", spec=row.spec).spec.model_dump())))  # type: ignore[arg-type]
    outcomes = row.outcomes(20, seeded())
    assert torch.equal(direct.decide(outcomes), stored.decide(outcomes))


def test_the_api_refuses_a_field_unknown_to_the_kind(row: ProblemRow) -> None:
    with pytest.raises(ValidationError):
        NewProblem(name="contract", spec=row.spec | {"colour": "red"})  # type: ignore[arg-type]


def test_outcomes_and_decisions_have_as_many_names_as_dimensions(row: ProblemRow, problem: DecisionProblem) -> None:
    spec = NewProblem(name="contract", spec=row.spec).spec.model_dump()  # type: ignore[arg-type]
    outcomes, decisions = outcome_names(spec), decision_names(spec)
    assert (len(set(outcomes)), len(set(decisions))) == (problem.outcome_dim, problem.decision_dim)
    assert (len(outcomes), len(decisions)) == (problem.outcome_dim, problem.decision_dim)


@pytest.mark.parametrize("leading", [(), (1,), (5,), (2, 3)], ids=str)
def test_everything_is_batched_over_leading_dimensions(
    row: ProblemRow, problem: DecisionProblem, leading: tuple[int, ...]
) -> None:
    outcomes = row.outcomes(math.prod(leading), seeded()).view(*leading, problem.outcome_dim)
    decisions = problem.decide(outcomes)
    assert decisions.shape == (*leading, problem.decision_dim)
    assert problem.cost(decisions, outcomes).shape == leading
    feasible = problem.feasible(decisions, outcomes)
    assert (feasible.shape, feasible.dtype) == (leading, torch.bool)
    flat = outcomes.view(-1, problem.outcome_dim)
    one_by_one = torch.stack([problem.decide(outcome) for outcome in flat])
    torch.testing.assert_close(decisions.reshape(-1, problem.decision_dim), one_by_one)


def test_one_decision_broadcasts_against_many_outcomes(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes = row.outcomes(7, seeded())
    decision = problem.decide(outcomes[0])
    costs = problem.cost(decision, outcomes)
    assert costs.shape == (7,)
    assert problem.feasible(decision, outcomes).shape == (7,)
    one_by_one = torch.stack([problem.cost(decision, outcome) for outcome in outcomes])
    torch.testing.assert_close(costs, one_by_one)


def decide_integers(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """Decisions (B, d_z) for outcomes (B, d_y), rounded where integers are required: ``decide`` relaxes them."""
    if problem.relaxation is problem:
        return problem.decide(outcomes)
    return problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64)).decisions


def test_the_decision_for_an_outcome_is_feasible_under_it(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes = row.outcomes(200, seeded(1))
    assert problem.relaxation.feasible(problem.decide(outcomes), outcomes).all()
    assert problem.feasible(decide_integers(problem, outcomes[:20]), outcomes[:20]).all()


def test_costs_are_finite(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, others = row.outcomes(200, seeded(1)), row.outcomes(200, seeded(2))
    assert torch.isfinite(problem.decide(outcomes)).all()
    assert torch.isfinite(problem.cost(problem.decide(outcomes), others)).all()


def perturb(decisions: Tensor, generator: torch.Generator) -> Tensor:
    """Return a hundred decisions near and far from each: (100, ...)."""
    noise = torch.randn((100, *decisions.shape), generator=generator, dtype=decisions.dtype)
    size = 10 ** (torch.rand((100, *decisions.shape[:-1], 1), generator=generator, dtype=decisions.dtype) * 5 - 4)
    return decisions + noise * size * (1 + decisions.abs())


def test_no_feasible_perturbation_beats_the_decision_for_its_own_outcome(
    row: ProblemRow, problem: DecisionProblem
) -> None:
    outcomes = row.outcomes(50, seeded(3))
    decisions = problem.decide(outcomes)
    best = problem.cost(decisions, outcomes)
    others = torch.cat([perturb(decisions, seeded(4)), problem.decide(row.outcomes(50, seeded(5)))[None]])
    feasible = problem.feasible(others, outcomes)
    assert feasible.any()
    costs = problem.cost(others, outcomes)
    assert (costs[feasible] >= (best - 1e-9 * (1 + best.abs())).expand_as(costs)[feasible]).all()


def scenarios_for(row: ProblemRow, contexts: int = 6, count: int = 25) -> tuple[Tensor, Tensor]:
    """Draw outcomes (B, K, d_y) and uneven weights (K,)."""
    outcomes = row.outcomes(contexts * count, seeded(6))
    weights = torch.rand(count, generator=seeded(7), dtype=torch.float64) + 0.05
    return outcomes.view(contexts, count, -1), weights / weights.sum()


def weighted_cost(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor, weights: Tensor) -> Tensor:
    """Return E[c(z; Y)] for decisions (..., B, d_z) over outcomes (B, K, d_y)."""
    return (problem.cost(decisions[..., None, :], outcomes) * weights).sum(-1)


def test_a_prescription_is_feasible_and_states_the_cost_it_reaches(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    found = problem.prescribe(outcomes, weights)
    assert found.decisions.shape == (6, problem.decision_dim)
    assert found.objective.shape == (6,)
    assert found.status == [Status.OPTIMAL] * 6
    assert keeps_its_promise(row, problem, found.decisions, outcomes, weights)
    torch.testing.assert_close(found.objective, weighted_cost(problem, found.decisions, outcomes, weights))


def keeps_its_promise(
    row: ProblemRow, problem: DecisionProblem, decisions: Tensor, outcomes: Tensor, weights: Tensor
) -> bool:
    """Whether decisions (B, d_z) are feasible under all outcomes (B, K, d_y), or under the stated share."""
    feasible = problem.feasible(decisions[:, None], outcomes)
    if row.certain:
        return bool(feasible.all())
    assert isinstance(problem, UncertainConstraints)
    return bool(((feasible * weights).sum(-1) >= problem.confidence).all())


def test_a_prescription_costs_no_more_than_the_decision_of_any_scenario(
    row: ProblemRow, problem: DecisionProblem
) -> None:
    outcomes, weights = scenarios_for(row)
    objective = problem.prescribe(outcomes, weights).objective
    each = problem.decide(outcomes).transpose(0, 1)
    costs = weighted_cost(problem, each, outcomes, weights)
    # An infeasible decision may be cheaper.
    costs[~problem.feasible(each[..., None, :], outcomes).all(-1)] = torch.inf
    assert (objective <= costs + 1e-9 * (1 + objective.abs())).all()


def test_no_feasible_perturbation_beats_a_prescription(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    found = problem.prescribe(outcomes, weights)
    others = perturb(found.decisions, seeded(8))
    feasible = problem.feasible(others[..., None, :], outcomes).all(-1)
    costs = weighted_cost(problem, others, outcomes, weights)
    floor = found.objective - 1e-9 * (1 + found.objective.abs())
    assert (costs[feasible] >= floor.expand_as(costs)[feasible]).all()


def test_prescribing_for_one_scenario_equals_deciding_for_it(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes = row.outcomes(9, seeded(9))
    found = problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(found.objective, problem.cost(decide_integers(problem, outcomes), outcomes))
    relaxed = problem.cost(problem.decide(outcomes), outcomes)
    assert (relaxed <= found.objective + 1e-9 * (1 + found.objective.abs())).all()


def test_shared_weights_equal_weights_repeated_per_context(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    shared, each = problem.prescribe(outcomes, weights), problem.prescribe(outcomes, weights.expand(6, -1))
    torch.testing.assert_close(shared.decisions, each.decisions)
    torch.testing.assert_close(shared.objective, each.objective)


def test_the_order_of_scenarios_does_not_matter(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    order = torch.randperm(len(weights), generator=seeded(10))
    shuffled = problem.prescribe(outcomes[:, order], weights[order])
    torch.testing.assert_close(shuffled.objective, problem.prescribe(outcomes, weights).objective)


def test_a_scenario_of_weight_two_equals_the_scenario_twice(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, _ = scenarios_for(row, count=5)
    doubled = torch.cat([outcomes, outcomes[:, :1]], dim=1)
    weights = torch.tensor([2, 1, 1, 1, 1], dtype=torch.float64) / 6
    equal = torch.full((6,), 1 / 6, dtype=torch.float64)
    torch.testing.assert_close(
        problem.prescribe(outcomes, weights).objective, problem.prescribe(doubled, equal).objective
    )


def test_the_gradient_of_a_predictions_cost_matches_finite_differences(
    row: ProblemRow, problem: DecisionProblem
) -> None:
    if not problem.differentiable or isinstance(problem, Surrogate):
        assert not problem.decide(row.outcomes(3, seeded()).requires_grad_()).requires_grad
        return
    predictions, outcomes = row.outcomes(200, seeded(11)), row.outcomes(200, seeded(12))

    def cost(values: Tensor) -> Tensor:
        return problem.cost(problem.decide(values), outcomes)

    inputs = predictions.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cost(inputs).sum(), inputs)
    checked = 0
    for j in range(problem.outcome_dim):
        step = torch.zeros(problem.outcome_dim, dtype=torch.float64)
        step[j] = 1e-6
        forward = (cost(predictions + step) - cost(predictions)) / 1e-6
        backward = (cost(predictions) - cost(predictions - step)) / 1e-6
        smooth = (forward - backward).abs() < 1e-3
        torch.testing.assert_close(gradient[smooth, j], forward[smooth], rtol=1e-4, atol=1e-4)
        checked += int(smooth.sum())
    assert checked > 0.9 * predictions.numel()


@pytest.mark.all_variants
def test_every_policy_decides_from_a_learned_posterior(row: ProblemRow, problem: DecisionProblem) -> None:
    found = learn_quickly(problem, row)
    contexts = torch.randn(4, 3, generator=seeded(13), dtype=torch.float64)
    scenarios = found.posterior.scenarios(contexts, found.posterior.draws())
    atoms = found.posterior.predictive(contexts, scenarios.mean(), 50)
    assert atoms is not None
    for policy in POLICIES:
        prescription = decide_over(problem, scenarios, atoms, policy)
        assert torch.isfinite(prescription.decisions).all()
        assert torch.isfinite(prescription.objective).all()
    assert math.isfinite(found.diagnostics.cost_scale)


# policies


def test_every_registered_policy_has_a_row_in_the_contract_and_a_name_in_the_api() -> None:
    assert set(POLICY_ROWS) == set(POLICIES) == set(get_args(PolicyName))


@pytest.fixture
def scenarios(row: ProblemRow) -> Scenarios:
    outcomes, weights = scenarios_for(row, contexts=40)
    return Scenarios(outcomes, weights, row.outcomes(40, seeded(15)))


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def apply(policy: str, problem: DecisionProblem, scenarios: Scenarios, seed: int = 0) -> Prescription:
    return decide(problem, scenarios, policy, Terms(seeded(seed)))


def test_a_policy_gives_each_context_a_feasible_decision_and_its_expected_cost(
    row: ProblemRow, policy: str, problem: DecisionProblem, scenarios: Scenarios
) -> None:
    found = apply(policy, problem, scenarios)
    assert found.decisions.shape == (40, problem.decision_dim)
    assert len(found.status) == 40
    if row.certain or policy in {"bcp", "predictive"}:
        assert keeps_its_promise(row, problem, found.decisions, scenarios.outcomes, scenarios.weights)
    torch.testing.assert_close(found.objective, expected_cost(problem, found.decisions, scenarios))


def test_a_policy_decides_the_same_from_the_same_seed(
    policy: str, problem: DecisionProblem, scenarios: Scenarios
) -> None:
    # A basis pool may have learned a shorter path in between; everything else is exact.
    pooled = isinstance(problem, TwoStageLinear | UncertainCostLinear) or (
        isinstance(problem, Newsvendor) and len(problem.rows) > 1
    )
    rounding = 1e-9 if pooled else 0.0
    first, again = apply(policy, problem, scenarios, 3), apply(policy, problem, scenarios, 3)
    torch.testing.assert_close(first.decisions, again.decisions, rtol=rounding, atol=rounding)
    other = apply(policy, problem, scenarios, 4)
    alike = torch.allclose(first.decisions, other.decisions, rtol=1e-9, atol=1e-9)
    assert alike != POLICY_ROWS[policy]


@pytest.mark.slow
def test_only_the_optimal_policy_is_never_beaten_by_another(
    row: ProblemRow, policy: str, problem: DecisionProblem, scenarios: Scenarios
) -> None:
    if not row.certain:
        # The cheapest policy may break its constraints.
        return
    found = apply(policy, problem, scenarios)
    best = torch.stack([apply(other, problem, scenarios).objective for other in POLICIES]).amin(dim=0)
    # An integer search may stop short of the optimum by its stated gap.
    gap = 1e-9 if found.gaps is None else 1e-9 + found.gaps
    unbeaten = bool((found.objective <= best + gap * (1 + best.abs())).all())
    assert unbeaten == (policy in row.optimal)


def test_policies_agree_when_nothing_is_uncertain(policy: str, row: ProblemRow) -> None:
    problem, outcomes = build_problem(row.spec), row.outcomes(10, seeded(16))
    certain = Scenarios.equal(outcomes[:, None].expand(-1, 4, -1), outcomes)
    torch.testing.assert_close(apply(policy, problem, certain).decisions, decide_integers(problem, outcomes))


def test_a_policy_hedges_if_and_only_if_it_reacts_to_risk(policy: str) -> None:
    row = PROBLEM_ROWS["shipment"][0]
    problem, (outcomes, weights) = build_problem(row.spec), scenarios_for(row)
    scenarios = Scenarios(outcomes, weights, row.outcomes(6, seeded(15)))
    calm, wary = (decide(problem, scenarios, policy, Terms(seeded(), risk=risk)) for risk in (Risk(), Risk(1.0, 0.9)))
    assert POLICIES[policy].hedges != torch.allclose(calm.decisions, wary.decisions, rtol=1e-6)


def test_a_policy_decides_over_predictive_scenarios_iff_it_declares_so(policy: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    problem, (outcomes, weights) = build_problem(row.spec), scenarios_for(row)
    draws = Scenarios(outcomes, weights, row.outcomes(6, seeded(15)))
    atoms = Scenarios(outcomes + 100, weights, draws.mode + 100)
    over = decide_over(problem, draws, atoms, policy, Terms(seeded())).decisions
    assert torch.equal(over, apply(policy, problem, draws).decisions) != POLICIES[policy].predictive
    assert torch.equal(over, apply(policy, problem, atoms).decisions) == POLICIES[policy].predictive


# Two values of every policy parameter.
OWN_TERMS = {"alpha": (0.1, 0.9)}


@pytest.mark.parametrize("name", OWN_TERMS)
def test_a_policy_uses_a_parameter_iff_it_declares_it(policy: str, name: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    problem, (outcomes, weights) = build_problem(row.spec), scenarios_for(row)
    scenarios = Scenarios(outcomes, weights, row.outcomes(6, seeded(15)))
    first, second = (
        decide(problem, scenarios, policy, Terms(generator=seeded(), **{name: value})).decisions
        for value in OWN_TERMS[name]
    )
    assert torch.equal(first, second) == (name not in POLICIES[policy].parameters)


def test_policies_declare_only_existing_parameters() -> None:
    assert {name for policy in POLICIES.values() for name in policy.parameters} == set(OWN_TERMS)
    assert all(policy.name == name for name, policy in POLICIES.items())


def test_a_policy_is_recommendable_iff_it_uses_all_draws_and_nothing_else(policy: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    problem, (outcomes, weights) = build_problem(row.spec), scenarios_for(row, contexts=40)
    whole = Scenarios(outcomes, weights, row.outcomes(40, seeded(15)))
    moved = Scenarios(1.5 * outcomes, weights, whole.mode)
    other_mode = Scenarios(outcomes, weights, 2 * whole.mode)
    here = apply(policy, problem, whole).decisions
    uses_draws = not torch.equal(here, apply(policy, problem, moved).decisions)
    uses_only_draws = torch.equal(here, apply(policy, problem, other_mode).decisions) and not POLICY_ROWS[policy]
    assert POLICIES[policy].recommendable == (uses_draws and uses_only_draws)


def test_the_default_policy_is_the_first_recommendable_one() -> None:
    assert PrescribeOptions().chosen_policy == RECOMMENDABLE[0]
