"""The decide page: it shows the numbers of the API and sends what the user typed."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.pages.decide.answer import EntryLimits, EntryView, counts, entries_of, limits_of
from app.pages.decide.fields import add_periods
from app.pages.decide.table import UnreadableTable, parse_table
from app.pages.render import number
from tests.support.journey import (
    FUND,
    OUTCOMES,
    QUICK,
    ROWS,
    Json,
    await_solvers,
    check_json,
    create_dataset,
    learn_posterior,
    months,
)
from tests.support.pages import token
from tests.support.polling import wait_until

PART = {"HX-Request": "true"}
SATURDAY = {"weekday": "SAT", "temperature": 21.5, "rain": 0, "promotion": 1, "holiday": 0}
INCLUDE = ["scenarios", "outcomes", "recourse"]
TRUCKS: Json = {
    "kind": "two_stage_linear",
    "decisions": [{"name": "vans", "cost": 4, "maximum": 40}],
    "outcomes": [{"name": "load", "minimum": 0}],
    "recourse": [{"name": "courier", "cost": 9}],
    "rows": [{"recourse": {"courier": 1}, "decisions": {"vans": 2}, "sense": ">=", "outcomes": {"load": 1}}],
}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    found = learn_posterior(client, seed=4, inference=QUICK | {"particles": 60, "initial_scale": 0.3})
    await_solvers(client)
    return found


@pytest.fixture(scope="module")
def shops(client: TestClient) -> Json:
    """Learn a posterior of two shops, three days ahead."""
    rows = [
        {"day": str(date(2024, 1, 1) + timedelta(n)), "shop": shop, "promotion": n % 3 // 2, "sold": 20 + n % 7 + level}
        for n in range(90)
        for shop, level in (("north", 0), ("south", 30))
    ]
    dataset = create_dataset(client, outcomes=["sold"], time="day", series=["shop"], lead=3, rows=rows)
    spec = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3, "overage_cost": 1, "integer": True}]}
    problem = check_json(client.post("/v1/problems", json={"name": "shops", "spec": spec}), 201)
    return learn_posterior(client, dataset_id=dataset["id"], problem_id=problem["id"])


def context_fields(context: Json) -> dict[str, str]:
    return {f"c.{name}": str(value) for name, value in context.items()}


def call_api(client: TestClient, posterior: Json, action: str, **body: Any) -> Json:
    return check_json(client.post(f"/v1/posteriors/{posterior['id']}/{action}", json=body))


def visible_text(page: str) -> str:
    """Return the visible text of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def figure(page: str, name: str) -> str:
    found = re.search(rf'data-figure="{name}">(.*?)</dd>', page, re.DOTALL)
    assert found is not None
    return visible_text(found[1])


def logged_calls(client: TestClient, posterior: Json) -> list[Json]:
    found: list[Json] = check_json(client.get(f"/v1/prescriptions?posterior_id={posterior['id']}"))["items"]
    return found


# the decision


def test_the_page_first_decides_for_the_last_row_of_the_history(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    answer = browser.get(f"/posteriors/{posterior['id']}/decide")
    assert answer.status_code == 200
    last = {name: value for name, value in ROWS[-1].items() if name not in OUTCOMES}
    result = call_api(client, posterior, "prescribe", contexts=[last])["prescriptions"][0]
    for name, amount in result["decision"].items():
        assert f'data-decision="{name}">{number(amount)}<' in answer.text
    assert f"<option selected>{last['weekday']}</option>" in answer.text
    assert f'value="{last["temperature"]:.12g}"' in answer.text
    assert "Not logged yet" in answer.text
    low, high = (next(c for c in posterior["columns"] if c["name"] == "temperature")[x] for x in ("minimum", "maximum"))
    assert f"{number(low)} to {number(high)} in the history" in visible_text(answer.text)


def test_the_page_shows_the_numbers_of_the_api(client: TestClient, browser: TestClient, posterior: Json) -> None:
    page = browser.get(f"/posteriors/{posterior['id']}/decide", params=context_fields(SATURDAY)).text
    body = {"contexts": [SATURDAY], "include": INCLUDE}
    answer = call_api(client, posterior, "prescribe", **body)
    result = answer["prescriptions"][0]
    assert figure(page, "expected") == number(result["expected_cost"])
    low, high = (number(result["cost_quantiles"][level]) for level in ("0.05", "0.95"))
    assert figure(page, "range") == f"{low} to {high}"
    assert figure(page, "worst") == number(result["cvar_95"])
    words = visible_text(page)
    for name, about in result["outcomes"].items():
        assert f"{100 * about['service_level']:.0f} % of cases" in words
        assert f"Mean {number(about['mean'])}; in 90 % of cases" in words
        assert f"{name} {number(result['map']['decision'][name])}" in words
    # The page shows its own API call, ready to paste.
    assert f"-d '{json.dumps(body)}'" in html.unescape(page)
    drawn = [json.loads(one) for one in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    for chart in drawn:
        assert sum(chart["series"][0]["values"]) == pytest.approx(100, abs=1e-2)


def test_risk_aversion_and_policy_are_part_of_the_address(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    query = context_fields(SATURDAY) | {"risk": "0.5", "policy": "predictive"}
    page = browser.get(f"/posteriors/{posterior['id']}/decide", params=query).text
    risk = {"cvar_weight": 0.5, "cvar_level": 0.95}
    result = call_api(client, posterior, "prescribe", contexts=[SATURDAY], policy="predictive", risk=risk)
    assert figure(page, "expected") == number(result["prescriptions"][0]["expected_cost"])
    link = re.search(r'id="link" readonly value="([^"]+)"', page)
    assert link is not None
    again = browser.get(html.unescape(link[1]).removeprefix("http://testserver")).text
    assert figure(again, "expected") == figure(page, "expected")
    assert 'value="0.5"' in again
    wrong = browser.get(f"/posteriors/{posterior['id']}/decide", params=query | {"policy": "map"})
    assert wrong.status_code == 422
    assert "A risk needs a policy that minimises it" in wrong.text


def test_aliases_and_decimal_commas_are_accepted(client: TestClient, browser: TestClient, posterior: Json) -> None:
    check_json(client.put("/v1/aliases/daily", json={"posterior_id": posterior["id"]}))
    by_alias = browser.get("/posteriors/daily/decide", params=context_fields(SATURDAY | {"temperature": "21,5"})).text
    plain = browser.get(f"/posteriors/{posterior['id']}/decide", params=context_fields(SATURDAY)).text
    assert figure(by_alias, "expected") == figure(plain, "expected")
    assert "/posteriors/daily/decide/why?" in by_alias


def test_an_unknown_posterior_answers_404(browser: TestClient) -> None:
    for part in ("", "/table", "/why?c.a=1"):
        answer = browser.get(f"/posteriors/nobody/decide{part}")
        assert answer.status_code == 404
        assert "o posterior has this id" in answer.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weekday": "SAMSTAG"}, "'weekday' was never seen in the history with this value"),
        ({"temperature": "warm"}, "'temperature' is not a number"),
        ({"temperature": ""}, "'temperature'"),
        ({"rain": "<b>1</b>"}, "'rain' is not a number"),
    ],
)
def test_invalid_fields_show_an_error_and_keep_the_input(
    browser: TestClient, posterior: Json, changes: Json, message: str
) -> None:
    fields = context_fields(SATURDAY | changes)
    answer = browser.get(f"/posteriors/{posterior['id']}/decide", params=fields)
    assert answer.status_code == 422
    name = next(iter(changes))
    place = list(SATURDAY).index(name)
    field_error = re.search(rf'id="field{place}-wrong">(.*?)</p>', answer.text)
    assert field_error is not None
    assert message in html.unescape(field_error[1])
    assert html.escape(str(changes[name])) in answer.text
    assert 'aria-invalid="true"' in answer.text
    part = browser.get(f"/posteriors/{posterior['id']}/decide", params=fields, headers=PART)
    assert part.status_code == 422
    assert f'id="field{place}-wrong" hx-swap-oob="true">' in part.text
    assert "<html" not in part.text
    sent = browser.post(
        f"/posteriors/{posterior['id']}/decide",
        data=fields | {"csrf": token(browser, f"/posteriors/{posterior['id']}/decide")},
    )
    assert sent.status_code == 422
    assert message in html.unescape(sent.text)


def test_contexts_outside_the_history_show_a_warning(browser: TestClient, posterior: Json) -> None:
    most = next(column["maximum"] for column in posterior["columns"] if column["name"] == "temperature")
    hot = browser.get(
        f"/posteriors/{posterior['id']}/decide", params=context_fields(SATURDAY | {"temperature": most + 1})
    )
    assert "Temperature is outside the range of the history" in hot.text
    far = browser.get(f"/posteriors/{posterior['id']}/decide", params=context_fields(SATURDAY | {"temperature": 900}))
    assert "far outside the history" in far.text
    assert "is outside the range of the history" not in far.text


def test_decisions_are_logged_only_when_the_form_is_submitted(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    address = f"/posteriors/{posterior['id']}/decide"
    fields = context_fields(SATURDAY)
    before = {one["id"] for one in logged_calls(client, posterior)}
    csrf = token(browser, address)
    browser.get(address, params=fields)
    browser.get(f"{address}/others", params=fields)
    for wrong in ({}, {"csrf": "0" * 64}):
        assert browser.post(address, data=fields | wrong).status_code == 403
    sent = browser.post(address, data=fields | {"csrf": csrf})
    assert sent.status_code == 303
    first = re.search(r"kept=(pres_\w+)", sent.headers["location"])
    assert first is not None
    shown = browser.get(sent.headers["location"])
    assert f'href="/log/{first[1]}"' in shown.text
    assert first[1] not in html.unescape(re.findall(r'id="link" readonly value="([^"]+)"', shown.text)[0])
    part = browser.post(address, data=fields, headers=PART | {"X-CSRF-Token": csrf})
    assert part.status_code == 200
    assert part.headers["hx-replace-url"].startswith(address)
    second = re.search(r'href="/log/(pres_\w+)"', part.text)
    assert second is not None
    wait_until(
        "both are in the log", lambda: {first[1], second[1]} <= {one["id"] for one in logged_calls(client, posterior)}
    )
    assert {one["id"] for one in logged_calls(client, posterior)} - before == {first[1], second[1]}


# what-if decisions


def post_decision(browser: TestClient, posterior: Json, part: str, **more: str) -> Any:
    address = f"/posteriors/{posterior['id']}/decide"
    data = context_fields(SATURDAY) | {"csrf": token(browser, address), "all": "1"} | more
    return browser.post(f"{address}/{part}", data=data, headers=PART)


def test_a_what_if_decision_costs_what_the_api_says(client: TestClient, browser: TestClient, posterior: Json) -> None:
    decision = {"croissants": 90, "loaves": -3}
    page = post_decision(
        browser, posterior, "evaluate", **{f"d.{name}": str(amount) for name, amount in decision.items()}
    ).text
    result = call_api(client, posterior, "evaluate", contexts=[SATURDAY], alternatives=[{"decision": decision}])
    one = result["evaluations"][0]["alternatives"][0]
    assert f"data-cost>{number(one['expected_cost'])}<" in page
    words = visible_text(page)
    assert f"costs {number(one['extra_cost'])} more than the recommended decision" in words
    assert f"a common margin. {number(one['extra_cost_standard_error'])}" in words
    assert f"{100 * one['worse_in']:.0f} %" in words
    assert "violates constraints" in words
    assert all(breach[1:] in words for breach in one["breaches"])
    for name, level in one["service_level"].items():
        assert re.search(rf"{name}: served in full \d+ % {100 * level:.0f} %", words)


def test_the_recommended_decision_costs_the_same_as_a_what_if(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    ours = call_api(client, posterior, "prescribe", contexts=[SATURDAY])["prescriptions"][0]
    entries = entries_of(ours, limits_of(posterior["problem"]))
    page = post_decision(
        browser, posterior, "evaluate", **{f"d.{entry.name}": entry.field_text for entry in entries}
    ).text
    assert "It costs the same as the recommended decision" in page
    # Entries that the form leaves out take the recommended amounts.
    fewer = post_decision(browser, posterior, "evaluate", **{"all": "", "d.loaves": entries[1].field_text}).text
    assert "It costs the same as the recommended decision" in fewer


def test_the_other_entries_can_be_optimised_again(client: TestClient, browser: TestClient, posterior: Json) -> None:
    fields = {"d.croissants": "90", "d.loaves": "1", "entry": "croissants", "rest": "free"}
    page = post_decision(browser, posterior, "evaluate", **fields).text
    tried = [{"decision": {"croissants": 90}}]
    one = call_api(client, posterior, "evaluate", contexts=[SATURDAY], alternatives=tried)["evaluations"][0]
    assert f"data-cost>{number(one['alternatives'][0]['expected_cost'])}<" in page


def test_a_decision_that_is_not_a_number_is_rejected(browser: TestClient, posterior: Json) -> None:
    answer = post_decision(browser, posterior, "evaluate", **{"d.croissants": "many", "d.loaves": "1"})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    for part in ("evaluate", "curve"):
        address = f"/posteriors/{posterior['id']}/decide/{part}"
        assert browser.post(address, data=context_fields(SATURDAY)).status_code == 403
        alone = browser.post(address, data={"csrf": token(browser, f"/posteriors/{posterior['id']}/decide")})
        assert alone.status_code == 422


def test_the_cost_curve_matches_the_api_at_each_amount(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    page = post_decision(
        browser, posterior, "curve", **{"entry": "loaves", "d.croissants": "100", "d.loaves": "70"}
    ).text
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0])
    assert data["entry"] == "loaves"
    tries = [{"decision": {"croissants": 100, "loaves": amount}} for amount in data["x"]]
    result = call_api(client, posterior, "evaluate", contexts=[SATURDAY], alternatives=tries)["evaluations"][0]
    assert data["series"][1]["values"] == [one["expected_cost"] for one in result["alternatives"]]
    assert data["series"][0]["upper"] == [one["cost_quantiles"]["0.95"] for one in result["alternatives"]]
    ours = result["ours"]["decision"]["loaves"]
    assert data["x"] == sorted(data["x"])
    assert ours in data["x"]
    assert data["marks"][0] == {"x": ours, "text": "recommended", "until": None, "colour": 2}


def test_other_policies_are_compared_over_the_same_scenarios(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    page = browser.get(
        f"/posteriors/{posterior['id']}/decide/others", params=context_fields(SATURDAY), headers=PART
    ).text
    for policy in {"averaged", "blended", "bcp", "predictive", "map"} - {posterior["policy"]}:
        decision = call_api(client, posterior, "prescribe", contexts=[SATURDAY], policy=policy)["prescriptions"][0]
        row = re.search(rf'<tr data-policy="{policy}">(.*?)</tr>', page, re.DOTALL)
        assert row is not None
        words = visible_text(row[1])
        assert all(number(amount) in words for amount in decision["decision"].values())
        assert number(decision["expected_cost"]) in words


def test_drivers_match_the_api_and_add_up(client: TestClient, browser: TestClient, posterior: Json) -> None:
    part = browser.get(f"/posteriors/{posterior['id']}/decide/why", params=context_fields(SATURDAY), headers=PART)
    result = call_api(client, posterior, "prescribe", contexts=[SATURDAY], include=["sensitivity", "neighbours"])
    one, words = result["prescriptions"][0], visible_text(part.text)
    for about in one["sensitivity"]["attribution"]["outcomes"].values():
        assert f"prediction {number(about['prediction'])}" in words
        for amount in about["contributions"].values():
            assert number(abs(amount)) in words
    assert words.count("Adds up") == 2
    moved = one["sensitivity"]["derivatives"]["temperature"]["decision"]["croissants"]
    assert f"{number(abs(moved), 3)} {'more' if moved > 0 else 'fewer'} croissants" in words
    nearest = one["neighbours"]["rows"][0]
    assert number(nearest["cost"]) in words
    whole = browser.get(f"/posteriors/{posterior['id']}/decide/why", params=context_fields(SATURDAY))
    assert "<html" in whole.text
    assert "Adds up" in whole.text


# other problems and histories


def test_the_form_starts_at_the_lead_date_and_offers_known_series(
    client: TestClient, browser: TestClient, shops: Json
) -> None:
    address = f"/posteriors/{shops['id']}/decide"
    page = browser.get(address).text
    assert 'type="date" value="2024-04-02"' in page
    assert "The history ends at 2024-03-30; you decide 3 days ahead." in page
    assert "<option selected>south</option>" in page
    context = {"day": "2024-04-01", "shop": "north", "promotion": 1}
    result = call_api(client, shops, "prescribe", contexts=[context])["prescriptions"][0]
    assert figure(browser.get(address, params=context_fields(context)).text, "expected") == number(
        result["expected_cost"]
    )
    late = browser.get(address, params=context_fields(context | {"day": "2024-04-03"}))
    assert late.status_code == 422
    assert "append newer rows" in late.text
    assert (
        browser.get(address, params=context_fields(context | {"day": "soon"})).text.count('type="text" value="soon"')
        == 1
    )


def test_drivers_work_for_a_series_column_with_two_values(browser: TestClient, shops: Json) -> None:
    context = {"day": "2024-04-01", "shop": "north", "promotion": 1}
    part = browser.get(f"/posteriors/{shops['id']}/decide/why", params=context_fields(context), headers=PART)
    assert part.status_code == 200
    assert "south" in part.text


def test_two_stage_problems_show_recourse_and_first_stage_cost(client: TestClient, browser: TestClient) -> None:
    rows = [{"rain": n % 6, "load": 20 + 3 * (n % 6) + n % 4} for n in range(60)]
    dataset = create_dataset(client, outcomes=["load"], rows=rows)
    problem = check_json(client.post("/v1/problems", json={"name": "trucks", "spec": TRUCKS}), 201)
    trucks = learn_posterior(client, dataset_id=dataset["id"], problem_id=problem["id"])
    page = browser.get(f"/posteriors/{trucks['id']}/decide", params={"c.rain": "2"}).text
    result = call_api(client, trucks, "prescribe", contexts=[{"rain": 2}], include=["recourse"])["prescriptions"][0]
    expected = result["recourse"]["expected"]["courier"]
    words = visible_text(page)
    assert f"The decision costs {number(result['recourse']['first_stage_cost'])}" in words
    assert f"courier {number(expected['amount'])} {100 * expected['used_in']:.0f} %" in words


def test_binary_decisions_are_listed_by_name(client: TestClient, browser: TestClient) -> None:
    items = [f"stall {n}" for n in range(14)]
    spec = {
        "kind": "knapsack",
        "capacities": {"van": 9},
        "items": [{"name": name, "weights": {"van": 2 + n % 3}} for n, name in enumerate(items)],
    }
    rows = [{"sun": n % 5} | {name: 5 + k + (n % 5) * (k % 2) for k, name in enumerate(items)} for n in range(40)]
    dataset = create_dataset(client, outcomes=items, rows=rows)
    problem = check_json(client.post("/v1/problems", json={"name": "market", "spec": spec}), 201)
    market = learn_posterior(client, dataset_id=dataset["id"], problem_id=problem["id"])
    page = browser.get(f"/posteriors/{market['id']}/decide", params={"c.sun": "3"}).text
    result = call_api(client, market, "prescribe", contexts=[{"sun": 3}])["prescriptions"][0]
    taken = [name for name, amount in result["decision"].items() if amount > 0.5]
    assert f'<p class="chosen">{", ".join(taken)}</p>' in page
    assert figure(page, "expected") == number(result["facts"]["expected_value"])
    # With many entries, only one slider is visible at a time.
    assert len(re.findall(r'class="try" data-entry="[^"]+" hidden', page)) == 13


def test_portfolios_show_their_expected_return(client: TestClient, browser: TestClient) -> None:
    spec = {name: value for name, value in FUND.items() if name != "target_return"}
    spec |= {"kind": "mean_variance_portfolio", "risk_aversion": 20}
    problem = check_json(client.post("/v1/problems", json={"name": "fund", "spec": spec}), 201)
    dataset = create_dataset(client, outcomes=["shares", "bonds", "gold"], rows=months())
    fund = learn_posterior(client, dataset_id=dataset["id"], problem_id=problem["id"])
    context = {"mood": 0.5, "rates": -1}
    page = browser.get(f"/posteriors/{fund['id']}/decide", params=context_fields(context)).text
    facts = call_api(client, fund, "prescribe", contexts=[context])["prescriptions"][0]["facts"]
    assert f"expected return {number(facts['expected_return'])}" in visible_text(page)
    assert 'name="rest" value="free" checked' in page
    refused = browser.get(f"/posteriors/{fund['id']}/decide", params=context_fields(context) | {"risk": "0.5"})
    assert refused.status_code == 422
    assert "expected cost only" in refused.text


def test_without_its_history_the_form_starts_at_median_values(client: TestClient, browser: TestClient) -> None:
    alone = learn_posterior(client)
    with transaction() as session:
        row = session.get_one(PosteriorRow, alone["id"])
        row.dataset_id = None
    answer = browser.get(f"/posteriors/{alone['id']}/decide")
    assert answer.status_code == 200
    assert "median values" in answer.text
    why = browser.get(f"/posteriors/{alone['id']}/decide/why", params=context_fields(SATURDAY), headers=PART)
    assert why.status_code == 200
    assert "Drivers of the prediction" in why.text


def test_any_column_and_entry_names_work_and_are_escaped(client: TestClient, browser: TestClient) -> None:
    odd, item = 'a "b" <i>/~é&=', 'rolls & <b>"x"</b>'
    rows = [{odd: n % 7, "kind": "p<q" if n % 2 else "r'\"s", item: 10 + n % 7} for n in range(60)]
    dataset = create_dataset(client, outcomes=[item], rows=rows)
    spec = {"kind": "newsvendor", "items": [{"name": item, "underage_cost": 3, "overage_cost": 1}]}
    problem = check_json(client.post("/v1/problems", json={"name": "odd", "spec": spec}), 201)
    found = learn_posterior(client, dataset_id=dataset["id"], problem_id=problem["id"])
    address = f"/posteriors/{found['id']}/decide"
    context = {odd: 3, "kind": "p<q"}
    page = browser.get(address, params=context_fields(context)).text
    assert "<i>" not in page
    assert '<b>"x"' not in page
    result = call_api(client, found, "prescribe", contexts=[context])["prescriptions"][0]
    assert figure(page, "expected") == number(result["expected_cost"])
    wrong = browser.get(address, params=context_fields(context | {odd: "much"}))
    assert "is not a number" in re.findall(r'id="field0-wrong">(.*?)</p>', wrong.text)[0]
    fields = context_fields(context) | {"csrf": token(browser, address), "all": "1", "entry": item, f"d.{item}": "5"}
    for part in ("evaluate", "curve"):
        assert browser.post(f"{address}/{part}", data=fields, headers=PART).status_code == 200
    for part in ("why", "others"):
        assert browser.get(f"{address}/{part}", params=context_fields(context), headers=PART).status_code == 200


# whole tables

TABLE = """day\tweekday\tTemperature\train\tpromotion\tholiday
=1+1\tSAT\t21,5\t0\tyes\t0
2\tSAMSTAG\t4\t0\t0\t0
3\tSUN\t4
4\tMON\t4\t6.5\t0\t0
"""


def paste_table(browser: TestClient, posterior: Json, table: str, **more: Any) -> Any:
    address = f"/posteriors/{posterior['id']}/decide/table"
    files = {"file": more.pop("file")} if "file" in more else None
    return browser.post(address, data={"csrf": token(browser, address), "table": table} | more, files=files)


def test_a_pasted_table_is_decided_row_by_row(client: TestClient, browser: TestClient, posterior: Json) -> None:
    page = paste_table(browser, posterior, TABLE)
    assert page.status_code == 200
    words = visible_text(page.text)
    assert "2 of 4 rows decided" in words
    assert "'weekday' was never seen in the history with this value" in words
    assert "This line has 3 values, but the header has 6 names" in words
    monday = SATURDAY | {"weekday": "MON", "temperature": 4, "rain": 6.5, "promotion": 0}
    for context in (SATURDAY, monday):
        result = call_api(client, posterior, "prescribe", contexts=[context])["prescriptions"][0]
        assert number(result["expected_cost"]) in words
        assert all(number(amount) in words for amount in result["decision"].values())
    assert re.search(r'href="/log/pres_\w+"', page.text)
    assert html.escape(TABLE) in page.text


def test_decisions_for_a_table_can_be_downloaded_as_csv(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    answer = paste_table(browser, posterior, TABLE, **{"as": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    result = call_api(client, posterior, "prescribe", contexts=[SATURDAY])["prescriptions"][0]
    assert rows[0]["day"] == "'=1+1"
    assert float(rows[0]["decision.croissants"]) == result["decision"]["croissants"]
    assert float(rows[0]["expected_cost"]) == result["expected_cost"]
    assert float(rows[0]["cost_quantiles.0.95"]) == result["cost_quantiles"]["0.95"]
    assert [row["status"] for row in rows] == ["optimal", "refused", "refused", "optimal"]
    assert "never seen" in rows[1]["reason"]
    assert rows[1]["expected_cost"] == ""


def test_a_table_without_valid_rows_gives_a_reason_for_each(browser: TestClient, posterior: Json) -> None:
    page = paste_table(browser, posterior, "weekday,temperature,rain,promotion,holiday\nX,1,1,1,1\nSAT,warm,1,1,1\n")
    words = visible_text(page.text)
    assert page.status_code == 200
    assert "0 of 2 rows decided" in words
    assert "'weekday' was never seen" in words
    assert "'temperature' is not a number" in words


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "Paste a header line with the column names"),
        ("weekday,rain\nSAT,1", "The header lacks temperature, promotion, holiday"),
        ("weekday\n", "Paste a header line with the column names"),
    ],
)
def test_invalid_tables_are_rejected_and_stay_in_the_form(
    browser: TestClient, posterior: Json, table: str, message: str
) -> None:
    answer = paste_table(browser, posterior, table)
    assert answer.status_code == 422
    assert message in answer.text
    assert html.escape(table.strip()) in answer.text
    file = ("x.csv", b"\xff\xfe\x00broken")
    assert "not CSV, Excel or Parquet" in paste_table(browser, posterior, "", file=file).text


def test_a_file_of_contexts_is_decided_like_a_pasted_table(browser: TestClient, posterior: Json) -> None:
    page = paste_table(browser, posterior, "", file=("days.csv", TABLE.encode()))
    assert "2 of 4 rows decided" in visible_text(page.text)


def test_a_long_table_becomes_a_job(browser: TestClient, posterior: Json) -> None:
    head, first, *_ = TABLE.splitlines()
    answer = paste_table(browser, posterior, "\n".join([head] + [first] * 501))
    assert answer.status_code == 303
    assert re.fullmatch(r"/jobs/job_\w+", answer.headers["location"])


def test_posting_a_table_needs_a_csrf_token(browser: TestClient, posterior: Json) -> None:
    assert browser.post(f"/posteriors/{posterior['id']}/decide/table", data={"table": TABLE}).status_code == 403


# keys


def test_a_read_only_key_can_decide_but_not_start_jobs(
    browser: TestClient, posterior: Json, make_key: Callable[[str], str]
) -> None:
    address = f"/posteriors/{posterior['id']}/decide"
    key = make_key("read")
    wait_until("a key is needed", lambda: browser.get(address).status_code == 303)
    assert browser.post("/login", data={"csrf": token(browser, "/login"), "key": key}).status_code == 303
    page = browser.get(address, params=context_fields(SATURDAY))
    assert page.status_code == 200
    assert "this key can view and decide" in page.text
    assert "Authorization: Bearer $BCO_API_KEY" in html.unescape(page.text)
    sent = browser.post(address, data=context_fields(SATURDAY) | {"csrf": token(browser, address)})
    assert sent.status_code == 303
    assert "run as a job" not in browser.get(f"{address}/table").text
    head, first, *_ = TABLE.splitlines()
    long = paste_table(browser, posterior, "\n".join([head] + [first] * 501))
    assert long.status_code == 403
    assert "needs a key with the scope train" in long.text
    assert "decided" in visible_text(paste_table(browser, posterior, TABLE).text)


# parts


@pytest.mark.parametrize(
    ("last", "unit", "step", "written", "expected"),
    [
        ("2024-02-28", "day", 1, "iso date", "2024-03-01"),
        ("2024-02-28", "week", 1, "dd.mm.yyyy", "2024-03-13"),
        ("2024-02-29", "month", 1, "iso date", "2024-04-30"),
        ("2024-12-15", "month", 3, "iso date", "2025-06-15"),
        ("2024-02-28T23:00:00", "hour", 1, "iso datetime", "2024-02-29T01:00"),
        ("2024-02-28T23:00:00", "minute", 15, "iso datetime", "2024-02-28T23:30"),
        ("41", "period", 2, "period", "45"),
    ],
)
def test_add_periods_finds_the_date_two_periods_later(
    last: str, unit: str, step: int, written: str, expected: str
) -> None:
    assert add_periods({"last": last, "unit": unit, "step": step, "format": written}, 2) == expected


@pytest.mark.parametrize("separator", ["\t", ";", ","])
def test_the_separator_is_taken_from_the_header_line(separator: str) -> None:
    text = separator.join(["a", '"b"', "C"]) + "\r\n" + separator.join(["1", f'"x{separator}y"', "3"])
    found = parse_table(text, {"c": "number", "b": "text"})
    assert found.context(found.rows[0], {"c": "number", "b": "text"}) == {"c": 3, "b": f"x{separator}y"}
    with pytest.raises(UnreadableTable, match="lacks d"):
        parse_table(text, {"d": "number"})


def test_histograms_are_weighted() -> None:
    x, shares = counts([0.0, 0.0, 10.0, None], [0.1, 0.2, 0.6, 0.1])
    assert (shares[0], shares[-1], sum(shares)) == pytest.approx((30, 60, 90))
    assert x[0] == pytest.approx(5 * 1 / len(x))
    assert counts([2.0, 2.0], [0.5, 0.5]) == ([2.0], [100.0])
    assert counts([None], [1.0]) == ([], [])


@pytest.mark.parametrize(
    ("amount", "rule"),
    [
        (66.06, EntryLimits(0.0, None)),
        (0.0, EntryLimits(0.0, None)),
        (1.0, EntryLimits(0.0, 1.0, 1.0)),
        (96.0, EntryLimits(0.0, None, 12.0, 9.0)),
        (-0.2, EntryLimits(-1.0, 1.0)),
        (5.0, EntryLimits()),
        (1e9, EntryLimits(0.0, 1e9)),
    ],
)
def test_a_slider_range_contains_its_amount_and_respects_the_bounds(amount: float, rule: EntryLimits) -> None:
    result = {"decision": {"a": amount}, "map": {"decision": {"a": amount}}, "facts": None}
    (entry,) = entries_of(result, {"a": rule})
    assert entry.low <= amount <= entry.high
    assert entry.low < entry.high
    assert rule.minimum is None or entry.low >= rule.minimum
    assert rule.maximum is None or entry.high <= rule.maximum
    points = entry.points()
    assert amount in points
    assert 2 <= len(points) <= 27
    assert all(point % rule.step == 0 for point in points) if rule.step else len(points) >= 25


def test_amounts_are_written_with_enough_digits_to_reproduce_them() -> None:
    assert EntryView("a", -0.0, None).field_text == "0"
    assert EntryView("a", 162.971547, None).field_text == "162.9715"
