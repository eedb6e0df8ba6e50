"""Evaluation of the caller's own decisions: their cost, the comparison with ours, and completion of open entries."""

from __future__ import annotations

import itertools
import math
from importlib import import_module
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bco_core import deadlines
from bco_core.data import Sample
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.evaluate import GIVEN, OURS, EvaluateResult, evaluate
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.posterior import Posterior
from bco_core.prescribe import QUANTILES, PrescribeOptions, prescribe, scenario_sets
from bco_core.problems.base import DecisionProblem, Risk
from bco_core.problems.registry import PROBLEMS, build_problem, fix_decision
from bco_core.scenarios import Scenarios
from tests.bco_core.test_prescribe import CONTEXTS, OVER, POSTERIOR, UNDER, make_posterior
from tests.support.programs import random_two_stage

judging = import_module("bco_core.evaluate")
Spec = dict[str, Any]
NAN = math.nan
ITEMS: Spec = {
    "kind": "newsvendor",
    "items": [
        {"underage_cost": 3, "overage_cost": 1, "minimum_order": 95, "maximum_order": 104},
        {"underage_cost": 0.5, "overage_cost": 2},
    ],
}
TRUCKS: Spec = {
    "kind": "two_stage_linear",
    "decisions": [
        {"name": "small", "cost": 4, "maximum": 6, "integer": True},
        {"name": "large", "cost": 9, "maximum": 4, "integer": True},
    ],
    "decision_rows": [
        {"name": "drivers", "coefficients": {"small": 1, "large": 1}, "sense": "<=", "limit": 7},
        {"coefficients": {"small": 1, "large": 2}, "sense": ">=", "limit": 1},
    ],
    "outcomes": [{"name": "load", "minimum": 0}, {"name": "other"}],
    "recourse": [{"name": "courier", "cost": 3}],
    "rows": [
        {
            "recourse": {"courier": 1},
            "decisions": {"small": 2, "large": 5},
            "sense": ">=",
            "outcomes": {"load": 1, "other": 0.001},
        }
    ],
}
ASSETS: Spec = {
    "kind": "mean_variance_portfolio",
    "assets": [{"name": "a"}, {"name": "b", "maximum": 0.5}, {"name": "c", "minimum": -0.2}],
    "covariance": [[0.04, 0.01, 0.0], [0.01, 0.09, 0.02], [0.0, 0.02, 0.03]],
    "risk_aversion": 5.0,
}


def tensor(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def evaluate_given(
    spec: Spec, decisions: Tensor, owners: list[int], posterior: Posterior = POSTERIOR, **options: Any
) -> tuple[Tensor, EvaluateResult]:
    """Return our decisions for all contexts and the evaluation of the given ones."""
    problem, asked = build_problem(spec), PrescribeOptions(**options)
    ours = prescribe(posterior, problem, CONTEXTS, asked).decisions
    found = evaluate(
        posterior,
        problem,
        CONTEXTS,
        ours,
        decisions,
        torch.tensor(owners),
        lambda decision: fix_decision(problem, spec, decision),
        asked,
    )
    return ours, found


def both_scenarios(posterior: Posterior = POSTERIOR, **options: Any) -> tuple[Scenarios, Scenarios]:
    """Return the scenarios that decisions hedge over and those that costs are over."""
    asked = PrescribeOptions(**options)
    encoded = posterior.encode(CONTEXTS)
    draws = posterior.scenarios(CONTEXTS, posterior.draws(asked.scenarios, asked.seed), encoded)
    return draws, scenario_sets(posterior, CONTEXTS, encoded, draws, asked)[1]


@pytest.mark.parametrize("options", [{}, {"costs_over": "posterior", "scenarios": 31}, {"seed": 5, "scenarios": 60}])
def test_costs_and_extra_costs_match_numpy_over_the_same_scenarios(options: dict[str, Any]) -> None:
    given_ = tensor([100.0, 90.0], [97.0, 110.0], [110.0, 80.0])
    owners = [2, 2, 6]
    ours, found = evaluate_given(ITEMS, given_, owners, **options)
    atoms = both_scenarios(**options)[1]
    weights = atoms.weights.numpy()
    for row, owner in enumerate(owners):
        outcomes = atoms.outcomes[owner].numpy()

        def costs(decision: Tensor, outcomes: Any = outcomes) -> Any:
            short = outcomes - decision.numpy()
            return np.where(short > 0, UNDER * short, -OVER * short).sum(1)

        theirs, more = costs(given_[row]), costs(given_[row]) - costs(ours[owner])
        order = np.argsort(theirs)
        share = weights[order].cumsum()
        by_quantile = [theirs[order][np.searchsorted(share, level * (1 - 1e-9))] for level in QUANTILES]
        np.testing.assert_allclose(found.costs.mean[row], weights @ theirs, rtol=1e-12)
        np.testing.assert_allclose(found.costs.quantiles[row], by_quantile, rtol=1e-12)
        np.testing.assert_allclose(found.extra_cost[row], weights @ more, rtol=1e-9)
        np.testing.assert_allclose(found.worse_in[row], weights @ (more > 0), rtol=1e-12)
        np.testing.assert_allclose(found.extra_cost_error[row], more.std(ddof=1) / math.sqrt(len(more)), rtol=1e-9)
        middle = np.sort(more)[math.ceil(len(more) / 2 - 1e-9) - 1]
        np.testing.assert_allclose(found.extra_cost_quantiles[row, 2], middle, rtol=1e-9)
    assert found.status == [GIVEN] * 3


def test_paired_extra_costs_have_a_smaller_error_than_independent_samples() -> None:
    ours = prescribe(POSTERIOR, build_problem(ITEMS), CONTEXTS).decisions
    _, found = evaluate_given(ITEMS, ours + 0.5, list(range(7)))
    costs = build_problem(ITEMS).cost(ours[:, None], both_scenarios()[1].outcomes)
    assert (found.extra_cost_error < 0.2 * costs.std(1) / math.sqrt(200)).all()


@pytest.mark.parametrize("spec", [ITEMS, TRUCKS, ASSETS], ids=lambda spec: str(spec["kind"]))
@pytest.mark.parametrize("policy", ["averaged", "bcp", "predictive", "map", "thompson"])
def test_our_own_decision_has_no_extra_cost_and_open_entries_become_ours(spec: Spec, policy: str) -> None:
    level = (0.05, 0.02) if spec is ASSETS else (20.0, 5.0)
    posterior = make_posterior(*level, outcome_dim=3 if spec is ASSETS else 2)
    problem = build_problem(spec)
    ours = prescribe(posterior, problem, CONTEXTS, PrescribeOptions(policy=policy)).decisions
    both = torch.cat([ours, torch.full_like(ours, NAN)])
    _, found = evaluate_given(spec, both, [*range(7), *range(7)], posterior, policy=policy)
    assert found.status == [GIVEN] * 7 + [OURS] * 7
    assert torch.equal(found.decisions, torch.cat([ours, ours]))
    for zero in (found.extra_cost, found.extra_cost_error, found.worse_in, found.extra_cost_quantiles):
        assert not zero.any(), policy


def test_independent_items_are_completed_as_if_the_others_were_free() -> None:
    for policy in ("averaged", "bcp", "predictive", "map"):
        ours, found = evaluate_given(ITEMS, tensor([120.0, NAN], [NAN, 50.0], [90.0, NAN]), [0, 1, 3], policy=policy)
        assert found.decisions.tolist() == [[120.0, ours[0, 1]], [ours[1, 0], 50.0], [90.0, ours[3, 1]]]
        # A bound that the given entries break does not affect the open ones.
        assert all(status == "optimal" for status in found.status)


@pytest.mark.slow
def test_open_entries_of_two_stage_problems_match_cvxpy() -> None:
    @settings(max_examples=25)
    @given(st.integers(0, 10**9))
    def check(seed: int) -> None:
        rng = np.random.default_rng(seed)
        spec = random_two_stage(rng)
        problem: Any = build_problem(spec)
        stages, is_given = problem.stages, rng.integers(0, 2, 3).astype(bool)
        if is_given.all() or not is_given.any():
            return
        outcomes = torch.from_numpy(rng.normal(size=(12, 2)))
        base = problem.decide(outcomes[:1])[0].numpy()
        pins = np.where(is_given, base + rng.normal(size=3) * rng.integers(0, 2), NAN)
        z = cp.Variable(3)
        x = cp.Variable((12, len(stages.recourse_program.cost)))
        first, recourse = stages.first_program, stages.recourse_program
        constraints = row_constraints(z, first, stages.first.limits.constant, ~is_given)
        constraints += [z[j] == pins[j] for j in np.flatnonzero(is_given)]
        for k in range(12):
            limits = stages.second.limits.constant + stages.by_outcome @ outcomes[k].numpy() - stages.by_decision @ z
            constraints += row_constraints(x[k], recourse, limits, np.ones(len(recourse.cost), dtype=bool))
        best = cp.Problem(cp.Minimize(first.cost @ z + cp.sum(x @ recourse.cost) / 12), constraints)
        best.solve(solver=cp.CLARABEL)
        weights = torch.full((12,), 1 / 12, dtype=torch.float64)
        if best.status == "infeasible":
            with pytest.raises(InvalidInput, match="decision rows"):
                fix_decision(problem, spec, torch.from_numpy(pins))
            return
        found = fix_decision(problem, spec, torch.from_numpy(pins)).prescribe(outcomes[None], weights)
        assert found.status == ["optimal"]
        np.testing.assert_allclose(found.decisions[0].numpy()[is_given], pins[is_given], rtol=0, atol=1e-9)
        # The original problem gives it the same cost.
        own = (problem.cost(found.decisions[:, None], outcomes[None]) * weights).sum()
        np.testing.assert_allclose([found.objective.item(), own], best.value, rtol=1e-6, atol=1e-6)
        checked.append(seed)

    checked: list[int] = []
    check()
    assert len(checked) >= 8


def row_constraints(v: Any, program: Any, limits: Any, bounded: Any) -> list[Any]:
    rows = program.matrix @ v
    constraints = [
        rows[i] >= limits[i] if sense > 0 else rows[i] <= limits[i] if sense < 0 else rows[i] == limits[i]
        for i, sense in enumerate(program.senses)
    ]
    constraints += [v[j] >= low for j, low in enumerate(program.lower) if np.isfinite(low) and bounded[j]]
    return constraints + [v[j] <= high for j, high in enumerate(program.upper) if np.isfinite(high) and bounded[j]]


def test_open_integer_entries_are_optimal_by_enumeration() -> None:
    posterior = make_posterior(20.0, 5.0)
    half = tensor([2.5, NAN], [NAN, 1.0])
    _, found = evaluate_given(TRUCKS, half, [0, 4], posterior, policy="predictive")
    atoms = both_scenarios(posterior, policy="predictive")[1]
    problem = build_problem(TRUCKS)
    for row, owner, options in ((0, 0, [[2.5, n] for n in range(5)]), (1, 4, [[n, 1.0] for n in range(7)])):
        costs = {
            tuple(z): float((problem.cost(tensor(z), atoms.outcomes[owner]) * atoms.weights).sum()) for z in options
        }
        best = min((z for z in costs if sum(z) <= 7), key=lambda z: costs[z])
        assert tuple(found.decisions[row].tolist()) == best
        np.testing.assert_allclose(found.costs.mean[row], costs[best], rtol=1e-9)
    assert [breach.sentence for breach in found.breaches[0]] == ["small is 2.5 and must be an integer"]


@pytest.mark.parametrize("kind", ["mean_variance_portfolio", "return_constrained_portfolio"])
def test_open_entries_of_portfolios_match_cvxpy(kind: str) -> None:
    spec = ASSETS | {"kind": kind} | ({"target_return": 0.02, "confidence": 0.5} if kind[0] == "r" else {})
    spec = {name: value for name, value in spec.items() if kind[0] == "m" or name != "risk_aversion"}
    posterior = make_posterior(0.05, 0.02, 3)
    for pins in ([0.3, NAN, NAN], [NAN, 0.7, -0.1], [NAN, NAN, 0.2]):
        _, found = evaluate_given(spec, tensor(pins), [1], posterior, policy="predictive")
        atoms = both_scenarios(posterior, policy="predictive")[1].outcomes[1].numpy()
        z, sigma = cp.Variable(3), np.array(spec["covariance"])
        constraints = [cp.sum(z) <= 1]
        for j, (asset, pin) in enumerate(zip(spec["assets"], pins, strict=True)):
            constraints += [z[j] == pin] if not math.isnan(pin) else [z[j] >= asset.get("minimum", 0.0)]
            if math.isnan(pin) and "maximum" in asset:
                constraints.append(z[j] <= asset["maximum"])
        risk = cp.quad_form(z, sigma)
        if kind[0] == "m":
            best = cp.Problem(cp.Minimize(2.5 * risk - atoms.mean(0) @ z), constraints)
        else:
            over = cp.Variable()
            tail = over + cp.sum(cp.pos(0.02 - atoms @ z - over)) / (0.5 * len(atoms))
            best = cp.Problem(cp.Minimize(risk), [*constraints, tail <= 0])
        best.solve(solver=cp.CLARABEL)
        assert best.status == "optimal"
        # A position above its bound violates the constraints in every scenario.
        assert found.status == ["best_effort" if kind[0] == "r" and pins[1] == 0.7 else "optimal"]
        np.testing.assert_allclose(found.decisions[0], z.value, atol=2e-5)
        np.testing.assert_allclose(found.costs.mean[0], best.value, rtol=1e-6)


def test_a_decision_that_misses_its_constraints_too_often_is_not_optimal() -> None:
    """Draws hardly differ, so the completion meets the target barely in them, and only by chance in predictive
    scenarios."""
    spec = {name: value for name, value in ASSETS.items() if name != "risk_aversion"}
    spec |= {"kind": "return_constrained_portfolio", "target_return": 0.03, "confidence": 0.9}
    posterior = make_posterior(0.05, 0.02, 3)
    given_ = tensor([0.3, NAN, NAN], [0.1, 0.1, 0.1])
    _, found = evaluate_given(spec, given_, [1, 1], posterior, policy="map")
    assert found.status == ["best_effort", GIVEN]
    for reason, share in zip(found.reasons, found.feasibility.tolist(), strict=True):
        assert share < 0.8
        assert f"it satisfies its constraints in {share:.1%} of the scenarios, and 90% is required" in reason


def test_broken_rules_are_named_and_priced_and_failed_completions_say_why() -> None:
    posterior = make_posterior(20.0, 5.0)
    given_ = tensor([9.0, -1.0], [6.0, 4.0], [0.2, 0.1], [8.0, NAN], [3.0, 2.0])
    _, found = evaluate_given(TRUCKS, given_, [0] * 5, posterior)
    assert [[(breach.where, breach.by) for breach in one] for one in found.breaches[:3]] == [
        [
            (("decisions", 0, "maximum"), 3.0),
            (("decisions", 1, "minimum"), 1.0),
            (("decision_rows", 0), 1.0),
        ],
        [(("decision_rows", 0), 3.0)],
        [
            (("decisions", 0, "integer"), 0.2),
            (("decisions", 1, "integer"), 0.1),
            (("decision_rows", 1), pytest.approx(0.6)),
        ],
    ]
    assert found.breaches[0][0].sentence == "small is 9, 3 above its maximum of 6"
    assert found.breaches[1][0].sentence == "'drivers' is 10, 3 above its limit, 7"
    assert found.breaches[2][2].sentence == "'row 2' is 0.4, 0.6 below its limit, 1"
    assert found.breaches[3] == found.breaches[4] == []
    assert found.costs.mean[:3].isfinite().all()
    assert found.extra_cost[:3].isfinite().all()
    assert found.status == [GIVEN, GIVEN, GIVEN, "infeasible", GIVEN]
    assert "with the given ones" in found.reasons[3]
    assert "decision rows" in found.reasons[3]
    assert found.decisions[3].isnan().all()
    assert found.costs.mean[3].isnan()


def test_a_shipment_names_breaches_in_its_own_terms() -> None:
    spec = {
        "sources": [{"name": "north", "order_cost": 5.0, "emergency_cost": 100.0, "maximum_order": 25.0}],
        "destinations": ["a", "b"],
        "transport_costs": [[1.0, 4.0]],
    }
    problem: Any = build_problem(spec | {"kind": "shipment"})
    (over,) = problem.breaches(tensor(30.0))
    assert (over.where, over.by) == (("sources", 0, "maximum_order"), 5.0)


def test_shares_are_at_most_one_and_served_outcomes_are_counted() -> None:
    class Serving(type(build_problem(ITEMS))):  # type: ignore[misc]
        """A newsvendor that reports which demand its orders cover."""

        def covered(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
            return decisions >= outcomes

    plain: Any = build_problem(ITEMS)
    problem = Serving(*(getattr(plain, name) for name in plain.__dataclass_fields__))
    ours = prescribe(POSTERIOR, problem, CONTEXTS).decisions
    given_ = tensor([1e4, 97.0], [-1e4, -1e4])
    found = evaluate(
        POSTERIOR, problem, CONTEXTS, ours, given_, torch.tensor([1, 2]), lambda z: fix_decision(problem, ITEMS, z)
    )
    atoms = both_scenarios()[1].outcomes
    assert found.worse_in.tolist() == [1.0, 1.0]
    assert found.service is not None
    assert found.our_service is not None
    np.testing.assert_allclose(found.service[0], [1.0, (atoms[1, :, 1] <= 97.0).double().mean()])
    assert found.service[0, 0] == 1.0
    assert found.service[1].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(found.our_service, (atoms <= ours[:, None]).double().mean(1))


def test_every_problem_kind_allows_fixed_decisions() -> None:
    for name, kind in PROBLEMS.items():
        # Linear models fix decisions themselves.
        assert kind.bounds is not None or kind.compiled is not None, name


def test_chunks_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = tensor([100.0, 90.0], [NAN, 90.0], [NAN, NAN], [96.0, 80.0], [NAN, 90.0])
    _, whole = evaluate_given(ITEMS, given_, [5, 0, 2, 2, 6])
    monkeypatch.setattr(judging, "_CHUNK_NUMBERS", 1)
    _, pieces = evaluate_given(ITEMS, given_, [5, 0, 2, 2, 6])
    assert torch.equal(whole.decisions, pieces.decisions)
    assert torch.equal(whole.extra_cost, pieces.extra_cost)
    assert whole.status == pieces.status


def test_open_entries_minimise_the_requested_risk() -> None:
    posterior = make_posterior(20.0, 5.0)
    _, found = evaluate_given(TRUCKS, tensor([NAN, 1.0]), [3], posterior, risk=Risk(1.0, 0.8))
    atoms = both_scenarios(posterior, risk=Risk(1.0, 0.8))[1]
    problem = build_problem(TRUCKS)

    def cvar(z: list[float]) -> float:
        worst = problem.cost(tensor(z), atoms.outcomes[3]).sort().values[-round(0.2 * 200) :]
        return float(worst.mean())

    best = min(([float(n), 1.0] for n in range(7)), key=cvar)
    assert found.decisions[0].tolist() == best


def test_contexts_out_of_time_are_reported_as_such() -> None:
    problem = build_problem(ITEMS)
    ours = prescribe(POSTERIOR, problem, CONTEXTS).decisions

    def found(given_: Tensor, seconds: float) -> EvaluateResult:
        return evaluate(
            POSTERIOR,
            problem,
            CONTEXTS,
            ours,
            given_,
            torch.zeros(len(given_), dtype=torch.int64),
            lambda decision: fix_decision(problem, ITEMS, decision),
            time_limit_seconds=seconds,
        )

    # Given decisions are still evaluated, in the extra time reserved for results of stopped solvers.
    assert found(tensor([NAN, 90.0], [100.0, 90.0]), 0.0).status == ["time_limit", GIVEN]
    late = found(tensor([100.0, 90.0], [NAN, 90.0]), -1.0)
    assert late.status == ["time_limit"] * 2
    assert all("time limit" in reason for reason in late.reasons)
    assert late.costs.mean.isnan().all()
    assert late.decisions[0].tolist() == [100.0, 90.0]
    with deadlines.until(0.0), pytest.raises(OutOfTime):
        found(tensor([100.0, 90.0]), 10.0)


def test_decisions_of_a_wrong_shape_are_refused() -> None:
    for given_, owners in ((tensor([1.0]), [0]), (tensor([1.0, 2.0]), [7]), (tensor([1.0, math.inf]), [0])):
        with pytest.raises(InvalidInput):
            evaluate_given(ITEMS, given_, owners)


def test_predicted_extra_costs_match_fresh_outcomes() -> None:
    """Over many contexts, extra costs average to the realised differences, within chance."""
    spec: Spec = {"kind": "newsvendor", "items": [{"underage_cost": 3, "overage_cost": 1}]}
    problem: DecisionProblem = build_problem(spec)

    def world(rows: int, seed: int) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        contexts = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
        noise = torch.randn(rows, generator=generator, dtype=torch.float64)
        return Sample(contexts, (100 + 10 * contexts[:, 0] + (8 + 3 * contexts[:, 1].clamp(-2, 2)) * noise)[:, None])

    learned = learn(problem, world(600, 0), make_options(predictor="linear", members=4, epochs=60, seed=1))
    fresh = world(2000, 1)
    ours = prescribe(learned.posterior, problem, fresh.contexts, PrescribeOptions(policy="predictive")).decisions
    rows = torch.arange(2000)
    for factor in (0.9, 1.1):
        found = evaluate(
            learned.posterior,
            problem,
            fresh.contexts,
            ours,
            factor * ours,
            rows,
            lambda decision: fix_decision(problem, spec, decision),
            PrescribeOptions(policy="predictive"),
        )
        true = problem.cost(factor * ours, fresh.outcomes) - problem.cost(ours, fresh.outcomes)
        error = float(true.std() / math.sqrt(len(true)))
        # The 600 rows of history have an error too, larger by about the square root of 2,000 / 600.
        assert abs(float(found.extra_cost.mean() - true.mean())) < 3 * error * math.sqrt(1 + 2000 / 600)
        assert found.extra_cost.mean() > 3 * error
        assert abs(float(found.worse_in.mean() - (true > 0).double().mean())) < 0.08


def test_alternatives_are_evaluated_in_their_own_context() -> None:
    pairs = list(itertools.product(range(7), ([100.0, 90.0], [98.0, NAN])))
    _, found = evaluate_given(ITEMS, tensor(*[z for _, z in pairs]), [owner for owner, _ in pairs])
    for number, (owner, z) in enumerate(pairs):
        _, alone = evaluate_given(ITEMS, tensor(z), [owner])
        assert torch.equal(alone.extra_cost[0], found.extra_cost[number])
        assert torch.equal(alone.decisions[0], found.decisions[number])
