"""Backtests end to end: as jobs, of existing posteriors, and at the command line."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.backtests.backtest import Backtest
from app.backtests.schemas import BacktestOptions
from app.commands.cli import app as command
from app.datasets.parsing import parse_rows
from app.datasets.profile import profile
from app.datasets.roles import ColumnRoles
from app.db.base import now
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow
from app.jobs import service
from app.settings import Settings
from bco_core.progress import no_progress
from tests.support.backtesting import OURS, SPEC, backtest_body, create_shop, days, run_backtest
from tests.support.journey import QUICK, Json, check_json, create_dataset, create_problem, learn_posterior


def result_lines(client: TestClient, job: Json) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(client.get(f"/v1/jobs/{job['id']}/result").text)))


def test_a_backtest_reports_costs_of_policies_and_every_row(client: TestClient) -> None:
    rows = days()
    job = run_backtest(client, backtest_body(create_shop(client, rows)))
    summary, lines = job["summary"], result_lines(client, job)
    policies = ["quick", "actual_decision", "constant", "season", "regression"]
    assert [one["name"] for one in summary["policies"]] == policies
    assert summary["rows"] * len(policies) == len(lines)
    costs: dict[str, dict[tuple[str, str], float]] = {name: {} for name in policies}
    sold = {(row["day"], row["shop"]): row["sold"] for row in rows}
    for line in lines:
        key = line["time"], line["series.shop"]
        if line["policy"] == "actual_decision":
            assert (line["decision.sold"] == "") == (rows[int(line["row"])]["stocked"] is None)
        if not line["decision.sold"]:
            assert line["cost"] == line["regret"] == line["feasible"] == ""
            continue
        short = sold[key] - float(line["decision.sold"])
        assert float(line["cost"]) == pytest.approx(3 * short if short > 0 else -short)
        assert float(line["regret"]) == pytest.approx(float(line["cost"]))
        costs[line["policy"]][key] = float(line["cost"])
    for one in summary["policies"]:
        assert one["rows"] == len(costs[one["name"]])
        assert one["cost"]["mean"] == pytest.approx(np.mean(list(costs[one["name"]].values())))
        assert one["feasibility"] == 1.0
    for one in summary["differences"]:
        other = costs[one["against"]]
        assert one["rows"] == len(other)
        assert one["mean"] == pytest.approx(np.mean([costs["quick"][key] - other[key] for key in other]))
        assert one["low"] < one["mean"] < one["high"]
    assert {line["series"] for line in summary["series"]} == {"north", "south"}
    assert sum(line["rows"] for line in summary["over_time"]) == summary["rows"]
    assert [line["number"] for line in summary["splits"]] == [0, 1, 2]
    assert summary["splits"][0]["learned_from"] < summary["splits"][2]["learned_from"]
    gaps = summary["rows"] - len(costs["actual_decision"])
    assert gaps > 0
    assert any(
        f"The decision actually taken is missing in {gaps} of {summary['rows']} rows" in note
        for note in summary["notes"]
    )
    assert summary["verdict"]["worth_using"] == "yes"
    assert check_json(client.get(f"/v1/jobs/{job['id']}/log"))["lines"][-1]["text"] == summary["verdict"]["text"]
    content = client.get(f"/v1/jobs/{job['id']}/result", params={"format": "parquet"}).content
    table = pq.read_table(io.BytesIO(content))
    assert table.num_rows == len(lines)
    assert table.column("cost").to_pylist()[0] == float(lines[0]["cost"])


@pytest.mark.slow
def test_perfect_actual_decisions_make_the_model_not_worth_using(client: TestClient) -> None:
    rows = days(80)
    for row in rows:
        row["stocked"] = row["sold"]
    job = run_backtest(client, backtest_body(create_shop(client, rows), baselines=["constant"]))
    verdict = job["summary"]["verdict"]
    assert verdict["worth_using"] == "no"
    assert "more than the decisions actually taken" in verdict["text"]
    assert "not worth using" in verdict["text"]


@pytest.mark.slow
def test_rows_without_time_use_random_splits_without_a_season(
    client: TestClient,
) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    job = run_backtest(client, ids | {"kind": "backtest", "ours": [OURS], "splits": 2, "seed": 1})
    summary = job["summary"]
    assert summary["rows"] == 60
    assert list(summary["left_out"]) == ["season"]
    assert any("season is left out" in note for note in summary["notes"])
    assert "actual_decision" not in {one["name"] for one in summary["policies"]}
    assert {"boosted", "neighbours", "kernel", "ieo"} < {one["name"] for one in summary["policies"]}
    assert "independent" in summary["intervals"]
    assert sorted({int(line["row"]) for line in result_lines(client, job)}) == list(range(60))


def test_a_running_job_estimates_its_remaining_time(client: TestClient) -> None:
    body = backtest_body(create_shop(client))
    job = check_json(client.post("/v1/jobs", json=body), 202)
    assert job["remaining_seconds"] is None
    assert job["estimate_seconds"] > 0
    assert job["summary"] is None
    attempt = service.start(job["id"])
    assert attempt is not None
    with transaction() as session:
        began = now() - timedelta(seconds=30)
        session.execute(sa.update(JobRow).where(JobRow.id == job["id"]).values(started_at=began))
    service.report(job["id"], attempt, 0.25, "judging")
    assert check_json(client.get(f"/v1/jobs/{job['id']}"))["remaining_seconds"] == pytest.approx(90, abs=20)
    check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)


# no look-ahead


def make_backtest(rows: list[Json], **changes: Any) -> Backtest:
    roles: Json = {"time": "day", "series": ["shop"], "lead": 2, "decisions": ["stocked"], "missing": "impute"}
    chosen = ColumnRoles(["sold"], None, [], **(roles | changes))
    found = profile(parse_rows(rows, Settings()), chosen, Settings())
    dataset = DatasetRow(columns=found.columns, lead=chosen.lead, handling=chosen.handling, revision=1)
    options: Json = {
        "ours": [OURS | {"inference": QUICK}],
        "splits": 3,
        "judged": 0.4,
        "actual_decision": {"sold": "stocked"},
    }
    options["baselines"] = ["constant", "season", "regression", "kernel"]
    return Backtest(SPEC, dataset, found.table, BacktestOptions.model_validate(options))


def messy_rows(count: int = 90) -> list[Json]:
    drawn = Random(2)
    rows = days(count)
    for index, row in enumerate(rows):
        row["weather"] = drawn.choice(["sun", "rain", "snow"]) if index < 150 else drawn.choice(["sun", "rain"])
        row["degrees"] = None if drawn.random() < 0.2 else drawn.gauss(10, 5)
        del row["stocked"]
        row["stocked"] = 50.0
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("what", ["outcomes", "contexts", "categories", "series", "gaps", "decisions"])
def test_no_change_of_later_rows_changes_an_earlier_decision(what: str) -> None:
    """Nor do later categories, medians for gaps, series keys or the season."""
    rows = messy_rows()
    before = make_backtest(rows)
    assert len(before.splits) == 3
    assert before.places is not None
    # The last unchanged period lies within a split.
    periods = before.places.periods
    last = int(np.median(periods[before.splits[1].judged.numpy()]))
    changed = [dict(row) for row in rows]
    drawn = Random(3)
    for index, row in enumerate(changed):
        if periods[index] <= last:
            continue
        if what == "outcomes":
            row["sold"] = drawn.randrange(10_000)
        elif what == "contexts":
            row |= {"promotion": 1 - row["promotion"], "degrees": drawn.gauss(500, 100)}
        elif what == "categories":
            row["weather"] = drawn.choice(["hail", "fog"])
        elif what == "series":
            row["shop"] = f"new {index}"
        elif what == "gaps":
            row["degrees"] = None
        else:
            row["stocked"] = None
    after = make_backtest(changed)
    for step in before.steps:
        if step.split < 2:
            tables = [one.work(step, no_progress) for one in (before, after)]
            kept = [table.filter(periods[np.asarray(table.column("row"))] <= last) for table in tables]
            assert kept[0].num_rows > 0
            assert kept[0].equals(kept[1]), step


@pytest.mark.parametrize("day", [-1, 0, 3])
def test_outcomes_known_during_a_split_feed_lags_but_not_learning(day: int) -> None:
    """An outcome shortly before or within the judged rows reaches lag features two days later, the lead, and no
    earlier decision."""
    rows = messy_rows()
    before = make_backtest(rows)
    assert before.places is not None
    first = before.places.periods[before.splits[0].judged.numpy()].min() + day
    changed = [dict(row) for row in rows]
    for index, row in enumerate(changed):
        if before.places.periods[index] == first:
            row["sold"] = 500
    after = make_backtest(changed)
    step = before.steps[0]
    tables = [one.work(step, no_progress) for one in (before, after)]
    assert step.policy == "quick"
    decisions = [np.asarray(table.column("decision.sold")) for table in tables]
    moment = before.places.periods[np.asarray(tables[0].column("row"))]
    np.testing.assert_array_equal(decisions[0][moment < first + 2], decisions[1][moment < first + 2])
    assert (decisions[0][moment == first + 2] != decisions[1][moment == first + 2]).all()


def test_rows_of_an_unseen_category_are_left_out_for_all_policies() -> None:
    rows = messy_rows()
    rows[-1]["weather"] = "hail"
    found = make_backtest(rows)
    tables = [found.work(step, no_progress) for step in found.steps]
    summary = found.summary(tables)
    judged = sum(len(split.judged) for split in found.splits)
    assert summary["rows"] == judged - 1
    assert any(note.startswith(f"1 of {judged} rows could not be decided for") for note in summary["notes"])


# existing posteriors


def test_two_posteriors_are_compared_on_rows_that_neither_was_trained_on(client: TestClient) -> None:
    rows = days()
    ids = create_shop(client, rows[:120])
    first = learn_posterior(client, **ids, seed=1)["id"]
    second = learn_posterior(client, **ids, predictor={"kind": "relu_affine"}, seed=2)["id"]
    body = ids | {"kind": "backtest", "posteriors": [first, second], "actual_decision": {"sold": "stocked"}}
    refusal = check_json(client.post("/v1/jobs", json=body), 422)
    assert refusal["errors"][0]["pointer"] == "#/dataset_id"
    assert "have learned from all rows" in refusal["detail"]

    check_json(client.post(f"/v1/datasets/{ids['dataset_id']}/rows", json={"rows": rows[120:]}), 201)
    job = run_backtest(client, body)
    summary = job["summary"]
    assert [one["name"] for one in summary["policies"]] == [first, second, "actual_decision"]
    assert {int(line["row"]) for line in result_lines(client, job)} == set(range(120, 180))
    assert f"120 rows are left out because {first} has learned from them." in summary["notes"]
    assert summary["against"] == "actual_decision"

    elsewhere = create_shop(client, rows[100:])
    body = {"kind": "backtest", "posteriors": [first, second]} | elsewhere
    job = run_backtest(client, body)
    assert job["summary"]["rows"] == 60
    assert job["summary"]["against"] == second


def test_a_backtest_cannot_mix_learning_and_existing_posteriors(client: TestClient) -> None:
    body = backtest_body({"problem_id": "prob_X", "dataset_id": "data_X"}, posteriors=["post_X"])
    refusal = check_json(client.post("/v1/jobs", json=body), 422)
    assert "leave out baselines, ours, splits" in refusal["detail"]


# bad input


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"actual_decision": {"bread": "stocked"}}, "#/actual_decision/bread", "no such decision; it has sold"),
        (
            {"actual_decision": {"sold": "promotion"}},
            "#/actual_decision/sold",
            "no such column of decisions; it has stocked",
        ),
        ({"baselines": ["luck"]}, "#/baselines/0", "constant"),
        ({"judged": 0.95}, "#/judged", "0.9"),
        ({"splits": 0}, "#/splits", "1"),
        ({"splits": 1000}, "#/splits", "50"),
        ({"ours": []}, "#", "at least one of ours"),
        ({"ours": [OURS, OURS]}, "#", "the same name"),
        ({"ours": [OURS | {"name": "actual_decision"}]}, "#", "cannot be one of actual_decision"),
        ({"posteriors": ["post_X"], "ours": [OURS]}, "#", "leave out"),
        ({"features": {"lags": [1]}}, "#/features/lags", "2"),
    ],
)
def test_an_impossible_comparison_is_refused_on_creation(
    client: TestClient, changes: Json, pointer: str, words: str
) -> None:
    refusal = check_json(client.post("/v1/jobs", json=backtest_body(create_shop(client)) | changes), 422)
    places = {one["pointer"] for one in refusal["errors"]}
    assert any(place.startswith(pointer) for place in places), refusal
    assert words in json.dumps(refusal)


def test_too_few_rows_are_refused_with_the_required_number(client: TestClient) -> None:
    refusal = check_json(client.post("/v1/jobs", json=backtest_body(create_shop(client, days(6)))), 422)
    assert "learning needs 10: send more rows (about" in refusal["detail"]
    refusal = check_json(
        client.post("/v1/jobs", json=backtest_body(create_shop(client, days(40), lead=39), splits=2)), 422
    )
    assert "0 are known before the first that is judged" in refusal["detail"]
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_shop(client)["dataset_id"]}
    refusal = check_json(client.post("/v1/jobs", json=backtest_body(ids, actual_decision={})), 422)
    assert "needs the outcome column(s) croissants, loaves" in refusal["detail"]
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    refusal = check_json(client.post("/v1/jobs", json=backtest_body(ids, actual_decision={}, judged=0.5)), 422)
    assert refusal["errors"][0]["pointer"] == "#/judged"


def test_decision_columns_keep_their_gaps_and_are_never_contexts(client: TestClient) -> None:
    ids = create_shop(client)
    dataset = check_json(client.get(f"/v1/datasets/{ids['dataset_id']}"))
    roles = {column["name"]: (column["role"], column["missing"]) for column in dataset["columns"]}
    assert roles["stocked"] == ("decision", 16)
    assert roles["promotion"] == ("context", 0)
    assert dataset["rows"] == 180
    assert any("'stocked' has no decision in 16 row(s)" in warning for warning in dataset["warnings"])
    posterior = learn_posterior(client, **ids)
    answer = client.post(
        f"/v1/posteriors/{posterior['id']}/prescribe",
        json={"contexts": [{"day": "2024-03-31", "shop": "north", "promotion": 0}]},
    )
    assert check_json(answer)["prescriptions"][0]["status"] == "optimal"
    body: Json = {"name": "x", "outcomes": ["sold"], "decisions": ["sold"], "rows": days(5)}
    refusal = check_json(client.post("/v1/datasets", json=body), 422)
    assert refusal["errors"][0]["pointer"] == "#/decisions/0"
    body |= {
        "decisions": ["stocked"],
        "rows": [row | {"stocked": "many"} for row in days(5)],
        "time": "day",
        "series": ["shop"],
    }
    refusal = check_json(client.post("/v1/datasets", json=body), 422)
    assert "a decision must be a number" in refusal["detail"]


# the command


def write_files(tmp_path: Path, rows: list[Json]) -> list[str]:
    with (tmp_path / "sales.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "problem.json").write_text(json.dumps(SPEC))
    (tmp_path / "learn.json").write_text(json.dumps(OURS))
    files = [str(tmp_path / "sales.csv"), "--problem", str(tmp_path / "problem.json")]
    return [
        "backtest",
        *files,
        "--time",
        "day",
        "--series",
        "shop",
        "--lead",
        "2",
        "--learn",
        str(tmp_path / "learn.json"),
    ]


def test_the_command_reports_the_same_as_the_job(client: TestClient, tmp_path: Path) -> None:
    job = run_backtest(client, backtest_body(create_shop(client)))
    arguments = [*write_files(tmp_path, days()), "--splits", "3", "--actual-decision", "sold=stocked"]
    for rule in ("constant", "season", "regression"):
        arguments += ["--baseline", rule]
    for suffix in ("csv", "parquet"):
        output = tmp_path / f"results.{suffix}"
        found = CliRunner().invoke(command, [*arguments, "--json", "--output", str(output)])
        assert found.exit_code == 0, found.output
        reported = json.loads(found.stdout.splitlines()[-1])
        assert reported == job["summary"]
        assert "worth using here" in " ".join(found.stdout.split())
        assert output.read_bytes() == client.get(f"/v1/jobs/{job['id']}/result", params={"format": suffix}).content


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--actual-decision", "stocked"], "decision=column"),
        (["--actual-decision", "sold=nothing"], "there is no such column"),
        (["--time", "week"], "there is no such column"),
        (["--output", "results.txt"], ".csv or .parquet"),
        (["--judged", "0.9", "--lead", "30"], "learning needs 10"),
        (["--missing", "guess"], "missing"),
        (["--baseline", "luck"], "baselines"),
    ],
)
def test_command_line_errors_end_with_a_message(tmp_path: Path, more: list[str], words: str) -> None:
    found = CliRunner().invoke(command, [*write_files(tmp_path, days(30)), "--missing", "drop", *more])
    assert found.exit_code == 1
    assert words in found.stderr
    assert "Traceback" not in found.output


def test_a_file_without_the_outcome_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "sold"} for row in days(30)]
    found = CliRunner().invoke(command, write_files(tmp_path, rows))
    assert found.exit_code == 1
    assert "outcomes" in found.stderr


def test_tables_of_parts_have_one_shape() -> None:
    found = make_backtest(messy_rows(60))
    shapes = {tuple(found.work(step, no_progress).schema) for step in found.steps[:2]}
    assert len(shapes) == 1
    assert all(isinstance(field, pa.Field) for field in next(iter(shapes)))
