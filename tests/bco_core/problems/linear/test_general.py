"""Linear models with uncertainty anywhere, against independent programs."""

from __future__ import annotations

import copy
import itertools
import time
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.explain.derivatives import slopes
from bco_core.inference.learn import learn
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.general import GeneralLinear
from bco_core.problems.registry import build_problem
from bco_core.problems.surrogate import Surrogate
from bco_core.status import CUTS, HIGHS
from tests.support.linear_reference import clip_outcome, solve, value_at

Spec = dict[str, Any]


def number(rng: np.random.Generator, outcomes: list[str], uncertain: bool) -> Any:
    constant = float(rng.uniform(1, 3))
    if not uncertain:
        return constant
    return {"constant": constant, "outcomes": {str(rng.choice(outcomes)): float(rng.uniform(0.1, 0.5))}}


def random_model(seed: int, uncertain: tuple[str, ...], whole: bool = False, whole_later: bool = False) -> Spec:
    """Draw orders that meet demand, with any numbers random; shortages are bought and surplus is sold."""
    rng = np.random.default_rng(seed)
    outcomes = ["demand", "price", "yield"]
    goods = range(3)
    return {
        "kind": "linear",
        "decisions": [
            {"name": f"make {i}", "cost": number(rng, outcomes, "cost" in uncertain), "maximum": 9, "integer": whole}
            for i in goods
        ],
        "recourse": [
            {"name": f"buy {j}", "cost": number(rng, outcomes, "recourse cost" in uncertain), "integer": whole_later}
            for j in goods
        ]
        + [{"name": f"sell {j}", "cost": float(-rng.uniform(0, 0.5)), "maximum": 4} for j in goods],
        "outcomes": [{"name": name, "minimum": 0, "maximum": 8} for name in outcomes],
        "rows": [
            {
                "name": "room",
                "decisions": {f"make {i}": float(rng.uniform(1, 2)) for i in goods},
                "sense": "<=",
                "limit": 25,
            }
        ]
        + [
            {
                "name": f"demand {j}",
                "decisions": {f"make {i}": number(rng, outcomes, "technology" in uncertain and i == j) for i in goods},
                "recourse": {
                    f"buy {j}": number(rng, outcomes, "matrix" in uncertain),
                    f"sell {j}": -1.5,
                },
                "sense": ">=",
                "limit": {"constant": float(rng.uniform(3, 9)), "outcomes": {"demand": float(rng.uniform(0.5, 2))}},
            }
            for j in goods
        ],
    }


def draw_outcomes(spec: Spec, count: int, seed: int = 0) -> tuple[Tensor, list[dict[str, float]]]:
    values = np.random.default_rng(seed).uniform(-0.5, 9, size=(count, len(spec["outcomes"])))
    names = [one["name"] for one in spec["outcomes"]]
    return torch.from_numpy(values), [dict(zip(names, row, strict=True)) for row in values.tolist()]


def equal(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def build(spec: Spec) -> GeneralLinear:
    problem = build_problem(spec)
    assert isinstance(problem, GeneralLinear)
    return problem


def by_cvxpy(spec: Spec, outcomes: list[dict[str, float]], risk: Risk, decision: list[float] | None = None) -> float:
    """Return the least risk over equally likely outcomes, or the risk of a given decision."""
    z = {one["name"]: cp.Variable(integer=one.get("integer", False)) for one in spec["decisions"]}
    rules: list[Any] = []
    costs: list[Any] = []

    def add_bounds(variable: Any, entry: Spec) -> None:
        rules.append(variable >= entry.get("minimum", 0))
        if entry.get("maximum") is not None:
            rules.append(variable <= entry["maximum"])

    for entry in spec["decisions"]:
        add_bounds(z[entry["name"]], entry)
    for outcome in (clip_outcome(spec, one) for one in outcomes):
        x = {one["name"]: cp.Variable(integer=one.get("integer", False)) for one in spec["recourse"]}
        for entry in spec["recourse"]:
            add_bounds(x[entry["name"]], entry)
        for row in spec["rows"]:
            left: Any = sum(value_at(t, outcome) * z[name] for name, t in row.get("decisions", {}).items())
            left = left + sum(value_at(w, outcome) * x[name] for name, w in row.get("recourse", {}).items())
            right = value_at(row["limit"], outcome)
            rules.append({"<=": left <= right, ">=": left >= right, "=": left == right}[row["sense"]])
        cost: Any = sum(value_at(one["cost"], outcome) * z[one["name"]] for one in spec["decisions"])
        costs.append(cost + sum(value_at(one["cost"], outcome) * x[one["name"]] for one in spec["recourse"]))
    if decision is not None:
        rules += [variable == value for variable, value in zip(z.values(), decision, strict=True)]
    level, count = cp.Variable(), len(outcomes)
    mean = sum(costs) / count
    tail = level + sum(cp.pos(one - level) for one in costs) / count / (1 - risk.cvar_level)
    problem = cp.Problem(cp.Minimize((1 - risk.cvar_weight) * mean + risk.cvar_weight * tail), rules)
    return float(problem.solve(solver=cp.HIGHS))


KINDS = [
    ("recourse cost",),
    ("technology",),
    ("matrix",),
    ("cost", "recourse cost"),
    ("cost", "recourse cost", "technology", "matrix"),
]


@pytest.mark.parametrize("risk", [EXPECTATION, Risk(0.6, 0.7)], ids=["mean", "cvar"])
@pytest.mark.parametrize("uncertain", KINDS, ids="+".join)
def test_prescriptions_match_the_extensive_form(uncertain: tuple[str, ...], risk: Risk) -> None:
    spec = random_model(1, uncertain)
    problem = build(spec)
    outcomes, named = draw_outcomes(spec, 12)
    found = problem.prescribe(outcomes[None], equal(12), risk)
    best = by_cvxpy(spec, named, risk)
    assert found.status == [Status.OPTIMAL]
    assert found.objective.item() == pytest.approx(best, rel=1e-6)
    assert found.bounds is not None
    assert found.bounds.item() == pytest.approx(best, rel=1e-5)
    assert found.solvers == ((HIGHS,) if "matrix" in uncertain else (CUTS,))
    assert by_cvxpy(spec, named, risk, found.decisions[0].tolist()) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("uncertain", KINDS, ids="+".join)
def test_costs_match_the_optimal_recourse(uncertain: tuple[str, ...]) -> None:
    spec = random_model(2, uncertain)
    problem = build(spec)
    outcomes, named = draw_outcomes(spec, 5, seed=3)
    decisions = torch.from_numpy(np.random.default_rng(4).uniform(0, 4, size=(5, 3)))
    costs = problem.cost(decisions, outcomes)
    free = copy.deepcopy(spec)
    free["rows"] = free["rows"][1:]
    expected = [by_cvxpy(free, [one], EXPECTATION, z) for one, z in zip(named, decisions.tolist(), strict=True)]
    np.testing.assert_allclose(costs.numpy(), expected, rtol=1e-7)
    plan = problem.recourse_plan(decisions[0], outcomes)
    first = problem.cost(decisions[0], outcomes) - plan.costs
    now = [
        sum(
            value_at(part["cost"], clip_outcome(spec, one)) * z
            for part, z in zip(spec["decisions"], decisions[0].tolist(), strict=True)
        )
        for one in named
    ]
    np.testing.assert_allclose(first.numpy(), now, rtol=1e-9)
    torch.testing.assert_close((plan.amounts * plan.unit_costs).sum(dim=1), plan.costs)
    assert (plan.slack >= 0).all()


@pytest.mark.parametrize("uncertain", KINDS, ids="+".join)
def test_point_decisions_are_optimal_for_their_outcome(uncertain: tuple[str, ...]) -> None:
    spec = random_model(5, uncertain)
    problem = build(spec)
    outcomes, named = draw_outcomes(spec, 6, seed=6)
    costs = problem.cost(problem.decide(outcomes), outcomes)
    expected = [answer.value for one in named if (answer := solve(spec, [one])) is not None]
    np.testing.assert_allclose(costs.numpy(), expected, rtol=1e-7)
    missing = outcomes.clone()
    missing[2, 1] = torch.nan
    assert problem.decide(missing).isnan().any(dim=1).tolist() == [False, False, True, False, False, False]
    assert problem.cost(problem.decide(outcomes), missing).isnan().tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("uncertain", [("technology",), ("recourse cost", "matrix")], ids="+".join)
def test_integer_recourse_is_searched_and_proven(uncertain: tuple[str, ...]) -> None:
    spec = random_model(7, uncertain, whole=True, whole_later=True)
    for entry in spec["decisions"]:
        entry["maximum"] = 3
    problem = build(spec)
    outcomes, named = draw_outcomes(spec, 3, seed=8)
    found = problem.prescribe(outcomes[None], equal(3))
    choices = torch.tensor(list(itertools.product(range(4), repeat=3)), dtype=torch.float64)
    values = problem.cost(choices[:, None], outcomes).mean(dim=1)
    best = values[problem.within(choices)].min().item()
    answer = solve(spec, named)
    assert answer is not None
    assert best == pytest.approx(answer.value, rel=1e-6)
    assert found.objective.item() == pytest.approx(best, rel=1e-6)
    assert (found.status, found.solvers) == ([Status.OPTIMAL], (HIGHS,))
    assert (found.decisions == found.decisions.round()).all()
    relaxed = problem.relaxation.prescribe(outcomes[None], equal(3))
    assert relaxed.objective.item() < best


def negate(spec: Spec) -> Spec:
    def minus(value: Any) -> Any:
        if not isinstance(value, dict):
            return -value
        return {"constant": -value["constant"], "outcomes": {name: -one for name, one in value["outcomes"].items()}}

    other = copy.deepcopy(spec) | {"sense": "maximize"}
    for entry in other["decisions"] + other["recourse"]:
        entry["cost"] = minus(entry["cost"])
    return other


def test_maximising_equals_minimising_the_negative() -> None:
    spec = random_model(9, ("cost", "technology"))
    least, most = build(spec), build(negate(spec))
    outcomes, _ = draw_outcomes(spec, 9)
    one, other = least.prescribe(outcomes[None], equal(9)), most.prescribe(outcomes[None], equal(9))
    assert torch.equal(one.decisions, other.decisions)
    assert torch.equal(one.objective, other.objective)
    facts = most.facts(other.decisions[0], outcomes, equal(9))
    assert facts == {"expected_value": pytest.approx(-one.objective.item())}
    assert least.facts(one.decisions[0], outcomes, equal(9)) == {}


def test_a_partly_given_decision_is_completed() -> None:
    spec = random_model(1, ("technology",))
    problem = build(spec)
    outcomes, named = draw_outcomes(spec, 8)
    given = torch.tensor([torch.nan, 12.0, torch.nan], dtype=torch.float64)
    found = problem.fixed(given).prescribe(outcomes[None], equal(8))
    pinned = copy.deepcopy(spec)
    pinned["decisions"][1] |= {"minimum": 12, "maximum": 12}
    assert found.decisions[0, 1] == 12
    assert found.objective.item() == pytest.approx(by_cvxpy(pinned, named, EXPECTATION), rel=1e-6)
    broken = problem.breaches(torch.tensor([0.0, 12.0, 9.0], dtype=torch.float64))
    assert [one.where for one in broken] == [("decisions", 1, "maximum"), ("rows", 0)]
    with pytest.raises(InvalidInput, match="no decision"):
        problem.fixed(torch.tensor([torch.nan, 99.0, torch.nan], dtype=torch.float64))


def test_prices_match_the_gain_of_relaxing_a_row() -> None:
    spec = random_model(1, ("technology", "recourse cost"))
    for entry in spec["decisions"]:
        entry["maximum"] = None
    spec["rows"][0]["limit"] = 2.0
    problem = build(spec)
    outcomes, named = draw_outcomes(spec, 8)
    found = problem.prescribe(outcomes[None], equal(8))
    prices = {one.where: one.value for one in problem.prices(found.decisions[0], outcomes, equal(8))}
    looser = copy.deepcopy(spec)
    looser["rows"][0]["limit"] = 2.0 + 1e-3
    gained = (by_cvxpy(spec, named, EXPECTATION) - by_cvxpy(looser, named, EXPECTATION)) / 1e-3
    assert gained > 0.1
    assert prices["rows", 0] == pytest.approx(gained, rel=1e-3)


# rows without recourse


def test_a_row_without_recourse_holds_for_all_outcomes_within_bounds() -> None:
    spec = {
        "kind": "linear",
        "decisions": [{"name": "a", "cost": -1}, {"name": "b", "cost": {"constant": -1, "outcomes": {"v": -0.1}}}],
        "outcomes": [{"name": "u", "minimum": 1, "maximum": 3}, {"name": "v", "minimum": -1, "maximum": 2}],
        "rows": [
            {"name": "worst", "decisions": {"a": 1}, "sense": "<=", "limit": {"constant": 5, "outcomes": {"u": -1}}},
            {
                "name": "mix",
                "decisions": {"a": {"outcomes": {"u": 1}}, "b": {"constant": 3, "outcomes": {"v": 1}}},
                "sense": "<=",
                "limit": 12,
            },
        ],
    }
    problem = build_problem(spec)
    weight, outcome = torch.ones(1, dtype=torch.float64), torch.tensor([[[2.0, 0.0]]], dtype=torch.float64)
    found = problem.prescribe(outcome, weight).decisions[0]
    # a ≤ 5 − 3, and 3 a + 5 b ≤ 12 at the worst corner.
    np.testing.assert_allclose(found.numpy(), [2, 1.2], rtol=1e-9)
    broken = problem.breaches(torch.tensor([2.0, 1.3], dtype=torch.float64))  # type: ignore[attr-defined]
    assert {one.where for one in broken} == {("rows", 1)}


@pytest.mark.parametrize(
    ("change", "words", "where"),
    [
        (lambda s: s["rows"][0].update(limit=-1), "no decision satisfies", ("rows",)),
        (lambda s: s["rows"][0].update(limit={"outcomes": {"free": 1}}), "free, which has no bounds", ("rows", 0)),
        (
            lambda s: s["rows"][0].update(limit={"outcomes": {"demand": 1}}, sense="="),
            "'room' is an equality that depends on outcomes",
            ("rows", 0),
        ),
        (lambda s: s["rows"][0].update(limit={"constant": -1, "outcomes": {"demand": 1}}), "no decision", ("rows",)),
        (lambda s: s["recourse"][0].update(maximum=5), "not always a recourse", ("rows",)),
        (lambda s: s["recourse"][1].update(cost=-9), "without limit", ("decisions",)),
    ],
    ids=["empty", "unbounded outcome", "equality", "never", "unmended", "falling"],
)
def test_unsupported_models_are_refused_with_the_reason(change: Any, words: str, where: tuple[Any, ...]) -> None:
    spec: Spec = {
        "kind": "linear",
        "decisions": [{"name": "order", "cost": 2, "maximum": 5}],
        "recourse": [
            {"name": "buy", "cost": {"constant": 3, "outcomes": {"price": 1}}},
            {"name": "sell", "cost": -1},
        ],
        "outcomes": [
            {"name": "demand", "minimum": 0, "maximum": 8},
            {"name": "price", "minimum": 0, "maximum": 2},
            {"name": "free"},
        ],
        "rows": [
            {"name": "room", "decisions": {"order": 1}, "sense": "<=", "limit": 4},
            {
                "name": "need",
                "decisions": {"order": 1},
                "recourse": {"buy": 1, "sell": -1},
                "sense": ">=",
                "limit": {"outcomes": {"demand": 1}},
            },
        ],
    }
    build(copy.deepcopy(spec))
    change(spec)
    with pytest.raises(InvalidInput, match=words) as refused:
        build_problem(spec)
    assert refused.value.where == where


# size and time


def wide_model(rows: int) -> Spec:
    """One store per row, each with its own price for shortages."""
    return {
        "kind": "linear",
        "decisions": [{"name": f"z{i}", "cost": 1 + i % 3} for i in range(rows // 4)],
        "recourse": [
            {"name": f"x{i}", "cost": {"constant": 5, "outcomes": {"price": 0.5 + i % 5}}} for i in range(rows)
        ],
        "outcomes": [{"name": "price", "minimum": 0, "maximum": 3}, {"name": "demand", "minimum": 0, "maximum": 9}],
        "rows": [
            {
                "decisions": {f"z{i // 4}": {"constant": 1, "outcomes": {"price": 0.1}}},
                "recourse": {f"x{i}": 1},
                "sense": ">=",
                "limit": {"constant": i % 7, "outcomes": {"demand": 1}},
            }
            for i in range(rows)
        ],
    }


@pytest.mark.slow
def test_thousands_of_rows_are_built_and_solved_in_bounded_time() -> None:
    start = time.process_time()
    spec = wide_model(8000)
    problem = build(spec)
    outcomes, _ = draw_outcomes(spec, 5)
    found = problem.prescribe(outcomes[None], equal(5))
    assert (found.status, found.solvers) == ([Status.OPTIMAL], (HIGHS,))
    small = wide_model(80)
    value = build(small).prescribe(outcomes[None], equal(5)).objective.item()
    assert value > 0
    assert time.process_time() - start < 60


def test_scenarios_beyond_the_size_limit_are_dropped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.problems.linear.general.MOST_NUMBERS", 100)
    spec = random_model(1, ("matrix",))
    outcomes, _ = draw_outcomes(spec, 30)
    found = build(spec).prescribe(outcomes[None], equal(30))
    assert found.status == [Status.BEST_EFFORT]
    assert "30 scenarios are too many" in found.reasons[0]
    assert found.decisions.isfinite().all()


def test_a_time_limit_is_kept_and_reported() -> None:
    spec = random_model(1, ("matrix",), whole=True, whole_later=True)
    outcomes, _ = draw_outcomes(spec, 30)
    start = time.monotonic()
    found = build(spec).prescribe(outcomes.expand(2, -1, -1), equal(30), time_limit_seconds=1e-9)
    assert found.status == [Status.TIME_LIMIT] * 2
    assert time.monotonic() - start < 5


def test_a_deadline_applies_to_every_program_of_a_solver() -> None:
    """HiGHS accumulates its time from the first program on, and thousands follow."""
    spec = random_model(1, ("recourse cost",))
    problem = build(spec)
    outcomes, _ = draw_outcomes(spec, 4000)
    start = time.monotonic()
    expected = problem.decide(outcomes)
    taken = time.monotonic() - start
    with deadlines.until(time.monotonic() + 20 * taken):
        within = problem.decide(outcomes)
    assert torch.equal(expected, within)


# learning


def test_the_gradient_of_the_loss_matches_torch() -> None:
    problem = build(random_model(3, ("recourse cost",)))
    assert isinstance(problem, Surrogate)
    generator = torch.Generator().manual_seed(6)
    predictions, outcomes = (6 * torch.randn(50, 3, generator=generator, dtype=torch.float64) + 4 for _ in range(2))
    known = problem.hindsight(outcomes)
    losses, slope = problem.loss_and_slope(predictions.numpy(), outcomes.numpy(), known)
    predictions.requires_grad_()
    expected = problem.surrogate(predictions, outcomes, known)
    (gradient,) = torch.autograd.grad(expected.sum(), predictions)
    np.testing.assert_allclose(losses, expected.detach().numpy())
    np.testing.assert_allclose(slope, gradient.numpy())
    assert (slope == 0).any()


def test_decisions_of_a_general_model_have_no_exact_derivatives() -> None:
    problem = build(random_model(3, ("recourse cost",)))
    contexts = torch.randn(40, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    outcomes = 4 + torch.stack([contexts[:, 0], contexts[:, 1], contexts.sum(dim=1)], dim=1)
    posterior = learn(problem, Sample(contexts, outcomes)).posterior
    options = PrescribeOptions(policy="averaged", costs_over="posterior")
    draws = posterior.draws()
    decision = problem.decide(posterior.scenarios(contexts[:1], draws).outcomes)[0].mean(dim=0)
    assert slopes(posterior, problem, contexts[0], options, draws, decision) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uncertain", "whole_later", "share"),
    [(("recourse cost",), False, 0.4), (("technology",), False, 0.4), (("technology",), True, 0.8)],
    ids=["recourse costs", "technology", "whole recourse"],
)
def test_the_recommended_policy_has_a_share_of_the_constants_regret(
    uncertain: tuple[str, ...], whole_later: bool, share: float
) -> None:
    spec = random_model(3, uncertain, whole_later=whole_later)
    problem = build(spec)
    generator = torch.Generator().manual_seed(5)
    contexts = torch.randn(130, 2, generator=generator, dtype=torch.float64)
    outcomes = 4 + torch.stack([contexts[:, 0] * 2, contexts[:, 1], contexts.sum(dim=1) / 2], dim=1)
    outcomes = outcomes + 0.4 * torch.randn(130, 3, generator=generator, dtype=torch.float64)
    start = time.process_time()
    known = outcomes[:100]
    learned = learn(problem, Sample(contexts[:100], known))
    options = PrescribeOptions(policy=learned.diagnostics.policy, scenarios=20)
    # Integer recourse is slow to search.
    contexts, outcomes = (part[100 : 108 if whole_later else 130] for part in (contexts, outcomes))
    answer = prescribe(learned.posterior, problem, contexts, options)
    assert time.process_time() - start < 120
    costs = problem.cost(answer.decisions, outcomes).mean().item()
    constant = problem.prescribe(known[None, :20], equal(20)).decisions
    least = problem.cost(problem.decide(outcomes), outcomes).mean().item()
    fixed = problem.cost(constant, outcomes).mean().item()
    assert learned.diagnostics.loss == "squared_error"
    assert costs - least < share * (fixed - least)


@pytest.mark.slow
def test_integer_recourse_is_decided_and_costed_within_a_time_limit() -> None:
    """A search that would take much longer leaves time to cost its result; other contexts may be skipped."""
    problem = build(
        {
            "kind": "linear",
            "decisions": [
                {"name": "ordered", "cost": 3, "maximum": 200},
                {"name": "vans", "cost": 20, "integer": True, "maximum": 5},
            ],
            "recourse": [{"name": "trucks", "cost": 25, "integer": True}, {"name": "couriers", "cost": 8}],
            "outcomes": [{"name": "demand", "minimum": 0, "maximum": 400}],
            "rows": [
                {
                    "decisions": {"ordered": 1, "vans": 10},
                    "recourse": {"trucks": 12, "couriers": 1},
                    "sense": ">=",
                    "limit": {"outcomes": {"demand": 1}},
                }
            ],
        }
    )
    generator = torch.Generator().manual_seed(1)
    contexts = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    demand = 60 + 10 * contexts[:, :1] + 8 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    posterior = learn(problem, Sample(contexts, demand)).posterior
    options = PrescribeOptions(policy="predictive", scenarios=200)
    answer = prescribe(posterior, problem, contexts[:3], options, time_limit_seconds=6)
    assert answer.status[0] in (Status.TIME_LIMIT, Status.OPTIMAL)
    assert answer.decisions[0].isfinite().all()
    assert answer.decisions[0, 1] == answer.decisions[0, 1].round()
    assert answer.costs.mean[0].isfinite()
    assert 0 <= answer.gaps[0] < 0.5
