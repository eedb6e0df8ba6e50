"""Pages about data sets: the list, the preview of a file, saving it, one data set, appending and deleting."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta

import pytest
import sqlalchemy as sa
from httpx import Response
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import DatasetRow, KeyRow, SessionRow
from app.keys import service as keys
from tests.support.journey import ROWS, Json, check_json, counts, create_dataset, create_job, create_problem
from tests.support.pages import HTML
from tests.support.workbooks import sheet, workbook

SCRIPT = "<script>alert(1)</script>"
PART = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def _clean_up(client: TestClient) -> Iterator[None]:
    yield
    client.cookies.clear()
    with transaction() as session:
        session.execute(sa.delete(SessionRow))
        session.execute(sa.delete(KeyRow))


def shops(days: int = 90) -> bytes:
    lines = ["day;shop;promotion;sold;stocked"]
    for number in range(days):
        day = date(2024, 1, 1) + timedelta(number)
        if 40 <= number < 46:
            continue
        lines += [
            f"{day:%d.%m.%Y};{shop};{number % 2};{level + number % 13};{level if number % 5 else ''}"
            for shop, level in (("north", 40), ("south", 60))
        ]
    return "\n".join(lines).encode()


def get_page(client: TestClient, path: str, status: int = 200) -> str:
    found = client.get(path, headers=HTML)
    assert found.status_code == status, found.text
    return found.text


def token(client: TestClient) -> str:
    return get_page(client, "/datasets").split('X-CSRF-Token":"')[1].split('"')[0]


def submit(
    client: TestClient, path: str, form: Json, file: tuple[str, bytes] | None = None, **headers: str
) -> Response:
    """Submit a form as a browser does, or with the headers ``PART`` as a script of the page does."""
    files = {} if file is None else {"file": file}
    return client.post(path, data=form, files=files, headers=HTML | headers, follow_redirects=False)


def preview(client: TestClient, content: bytes, name: str = "shops.csv", **form: str) -> Response:
    return submit(client, "/datasets/new/preview", {"csrf": token(client)} | form, (name, content), **PART)


def suggested_uses(page: str) -> dict[str, str]:
    """Return the use that a preview suggests for each column."""
    found = {}
    for name, options in re.findall(r'aria-label="Use of ([^"]*)" data-use>(.*?)</select>', page, re.DOTALL):
        (chosen,) = re.findall(r'<option value="(\w+)" selected>', options)
        found[html.unescape(name)] = chosen
    return found


def upload(client: TestClient, content: bytes, roles: dict[str, str], **changes: str) -> Response:
    """Upload a file with column roles."""
    form = {"csrf": token(client), "columns": json.dumps(list(roles)), "name": "kept", "lead": "1", "missing": "reject"}
    form |= {f"use.{index}": use for index, use in enumerate(roles.values())} | {"unseen": "reject"} | changes
    return submit(client, "/datasets/new", form, ("shops.csv", content), **PART)


SHOPS = {"day": "time", "shop": "series", "promotion": "context", "sold": "outcome", "stocked": "decision"}


def create_history(client: TestClient, **changes: str) -> Json:
    form = {"name": "shops", "outcomes": "sold", "time": "day", "series": "shop", "decisions": "stocked"} | changes
    answer = client.post("/v1/datasets/upload", data=form, files={"file": ("shops.csv", shops())})
    return check_json(answer, 201)


# the list


def test_an_empty_list_links_to_the_upload(client: TestClient) -> None:
    with transaction() as session:
        session.execute(sa.delete(DatasetRow))
    page = get_page(client, "/datasets")
    assert "No data yet" in page
    assert 'href="/datasets/new"' in page


def test_the_list_is_paginated(client: TestClient) -> None:
    created = [create_dataset(client, name=f"days {number}") for number in range(27)]
    page = get_page(client, "/datasets")
    assert f'href="/datasets/{created[-1]["id"]}">days 26</a>' in page
    assert "days 1<" not in page
    assert "/v1/datasets?limit=25" in html.unescape(page)
    older = re.search(r'class="pager"><a href="([^"]+)"', page)
    assert older is not None
    assert "days 1<" in get_page(client, html.unescape(older[1]))


def test_the_list_shows_the_number_of_warnings(client: TestClient) -> None:
    dataset = create_history(client)
    listed = check_json(client.get("/v1/datasets?limit=1"))["items"][0]
    assert listed["warning_count"] == len(dataset["warnings"]) > 0
    assert listed["revision"] == 1
    assert f"{len(dataset['warnings'])} warnings</span>" in get_page(client, "/datasets")


# preview


def test_a_preview_suggests_roles_and_saves_nothing(client: TestClient) -> None:
    get_page(client, "/datasets/new")
    before = counts()
    answer = preview(client, shops())
    assert answer.status_code == 200
    assert counts() == before
    assert suggested_uses(answer.text) == SHOPS
    assert "168 rows and 5 columns" in answer.text
    assert "Nothing is saved yet" in answer.text
    assert 'name="name" value="shops"' in answer.text
    assert "days between first and last rows are missing" in answer.text
    assert "<td>01.01.2024</td><td>north</td>" in answer.text
    curl = html.unescape(answer.text)
    assert "/v1/datasets/upload -F file=@shops.csv -F name=shops" in curl
    assert "'series': 'shop'" in curl


def test_a_preview_suggests_the_outcomes_of_the_problem(client: TestClient) -> None:
    spec = {"kind": "newsvendor", "items": [{"name": "stocked", "underage_cost": 2, "overage_cost": 1}]}
    problem = create_problem(client, spec=spec)
    page = get_page(client, f"/datasets/new?problem={problem['id']}")
    assert "needs this outcome column: <b>stocked</b>" in page
    assert suggested_uses(preview(client, shops(), problem=problem["id"]).text)["stocked"] == "outcome"
    get_page(client, "/datasets/new?problem=prob_nothing", 404)


def test_a_sheet_of_a_workbook_can_be_selected(client: TestClient) -> None:
    rows = [["x", "sold"], *([number % 7, number * 3 % 17] for number in range(30))]
    content = workbook({"Notes": sheet([["a"], ["b"]]), "Sales 2024": sheet(rows)})
    first = preview(client, content, "book.xlsx").text
    assert '<option value="Sales 2024"' in first
    form = {"csrf": token(client), "sheet": "Sales 2024", "name": "my own"}
    again = submit(
        client, "/datasets/new/preview", form, ("book.xlsx", content), **PART, **{"HX-Trigger-Name": "sheet"}
    )
    assert suggested_uses(again.text) == {"x": "context", "sold": "outcome"}
    assert 'name="name" value="my own"' in again.text
    # Choices made for the first file do not apply to another one.
    assert preview(client, shops(), sheet="Sales 2024", name="my own").status_code == 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (bytes(range(256)) * 20, "neither Parquet nor"),
        (b"PAR1" + bytes(40), "starts like Parquet"),
        (b"a,a\n1,2\n", "columns are called"),
        (b"x,sold\n", "no rows"),
    ],
)
def test_files_that_are_not_tables_are_rejected_in_the_preview(
    client: TestClient, content: bytes, message: str
) -> None:
    answer = preview(client, content)
    assert answer.status_code == 422
    assert "Please correct" in answer.text
    assert message in answer.text
    assert "<html" not in answer.text


def test_names_and_values_are_escaped(client: TestClient) -> None:
    content = f'{SCRIPT},"\'><img src=x>",sold\n'.encode()
    content += b"".join(b"</title><b>%d,=1+%d,%d\n" % (n % 3, n % 4, n * 7 % 31) for n in range(40))
    name = '"><script>x.csv'
    answer = preview(client, content, name)
    assert answer.status_code == 200
    for hostile in (SCRIPT, "<img", "<b>0", "</title>"):
        assert hostile not in answer.text
    assert html.escape(SCRIPT) in answer.text
    columns = re.search(r"name=\"columns\" value='([^']*)'", answer.text)
    assert columns is not None
    assert json.loads(html.unescape(columns[1])) == [SCRIPT, "'><img src=x>", "sold"]
    created = upload(client, content, {SCRIPT: "context", "'><img src=x>": "context", "sold": "outcome"}, name=SCRIPT)
    page = get_page(client, created.headers["HX-Redirect"])
    for hostile in (SCRIPT, "<img", "<b>0", "</title><b>"):
        assert hostile not in page
    assert SCRIPT not in get_page(client, "/datasets")
    refused = upload(client, content, {SCRIPT: "outcome", "sold": "context"})
    assert refused.status_code == 422
    assert "<script" not in refused.text


@pytest.mark.slow
def test_five_hundred_columns_can_be_previewed_and_saved(client: TestClient) -> None:
    names = [f"c{number}" for number in range(500)]
    lines = [",".join(names)] + [",".join(str((row * 7 + n) % 31) for n in range(500)) for row in range(40)]
    content = "\n".join(lines).encode()
    found = suggested_uses(preview(client, content).text)
    assert len(found) == 500
    created = upload(client, content, found)
    assert created.status_code == 204, created.text
    page = get_page(client, created.headers["HX-Redirect"])
    assert page.count('class="histogram"') == 40
    assert "c499" in page


def test_a_file_with_too_many_rows_is_rejected(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_rows=50)
    answer = preview(client, shops())
    assert answer.status_code == 422
    assert "most 50 rows (BCO_MAX_ROWS)" in answer.text


# saving


def test_a_previewed_file_is_saved(client: TestClient) -> None:
    answer = upload(client, shops(), SHOPS, name="three months", lead="2")
    assert answer.status_code == 204
    dataset = check_json(client.get("/v1" + answer.headers["HX-Redirect"]))
    assert (dataset["name"], dataset["lead"], dataset["rows"]) == ("three months", 2, 168)
    assert {column["name"]: column["role"] for column in dataset["columns"]} == SHOPS
    # Without scripts the browser follows the redirect itself.
    form = {"csrf": token(client), "columns": json.dumps(list(SHOPS)), "lead": "", "missing": "", "unseen": ""}
    form |= {f"use.{index}": use for index, use in enumerate(SHOPS.values())}
    plain = submit(client, "/datasets/new", form, ("shops_2024.csv", shops()))
    assert plain.status_code == 303
    assert check_json(client.get("/v1" + plain.headers["location"]))["name"] == "shops 2024"


def test_categories_omitted_columns_and_names_with_commas_are_saved(client: TestClient) -> None:
    lines = ['"zone, old",code,note,"sold, net"'] + [f"{n % 4},{n % 3},x,{n * 7 % 31}" for n in range(60)]
    roles = {"zone, old": "category", "code": "out", "note": "out", "sold, net": "outcome"}
    answer = upload(client, "\n".join(lines).encode(), roles)
    assert answer.status_code == 204, answer.text
    columns = check_json(client.get("/v1" + answer.headers["HX-Redirect"]))["columns"]
    assert [(column["name"], column["kind"]) for column in columns] == [
        ("zone, old", "categorical"),
        ("sold, net", "numeric"),
    ]


@pytest.mark.parametrize(
    ("roles", "changes", "message"),
    [
        ({}, {"lead": "0"}, "greater than or equal to 1"),
        ({}, {"lead": "soon"}, "valid integer"),
        ({}, {"name": "n" * 201}, "at most 200"),
        ({"sold": "context"}, {}, "Name at least one outcome column"),
        ({"shop": "time"}, {}, "are both marked as time"),
        ({"day": "context"}, {}, "series need a time column"),
        ({"shop": "outcome"}, {}, "must be a number"),
        ({"shop": "context"}, {}, "the same time"),
        ({"stocked": "context"}, {}, "missing values (32 in"),
    ],
)
def test_mistakes_are_reported_and_nothing_is_saved(
    client: TestClient, roles: dict[str, str], changes: dict[str, str], message: str
) -> None:
    before = counts()
    answer = upload(client, shops(), SHOPS | roles, **changes)
    assert answer.status_code == 422
    assert message.lower() in html.unescape(answer.text).lower()
    assert counts() == before


def test_a_mistake_is_shown_at_its_field(client: TestClient) -> None:
    answer = upload(client, shops(), SHOPS, lead="0").text
    field_error = re.search(r'hx-swap-oob="innerHTML:#wrong-lead">(.*?)</div>', answer, re.DOTALL)
    assert field_error is not None
    assert "greater than or equal to 1" in field_error[1]
    assert '<div hx-swap-oob="innerHTML:#wrong-name"></div>' in answer


def test_up_to_twenty_mistakes_are_listed(client: TestClient) -> None:
    lines = ["x,sold"] + [f"{n % 7},{'none' if n < 40 else n}" for n in range(100)]
    answer = upload(client, "\n".join(lines).encode(), {"x": "context", "sold": "outcome"})
    assert answer.text.count("<li>") == 20
    assert "(and 39 more)" in answer.text


def test_the_curl_command_follows_the_form(client: TestClient) -> None:
    form = {"csrf": token(client), "columns": '["a, b", "sold"]', "use.0": "context", "use.1": "outcome"}
    form |= {"filename": "own.csv", "name": "own", "lead": "1", "missing": "drop", "unseen": "reject", "sheet": ""}
    answer = html.unescape(submit(client, "/datasets/new/call", form, **PART).text)
    assert "-F file=@own.csv -F name=own -F outcomes=sold --form-string 'contexts=\"a, b\"' -F missing=drop" in answer
    broken = {"csrf": form["csrf"], "columns": '{"a": 1}'}
    assert submit(client, "/datasets/new/call", broken, **PART).status_code == 200


def test_saving_without_a_preview_is_rejected(client: TestClient) -> None:
    answer = submit(client, "/datasets/new", {"csrf": token(client), "columns": "oh"}, ("a.csv", shops()), **PART)
    assert (answer.status_code, "Wait for the preview" in answer.text) == (422, True)
    answer = submit(client, "/datasets/new", {"csrf": token(client)}, **PART)
    assert (answer.status_code, "Choose a file first" in answer.text) == (422, True)


# one data set


def test_a_data_set_shows_its_summary_warnings_and_charts(client: TestClient) -> None:
    dataset = create_history(client)
    page = get_page(client, f"/datasets/{dataset['id']}")
    verdict = "168 rows of 2 series (by shop), each day from 2024-01-01 to 2024-03-30. You decide 1 day ahead."
    assert verdict in page
    for warning in dataset["warnings"]:
        assert warning[1:] in html.unescape(page)
    assert "sold over time" in page
    assert "No rows of 2 series between 2024-02-09 and 2024-02-16: 6 days." in page
    assert page.count('class="histogram"') == 5
    assert f'href="/jobs/new?dataset={dataset["id"]}"' in page
    assert f'href="/backtests/new?dataset={dataset["id"]}"' in page
    assert '<option value="north" >north</option>' in page
    assert "32 missing" in page
    assert f"/v1/datasets/{dataset['id']}/distribution" in page


def test_one_series_can_be_selected(client: TestClient) -> None:
    dataset = create_history(client)
    page = get_page(client, f"/datasets/{dataset['id']}?series=north")
    assert "a point for each day, north alone" in page
    wrong = get_page(client, f"/datasets/{dataset['id']}?series={SCRIPT}", 422)
    assert "The data set has no such series; write shop, such as north." in wrong
    assert "all 2 series together" in wrong
    assert SCRIPT not in wrong


def test_a_data_set_without_time_has_no_time_chart(client: TestClient) -> None:
    dataset = create_dataset(client)
    page = get_page(client, f"/datasets/{dataset['id']}")
    assert f"{len(ROWS)} rows without a time column" in page
    assert "over time" not in page
    assert "No warnings" in page or "check before training" in page


def test_one_of_many_outcomes_is_charted(client: TestClient) -> None:
    rows = [
        {"day": str(date(2024, 1, 1) + timedelta(n))} | {f"item {k}": (n * k) % 11 for k in range(1, 6)}
        for n in range(60)
    ]
    outcomes = [f"item {k}" for k in range(1, 6)]
    dataset = create_dataset(client, rows=rows, outcomes=outcomes, time="day")
    page = get_page(client, f"/datasets/{dataset['id']}")
    assert page.count("data-chart") == 1
    assert "item 3 over time" in get_page(client, f"/datasets/{dataset['id']}?outcome=item+3")


def test_long_histories_by_period_are_summarised(client: TestClient) -> None:
    rows = [{"step": 10 * n, "sold": n % 13} for n in range(2, 900) if not 300 < n < 320]
    dataset = create_dataset(client, rows=rows, outcomes=["sold"], time="step")
    page = get_page(client, f"/datasets/{dataset['id']}")
    assert "every 10 periods from 20 to 8990" in page
    assert "190 periods" in page
    assert "lowest to highest" in page


def test_charts_of_large_data_load_after_the_page(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pages.datasets._DRAWN_AT_ONCE", 100)
    dataset = create_history(client)
    page = get_page(client, f"/datasets/{dataset['id']}?series=north")
    (address,) = re.findall(r'hx-get="(/datasets/[^"]+/drawn[^"]*)"', page)
    assert "data-chart" not in page
    part = client.get(html.unescape(address), headers=HTML | PART).text
    assert "north alone" in part
    assert "<html" not in part


def test_jobs_that_use_the_data_set_are_listed(client: TestClient) -> None:
    job = create_job(client, name="first try")
    page = get_page(client, f"/datasets/{job['dataset_id']}")
    assert f'href="/jobs/{job["id"]}">first try</a>' in page
    assert "queued" in page


def test_an_unknown_data_set_answers_404(client: TestClient) -> None:
    for path in ("/datasets/data_nothing", "/datasets/x%3Flimit=1", "/datasets/data_nothing/drawn"):
        found = client.get(path, headers=HTML)
        assert found.status_code == 404, path


# appending and deleting


def test_rows_are_appended(client: TestClient) -> None:
    dataset = create_history(client)
    more = b"day;shop;promotion;sold;stocked\n31.03.2024;north;0;41;\n31.03.2024;south;0;61;60\n"
    address = f"/datasets/{dataset['id']}/rows"
    answer = submit(client, address, {"csrf": token(client)}, ("more.csv", more), **PART)
    assert answer.headers["HX-Redirect"] == f"/datasets/{dataset['id']}?added=2"
    page = get_page(client, answer.headers["HX-Redirect"])
    assert "2 rows were appended" in page
    assert "Revision 2." in page
    again = submit(client, address, {"csrf": token(client)}, ("more.csv", more), **PART)
    assert again.status_code == 422
    assert "the same time and series" in again.text
    plain = submit(client, address, {"csrf": token(client)}, ("more.csv", more))
    assert plain.status_code == 422
    assert "<h1>shops</h1>" in plain.text
    get_page(client, f"/datasets/{dataset['id']}?added={SCRIPT}")


def test_a_data_set_is_deleted_unless_jobs_use_it(client: TestClient) -> None:
    dataset = create_history(client)
    answer = submit(client, f"/datasets/{dataset['id']}/delete", {"csrf": token(client)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets")
    assert client.get(f"/v1/datasets/{dataset['id']}").status_code == 404
    used = create_job(client)["dataset_id"]
    answer = submit(client, f"/datasets/{used}/delete", {"csrf": token(client)})
    assert answer.status_code == 409
    assert "Jobs use this data set; delete them first" in answer.text
    assert client.get(f"/v1/datasets/{used}").status_code == 200


# permissions


@pytest.mark.parametrize(
    "path", ["/datasets/new", "/datasets/new/preview", "/datasets/new/call", "{}/rows", "{}/delete"]
)
def test_forged_forms_are_rejected(client: TestClient, path: str) -> None:
    dataset = create_dataset(client)
    address = path.format(f"/datasets/{dataset['id']}")
    for form in ({}, {"csrf": "guessed"}):
        assert submit(client, address, form, ("a.csv", shops())).status_code == 403
    elsewhere = {"Origin": "https://elsewhere.example"}
    refused = submit(client, address, {"csrf": token(client)}, ("a.csv", shops()), **elsewhere)
    assert refused.status_code == 403
    assert client.get(f"/v1/datasets/{dataset['id']}").status_code == 200


def test_a_read_only_key_sees_no_forms_and_is_rejected(client: TestClient) -> None:
    dataset = create_history(client)
    keys.create("all", "default", ["read", "train", "admin"], None)
    key = keys.create("reader", "default", ["read"], None)[1]
    form = {"csrf": get_page(client, "/login").split('name="csrf" value="')[1].split('"')[0], "key": key, "next": "/"}
    assert client.post("/login", data=form, follow_redirects=False).status_code == 303
    page, listed = get_page(client, f"/datasets/{dataset['id']}"), get_page(client, "/datasets")
    for hidden in ("/jobs/new", "/backtests/new", '/rows" enctype', "/delete", 'type="file"', "/datasets/new"):
        assert hidden not in page
        assert hidden not in listed
    get_page(client, "/datasets/new", 403)
    file = ("a.csv", shops())
    for path, sends in ((f"{dataset['id']}/rows", file), (f"{dataset['id']}/delete", None), ("new/preview", file)):
        refused = submit(client, f"/datasets/{path}", {"csrf": token(client)}, sends)
        assert refused.status_code == 403
        assert "scope" in refused.text
    assert upload(client, shops(), SHOPS).status_code == 403


def test_data_of_another_workspace_is_not_found(client: TestClient) -> None:
    dataset = create_history(client)
    key = keys.create("elsewhere", "other", ["read", "train", "admin"], None)[1]
    form = {"csrf": get_page(client, "/login").split('name="csrf" value="')[1].split('"')[0], "key": key, "next": "/"}
    client.post("/login", data=form)
    get_page(client, f"/datasets/{dataset['id']}", 404)
    assert "No data yet" in get_page(client, "/datasets")
