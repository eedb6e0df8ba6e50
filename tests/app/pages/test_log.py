"""Pages about the log: filters, one entry, recorded outcomes, reproduction and permissions."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PrescriptionRow
from app.pages.format import format_value, one_line
from app.pages.log import MOST_ROWS, LogEntryView, outcome_request, pointer_of
from tests.app.datasets.test_histories import context as shop_context
from tests.app.datasets.test_histories import learned_from, shops
from tests.support.journey import CONTEXTS, Json, check_json, learn_posterior
from tests.support.pages import another_browser, look, people, send, words


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, name="bakery")


def log_prescription(client: TestClient, posterior: Json, **changes: Any) -> Json:
    """Prescribe for two contexts and wait until the log has the call."""
    kind = "evaluate" if "alternatives" in changes else "prescribe"
    body = {"contexts": CONTEXTS[:2]} | changes
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/{kind}", json=body))
    assert client.app.state.log.flush(10)  # type: ignore[attr-defined]
    return answer


def field_errors(page: Any) -> list[str]:
    return [html.unescape(text) for text in re.findall(r'<p class="wrong" id="[^"]*">(.*?)</p>', page.text)]


# the list


def test_an_empty_log_links_to_the_decide_page(browser: TestClient, client: TestClient, posterior: Json) -> None:
    assert "No decisions yet" in words(look(browser, "/log"))
    assert f'href="/posteriors/{posterior["id"]}/decide"' in look(browser, "/log").text


def test_the_list_is_newest_first_and_paginated(
    browser: TestClient, client: TestClient, posterior: Json, settings: Callable[..., None]
) -> None:
    settings(log_rate=10_000)
    answers = [log_prescription(client, posterior) for _ in range(27)]
    page = look(browser, "/log")
    listed = re.findall(r'href="/log/(pres_\w+)"', page.text)
    assert listed == [answer["id"] for answer in answers[:1:-1]]
    shown = words(page)
    assert one_line(answers[-1]["prescriptions"][0]["decision"]) in shown
    assert one_line(CONTEXTS[0]) in shown
    older = re.search(r'<p class="pager"><a href="([^"]*)"', page.text)
    assert older is not None
    rest = look(browser, html.unescape(older[1]))
    assert re.findall(r'href="/log/(pres_\w+)"', rest.text) == [answer["id"] for answer in answers[1::-1]]
    for format in ("csv", "parquet"):
        assert f"/v1/prescriptions/export?format={format}" in page.text


def test_filters_narrow_the_list_and_the_export(browser: TestClient, client: TestClient, posterior: Json) -> None:
    other = learn_posterior(client, name="another")
    what_if = log_prescription(
        client, other, alternatives=[{"name": "as always", "decision": {"croissants": 60, "loaves": 60}}]
    )
    found = {
        f"posterior={other['id']}": True,
        "kind=evaluate": True,
        "kind=prescribe": False,
        "outcome=yes": False,
        "outcome=no": True,
        "since=2020-01-01&until=2020-01-02": False,
        "since=2020-01-01&until=2190-01-01": True,
    }
    for query, expected in found.items():
        page = look(browser, f"/log?{query}")
        assert (what_if["id"] in page.text) is expected, query
        assert ("No decisions match the filter" in words(page)) is ("2020-01-02" in query or query == "outcome=yes")
    page = look(browser, f"/log?posterior={other['id']}&outcome=no")
    assert f"posterior_id={other['id']}&has_outcome=false&format=csv" in html.unescape(page.text)
    # the last day is included
    day = check_json(client.get(f"/v1/prescriptions/{what_if['id']}"))["created_at"][:10]
    assert what_if["id"] in look(browser, f"/log?since={day}&until={day}").text


@pytest.mark.parametrize("query", ["since=yesterday", "until=2024-99-01", "kind=guess", "outcome=perhaps"])
def test_an_invalid_filter_shows_an_error_at_its_field(browser: TestClient, query: str) -> None:
    assert field_errors(look(browser, f"/log?{query}", 422)) != []


# one call


def test_an_entry_describes_the_call_and_links_to_deciding_again(
    browser: TestClient, client: TestClient, posterior: Json
) -> None:
    answer = log_prescription(client, posterior, policy="bcp", risk={"cvar_weight": 0.5, "cvar_level": 0.9})
    page = look(browser, f"/log/{answer['id']}?context=1")
    shown = words(page)
    decision = answer["prescriptions"][1]["decision"]
    for name, value in decision.items():
        assert f"{name} {format_value(round(value, 2))[:4]}" in shown
    assert "2 contexts" in shown
    assert "weight 50% on the worst 10% of cases" in shown
    again = re.search(rf'href="(/posteriors/{posterior["id"]}/decide\?[^"]*)"', page.text)
    assert again is not None
    second = CONTEXTS[1]
    for part in (f"c.weekday={second['weekday']}", f"c.promotion={int(second['promotion'])}", "policy=bcp", "risk=0.5"):
        assert part in html.unescape(again[1])
    for address in (f"/v1/prescriptions/{answer['id']}/outcome", f"/v1/prescriptions/{answer['id']}/reproduce"):
        assert address in page.text


def test_a_what_if_entry_shows_its_alternatives(browser: TestClient, client: TestClient, posterior: Json) -> None:
    alternatives = [{"name": "as always", "decision": {"croissants": 60, "loaves": 60}}]
    answer = log_prescription(client, posterior, contexts=CONTEXTS[:1], alternatives=alternatives)
    shown = words(look(browser, f"/log/{answer['id']}"))
    assert "What-if" in shown
    assert "as always croissants 60, loaves 60" in shown


def test_patched_problem_numbers_are_named(browser: TestClient, client: TestClient, posterior: Json) -> None:
    answer = log_prescription(client, posterior, problem_patch={"items": {"croissants": {"underage_cost": 9}}})
    assert "items/croissants/underage_cost" in words(look(browser, f"/log/{answer['id']}"))


def test_a_call_with_many_contexts_lists_the_first_and_opens_any(
    browser: TestClient, client: TestClient, posterior: Json
) -> None:
    answer = log_prescription(client, posterior, contexts=CONTEXTS + CONTEXTS[:4], scenarios=20)
    page = look(browser, f"/log/{answer['id']}?context=63")
    assert f"Showing the first {MOST_ROWS}" in words(page)
    assert f"?context={MOST_ROWS - 1}" in page.text
    assert f"?context={MOST_ROWS}" not in page.text
    assert "context 64" in words(page)
    assert "context 64" in words(look(browser, f"/log/{answer['id']}?context=999"))
    assert "context 1" in words(look(browser, f"/log/{answer['id']}?context=x"))


def test_a_context_with_lags_shows_the_history_it_used(browser: TestClient, client: TestClient) -> None:
    posterior = learned_from(client, shops(client))
    answer = log_prescription(client, posterior, contexts=[shop_context(60)])
    assert "History rows up to" in words(look(browser, f"/log/{answer['id']}"))


# outcomes


def test_an_outcome_is_recorded_costed_and_corrected(browser: TestClient, client: TestClient, posterior: Json) -> None:
    answer = log_prescription(client, posterior)
    path = f"/log/{answer['id']}"
    fields: Json = {"context": "1", "outcome.croissants": "70", "outcome.loaves": "80"}
    assert send(browser, f"{path}/outcome", **fields).headers["location"] == f"{path}?context=1#later"
    record = check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"][0]
    assert (record["index"], record["outcomes"]) == (1, {"croissants": 70, "loaves": 80})
    shown = words(look(browser, f"{path}?context=1"))
    assert "The recommended decision cost" in shown
    assert "No outcome recorded yet" in words(look(browser, path))
    actual: Json = {"context": "1", "actual_decision.croissants": "60", "actual_decision.loaves": "60"}
    send(browser, f"{path}/outcome", **actual)
    record = check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"][0]
    shown = words(look(browser, f"{path}?context=1"))
    assert ("would have saved" in shown) is (record["saved"] > 0)
    other = fields | {"outcome.croissants": "75"}
    refused = send(browser, f"{path}/outcome", 409, **other)
    assert "Another value is recorded already" in " ".join(field_errors(refused))
    assert 'name="replace"' in refused.text
    assert 'value="75"' in refused.text
    send(browser, f"{path}/outcome", replace="yes", **other)
    record = check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"][0]
    assert record["outcomes"]["croissants"] == 75


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outcome.croissants": "seventy"}, "valid number"),
        ({"outcome.croissants": "1,200"}, "valid number"),
        ({"actual_decision.loaves": "nan"}, "valid number"),
        ({}, "nothing to record"),
        ({"outcome.bagels": "3"}, "outcomes are croissants, loaves"),
    ],
)
def test_invalid_outcomes_show_an_error_and_keep_the_input(
    browser: TestClient, client: TestClient, posterior: Json, fields: Json, message: str
) -> None:
    answer = log_prescription(client, posterior)
    page = send(browser, f"/log/{answer['id']}/outcome", 422, context="0", **fields)
    assert message in words(page)
    if "nothing" not in message and "bagels" not in str(fields):
        assert any(message in one for one in field_errors(page))
        assert next(iter(fields.values())) in page.text
    assert check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"] == []


def test_reproduction_is_identical_until_the_posterior_is_deleted(browser: TestClient, client: TestClient) -> None:
    posterior = learn_posterior(client, name="short-lived")
    answer = log_prescription(client, posterior)
    page = send(browser, f"/log/{answer['id']}/reproduce", 200, context="0")
    assert "Identical" in words(page)
    client.delete(f"/v1/posteriors/{posterior['id']}")
    page = look(browser, f"/log/{answer['id']}")
    assert "was deleted" in words(page)
    assert "Decide again" not in words(page)
    assert 'name="outcome.' not in page.text
    gone = send(browser, f"/log/{answer['id']}/reproduce", 200, context="0")
    assert "the call cannot be repeated" in words(gone)
    assert send(browser, f"/log/{answer['id']}/outcome", 409, **{"outcome.loaves": "3"})


def test_reproduction_lists_the_values_that_differ(browser: TestClient, client: TestClient, posterior: Json) -> None:
    from app.db.blobs import checksum
    from app.log.writer import compress, decompress

    answer = log_prescription(client, posterior)
    with transaction() as session:
        row = session.get_one(PrescriptionRow, answer["id"])
        stored = decompress(row.answer, row.answer_sha256).replace(b'"quality":"', b'"quality":"not ', 1)
        row.answer, row.answer_sha256 = compress(stored), checksum(stored)
    page = send(browser, f"/log/{answer['id']}/reproduce", 200, context="0")
    assert "Different: 1 value" in words(page)
    assert "#/quality" in words(page)


def test_forged_forms_and_keys_without_train_scope_are_rejected(client: TestClient, posterior: Json) -> None:
    answer = log_prescription(client, posterior)
    path, stranger = f"/log/{answer['id']}", another_browser(client)
    for action in ("outcome", "reproduce"):
        assert stranger.post(f"{path}/{action}", data={"csrf": "guessed"}).status_code == 403
    with people(client) as log_in:
        reader = log_in("read")
        page = look(reader, path)
        assert "Record the outcome" not in words(page)
        assert "Recording needs a key with the scope train" in words(page)
        assert "scope 'train'" in words(send(reader, f"{path}/outcome", 403, **{"outcome.loaves": "3"}))
        # reproducing changes nothing
        assert "Identical" in words(send(reader, f"{path}/reproduce", 200))
        look(log_in(workspace="other"), path, 404)


# parts


def test_the_outcome_request_holds_the_typed_values() -> None:
    values = {"outcome.a": "3", "outcome.b": "", "actual_decision.a/b": " 4.5 ", "other": "x"}
    assert outcome_request(2, values, True) == {
        "rows": [{"index": 2, "outcomes": {"a": 3.0}, "actual_decision": {"a/b": 4.5}}],
        "replace": True,
    }
    assert outcome_request(0, {}, False) == {"rows": [{"index": 0}]}
    assert pointer_of("actual_decision.", "a/b~c") == "#/rows/0/actual_decision/a~1b~0c"


def test_contexts_sent_as_lists_get_their_column_names() -> None:
    columns = [{"name": "weekday", "role": "context"}, {"name": "sold", "role": "outcome"}]
    record = {"kind": "prescribe", "request": {"contexts": [["SAT"], 3]}, "outcomes": []}
    entry = LogEntryView(record, {"columns": columns}, 0)
    assert entry.context(0) == {"weekday": "SAT"}
    assert entry.context(1) == {}


def test_long_values_are_shortened_to_one_line() -> None:
    assert one_line({"a": True, "b": 1.23456, "c": None, "d": "x", "e": 5, "f": 6, "g": 7}) == (
        "a yes, b 1.235, c –, d x, e 5 and 2 more"
    )
    assert one_line(["SAT", 21.5]) == "SAT, 21.5"
    assert one_line("odd") == "odd"
