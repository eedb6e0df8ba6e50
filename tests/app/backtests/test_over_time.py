"""Backtests over time: sums and confidence bands equal those computed with numpy from the downloaded file."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from scipy.stats import t
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobPartRow
from tests.support.backtesting import OURS, backtest_body, create_shop, days, run_backtest
from tests.support.journey import Json, check_json, create_dataset, create_job, create_problem, learn, learn_posterior

SHOPS = tuple(f"shop {number}" for number in range(9))


def over_time(client: TestClient, job: Json, **query: Any) -> Json:
    return check_json(client.get(f"/v1/jobs/{job['id']}/backtest/over-time", params=query))


def differences(client: TestClient, job: Json, ours: str, other: str) -> list[tuple[str, str, float]]:
    """Read time, series and paired cost difference of every row that both policies decided."""
    text = client.get(f"/v1/jobs/{job['id']}/result").text
    costs: dict[str, dict[str, tuple[str, str, float]]] = {ours: {}, other: {}}
    for line in csv.DictReader(io.StringIO(text)):
        if line["policy"] in costs and line["cost"]:
            place = line.get("time", line["row"]), line.get("series.shop", "")
            costs[line["policy"]][line["row"]] = (*place, float(line["cost"]))
    both = sorted(costs[ours].keys() & costs[other].keys(), key=int)
    return [(*costs[ours][row][:2], costs[ours][row][2] - costs[other][row][2]) for row in both]


def variance(values: Any, cluster: Any, overall: float, groups: int) -> float:
    """Return the clustered variance of the sum of `values`, with deviations from the overall mean."""
    sums = [(values[cluster == one] - overall).sum() for one in np.unique(cluster)]
    return groups / (groups - 1) * float(np.square(sums).sum())


def check_bands(
    found_difference: Json, rows: list[tuple[str, str, float]], clusters: list[Any], ends: list[int]
) -> None:
    """Check sums and bands; ``clusters`` (n,) for one or two ways, ``ends`` (n,) is the stretch of each row."""
    values, stretch = np.array([row[2] for row in rows]), np.array(ends)
    groups = [len(np.unique(one)) for one in clusters]
    reach = t.ppf(0.975, min(groups) - 1)
    for number in range(len(found_difference["sum"])):
        inside = stretch <= number
        ways = [
            variance(values[inside], one[inside], values.mean(), count)
            for one, count in zip(clusters, groups, strict=True)
        ]
        found = max(ways)
        if len(clusters) == 2:
            both = np.array([f"{one} {other}" for one, other in zip(*clusters, strict=True)])
            together = variance(values[inside], both[inside], values.mean(), len(np.unique(both)))
            found = max(found, sum(ways) - together)
        total, error = values[inside].sum(), np.sqrt(found)
        assert found_difference["rows"][number] == inside.sum()
        assert found_difference["sum"][number] == pytest.approx(total)
        assert found_difference["standard_error"][number] == pytest.approx(error)
        assert found_difference["low"][number] == pytest.approx(total - reach * error)
        assert found_difference["high"][number] == pytest.approx(total + reach * error)


def blocks(times: list[str], season: int) -> Any:
    """Return the documented time blocks: as long as the lead, season and root of the periods, at least eight blocks."""
    days = np.array(times, dtype="datetime64[D]").astype(int)
    span = int(days.max() - days.min()) + 1
    length = min(max(2, season, int(np.ceil(np.sqrt(span)))), max(1, span // 8))
    return (days - days.min()) // length


def stretches_of(places: list[Any], found: Json) -> list[int]:
    return [next(i for i, end in enumerate(found["ends"]) if place <= end) for place in places]


def test_sums_and_bands_match_the_downloaded_file(client: TestClient) -> None:
    job = run_backtest(client, backtest_body(create_shop(client)))
    found = over_time(client, job, stretches=7)
    assert (found["by"], found["candidate"], found["against"]) == ("time", "quick", "actual_decision")
    assert len(found["ends"]) == 7
    assert sum(found["rows"]) == job["summary"]["rows"]
    for found_difference in found["differences"]:
        rows = differences(client, job, "quick", found_difference["against"])
        check_bands(
            found_difference, rows, [blocks([row[0] for row in rows], 7)], stretches_of([row[0] for row in rows], found)
        )
        whole = next(one for one in job["summary"]["differences"] if one["against"] == found_difference["against"])
        for name in ("low", "high"):
            assert found_difference[name][-1] == pytest.approx(whole[name] * whole["rows"])


@pytest.mark.slow
def test_with_many_series_the_band_is_clustered_by_series_too(client: TestClient) -> None:
    job = run_backtest(client, backtest_body(create_shop(client, days(70, SHOPS)), baselines=["constant"]))
    found = over_time(client, job, stretches=10)
    found_difference = next(one for one in found["differences"] if one["against"] == "constant")
    rows = differences(client, job, "quick", "constant")
    ways = [blocks([row[0] for row in rows], 7), np.array([row[1] for row in rows])]
    check_bands(found_difference, rows, ways, stretches_of([row[0] for row in rows], found))


@pytest.mark.slow
def test_costs_add_up_to_the_means_of_the_summary(client: TestClient) -> None:
    job = run_backtest(client, backtest_body(create_shop(client)))
    found = over_time(client, job)
    for policy, found_difference in zip(found["policies"], job["summary"]["policies"], strict=True):
        assert (policy["name"], policy["words"]) == (found_difference["name"], found_difference["words"])
        assert sum(policy["rows"]) == found_difference["rows"]
        assert sum(policy["cost"]) / found_difference["rows"] == pytest.approx(found_difference["cost"]["mean"])
    assert found["begins"][0] == job["summary"]["over_time"][0]["from"]
    assert found["ends"][-1] == job["summary"]["over_time"][-1]["to"]
    assert all(before <= after for before, after in zip(found["ends"], found["begins"][1:], strict=False))


def test_rows_without_time_are_summed_in_row_order(client: TestClient) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    job = run_backtest(client, ids | {"kind": "backtest", "ours": [OURS], "splits": 2, "baselines": ["constant"]})
    found = over_time(client, job, stretches=6)
    assert (found["by"], found["begins"][0], found["ends"]) == ("rows", "0", ["9", "19", "29", "39", "49", "59"])
    rows = differences(client, job, "quick", "constant")
    check_bands(found["differences"][0], rows, [np.arange(60)], [int(row[0]) // 10 for row in rows])


def test_existing_posteriors_have_costs_over_time_too(client: TestClient) -> None:
    rows = days(80)
    ids = create_shop(client, rows[:120])
    posterior = learn_posterior(client, **ids)
    check_json(client.post(f"/v1/datasets/{ids['dataset_id']}/rows", json={"rows": rows[120:]}), 201)
    job = run_backtest(
        client, ids | {"kind": "backtest", "posteriors": [posterior["id"]], "actual_decision": {"sold": "stocked"}}
    )
    found = over_time(client, job)
    assert [one["name"] for one in found["policies"]] == [posterior["id"], "actual_decision"]
    whole = job["summary"]["differences"][0]
    assert found["differences"][0]["sum"][-1] == pytest.approx(whole["mean"] * whole["rows"])


@pytest.mark.parametrize("stretches", [0, 201, "many"])
def test_an_invalid_number_of_stretches_is_refused(client: TestClient, stretches: Any) -> None:
    answer = client.get("/v1/jobs/job_x/backtest/over-time", params={"stretches": stretches})
    assert check_json(answer, 422)["errors"][0]["pointer"] == "#/query/stretches"


def test_a_job_without_a_backtest_result_is_refused_with_the_reason(client: TestClient) -> None:
    def refusal(job_id: str, status: int = 409) -> str:
        return str(check_json(client.get(f"/v1/jobs/{job_id}/backtest/over-time"), status)["detail"])

    assert "no job" in refusal("job_00000000000000000000000000", 404)
    job = create_job(client)
    assert "makes no file" in refusal(job["id"])
    assert learn(client, job["id"])["state"] == "succeeded"
    batch = {"kind": "prescribe", "posterior_id": job["posterior_id"], "dataset_id": job["dataset_id"]}
    made = check_json(client.post("/v1/jobs", json=batch), 202)
    assert "the job is queued" in refusal(made["id"])
    waiting = check_json(client.post("/v1/jobs", json=backtest_body(create_shop(client))), 202)
    assert "the job is queued" in refusal(waiting["id"])
    ended = run_backtest(client, backtest_body(create_shop(client), baselines=["constant"], splits=1))
    with transaction() as session:
        session.execute(sa.delete(JobPartRow).where(JobPartRow.job_id == ended["id"]))
    assert "BCO_KEEP_PARTS_DAYS" in refusal(ended["id"])


def test_lists_of_jobs_show_the_verdict_of_backtests(client: TestClient) -> None:
    job = run_backtest(client, backtest_body(create_shop(client), baselines=["constant"], splits=1))
    listed = check_json(client.get("/v1/jobs"))["items"]
    assert next(one for one in listed if one["id"] == job["id"])["verdict"] == job["summary"]["verdict"]
    assert job["verdict"] == job["summary"]["verdict"]
    learning = create_job(client)
    listed = check_json(client.get("/v1/jobs"))["items"]
    assert next(one for one in listed if one["id"] == learning["id"])["verdict"] is None
