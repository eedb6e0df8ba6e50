"""Promises that every registered kind keeps: a new problem, policy, predictor or family needs one row in a table here.

The tables hold only what the promises need to get going; nothing in a promise knows which kind it is about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from app.http.schemas import PolicyName
from app.posteriors.options import PosteriorSpec, PredictorSpec
from app.problems.schemas import NewProblem, decision_names, outcome_names
from bco_core.data import Sample
from bco_core.distributions import Mixture
from bco_core.families import FAMILIES
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior, digest
from bco_core.predictors import KINDS, Predictor, build_predictor, predictor_from_arrays, predictor_to_arrays
from bco_core.problems.base import DecisionProblem, Prescription, Status, UncertainConstraints
from bco_core.problems.linear.problem import TwoStageLinear
from bco_core.problems.registry import PROBLEMS, build_problem
from bco_core.scenarios import Scenarios, expected_cost

Spec = dict[str, Any]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# problems


@dataclass(frozen=True)
class ProblemRow:
    """A specification as the API takes it, and outcomes (n, d_y) that such a problem may meet.

    ``certain`` tells that a decision keeps its constraints whatever the outcome. ``optimal`` are the policies that no
    other beats: others than BCP where an outcome's mean is all that counts.
    """

    spec: Spec
    outcomes: Callable[[int, torch.Generator], Tensor]
    certain: bool = True
    optimal: frozenset[str] = frozenset({"bcp"})


def demands(*means: float) -> Callable[[int, torch.Generator], Tensor]:
    """Positive, skewed, and now and then beyond the order bounds."""
    levels = torch.tensor(means, dtype=torch.float64)
    return lambda n, generator: levels * torch.randn(n, len(means), generator=generator, dtype=torch.float64).exp()


def returns(count: int) -> Callable[[int, torch.Generator], Tensor]:
    """Around a tenth, one asset always well above it, so that a target of 0.08 can be reached."""

    def draw(n: int, generator: torch.Generator) -> Tensor:
        values = 0.1 + 0.03 * torch.randn(n, count, generator=generator, dtype=torch.float64)
        values[:, 0] = values[:, 0].abs() + 0.1
        return values

    return draw


FACTORS = {"loadings": [[0.02], [-0.01], [0.005], [0.03]], "residual_variances": [0.0009, 0.0004, 0.0001, 0.0004]}
ASSETS = [{"name": name} for name in ("shares", "bonds", "cash", "gold")]
HELD = [{"name": "shares", "minimum": 0.1}, *({"name": n, "minimum": -0.2, "maximum": 0.5} for n in ("bonds", "gold"))]

# Two machines, one of them for one product only; what they do not make is bought, and overtime is limited.
FACTORY = {
    "kind": "two_stage_linear",
    "decisions": [
        {"name": "shift", "cost": 7, "maximum": 60},
        {"name": "stock", "cost": 2.3, "minimum": -5, "maximum": 40},
        {"name": "reserve", "cost": 0.9, "minimum": None},
    ],
    "decision_rows": [
        {"name": "floor", "coefficients": {"shift": 1, "stock": 0.7}, "sense": "<=", "limit": 70},
        {"name": "kept", "coefficients": {"reserve": 1, "stock": 1}, "sense": ">=", "limit": 1},
    ],
    "outcomes": [{"name": "bolts", "minimum": 0}, {"name": "nuts", "minimum": 0}],
    "recourse": [
        {"name": "overtime", "cost": 11, "maximum": 15},
        {"name": "bought bolts", "cost": 19},
        {"name": "bought nuts", "cost": 8},
        {"name": "scrap", "cost": 0.4},
    ],
    "rows": [
        {
            "name": "bolts",
            "recourse": {"overtime": 1.1, "bought bolts": 1, "scrap": -1},
            "decisions": {"shift": 1.3},
            "sense": "=",
            "outcomes": {"bolts": 1},
        },
        {
            "name": "nuts",
            "recourse": {"bought nuts": -1, "overtime": -0.2},
            "decisions": {"stock": -1, "reserve": -0.3},
            "sense": "<=",
            "constant": 2,
            "outcomes": {"nuts": -1},
        },
    ],
}

PROBLEM_ROWS = {
    "two_stage_linear": [ProblemRow(FACTORY, demands(40, 20))],
    "shipment": [
        ProblemRow(
            {
                "kind": "shipment",
                "sources": [
                    {"name": "north", "order_cost": 5, "emergency_cost": 100},
                    {"name": "south", "order_cost": 6, "emergency_cost": 90, "maximum_order": 25},
                ],
                "destinations": ["port", "market", "mill"],
                "transport_costs": [[1.0, 4.0, 2.5], [3.0, 1.5, 7.0]],
            },
            demands(10, 12, 8),
        )
    ],
    "return_constrained_portfolio": [
        ProblemRow(
            {"kind": "return_constrained_portfolio", "assets": ASSETS, "factors": FACTORS, "target_return": 0.08},
            returns(4),
            certain=False,
        ),
        ProblemRow(
            {
                "kind": "return_constrained_portfolio",
                "assets": HELD,
                "covariance": [[0.04, 0.01, 0.0], [0.01, 0.02, 0.001], [0.0, 0.001, 0.03]],
                "target_return": 0.03,
                "confidence": 0.8,
                "maximum_short": 0.3,
                "infeasible": "error",
            },
            returns(3),
            certain=False,
        ),
    ],
    "mean_variance_portfolio": [
        ProblemRow(
            {"kind": "mean_variance_portfolio", "assets": ASSETS, "factors": FACTORS, "risk_aversion": 40},
            returns(4),
            optimal=frozenset({"bcp", "blended"}),
        ),
        ProblemRow(
            {
                "kind": "mean_variance_portfolio",
                "assets": HELD,
                "covariance": [[0.04, 0.01, 0.0], [0.01, 0.02, 0.001], [0.0, 0.001, 0.03]],
                "budget": 2,
                "risk_aversion": 5,
            },
            returns(3),
            optimal=frozenset({"bcp", "blended"}),
        ),
    ],
    "newsvendor": [
        ProblemRow(
            {"kind": "newsvendor", "items": [{"name": "rolls", "underage_cost": 3, "overage_cost": 1}]}, demands(50)
        ),
        ProblemRow(
            {
                "kind": "newsvendor",
                "items": [
                    {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6},
                    {"name": "loaves", "underage_cost": 2.4, "overage_cost": 1.2, "maximum_order": 60},
                    {"name": "cakes", "underage_cost": 20, "overage_cost": 9, "minimum_order": 2, "maximum_order": 2},
                    {"name": "credit", "underage_cost": 0.1, "overage_cost": 7, "minimum_order": None},
                ],
            },
            demands(50, 80, 3, 10),
        ),
    ],
}
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


def test_a_specification_goes_through_the_api_and_back_unchanged(row: ProblemRow) -> None:
    request = NewProblem.model_validate_json(json.dumps({"name": "contract", "spec": row.spec}))
    dumped = request.spec.model_dump()
    again = NewProblem.model_validate_json(json.dumps({"name": "contract", "spec": dumped}))
    assert again == request
    assert again.spec.model_dump() == dumped == json.loads(json.dumps(dumped))
    assert dumped["kind"] == row.spec["kind"]


def test_a_specification_that_went_through_the_api_is_the_same_problem(row: ProblemRow) -> None:
    direct = build_problem(NewProblem(name="contract", spec=row.spec).spec.model_dump())  # type: ignore[arg-type]
    stored = build_problem(json.loads(json.dumps(NewProblem(name="c", spec=row.spec).spec.model_dump())))  # type: ignore[arg-type]
    outcomes = row.outcomes(20, seeded())
    assert torch.equal(direct.decide(outcomes), stored.decide(outcomes))


def test_the_api_refuses_a_field_that_the_kind_does_not_know(row: ProblemRow) -> None:
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


def test_one_decision_is_judged_against_many_outcomes(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes = row.outcomes(7, seeded())
    decision = problem.decide(outcomes[0])
    costs = problem.cost(decision, outcomes)
    assert costs.shape == (7,)
    assert problem.feasible(decision, outcomes).shape == (7,)
    one_by_one = torch.stack([problem.cost(decision, outcome) for outcome in outcomes])
    torch.testing.assert_close(costs, one_by_one)


def test_the_decision_for_an_outcome_is_feasible_under_it(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes = row.outcomes(200, seeded(1))
    assert problem.feasible(problem.decide(outcomes), outcomes).all()


def test_costs_are_finite(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, others = row.outcomes(200, seeded(1)), row.outcomes(200, seeded(2))
    assert torch.isfinite(problem.decide(outcomes)).all()
    assert torch.isfinite(problem.cost(problem.decide(outcomes), others)).all()


def perturbed(decisions: Tensor, generator: torch.Generator) -> Tensor:
    """Decisions near and far from these, a hundred for each: (100, ...)."""
    noise = torch.randn((100, *decisions.shape), generator=generator, dtype=decisions.dtype)
    size = 10 ** (torch.rand((100, *decisions.shape[:-1], 1), generator=generator, dtype=decisions.dtype) * 5 - 4)
    return decisions + noise * size * (1 + decisions.abs())


def test_no_feasible_perturbation_beats_the_decision_for_its_own_outcome(
    row: ProblemRow, problem: DecisionProblem
) -> None:
    outcomes = row.outcomes(50, seeded(3))
    decisions = problem.decide(outcomes)
    best = problem.cost(decisions, outcomes)
    others = torch.cat([perturbed(decisions, seeded(4)), problem.decide(row.outcomes(50, seeded(5)))[None]])
    feasible = problem.feasible(others, outcomes)
    assert feasible.any()
    costs = problem.cost(others, outcomes)
    assert (costs[feasible] >= (best - 1e-9 * (1 + best.abs())).expand_as(costs)[feasible]).all()


def scenarios_for(row: ProblemRow, contexts: int = 6, count: int = 25) -> tuple[Tensor, Tensor]:
    """Outcomes (B, K, d_y) and uneven weights (K,)."""
    outcomes = row.outcomes(contexts * count, seeded(6))
    weights = torch.rand(count, generator=seeded(7), dtype=torch.float64) + 0.05
    return outcomes.view(contexts, count, -1), weights / weights.sum()


def weighted_cost(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor, weights: Tensor) -> Tensor:
    """E[c(z; Y)] for decisions (..., B, d_z) over outcomes (B, K, d_y)."""
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
    """Whether decisions (B, d_z) are feasible under all of their outcomes (B, K, d_y), or in the stated share."""
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
    # A decision that breaks its constraints under other scenarios may well be cheaper.
    costs[~problem.feasible(each[..., None, :], outcomes).all(-1)] = torch.inf
    assert (objective <= costs + 1e-9 * (1 + objective.abs())).all()


def test_no_feasible_perturbation_beats_a_prescription(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    found = problem.prescribe(outcomes, weights)
    others = perturbed(found.decisions, seeded(8))
    feasible = problem.feasible(others[..., None, :], outcomes).all(-1)
    costs = weighted_cost(problem, others, outcomes, weights)
    floor = found.objective - 1e-9 * (1 + found.objective.abs())
    assert (costs[feasible] >= floor.expand_as(costs)[feasible]).all()


def test_one_scenario_is_prescribed_as_it_is_decided(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes = row.outcomes(9, seeded(9))
    found = problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(found.objective, problem.cost(problem.decide(outcomes), outcomes))


def test_weights_may_be_shared_or_given_for_each_context(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    shared, each = problem.prescribe(outcomes, weights), problem.prescribe(outcomes, weights.expand(6, -1))
    torch.testing.assert_close(shared.decisions, each.decisions)
    torch.testing.assert_close(shared.objective, each.objective)


def test_the_order_of_scenarios_does_not_matter(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, weights = scenarios_for(row)
    order = torch.randperm(len(weights), generator=seeded(10))
    shuffled = problem.prescribe(outcomes[:, order], weights[order])
    torch.testing.assert_close(shuffled.objective, problem.prescribe(outcomes, weights).objective)


def test_a_scenario_of_weight_two_is_the_scenario_twice(row: ProblemRow, problem: DecisionProblem) -> None:
    outcomes, _ = scenarios_for(row, count=5)
    doubled = torch.cat([outcomes, outcomes[:, :1]], dim=1)
    weights = torch.tensor([2, 1, 1, 1, 1], dtype=torch.float64) / 6
    equal = torch.full((6,), 1 / 6, dtype=torch.float64)
    torch.testing.assert_close(
        problem.prescribe(outcomes, weights).objective, problem.prescribe(doubled, equal).objective
    )


def test_the_gradient_of_the_cost_of_a_prediction_matches_finite_differences_away_from_kinks(
    row: ProblemRow, problem: DecisionProblem
) -> None:
    if not problem.differentiable:
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


def test_a_posterior_can_be_learned_for_the_problem_and_every_policy_decides_from_it(
    row: ProblemRow, problem: DecisionProblem
) -> None:
    posterior, diagnostics = learned(problem, row)
    scenarios = posterior.scenarios(torch.randn(4, 3, generator=seeded(13), dtype=torch.float64), posterior.draws())
    for policy in POLICIES.values():
        found = policy(problem, scenarios, seeded())
        assert torch.isfinite(found.decisions).all()
        assert torch.isfinite(found.objective).all()
    assert math.isfinite(diagnostics["cost_scale"])


def learned(problem: DecisionProblem, row: ProblemRow, **changes: Any) -> tuple[Posterior, dict[str, Any]]:
    generator = seeded(14)
    outcomes = row.outcomes(60, generator)
    contexts = torch.cat([outcomes[:, :1], torch.randn(60, 2, generator=generator, dtype=torch.float64)], dim=1)
    quick = {"method": "vi", "members": 2, "epochs": 2}
    if not problem.differentiable:
        quick = {"method": "mh", "chains": 2, "steps": 60, "burn_in": 30}
    options = quick | {"predictor": "linear", "particles": 12} | changes
    return learn(problem, Sample(contexts, outcomes), make_options(**options))


# policies: whether a policy's decision depends on random numbers

POLICY_ROWS = {"bcp": False, "averaged": False, "blended": False, "map": False, "thompson": True}


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
    return POLICIES[policy](problem, scenarios, seeded(seed))


def test_a_policy_gives_one_feasible_decision_for_each_context_and_its_expected_cost(
    row: ProblemRow, policy: str, problem: DecisionProblem, scenarios: Scenarios
) -> None:
    found = apply(policy, problem, scenarios)
    assert found.decisions.shape == (40, problem.decision_dim)
    assert len(found.status) == 40
    if row.certain or policy == "bcp":
        assert keeps_its_promise(row, problem, found.decisions, scenarios.outcomes, scenarios.weights)
    torch.testing.assert_close(found.objective, expected_cost(problem, found.decisions, scenarios))


def test_a_policy_decides_the_same_from_the_same_seed(
    policy: str, problem: DecisionProblem, scenarios: Scenarios
) -> None:
    # A pool of bases may have learned on the way and take a shorter one; all else is exact.
    rounding = 1e-9 if isinstance(problem, TwoStageLinear) else 0.0
    first, again = apply(policy, problem, scenarios, 3), apply(policy, problem, scenarios, 3)
    torch.testing.assert_close(first.decisions, again.decisions, rtol=rounding, atol=rounding)
    other = apply(policy, problem, scenarios, 4)
    alike = torch.allclose(first.decisions, other.decisions, rtol=1e-9, atol=1e-9)
    assert alike != POLICY_ROWS[policy]


def test_only_the_optimal_policy_is_never_beaten_by_another(
    row: ProblemRow, policy: str, problem: DecisionProblem, scenarios: Scenarios
) -> None:
    if not row.certain:
        # The cheapest policy may be one that breaks its constraints.
        return
    mine = apply(policy, problem, scenarios).objective
    best = torch.stack([apply(other, problem, scenarios).objective for other in POLICIES]).amin(dim=0)
    unbeaten = bool((mine <= best + 1e-9 * (1 + best.abs())).all())
    assert unbeaten == (policy in row.optimal)


def test_every_policy_decides_alike_when_nothing_is_uncertain(policy: str, row: ProblemRow) -> None:
    problem, outcomes = build_problem(row.spec), row.outcomes(10, seeded(16))
    certain = Scenarios(outcomes[:, None].expand(-1, 4, -1), torch.full((4,), 0.25, dtype=torch.float64), outcomes)
    torch.testing.assert_close(apply(policy, problem, certain).decisions, problem.decide(outcomes))


# predictors

PREDICTOR_ROWS: dict[str, dict[str, Any]] = {
    "linear": {"hidden": (), "dim": 4 * 2},
    "relu_affine": {"hidden": (), "dim": 4 * 2},
    "mlp": {"hidden": (5, 6), "dim": 4 * 5 + 6 * 6 + 7 * 2},
    "skip_mlp": {"hidden": (5,), "dim": 4 * 5 + 6 * 2 + 4 * 2},
}


def test_every_registered_predictor_has_a_row_in_the_contract_and_a_name_in_the_api() -> None:
    offered = set(get_args(PredictorSpec.model_fields["kind"].annotation))
    assert set(PREDICTOR_ROWS) == set(KINDS) == offered - {"auto"}


def history(rows: int = 30) -> Sample:
    generator = seeded(17)
    contexts = torch.randn(rows, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.01]) + 7
    return Sample(contexts, 100 + 10 * torch.randn(rows, 2, generator=generator, dtype=torch.float64))


@pytest.fixture(params=KINDS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return build_predictor(request.param, history(), PREDICTOR_ROWS[request.param]["hidden"])


def parameters(predictor: Predictor, count: int) -> Tensor:
    return predictor.initial(count, seeded(18)) + 0.3 * torch.randn(count, predictor.dim, generator=seeded(19))


def test_a_predictor_has_the_parameters_its_layers_need(predictor: Predictor) -> None:
    assert predictor.dim == PREDICTOR_ROWS[predictor.kind]["dim"]
    assert predictor.initial(5, seeded()).shape == (5, predictor.dim)


def test_a_predictor_gives_finite_predictions_in_the_users_units(predictor: Predictor) -> None:
    predictions = predictor.predict(parameters(predictor, 4), history().contexts)
    assert (predictions.shape, predictions.dtype) == ((4, 30, 2), torch.float64)
    assert torch.isfinite(predictions).all()
    assert 50 < predictions.mean() < 150


def test_parameter_vectors_and_contexts_do_not_influence_each_other(predictor: Predictor) -> None:
    theta, contexts = parameters(predictor, 4), history().contexts
    together = predictor.predict(theta, contexts)
    for s in range(4):
        torch.testing.assert_close(predictor.predict(theta[s : s + 1], contexts)[0], together[s], rtol=1e-5, atol=1e-4)
    for n in (0, 29):
        torch.testing.assert_close(
            predictor.predict(theta, contexts[n : n + 1])[:, 0], together[:, n], rtol=1e-5, atol=1e-4
        )


def test_contexts_may_differ_for_each_parameter_vector(predictor: Predictor) -> None:
    theta, encoded = parameters(predictor, 3), predictor.encode(history().contexts)
    each = torch.stack([encoded[:10], encoded[10:20], encoded[20:]])
    expected = torch.stack([predictor.forward(theta[s : s + 1], each[s])[0] for s in range(3)])
    torch.testing.assert_close(predictor.forward(theta, each), expected, rtol=1e-5, atol=1e-4)


def test_a_predictors_gradient_matches_finite_differences(predictor: Predictor) -> None:
    theta = parameters(predictor, 1).double().requires_grad_()
    encoded = predictor.encode(history().contexts, torch.float64)
    (gradient,) = torch.autograd.grad(predictor.forward(theta, encoded).sum(), theta)
    with torch.no_grad():
        steps = 1e-6 * torch.eye(predictor.dim, dtype=torch.float64)
        up, down = (predictor.forward(theta + sign * steps, encoded).sum(dim=(1, 2)) for sign in (1, -1))
    torch.testing.assert_close(gradient[0], (up - down) / 2e-6, rtol=1e-4, atol=1e-3)


def test_a_predictor_survives_as_plain_arrays(predictor: Predictor) -> None:
    description, arrays = predictor_to_arrays(predictor)
    again = predictor_from_arrays(json.loads(json.dumps(description)), arrays)
    theta = parameters(predictor, 2)
    assert torch.equal(again.predict(theta, history().contexts), predictor.predict(theta, history().contexts))


@pytest.mark.parametrize("kind", KINDS)
def test_every_predictor_learns_reproducibly_and_survives_storage(kind: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    problem = build_problem(row.spec)
    options = {"predictor": kind, "hidden": PREDICTOR_ROWS[kind]["hidden"] or (8,)}
    first, again = (learned(problem, row, **options)[0].to_arrays() for _ in range(2))
    assert digest(*first) == digest(*again)
    restored = Posterior.from_arrays(json.loads(json.dumps(first[0])), first[1])
    assert digest(*restored.to_arrays()) == digest(*first)


# families: mean absolute deviation of the standard member, known in closed form

FAMILY_ROWS = {"gaussian": math.sqrt(2 / math.pi), "laplace": 1.0}


def test_every_registered_family_has_a_row_in_the_contract_and_a_name_in_the_api() -> None:
    offered = set(get_args(PosteriorSpec.model_fields["family"].annotation))
    assert set(FAMILY_ROWS) == set(FAMILIES) == offered
    assert all(family.name == name for name, family in FAMILIES.items())


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def grid() -> tuple[Tensor, float]:
    points = torch.linspace(-60, 60, 400_001, dtype=torch.float64)
    return points, 120 / 400_000


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_noise_is_centred_and_of_unit_scale_and_comes_from_its_generator(family: str) -> None:
    noise = FAMILIES[family].noise((200_000,), seeded(20), torch.float64)
    assert noise.mean().abs() < 0.01
    assert noise.abs().mean().item() == pytest.approx(FAMILY_ROWS[family], rel=0.01)
    assert torch.equal(noise, FAMILIES[family].noise((200_000,), seeded(20), torch.float64))
    assert torch.isfinite(FAMILIES[family].noise((200_000,), seeded(21), torch.float32)).all()


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (2.5, 0.3), (-4.0, 3.0)])
def test_a_density_integrates_to_one(family: str, loc: float, scale: float) -> None:
    points, width = grid()
    density = FAMILIES[family].log_prob(points, scalar(loc), scalar(scale)).exp()
    assert (density.sum() * width).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("loc", "scale", "prior"), [(0.0, 1.0, 1.0), (0.7, 0.2, 1.0), (-3.0, 2.0, 0.9)])
def test_the_closed_form_kl_equals_its_integral(family: str, loc: float, scale: float, prior: float) -> None:
    member = FAMILIES[family]
    points, width = grid()
    ours = member.log_prob(points, scalar(loc), scalar(scale))
    theirs = member.log_prob(points, scalar(0.0), scalar(prior))
    integral = (ours.exp() * (ours - theirs)).sum() * width
    assert member.kl(scalar(loc), scalar(scale), scalar(prior)).item() == pytest.approx(integral.item(), abs=1e-5)


def test_the_kl_of_the_prior_with_itself_is_zero_and_grows_with_distance(family: str) -> None:
    kl = FAMILIES[family].kl
    assert kl(scalar(0.0), scalar(0.8), scalar(0.8)).item() == pytest.approx(0, abs=1e-12)
    distances = torch.tensor([kl(scalar(loc), scalar(0.8), scalar(0.8)) for loc in (0.0, 0.1, 1.0, 5.0)])
    assert (distances.diff() > 0).all()


def test_a_mixture_of_the_family_samples_what_its_density_says(family: str) -> None:
    mixture = Mixture(
        FAMILIES[family],
        torch.tensor([0.25, 0.75], dtype=torch.float64),
        torch.tensor([[-5.0], [3.0]], dtype=torch.float64),
        torch.tensor([[0.5], [1.0]], dtype=torch.float64),
    )
    draws = mixture.sample(20_000, seeded(22))
    assert (draws < -1).double().mean().item() == pytest.approx(0.25, abs=0.02)
    points, width = grid()
    density = mixture.log_prob(points[:, None]).exp()
    assert (density.sum() * width).item() == pytest.approx(1, abs=1e-5)
    assert (density * points).sum().item() * width == pytest.approx(draws.mean().item(), abs=0.05)


def test_every_family_can_be_learned_with(family: str) -> None:
    row = PROBLEM_ROWS["newsvendor"][0]
    posterior, _ = learned(build_problem(row.spec), row, family=family)
    assert posterior.to_arrays()[0]["family"] == family
    assert torch.isfinite(posterior.particles).all()
