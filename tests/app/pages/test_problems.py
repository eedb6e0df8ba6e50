"""Pages about problems: every kind as a model, forms with the API's messages, and imported model files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.pages.problems.catalogue import KINDS
from app.pages.problems.forms import form_of_spec, line_of, parse_json
from app.pages.problems.notation import model_of
from app.pages.problems.spec_tables import facts_of, tables_of
from app.problems.schemas import ProblemSpec
from bco_core.problems.registry import PROBLEMS
from tests.support.journey import Json, check_json, counts, create_dataset, create_job, create_problem, learn_posterior
from tests.support.pages import log_in, send_form, token, words

ITEM = {"few": "1.8", "many": "0.6", "least": "", "most": "", "stock": "", "pack": "", "level": "", "whole": ""}
BREAD = """NAME bread
ROWS
 N cost
 G meet
COLUMNS
 order cost 5 meet 1
 express cost 8 meet 1
RHS
 RHS meet 10
ENDATA
"""
UNCERTAIN = {
    "decisions": ["order"],
    "outcomes": [{"name": "demand", "minimum": 0}],
    "entries": [{"row": "meet", "column": None, "outcomes": {"demand": 1}}],
}


def items(*rows: dict[str, str], **more: Any) -> dict[str, Any]:
    """Return the item table as a browser sends it: every column is a list."""
    filled = [ITEM | row for row in rows]
    columns = {name: [row.get(name, "") for row in filled] for name in ("item", *ITEM)}
    return {"name": "rolls", "kind": "newsvendor", **columns, **more}


# every kind


def test_every_kind_has_a_card_and_an_example() -> None:
    assert set(KINDS) == set(PROBLEMS)
    for name, kind in KINDS.items():
        assert kind.example["kind"] == name
        assert json.loads(kind.text) == kind.example
        assert kind.linear == (PROBLEMS[name].compiled is not None)
        assert max(len(line) for line in kind.text.splitlines()) < 120


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_is_shown_as_a_mathematical_model(client: TestClient, browser: TestClient, name: str) -> None:
    created = check_json(client.post("/v1/problems", json={"name": f"<b>{name}</b>", "spec": KINDS[name].example}), 201)
    page = browser.get(f"/problems/{created['id']}")
    assert page.status_code == 200
    shown = words(page)
    assert "minimise" in shown or "maximise" in shown
    assert "subject to" in shown
    assert f"<b>{name}</b>" not in page.text
    assert all(outcome in shown for outcome in created["outcomes"][:12])
    assert ("Download MPS" in shown) == KINDS[name].linear
    assert "/jobs/new?problem=" in page.text
    assert f"/datasets/new?problem={created['id']}" in page.text
    assert f"curl -s http://localhost/v1/problems/{created['id']}" in shown
    # The content security policy would block inline styles.
    assert " style=" not in page.text


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_example_of_every_kind_is_valid_and_can_be_created(browser: TestClient, name: str) -> None:
    address = f"/problems/new?kind={name}&text=yes"
    fields = {"kind": name, "name": "", "spec": KINDS[name].text}
    assert KINDS[name].title in words(browser.get(address))
    before = counts()
    checked = words(send_form(browser, "/problems/check", fields, at=address))
    assert "Valid" in checked
    assert "curl" in checked
    assert counts() == before
    created = send_form(browser, "/problems/new", fields | {"name": f"my {name}"}, at=address)
    assert created.status_code == 303
    assert browser.get(created.headers["location"]).status_code == 200


def newsvendor(**changes: Any) -> Json:
    item = {"name": "rolls", "underage_cost": 3, "overage_cost": 1}
    other = {"name": "buns", "underage_cost": 2, "overage_cost": 1}
    return {"kind": "newsvendor", "items": [item | changes.pop("item", {}), other], **changes}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (newsvendor(), "E [ Σ j u j ( y j − z j ) + + o j ( z j − y j ) + ]"),
        (newsvendor(item={"stock": 4}), "u j ( y j − s j − z j ) +"),
        (newsvendor(item={"pack_size": 6}), "in packs: rolls of 6"),
        (newsvendor(item={"integer": True}), "integers: rolls"),
        (newsvendor(item={"maximum_order": 9}), "0 ≤ z j ≤ h j"),
        (newsvendor(item={"minimum_service_level": 0.9}), "P [ y j ≤ z j ] ≥ α j"),
        (newsvendor(minimum_service_level=0.975), "97.5 % of total demand met on average"),
        (
            newsvendor(decision_rows=[{"coefficients": {"rolls": 1, "buns": -2.5}, "sense": "<=", "limit": 1360}]),
            "rolls − 2.5 buns ≤ 1,360 row 1",
        ),
    ],
)
def test_the_newsvendor_model_shows_only_the_options_in_use(
    client: TestClient, browser: TestClient, spec: Json, expected: str
) -> None:
    created = check_json(client.post("/v1/problems", json={"name": "rolls", "spec": spec}), 201)
    assert expected in words(browser.get(f"/problems/{created['id']}"))


def test_uncertain_coefficients_appear_in_the_formulas() -> None:
    model = model_of(KINDS["linear"].example)
    assert model.goal == "maximise"
    objective = words(model.objective)
    assert objective.startswith("− 150 wheat − 260 beets + E [ max wheat price · wheat sold")
    assert "( 20 − 1.3 wheat price ) wheat bought" in objective
    assert words(model.rules[1].formula) == "wheat yield · wheat + wheat bought − wheat sold ≥ 200"


def test_large_models_are_abbreviated(client: TestClient, browser: TestClient) -> None:
    names = [f"place {number}" for number in range(60)]
    spec = {
        "kind": "linear",
        "decisions": [{"name": name, "cost": 1} for name in names],
        "recourse": [{"name": "rest", "cost": 9}],
        "outcomes": [{"name": "demand", "minimum": 0}],
        "rows": [{"name": f"most of {name}", "decisions": {name: 1}, "sense": "<=", "limit": 5} for name in names]
        + [
            {
                "name": "meet",
                "decisions": dict.fromkeys(names, 1),
                "recourse": {"rest": 1},
                "sense": ">=",
                "limit": {"outcomes": {"demand": 1}},
            }
        ],
    }
    created = check_json(client.post("/v1/problems", json={"name": "many", "spec": spec}), 201)
    page = browser.get(f"/problems/{created['id']}")
    shown = words(page)
    assert "(52 more)" in shown
    assert "… and 49 more constraints" in shown
    assert "≥ demand meet" in shown
    assert "60 quantities at once" in shown
    assert len(page.content) < 60_000


# lists


def test_the_list_can_be_filtered_by_kind(client: TestClient, browser: TestClient) -> None:
    create_problem(client, name="in the list")
    assert "in the list" in words(browser.get("/problems"))
    assert "in the list" in words(browser.get("/problems?kind=newsvendor"))
    assert "in the list" not in words(browser.get("/problems?kind=unit_commitment"))
    assert browser.get("/problems?kind=nonsense").status_code == 422
    assert browser.get("/problems/prob_nowhere").status_code == 404


def test_a_problem_shows_matching_data_sets_and_posteriors(client: TestClient, browser: TestClient) -> None:
    created = learn_posterior(client, name="learned from days")
    create_dataset(client, name="other outcomes", outcomes=["temperature"], contexts=["weekday"])
    shown = words(browser.get(f"/problems/{created['problem_id']}"))
    fitting = shown[shown.index("Matching data sets") : shown.rindex("Posteriors")]
    assert "days" in fitting
    assert "other outcomes" not in fitting
    assert "learned from days" in shown


# the table of items


def test_the_item_table_creates_a_newsvendor(client: TestClient, browser: TestClient) -> None:
    rows = items(
        {"item": " rolls ", "most": "120", "stock": "3", "pack": "6", "level": "90 %"},
        {"item": "", "few": "", "many": ""},
        {"item": "buns", "few": "2,5", "many": "1", "least": "5", "whole": "yes"},
        level_of_all="0.8",
    )
    created = send_form(browser, "/problems/new", rows, at="/problems/new?kind=newsvendor")
    assert created.status_code == 303
    spec = check_json(client.get("/v1" + created.headers["location"]))["spec"]
    rolls, buns = spec["items"]
    assert (rolls["name"], rolls["underage_cost"], rolls["maximum_order"]) == ("rolls", 1.8, 120)
    assert (rolls["stock"], rolls["pack_size"], rolls["minimum_service_level"], rolls["integer"]) == (3, 6, 0.9, False)
    assert (buns["underage_cost"], buns["minimum_order"], buns["integer"]) == (2.5, 5, True)
    assert spec["minimum_service_level"] == 0.8
    # The table opens again with the same items, to create a similar problem.
    again = browser.get(f"/problems/new?like={created.headers['location'].removeprefix('/problems/')}").text
    assert 'name="item" value="rolls"' in again
    assert 'name="level" value="0.9"' in again


def test_invalid_items_show_an_error_and_keep_the_input(client: TestClient, browser: TestClient) -> None:
    before = counts()
    rows = items({"item": "rolls"}, {"item": "buns", "few": "-2", "many": "cheap"})
    page = send_form(browser, "/problems/new", rows, at="/problems/new?kind=newsvendor")
    assert page.status_code == 422
    for field, typed in (("few", "-2"), ("many", "cheap")):
        cell = re.search(rf'<td class="[^"]*"><input name="{field}" value="{typed}".*?</td>', page.text, re.DOTALL)
        assert cell is not None
        assert 'aria-invalid="true"' in cell[0]
        assert 'class="wrong"' in cell[0]
    api = client.post(
        "/v1/problems",
        json={
            "name": "rolls",
            "spec": {
                "kind": "newsvendor",
                "items": [
                    {"name": "rolls", "underage_cost": 1.8, "overage_cost": 0.6},
                    {"name": "buns", "underage_cost": -2, "overage_cost": "cheap"},
                ],
            },
        },
    )
    shown = words(page).lower()
    assert all(error["detail"].lower() in shown for error in check_json(api, 422)["errors"])
    assert counts() == before


def test_duplicate_item_names_and_empty_tables_are_rejected(browser: TestClient) -> None:
    at = "/problems/new?kind=newsvendor"
    page = send_form(browser, "/problems/new", items({"item": "rolls"}, {"item": "rolls"}), at=at)
    assert page.status_code == 422
    assert "Two items have the same name" in words(page)
    empty = send_form(browser, "/problems/new", items({"few": "", "many": ""}), at=at)
    assert empty.status_code == 422
    assert 'name="item"' in empty.text


def test_only_newsvendors_that_fit_the_table_are_reopened_in_it() -> None:
    full = {"name": "a", "underage_cost": 1, "overage_cost": 1, "minimum_order": 0}
    assert form_of_spec("x", {"kind": "newsvendor", "items": [full]}) is not None
    rows = [{"coefficients": {"a": 1}, "sense": "<=", "limit": 1}]
    for spec in (
        {"kind": "linear"},
        {"kind": "newsvendor", "items": [full], "decision_rows": rows},
        {"kind": "newsvendor", "items": [full | {"price": 2}]},
        {"kind": "newsvendor", "items": [full | {"minimum_order": None}]},
        {"kind": "newsvendor", "items": [full | {"maximum_demand": 9}]},
    ):
        assert form_of_spec("x", spec) is None


# text


def test_invalid_json_shows_its_line_and_column(browser: TestClient) -> None:
    at = "/problems/new?kind=linear"
    fields = {"kind": "linear", "name": "x", "spec": '{\n  "kind": "linear",\n  oops\n}'}
    for address, status in (("/problems/check", 200), ("/problems/new", 422)):
        page = send_form(browser, address, fields, at=at)
        assert page.status_code == status
        assert "Invalid JSON at line 3, column 3" in words(page)
    assert "oops" in page.text
    assert "The JSON must be an object" in words(send_form(browser, "/problems/check", fields | {"spec": "[1]"}, at=at))
    assert parse_json('{"a": NaN}')[1] == "Invalid JSON: NaN is not a JSON number."


def test_the_check_shows_the_apis_message_with_its_path_and_line(browser: TestClient) -> None:
    spec = json.loads(KINDS["linear"].text)
    spec["rows"][1]["recourse"]["wheat stolen"] = 1
    text = json.dumps(spec, indent=1)
    fields = {"kind": "linear", "name": "x", "spec": text}
    shown = words(send_form(browser, "/problems/check", fields, at="/problems/new?kind=linear"))
    line = text[: text.index("wheat stolen")].count("\n") + 1
    assert "Not complete yet" in shown
    assert "rows › 2" in shown
    assert f"line {line}" in shown or f"line {line - 3}" in shown
    created = send_form(browser, "/problems/new", fields, at="/problems/new?kind=linear")
    assert created.status_code == 422
    assert "wheat stolen" in created.text


def test_line_of_finds_the_line_of_a_json_path() -> None:
    text = '{\n "a": [1, {"b/c": "x, {[",\n   "d": [\n  2, 3]}],\n "e": {}\n}'
    assert line_of(text, ["a", "1", "d", "1"]) == 4
    assert line_of(text, ["a", "1", "b~1c"]) == 2
    assert line_of(text, ["e", "nothing"]) == 5
    assert line_of(text, []) == 1
    assert line_of("", ["a"]) is None


def test_an_unknown_kind_shows_all_cards(browser: TestClient) -> None:
    assert "New problem" in words(browser.get("/problems/new?kind=astrology"))


# files


def test_an_mps_file_becomes_a_problem(client: TestClient, browser: TestClient) -> None:
    fields = {"name": "bread", "description": json.dumps(UNCERTAIN)}
    created = send_form(browser, "/problems/import", fields, files={"file": ("bread.mps", BREAD.encode())})
    assert created.status_code == 303
    problem = check_json(client.get("/v1" + created.headers["location"]))
    assert (problem["outcomes"], problem["decisions"]) == (["demand"], ["order"])
    assert client.get(f"/v1{created.headers['location']}/mps").status_code == 200


def test_smps_scenarios_become_a_data_set(browser: TestClient) -> None:
    files = {
        "file": ("bread.mps", BREAD.encode()),
        "time": ("bread.tim", b"TIME bread\nPERIODS\n order cost NOW\n express meet LATER\nENDATA\n"),
        "scenarios": (
            "bread.sto",
            b"STOCH bread\nINDEP DISCRETE\n RHS meet 10 LATER 0.5\n RHS meet 20 LATER 0.5\nENDATA\n",
        ),
    }
    page = send_form(browser, "/problems/import", {"name": "bread", "description": "{}"}, files=files)
    assert page.status_code == 201
    assert "See its scenarios" in words(page)
    assert "-F time=@bread.tim -F scenarios=@bread.sto" in words(page)


@pytest.mark.parametrize(
    ("fields", "file", "expected"),
    [
        ({"description": "{"}, BREAD, "Invalid JSON"),
        ({"description": json.dumps(UNCERTAIN)}, "name,cost", "file"),
        ({"description": json.dumps({"decisions": ["nothing"]})}, BREAD, "nothing"),
        ({}, None, "Choose a file first"),
    ],
)
def test_unreadable_files_are_rejected_in_the_form(
    browser: TestClient, fields: dict[str, object], file: str | None, expected: str
) -> None:
    files = {} if file is None else {"file": ("bread.mps", file.encode())}
    page = send_form(browser, "/problems/import", {"name": "bread", **fields}, files=files)
    assert page.status_code == 422
    assert expected in words(page)


# permissions


def test_forms_without_a_csrf_token_are_rejected(client: TestClient, browser: TestClient) -> None:
    created = create_problem(client)
    before = counts()
    for path in ("/problems/new", "/problems/check", "/problems/import", f"/problems/{created['id']}/delete"):
        for wrong in ({}, {"csrf": "0" * 64}):
            assert browser.post(path, data=items({"item": "rolls"}) | wrong).status_code == 403
    assert counts() == before


def test_problems_can_be_deleted_unless_jobs_use_them(client: TestClient, browser: TestClient) -> None:
    created = create_problem(client)
    address = f"/problems/{created['id']}"
    gone = send_form(browser, f"{address}/delete", {}, at=address)
    assert (gone.status_code, gone.headers["location"]) == (303, "/problems")
    assert browser.get(address).status_code == 404
    used = f"/problems/{create_job(client)['problem_id']}"
    kept = send_form(browser, f"{used}/delete", {}, at=used)
    assert kept.status_code == 409
    assert "Jobs use this problem; delete them first" in words(kept)


def test_a_read_only_key_sees_no_forms_and_is_rejected(
    client: TestClient, browser: TestClient, make_key: Callable[[str], str]
) -> None:
    created = create_problem(client)
    log_in(browser, make_key("read"))
    address = f"/problems/{created['id']}"
    shown = words(browser.get(address))
    assert "Train" not in shown
    assert "Delete" not in shown
    assert "Authorization: Bearer $BCO_API_KEY" in shown
    assert "Describe a problem" not in words(browser.get("/problems"))
    form = "/problems/new?kind=newsvendor"
    assert "Create problem" not in words(browser.get(form))
    before = counts()
    csrf = token(browser, form)
    for path in ("/problems/new", "/problems/check", f"{address}/delete"):
        assert browser.post(path, data=items({"item": "rolls"}) | {"csrf": csrf}).status_code == 403
    assert counts() == before


def test_the_pages_know_every_kind_of_specification() -> None:
    models = ProblemSpec.__args__[0].__args__  # type: ignore[attr-defined]
    assert {model.model_fields["kind"].annotation.__args__[0] for model in models} == set(KINDS)


def test_affine_numbers_and_mappings_are_shown_as_text() -> None:
    demand = [{"constant": 4, "outcomes": {"load": 1, "wind": -0.5}}, "demand at noon", 7]
    spec = KINDS["unit_commitment"].example | {"hours": 3, "demand": demand}
    assert ("Demand by hour", "4 + load − 0.5 × wind, demand at noon, 7") in facts_of(spec)
    assert [table.title for table in tables_of(spec)] == ["Units"]
    costs = KINDS["assignment"].example | {"costs": {"ann": {"roof": 40}}, "forbidden": [["bob", "wall"]]}
    tables = {table.title: table.rows for table in tables_of(costs)}
    assert tables == {"Costs of pairs": [["ann", "roof 40"]], "Forbidden pairs": [["bob, wall"]]}
    (stall,) = [table for table in tables_of(KINDS["knapsack"].example) if table.title == "Items"]
    assert stall.rows[2] == ["books", "kg 3, litres 2", "no limit"]
    (decided, _, _) = tables_of(KINDS["linear"].example)
    assert decided.heads == ["name", "brings", "whole numbers"]
