"""Shortest paths against Dijkstra and Bellman–Ford."""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
import pytest

from bco_core.errors import InvalidInput
from bco_core.problems.ready.kinds import compile_ready
from tests.support.linear_reference import Outcome, draw_outcomes, solve

Spec = dict[str, Any]


def cheapest(ways: list[tuple[str, str, float]], source: str, target: str) -> float:
    """Dijkstra's algorithm for non-negative costs."""
    best, waiting, done = {source: 0.0}, [(0.0, source)], set()
    while waiting:
        cost, node = heapq.heappop(waiting)
        if node == target:
            return cost
        if node in done:
            continue
        done.add(node)
        for start, end, more in ways:
            if start == node and cost + more < best.get(end, math.inf):
                best[end] = cost + more
                heapq.heappush(waiting, (cost + more, end))
    return math.inf


def costs_of(spec: Spec, outcome: Outcome) -> list[tuple[str, str, float]]:
    """Return the arcs of a graph whose edge costs are outcomes named like the edges."""
    ways = []
    for edge in spec["edges"]:
        column = edge.get("cost", edge.get("name", f"{edge['start']} to {edge['end']}"))
        cost = outcome[column] if isinstance(column, str) else column
        ways.append((edge["start"], edge["end"], cost))
        if not spec.get("directed", True):
            ways.append((edge["end"], edge["start"], cost))
    return ways


def graph(random: np.random.Generator, directed: bool) -> Spec:
    """Draw nodes in a ring, so that the target can be reached, and edges across, some of certain cost."""
    count = int(random.integers(3, 9))
    pairs = [(i, (i + 1) % count) for i in range(count)]
    pairs += [(int(i), int(j)) for i, j in random.integers(0, count, (2 * count, 2)) if i != j]
    unique = {tuple(pair) if directed else tuple(sorted(pair)): pair for pair in pairs}
    edges: list[Spec] = [{"start": f"n{i}", "end": f"n{j}"} for i, j in unique.values()]
    for edge in edges[::4]:
        edge["cost"] = float(random.uniform(0, 5))
    target = f"n{random.integers(1, count)}"
    return {"kind": "shortest_path", "source": "n0", "target": target, "edges": edges, "directed": directed}


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_the_path_costs_as_much_as_dijkstras(seed: int, directed: bool) -> None:
    random = np.random.default_rng(seed)
    spec = graph(random, directed)
    model = compile_ready(spec)
    for outcome in draw_outcomes(model, 3, random):
        found = solve(model, [outcome])
        assert found is not None
        expected = cheapest(costs_of(spec, outcome), spec["source"], spec["target"])
        assert found.value == pytest.approx(expected)
        assert set(np.round(list(found.decision.values()), 6)) <= {0.0, 1.0}
        relaxed = solve(model, [outcome], relaxed=True)
        assert relaxed is not None
        assert relaxed.value == pytest.approx(expected)


def test_over_several_outcomes_the_path_is_shortest_for_their_mean() -> None:
    random = np.random.default_rng(3)
    spec = graph(random, True)
    model = compile_ready(spec)
    outcomes = draw_outcomes(model, 7, random)
    mean = {name: float(np.mean([one[name] for one in outcomes])) for name in outcomes[0]}
    found = solve(model, outcomes)
    assert found is not None
    assert found.value == pytest.approx(cheapest(costs_of(spec, mean), spec["source"], spec["target"]))


def test_edges_are_named_by_their_ends() -> None:
    edges = [
        {"start": "a", "end": "b"},
        {"start": "b", "end": "c", "name": "ferry"},
        {"start": "a", "end": "c", "cost": 9},
    ]
    spec = {"kind": "shortest_path", "source": "a", "target": "c", "edges": edges}
    one = compile_ready(spec)
    assert [entry["name"] for entry in one["decisions"]] == ["a to b", "ferry", "a to c"]
    assert [entry["name"] for entry in one["outcomes"]] == ["a to b", "ferry"]
    both = compile_ready(spec | {"directed": False})
    names = [entry["name"] for entry in both["decisions"]]
    assert names == ["a to b", "b to a", "ferry, b to c", "ferry, c to b", "a to c", "c to a"]
    assert [entry["name"] for entry in both["outcomes"]] == ["a to b", "ferry"]


def test_costs_may_share_outcomes() -> None:
    slow = {"constant": 2.0, "outcomes": {"traffic": 3.0}}
    edges = [{"start": "a", "end": "b", "cost": slow}, {"start": "a", "end": "b", "name": "train", "cost": 5}]
    spec = {"kind": "shortest_path", "source": "a", "target": "b", "edges": edges}
    for traffic, cost, edge in ((0.5, 3.5, "a to b"), (2.0, 5.0, "train")):
        found = solve(compile_ready(spec), [{"traffic": traffic}])
        assert found is not None
        assert found.value == pytest.approx(cost)
        assert found.decision[edge] == pytest.approx(1.0)


def test_a_zero_cost_cycle_does_not_change_the_path() -> None:
    edges = [
        {"start": "a", "end": "b"},
        {"start": "b", "end": "c"},
        {"start": "c", "end": "b"},
        {"start": "b", "end": "d"},
    ]
    model = compile_ready({"kind": "shortest_path", "source": "a", "target": "d", "edges": edges})
    found = solve(model, [{"a to b": 2.0, "b to c": 0.0, "c to b": -4.0, "b to d": 1.0}])
    assert found is not None
    assert found.value == pytest.approx(3.0)
    assert (found.decision["a to b"], found.decision["b to d"]) == pytest.approx((1.0, 1.0))


def test_without_cycles_an_edge_may_have_negative_cost() -> None:
    edges = [{"start": "a", "end": "b"}, {"start": "b", "end": "c", "cost": -2}, {"start": "a", "end": "c", "cost": -1}]
    model = compile_ready({"kind": "shortest_path", "source": "a", "target": "c", "edges": edges})
    found = solve(model, [{"a to b": -3.0}])
    assert found is not None
    assert found.value == pytest.approx(-5.0)


PAIR = [{"start": "a", "end": "b"}]


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"edges": []}, ("edges",), "at least one edge"),
        ({"source": "z"}, ("source",), "there are a, b"),
        ({"target": "a"}, ("target",), "same node"),
        ({"source": "b", "target": "a"}, ("target",), "no path leads from b to a"),
        ({"edges": [*PAIR, {"start": "c", "end": "d"}], "target": "d"}, ("target",), "no path leads from a to d"),
        ({"nodes": ["a", "b"], "edges": [*PAIR, {"start": "b", "end": "x"}]}, ("edges", 1, "end"), "there are a, b"),
        ({"nodes": ["a", "a"]}, ("nodes", 1), "twice"),
        ({"nodes": ["b"]}, ("source",), "no node"),
        ({"edges": [*PAIR, *PAIR]}, ("edges", 1, "name"), "'a to b' appears twice"),
        ({"edges": [{"start": "a", "end": "a"}]}, ("edges", 0, "end"), "another"),
        ({"edges": [{"start": "a", "end": "b", "cost": 3}]}, (), "nothing here is uncertain"),
        ({"edges": [*PAIR, {"start": "b", "end": "a", "cost": -1}]}, ("edges", 1, "cost"), "cycle"),
        (
            {"edges": [{"start": "a", "end": "b", "cost": {"outcomes": {"gain": -1}}}], "directed": False},
            ("edges", 0, "cost"),
            "cycle",
        ),
        (
            {"edges": [*PAIR, {"start": "b", "end": "a"}], "directed": False},
            ("edges", 1),
            "'b to a' would be the name of this and of edges/0",
        ),
        ({"edges": [{"start": "a", "end": "b", "cost": math.nan}]}, ("edges", 0, "cost"), "finite"),
    ],
)
def test_an_invalid_graph_is_refused_at_its_field(changes: Spec, where: tuple[str | int, ...], words: str) -> None:
    spec = {"kind": "shortest_path", "source": "a", "target": "b", "edges": PAIR} | changes
    with pytest.raises(InvalidInput, match=words) as refused:
        compile_ready(spec)
    assert refused.value.where == where
