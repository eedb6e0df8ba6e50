"""Assignment of tasks to agents, where the cost or the value of a pair is uncertain.

``{"agents": [names], "tasks": [names], "sense": "minimize", "costs"?: {agent: {task: quantity}},
   "forbidden"?: [[agent, task]], "capacities"?: {agent: number of tasks}}``

Every task is done by one agent, and no agent does more tasks than its capacity, one by default. Where there are more
tasks than agents can do, every agent is busy and some tasks wait. The corners of such rows are integral.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from bco_core.errors import InvalidInput
from bco_core.problems.ready.draft import ModelDraft, Spec, Where, check_name, read_integer, read_list, read_names


def draft(spec: Spec) -> ModelDraft:
    """Compile an assignment."""
    agents = read_names(read_list(spec, "agents", "agent"), lambda index: ("agents", index))
    tasks = read_names(read_list(spec, "tasks", "task"), lambda index: ("tasks", index))
    capacities = {
        check_name(name, agents, ("capacities", name), "agent"): value for name, value in _of(spec, "capacities")
    }
    places = {agent: read_integer(capacities.get(agent, 1), ("capacities", agent), 0) for agent in agents}
    costs = {check_name(name, agents, ("costs", name), "agent"): value or {} for name, value in _of(spec, "costs")}
    for agent, own in costs.items():
        for task in own:
            check_name(task, tasks, ("costs", agent, task), "task")
    pairs = _pairs(spec, agents, tasks, costs)
    _check(pairs, places, tasks)
    model = ModelDraft(sense=spec.get("sense") or "minimize")
    names: dict[tuple[str, str], str] = {}
    for agent, task in pairs:
        name = f"{agent} to {task}"
        where: Where = ("costs", agent, task) if task in costs.get(agent, {}) else ("agents", agents.index(agent))
        names[agent, task] = model.add_choice(name, where, model.quantity(costs.get(agent, {}).get(task), name, where))
    scarce = sum(places.values()) < len(tasks)
    for index, task in enumerate(tasks):
        chosen = {name: 1.0 for (_, other), name in names.items() if other == task}
        model.add_row(f"agents for {task}", ("tasks", index), chosen, "<=" if scarce else "=", 1.0)
    for index, agent in enumerate(agents):
        chosen = {name: 1.0 for (other, _), name in names.items() if other == agent}
        model.add_row(f"tasks of {agent}", ("agents", index), chosen, "=" if scarce else "<=", float(places[agent]))
    return model


def _of(spec: Spec, name: str) -> list[tuple[str, Spec]]:
    return list((spec.get(name) or {}).items())


def _pairs(spec: Spec, agents: list[str], tasks: list[str], costs: dict[str, Spec]) -> list[tuple[str, str]]:
    """Return the allowed pairs, agent by agent."""
    forbidden = set()
    for index, pair in enumerate(spec.get("forbidden") or []):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidInput("a forbidden pair is an agent and a task", ("forbidden", index))
        agent, task = pair
        check_name(agent, agents, ("forbidden", index, 0), "agent")
        check_name(task, tasks, ("forbidden", index, 1), "task")
        if task in costs.get(agent, {}):
            raise InvalidInput("this pair is forbidden and has a cost; leave one of them out", ("costs", agent, task))
        forbidden.add((agent, task))
    return [(agent, task) for agent in agents for task in tasks if (agent, task) not in forbidden]


def _check(pairs: list[tuple[str, str]], places: dict[str, int], tasks: list[str]) -> None:
    """Refuse pairs that do not allow as many tasks as agents have capacity for."""
    wanted = min(sum(places.values()), len(tasks))
    if not wanted:
        raise InvalidInput("no agent can do a task; give at least one agent a capacity of one or more", ("capacities",))
    node = {("agent", agent): index + 2 for index, agent in enumerate(places)}
    node |= {("task", task): index + 2 + len(places) for index, task in enumerate(tasks)}
    ways = [(0, node["agent", agent], min(count, len(tasks))) for agent, count in places.items()]
    ways += [(node["agent", agent], node["task", task], 1) for agent, task in pairs]
    ways += [(node["task", task], 1, 1) for task in tasks]
    start, end, most = np.array(ways, dtype=np.int32).T
    graph = csr_array((most, (start, end)), shape=(len(node) + 2, len(node) + 2))
    done = int(maximum_flow(graph, 0, 1).flow_value)
    if done < wanted:
        raise InvalidInput(
            f"the pairs that are left allow at most {done} of {wanted} tasks; forbid fewer of them", ("forbidden",)
        )
