"""Pages about data sets: the list, looking at a file before it is kept, one of them, more rows, and its end."""

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
from tests.support.journey import ROWS, Json, answered, counts, create_dataset, create_job, create_problem
from tests.support.pages import HTML
from tests.support.workbooks import sheet, workbook

SCRIPT = "<script>alert(1)</script>"
PART = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def _nothing_is_left(client: TestClient) -> Iterator[None]:
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


def looked_at(client: TestClient, path: str, status: int = 200) -> str:
    found = client.get(path, headers=HTML)
    assert found.status_code == status, found.text
    return found.text


def token(client: TestClient) -> str:
    return looked_at(client, "/datasets").split('X-CSRF-Token":"')[1].split('"')[0]


def sent(client: TestClient, path: str, form: Json, file: tuple[str, bytes] | None = None, **headers: str) -> Response:
    """A form as a browser sends it; with ``part``, as a script of the page does."""
    files = {} if file is None else {"file": file}
    return client.post(path, data=form, files=files, headers=HTML | headers, follow_redirects=False)


def previewed(client: TestClient, content: bytes, name: str = "shops.csv", **form: str) -> Response:
    return sent(client, "/datasets/new/preview", {"csrf": token(client)} | form, (name, content), **PART)


def uses(page: str) -> dict[str, str]:
    """What a preview has chosen for each column."""
    found = {}
    for name, options in re.findall(r'aria-label="Use of ([^"]*)" data-use>(.*?)</select>', page, re.DOTALL):
        (chosen,) = re.findall(r'<option value="(\w+)" selected>', options)
        found[html.unescape(name)] = chosen
    return found


def kept(client: TestClient, content: bytes, roles: dict[str, str], **changes: str) -> Response:
    """Keep a file, with what its columns are to be used as."""
    form = {"csrf": token(client), "columns": json.dumps(list(roles)), "name": "kept", "lead": "1", "missing": "reject"}
    form |= {f"use.{index}": use for index, use in enumerate(roles.values())} | {"unseen": "reject"} | changes
    return sent(client, "/datasets/new", form, ("shops.csv", content), **PART)


SHOPS = {"day": "time", "shop": "series", "promotion": "context", "sold": "outcome", "stocked": "decision"}


def history(client: TestClient, **changes: str) -> Json:
    form = {"name": "shops", "outcomes": "sold", "time": "day", "series": "shop", "decisions": "stocked"} | changes
    answer = client.post("/v1/datasets/upload", data=form, files={"file": ("shops.csv", shops())})
    return answered(answer, 201)


# the list


def test_the_list_is_empty_at_first_and_says_what_to_do(client: TestClient) -> None:
    with transaction() as session:
        session.execute(sa.delete(DatasetRow))
    page = looked_at(client, "/datasets")
    assert "No data yet" in page
    assert 'href="/datasets/new"' in page


def test_data_sets_are_listed_a_page_at_a_time(client: TestClient) -> None:
    made = [create_dataset(client, name=f"days {number}") for number in range(27)]
    page = looked_at(client, "/datasets")
    assert f'href="/datasets/{made[-1]["id"]}">days 26</a>' in page
    assert "days 1<" not in page
    assert "/v1/datasets?limit=25" in html.unescape(page)
    older = re.search(r'class="pager"><a href="([^"]+)"', page)
    assert older is not None
    assert "days 1<" in looked_at(client, html.unescape(older[1]))


def test_the_list_counts_what_to_look_at(client: TestClient) -> None:
    dataset = history(client)
    listed = answered(client.get("/v1/datasets?limit=1"))["items"][0]
    assert listed["warning_count"] == len(dataset["warnings"]) > 0
    assert listed["revision"] == 1
    assert f"{len(dataset['warnings'])} warnings</span>" in looked_at(client, "/datasets")


# looking at a file


def test_a_file_is_looked_at_and_nothing_is_kept(client: TestClient) -> None:
    looked_at(client, "/datasets/new")
    before = counts()
    answer = previewed(client, shops())
    assert answer.status_code == 200
    assert counts() == before
    assert uses(answer.text) == SHOPS
    assert "168 rows and 5 columns" in answer.text
    assert "Nothing is saved yet" in answer.text
    assert 'name="name" value="shops"' in answer.text
    assert "days between first and last rows are missing" in answer.text
    assert "<td>01.01.2024</td><td>north</td>" in answer.text
    curl = html.unescape(answer.text)
    assert "/v1/datasets/upload -F file=@shops.csv -F name=shops" in curl
    assert "'series': 'shop'" in curl


def test_outcomes_of_a_problem_are_suggested(client: TestClient) -> None:
    spec = {"kind": "newsvendor", "items": [{"name": "stocked", "underage_cost": 2, "overage_cost": 1}]}
    problem = create_problem(client, spec=spec)
    page = looked_at(client, f"/datasets/new?problem={problem['id']}")
    assert "needs this outcome column: <b>stocked</b>" in page
    assert uses(previewed(client, shops(), problem=problem["id"]).text)["stocked"] == "outcome"
    looked_at(client, "/datasets/new?problem=prob_nothing", 404)


def test_the_sheets_of_a_workbook_can_be_chosen(client: TestClient) -> None:
    rows = [["x", "sold"], *([number % 7, number * 3 % 17] for number in range(30))]
    content = workbook({"Notes": sheet([["a"], ["b"]]), "Sales 2024": sheet(rows)})
    first = previewed(client, content, "book.xlsx").text
    assert '<option value="Sales 2024"' in first
    form = {"csrf": token(client), "sheet": "Sales 2024", "name": "my own"}
    again = sent(client, "/datasets/new/preview", form, ("book.xlsx", content), **PART, **{"HX-Trigger-Name": "sheet"})
    assert uses(again.text) == {"x": "context", "sold": "outcome"}
    assert 'name="name" value="my own"' in again.text
    # Another file is chosen: what was chosen of the first does not matter to it.
    assert previewed(client, shops(), sheet="Sales 2024", name="my own").status_code == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (bytes(range(256)) * 20, "neither Parquet nor"),
        (b"PAR1" + bytes(40), "starts like Parquet"),
        (b"a,a\n1,2\n", "columns are called"),
        (b"x,sold\n", "no rows"),
    ],
)
def test_what_is_no_table_is_refused_in_place(client: TestClient, content: bytes, says: str) -> None:
    answer = previewed(client, content)
    assert answer.status_code == 422
    assert "Please correct" in answer.text
    assert says in answer.text
    assert "<html" not in answer.text


def test_names_and_values_are_only_text(client: TestClient) -> None:
    content = f'{SCRIPT},"\'><img src=x>",sold\n'.encode()
    content += b"".join(b"</title><b>%d,=1+%d,%d\n" % (n % 3, n % 4, n * 7 % 31) for n in range(40))
    name = '"><script>x.csv'
    answer = previewed(client, content, name)
    assert answer.status_code == 200
    for hostile in (SCRIPT, "<img", "<b>0", "</title>"):
        assert hostile not in answer.text
    assert html.escape(SCRIPT) in answer.text
    columns = re.search(r"name=\"columns\" value='([^']*)'", answer.text)
    assert columns is not None
    assert json.loads(html.unescape(columns[1])) == [SCRIPT, "'><img src=x>", "sold"]
    made = kept(client, content, {SCRIPT: "context", "'><img src=x>": "context", "sold": "outcome"}, name=SCRIPT)
    page = looked_at(client, made.headers["HX-Redirect"])
    for hostile in (SCRIPT, "<img", "<b>0", "</title><b>"):
        assert hostile not in page
    assert SCRIPT not in looked_at(client, "/datasets")
    refused = kept(client, content, {SCRIPT: "outcome", "sold": "context"})
    assert refused.status_code == 422
    assert "<script" not in refused.text


@pytest.mark.slow
def test_five_hundred_columns_can_be_looked_at_and_kept(client: TestClient) -> None:
    names = [f"c{number}" for number in range(500)]
    lines = [",".join(names)] + [",".join(str((row * 7 + n) % 31) for n in range(500)) for row in range(40)]
    content = "\n".join(lines).encode()
    found = uses(previewed(client, content).text)
    assert len(found) == 500
    made = kept(client, content, found)
    assert made.status_code == 204, made.text
    page = looked_at(client, made.headers["HX-Redirect"])
    assert page.count('class="histogram"') == 40
    assert "c499" in page


def test_a_file_that_is_too_large_is_refused(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_rows=50)
    answer = previewed(client, shops())
    assert answer.status_code == 422
    assert "most 50 rows (BCO_MAX_ROWS)" in answer.text


# keeping it


def test_what_was_looked_at_is_kept(client: TestClient) -> None:
    answer = kept(client, shops(), SHOPS, name="three months", lead="2")
    assert answer.status_code == 204
    dataset = answered(client.get("/v1" + answer.headers["HX-Redirect"]))
    assert (dataset["name"], dataset["lead"], dataset["rows"]) == ("three months", 2, 168)
    assert {column["name"]: column["role"] for column in dataset["columns"]} == SHOPS
    # Without scripts the browser itself goes there.
    form = {"csrf": token(client), "columns": json.dumps(list(SHOPS)), "lead": "", "missing": "", "unseen": ""}
    form |= {f"use.{index}": use for index, use in enumerate(SHOPS.values())}
    plain = sent(client, "/datasets/new", form, ("shops_2024.csv", shops()))
    assert plain.status_code == 303
    assert answered(client.get("/v1" + plain.headers["location"]))["name"] == "shops 2024"


def test_categories_left_out_columns_and_names_with_commas(client: TestClient) -> None:
    lines = ['"zone, old",code,note,"sold, net"'] + [f"{n % 4},{n % 3},x,{n * 7 % 31}" for n in range(60)]
    roles = {"zone, old": "category", "code": "out", "note": "out", "sold, net": "outcome"}
    answer = kept(client, "\n".join(lines).encode(), roles)
    assert answer.status_code == 204, answer.text
    columns = answered(client.get("/v1" + answer.headers["HX-Redirect"]))["columns"]
    assert [(column["name"], column["kind"]) for column in columns] == [
        ("zone, old", "categorical"),
        ("sold, net", "numeric"),
    ]


@pytest.mark.parametrize(
    ("roles", "changes", "says"),
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
def test_mistakes_are_said_and_nothing_is_kept(
    client: TestClient, roles: dict[str, str], changes: dict[str, str], says: str
) -> None:
    before = counts()
    answer = kept(client, shops(), SHOPS | roles, **changes)
    assert answer.status_code == 422
    assert says.lower() in html.unescape(answer.text).lower()
    assert counts() == before


def test_a_mistake_stands_beside_its_field(client: TestClient) -> None:
    answer = kept(client, shops(), SHOPS, lead="0").text
    beside = re.search(r'hx-swap-oob="innerHTML:#wrong-lead">(.*?)</div>', answer, re.DOTALL)
    assert beside is not None
    assert "greater than or equal to 1" in beside[1]
    assert '<div hx-swap-oob="innerHTML:#wrong-name"></div>' in answer


def test_up_to_twenty_mistakes_are_listed(client: TestClient) -> None:
    lines = ["x,sold"] + [f"{n % 7},{'none' if n < 40 else n}" for n in range(100)]
    answer = kept(client, "\n".join(lines).encode(), {"x": "context", "sold": "outcome"})
    assert answer.text.count("<li>") == 20
    assert "(and 39 more)" in answer.text


def test_the_call_follows_what_is_chosen(client: TestClient) -> None:
    form = {"csrf": token(client), "columns": '["a, b", "sold"]', "use.0": "context", "use.1": "outcome"}
    form |= {"filename": "own.csv", "name": "own", "lead": "1", "missing": "drop", "unseen": "reject", "sheet": ""}
    answer = html.unescape(sent(client, "/datasets/new/call", form, **PART).text)
    assert "-F file=@own.csv -F name=own -F outcomes=sold --form-string 'contexts=\"a, b\"' -F missing=drop" in answer
    broken = {"csrf": form["csrf"], "columns": '{"a": 1}'}
    assert sent(client, "/datasets/new/call", broken, **PART).status_code == 200


def test_keeping_without_having_looked_is_refused(client: TestClient) -> None:
    answer = sent(client, "/datasets/new", {"csrf": token(client), "columns": "oh"}, ("a.csv", shops()), **PART)
    assert (answer.status_code, "Wait for the preview" in answer.text) == (422, True)
    answer = sent(client, "/datasets/new", {"csrf": token(client)}, **PART)
    assert (answer.status_code, "Choose a file first" in answer.text) == (422, True)


# one of them


def test_a_data_set_says_what_it_is(client: TestClient) -> None:
    dataset = history(client)
    page = looked_at(client, f"/datasets/{dataset['id']}")
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


def test_a_series_of_its_own(client: TestClient) -> None:
    dataset = history(client)
    page = looked_at(client, f"/datasets/{dataset['id']}?series=north")
    assert "a point for each day, north alone" in page
    wrong = looked_at(client, f"/datasets/{dataset['id']}?series={SCRIPT}", 422)
    assert "The data set has no such series; write shop, such as north." in wrong
    assert "all 2 series together" in wrong
    assert SCRIPT not in wrong


def test_without_time_and_without_oddities(client: TestClient) -> None:
    dataset = create_dataset(client)
    page = looked_at(client, f"/datasets/{dataset['id']}")
    assert f"{len(ROWS)} rows without a time column" in page
    assert "over time" not in page
    assert "No warnings" in page or "check before training" in page


def test_of_many_outcomes_one_is_chosen(client: TestClient) -> None:
    rows = [
        {"day": str(date(2024, 1, 1) + timedelta(n))} | {f"item {k}": (n * k) % 11 for k in range(1, 6)}
        for n in range(60)
    ]
    outcomes = [f"item {k}" for k in range(1, 6)]
    dataset = create_dataset(client, rows=rows, outcomes=outcomes, time="day")
    page = looked_at(client, f"/datasets/{dataset['id']}")
    assert page.count("data-chart") == 1
    assert "item 3 over time" in looked_at(client, f"/datasets/{dataset['id']}?outcome=item+3")


def test_periods_and_long_histories(client: TestClient) -> None:
    rows = [{"step": 10 * n, "sold": n % 13} for n in range(2, 900) if not 300 < n < 320]
    dataset = create_dataset(client, rows=rows, outcomes=["sold"], time="step")
    page = looked_at(client, f"/datasets/{dataset['id']}")
    assert "every 10 periods from 20 to 8990" in page
    assert "190 periods" in page
    assert "lowest to highest" in page


def test_large_data_are_drawn_after_the_page_is_there(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pages.datasets._DRAWN_AT_ONCE", 100)
    dataset = history(client)
    page = looked_at(client, f"/datasets/{dataset['id']}?series=north")
    (address,) = re.findall(r'hx-get="(/datasets/[^"]+/drawn[^"]*)"', page)
    assert "data-chart" not in page
    part = client.get(html.unescape(address), headers=HTML | PART).text
    assert "north alone" in part
    assert "<html" not in part


def test_what_was_made_with_it(client: TestClient) -> None:
    job = create_job(client, name="first try")
    page = looked_at(client, f"/datasets/{job['dataset_id']}")
    assert f'href="/jobs/{job["id"]}">first try</a>' in page
    assert "queued" in page


def test_a_data_set_that_is_not_there(client: TestClient) -> None:
    for path in ("/datasets/data_nothing", "/datasets/x%3Flimit=1", "/datasets/data_nothing/drawn"):
        found = client.get(path, headers=HTML)
        assert found.status_code == 404, path


# more rows, and the end


def test_rows_are_appended(client: TestClient) -> None:
    dataset = history(client)
    more = b"day;shop;promotion;sold;stocked\n31.03.2024;north;0;41;\n31.03.2024;south;0;61;60\n"
    address = f"/datasets/{dataset['id']}/rows"
    answer = sent(client, address, {"csrf": token(client)}, ("more.csv", more), **PART)
    assert answer.headers["HX-Redirect"] == f"/datasets/{dataset['id']}?added=2"
    page = looked_at(client, answer.headers["HX-Redirect"])
    assert "2 rows were appended" in page
    assert "Revision 2." in page
    again = sent(client, address, {"csrf": token(client)}, ("more.csv", more), **PART)
    assert again.status_code == 422
    assert "the same time and series" in again.text
    plain = sent(client, address, {"csrf": token(client)}, ("more.csv", more))
    assert plain.status_code == 422
    assert "<h1>shops</h1>" in plain.text
    looked_at(client, f"/datasets/{dataset['id']}?added={SCRIPT}")


def test_a_data_set_is_deleted_unless_jobs_use_it(client: TestClient) -> None:
    dataset = history(client)
    answer = sent(client, f"/datasets/{dataset['id']}/delete", {"csrf": token(client)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets")
    assert client.get(f"/v1/datasets/{dataset['id']}").status_code == 404
    used = create_job(client)["dataset_id"]
    answer = sent(client, f"/datasets/{used}/delete", {"csrf": token(client)})
    assert answer.status_code == 409
    assert "Jobs use this data set; delete them first" in answer.text
    assert client.get(f"/v1/datasets/{used}").status_code == 200


# who may


@pytest.mark.parametrize(
    "path", ["/datasets/new", "/datasets/new/preview", "/datasets/new/call", "{}/rows", "{}/delete"]
)
def test_forms_of_others_are_refused(client: TestClient, path: str) -> None:
    dataset = create_dataset(client)
    address = path.format(f"/datasets/{dataset['id']}")
    for form in ({}, {"csrf": "guessed"}):
        assert sent(client, address, form, ("a.csv", shops())).status_code == 403
    elsewhere = {"Origin": "https://elsewhere.example"}
    refused = sent(client, address, {"csrf": token(client)}, ("a.csv", shops()), **elsewhere)
    assert refused.status_code == 403
    assert client.get(f"/v1/datasets/{dataset['id']}").status_code == 200


def test_a_key_that_may_only_read_sees_no_forms_and_is_refused(client: TestClient) -> None:
    dataset = history(client)
    keys.create("all", "default", ["read", "train", "admin"], None)
    key = keys.create("reader", "default", ["read"], None)[1]
    form = {"csrf": looked_at(client, "/login").split('name="csrf" value="')[1].split('"')[0], "key": key, "next": "/"}
    assert client.post("/login", data=form, follow_redirects=False).status_code == 303
    page, listed = looked_at(client, f"/datasets/{dataset['id']}"), looked_at(client, "/datasets")
    for hidden in ("/jobs/new", "/backtests/new", '/rows" enctype', "/delete", 'type="file"', "/datasets/new"):
        assert hidden not in page
        assert hidden not in listed
    looked_at(client, "/datasets/new", 403)
    file = ("a.csv", shops())
    for path, sends in ((f"{dataset['id']}/rows", file), (f"{dataset['id']}/delete", None), ("new/preview", file)):
        refused = sent(client, f"/datasets/{path}", {"csrf": token(client)}, sends)
        assert refused.status_code == 403
        assert "scope" in refused.text
    assert kept(client, shops(), SHOPS).status_code == 403


def test_data_of_another_workspace_are_not_there(client: TestClient) -> None:
    dataset = history(client)
    key = keys.create("elsewhere", "other", ["read", "train", "admin"], None)[1]
    form = {"csrf": looked_at(client, "/login").split('name="csrf" value="')[1].split('"')[0], "key": key, "next": "/"}
    client.post("/login", data=form)
    looked_at(client, f"/datasets/{dataset['id']}", 404)
    assert "No data yet" in looked_at(client, "/datasets")
