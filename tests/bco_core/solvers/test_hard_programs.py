"""`optimal` means proven, also on hard programs: nearly parallel, badly scaled, degenerate or perturbed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Status
from bco_core.problems.linear.two_stage import TwoStageLinear, extensive_program, solve_extensive
from bco_core.solvers import basis_pool, highs
from bco_core.solvers.basis_pool import OPTIMAL, BasisPool
from bco_core.solvers.linear_form import LinearProgram, linear_form
from bco_core.status import GAP, HIGHS, Gap
from benchmarks.bench.exact_simplex import exact_optimum
from benchmarks.bench.hard_programs import KINDS, false_optimal, instances, is_false_optimal
from tests.support.programs import random_two_stage

EQUAL = torch.tensor([0.5, 0.5], dtype=torch.float64)


def nearly_parallel_recourse(by: float = 1e-8) -> dict[str, Any]:
    """Return a problem whose two recourse columns differ by one unit in the eighth digit."""
    return {
        "decisions": [{"name": "z", "cost": 2.03, "maximum": 4}],
        "outcomes": [{"name": "y"}],
        "recourse": [
            {"name": "a", "cost": 2.03},
            {"name": "b", "cost": 2.03},
            {"name": "m", "cost": 20},
            {"name": "p", "cost": 20},
        ],
        "rows": [
            {
                "recourse": {"a": -2, "b": -2 + by, "m": -1},
                "decisions": {"z": 1},
                "sense": "<=",
                "constant": -1,
            },
            {
                "recourse": {"a": -1, "b": -1 + by, "p": 1},
                "decisions": {"z": -1},
                "sense": ">=",
                "constant": 2,
                "outcomes": {"y": 1},
            },
        ],
    }


@pytest.mark.parametrize("by", [1e-9, 1e-8, 1e-7, 0.0])
def test_nearly_parallel_recourse_has_the_right_optimum(by: float) -> None:
    problem = TwoStageLinear.from_spec(nearly_parallel_recourse(by))
    found = problem.prescribe(torch.tensor([[[-2.0], [-1.0]]], dtype=torch.float64), EQUAL)
    assert found.status == [Status.OPTIMAL]
    assert found.objective.item() == pytest.approx(21.015, rel=1e-6)
    assert found.bounds is not None
    assert found.bounds.item() == pytest.approx(21.015, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_hard_program_is_falsely_optimal(kind: str) -> None:
    wrong = [index for index, one in enumerate(instances(180, 1)) if one.kind == kind and is_false_optimal(one)]
    assert wrong == []


@pytest.mark.torture
def test_no_hard_program_of_thousands_is_falsely_optimal() -> None:
    assert false_optimal(4000, 7) == (0, 4000)


@pytest.mark.parametrize("lie", [1e-4, 0.1, -1e-4])
def test_the_count_of_false_optima_detects_a_wrong_cost(lie: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong decision, or a cost that does not belong to the decision, is detected."""
    one = next(one for one in instances(40, 3) if one.kind == "ties" and not is_false_optimal(one))
    right = TwoStageLinear.prescribe

    def return_wrong_answer(*arguments: Any) -> Any:
        found = right(*arguments)
        return replace(found, objective=found.objective * (1 + lie) + lie)

    monkeypatch.setattr(TwoStageLinear, "prescribe", return_wrong_answer)
    assert is_false_optimal(one)


@settings(max_examples=15)
@given(st.integers(0, 10**9), st.booleans())
def test_the_exact_optimum_matches_highs_on_ordinary_programs(seed: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    problem = TwoStageLinear.from_spec(random_two_stage(rng, 2, 3, plain=plain))
    atoms, weights = rng.normal(size=(2, 2)), np.array([0.25, 0.75])
    truth = solve_extensive(problem.stages, atoms, weights, EXPECTATION, None)
    exact = exact_optimum(extensive_program(problem.stages, atoms, weights, EXPECTATION))
    # Exact arithmetic reaches no optimum from the basis of one such program in ten.
    assume(exact is not None)
    assert float(exact) == pytest.approx(truth.objective, rel=1e-7, abs=1e-7)


# the pool


def parallel_pool(by: float) -> tuple[LinearProgram, BasisPool]:
    """Return a pool with three columns, two of them nearly parallel, and two slack columns."""
    program = LinearProgram(
        np.array([2.03, 2.03, 3.0, 20.0, 20.0]),
        np.array([[2.0, 2.0 - by, 1.0, 1.0, 0.0], [1.0, 1.0 - 2 * by, 2.0, 0.0, 1.0]]),
        np.array([1, 1]),
        np.zeros(5),
        np.full(5, np.inf),
    )
    form = linear_form(program)
    return program, BasisPool.of(form, np.arange(form.matrix.shape[1]))


@pytest.mark.parametrize("by", [1e-10, 1e-9, 1e-8, 1e-7, 1e-6])
def test_the_pool_stores_certified_bases_only_and_matches_highs(by: float) -> None:
    program, pool = parallel_pool(by)
    limits = np.random.default_rng(0).uniform(-3, 5, (400, 2))
    for part in np.array_split(limits, 8):
        solved = pool.solve(*map(torch.from_numpy, pool.form.rhs(part)))
        assert (solved.status == OPTIMAL).all()
        for one, value in zip(part, solved.value, strict=True):
            assert value + pool.form.base_cost == pytest.approx(highs.solve_program(program, one).objective, rel=1e-7)
    assert pool.bases.certified.all()


def test_an_uncertified_basis_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A basis that is not dual feasible does not enter the pool."""
    _, pool = parallel_pool(0.5)
    kernel = basis_pool._solve_all

    def return_wrong_answer(*arguments: Any) -> None:
        kernel(*arguments)
        answers = arguments[-1]
        # The two expensive columns form a basis that is primal feasible and far from optimal.
        answers.columns[:], answers.pivots[:], answers.status[:] = [3, 4], 1, OPTIMAL

    monkeypatch.setattr(basis_pool, "_solve_all", return_wrong_answer)
    pool.solve(*map(torch.from_numpy, pool.form.rhs(np.array([[1.0, 1.0], [2.0, 1.0]]))))
    assert not any(set(row) == {3, 4} for row in pool.bases.columns.tolist())
    assert pool.bases.certified.all()


def test_a_singular_basis_raises_nothing_and_is_not_stored() -> None:
    _, pool = parallel_pool(0.0)
    known = len(pool.bases.columns)
    # Columns 0 and 1 are numerically equal, so there is no inverse.
    same = np.array([[0, 1]])
    pool.form.matrix[:, 1] = pool.form.matrix[:, 0]
    pool._learn(same, 0)
    assert len(pool.bases.columns) == known


# gaps


def lots_with_rent(gap: dict[str, float] | None = None, rent: float = 1e5) -> dict[str, Any]:
    """Return lots of several sizes plus a fixed rent, so that the decision's cost is small relative to the fixed
    cost."""
    sizes, costs = [7.0, 5.0, 3.0, 2.0], [10.1, 7.9, 5.3, 4.1]
    return {
        "decisions": [
            *({"name": f"z{j}", "cost": cost, "maximum": 9, "integer": True} for j, cost in enumerate(costs)),
            {"name": "rent", "cost": rent, "minimum": 1, "maximum": 1},
        ],
        "outcomes": [{"name": "y", "minimum": 0}],
        "recourse": [{"name": "rush", "cost": 6}],
        "rows": [
            {
                "recourse": {"rush": 1},
                "decisions": {f"z{j}": size for j, size in enumerate(sizes)},
                "sense": ">=",
                "outcomes": {"y": 1},
            }
        ],
    } | (gap or {})


def test_a_fixed_cost_hides_no_integer_gap() -> None:
    atoms = torch.tensor([[[9.0], [14.0], [19.0], [23.0]]], dtype=torch.float64)
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    with_rent = TwoStageLinear.from_spec(lots_with_rent()).prescribe(atoms, weights)
    without = TwoStageLinear.from_spec(lots_with_rent(rent=0.0)).prescribe(atoms, weights)
    assert with_rent.status == [Status.OPTIMAL]
    assert with_rent.objective.item() - 1e5 == pytest.approx(without.objective.item(), rel=1e-5)
    assert with_rent.gaps is not None
    assert with_rent.gaps.item() <= GAP.relative


def test_a_loose_bound_hides_no_gap() -> None:
    """A bound that never binds is no fixed cost, however far away it is."""
    atoms = torch.tensor([[[9.0], [14.0], [19.0], [23.0]]], dtype=torch.float64)
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    spec, tight = lots_with_rent(rent=0.0), TwoStageLinear.from_spec(lots_with_rent(rent=0.0))
    spec["decisions"].append({"name": "balance", "cost": 1e-3, "minimum": -1e11})
    spec["decision_rows"] = [{"coefficients": {"balance": 1}, "sense": ">=", "limit": 0}]
    loose = TwoStageLinear.from_spec(spec)
    assert loose.fixed_cost == 0.0
    assert loose.prescribe(atoms, weights).objective.item() == pytest.approx(tight.prescribe(atoms, weights).objective)


@pytest.mark.parametrize(("sense", "by", "limit"), [("=", 1, 1), (">=", 2, 2), ("<=", -1, -1)])
def test_a_rent_required_by_a_row_is_a_fixed_cost(sense: str, by: float, limit: float) -> None:
    spec = lots_with_rent(rent=0.0)
    spec["decisions"].append({"name": "lease", "cost": 1e7})
    spec["decision_rows"] = [{"coefficients": {"lease": by}, "sense": sense, "limit": limit}]
    assert TwoStageLinear.from_spec(spec).fixed_cost == 1e7


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unit", [1e-11, 1e-7, 1e7])
def test_the_unit_of_costs_changes_no_decision(unit: float, whole: bool) -> None:
    atoms = torch.tensor([[[9.0], [14.0], [19.0], [23.0]]], dtype=torch.float64)
    spec = lots_with_rent(rent=0.0)
    spec["decisions"] = [decision | {"integer": whole} for decision in spec["decisions"]]
    scaled = dict(spec)
    for part in ("decisions", "recourse"):
        scaled[part] = [one | {"cost": one["cost"] * unit} for one in spec[part]]
    problems = [TwoStageLinear.from_spec(one) for one in (spec, scaled)]
    for weights in ([0.25] * 4, [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]):
        plain, other = (one.prescribe(atoms, torch.tensor(weights, dtype=torch.float64)) for one in problems)
        assert (plain.status, other.status) == ([Status.OPTIMAL], [Status.OPTIMAL])
        assert other.objective.item() / unit == pytest.approx(plain.objective.item(), rel=1e-6)


@pytest.mark.parametrize("largest", [1e6, 1e7, 1e9, 1e12])
def test_nearly_integer_decisions_pay_their_full_cost(largest: float) -> None:
    """A site opened by a millionth would serve all demand for free."""
    spec = {
        "decisions": [
            {"name": "open", "cost": 100, "maximum": 1, "integer": True},
            {"name": "order", "cost": 1},
        ],
        "decision_rows": [{"coefficients": {"order": 1, "open": -largest}, "sense": "<=", "limit": 0}],
        "outcomes": [{"name": "y"}],
        "recourse": [{"name": "rush", "cost": 50}],
        "rows": [{"recourse": {"rush": 1}, "decisions": {"order": 1}, "sense": ">=", "outcomes": {"y": 1}}],
    }
    problem, atoms = TwoStageLinear.from_spec(spec), torch.tensor([[[5.0], [10.0]]], dtype=torch.float64)
    found = problem.prescribe(atoms, EQUAL)
    assert problem.feasible(found.decisions[:, None], atoms).all()
    assert found.objective.item() == pytest.approx((problem.cost(found.decisions[:, None], atoms) @ EQUAL).item())
    assert (found.status == [Status.OPTIMAL]) == (found.objective.item() == pytest.approx(110))
    assert largest > 1e9 or found.status == [Status.OPTIMAL]


def test_a_gap_is_judged_without_the_fixed_cost() -> None:
    assert not GAP.closes(1e5 + 29.8, 1e5 + 24.05, 1e5)
    assert GAP.share(1e5 + 29.8, 1e5 + 24.05, 1e5) == pytest.approx(5.75 / 29.8)
    assert GAP.closes(1e5 + 29.8, 1e5 + 29.8 - 1e-6, 1e5)
    assert not GAP.closes(29.8, 29.79, 0.0)
    assert Gap(1e-3).closes(29.8, 29.79, 0.0)
    assert not GAP.closes(1.0, np.nan, 0.0)
    assert np.isnan(GAP.share(1.0, -np.inf, 0.0))


def test_a_search_that_stops_at_its_gap_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If HiGHS proves less than the required gap, the answer is a best effort with its gap."""
    problem = TwoStageLinear.from_spec(lots_with_rent())
    run = highs.run

    def stop_early(solver: Any, time_limit_seconds: float | None = None) -> highs.HighsAnswer:
        answer = run(solver, time_limit_seconds)
        return replace(answer, bound=0.9 * answer.objective)

    monkeypatch.setattr(highs, "run", stop_early)
    found = problem.prescribe(torch.tensor([[[9.0], [14.0]]], dtype=torch.float64), EQUAL)
    assert (found.status, found.solvers) == ([Status.BEST_EFFORT], (HIGHS,))
    assert "proven" in found.reasons[0]
    assert found.gaps is not None
    assert found.gaps.item() == pytest.approx(0.1, rel=1e-3)
    loose = TwoStageLinear.from_spec(lots_with_rent({"relative_gap": 0.2}))
    assert loose.prescribe(torch.tensor([[[9.0], [14.0]]], dtype=torch.float64), EQUAL).status == [Status.OPTIMAL]


@pytest.mark.parametrize("name", ["relative_gap", "absolute_gap"])
def test_a_gap_must_be_a_non_negative_number(name: str) -> None:
    for value in (-1e-6, "small", True, np.inf):
        with pytest.raises(InvalidInput, match="gap") as refused:
            TwoStageLinear.from_spec(lots_with_rent({name: value}))
        assert refused.value.where == (name,)


@pytest.mark.parametrize("kind", ["parallel columns", "parallel rows", "ties", "single precision", "scales"])
def test_bound_and_objective_enclose_the_exact_optimum(kind: str) -> None:
    for one in [one for one in instances(90, 5) if one.kind == kind]:
        problem = TwoStageLinear.from_spec(one.spec)
        found = problem.prescribe(torch.from_numpy(one.atoms)[None], torch.from_numpy(one.weights), one.risk)
        exact = exact_optimum(extensive_program(problem.stages, one.atoms, one.weights, one.risk))
        assert exact is not None
        assert found.bounds is not None
        room = 1e-7 * (1 + abs(float(exact)))
        assert found.bounds.item() - room <= float(exact) <= found.objective.item() + room
