"""Assignment problems against SciPy's solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from bco_core.errors import InvalidInput
from bco_core.problems.ready.kinds import compile_ready
from tests.support.linear_reference import draw_outcomes, solve

Spec = dict[str, Any]


@pytest.mark.parametrize("sense", ["minimize", "maximize"])
@pytest.mark.parametrize(("agents", "tasks"), [(1, 1), (1, 4), (3, 3), (5, 2), (2, 5), (4, 6), (6, 6)])
def test_the_optimal_value_matches_scipy(agents: int, tasks: int, sense: str) -> None:
    random = np.random.default_rng(agents * 10 + tasks)
    spec: Spec = {
        "kind": "assignment",
        "agents": [f"agent {i}" for i in range(agents)],
        "tasks": [f"task {j}" for j in range(tasks)],
        "sense": sense,
        "capacities": {"agent 0": 2},
        "costs": {"agent 0": {"task 0": 4.5}} if tasks > 1 else {},
    }
    # Forbid one pair wherever others remain.
    lost = [(agents - 1, tasks - 1)] if min(agents, tasks) > 1 else []
    spec["forbidden"] = [[f"agent {i}", f"task {j}"] for i, j in lost]
    model = compile_ready(spec)
    for outcome in draw_outcomes(model, 3, random):
        worth = np.zeros((agents, tasks))
        for i in range(agents):
            for j in range(tasks):
                worth[i, j] = outcome.get(f"agent {i} to task {j}", 4.5)
        for i, j in lost:
            worth[i, j] = 1e6 if sense == "minimize" else -1e6
        twice = np.vstack([worth, worth[:1]])
        rows, columns = linear_sum_assignment(twice, maximize=sense == "maximize")
        found, relaxed = solve(model, [outcome]), solve(model, [outcome], relaxed=True)
        assert found is not None
        assert relaxed is not None
        assert found.value == pytest.approx(twice[rows, columns].sum())
        assert relaxed.value == pytest.approx(found.value)
        assert sum(found.decision.values()) == pytest.approx(min(agents + 1, tasks))


def test_decisions_are_named_by_agent_and_task() -> None:
    costs = {"ann": {"roof": "ann's hours"}, "bob": {"wall": 3}}
    spec = {"kind": "assignment", "agents": ["ann", "bob"], "tasks": ["roof", "wall"], "costs": costs}
    model = compile_ready(spec | {"forbidden": [["bob", "roof"]]})
    assert [entry["name"] for entry in model["decisions"]] == ["ann to roof", "ann to wall", "bob to wall"]
    assert [entry["name"] for entry in model["outcomes"]] == ["ann's hours", "ann to wall"]
    found = solve(model, [{"ann's hours": 2.0, "ann to wall": 1.0}])
    assert found is not None
    assert found.decision == pytest.approx({"ann to roof": 1.0, "ann to wall": 0.0, "bob to wall": 1.0})
    assert found.value == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"agents": []}, ("agents",), "at least one agent"),
        ({"tasks": ["x", "x"]}, ("tasks", 1), "twice"),
        ({"costs": {"eve": {"roof": 1}}}, ("costs", "eve"), "there are ann, bob"),
        ({"costs": {"ann": {"moat": 1}}}, ("costs", "ann", "moat"), "there are roof, wall"),
        ({"forbidden": [["ann", "roof"], ["ann", "moat"]]}, ("forbidden", 1, 1), "no task"),
        ({"forbidden": [["ann", "roof"], ["bob", "roof"]]}, ("forbidden",), "1 of 2 tasks"),
        ({"forbidden": [["ann", "roof"]], "costs": {"ann": {"roof": 1}}}, ("costs", "ann", "roof"), "forbidden"),
        ({"capacities": {"ann": -1}}, ("capacities", "ann"), "at least 0"),
        ({"capacities": {"ann": 0, "bob": 0}}, ("capacities",), "no agent can do a task"),
        ({"capacities": {"ann": 0.5}}, ("capacities", "ann"), "integer"),
        ({"agents": ["a", "a to b"], "tasks": ["b to c", "c"]}, ("agents", 1), "'a to b to c' would be the name"),
    ],
)
def test_an_invalid_assignment_is_refused_at_its_field(changes: Spec, where: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        compile_ready({"kind": "assignment", "agents": ["ann", "bob"], "tasks": ["roof", "wall"]} | changes)
    assert refused.value.where == where
