"""The page of a decision: what it shows is what the API answers, what it sends is what somebody typed."""

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
    answered,
    await_solvers,
    create_dataset,
    learned,
    months,
)
from tests.support.pages import token
from tests.support.patience import wait_until

PART = {"HX-Request": "true"}
SATURDAY = {"weekday": "SAT", "temperature": 21.5, "rain": 0, "promotion": 1, "holiday": 0}
OPENED = ["scenarios", "outcomes", "recourse"]
TRUCKS: Json = {
    "kind": "two_stage_linear",
    "decisions": [{"name": "vans", "cost": 4, "maximum": 40}],
    "outcomes": [{"name": "load", "minimum": 0}],
    "recourse": [{"name": "courier", "cost": 9}],
    "rows": [{"recourse": {"courier": 1}, "decisions": {"vans": 2}, "sense": ">=", "outcomes": {"load": 1}}],
}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    found = learned(client, seed=4, inference=QUICK | {"particles": 60, "initial_scale": 0.3})
    await_solvers(client)
    return found


@pytest.fixture(scope="module")
def shops(client: TestClient) -> Json:
    """Two shops, decided for three days ahead."""
    rows = [
        {"day": str(date(2024, 1, 1) + timedelta(n)), "shop": shop, "promotion": n % 3 // 2, "sold": 20 + n % 7 + level}
        for n in range(90)
        for shop, level in (("north", 0), ("south", 30))
    ]
    dataset = create_dataset(client, outcomes=["sold"], time="day", series=["shop"], lead=3, rows=rows)
    spec = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3, "overage_cost": 1, "integer": True}]}
    problem = answered(client.post("/v1/problems", json={"name": "shops", "spec": spec}), 201)
    return learned(client, dataset_id=dataset["id"], problem_id=problem["id"])


def typed(context: Json) -> dict[str, str]:
    return {f"c.{name}": str(value) for name, value in context.items()}


def answer_of(client: TestClient, posterior: Json, what: str, **body: Any) -> Json:
    return answered(client.post(f"/v1/posteriors/{posterior['id']}/{what}", json=body))


def text_of(page: str) -> str:
    """What somebody reads."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def figure(page: str, name: str) -> str:
    found = re.search(rf'data-figure="{name}">(.*?)</dd>', page, re.DOTALL)
    assert found is not None
    return text_of(found[1])


def logged(client: TestClient, posterior: Json) -> list[Json]:
    found: list[Json] = answered(client.get(f"/v1/prescriptions?posterior_id={posterior['id']}"))["items"]
    return found


# the decision


def test_at_first_it_decides_for_the_last_row_of_the_history(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    answer = browser.get(f"/posteriors/{posterior['id']}/decide")
    assert answer.status_code == 200
    last = {name: value for name, value in ROWS[-1].items() if name not in OUTCOMES}
    told = answer_of(client, posterior, "prescribe", contexts=[last])["prescriptions"][0]
    for name, amount in told["decision"].items():
        assert f'data-decision="{name}">{number(amount)}<' in answer.text
    assert f"<option selected>{last['weekday']}</option>" in answer.text
    assert f'value="{last["temperature"]:.12g}"' in answer.text
    assert "Not logged yet" in answer.text
    low, high = (next(c for c in posterior["columns"] if c["name"] == "temperature")[x] for x in ("minimum", "maximum"))
    assert f"{number(low)} to {number(high)} in the history" in text_of(answer.text)


def test_the_numbers_on_the_page_are_those_of_the_api(client: TestClient, browser: TestClient, posterior: Json) -> None:
    page = browser.get(f"/posteriors/{posterior['id']}/decide", params=typed(SATURDAY)).text
    body = {"contexts": [SATURDAY], "include": OPENED}
    answer = answer_of(client, posterior, "prescribe", **body)
    told = answer["prescriptions"][0]
    assert figure(page, "expected") == number(told["expected_cost"])
    low, high = (number(told["cost_quantiles"][level]) for level in ("0.05", "0.95"))
    assert figure(page, "range") == f"{low} to {high}"
    assert figure(page, "worst") == number(told["cvar_95"])
    words = text_of(page)
    for name, about in told["outcomes"].items():
        assert f"{100 * about['service_level']:.0f} % of cases" in words
        assert f"Mean {number(about['mean'])}; in 90 % of cases" in words
        assert f"{name} {number(told['map']['decision'][name])}" in words
    # What the page asked for is shown, to be pasted.
    assert f"-d '{json.dumps(body)}'" in html.unescape(page)
    drawn = [json.loads(one) for one in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    for chart in drawn:
        assert sum(chart["series"][0]["values"]) == pytest.approx(100, abs=1e-2)


def test_risk_aversion_and_another_policy_are_part_of_the_address(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    asked = typed(SATURDAY) | {"risk": "0.5", "policy": "predictive"}
    page = browser.get(f"/posteriors/{posterior['id']}/decide", params=asked).text
    risk = {"cvar_weight": 0.5, "cvar_level": 0.95}
    told = answer_of(client, posterior, "prescribe", contexts=[SATURDAY], policy="predictive", risk=risk)
    assert figure(page, "expected") == number(told["prescriptions"][0]["expected_cost"])
    link = re.search(r'id="link" readonly value="([^"]+)"', page)
    assert link is not None
    again = browser.get(html.unescape(link[1]).removeprefix("http://testserver")).text
    assert figure(again, "expected") == figure(page, "expected")
    assert 'value="0.5"' in again
    wrong = browser.get(f"/posteriors/{posterior['id']}/decide", params=asked | {"policy": "map"})
    assert wrong.status_code == 422
    assert "A risk needs a policy that minimises it" in wrong.text


def test_an_alias_and_a_comma_for_decimals_do_as_well(client: TestClient, browser: TestClient, posterior: Json) -> None:
    answered(client.put("/v1/aliases/daily", json={"posterior_id": posterior["id"]}))
    by_alias = browser.get("/posteriors/daily/decide", params=typed(SATURDAY | {"temperature": "21,5"})).text
    plain = browser.get(f"/posteriors/{posterior['id']}/decide", params=typed(SATURDAY)).text
    assert figure(by_alias, "expected") == figure(plain, "expected")
    assert "/posteriors/daily/decide/why?" in by_alias


def test_a_posterior_that_is_not_there_has_a_page_that_says_so(browser: TestClient) -> None:
    for part in ("", "/table", "/why?c.a=1"):
        answer = browser.get(f"/posteriors/nobody/decide{part}")
        assert answer.status_code == 404
        assert "o posterior has this id" in answer.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weekday": "SAMSTAG"}, "'weekday' was never seen in the history with this value"),
        ({"temperature": "warm"}, "'temperature' is not a number"),
        ({"temperature": ""}, "'temperature'"),
        ({"rain": "<b>1</b>"}, "'rain' is not a number"),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_nothing_is_lost(
    browser: TestClient, posterior: Json, changes: Json, said: str
) -> None:
    given = typed(SATURDAY | changes)
    answer = browser.get(f"/posteriors/{posterior['id']}/decide", params=given)
    assert answer.status_code == 422
    name = next(iter(changes))
    place = list(SATURDAY).index(name)
    beside = re.search(rf'id="field{place}-wrong">(.*?)</p>', answer.text)
    assert beside is not None
    assert said in html.unescape(beside[1])
    assert html.escape(str(changes[name])) in answer.text
    assert 'aria-invalid="true"' in answer.text
    part = browser.get(f"/posteriors/{posterior['id']}/decide", params=given, headers=PART)
    assert part.status_code == 422
    assert f'id="field{place}-wrong" hx-swap-oob="true">' in part.text
    assert "<html" not in part.text
    sent = browser.post(
        f"/posteriors/{posterior['id']}/decide",
        data=given | {"csrf": token(browser, f"/posteriors/{posterior['id']}/decide")},
    )
    assert sent.status_code == 422
    assert said in html.unescape(sent.text)


def test_what_lies_beyond_the_history_is_said(browser: TestClient, posterior: Json) -> None:
    most = next(column["maximum"] for column in posterior["columns"] if column["name"] == "temperature")
    hot = browser.get(f"/posteriors/{posterior['id']}/decide", params=typed(SATURDAY | {"temperature": most + 1}))
    assert "Temperature is outside the range of the history" in hot.text
    far = browser.get(f"/posteriors/{posterior['id']}/decide", params=typed(SATURDAY | {"temperature": 900}))
    assert "far outside the history" in far.text
    assert "is outside the range of the history" not in far.text


def test_only_who_presses_the_button_has_a_decision_kept(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    address = f"/posteriors/{posterior['id']}/decide"
    given = typed(SATURDAY)
    before = {one["id"] for one in logged(client, posterior)}
    mine = token(browser, address)
    browser.get(address, params=given)
    browser.get(f"{address}/others", params=given)
    for wrong in ({}, {"csrf": "0" * 64}):
        assert browser.post(address, data=given | wrong).status_code == 403
    sent = browser.post(address, data=given | {"csrf": mine})
    assert sent.status_code == 303
    kept = re.search(r"kept=(pres_\w+)", sent.headers["location"])
    assert kept is not None
    shown = browser.get(sent.headers["location"])
    assert f'href="/log/{kept[1]}"' in shown.text
    assert kept[1] not in html.unescape(re.findall(r'id="link" readonly value="([^"]+)"', shown.text)[0])
    part = browser.post(address, data=given, headers=PART | {"X-CSRF-Token": mine})
    assert part.status_code == 200
    assert part.headers["hx-replace-url"].startswith(address)
    second = re.search(r'href="/log/(pres_\w+)"', part.text)
    assert second is not None
    wait_until("both are in the log", lambda: {kept[1], second[1]} <= {one["id"] for one in logged(client, posterior)})
    assert {one["id"] for one in logged(client, posterior)} - before == {kept[1], second[1]}


# decisions of one's own


def mine(browser: TestClient, posterior: Json, part: str, **more: str) -> Any:
    address = f"/posteriors/{posterior['id']}/decide"
    data = typed(SATURDAY) | {"csrf": token(browser, address), "all": "1"} | more
    return browser.post(f"{address}/{part}", data=data, headers=PART)


def test_a_decision_of_ones_own_is_judged_as_the_api_judges_it(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    decision = {"croissants": 90, "loaves": -3}
    page = mine(browser, posterior, "evaluate", **{f"d.{name}": str(amount) for name, amount in decision.items()}).text
    told = answer_of(client, posterior, "evaluate", contexts=[SATURDAY], alternatives=[{"decision": decision}])
    one = told["evaluations"][0]["alternatives"][0]
    assert f"data-cost>{number(one['expected_cost'])}<" in page
    words = text_of(page)
    assert f"costs {number(one['extra_cost'])} more than the recommended decision" in words
    assert f"a common margin. {number(one['extra_cost_standard_error'])}" in words
    assert f"{100 * one['worse_in']:.0f} %" in words
    assert "violates constraints" in words
    assert all(breach[1:] in words for breach in one["breaches"])
    for name, level in one["service_level"].items():
        assert re.search(rf"{name}: served in full \d+ % {100 * level:.0f} %", words)


def test_our_own_decision_costs_what_ours_costs(client: TestClient, browser: TestClient, posterior: Json) -> None:
    ours = answer_of(client, posterior, "prescribe", contexts=[SATURDAY])["prescriptions"][0]
    entries = entries_of(ours, limits_of(posterior["problem"]))
    page = mine(browser, posterior, "evaluate", **{f"d.{entry.name}": entry.field_text for entry in entries}).text
    assert "It costs the same as the recommended decision" in page
    # What a form leaves out is ours.
    fewer = mine(browser, posterior, "evaluate", **{"all": "", "d.loaves": entries[1].field_text}).text
    assert "It costs the same as the recommended decision" in fewer


def test_the_rest_can_be_chosen_anew(client: TestClient, browser: TestClient, posterior: Json) -> None:
    given = {"d.croissants": "90", "d.loaves": "1", "entry": "croissants", "rest": "free"}
    page = mine(browser, posterior, "evaluate", **given).text
    tried = [{"decision": {"croissants": 90}}]
    one = answer_of(client, posterior, "evaluate", contexts=[SATURDAY], alternatives=tried)["evaluations"][0]
    assert f"data-cost>{number(one['alternatives'][0]['expected_cost'])}<" in page


def test_a_decision_that_is_no_number_is_refused_in_words(browser: TestClient, posterior: Json) -> None:
    answer = mine(browser, posterior, "evaluate", **{"d.croissants": "many", "d.loaves": "1"})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    for part in ("evaluate", "curve"):
        address = f"/posteriors/{posterior['id']}/decide/{part}"
        assert browser.post(address, data=typed(SATURDAY)).status_code == 403
        alone = browser.post(address, data={"csrf": token(browser, f"/posteriors/{posterior['id']}/decide")})
        assert alone.status_code == 422


def test_the_curve_is_what_the_api_says_of_each_amount(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    page = mine(browser, posterior, "curve", **{"entry": "loaves", "d.croissants": "100", "d.loaves": "70"}).text
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0])
    assert data["entry"] == "loaves"
    tries = [{"decision": {"croissants": 100, "loaves": amount}} for amount in data["x"]]
    told = answer_of(client, posterior, "evaluate", contexts=[SATURDAY], alternatives=tries)["evaluations"][0]
    assert data["series"][1]["values"] == [one["expected_cost"] for one in told["alternatives"]]
    assert data["series"][0]["upper"] == [one["cost_quantiles"]["0.95"] for one in told["alternatives"]]
    ours = told["ours"]["decision"]["loaves"]
    assert data["x"] == sorted(data["x"])
    assert ours in data["x"]
    assert data["marks"][0] == {"x": ours, "text": "recommended", "until": None, "colour": 2}


def test_other_policies_are_compared_over_the_same_scenarios(
    client: TestClient, browser: TestClient, posterior: Json
) -> None:
    page = browser.get(f"/posteriors/{posterior['id']}/decide/others", params=typed(SATURDAY), headers=PART).text
    for policy in {"averaged", "blended", "bcp", "predictive", "map"} - {posterior["policy"]}:
        decision = answer_of(client, posterior, "prescribe", contexts=[SATURDAY], policy=policy)["prescriptions"][0]
        row = re.search(rf'<tr data-policy="{policy}">(.*?)</tr>', page, re.DOTALL)
        assert row is not None
        words = text_of(row[1])
        assert all(number(amount) in words for amount in decision["decision"].values())
        assert number(decision["expected_cost"]) in words


def test_reasons_are_those_of_the_api_and_add_up(client: TestClient, browser: TestClient, posterior: Json) -> None:
    part = browser.get(f"/posteriors/{posterior['id']}/decide/why", params=typed(SATURDAY), headers=PART)
    told = answer_of(client, posterior, "prescribe", contexts=[SATURDAY], include=["sensitivity", "neighbours"])
    one, words = told["prescriptions"][0], text_of(part.text)
    for about in one["sensitivity"]["attribution"]["outcomes"].values():
        assert f"prediction {number(about['prediction'])}" in words
        for amount in about["contributions"].values():
            assert number(abs(amount)) in words
    assert words.count("Adds up") == 2
    moved = one["sensitivity"]["derivatives"]["temperature"]["decision"]["croissants"]
    assert f"{number(abs(moved), 3)} {'more' if moved > 0 else 'fewer'} croissants" in words
    nearest = one["neighbours"]["rows"][0]
    assert number(nearest["cost"]) in words
    whole = browser.get(f"/posteriors/{posterior['id']}/decide/why", params=typed(SATURDAY))
    assert "<html" in whole.text
    assert "Adds up" in whole.text


# other problems and histories


def test_a_date_is_the_first_that_is_not_known_yet_and_keys_are_chosen(
    client: TestClient, browser: TestClient, shops: Json
) -> None:
    address = f"/posteriors/{shops['id']}/decide"
    page = browser.get(address).text
    assert 'type="date" value="2024-04-02"' in page
    assert "The history ends at 2024-03-30; you decide 3 days ahead." in page
    assert "<option selected>south</option>" in page
    context = {"day": "2024-04-01", "shop": "north", "promotion": 1}
    told = answer_of(client, shops, "prescribe", contexts=[context])["prescriptions"][0]
    assert figure(browser.get(address, params=typed(context)).text, "expected") == number(told["expected_cost"])
    late = browser.get(address, params=typed(context | {"day": "2024-04-03"}))
    assert late.status_code == 422
    assert "append newer rows" in late.text
    assert browser.get(address, params=typed(context | {"day": "soon"})).text.count('type="text" value="soon"') == 1


def test_reasons_are_told_where_a_key_has_two_values(browser: TestClient, shops: Json) -> None:
    context = {"day": "2024-04-01", "shop": "north", "promotion": 1}
    part = browser.get(f"/posteriors/{shops['id']}/decide/why", params=typed(context), headers=PART)
    assert part.status_code == 200
    assert "south" in part.text


def test_later_steps_and_their_costs_are_told_of_two_stage_problems(client: TestClient, browser: TestClient) -> None:
    rows = [{"rain": n % 6, "load": 20 + 3 * (n % 6) + n % 4} for n in range(60)]
    dataset = create_dataset(client, outcomes=["load"], rows=rows)
    problem = answered(client.post("/v1/problems", json={"name": "trucks", "spec": TRUCKS}), 201)
    trucks = learned(client, dataset_id=dataset["id"], problem_id=problem["id"])
    page = browser.get(f"/posteriors/{trucks['id']}/decide", params={"c.rain": "2"}).text
    told = answer_of(client, trucks, "prescribe", contexts=[{"rain": 2}], include=["recourse"])["prescriptions"][0]
    expected = told["recourse"]["expected"]["courier"]
    words = text_of(page)
    assert f"The decision costs {number(told['recourse']['first_stage_cost'])}" in words
    assert f"courier {number(expected['amount'])} {100 * expected['used_in']:.0f} %" in words


def test_what_is_chosen_is_named_where_everything_is_a_yes_or_no(client: TestClient, browser: TestClient) -> None:
    items = [f"stall {n}" for n in range(14)]
    spec = {
        "kind": "knapsack",
        "capacities": {"van": 9},
        "items": [{"name": name, "weights": {"van": 2 + n % 3}} for n, name in enumerate(items)],
    }
    rows = [{"sun": n % 5} | {name: 5 + k + (n % 5) * (k % 2) for k, name in enumerate(items)} for n in range(40)]
    dataset = create_dataset(client, outcomes=items, rows=rows)
    problem = answered(client.post("/v1/problems", json={"name": "market", "spec": spec}), 201)
    market = learned(client, dataset_id=dataset["id"], problem_id=problem["id"])
    page = browser.get(f"/posteriors/{market['id']}/decide", params={"c.sun": "3"}).text
    told = answer_of(client, market, "prescribe", contexts=[{"sun": 3}])["prescriptions"][0]
    taken = [name for name, amount in told["decision"].items() if amount > 0.5]
    assert f'<p class="chosen">{", ".join(taken)}</p>' in page
    assert figure(page, "expected") == number(told["facts"]["expected_value"])
    # One of many entries has a handle at a time.
    assert len(re.findall(r'class="try" data-entry="[^"]+" hidden', page)) == 13


def test_portfolios_say_what_else_there_is_to_know_of_them(client: TestClient, browser: TestClient) -> None:
    spec = {name: value for name, value in FUND.items() if name != "target_return"}
    spec |= {"kind": "mean_variance_portfolio", "risk_aversion": 20}
    problem = answered(client.post("/v1/problems", json={"name": "fund", "spec": spec}), 201)
    dataset = create_dataset(client, outcomes=["shares", "bonds", "gold"], rows=months())
    fund = learned(client, dataset_id=dataset["id"], problem_id=problem["id"])
    context = {"mood": 0.5, "rates": -1}
    page = browser.get(f"/posteriors/{fund['id']}/decide", params=typed(context)).text
    facts = answer_of(client, fund, "prescribe", contexts=[context])["prescriptions"][0]["facts"]
    assert f"expected return {number(facts['expected_return'])}" in text_of(page)
    assert 'name="rest" value="free" checked' in page
    refused = browser.get(f"/posteriors/{fund['id']}/decide", params=typed(context) | {"risk": "0.5"})
    assert refused.status_code == 422
    assert "expected cost only" in refused.text


def test_without_its_history_a_posterior_is_asked_with_the_middle_of_it(
    client: TestClient, browser: TestClient
) -> None:
    alone = learned(client)
    with transaction() as session:
        row = session.get_one(PosteriorRow, alone["id"])
        row.dataset_id = None
    answer = browser.get(f"/posteriors/{alone['id']}/decide")
    assert answer.status_code == 200
    assert "median values" in answer.text
    why = browser.get(f"/posteriors/{alone['id']}/decide/why", params=typed(SATURDAY), headers=PART)
    assert why.status_code == 200
    assert "Drivers of the prediction" in why.text


def test_columns_and_entries_may_be_called_anything(client: TestClient, browser: TestClient) -> None:
    odd, item = 'a "b" <i>/~é&=', 'rolls & <b>"x"</b>'
    rows = [{odd: n % 7, "kind": "p<q" if n % 2 else "r'\"s", item: 10 + n % 7} for n in range(60)]
    dataset = create_dataset(client, outcomes=[item], rows=rows)
    spec = {"kind": "newsvendor", "items": [{"name": item, "underage_cost": 3, "overage_cost": 1}]}
    problem = answered(client.post("/v1/problems", json={"name": "odd", "spec": spec}), 201)
    found = learned(client, dataset_id=dataset["id"], problem_id=problem["id"])
    address = f"/posteriors/{found['id']}/decide"
    context = {odd: 3, "kind": "p<q"}
    page = browser.get(address, params=typed(context)).text
    assert "<i>" not in page
    assert '<b>"x"' not in page
    told = answer_of(client, found, "prescribe", contexts=[context])["prescriptions"][0]
    assert figure(page, "expected") == number(told["expected_cost"])
    wrong = browser.get(address, params=typed(context | {odd: "much"}))
    assert "is not a number" in re.findall(r'id="field0-wrong">(.*?)</p>', wrong.text)[0]
    given = typed(context) | {"csrf": token(browser, address), "all": "1", "entry": item, f"d.{item}": "5"}
    for part in ("evaluate", "curve"):
        assert browser.post(f"{address}/{part}", data=given, headers=PART).status_code == 200
    for part in ("why", "others"):
        assert browser.get(f"{address}/{part}", params=typed(context), headers=PART).status_code == 200


# whole tables

TABLE = """day\tweekday\tTemperature\train\tpromotion\tholiday
=1+1\tSAT\t21,5\t0\tyes\t0
2\tSAMSTAG\t4\t0\t0\t0
3\tSUN\t4
4\tMON\t4\t6.5\t0\t0
"""


def pasted(browser: TestClient, posterior: Json, table: str, **more: Any) -> Any:
    address = f"/posteriors/{posterior['id']}/decide/table"
    files = {"file": more.pop("file")} if "file" in more else None
    return browser.post(address, data={"csrf": token(browser, address), "table": table} | more, files=files)


def test_a_pasted_table_is_decided_for_row_by_row(client: TestClient, browser: TestClient, posterior: Json) -> None:
    page = pasted(browser, posterior, TABLE)
    assert page.status_code == 200
    words = text_of(page.text)
    assert "2 of 4 rows decided" in words
    assert "'weekday' was never seen in the history with this value" in words
    assert "This line has 3 values, but the header has 6 names" in words
    monday = SATURDAY | {"weekday": "MON", "temperature": 4, "rain": 6.5, "promotion": 0}
    for context in (SATURDAY, monday):
        told = answer_of(client, posterior, "prescribe", contexts=[context])["prescriptions"][0]
        assert number(told["expected_cost"]) in words
        assert all(number(amount) in words for amount in told["decision"].values())
    assert re.search(r'href="/log/pres_\w+"', page.text)
    assert html.escape(TABLE) in page.text


def test_the_decisions_for_a_table_can_be_taken_away(client: TestClient, browser: TestClient, posterior: Json) -> None:
    answer = pasted(browser, posterior, TABLE, **{"as": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    told = answer_of(client, posterior, "prescribe", contexts=[SATURDAY])["prescriptions"][0]
    assert rows[0]["day"] == "'=1+1"
    assert float(rows[0]["decision.croissants"]) == told["decision"]["croissants"]
    assert float(rows[0]["expected_cost"]) == told["expected_cost"]
    assert float(rows[0]["cost_quantiles.0.95"]) == told["cost_quantiles"]["0.95"]
    assert [row["status"] for row in rows] == ["optimal", "refused", "refused", "optimal"]
    assert "never seen" in rows[1]["reason"]
    assert rows[1]["expected_cost"] == ""


def test_a_table_none_of_whose_rows_can_be_used_says_why_for_each(browser: TestClient, posterior: Json) -> None:
    page = pasted(browser, posterior, "weekday,temperature,rain,promotion,holiday\nX,1,1,1,1\nSAT,warm,1,1,1\n")
    words = text_of(page.text)
    assert page.status_code == 200
    assert "0 of 2 rows decided" in words
    assert "'weekday' was never seen" in words
    assert "'temperature' is not a number" in words


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "Paste a header line with the column names"),
        ("weekday,rain\nSAT,1", "The header lacks temperature, promotion, holiday"),
        ("weekday\n", "Paste a header line with the column names"),
    ],
)
def test_what_is_no_table_is_refused_and_stays_where_it_was(
    browser: TestClient, posterior: Json, table: str, said: str
) -> None:
    answer = pasted(browser, posterior, table)
    assert answer.status_code == 422
    assert said in answer.text
    assert html.escape(table.strip()) in answer.text
    file = ("x.csv", b"\xff\xfe\x00broken")
    assert "not CSV, Excel or Parquet" in pasted(browser, posterior, "", file=file).text


def test_a_file_of_contexts_does_as_well(browser: TestClient, posterior: Json) -> None:
    page = pasted(browser, posterior, "", file=("days.csv", TABLE.encode()))
    assert "2 of 4 rows decided" in text_of(page.text)


def test_a_long_table_becomes_a_job(browser: TestClient, posterior: Json) -> None:
    head, first, *_ = TABLE.splitlines()
    answer = pasted(browser, posterior, "\n".join([head] + [first] * 501))
    assert answer.status_code == 303
    assert re.fullmatch(r"/jobs/job_\w+", answer.headers["location"])


def test_tables_are_posted_with_their_token(browser: TestClient, posterior: Json) -> None:
    assert browser.post(f"/posteriors/{posterior['id']}/decide/table", data={"table": TABLE}).status_code == 403


# keys


def test_a_key_that_may_read_may_decide_and_start_nothing(
    browser: TestClient, posterior: Json, make_key: Callable[[str], str]
) -> None:
    address = f"/posteriors/{posterior['id']}/decide"
    key = make_key("read")
    wait_until("a key is needed", lambda: browser.get(address).status_code == 303)
    assert browser.post("/login", data={"csrf": token(browser, "/login"), "key": key}).status_code == 303
    page = browser.get(address, params=typed(SATURDAY))
    assert page.status_code == 200
    assert "this key can view and decide" in page.text
    assert "Authorization: Bearer $BCO_API_KEY" in html.unescape(page.text)
    sent = browser.post(address, data=typed(SATURDAY) | {"csrf": token(browser, address)})
    assert sent.status_code == 303
    assert "run as a job" not in browser.get(f"{address}/table").text
    head, first, *_ = TABLE.splitlines()
    long = pasted(browser, posterior, "\n".join([head] + [first] * 501))
    assert long.status_code == 403
    assert "needs a key with the scope train" in long.text
    assert "decided" in text_of(pasted(browser, posterior, TABLE).text)


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
def test_two_periods_later(last: str, unit: str, step: int, written: str, expected: str) -> None:
    assert add_periods({"last": last, "unit": unit, "step": step, "format": written}, 2) == expected


@pytest.mark.parametrize("separator", ["\t", ";", ","])
def test_tables_are_separated_by_what_their_first_line_has(separator: str) -> None:
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
def test_a_handle_reaches_around_its_amount_within_the_bounds(amount: float, rule: EntryLimits) -> None:
    told = {"decision": {"a": amount}, "map": {"decision": {"a": amount}}, "facts": None}
    (entry,) = entries_of(told, {"a": rule})
    assert entry.low <= amount <= entry.high
    assert entry.low < entry.high
    assert rule.minimum is None or entry.low >= rule.minimum
    assert rule.maximum is None or entry.high <= rule.maximum
    points = entry.points()
    assert amount in points
    assert 2 <= len(points) <= 27
    assert all(point % rule.step == 0 for point in points) if rule.step else len(points) >= 25


def test_an_amount_is_written_with_digits_enough_to_be_the_same() -> None:
    assert EntryView("a", -0.0, None).field_text == "0"
    assert EntryView("a", 162.971547, None).field_text == "162.9715"
