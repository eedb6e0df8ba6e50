"""Prescription log: each answer with an id is stored exactly as sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app import metrics
from app.db import engine
from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.tables import OutcomeRow, PrescriptionRow
from app.http.security import LOCAL, Caller
from app.ids import first_id, new_id
from app.jobs import retention
from app.keys import service as keys
from app.log import writer
from app.prescriptions.context import AnswerBody
from app.prescriptions.schemas import PrescribeAnswer
from tests.app.datasets.test_histories import context, learned_from, shop_rows, shops
from tests.app.problems.test_two_stage import SHIPMENT, posterior_for
from tests.support.journey import CONTEXTS, QUICK, Json, check_json, learn_posterior, pages, without_id

# This module depends on the database's own SQL.
pytestmark = pytest.mark.both_databases

Settings = Callable[..., None]


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, inference=QUICK | {"particles": 60})


@pytest.fixture(autouse=True)
def _high_log_rate(settings: Settings) -> None:
    """Keep the log rate out of the way; tests of the rate set their own."""
    settings(log_rate=100_000)


def prescribe_content(client: TestClient, posterior: Json, **changes: Any) -> bytes:
    body = {"contexts": CONTEXTS[:1]} | changes
    response = client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body)
    assert response.status_code == 200, response.text
    return response.content


def id_of(content: bytes) -> str:
    identifier: str = orjson.loads(content)["id"]
    return identifier


def flush_log(client: TestClient) -> None:
    assert client.app.state.log.flush(10)  # type: ignore[attr-defined]


def logged_count(result: str) -> float:
    return metrics.LOGGED.labels(result)._value.get()


def list_ids(client: TestClient, path: str, **query: Any) -> list[str]:
    return [one["id"] for one in check_json(client.get(path, params=query))["items"]]


# stored answers


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.api+json"])
def test_both_paths_store_an_answer_byte_for_byte(client: TestClient, posterior: Json, kind: str) -> None:
    body = {"contexts": CONTEXTS[:3], "scenarios": 30, "policy": "averaged"}
    address = f"/v1/posteriors/{posterior['id']}/prescribe"
    content = client.post(address, content=orjson.dumps(body), headers={"content-type": kind}).content
    PrescribeAnswer.model_validate_json(content)
    response = client.get(f"/v1/prescriptions/{id_of(content)}")
    found = check_json(response)
    # As it was sent, not only the same values.
    assert b'"answer":%b,"outcomes":[]}' % content in response.content
    assert found["request"]["contexts"] == body["contexts"]
    assert (found["request"]["scenarios"], found["request"]["costs_over"]) == (30, "predictive")
    assert (found["posterior_id"], found["digest"]) == (posterior["id"], posterior["digest"])
    assert (found["kind"], found["contexts"], found["recorded"], found["key_id"]) == ("prescribe", 3, 0, None)
    assert abs(datetime.fromisoformat(found["created_at"]) - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_id_comes_first_and_changes_nothing_else(client: TestClient, posterior: Json, settings: Settings) -> None:
    content = prescribe_content(client, posterior)
    settings(log_prescriptions=False)
    off = prescribe_content(client, posterior)
    assert off.startswith(b'{"id":null,"posterior_id":')
    assert without_id(off) == without_id(content) == b"{" + content.partition(b",")[2]


def test_a_refused_call_is_not_logged(client: TestClient, posterior: Json) -> None:
    flush_log(client)
    before = len(list_ids(client, "/v1/prescriptions", posterior_id=posterior["id"], limit=200))
    bad = client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json={"contexts": [{"weekday": "SAT"}]})
    assert bad.status_code == 422
    flush_log(client)
    assert len(list_ids(client, "/v1/prescriptions", posterior_id=posterior["id"], limit=200)) == before


def test_above_the_rate_calls_are_sampled_and_only_those_have_an_id(
    client: TestClient, posterior: Json, settings: Settings
) -> None:
    settings(log_rate=3)
    before = logged_count("sampled")
    answers = [id_of(prescribe_content(client, posterior)) for _ in range(40)]
    kept = [one for one in answers if one]
    # A burst of twice the rate, plus the refill while they are answered.
    assert 6 <= len(kept) < 40
    assert logged_count("sampled") - before == 40 - len(kept)
    assert all(client.get(f"/v1/prescriptions/{one}").status_code == 200 for one in kept)


def test_a_large_call_counts_as_several_and_a_huge_one_is_not_stored(
    client: TestClient, posterior: Json, settings: Settings
) -> None:
    settings(log_rate=3)
    large = prescribe_content(client, posterior, contexts=CONTEXTS * 3)
    assert len(large) > 2 * writer.PIECE_BYTES
    # It uses more than three of the first six tokens.
    assert [id_of(one) is None for one in (large, *(prescribe_content(client, posterior) for _ in range(3)))].count(
        True
    ) >= 1
    settings(log_rate=100_000, log_max_kb=1)
    before = logged_count("large")
    assert id_of(prescribe_content(client, posterior, contexts=CONTEXTS)) is None
    assert logged_count("large") == before + 1


def test_a_large_request_with_a_small_answer_is_not_stored(
    client: TestClient, posterior: Json, settings: Settings
) -> None:
    settings(log_max_kb=20)
    odd = CONTEXTS[0] | {"weekday": "x" * 30_000}
    assert id_of(prescribe_content(client, posterior, contexts=[CONTEXTS[0], odd])) is None

    def stream_body() -> Iterator[bytes]:
        yield orjson.dumps({"contexts": [CONTEXTS[0], odd]})

    address = f"/v1/posteriors/{posterior['id']}/prescribe"
    response = client.post(address, content=stream_body(), headers={"content-type": "application/json"})
    assert "content-length" not in response.request.headers
    assert id_of(response.content) is None


@pytest.mark.parametrize("odd", [r'"\ud800"', "123456789012345678901234567890"])
def test_lone_surrogates_and_huge_integers_are_stored(client: TestClient, posterior: Json, odd: str) -> None:
    usual = orjson.dumps(CONTEXTS[0]).decode()
    strange = orjson.dumps(CONTEXTS[0] | {"weekday": "ODD"}).decode().replace('"ODD"', odd)
    content = f'{{"contexts": [{usual}, {strange}]}}'.encode()
    address = f"/v1/posteriors/{posterior['id']}/prescribe"
    answer = client.post(address, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    identifier = id_of(answer.content)
    assert client.get(f"/v1/prescriptions/{identifier}").status_code == 200
    assert check_json(client.post(f"/v1/prescriptions/{identifier}/reproduce"))["identical"]


@pytest.mark.slow
def test_a_thousand_concurrent_calls_are_stored_with_unique_ids(
    client: TestClient, posterior: Json, settings: Settings
) -> None:
    settings(max_prescriptions=2_000, max_workspace_prescriptions=0)
    with ThreadPoolExecutor(16) as threads:
        ids = list(threads.map(lambda _: id_of(prescribe_content(client, posterior)), range(1_000)))
    assert None not in ids
    assert len(set(ids)) == 1_000
    flush_log(client)
    with transaction() as session:
        found = set(session.scalars(sa.select(PrescriptionRow.id).where(PrescriptionRow.id >= min(ids))))
    assert set(ids) <= found


# the queue


class Http:
    """Request with the fields that the writer reads."""

    def __init__(self, caller: Caller = LOCAL) -> None:
        self.scope = {"caller": caller, "headers": [(b"content-length", b"10")]}


class LoggedRequest:
    contexts: list[Any] = [{}]  # noqa: RUF012

    def model_dump(self) -> Json:
        return {"contexts": self.contexts}


ANSWER = AnswerBody("post_X", "d", b'{"posterior_id":"post_X","digest":"d","prescriptions":[]}')


def keep(log: writer.Writer) -> str | None:
    return orjson.loads(log.keep("prescribe", Http(), LoggedRequest(), ANSWER))["id"]  # type: ignore[arg-type,no-any-return]


def test_the_writer_waits_for_the_database_and_a_full_queue_gives_no_ids(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer.Writer()
    out = threading.Event()
    out.set()
    real = engine.get_engine()

    def engine_or_outage() -> sa.Engine:
        if out.is_set():
            raise sa.exc.OperationalError("insert", {}, Exception("connection refused"))
        return real

    monkeypatch.setattr(writer, "get_engine", engine_or_outage)
    monkeypatch.setattr(writer, "MOST_WAITING", 5)
    before = logged_count("full")
    ids = [keep(log) for _ in range(8)]
    assert [one is None for one in ids] == [False] * 5 + [True] * 3
    assert logged_count("full") == before + 3
    assert not log.flush(0.5)
    out.clear()
    assert log.flush(10)
    with transaction() as session:
        kept = session.scalars(sa.select(PrescriptionRow.id).where(PrescriptionRow.posterior_id == "post_X")).all()
    assert {one for one in ids if one} <= set(kept)
    assert keep(log) is not None
    log.close()


def test_closing_writes_the_queue_and_counts_lost_records(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_SECONDS", 60.0)
    log = writer.Writer()
    kept = keep(log)
    log.close()
    with transaction() as session:
        assert session.get(PrescriptionRow, kept) is not None
    # A closed writer gives no ids.
    assert keep(log) is None
    unlucky = writer.Writer()

    def raise_outage() -> sa.Engine:
        raise sa.exc.OperationalError("insert", {}, Exception("connection refused"))

    monkeypatch.setattr(writer, "get_engine", raise_outage)
    before = logged_count("lost")
    keep(unlucky)
    unlucky.close()
    assert logged_count("lost") == before + 1


def test_the_queue_is_bounded_in_bytes_of_requests_and_answers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BATCH_SECONDS", 60.0)
    log = writer.Writer()
    monkeypatch.setattr(writer, "MOST_BYTES", 3 * (len(ANSWER.content) + 10))
    assert [keep(log) is None for _ in range(4)] == [False, False, False, True]
    log.close()
    assert log._bytes == 0


def test_a_record_that_cannot_be_stored_is_dropped_and_the_next_is_stored(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, before = writer.Writer(), logged_count("lost")
    real = writer._insert

    def raise_programming_error(rows: list[Json]) -> None:
        raise sa.exc.ProgrammingError("insert", {}, Exception("no such column"))

    monkeypatch.setattr(writer, "_insert", raise_programming_error)
    assert keep(log) is not None
    assert log.flush(10)
    assert logged_count("lost") == before + 1
    monkeypatch.setattr(writer, "_insert", real)
    kept = keep(log)
    assert log.flush(10)
    log.close()
    with transaction() as session:
        assert session.get(PrescriptionRow, kept) is not None


def test_writing_a_record_twice_stores_it_once(client: TestClient) -> None:
    record = writer._Record(
        new_id("pres"), "prescribe", LOCAL, datetime.now(UTC), "post_X", "d", LoggedRequest(), ANSWER.with_id("x"), 9
    )
    row = writer._row(record)
    assert row is not None
    for _ in range(2):
        writer._insert([row])
    with transaction() as session:
        assert session.get(PrescriptionRow, record.id) is not None


def test_metrics_count_stored_prescriptions(client: TestClient, posterior: Json) -> None:
    prescribe_content(client, posterior)
    flush_log(client)
    text = client.get("/metrics").text
    assert 'bco_logged_prescriptions_total{result="kept"}' in text
    assert "bco_logged_prescriptions_waiting 0.0" in text


# lists


def test_filters_select_matching_prescriptions(client: TestClient, posterior: Json) -> None:
    other = learn_posterior(client)
    start = datetime.now(UTC)
    mine = [id_of(prescribe_content(client, posterior)) for _ in range(3)]
    theirs = id_of(prescribe_content(client, other))
    check_json(client.post(f"/v1/prescriptions/{mine[1]}/outcome", json={"outcomes": {"loaves": 3}}))
    flush_log(client)
    path = "/v1/prescriptions"
    since = start.isoformat()
    assert list_ids(client, path, since=since) == [theirs, *reversed(mine)]
    assert list_ids(client, path, since=since, posterior_id=other["id"]) == [theirs]
    assert list_ids(client, path, since=since, has_outcome=True) == [mine[1]]
    assert list_ids(client, path, since=since, has_outcome=False) == [theirs, mine[2], mine[0]]
    assert list_ids(client, path, since=since, kind="evaluate") == []
    assert list_ids(client, path, until=since, limit=200).count(theirs) == 0
    # A time without a zone is UTC; other zones are converted.
    assert list_ids(client, path, since=start.replace(tzinfo=None).isoformat()) == [theirs, *reversed(mine)]
    late = datetime.fromisoformat(check_json(client.get(f"{path}/{theirs}"))["created_at"]) + timedelta(milliseconds=2)
    assert list_ids(client, path, since=since, until=late.isoformat()) == [theirs, *reversed(mine)]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"posterior_id": "'; DROP TABLE prescriptions; --"}, 200),
        ({"posterior_id": "post_\x00"}, 200),
        ({"key": "\ud800".encode("utf-8", "surrogatepass")}, 200),
        ({"key": "x" * 5_000}, 200),
        ({"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T23:59:59Z"}, 200),
        ({"since": "0001-01-01T00:00:00+14:00"}, 200),
        ({"since": "1700000000"}, 422),
        ({"since": "yesterday"}, 422),
        ({"kind": "guess"}, 422),
        ({"has_outcome": "perhaps"}, 422),
        ({"cursor": "pres_"}, 422),
        ({"limit": 100_000}, 422),
        ({"posterior": "post_1"}, 422),
    ],
)
def test_hostile_filters_are_refused_or_match_nothing(client: TestClient, query: Json, status: int) -> None:
    for path in ("/v1/prescriptions", "/v1/prescriptions/export"):
        found = client.get(path, params=query)
        if path.endswith("export") and status == 200:
            assert found.status_code in (200, 404), found.text
        else:
            assert found.status_code == (422 if path.endswith("export") else status), found.text


def test_a_list_can_include_the_answer_to_the_first_context(client: TestClient, posterior: Json) -> None:
    content = prescribe_content(client, posterior, contexts=CONTEXTS[1:3])
    judged = {"contexts": CONTEXTS[:1], "alternatives": [{"decision": {"croissants": 60, "loaves": 60}}]}
    evaluated = check_json(client.post(f"/v1/posteriors/{posterior['id']}/evaluate", json=judged))
    large = id_of(prescribe_content(client, posterior, contexts=CONTEXTS * 40, scenarios=20))
    flush_log(client)
    listed = check_json(client.get("/v1/prescriptions", params={"first": True, "limit": 3}))["items"]
    first = {one["id"]: one["first"] for one in listed}
    first_prescription = orjson.loads(content)["prescriptions"][0]
    assert first[id_of(content)] == {
        "context": CONTEXTS[1],
        "decision": first_prescription["decision"],
        "expected_cost": first_prescription["expected_cost"],
        "status": first_prescription["status"],
    }
    assert first[evaluated["id"]]["decision"] == evaluated["evaluations"][0]["ours"]["decision"]
    assert first[large] is None
    plain = check_json(client.get("/v1/prescriptions", params={"limit": 3}))["items"]
    assert [one["first"] for one in plain] == [None] * 3


def test_a_damaged_answer_is_listed_without_its_first_decision(client: TestClient, posterior: Json) -> None:
    identifier = id_of(prescribe_content(client, posterior))
    flush_log(client)
    with transaction() as session:
        row = session.get_one(PrescriptionRow, identifier)
        row.answer = b"damaged"
    listed = check_json(client.get("/v1/prescriptions", params={"first": True, "limit": 1}))["items"]
    assert (listed[0]["id"], listed[0]["first"]) == (identifier, None)
    with transaction() as session:
        session.delete(session.get_one(PrescriptionRow, identifier))


@pytest.mark.slow
def test_pagination_shows_each_prescription_once_during_writes(client: TestClient, posterior: Json) -> None:
    there = [id_of(prescribe_content(client, posterior)) for _ in range(30)]
    flush_log(client)
    stop = threading.Event()

    def write_prescriptions() -> None:
        while not stop.is_set():
            prescribe_content(client, posterior)

    thread = threading.Thread(target=write_prescriptions)
    thread.start()
    try:
        seen = [one["id"] for page in pages(client, "/v1/prescriptions", 7) for one in page]
    finally:
        stop.set()
        thread.join()
    assert len(seen) == len(set(seen))
    assert set(there) <= set(seen)
    assert seen == sorted(seen, reverse=True)


def test_a_new_answer_is_found_at_once_and_an_unknown_id_fails_fast(client: TestClient, posterior: Json) -> None:
    for _ in range(3):
        assert client.get(f"/v1/prescriptions/{id_of(prescribe_content(client, posterior))}").status_code == 200
    for absent in (new_id("pres"), first_id("pres", 2**48 - 1), first_id("pres", 0), "pres_x", "x", posterior["id"]):
        response = client.get(f"/v1/prescriptions/{absent}")
        assert response.status_code == 404, absent
        assert "no prescription" in response.json()["detail"]


# workspaces and keys


def test_a_workspace_sees_only_its_own_prescriptions_with_their_key(client: TestClient, posterior: Json) -> None:
    theirs = id_of(prescribe_content(client, posterior))
    _, secret = keys.create("reader", "elsewhere", ["read"], None)
    ours, own = keys.create("planner", DEFAULT_WORKSPACE, ["read"], None)
    try:
        client.app.state.lookups._entries.clear()  # type: ignore[attr-defined]
        header, local = ({"Authorization": f"Bearer {one}"} for one in (secret, own))
        for method, path in (
            ("GET", f"/v1/prescriptions/{theirs}"),
            ("POST", f"/v1/prescriptions/{theirs}/reproduce"),
            ("GET", "/v1/prescriptions/export"),
        ):
            assert client.request(method, path, headers=header).status_code == 404
        assert client.get("/v1/prescriptions", headers=header).json()["items"] == []
        response = client.post(
            f"/v1/posteriors/{posterior['id']}/prescribe", json={"contexts": CONTEXTS[:1]}, headers=local
        )
        identifier = id_of(response.content)
        assert client.get(f"/v1/prescriptions/{identifier}", headers=local).json()["key_id"] == ours.id
        found = client.get("/v1/prescriptions", params={"key": ours.id}, headers=local).json()["items"]
        assert [one["id"] for one in found] == [identifier]
        # Recording an outcome needs the train scope, like creating a data set.
        outcome = {"outcomes": {"loaves": 1.0}}
        assert client.post(f"/v1/prescriptions/{identifier}/outcome", json=outcome, headers=local).status_code == 403
    finally:
        with transaction() as session:
            session.execute(sa.text("DELETE FROM keys"))
        client.app.state.lookups._entries.clear()  # type: ignore[attr-defined]


# reproducing


@pytest.mark.parametrize("policy", ["bcp", "averaged", "thompson", "map"])
def test_an_answer_is_reproduced_bit_for_bit(client: TestClient, policy: str) -> None:
    network = learn_posterior(client, predictor={"kind": "mlp", "hidden": [8]})
    for changes in ({}, {"seed": 5}, {"scenarios": 90}, {"contexts": CONTEXTS[:9]}):
        content = prescribe_content(client, network, policy=policy, **changes)
        found = client.post(f"/v1/prescriptions/{id_of(content)}/reproduce")
        answer = check_json(found)
        assert (answer["identical"], answer["differing"], answer["largest_difference"]) == (True, 0, 0.0)
        assert found.content.endswith(b',"answer":%b}' % content)


def test_an_answer_with_lags_is_reproduced_from_the_same_rows(client: TestClient) -> None:
    dataset = shops(client)
    made = learned_from(client, dataset, inference=QUICK)
    content = prescribe_content(client, made, contexts=[context(121), context(121, "south")])
    later = [row | {"demand": row["demand"] * 3} for row in shop_rows(range(120, 123))]
    check_json(client.post(f"/v1/datasets/{dataset['id']}/rows", json={"rows": later}), 201)
    client.app.state.posteriors._revisions.clear()  # type: ignore[attr-defined]
    after = prescribe_content(client, made, contexts=[context(121), context(121, "south")])
    assert orjson.loads(after)["history"]["revision"] == 2
    assert without_id(after) != without_id(content)
    for one in (content, after):
        assert check_json(client.post(f"/v1/prescriptions/{id_of(one)}/reproduce"))["identical"]


def test_two_stage_answers_are_reproduced_up_to_rounding(client: TestClient) -> None:
    made = posterior_for(client, SHIPMENT, ["port", "mill"])
    contexts = [{"rain": number / 3} for number in range(12)]
    first = id_of(prescribe_content(client, made, contexts=contexts[:1]))
    prescribe_content(client, made, contexts=contexts)
    found = check_json(client.post(f"/v1/prescriptions/{first}/reproduce"))
    assert found["largest_difference"] is not None
    assert found["largest_difference"] < 1e-9
    assert found["identical"] == (found["differing"] == 0)


def test_a_reproduction_names_its_differences(client: TestClient, posterior: Json) -> None:
    identifier = id_of(prescribe_content(client, posterior))
    flush_log(client)
    with transaction() as session:
        row = session.get_one(PrescriptionRow, identifier)
        answer = orjson.loads(writer.decompress(row.answer, row.answer_sha256))
        answer["prescriptions"][0]["expected_cost"] *= 2
        row.answer, row.answer_sha256 = writer.compress(orjson.dumps(answer)), writer.checksum(orjson.dumps(answer))
    found = check_json(client.post(f"/v1/prescriptions/{identifier}/reproduce"))
    assert (found["identical"], found["differing"], found["largest_difference"]) == (False, 1, 0.5)
    (difference,) = found["differences"]
    assert difference["pointer"] == "#/prescriptions/0/expected_cost"
    assert difference["recorded"] == 2 * difference["now"]


def test_a_prescription_without_its_posterior_stays_but_is_not_reproducible(client: TestClient) -> None:
    brief = learn_posterior(client)
    content = prescribe_content(client, brief)
    identifier = id_of(content)
    check_json(client.post(f"/v1/prescriptions/{identifier}/outcome", json={"outcomes": {"loaves": 3.0}}))
    assert client.delete(f"/v1/posteriors/{brief['id']}").status_code == 204
    assert content in client.get(f"/v1/prescriptions/{identifier}").content
    again = client.post(f"/v1/prescriptions/{identifier}/reproduce")
    assert (again.status_code, "was deleted" in again.json()["detail"]) == (409, True)
    outcome = client.post(f"/v1/prescriptions/{identifier}/outcome", json={"outcomes": {"loaves": 4.0}})
    assert (outcome.status_code, "was deleted" in outcome.json()["detail"]) == (409, True)
    table = client.get("/v1/prescriptions/export", params={"posterior_id": brief["id"]})
    header, line = table.text.splitlines()
    assert '"weekday"' in header
    assert '"decision.croissants"' in header
    assert identifier in line


def test_a_damaged_record_is_reported_as_damaged(client: TestClient, posterior: Json) -> None:
    for change in ({"answer": b"rubbish"}, {"answer_sha256": "0" * 64}, {"request": writer.compress(b"{}")}):
        identifier = id_of(prescribe_content(client, posterior))
        flush_log(client)
        with transaction() as session:
            session.execute(sa.update(PrescriptionRow).where(PrescriptionRow.id == identifier).values(**change))
        response = client.get(f"/v1/prescriptions/{identifier}")
        assert (response.status_code, response.json()["type"]) == (500, "urn:bco:error:damaged-data")


# retention


def test_old_prescriptions_are_deleted_with_their_outcomes(
    client: TestClient, posterior: Json, settings: Settings
) -> None:
    identifier = id_of(prescribe_content(client, posterior))
    check_json(client.post(f"/v1/prescriptions/{identifier}/outcome", json={"outcomes": {"loaves": 3.0}}))
    old = [first_id("pres", int(1000 * (datetime.now(UTC) - timedelta(days=d)).timestamp())) for d in (91, 200, 89)]
    with transaction() as session:
        row = session.get_one(PrescriptionRow, identifier)
        fields = {c.name: getattr(row, c.name) for c in sa.inspect(PrescriptionRow).columns}
        session.execute(sa.insert(PrescriptionRow), [fields | {"id": one} for one in old])
        session.execute(
            sa.update(OutcomeRow).where(OutcomeRow.prescription_id == identifier).values(prescription_id=old[1])
        )
    settings(keep_prescriptions_days=0)
    assert retention.prune()["prescriptions"] == 0
    settings(keep_prescriptions_days=90)
    assert retention.prune()["prescriptions"] == 2
    with transaction() as session:
        left = session.scalars(sa.select(PrescriptionRow.id).where(PrescriptionRow.id.in_([*old, identifier]))).all()
        outcome = session.get(OutcomeRow, (old[1], 0))
    assert (set(left), outcome) == ({old[2], identifier}, None)
