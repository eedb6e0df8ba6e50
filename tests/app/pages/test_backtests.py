"""Pages about backtests: asked for by a form, followed, and told with the verdict first."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from scipy.stats import t
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobPartRow, JobRow
from app.pages.backtests import BacktestForm, BacktestView, learned_like, parse_times, propose_columns, request_of
from bco_core.backtest.rules import RULES
from tests.support.backtesting import OURS, asked, days, finished, prepared
from tests.support.journey import Json, answered, create_dataset, create_job, create_problem, learn, learned
from tests.support.pages import another_browser, charts, look, people, send, words


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return prepared(client)


@pytest.fixture(scope="module")
def job(client: TestClient, ids: Json) -> Json:
    return finished(client, asked(ids, name="two shops"))


def form(ids: Json, **changes: Any) -> Json:
    """What the form sends for a quick look."""
    fields = {"sent": "yes", "dataset": ids["dataset_id"], "problem": ids["problem_id"], "how": "quick", "splits": "2"}
    return fields | {"baselines": ["constant", "season"], "actual_decision.sold": "stocked", "seed": "0"} | changes


def wrong(page: Any, field: str) -> list[str]:
    """What is said beside a field."""
    return [html.unescape(text) for text in re.findall(rf'<p class="wrong" id="{field}-wrong">(.*?)</p>', page.text)]


# lists


def test_who_has_nothing_to_judge_by_is_told_what_it_takes(browser: TestClient) -> None:
    said = words(look(browser, "/backtests"))
    assert "needs both" in said
    assert "needs both" in words(look(browser, "/backtests/new"))


def test_the_list_tells_verdicts_and_how_others_stand(browser: TestClient, client: TestClient, job: Json) -> None:
    waiting = answered(client.post("/v1/jobs", json=asked(prepared(client), name="next week")), 202)
    page = look(browser, "/backtests")
    said = words(page)
    assert "two shops ✓ worth using" in said
    assert "next week queued" in said
    assert f'href="/backtests/{job["id"]}"' in page.text
    client.post(f"/v1/jobs/{waiting['id']}/cancel")


# the form


def test_the_form_proposes_what_was_learned_last_and_says_how_to_ask_by_api(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    posterior = learned(client, name="shops", **ids)
    page = look(browser, "/backtests/new")
    for chosen in ids.values():
        assert re.search(rf'<option value="{chosen}" selected>', page.text)
    assert "<option selected>stocked</option>" in re.sub(r"\s+>", ">", page.text)
    for name in RULES:
        assert re.search(rf'name="baselines" value="{name}" checked', page.text)
    assert "curl" in page.text
    about = look(browser, f"/backtests/new?posterior={posterior['id']}&how=like")
    assert "Train like “shops”" in words(about)
    assert '"name": "shops"' in html.unescape(about.text)
    assert "Existing posteriors" in words(about)


def test_a_data_set_without_decisions_says_how_to_have_some(browser: TestClient, client: TestClient) -> None:
    dataset, problem = create_dataset(client), create_problem(client)
    page = look(browser, f"/backtests/new?dataset={dataset['id']}&problem={problem['id']}")
    assert "has no decision column" in words(page)
    assert 'name="judged"' not in page.text


def test_a_form_becomes_the_job_that_the_api_would_make(browser: TestClient, client: TestClient, ids: Json) -> None:
    fields = form(ids, name="quick look", judged="40", seed="3")
    address = send(browser, "/backtests", **fields).headers["location"]
    made = answered(client.get(address.replace("/backtests/", "/v1/jobs/")))
    spec = made["spec"]
    assert (made["name"], spec["splits"], spec["judged"], spec["seed"]) == ("quick look", 2, 0.4, 3)
    assert (spec["baselines"], spec["actual_decision"]) == (["constant", "season"], {"sold": "stocked"})
    assert spec["ours"][0]["predictor"]["kind"] == "linear"
    client.post(f"/v1/jobs/{made['id']}/cancel")


@pytest.mark.parametrize(
    ("field", "typed", "sentence"),
    [
        ("splits", "many", "valid integer"),
        ("splits", "1000", "less than or equal to 50"),
        ("judged", "95", "less than or equal to 0.9"),
        ("judged", "a third", "valid number"),
        ("seed", "-1", "greater than or equal to 0"),
        ("dataset", "data_00000000000000000000000000", "No data set"),
        ("problem", "", "No problem"),
        ("name", "x" * 300, "at most 200"),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(
    browser: TestClient, client: TestClient, ids: Json, field: str, typed: str, sentence: str
) -> None:
    before = len(answered(client.get("/v1/jobs"))["items"])
    page = send(browser, "/backtests", 422, **form(ids, **{field: typed}))
    assert any(sentence in one for one in wrong(page, field)), words(page)
    assert typed[:200] in page.text
    assert len(answered(client.get("/v1/jobs"))["items"]) == before


def test_a_history_that_is_too_short_says_how_much_would_do(browser: TestClient, client: TestClient) -> None:
    page = send(browser, "/backtests", 422, **form(prepared(client, days(6)), judged="50"))
    assert any("send more rows" in one for one in wrong(page, "splits"))


def test_posteriors_that_know_all_rows_are_refused_beside_the_data(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    posterior = learned(client, name="all rows", **ids)
    fields = form(ids, how="existing", posteriors=[posterior["id"]])
    page = send(browser, "/backtests", 422, **fields)
    assert any("learned from all rows" in one for one in wrong(page, "dataset"))
    assert re.search(rf'name="posteriors" value="{posterior["id"]}" checked', page.text)
    unknown = form(ids, how="existing", posteriors=["post_00000000000000000000000000"])
    nobody = send(browser, "/backtests", 422, **unknown)
    assert wrong(nobody, "ours") != []


def test_a_form_that_is_not_ours_and_a_key_that_may_not_train_are_refused(client: TestClient, ids: Json) -> None:
    assert another_browser(client).post("/backtests", data=form(ids) | {"csrf": "guessed"}).status_code == 403
    with people(client) as log_in:
        reader = log_in("read")
        assert "/backtests/new" not in look(reader, "/backtests").text
        page = look(reader, "/backtests/new")
        assert "Start the backtest" not in words(page)
        assert "scope 'train'" in words(send(reader, "/backtests", 403, **form(ids)))


def test_what_is_left_as_it_is_is_left_to_the_service() -> None:
    typed = BacktestForm(dataset="data_1", problem="prob_1", actual_decision={"sold": ""})
    assert request_of(typed, True, None) == {
        "kind": "backtest",
        "problem_id": "prob_1",
        "dataset_id": "data_1",
        "splits": 4,
    }
    typed.how, typed.posteriors, typed.splits = "existing", ["post_1"], "nonsense"
    assert request_of(typed, True, None) == {
        "kind": "backtest",
        "problem_id": "prob_1",
        "dataset_id": "data_1",
        "posteriors": ["post_1"],
    }


def test_a_job_is_learned_anew_with_its_own_choices(client: TestClient, ids: Json) -> None:
    job = create_job(client, features={"lags": [7]}, policy="map", **ids)
    like = learned_like("mine", job["spec"])
    assert like["ours"][0]["inference"]["epochs"] == 2
    assert (like["ours"][0]["policy"], like["features"]["lags"]) == ("map", [7])
    body = ids | {"kind": "backtest", "splits": 1, "baselines": []} | like
    made = answered(client.post("/v1/jobs", json=body), 202)
    client.post(f"/v1/jobs/{made['id']}/cancel")
    client.post(f"/v1/jobs/{job['id']}/cancel")


def test_columns_of_decisions_are_proposed_by_name_or_where_there_is_one() -> None:
    assert propose_columns(["a"], ["what"], {}) == {"a": "what"}
    assert propose_columns(["a", "b"], ["b", "c"], {}) == {"a": "", "b": "b"}
    assert propose_columns(["a"], ["what"], {"a": ""}) == {"a": ""}


# while it runs


def test_a_backtest_that_runs_is_followed_and_can_be_cancelled_and_run_again(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    made = answered(client.post("/v1/jobs", json=asked(ids)), 202)
    page = look(browser, f"/backtests/{made['id']}")
    assert f'data-follow="/v1/jobs/{made["id"]}/events"' in page.text
    send(browser, f"/backtests/{made['id']}/cancel")
    page = look(browser, f"/backtests/{made['id']}")
    assert "was cancelled" in words(page)
    assert "data-follow" not in page.text
    send(browser, f"/backtests/{made['id']}/retry")
    assert answered(client.get(f"/v1/jobs/{made['id']}"))["state"] == "queued"
    client.post(f"/v1/jobs/{made['id']}/cancel")
    with transaction() as session:
        failed = {"state": "failed", "error": "it took too long"}
        session.execute(sa.update(JobRow).where(JobRow.id == made["id"]).values(failed))
    assert "The backtest failed. It took too long" in words(look(browser, f"/backtests/{made['id']}"))


def test_another_kind_of_job_is_shown_where_jobs_are(browser: TestClient, client: TestClient) -> None:
    job = create_job(client)
    answer = browser.get(f"/backtests/{job['id']}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job['id']}")
    assert look(browser, "/backtests/job_00000000000000000000000000", 404)
    client.post(f"/v1/jobs/{job['id']}/cancel")


# the result


def test_the_verdict_comes_first_and_everything_else_is_there(browser: TestClient, job: Json) -> None:
    page = look(browser, f"/backtests/{job['id']}")
    said = words(page)
    summary = job["summary"]
    places = [said.index(text) for text in ("Worth using here", summary["verdict"]["text"], "Policies", "By series")]
    assert places == sorted(places)
    for note in summary["notes"]:
        assert note in said
    assert summary["intervals"] in said
    for policy in summary["policies"]:
        assert policy["words"] in said
    for format in ("csv", "parquet", "xlsx"):
        assert f"/v1/jobs/{job['id']}/result?format={format}" in page.text
    assert html.unescape(page.text).count('"kind": "backtest"') >= 1
    assert len(page.content) < 300_000


def by_the_file(client: TestClient, job: Json, other: str) -> tuple[Any, Any, Any]:
    """Days (n,), blocks of time (n,) and paired differences (n,) out of the downloaded CSV, by numpy alone."""
    costs: dict[str, dict[str, tuple[str, float]]] = {"quick": {}, other: {}}
    for line in csv.DictReader(io.StringIO(client.get(f"/v1/jobs/{job['id']}/result").text)):
        if line["policy"] in costs and line["cost"]:
            costs[line["policy"]][line["row"]] = line["time"], float(line["cost"])
    rows = sorted(costs["quick"].keys() & costs[other].keys(), key=int)
    days = np.array([costs["quick"][row][0] for row in rows], dtype="datetime64[D]")
    values = np.array([costs["quick"][row][1] - costs[other][row][1] for row in rows])
    numbers = days.astype(int)
    span = int(numbers.max() - numbers.min()) + 1
    length = min(max(2, 7, math.ceil(math.sqrt(span))), max(1, span // 8))
    return days, (numbers - numbers.min()) // length, values


@pytest.mark.parametrize("other", ["actual_decision", "constant"])
def test_the_drawn_sum_and_its_band_are_those_of_the_file(
    browser: TestClient, client: TestClient, job: Json, other: str
) -> None:
    page = look(browser, f"/backtests/{job['id']}?against={other}")
    drawn = next(chart for title, chart in charts(page).items() if title.startswith("Cumulative cost"))
    line = next(one for one in drawn["series"] if one["name"] == "cumulative difference")
    band = next(one for one in drawn["series"] if one["style"] == "band")
    days, blocks, values = by_the_file(client, job, other)
    groups = len(np.unique(blocks))
    reach = t.ppf(0.975, groups - 1)
    assert len(drawn["x"]) > 10
    for seconds, total, low, high in zip(drawn["x"], line["values"], band["values"], band["upper"], strict=True):
        inside = days <= np.datetime64(int(seconds), "s")
        sums = [(values[inside & (blocks == one)] - values.mean()).sum() for one in np.unique(blocks)]
        error = math.sqrt(groups / (groups - 1) * float(np.square(sums).sum()))
        assert total == pytest.approx(values[inside].sum())
        assert (low, high) == pytest.approx((total - reach * error, total + reach * error))


def test_readers_choose_what_is_drawn(browser: TestClient, job: Json) -> None:
    page = look(browser, f"/backtests/{job['id']}?show=quick&show=season&against=season")
    drawn = charts(page)
    names = [one["name"] for one in drawn["Cost per row over time"]["series"]]
    assert names == ["ours (quick)", "the best decision over the last eight of the same season"]
    assert any("minus the best decision over the last eight" in title for title in drawn)
    over = job["summary"]["over_time"]
    assert drawn["Cost per row over time"]["series"][0]["values"] == [line["cost"]["quick"] for line in over]
    # what is not there changes nothing
    assert look(browser, f"/backtests/{job['id']}?show=nothing&against=nobody")


def test_a_result_whose_rows_are_gone_still_tells_what_it_knows(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    job = finished(client, asked(ids, splits=1, baselines=["constant"]))
    with transaction() as session:
        session.execute(sa.delete(JobPartRow).where(JobPartRow.job_id == job["id"]))
    page = look(browser, f"/backtests/{job['id']}")
    assert "BCO_KEEP_PARTS_DAYS" in words(page)
    assert list(charts(page)) == ["Cost per row over time"]
    assert "result?format=" not in page.text


def test_rows_without_time_are_summed_up_in_their_order(browser: TestClient, client: TestClient) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    body = ids | {"kind": "backtest", "ours": [OURS], "splits": 2, "baselines": ["constant"]}
    page = look(browser, f"/backtests/{finished(client, body)['id']}")
    assert "The data has no time column" in words(page)
    drawn = charts(page)
    assert "Cost per row over time" not in drawn
    summed = next(chart for title, chart in drawn.items() if title.startswith("Cumulative cost"))
    assert (summed["time"], summed["x"][-1]) == (False, 59)


def test_posteriors_that_are_compared_are_called_by_their_names(browser: TestClient, client: TestClient) -> None:
    rows = days(80)
    ids = prepared(client, rows[:120])
    posterior = learned(client, name="the old one", **ids)
    answered(client.post(f"/v1/datasets/{ids['dataset_id']}/rows", json={"rows": rows[120:]}), 201)
    fields = form(ids, how="existing", posteriors=[posterior["id"]])
    address = send(browser, "/backtests", **fields).headers["location"]
    assert learn(client, address.removeprefix("/backtests/"))["state"] == "succeeded"
    said = words(look(browser, address))
    assert "the old one" in said
    assert f"{posterior['id']} would have cost" not in said


def test_of_many_series_the_best_and_the_worst_are_shown_first() -> None:
    def line(number: int) -> Json:
        difference = {"mean": float(number), "low": number - 1.0, "high": number + 1.0, "rows": 5}
        return {
            "series": f"shop {number}",
            "rows": 5,
            "cost": {"a": 1.0, "actual_decision": 2.0},
            "difference": difference,
        }

    policies = [{"name": "a", "words": "a"}, {"name": "actual_decision", "words": "the decisions actually taken"}]
    summary = {
        "policies": policies,
        "candidate": "a",
        "against": "actual_decision",
        "series": [line(n) for n in range(-15, 15)],
    }
    result = BacktestView(summary, None, {})
    found = result.best_and_worst
    assert found is not None
    assert [row["name"] for row in found[0]] == [f"shop {number}" for number in range(-15, -5)]
    assert [row["name"] for row in found[1]] == [f"shop {number}" for number in range(14, 4, -1)]
    few = BacktestView(summary | {"series": [line(1), line(0)]}, None, {})
    assert few.best_and_worst is None
    assert [row["name"] for row in few.series] == ["shop 0", "shop 1"]


def test_times_are_drawn_as_times_and_periods_as_numbers() -> None:
    assert parse_times(["2024-01-02", "2024-01-03"]) == ([1704153600.0, 1704240000.0], True)
    assert parse_times(["2024-01-02T06:00"]) == ([1704175200.0], True)
    assert parse_times(["4", "5"]) == ([4.0, 5.0], False)
