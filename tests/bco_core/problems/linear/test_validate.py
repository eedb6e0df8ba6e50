"""Validation of recourse: infeasible second stages are refused with a witness."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_core.errors import InvalidInput
from bco_core.problems.base import Status
from bco_core.problems.linear.stages import StagedModel
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.two_stage_spec import read_two_stage
from bco_core.problems.linear.validate import _serves_everything, check_recourse
from bco_core.solvers import highs
from tests.support.programs import random_program, random_two_stage

SEEDS = st.integers(0, 10**9)


def capped_spec(**outcome: Any) -> dict[str, Any]:
    """Order at most ten and buy at most two more: demand above twelve cannot be met."""
    return {
        "decisions": [{"name": "order", "cost": 1, "maximum": 10}],
        "outcomes": [{"name": "demand", "minimum": 0} | outcome],
        "recourse": [{"name": "rush", "cost": 5, "maximum": 2}, {"name": "waste", "cost": 1}],
        "rows": [
            {
                "name": "balance",
                "recourse": {"rush": 1, "waste": -1},
                "decisions": {"order": 1},
                "sense": "=",
                "outcomes": {"demand": 1},
            }
        ],
    }


def stages_of(spec: dict[str, Any]) -> StagedModel:
    return StagedModel.of(read_two_stage(spec))


def recourse_exists(stages: StagedModel, decision: np.ndarray, outcome: np.ndarray) -> bool:
    limits = stages.second.limits.constant + stages.by_outcome @ outcome - stages.by_decision @ decision
    return highs.solve_program(stages.recourse_program, limits).status is Status.OPTIMAL


def witness_of(error: InvalidInput) -> tuple[np.ndarray, np.ndarray]:
    """Return the decision and the outcome named in the message."""
    found = re.search(r"with decision (.*) and outcome (.*) no recourse", str(error))
    assert found
    numbers = [[float(part.split(" = ")[1]) for part in side.split(", ")] for side in found.groups()]
    return np.array(numbers[0]), np.array(numbers[1])


def test_a_missing_recourse_is_refused_with_a_witness_that_highs_confirms() -> None:
    with pytest.raises(InvalidInput, match="'balance' among") as refused:
        TwoStageLinear.from_spec(capped_spec())
    assert refused.value.where == ("rows", 0)
    stages = stages_of(capped_spec())
    decision, outcome = witness_of(refused.value)
    assert 0 <= decision[0] <= 10
    assert outcome[0] >= 0
    assert not recourse_exists(stages, decision, outcome)


def test_bounds_that_exclude_infeasible_cases_are_accepted() -> None:
    check_recourse(stages_of(capped_spec(maximum=2)))
    # With demand up to twelve, an order of zero is still infeasible; an order of at least ten is not.
    with pytest.raises(InvalidInput):
        check_recourse(stages_of(capped_spec(maximum=12)))
    spec = capped_spec(maximum=12)
    spec["decisions"][0]["minimum"] = 10
    check_recourse(stages_of(spec))
    spec = capped_spec(maximum=12)
    spec["decision_rows"] = [{"coefficients": {"order": 1}, "sense": ">=", "limit": 10}]
    check_recourse(stages_of(spec))


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 5), st.booleans())
def test_complete_recourse_is_accepted(seed: int, rows: int, plain: bool) -> None:
    check_recourse(stages_of(random_two_stage(np.random.default_rng(seed), 3, rows, plain=plain)))


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 4), st.booleans())
def test_refusals_are_always_confirmed_by_highs(seed: int, rows: int, plain: bool) -> None:
    spec = random_two_stage(np.random.default_rng(seed), 3, rows, plain=plain, complete=False)
    stages = stages_of(spec)
    try:
        check_recourse(stages)
    except InvalidInput as error:
        decision, outcome = witness_of(error)
        assert not recourse_exists(stages, decision, outcome)


@given(SEEDS, st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_a_recourse_that_serves_everything_is_feasible_for_random_limits(
    seed: int, rows: int, columns: int, plain: bool
) -> None:
    rng = np.random.default_rng(seed)
    recourse = replace(random_program(rng, rows, columns, plain), cost=np.zeros(columns))
    limits = rng.normal(size=(6, rows)) * 100
    limits = np.concatenate([limits, -limits])
    served = [highs.solve_program(recourse, one).status is Status.OPTIMAL for one in limits]
    if _serves_everything(recourse):
        assert all(served)


@pytest.mark.parametrize(
    ("sense", "entries", "serves"),
    [(">=", [1, -1], True), ("<=", [1, 1], False), ("<=", [1, -1], True), ("=", [1, 1], False), ("=", [1, -1], True)],
)
def test_one_row_is_served_if_variables_move_it_in_the_needed_directions(
    sense: str, entries: list[float], serves: bool
) -> None:
    spec = capped_spec()
    spec["recourse"] = [{"name": "rush", "cost": 5}, {"name": "waste", "cost": 1}]
    spec["rows"][0] |= {"sense": sense, "recourse": dict(zip(("rush", "waste"), entries, strict=True))}
    assert _serves_everything(stages_of(spec).recourse_program) == serves
