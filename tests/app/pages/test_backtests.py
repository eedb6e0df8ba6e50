"""Pages about backtests: the list, the form, progress, and the result with its verdict first."""

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
from tests.support.backtesting import OURS, backtest_body, create_shop, days, run_backtest
from tests.support.journey import Json, check_json, create_dataset, create_job, create_problem, learn, learn_posterior
from tests.support.pages import another_browser, charts, look, people, send, words


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return create_shop(client)


@pytest.fixture(scope="module")
def job(client: TestClient, ids: Json) -> Json:
    return run_backtest(client, backtest_body(ids, name="two shops"))


def form(ids: Json, **changes: Any) -> Json:
    """Return the form fields of a quick look."""
    fields = {"sent": "yes", "dataset": ids["dataset_id"], "problem": ids["problem_id"], "how": "quick", "splits": "2"}
    return fields | {"baselines": ["constant", "season"], "actual_decision.sold": "stocked", "seed": "0"} | changes


def field_errors(page: Any, field: str) -> list[str]:
    """Return the error messages of a field."""
    return [html.unescape(text) for text in re.findall(rf'<p class="wrong" id="{field}-wrong">(.*?)</p>', page.text)]


# lists


def test_an_empty_workspace_explains_what_a_backtest_needs(browser: TestClient) -> None:
    shown = words(look(browser, "/backtests"))
    assert "needs both" in shown
    assert "needs both" in words(look(browser, "/backtests/new"))


def test_the_list_shows_verdicts_and_states(browser: TestClient, client: TestClient, job: Json) -> None:
    waiting = check_json(client.post("/v1/jobs", json=backtest_body(create_shop(client), name="next week")), 202)
    page = look(browser, "/backtests")
    shown = words(page)
    assert "two shops ✓ worth using" in shown
    assert "next week queued" in shown
    assert f'href="/backtests/{job["id"]}"' in page.text
    client.post(f"/v1/jobs/{waiting['id']}/cancel")


# the form


def test_the_form_suggests_the_latest_posterior_and_shows_the_api_call(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    posterior = learn_posterior(client, name="shops", **ids)
    page = look(browser, "/backtests/new")
    for id_ in ids.values():
        assert re.search(rf'<option value="{id_}" selected>', page.text)
    assert "<option selected>stocked</option>" in re.sub(r"\s+>", ">", page.text)
    for name in RULES:
        assert re.search(rf'name="baselines" value="{name}" checked', page.text)
    assert "curl" in page.text
    like_page = look(browser, f"/backtests/new?posterior={posterior['id']}&how=like")
    assert "Train like “shops”" in words(like_page)
    assert '"name": "shops"' in html.unescape(like_page.text)
    assert "Existing posteriors" in words(like_page)


def test_a_data_set_without_decision_columns_is_explained(browser: TestClient, client: TestClient) -> None:
    dataset, problem = create_dataset(client), create_problem(client)
    page = look(browser, f"/backtests/new?dataset={dataset['id']}&problem={problem['id']}")
    assert "has no decision column" in words(page)
    assert 'name="judged"' not in page.text


def test_the_form_creates_the_same_job_as_the_api(browser: TestClient, client: TestClient, ids: Json) -> None:
    fields = form(ids, name="quick look", judged="40", seed="3")
    address = send(browser, "/backtests", **fields).headers["location"]
    created = check_json(client.get(address.replace("/backtests/", "/v1/jobs/")))
    spec = created["spec"]
    assert (created["name"], spec["splits"], spec["judged"], spec["seed"]) == ("quick look", 2, 0.4, 3)
    assert (spec["baselines"], spec["actual_decision"]) == (["constant", "season"], {"sold": "stocked"})
    assert spec["ours"][0]["predictor"]["kind"] == "linear"
    client.post(f"/v1/jobs/{created['id']}/cancel")


@pytest.mark.parametrize(
    ("field", "typed", "message"),
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
def test_invalid_fields_show_an_error_and_keep_the_input(
    browser: TestClient, client: TestClient, ids: Json, field: str, typed: str, message: str
) -> None:
    before = len(check_json(client.get("/v1/jobs"))["items"])
    page = send(browser, "/backtests", 422, **form(ids, **{field: typed}))
    assert any(message in one for one in field_errors(page, field)), words(page)
    assert typed[:200] in page.text
    assert len(check_json(client.get("/v1/jobs"))["items"]) == before


def test_a_short_history_asks_for_more_rows(browser: TestClient, client: TestClient) -> None:
    page = send(browser, "/backtests", 422, **form(create_shop(client, days(6)), judged="50"))
    assert any("send more rows" in one for one in field_errors(page, "splits"))


def test_posteriors_trained_on_all_rows_are_rejected_at_the_data_field(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    posterior = learn_posterior(client, name="all rows", **ids)
    fields = form(ids, how="existing", posteriors=[posterior["id"]])
    page = send(browser, "/backtests", 422, **fields)
    assert any("learned from all rows" in one for one in field_errors(page, "dataset"))
    assert re.search(rf'name="posteriors" value="{posterior["id"]}" checked', page.text)
    unknown = form(ids, how="existing", posteriors=["post_00000000000000000000000000"])
    unknown_page = send(browser, "/backtests", 422, **unknown)
    assert field_errors(unknown_page, "ours") != []


def test_forged_forms_and_keys_without_train_scope_are_rejected(client: TestClient, ids: Json) -> None:
    assert another_browser(client).post("/backtests", data=form(ids) | {"csrf": "guessed"}).status_code == 403
    with people(client) as log_in:
        reader = log_in("read")
        assert "/backtests/new" not in look(reader, "/backtests").text
        page = look(reader, "/backtests/new")
        assert "Start the backtest" not in words(page)
        assert "scope 'train'" in words(send(reader, "/backtests", 403, **form(ids)))


def test_empty_and_unused_fields_are_omitted_from_the_request() -> None:
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


def test_a_backtest_can_reuse_the_options_of_a_learn_job(client: TestClient, ids: Json) -> None:
    job = create_job(client, features={"lags": [7]}, policy="map", **ids)
    like = learned_like("mine", job["spec"])
    assert like["ours"][0]["inference"]["epochs"] == 2
    assert (like["ours"][0]["policy"], like["features"]["lags"]) == ("map", [7])
    body = ids | {"kind": "backtest", "splits": 1, "baselines": []} | like
    created = check_json(client.post("/v1/jobs", json=body), 202)
    client.post(f"/v1/jobs/{created['id']}/cancel")
    client.post(f"/v1/jobs/{job['id']}/cancel")


def test_decision_columns_are_suggested_by_name_or_if_there_is_only_one() -> None:
    assert propose_columns(["a"], ["what"], {}) == {"a": "what"}
    assert propose_columns(["a", "b"], ["b", "c"], {}) == {"a": "", "b": "b"}
    assert propose_columns(["a"], ["what"], {"a": ""}) == {"a": ""}


# progress


def test_a_running_backtest_is_followed_cancelled_and_retried(
    browser: TestClient, client: TestClient, ids: Json
) -> None:
    created = check_json(client.post("/v1/jobs", json=backtest_body(ids)), 202)
    page = look(browser, f"/backtests/{created['id']}")
    assert f'data-follow="/v1/jobs/{created["id"]}/events"' in page.text
    send(browser, f"/backtests/{created['id']}/cancel")
    page = look(browser, f"/backtests/{created['id']}")
    assert "was cancelled" in words(page)
    assert "data-follow" not in page.text
    send(browser, f"/backtests/{created['id']}/retry")
    assert check_json(client.get(f"/v1/jobs/{created['id']}"))["state"] == "queued"
    client.post(f"/v1/jobs/{created['id']}/cancel")
    with transaction() as session:
        failed = {"state": "failed", "error": "it took too long"}
        session.execute(sa.update(JobRow).where(JobRow.id == created["id"]).values(failed))
    assert "The backtest failed. It took too long" in words(look(browser, f"/backtests/{created['id']}"))


def test_other_jobs_redirect_to_the_job_page(browser: TestClient, client: TestClient) -> None:
    job = create_job(client)
    answer = browser.get(f"/backtests/{job['id']}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job['id']}")
    assert look(browser, "/backtests/job_00000000000000000000000000", 404)
    client.post(f"/v1/jobs/{job['id']}/cancel")


# the result


def test_the_result_shows_the_verdict_first_then_policies_and_series(browser: TestClient, job: Json) -> None:
    page = look(browser, f"/backtests/{job['id']}")
    shown = words(page)
    summary = job["summary"]
    places = [shown.index(text) for text in ("Worth using here", summary["verdict"]["text"], "Policies", "By series")]
    assert places == sorted(places)
    for note in summary["notes"]:
        assert note in shown
    assert summary["intervals"] in shown
    for policy in summary["policies"]:
        assert policy["words"] in shown
    for format in ("csv", "parquet", "xlsx"):
        assert f"/v1/jobs/{job['id']}/result?format={format}" in page.text
    assert html.unescape(page.text).count('"kind": "backtest"') >= 1
    assert len(page.content) < 300_000


def differences_from_csv(client: TestClient, job: Json, other: str) -> tuple[Any, Any, Any]:
    """Compute days (n,), time blocks (n,) and paired differences (n,) from the downloaded CSV with numpy alone."""
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
def test_the_cumulative_chart_matches_the_downloaded_file(
    browser: TestClient, client: TestClient, job: Json, other: str
) -> None:
    page = look(browser, f"/backtests/{job['id']}?against={other}")
    drawn = next(chart for title, chart in charts(page).items() if title.startswith("Cumulative cost"))
    line = next(one for one in drawn["series"] if one["name"] == "cumulative difference")
    band = next(one for one in drawn["series"] if one["style"] == "band")
    days, blocks, values = differences_from_csv(client, job, other)
    groups = len(np.unique(blocks))
    reach = t.ppf(0.975, groups - 1)
    assert len(drawn["x"]) > 10
    for seconds, total, low, high in zip(drawn["x"], line["values"], band["values"], band["upper"], strict=True):
        inside = days <= np.datetime64(int(seconds), "s")
        sums = [(values[inside & (blocks == one)] - values.mean()).sum() for one in np.unique(blocks)]
        error = math.sqrt(groups / (groups - 1) * float(np.square(sums).sum()))
        assert total == pytest.approx(values[inside].sum())
        assert (low, high) == pytest.approx((total - reach * error, total + reach * error))


def test_query_parameters_select_the_policies_in_the_charts(browser: TestClient, job: Json) -> None:
    page = look(browser, f"/backtests/{job['id']}?show=quick&show=season&against=season")
    drawn = charts(page)
    names = [one["name"] for one in drawn["Cost per row over time"]["series"]]
    assert names == ["ours (quick)", "the best decision over the last eight of the same season"]
    assert any("minus the best decision over the last eight" in title for title in drawn)
    over = job["summary"]["over_time"]
    assert drawn["Cost per row over time"]["series"][0]["values"] == [line["cost"]["quick"] for line in over]
    # unknown names are ignored
    assert look(browser, f"/backtests/{job['id']}?show=nothing&against=nobody")


def test_a_result_without_its_rows_still_shows_the_summary(browser: TestClient, client: TestClient, ids: Json) -> None:
    job = run_backtest(client, backtest_body(ids, splits=1, baselines=["constant"]))
    with transaction() as session:
        session.execute(sa.delete(JobPartRow).where(JobPartRow.job_id == job["id"]))
    page = look(browser, f"/backtests/{job['id']}")
    assert "BCO_KEEP_PARTS_DAYS" in words(page)
    assert list(charts(page)) == ["Cost per row over time"]
    assert "result?format=" not in page.text


def test_rows_without_time_are_accumulated_in_row_order(browser: TestClient, client: TestClient) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    body = ids | {"kind": "backtest", "ours": [OURS], "splits": 2, "baselines": ["constant"]}
    page = look(browser, f"/backtests/{run_backtest(client, body)['id']}")
    assert "The data has no time column" in words(page)
    drawn = charts(page)
    assert "Cost per row over time" not in drawn
    summed = next(chart for title, chart in drawn.items() if title.startswith("Cumulative cost"))
    assert (summed["time"], summed["x"][-1]) == (False, 59)


def test_compared_posteriors_are_shown_by_name(browser: TestClient, client: TestClient) -> None:
    rows = days(80)
    ids = create_shop(client, rows[:120])
    posterior = learn_posterior(client, name="the old one", **ids)
    check_json(client.post(f"/v1/datasets/{ids['dataset_id']}/rows", json={"rows": rows[120:]}), 201)
    fields = form(ids, how="existing", posteriors=[posterior["id"]])
    address = send(browser, "/backtests", **fields).headers["location"]
    assert learn(client, address.removeprefix("/backtests/"))["state"] == "succeeded"
    shown = words(look(browser, address))
    assert "the old one" in shown
    assert f"{posterior['id']} would have cost" not in shown


def test_the_best_and_worst_of_many_series_are_shown_first() -> None:
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


def test_times_parse_as_timestamps_and_periods_as_numbers() -> None:
    assert parse_times(["2024-01-02", "2024-01-03"]) == ([1704153600.0, 1704240000.0], True)
    assert parse_times(["2024-01-02T06:00"]) == ([1704175200.0], True)
    assert parse_times(["4", "5"]) == ([4.0, 5.0], False)
