"""Aliases of posteriors: use in place of an id, moves without lost updates, propagation to other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.aliases import service
from app.aliases.schemas import AliasTarget
from app.db.engine import get_engine, transaction
from app.db.tables import AliasRow
from app.http.errors import ConflictError
from app.keys import service as keys
from app.main import create_app
from app.posteriors import portable
from tests.support.journey import (
    CONTEXTS,
    Json,
    check_json,
    create_job,
    learn,
    learn_posterior,
    pages,
    prescribe,
    without_id,
)
from tests.support.polling import wait_until

BODY = {"contexts": CONTEXTS[:1]}


@pytest.fixture(scope="module")
def old(client: TestClient) -> Json:
    return learn_posterior(client, name="old", seed=1)


@pytest.fixture(scope="module")
def new(client: TestClient) -> Json:
    return learn_posterior(client, name="new", seed=2)


def put(client: TestClient, name: str, posterior: Json, **guard: str | None) -> Json:
    return check_json(client.put(f"/v1/aliases/{name}", json={"posterior_id": posterior["id"]} | guard))


def bearer(workspace: str, *scopes: str) -> dict[str, str]:
    _, text = keys.create("test", workspace, list(scopes), None)
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
def statements() -> Iterator[list[str]]:
    seen: list[str] = []

    def record(connection: object, cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(get_engine(), "before_cursor_execute", record)
    yield seen
    sa.event.remove(get_engine(), "before_cursor_execute", record)


# use in place of an id


def test_an_alias_works_in_place_of_an_id_and_the_answer_has_the_id(client: TestClient, old: Json) -> None:
    put(client, "bakery", old)
    for address in ("", "/diagnostics"):
        named, by_id = (client.get(f"/v1/posteriors/{one}{address}") for one in ("bakery", old["id"]))
        assert check_json(named) == check_json(by_id)
    decided = prescribe(client, "bakery")
    assert (decided["posterior_id"], decided["digest"]) == (old["id"], old["digest"])
    assert decided == prescribe(client, old["id"])
    particles = client.get("/v1/posteriors/bakery/particles")
    assert particles.headers["content-disposition"] == f'attachment; filename="{old["id"]}.npz"'
    assert particles.content == client.get(f"/v1/posteriors/{old['id']}/particles").content


def test_jobs_and_batches_resolve_an_alias_on_creation(client: TestClient, old: Json, new: Json) -> None:
    put(client, "batches", old)
    batch = check_json(
        client.post("/v1/posteriors/batches/batch-prescriptions", json={"dataset_id": old["dataset_id"]}), 202
    )
    body = {"kind": "prescribe", "posterior_id": "batches", "dataset_id": old["dataset_id"]}
    job = check_json(client.post("/v1/jobs", json=body), 202)
    file = {"file": ("contexts.csv", b"weekday,temperature,rain,promotion,holiday\nSAT,20,0,1,0\n")}
    upload = check_json(client.post("/v1/posteriors/batches/batch-prescriptions/upload", files=file), 202)
    put(client, "batches", new)
    for made in (batch, job, upload):
        now = check_json(client.get(f"/v1/jobs/{made['id']}"))
        assert now["posterior_id"] == now["spec"]["posterior_id"] == old["id"]


def test_an_alias_is_exported_from_its_own_workspace(client: TestClient, old: Json, tmp_path: Path) -> None:
    put(client, "exported", old)
    assert portable.export("exported", tmp_path / "a.bco").id == old["id"]
    with pytest.raises(ValueError, match="no alias of workspace elsewhere"):
        portable.export("exported", tmp_path / "b.bco", "elsewhere")


def test_an_alias_can_be_set_from_another_alias(client: TestClient, old: Json) -> None:
    put(client, "staging", old)
    moved = check_json(client.put("/v1/aliases/production", json={"posterior_id": "staging"}))
    assert moved["posterior_id"] == old["id"]


# moving


def test_the_next_call_sees_a_move_and_the_history_lists_it(client: TestClient, old: Json, new: Json) -> None:
    made = put(client, "moving", old)
    assert (made["name"], made["posterior_id"], made["digest"]) == ("moving", old["id"], old["digest"])
    assert prescribe(client, "moving")["digest"] == old["digest"]
    moved = put(client, "moving", new)
    assert (moved["revision"], moved["created_at"]) == (made["revision"] + 1, made["created_at"])
    assert prescribe(client, "moving")["digest"] == new["digest"]
    assert check_json(client.get("/v1/aliases/moving")) == moved
    history = check_json(client.get("/v1/aliases/moving/moves"))["items"]
    assert [(one["from_posterior_id"], one["to_posterior_id"]) for one in history] == [
        (old["id"], new["id"]),
        (None, old["id"]),
    ]
    assert history[0]["at"] >= history[1]["at"]


def test_posteriors_list_their_aliases(client: TestClient, old: Json, new: Json) -> None:
    for name in ("told-b", "told-a"):
        put(client, name, new)

    def listed_aliases(posterior: Json) -> tuple[list[str], list[str]]:
        items = check_json(client.get("/v1/posteriors"))["items"]
        (listed,) = (item for item in items if item["id"] == posterior["id"])
        read = check_json(client.get(f"/v1/posteriors/{posterior['id']}"))
        return tuple([name for name in one["aliases"] if name.startswith("told")] for one in (listed, read))  # type: ignore[return-value]

    assert listed_aliases(new) == (["told-a", "told-b"], ["told-a", "told-b"])
    put(client, "told-b", old)
    assert listed_aliases(new) == (["told-a"], ["told-a"])
    assert listed_aliases(old) == (["told-b"], ["told-b"])


def test_setting_an_alias_to_the_same_posterior_is_no_move(client: TestClient, old: Json) -> None:
    assert put(client, "still", old) == put(client, "still", old)
    assert len(check_json(client.get("/v1/aliases/still/moves"))["items"]) == 1


def test_another_process_sees_a_move_within_about_a_second(client: TestClient, old: Json, new: Json) -> None:
    put(client, "followed", old)
    with TestClient(create_app()) as other:
        assert prescribe(other, "followed")["digest"] == old["digest"]
        put(client, "followed", new)
        wait_until("the other process follows", lambda: prescribe(other, "followed")["digest"] == new["digest"], 3.0)


def test_a_warm_call_by_alias_does_not_read_the_database(
    client: TestClient, old: Json, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.prescriptions.cache.FRESH_SECONDS", 600.0)
    monkeypatch.setattr(client.app.state.aliases, "_seconds", 600.0)  # type: ignore[attr-defined]
    put(client, "warm", old)
    first = prescribe(client, "warm")
    statements.clear()
    assert prescribe(client, "warm") == first
    assert [one for one in statements if "keys" not in one] == []


def test_a_posterior_deleted_after_a_move_causes_no_404_in_other_processes(client: TestClient, old: Json) -> None:
    """Another process may cache the old alias for a second; it looks it up again instead of returning 404."""
    doomed = learn_posterior(client, seed=5)
    put(client, "replaced", doomed)
    with TestClient(create_app()) as other:
        other.app.state.aliases._seconds = 600.0  # type: ignore[attr-defined]
        assert prescribe(other, "replaced")["digest"] == doomed["digest"]
        put(client, "replaced", old)
        assert client.delete(f"/v1/posteriors/{doomed['id']}").status_code == 204
        other.app.state.posteriors.forget(doomed["id"])  # type: ignore[attr-defined]
        assert prescribe(other, "replaced")["digest"] == old["digest"]


def test_if_posterior_id_prevents_lost_updates(client: TestClient, old: Json, new: Json) -> None:
    put(client, "guarded", old, if_posterior_id=None)
    refused = client.put("/v1/aliases/guarded", json={"posterior_id": new["id"], "if_posterior_id": None})
    assert refused.status_code == 409
    assert old["id"] in refused.json()["detail"]
    put(client, "guarded", new, if_posterior_id=old["id"])
    refused = client.put("/v1/aliases/guarded", json={"posterior_id": new["id"], "if_posterior_id": old["id"]})
    assert refused.status_code == 409
    absent = client.put("/v1/aliases/absent", json={"posterior_id": new["id"], "if_posterior_id": old["id"]})
    assert (absent.status_code, "there is no such alias" in absent.json()["detail"]) == (409, True)
    assert client.get("/v1/aliases/absent").status_code == 404


def test_of_several_concurrent_guarded_moves_one_wins(client: TestClient, old: Json, new: Json) -> None:
    put(client, "contested", old)
    won, start = list[int](), threading.Barrier(4)

    def try_to_move(number: int) -> None:
        start.wait()
        try:
            service.put("default", "contested", AliasTarget(posterior_id=new["id"], if_posterior_id=old["id"]), None)
        except ConflictError:
            return
        won.append(number)

    threads = [threading.Thread(target=try_to_move, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(check_json(client.get("/v1/aliases/contested/moves"))["items"]) == 2


def test_concurrent_unguarded_moves_are_serialised(client: TestClient, old: Json, new: Json) -> None:
    put(client, "busy", old)
    start, errors = threading.Barrier(4), list[Exception]()

    def move_back_and_forth(first: Json, second: Json) -> None:
        start.wait()
        for posterior in (first, second) * 3:
            try:
                service.put("default", "busy", AliasTarget(posterior_id=posterior["id"]), None)
            except Exception as error:
                errors.append(error)

    pairs = [(old, new), (new, old), (old, new), (new, old)]
    threads = [threading.Thread(target=move_back_and_forth, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    history = check_json(client.get("/v1/aliases/busy/moves"))["items"]
    assert [one["from_posterior_id"] for one in history[:-1]] == [one["to_posterior_id"] for one in history[1:]]
    now = check_json(client.get("/v1/aliases/busy"))
    assert (now["posterior_id"], now["revision"]) == (history[0]["to_posterior_id"], history[0]["revision"])


# deletion


def test_a_posterior_with_an_alias_cannot_be_deleted(client: TestClient, old: Json) -> None:
    kept = learn_posterior(client, seed=6)
    put(client, "keeper", kept)
    for named in (kept["id"], "keeper"):
        refused = client.delete(f"/v1/posteriors/{named}")
        assert refused.status_code == 409
        assert "the alias keeper names this posterior" in refused.json()["detail"]
    put(client, "keeper", old)
    assert client.delete(f"/v1/posteriors/{kept['id']}").status_code == 204


def test_the_database_refuses_to_delete_a_posterior_with_an_alias(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alias may be created between the check and the deletion."""
    kept = learn_posterior(client, seed=7)
    put(client, "late", kept)
    monkeypatch.setattr(service, "aliases_of_posterior", lambda session, posterior_id: [])
    refused = client.delete(f"/v1/posteriors/{kept['id']}")
    assert (refused.status_code, "alias" in refused.json()["detail"]) == (409, True)
    assert prescribe(client, "late")["posterior_id"] == kept["id"]


def test_a_deleted_alias_is_gone_and_its_history_stays(client: TestClient, old: Json, new: Json) -> None:
    put(client, "brief", old)
    assert prescribe(client, "brief")["digest"] == old["digest"]
    assert client.delete("/v1/aliases/brief").status_code == 204
    assert client.get("/v1/aliases/brief").status_code == client.delete("/v1/aliases/brief").status_code == 404
    assert client.post("/v1/posteriors/brief/prescribe", json=BODY).status_code == 404
    assert check_json(client.get(f"/v1/posteriors/{old['id']}"))["id"] == old["id"]
    assert put(client, "brief", new)["revision"] == 3
    history = check_json(client.get("/v1/aliases/brief/moves"))["items"]
    assert [one["to_posterior_id"] for one in history] == [new["id"], None, old["id"]]


def test_aliases_and_moves_are_listed_newest_first_a_page_at_a_time(client: TestClient, old: Json, new: Json) -> None:
    for number in range(3):
        put(client, f"listed-{number}", old)
    names = [one["name"] for page in pages(client, "/v1/aliases", 2) for one in page]
    assert [name for name in names if name.startswith("listed")] == ["listed-2", "listed-1", "listed-0"]
    for number in range(5):
        put(client, "paged", (old, new)[number % 2])
    revisions = [one["revision"] for page in pages(client, "/v1/aliases/paged/moves", 2) for one in page]
    assert revisions == [5, 4, 3, 2, 1]
    assert client.get("/v1/aliases/never/moves").status_code == 404


# refusals


@pytest.mark.parametrize(
    "name",
    [
        "post_01M7MPTHJ1DCFSMQB79MNFQ5XR",
        "post_x",
        "Post_bakery",
        "job_01M7MPTHJ1DCFSMQB79MNFQ5XR",
        "a" * 65,
        "..",
        "-",
        "bak%20ery",
        "caf%C3%A9",
        "a%00",
        "a%0A",
    ],
)
def test_an_alias_name_is_safe_in_a_path_and_unlike_an_id(client: TestClient, old: Json, name: str) -> None:
    # Clients normalise dots in paths, so they are escaped.
    address = f"/v1/aliases/{name.replace('.', '%2E')}"
    refused = client.put(address, json={"posterior_id": old["id"]})
    assert refused.status_code in (404, 422), refused.text
    if refused.status_code == 422:
        assert "an alias is 1 to 64 letters" in refused.json()["errors"][0]["detail"]
    with transaction() as session:
        names = set(session.scalars(sa.select(AliasRow.name)))
    assert all(service.is_name(one) for one in names)


@pytest.mark.parametrize("name", ["bakery.north-1_A", "7", "a" * 64, "x_01M7MPTHJ1DCFSMQB79MNFQ5X"])
def test_valid_alias_names_work_when_prescribing(client: TestClient, old: Json, name: str) -> None:
    put(client, name, old)
    assert prescribe(client, name)["posterior_id"] == old["id"]


def test_a_missing_posterior_is_refused_with_a_pointer(client: TestClient, old: Json) -> None:
    for target in ("post_01M7MPTHJ1DCFSMQB79MNFQ5XR", "nothing", "\x00", old["job_id"]):
        refused = client.put("/v1/aliases/lost", json={"posterior_id": target})
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"][0]["pointer"] == "#/posterior_id"
    unfinished = create_job(client)
    assert client.put("/v1/aliases/lost", json={"posterior_id": unfinished["posterior_id"]}).status_code == 422
    learn(client, unfinished["id"])
    assert client.put("/v1/aliases/lost", json={"posterior_id": unfinished["posterior_id"]}).status_code == 200


def test_fast_path_and_router_resolve_an_alias(client: TestClient, old: Json) -> None:
    put(client, "paths", old)
    prescribe(client, "paths")
    for name, status in (("paths", 200), ("no-such", 404), ("a" * 80, 404), ("..-", 404)):
        kinds = ("application/json", "application/json; profile=long")
        short, long = (
            client.post(f"/v1/posteriors/{name}/prescribe", json=BODY, headers={"content-type": kind}) for kind in kinds
        )
        assert short.status_code == long.status_code == status
        assert without_id(short.content) == without_id(long.content)


# workspaces


def test_an_alias_belongs_to_its_workspace(client: TestClient, old: Json, settings: Callable[..., None]) -> None:
    put(client, "shared-name", old)
    settings(allow_anonymous=True)
    north, south = bearer("north", "read", "train", "admin"), bearer("south", "read", "train", "admin")
    with TestClient(create_app(), headers=north) as ours, TestClient(create_app(), headers=south) as theirs:
        mine, other = learn_posterior(ours, seed=8), learn_posterior(theirs, seed=9)
        put(ours, "shared-name", mine)
        assert theirs.get("/v1/aliases/shared-name").status_code == 404
        assert theirs.get("/v1/aliases/shared-name/moves").status_code == 404
        assert theirs.delete("/v1/aliases/shared-name").status_code == 404
        assert theirs.post("/v1/posteriors/shared-name/prescribe", json=BODY).status_code == 404
        assert check_json(theirs.get("/v1/aliases"))["items"] == []
        stolen = theirs.put("/v1/aliases/thief", json={"posterior_id": mine["id"]})
        missing = theirs.put("/v1/aliases/thief", json={"posterior_id": "post_01M7MPTHJ1DCFSMQB79MNFQ5XR"})
        assert (stolen.status_code, stolen.json()) == (422, missing.json())
        put(theirs, "shared-name", other)
        assert prescribe(ours, "shared-name")["posterior_id"] == mine["id"]
        assert prescribe(theirs, "shared-name")["posterior_id"] == other["id"]
        assert check_json(ours.get("/v1/aliases"))["items"][0]["moved_by"].startswith("key_")
    assert prescribe(client, "shared-name")["posterior_id"] == old["id"]
