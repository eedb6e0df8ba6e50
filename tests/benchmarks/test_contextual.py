"""The contextual experiments: shortest path and knapsack data, methods, PyEPO and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse.csgraph import dijkstra
from typer.testing import CliRunner

from app.commands.cli import app
from bco_core.prescribe import prescribe
from benchmarks.experiments.contextual import data, pyepo_process, report, run, spo, two_stage
from benchmarks.experiments.contextual.decisions import best_packings, shortest_paths
from benchmarks.experiments.harness import Finding

DEGREES = (1, 2, 4, 6)


@pytest.mark.parametrize("degree", DEGREES)
def test_costs_of_a_path_are_the_polynomial_times_bounded_noise(degree: int) -> None:
    clean = data.shortest_path(4000, degree, 3, noise=0.0)
    assert clean.contexts.shape == (4000, 5)
    assert clean.outcomes.shape == (4000, 40)
    # Undoing the polynomial leaves a function linear in the context, with slopes 0 or 1/√5.
    base = (clean.outcomes * 3.5**degree - 1) ** (1 / degree) - 3
    usable = (clean.contexts @ np.ones((5, 1)) / np.sqrt(5) > -2.9).ravel() & (base > -3).all(1)
    slopes = np.linalg.lstsq(clean.contexts[usable], base[usable], rcond=None)[0] * np.sqrt(5)
    typical = np.abs(slopes - slopes.round()) < (1e-6 if degree % 2 else 0.2)
    assert typical.mean() > 0.95
    assert set(slopes.round()[typical]) <= {0.0, 1.0}
    noisy = data.shortest_path(4000, degree, 3)
    ratios = noisy.outcomes / clean.outcomes
    assert 0.5 <= ratios.min() < 0.51
    assert 1.49 < ratios.max() <= 1.5
    assert ratios.mean() == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("degree", DEGREES)
def test_item_values_are_integers_and_five_times_the_polynomial(degree: int) -> None:
    made = data.knapsack(2000, degree, 4, noise=0.0)
    assert made.weights is not None
    assert made.weights.shape == (3, 32)
    assert (made.outcomes == made.outcomes.round()).all()
    assert 3 <= made.weights.min() < 3.3
    assert 7.7 < made.weights.max() <= 7.99
    assert np.allclose(made.weights * 100, (made.weights * 100).round())
    # At context zero the value is 5 (3^degree + 1) / 3.5^degree; nearby contexts give nearby values.
    near = np.abs(made.contexts).max(1) < 0.5
    centre = 5 * (3**degree + 1) / 3.5**degree
    assert np.median(made.outcomes[near]) == pytest.approx(centre, abs=1.0)


def test_the_linear_description_of_the_grid_is_the_shortest_path() -> None:
    made = data.shortest_path(20, 4, 0)
    spec = made.spec
    names = [decision["name"] for decision in spec["decisions"]]
    matrix = np.array([[row["decisions"].get(name, 0.0) for name in names] for row in spec["rows"]])
    limits = [row["limit"] for row in spec["rows"]]
    assert len(names) == 40
    for costs in made.outcomes:
        graph = np.zeros((25, 25))
        for (start, end), cost in zip(data.arcs(), costs, strict=True):
            graph[start, end] = cost
        best = linprog(costs, A_eq=matrix, b_eq=limits, bounds=(0, 1))
        assert best.fun == pytest.approx(dijkstra(graph, indices=0)[24])


def test_the_linear_description_of_the_knapsack_has_its_weights_and_capacity() -> None:
    made = data.knapsack(3, 2, 1)
    assert made.weights is not None
    assert made.spec["sense"] == "maximize"
    assert all(one["integer"] and one["maximum"] == 1 for one in made.spec["decisions"])
    rows = np.array([list(row["decisions"].values()) for row in made.spec["rows"]])
    assert np.array_equal(rows, made.weights)
    assert {(row["sense"], row["limit"]) for row in made.spec["rows"]} == {("<=", 20.0)}


@pytest.mark.parametrize("degree", DEGREES)
def test_pyepo_makes_the_same_data(degree: int) -> None:
    pyepo = pytest.importorskip("pyepo.data", reason="PyEPO is in the bench extra")
    contexts, costs = pyepo.shortestpath.genData(30, 5, (5, 5), degree, 0.5, seed=11)
    made = data.shortest_path(30, degree, 11)
    assert np.array_equal(made.contexts, contexts)
    assert np.allclose(made.outcomes, costs, rtol=1e-6)
    weights, contexts, values = pyepo.knapsack.genData(30, 5, 32, 3, degree, 0.5, seed=11)
    packed = data.knapsack(30, degree, 11)
    assert np.array_equal(packed.weights, weights)
    assert np.array_equal(packed.contexts, contexts)
    assert np.array_equal(packed.outcomes, values)


def test_exact_paths_equal_dijkstra_also_with_negative_costs() -> None:
    made = data.shortest_path(30, 2, 5)
    decide = shortest_paths(5)
    for shift in (0.0, 5.0):
        costs = made.outcomes - shift
        # Every path has eight arcs, so adding a constant to each arc does not change the shortest path.
        assert np.array_equal(decide(costs), decide(made.outcomes))
    chosen = decide(made.outcomes)
    for costs, path in zip(made.outcomes, chosen, strict=True):
        graph = np.zeros((25, 25))
        for (start, end), cost in zip(data.arcs(), costs, strict=True):
            graph[start, end] = cost
        assert path @ costs == pytest.approx(dijkstra(graph, indices=0)[24])


def test_the_best_packing_equals_the_integer_program() -> None:
    made = data.knapsack(6, 4, 2)
    assert made.weights is not None
    costs = -made.outcomes
    costs[:, ::3] += 4.0
    chosen = best_packings(made.weights)(costs)
    limits = LinearConstraint(made.weights, ub=np.full(3, 20.0))
    for cost, packing in zip(costs, chosen, strict=True):
        found = milp(cost, integrality=np.ones(32), bounds=Bounds(0, 1), constraints=limits)
        assert packing @ cost == pytest.approx(found.fun, abs=1e-6)


@pytest.mark.slow
def test_spo_plus_reaches_the_best_predictors_regret_without_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spo, "STEPS", 400)
    made = data.shortest_path(400, 1, 8, noise=0.0)
    decide = shortest_paths(5)
    weights = spo.fit(made.contexts[:200], made.outcomes[:200], decide, 0)
    new, costs = made.contexts[200:], made.outcomes[200:]
    best = (decide(costs) * costs).sum()
    regret = (decide(spo.predict(weights, new)) * costs).sum() / best - 1
    constant = (decide(np.tile(made.outcomes[:200].mean(0), (200, 1))) * costs).sum() / best - 1
    assert regret < 0.2 * constant


@pytest.fixture(scope="module")
def findings() -> dict[str, list[Finding]]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(run, "TEST", 300)
        changed.setattr(spo, "STEPS", 100)
        changed.setattr(two_stage, "ROUNDS", 30)
        return {name: run.perform(name, (4, 100, 0), list(run.METHODS)) for name in run.EXPERIMENTS}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(run.EXPERIMENTS))
def test_every_method_learns_and_the_true_means_decide_best(name: str, findings: dict[str, list[Finding]]) -> None:
    regrets = {one.method: one.value for one in findings[name]}
    assert set(regrets) == set(run.METHODS)
    assert 0 < regrets["floor"] == min(regrets.values())
    assert regrets["auto"] < regrets["ols"] + 0.01
    assert max(regrets.values()) < 0.4


def test_prescribe_decides_the_same_packing_as_the_lookup() -> None:
    experiment = run.EXPERIMENTS["knapsack"]
    trial = run.ContextualTrial(experiment, experiment.draw(108, 4, 1), 100, 1)
    problem, posterior = run.learn_posterior(trial)
    prescribed = prescribe(posterior, problem, torch.from_numpy(trial.new))
    costs = run.predict_costs(trial, posterior)
    ours = (trial.decide(costs) * costs).sum(1)
    assert (prescribed.decisions.numpy() * costs).sum(1) == pytest.approx(ours, abs=1e-5)


@pytest.mark.slow
def test_pyepo_learns_in_its_own_process_and_reports_its_seconds() -> None:
    if not pyepo_process.is_installed():
        pytest.skip(pyepo_process.MISSING)
    made = data.shortest_path(260, 4, 0)
    matrix = np.array(
        [[row["decisions"].get(one["name"], 0.0) for one in made.spec["decisions"]] for row in made.spec["rows"]]
    )
    limits = np.array([row["limit"] for row in made.spec["rows"]])
    x, y = made.contexts, made.outcomes
    found, seconds = pyepo_process.train_apart(x[:60], y[:60], x[60:], matrix, limits, True, 0, presented=3000)
    assert found.shape == (10, 200, 40)
    assert (np.diff(seconds) > 0).all()
    decide, costs = shortest_paths(5), y[60:]
    first, last = ((decide(one) * costs).sum() for one in (found[0], found[-1]))
    assert last < first


def test_summary_pairs_seeds_and_uses_pyepo_for_spo_plus_where_it_ran() -> None:
    made = [
        Finding((degree, n, seed), method, value + 0.01 * seed * (method == "auto"), seconds)
        for degree in (1, 4, 6)
        for n in (100, 1000)
        for seed in range(2)
        for method, value, seconds in (
            ("auto", 0.10, 0.5),
            ("ols", 0.10, 0.1),
            ("spo", 0.09, 1.0),
            ("pyepo_10", 0.2, 1.0),
            ("pyepo_50", 0.11, 5.0),
            ("pyepo", 0.12, 10.0),
        )
    ]
    figures = report.figures(made)
    assert figures["spo"] == "SPO+ of PyEPO"
    assert figures["vs_spo_n100"] == pytest.approx(-0.015)
    assert figures["vs_spo_n100_se"] == pytest.approx(0.005)
    assert figures["vs_spo_n1000"] == pytest.approx(-0.015)
    lacking = report.figures([one for one in made if one.run != (6, 100, 1)])
    assert (lacking["vs_spo_n100_seeds"], figures["vs_spo_n100_seeds"]) == (1, 2)
    assert figures["vs_ols_deg1"] == pytest.approx(0.005)
    # PyEPO never reaches seed 0's 0.10 within 10 s, and reaches seed 1's 0.11 after 5 s.
    assert figures["speedup_vs_pyepo"] == pytest.approx(15)
    assert (figures["cells_above_strongest"], figures["cells_below_strongest"]) == (6, 0)
    assert figures["cells"][0]["regret"]["pyepo"] == pytest.approx(0.12)
    without = report.figures([one for one in made if not one.method.startswith("pyepo")])
    assert "speedup_vs_pyepo" not in without
    assert without["vs_spo_n100"] == pytest.approx(0.015)
    assert "| 4 | 100 | 2 |" in report.markdown("knapsack", made)


def test_runs_go_from_few_rows_to_many_and_through_all_degrees_per_seed() -> None:
    planned = run.keys((1, 4), (100, 1000), 2)
    assert planned[:4] == [(1, 100, 0), (4, 100, 0), (1, 100, 1), (4, 100, 1)]
    assert len(set(planned)) == 8


@pytest.mark.slow
def test_the_command_runs_missing_cells_and_prints_json(tmp_path: Path) -> None:
    arguments = [
        "experiment",
        "shortest-path",
        "--seeds",
        "2",
        "--degrees",
        "4",
        "--rows",
        "100",
        "--out",
        str(tmp_path),
    ]
    arguments += ["--method", "ols", "--method", "floor", "--json"]
    first, again = (json.loads(CliRunner().invoke(app, arguments).output.splitlines()[-1]) for _ in range(2))
    assert (first["runs_computed"], again["runs_computed"]) == (2, 0)
    assert first["cells"] == again["cells"]
    assert (tmp_path / "shortest-path.md").read_text(encoding="utf-8").startswith("# Shortest path")
    refused = CliRunner().invoke(app, [*arguments[:4], "--degrees", "3"])
    assert refused.exit_code == 2
