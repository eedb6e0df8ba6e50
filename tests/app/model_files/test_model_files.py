"""Reading and writing model files: bounds, ranges, constants, SMPS with known optima, round trips."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pytest

from app.child_processes import InvalidFile
from app.model_files.read_mps_lp import FileModel, decode_text, read_model
from app.model_files.scenario_table import LEAST_ROWS, MOST_ROWS, to_table
from app.model_files.smps import IndependentGroup, read_groups, read_periods
from app.model_files.specification import first_stage_columns, write_specification
from app.model_files.write_mps import write_mps
from bco_core.problems.linear import model as core
from tests.support.model_files import MPS, STO, TIM, Json

PLAIN: Json = {"name": "m", "decisions": None, "outcomes": [], "entries": [], "columns": {}, "rows": {}}


def read(text: str, folder: Path) -> FileModel:
    return read_model(text, folder, 20_000, 30_000, 500_000)


def read_spec(text: str, folder: Path, **description: Any) -> tuple[Json, list[str]]:
    model = read(text, folder)
    chosen = PLAIN | description
    entries = [{"constant": 0.0} | entry for entry in chosen["entries"]]
    return write_specification(model, chosen | {"entries": entries}, first_stage_columns(model, chosen), None)


GENERAL = """\
NAME general
OBJSENSE
    MAX
ROWS
 N profit
 N unused
 L most
 G least
 E exact
COLUMNS
 a profit 3 most 1
 a unused 2
 M1 'MARKER' 'INTORG'
 b profit 2 most 1
 c least 1 exact 1
 d exact 1
 M2 'MARKER' 'INTEND'
 e least 1
 f least 1
RHS
 RHS most 9 least 1
 RHS exact 4 profit -6
RANGES
 RNG most 3
BOUNDS
 UP BND a 4
 UI BND b 7
 BV BND c
 LI BND d -2
 PL BND d
 FR BND e
 MI BND f
 UP BND f -1
ENDATA
"""


def test_senses_bounds_ranges_constants_and_free_rows_are_read(tmp_path: Path) -> None:
    spec, notes = read_spec(GENERAL, tmp_path, decisions=["a", "b"])
    assert spec["sense"] == "maximize"
    bounds = {v["name"]: (v["minimum"], v["maximum"], v["integer"]) for v in spec["decisions"] + spec["recourse"]}
    assert bounds == {
        "a": (0, 4, False),
        "b": (0, 7, True),
        "c": (0, 1, True),
        "d": (-2, None, True),
        "e": (None, None, False),
        "f": (None, -1, False),
        "constant": (1, 1, False),
    }
    assert spec["recourse"][-1]["cost"] == 6
    rows = [(row["name"], row["decisions"], row["recourse"], row["sense"], row["limit"]) for row in spec["rows"]]
    assert rows == [
        ("most at least", {"a": 1, "b": 1}, {}, ">=", 6),
        ("most at most", {"a": 1, "b": 1}, {}, "<=", 9),
        ("least", {}, {"c": 1, "e": 1, "f": 1}, ">=", 1),
        ("exact", {}, {"c": 1, "d": 1}, "=", 4),
    ]
    assert "unused" in notes[0]
    assert "'constant'" in notes[1]


def test_without_recourse_the_constant_becomes_a_decision_with_a_free_name(tmp_path: Path) -> None:
    text = "Minimize\n constant + 2 y + 5\nSubject To\n constant + y >= 1\nEnd\n"
    spec, _ = read_spec(text, tmp_path)
    assert spec["recourse"] == []
    assert [(one["name"], one["cost"]) for one in spec["decisions"]] == [("constant", 1), ("y", 2), ("constant 2", 5)]
    assert "name" not in spec["rows"][0]


def test_entries_anywhere_in_the_model_become_uncertain_numbers(tmp_path: Path) -> None:
    demand = {"y": 2.0}
    places = [(None, "order"), ("meet", "order"), ("room", "express"), ("meet", None), (None, None)]
    entries = [{"row": row, "column": column, "outcomes": demand, "constant": 1.0} for row, column in places]
    spec, _ = read_spec(MPS, tmp_path, decisions=["order"], outcomes=[{"name": "y"}], entries=entries)
    number = {"constant": 1.0, "outcomes": demand}
    assert spec["decisions"][0]["cost"] == number
    meet, room = spec["rows"]
    assert (meet["decisions"]["order"], meet["limit"], room["recourse"]["express"]) == (number, number, number)
    assert spec["recourse"][1] == {"name": "constant", "cost": number, "minimum": 1, "maximum": 1, "integer": False}
    assert room["limit"] == 40


@pytest.mark.parametrize(
    ("entry", "says"),
    [({"row": "most", "column": None}, "two limits"), ({"row": "unused", "column": "a"}, "bounds nothing")],
)
def test_an_entry_that_cannot_be_uncertain_is_refused(tmp_path: Path, entry: Json, says: str) -> None:
    with pytest.raises(InvalidFile, match=says) as refusal:
        read_spec(GENERAL, tmp_path, outcomes=[{"name": "y"}], entries=[entry | {"outcomes": {"y": 1}}])
    assert refusal.value.where == ("description", "entries", 0)


def test_names_with_blanks_in_fixed_mps_are_read(tmp_path: Path) -> None:
    text = (
        "NAME          fixed\nROWS\n N  cost\n G  my row\nCOLUMNS\n    my col    cost               1.0   my row    "
        "         2.0\nRHS\n    RHS       my row             3.0\nENDATA\n"
    )
    model = read(text, tmp_path)
    assert (model.columns, model.rows, model.entries) == (["my col"], ["my row"], [{0: 2.0}])


# round trips


def random_spec(seed: int) -> Json:
    drawn = random.Random(seed)
    outcomes = [{"name": f"y {i}", "minimum": drawn.choice([None, -3.5]), "maximum": None} for i in range(3)]

    def number() -> float | Json:
        value = drawn.choice([0.0, round(drawn.uniform(-9, 9), 3), drawn.gauss(0, 1) * 10 ** drawn.randint(-6, 6)])
        if drawn.random() < 0.8:
            return value
        return {"constant": value, "outcomes": {"y 1": drawn.uniform(-2, 2), "y 2": 1.0}}

    def variables(prefix: str, count: int) -> list[Json]:
        kinds = [(0.0, None), (0.0, 1.0), (None, None), (None, -1.0), (-2.5, 7.0), (3.0, 3.0), (0.0, 0.0), (1.0, None)]
        found = []
        for index in range(count):
            low, high = drawn.choice(kinds)
            name = f"{prefix}{index}" + drawn.choice(["", " long", "é", "$"])
            whole = drawn.random() < 0.4
            found.append({"name": name, "cost": number(), "minimum": low, "maximum": high, "integer": whole})
        return found

    decisions, recourse = variables("z", drawn.randint(1, 6)), variables("z", drawn.randint(0, 5))
    rows = []
    for index in range(drawn.randint(0, 8)):
        parts = [{v["name"]: number() for v in part if drawn.random() < 0.5} for part in (decisions, recourse)]
        row = {"decisions": parts[0], "recourse": parts[1], "sense": drawn.choice(["<=", ">=", "="]), "limit": number()}
        rows.append(row if drawn.random() < 0.2 else {"name": f"row {index + 1}", **row})
    sense = drawn.choice(["minimize", "maximize"])
    return {
        "kind": "linear",
        "sense": sense,
        "decisions": decisions,
        "recourse": recourse,
        "outcomes": outcomes,
        "rows": rows,
    }


def models_equal(one: Any, other: Any) -> bool:
    if hasattr(one, "toarray"):
        return bool((one.toarray() == other.toarray()).all())
    if isinstance(one, core.Vector):
        return models_equal(one.constant, other.constant) and models_equal(one.by_outcome, other.by_outcome)
    if isinstance(one, core.Matrix):
        outcomes = np.random.default_rng(0).normal(size=3)
        return models_equal(one.at(outcomes), other.at(outcomes)) and models_equal(one.constant, other.constant)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize("seed", range(60))
def test_a_written_model_is_read_back_unchanged(tmp_path: Path, seed: int) -> None:
    spec = random_spec(seed)
    text, description = write_mps(spec, "title\nof two lines", {"y 1": 2.5})
    again, _ = read_spec(text, tmp_path, **description)
    one, other = core.read_model(spec), core.read_model(again)
    for field in core.LinearModel.__dataclass_fields__:
        assert models_equal(getattr(one, field), getattr(other, field)), field


# SMPS


def read_scenarios(sto: str, folder: Path, mps: str = MPS, tim: str = TIM) -> tuple[Json, Any]:
    model = read(mps, folder)
    decided, periods = read_periods(tim, model)
    table = to_table(read_groups(sto, model, periods))
    return write_specification(model, PLAIN, decided, table)[0], table


def optimal_cost(spec: Json, rows: list[list[float]]) -> float:
    """Minimise the mean cost over equally likely rows as one large program."""
    data = core.read_model(spec)
    count, first, later = len(rows), len(data.decision_names), len(data.recourse_names)
    solver = highspy.Highs()
    solver.silent()
    free = highspy.kHighsInf
    z = [solver.addVariable(lb=low, ub=min(high, free)) for low, high in zip(data.lower, data.upper, strict=True)]
    costs = data.cost.at(np.array(rows)).mean(axis=0)
    total = sum(cost * one for cost, one in zip(costs, z, strict=True))
    for row in rows:
        outcome = np.array(row)
        x = [solver.addVariable(lb=data.recourse_lower[i], ub=data.recourse_upper[i]) for i in range(later)]
        later_cost = data.recourse_cost.at(outcome[None])[0]
        total += sum(later_cost[i] * x[i] for i in range(later)) * (1 / count)
        t, w = data.technology.at(outcome).toarray(), data.recourse.at(outcome).toarray()
        limits = data.limits.at(outcome[None])[0]
        for m, sense in enumerate(data.senses):
            left = sum(t[m, i] * z[i] for i in range(first)) + sum(w[m, i] * x[i] for i in range(later))
            solver.addConstr(left <= limits[m] if sense < 0 else left >= limits[m] if sense > 0 else left == limits[m])
    solver.minimize(total)
    return float(solver.getObjectiveValue())


def test_independent_values_have_the_known_optimum(tmp_path: Path) -> None:
    # By hand: order 20 for 100; with probability 1/4 demand is 30 and 10 more are bought at 8: 120.
    spec, table = read_scenarios(STO, tmp_path)
    assert optimal_cost(spec, sorted(table.rows)[:: len(table.rows) // 4]) == pytest.approx(120)
    assert table.notes == []


BLOCKS = """\
STOCH b
BLOCKS DISCRETE
 BL one LATER 0.5
 RHS meet 10
 express cost 8
 BL one LATER 0.25
 RHS meet 30
 BL one LATER 0.25
 RHS meet 30
 express cost 2
ENDATA
"""


def test_blocks_change_the_entries_they_name_and_keep_the_others(tmp_path: Path) -> None:
    spec, table = read_scenarios(BLOCKS, tmp_path)
    assert {tuple(row): table.rows.count(row) for row in table.rows} == {(10, 8): 100, (30, 8): 50, (30, 2): 50}
    assert [one["name"] for one in spec["outcomes"]] == ["rhs of meet", "cost of express"]
    # By hand: order 10 for 50; 20 more at 8 with probability 1/4, at 2 with probability 1/4: 40 + 10.
    assert optimal_cost(spec, [[10, 8], [10, 8], [30, 8], [30, 2]]) == pytest.approx(100)


SCENARIOS = """\
STOCH b
SCENARIOS DISCRETE
 SC low 'ROOT' 0.3333 LATER
 RHS meet 10
 order meet 0.5
 SC high low 0.3333 LATER
 RHS meet 20
 SC as_it_is ROOT 0.3333 LATER
 room_not_named_before_is_no_row
ENDATA
"""


def test_scenarios_inherit_from_their_parent_and_have_equal_shares(tmp_path: Path) -> None:
    sto = SCENARIOS.replace(" room_not_named_before_is_no_row\n", "")
    _, table = read_scenarios(sto, tmp_path)
    counted = {tuple(row): table.rows.count(row) for row in table.rows}
    assert counted == dict.fromkeys([(10, 0.5), (20, 0.5), (10, 1)], 67)
    assert len(table.rows) >= LEAST_ROWS


def test_a_right_hand_side_of_the_objective_is_subtracted(tmp_path: Path) -> None:
    sto = "STOCH\nINDEP DISCRETE\n RHS cost -4 LATER 0.5\n RHS cost 6 LATER 0.5\nENDATA\n"
    spec, _ = read_scenarios(sto, tmp_path)
    assert spec["recourse"][-1]["cost"] == {"constant": 0.0, "outcomes": {"rhs of the objective": -1.0}}


def test_constant_scenario_values_become_part_of_the_model(tmp_path: Path) -> None:
    sto = STO.replace("ENDATA", " order meet 0.75 LATER 1\nENDATA")
    spec, table = read_scenarios(sto, tmp_path)
    assert spec["rows"][0]["decisions"] == {"order": 0.75}
    assert len(spec["outcomes"]) == 1
    assert "'order in meet'" in table.notes[0]


def test_many_independent_values_are_sampled_proportionally_and_repeatably() -> None:
    choices = [(Fraction(1, 4), [0.0]), (Fraction(3, 4), [1.0])]
    groups = [IndependentGroup([(f"x{i}", "row")], choices) for i in range(40)]
    table = to_table(groups)
    assert len(table.rows) == MOST_ROWS
    assert set(np.array(table.rows).sum(axis=0)) == {0.75 * MOST_ROWS}
    assert table.rows == to_table(groups).rows
    correlation = np.corrcoef(np.array(table.rows).T)
    assert np.abs(correlation - np.eye(40)).max() < 6 / math.sqrt(MOST_ROWS)
    assert "sample of 10000 of them (seed 0)" in table.notes[0]


def test_inexact_probabilities_are_approximated_with_a_note() -> None:
    shares = [Fraction("0.123456789"), Fraction("0.876543211")]
    table = to_table([IndependentGroup([(None, "r")], [(share, [float(i)]) for i, share in enumerate(shares)])])
    assert len(table.rows) == MOST_ROWS
    assert sum(row[0] for row in table.rows) == 8765
    assert "kept to 4e-05" in table.notes[0]


WRONG_TIM = [
    (TIM.replace("ENDATA\n", ""), "cut off"),
    (TIM.replace(" express meet LATER\n", ""), "names 1 periods"),
    (TIM.replace("ENDATA", " express room LAST\nENDATA"), "names 3 periods"),
    (TIM.replace("IMPLICIT", "EXPLICIT"), "line 2: explicit"),
    (TIM.replace(" order cost", " orders cost"), "line 3: the model has no column 'orders'"),
    (TIM.replace("express meet", "express met"), "line 4: the model has no row 'met'"),
    (TIM.replace("express meet", "order meet"), "line 4: the second period"),
    (TIM.replace(" order cost", " express cost"), "line 3: the first period"),
    ("what\n", "line 1"),
]


@pytest.mark.parametrize(("text", "says"), WRONG_TIM)
def test_a_wrong_time_file_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidFile, match=says) as refusal:
        read_periods(text, read(MPS, tmp_path))
    assert refusal.value.where == ("time",)


WRONG_STO = [
    (STO.replace("ENDATA\n", ""), "cut off"),
    (STO.replace("INDEP DISCRETE", "INDEP NORMAL"), "line 2: only discrete"),
    (STO.replace("INDEP DISCRETE", "INDEP DISCRETE ADD"), "line 2: values replace"),
    (STO.replace("INDEP DISCRETE", "CHANCE"), "line 2: the section CHANCE"),
    (STO.replace("RHS meet 20", "RHS met 20"), "line 4: the model has no row 'met'"),
    (STO.replace("RHS meet 20", "SUPPLY meet 20"), "line 4: the model has no column and no right-hand side"),
    (STO.replace("RHS meet 20", "BND order 20"), "line 4: bounds of columns must be certain"),
    (STO.replace("20 LATER", "20 NEVER"), "line 4: there is no period"),
    (STO.replace("20 LATER", "nan LATER"), "line 4: a value"),
    (STO.replace("20 LATER", "1e13 LATER"), "line 4: a value"),
    (STO.replace("0.5", "1.5"), "line 4: a probability"),
    (STO.replace("0.5", "1e-999999999"), "sum to 0.5"),
    (STO.replace("0.5", "1/2"), "line 4: a probability"),
    (STO.replace("0.5", "0.4"), "the probabilities of rhs of meet sum to 0.9"),
    (STO.replace(" LATER 0.5", ""), "line 4: an independent value"),
    ("STOCH\nENDATA\n", "nothing that varies"),
    ("STOCH\nINDEP DISCRETE\n RHS meet 3 1\nENDATA\n", "nothing uncertain"),
    (SCENARIOS, "line 9: a value"),
    (SCENARIOS.replace("high low", "high lower"), "line 6: the parent"),
    (SCENARIOS.replace("SC high", "SC low"), "line 6: two scenarios"),
    (BLOCKS.replace("BL one LATER 0.5", "RHS meet 3"), "line 3: a value"),
    (STO.replace("ENDATA", BLOCKS.partition("\n")[2]), "two independent groups"),
    (STO.replace("ENDATA", SCENARIOS.partition("\n")[2].replace(" room_not_named_before_is_no_row\n", "")), "one or"),
]


@pytest.mark.parametrize(("text", "says"), WRONG_STO)
def test_a_wrong_scenario_file_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidFile, match=says) as refusal:
        read_scenarios(text, tmp_path)
    assert refusal.value.where == ("scenarios",)


def test_a_byte_order_mark_is_removed_from_text() -> None:
    assert decode_text(b"\xef\xbb\xbfNAME\n") == "NAME\n"
