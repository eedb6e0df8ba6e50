"""The client's methods for what-if decisions, patched costs, explanations, the log and backtests."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import polars as pl
import pytest

from bco_client import Client, Conflict, RemotePosterior, UnprocessableRequest
from bco_client.options import Include

Json = dict[str, Any]


@pytest.fixture
def mornings(history: list[Json]) -> pd.DataFrame:
    return pd.DataFrame(history[-3:], index=["first", "second", "third"])


def test_evaluate_compares_decisions_with_the_recommended_one(learned: RemotePosterior, history: list[Json]) -> None:
    more = {"name": "more", "decision": {"croissants": 500, "loaves": None}}
    found = learned.evaluate(history[-1], alternatives=[{"croissants": 100, "loaves": 80}, more])
    assert found.ours is not None
    assert found.ours.decision == learned.prescribe(history[-1]).decision
    mine, theirs = found.alternatives
    assert mine.decision == {"croissants": 100, "loaves": 80}
    assert (theirs.name, theirs.filled) == ("more", ["loaves"])
    assert theirs.extra_cost is not None
    assert theirs.expected_cost is not None
    assert found.ours.expected_cost is not None
    assert theirs.extra_cost == pytest.approx(theirs.expected_cost - found.ours.expected_cost)
    assert theirs.extra_cost > 0


def test_missing_entries_of_a_decision_frame_are_filled_in(learned: RemotePosterior, mornings: pd.DataFrame) -> None:
    orders = pd.DataFrame({"croissants": [100, 90, 80], "loaves": [80.0, None, 70.0]})
    found = learned.evaluate(mornings, decisions=orders)
    assert [one.alternatives[0].filled for one in found] == [[], ["loaves"], []]
    assert [one.alternatives[0].decision["croissants"] for one in found] == [100, 90, 80]
    with pytest.raises(UnprocessableRequest):
        learned.evaluate(mornings, decisions=orders.head(2))


@pytest.mark.parametrize("batch", [False, True])
def test_a_problem_patch_changes_the_costs_of_one_call(
    learned: RemotePosterior, mornings: pd.DataFrame, batch: bool
) -> None:
    usual = learned.prescribe(mornings)
    patched = learned.prescribe(mornings, batch=batch, problem_patch={"items": {"croissants": {"underage_cost": 5}}})
    assert (patched["decision.croissants"] > usual["decision.croissants"]).all()
    assert patched["decision.loaves"].equals(usual["decision.loaves"])


def test_included_details_have_the_same_columns_in_calls_and_batches(
    learned: RemotePosterior, mornings: pd.DataFrame
) -> None:
    include: list[Include] = ["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]
    hot = mornings.assign(temperature=[900.0, *mornings["temperature"][1:]])  # one of them has a warning
    one = learned.prescribe(hot, batch=False, include=include, scenarios=20)
    many = learned.prescribe(hot, batch=True, include=include, scenarios=20)
    assert set(one.columns) == set(many.columns)
    for row in range(3):
        for name in ("scenarios", "neighbours", "sensitivity.switches", "sensitivity.prices"):
            assert json.loads(one[name].iloc[row]) == json.loads(many[name].iloc[row])
        scenarios = json.loads(many["scenarios"].iloc[row])
        expected = sum(weight * cost for weight, cost in zip(scenarios["weights"], scenarios["costs"], strict=True))
        assert expected == pytest.approx(one["expected_cost"].iloc[row])
    assert one["warning.1"].iloc[0] == many["warning.1"].iloc[0]


def test_logged_prescriptions_are_read_reproduced_and_given_outcomes(
    client: Client, learned: RemotePosterior, history: list[Json]
) -> None:
    one, many = learned.prescribe(history[-1]), learned.prescribe(history[-3:])
    assert one.logged_as is not None
    assert [found.index for found in many] == [0, 1, 2]
    entry = client.prescriptions.get(one.logged_as)
    assert entry.answer["prescriptions"][0]["decision"] == one.decision
    assert client.prescriptions.reproduce(one.logged_as).identical
    outcome = {"croissants": 90, "loaves": 70}
    recorded = client.prescriptions.record_outcome(many[1], outcome, actual_decision={"croissants": 100, "loaves": 80})
    assert (recorded.id, recorded.rows[0]["index"], recorded.rows[0]["actual_decision_cost"]) == (
        many[1].logged_as,
        1,
        18.0,
    )
    # The same outcome is recorded once; a different one is rejected.
    assert client.prescriptions.record_outcome(many[1], outcome).recorded == 1
    with pytest.raises(Conflict):
        client.prescriptions.record_outcome(many[1], {"croissants": 91, "loaves": 70})
    assert client.prescriptions.record_outcome(many[1], outcome | {"loaves": 71}, replace=True).recorded == 1
    assert client.prescriptions.record_outcome(one.logged_as, outcome).recorded == 1
    listed = client.prescriptions.list(posterior_id=learned.id, has_outcome=True, since=entry.created_at)
    assert {one.logged_as, many[1].logged_as} <= {call.id for call in listed}
    table = client.prescriptions.export(to="polars", posterior_id=learned.id)
    assert {"decision.croissants", "actual_decision.croissants", "loaves"} <= set(table.columns)
    assert len(client.prescriptions.export(posterior_id=learned.id)) == table.height
    assert learned.drift(source="log").verdict == "too_few"


@pytest.mark.slow
@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_backtest_compares_with_the_decisions_actually_taken(
    client: Client, history: list[Json], problem: Json, quick: Json, make: Any
) -> None:
    rows = [row | {"baked": 100.0, "loaves_baked": 80.0} for row in history]
    actual = {"croissants": "baked", "loaves": "loaves_baked"}
    found = client.backtest(make(rows), problem, actual_decision=actual, ours=[quick], baselines=["constant"], splits=2)
    assert found.worth_using in ("yes", "no", "unclear")
    assert "the decisions actually taken" in found.verdict
    table = client.jobs.result(found.job_id, to="pandas")
    assert set(table["policy"]) == {"vi", "constant", "actual_decision"}
    again = client.backtest(
        client.jobs.get(found.job_id).dataset_id or "", problem, ours=[quick], splits=2, actual_decision=actual
    )
    assert {policy["name"] for policy in again.raw["policies"]} > {"vi", "constant", "actual_decision"}
