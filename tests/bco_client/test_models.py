"""Import of models from pyomo, linopy, gurobipy, highspy and files, with their own names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gurobipy
import highspy
import linopy
import pandas as pd
import pyomo.environ as pyo
import pytest

from app.commands.serve import LocalService
from bco_client import AsyncClient, Client, UnprocessableRequest
from bco_client.models import CANNOT, as_file

# Order whole trays of white and brown bread now, at most 40 together; express bread later; 7 is a fixed cost.
DEMANDS = {"white": "demand for white", "brown": "demand for brown"}


def pyomo_model() -> tuple[Any, dict[str, str]]:
    model = pyo.ConcreteModel()
    model.order = pyo.Var(DEMANDS, domain=pyo.NonNegativeIntegers)
    model.express = pyo.Var(DEMANDS, domain=pyo.NonNegativeReals)
    model.cost = pyo.Objective(expr=sum(5 * model.order[b] + 8 * model.express[b] for b in DEMANDS) + 7)
    model.meet = pyo.Constraint(DEMANDS, rule=lambda model, b: model.order[b] + model.express[b] >= 10)
    model.room = pyo.Constraint(expr=sum(model.order[b] for b in DEMANDS) <= 40)
    return model, {"order": "order[{}]", "express": "express[{}]", "meet": "meet[{}]", "room": "room"}


def linopy_model() -> tuple[Any, dict[str, str]]:
    model = linopy.Model()
    bread = pd.Index(list(DEMANDS), name="bread")
    order = model.add_variables(lower=0, coords=[bread], name="order", integer=True)
    express = model.add_variables(lower=0, coords=[bread], name="express")
    model.add_constraints(order + express >= 10, name="meet")
    model.add_constraints(order.sum() <= 40, name="room")
    model.add_objective((5 * order + 8 * express).sum())
    return model, {"order": "order({})", "express": "express({})", "meet": "meet({})", "room": "room"}


def gurobipy_model() -> tuple[Any, dict[str, str]]:
    try:
        model = gurobipy.Model()
    except gurobipy.GurobiError as error:
        pytest.skip(f"gurobipy has no licence that works here: {error}")
    order = model.addVars(DEMANDS, name="order", vtype="I")
    express = model.addVars(DEMANDS, name="express")
    model.addConstrs((order[b] + express[b] >= 10 for b in DEMANDS), name="meet")
    model.addConstr(order.sum() <= 40, name="room")
    model.setObjective(5 * order.sum() + 8 * express.sum() + 7)
    return model, {"order": "order[{}]", "express": "express[{}]", "meet": "meet[{}]", "room": "room"}


def highspy_model() -> tuple[Any, dict[str, str]]:
    model = highspy.Highs()
    model.silent()
    order = {b: model.addIntegral(lb=0, obj=5, name=f"order_{b}") for b in DEMANDS}
    express = {b: model.addVariable(lb=0, obj=8, name=f"express_{b}") for b in DEMANDS}
    for b in DEMANDS:
        model.addConstr(order[b] + express[b] >= 10, name=f"meet_{b}")
    model.addConstr(sum(order.values()) <= 40, name="room")
    model.changeObjectiveOffset(7)
    return model, {"order": "order_{}", "express": "express_{}", "meet": "meet_{}", "room": "room"}


MAKERS = [pyomo_model, linopy_model, gurobipy_model, highspy_model]


def import_options(names: dict[str, str]) -> dict[str, Any]:
    return {
        "decisions": [names["order"].format(bread) for bread in DEMANDS],
        "outcomes": [{"name": name, "minimum": 0, "maximum": 60} for name in DEMANDS.values()],
        "entries": [
            {"row": names["meet"].format(bread), "column": None, "outcomes": {name: 1}}
            for bread, name in DEMANDS.items()
        ],
    }


def check_spec(spec: dict[str, Any], names: dict[str, str]) -> None:
    decisions = {part["name"]: part for part in spec["decisions"]}
    recourse = {part["name"]: part for part in spec["recourse"]}
    rows = {row["name"]: row for row in spec["rows"]}
    assert set(decisions) == {names["order"].format(bread) for bread in DEMANDS}
    for bread, outcome in DEMANDS.items():
        order, express = names["order"].format(bread), names["express"].format(bread)
        assert decisions[order] == {"name": order, "cost": 5, "minimum": 0, "maximum": None, "integer": True}
        assert recourse[express] == {"name": express, "cost": 8, "minimum": 0, "maximum": None, "integer": False}
        row = rows[names["meet"].format(bread)]
        assert (row["decisions"], row["recourse"], row["sense"]) == ({order: 1}, {express: 1}, ">=")
        assert row["limit"] == {"constant": 0, "outcomes": {outcome: 1}}
    room = rows[names["room"]]
    assert (room["decisions"], room["sense"], room["limit"]) == (dict.fromkeys(decisions, 1), "<=", 40)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_an_imported_model_keeps_its_names(client: Client, make: Callable[[], tuple[Any, dict[str, str]]]) -> None:
    model, names = make()
    problem = client.problems.import_model(model, "bread", **import_options(names))
    assert (problem.name, problem.outcomes) == ("bread", list(DEMANDS.values()))
    check_spec(problem.spec, names)
    # The constant of the objective; linopy has none.
    fixed = [part["cost"] for part in problem.spec["recourse"] if part["cost"] == 7]
    assert fixed == ([] if make is linopy_model else [7])


def test_the_asynchronous_client_imports_and_exports_models(service: LocalService) -> None:
    model, names = highspy_model()

    async def import_and_export() -> tuple[Any, Any, str]:
        async with AsyncClient(service.url, quiet=True) as client:
            first = await client.problems.import_model(model, "bread", **import_options(names))
            text = await client.problems.mps(first.id, at={"demand for white": 12.5})
            description = await client.problems.mps_description(first.id)
            again = await client.problems.import_model(
                text.encode(),
                description["name"],
                decisions=description["decisions"],
                outcomes=description["outcomes"],
                entries=description["entries"],
            )
            return first, again, text

    first, again, text = asyncio.run(import_and_export())
    check_spec(first.spec, names)
    assert again.spec == first.spec
    assert " RHS meet_white 12.5\n" in text


def test_a_path_is_read_and_smps_scenarios_become_a_data_set(client: Client, tmp_path: Path) -> None:
    columns = "COLUMNS\n order cost 5 meet 1\n express cost 8 meet 1\n"
    core = f"NAME b\nROWS\n N cost\n G meet\n{columns}RHS\n RHS meet 10\nENDATA\n"
    (tmp_path / "bread.cor").write_text(core)
    time = b"TIME b\nPERIODS\n order cost NOW\n express meet LATER\nENDATA\n"
    (tmp_path / "bread.sto").write_text(
        "STOCH b\nINDEP DISCRETE\n RHS meet 10 LATER 0.5\n RHS meet 20 LATER 0.5\nENDATA\n"
    )
    problem = client.problems.import_model(tmp_path / "bread.cor", time=time, scenarios=str(tmp_path / "bread.sto"))
    assert problem.decisions == ["order"]
    assert client.datasets.get(problem.dataset_id or "").rows == 200


def test_objects_that_are_not_models_are_rejected(client: Client) -> None:
    with pytest.raises(TypeError, match="pyomo"):
        as_file({"kind": "linear"})
    assert "highspy" in CANNOT
    with pytest.raises(UnprocessableRequest, match="neither MPS"):
        client.problems.import_model(b"nothing", decisions=["x"])


def test_gurobi_names_with_blanks_are_rejected() -> None:
    model, _ = gurobipy_model()
    model.addVar(name="two words")
    with pytest.raises(ValueError, match="two words"):
        as_file(model)


def test_highs_names_with_blanks_are_rejected() -> None:
    model, _ = highspy_model()
    model.addVariable(name="two words")
    with pytest.raises(ValueError, match="two words"):
        as_file(model)


def test_importing_a_file_loads_no_modelling_package(tmp_path: Path) -> None:
    program = (
        "import sys; from bco_client.models import as_file; as_file(b'x'); "
        "print({'pyomo', 'linopy', 'gurobipy', 'highspy'} & set(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert ended.stdout.strip() == "set()"
