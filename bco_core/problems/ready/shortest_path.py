"""The cheapest path through a graph whose edges have uncertain costs.

``{"source", "target", "edges": [{"start", "end", "name"?, "cost"?}], "directed": true, "nodes"?: [names]}``

An edge is chosen or not: what leaves a node less what enters it is one at the source, minus one at the target and zero
elsewhere. The corners of such rows are integral, so the relaxation is exact. Where the graph is not directed, an edge
is two choices, one for each direction, of one cost.

A negative cost could be earned again and again on a cycle; in a graph that has one, negative costs count as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from bco_core.errors import InvalidInput
from bco_core.problems.ready.draft import ModelDraft, Spec, Where, check_name, check_not_negative, read_list, read_names

_NEGATIVE = "in a graph with a cycle costs and factors must be at least zero"


class _Edge(NamedTuple):
    start: str
    end: str
    name: str
    cost: Any
    where: Where


def draft(spec: Spec) -> ModelDraft:
    """Compile a shortest path."""
    edges, directed = _edges(spec), spec.get("directed", True)
    ends = [end for edge in edges for end in (edge.start, edge.end)]
    nodes = list(dict.fromkeys(ends))
    source, target = (check_name(spec.get(name), nodes, (name,), "edge at a node") for name in ("source", "target"))
    if source == target:
        raise InvalidInput("source and target are the same node; there is no path to choose", ("target",))
    ways = [(edge.start, edge.end) for edge in edges]
    ways += [] if directed else [(end, start) for start, end in ways]
    if target not in _reached(source, ways):
        raise InvalidInput(f"no path leads from {source} to {target}", ("target",))
    least = 0.0 if not directed or _has_cycle(ways) else None
    model = ModelDraft()
    leaving: dict[str, dict[str, float]] = {node: {} for node in nodes}
    for edge in edges:
        cost = model.quantity(edge.cost, edge.name, (*edge.where, "cost"), least)
        if least is not None:
            check_not_negative(cost, (*edge.where, "cost"), _NEGATIVE)
        there = (edge.start, edge.end)
        for start, end in [there] if directed else [there, there[::-1]]:
            name = edge.name if directed else _way(edge, start, end)
            model.add_choice(name, edge.where, cost)
            leaving[start][name], leaving[end][name] = 1.0, -1.0
    places: dict[str, Where] = {source: ("source",), target: ("target",)}
    for node in nodes:
        balance = float(node == source) - float(node == target)
        model.add_row(f"ways at {node}", places.get(node, ("edges",)), leaving[node], "=", balance)
    return model


def _edges(spec: Spec) -> list[_Edge]:
    allowed = spec.get("nodes")
    if allowed is not None:
        allowed = read_names(allowed, lambda index: ("nodes", index))
        for name in ("source", "target"):
            check_name(spec.get(name), allowed, (name,), "node")
    result = []
    for index, edge in enumerate(read_list(spec, "edges", "edge")):
        where = ("edges", index)
        ends = []
        for side in ("start", "end"):
            node = edge.get(side)
            if not isinstance(node, str) or not node:
                raise InvalidInput("an edge needs the names of its two nodes", (*where, side))
            ends.append(node if allowed is None else check_name(node, allowed, (*where, side), "node"))
        if ends[0] == ends[1]:
            raise InvalidInput("an edge leads from a node to another one", (*where, "end"))
        name = edge.get("name") or f"{ends[0]} to {ends[1]}"
        result.append(_Edge(ends[0], ends[1], name, edge.get("cost"), where))
    read_names((edge.name for edge in result), lambda index: ("edges", index, "name"))
    return result


def _way(edge: _Edge, start: str, end: str) -> str:
    """Name one direction of an undirected edge."""
    plain = f"{start} to {end}"
    return plain if edge.name == f"{edge.start} to {edge.end}" else f"{edge.name}, {plain}"


def _reached(source: str, ways: Sequence[tuple[str, str]]) -> set[str]:
    next_to: dict[str, list[str]] = {}
    for start, end in ways:
        next_to.setdefault(start, []).append(end)
    reached, waiting = {source}, [source]
    while waiting:
        fresh = [node for node in next_to.get(waiting.pop(), []) if node not in reached]
        reached.update(fresh)
        waiting += fresh
    return reached


def _has_cycle(ways: Sequence[tuple[str, str]]) -> bool:
    graph: TopologicalSorter[str] = TopologicalSorter()
    for start, end in ways:
        graph.add(end, start)
    try:
        graph.prepare()
    except CycleError:
        return True
    return False
