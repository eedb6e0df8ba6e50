"""Prescribe calls that wait are decided together, and each is answered as if it had been alone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.engine import get_engine, transaction
from app.db.tables import PosteriorRow
from app.http.errors import NotFoundError
from app.http.security import LookupCache
from app.main import create_app
from app.prescriptions import cache, service
from app.prescriptions.batching import Batcher
from bco_core.policies import POLICIES
from tests.support.journey import CONTEXTS, QUICK, Json, learned, prescribe, without_id


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learned(client, seed=4, predictor={"kind": "skip_mlp", "hidden": [9]}, inference=QUICK | {"particles": 60})


def path(posterior: Json) -> str:
    return f"/v1/posteriors/{posterior['id']}/prescribe"


class Watched:
    """The service's ``prescribe``, held up at its first call, with the size of every group it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self._kind = service.CALL_KINDS["prescribe"]
        monkeypatch.setitem(service.CALL_KINDS, "prescribe", self._kind._replace(answer=self))

    def __call__(self, *arguments: Any) -> Any:
        self.sizes.append(len(arguments[1]))
        self.begun.set()
        assert self.go_on.wait(60)
        return self._kind.answer(*arguments)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr("app.prescriptions.batching.TURN_SECONDS", 60.0)
    made = Watched(monkeypatch)
    yield made
    made.go_on.set()


def all_at_once(client: TestClient, watched: Watched, url: str, bodies: Sequence[Json]) -> list[Json]:
    """The answers to bodies of which the first is held up until all the others wait."""
    admission = client.app.state.admission
    with ThreadPoolExecutor(len(bodies)) as pool:
        first = pool.submit(client.post, url, json=bodies[0])
        assert watched.begun.wait(60)
        others = [pool.submit(client.post, url, json=body) for body in bodies[1:]]
        while admission.taken < len(bodies):
            assert not first.done()
        watched.go_on.set()
        responses = [one.result(60) for one in (first, *others)]
    return [{"status": one.status_code} | json.loads(without_id(one.content)) for one in responses]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_answers_decided_together_are_those_decided_alone(
    client: TestClient, posterior: Json, watched: Watched, policy: str
) -> None:
    bodies = [{"contexts": CONTEXTS[n : n + 1 + n % 3], "policy": policy, "scenarios": 50} for n in range(12)]
    watched.go_on.set()
    alone = [{"status": 200} | prescribe(client, posterior["id"], **body) for body in bodies]
    watched.go_on.clear()
    watched.begun.clear()
    watched.sizes.clear()
    assert all_at_once(client, watched, path(posterior), bodies) == alone
    assert watched.sizes == ([1] * 12 if POLICIES[policy].random else [1, 11])


def test_one_bad_request_spoils_only_its_own_answer(client: TestClient, posterior: Json, watched: Watched) -> None:
    watched.go_on.set()
    prescribe(client, posterior["id"])
    watched.go_on.clear()
    watched.begun.clear()
    good: Json = {"contexts": CONTEXTS[:1]}
    bad: Json = {"contexts": [CONTEXTS[0] | {"temperature": "warm"}]}
    answers = all_at_once(client, watched, path(posterior), [good, good, bad, good])
    assert [answer["status"] for answer in answers] == [200, 200, 422, 200]
    assert answers[2]["errors"][0]["pointer"] == "#/contexts/0/temperature"
    assert answers[0] == answers[1] == answers[3]


def test_requests_that_differ_in_how_to_decide_are_not_joined(
    client: TestClient, posterior: Json, watched: Watched
) -> None:
    watched.go_on.set()
    prescribe(client, posterior["id"])
    watched.go_on.clear()
    watched.begun.clear()
    watched.sizes.clear()
    plain: Json = {"contexts": CONTEXTS[:1]}
    changes: list[Json] = [{}, {"policy": "map"}, {"scenarios": 7}, {"seed": 5}, {"costs_over": "posterior"}]
    others = all_at_once(client, watched, path(posterior), [plain | change for change in changes])
    assert [answer["status"] for answer in others] == [200] * 5
    assert watched.sizes == [1] * 5


def test_groups_stay_within_their_limit_and_one_is_no_group_at_all(
    posterior: Json, watched: Watched, settings: Callable[..., None]
) -> None:
    for most, sizes in ((4, [1, 4, 3]), (1, [1] * 8)):
        settings(max_batched_contexts=most)
        with TestClient(create_app()) as client:
            watched.go_on.set()
            prescribe(client, posterior["id"])
            watched.go_on.clear()
            watched.begun.clear()
            watched.sizes.clear()
            answers = all_at_once(client, watched, path(posterior), [{"contexts": CONTEXTS[:1]}] * 8)
        assert [answer["status"] for answer in answers] == [200] * 8
        assert sorted(watched.sizes) == sorted(sizes)


def test_nobody_waits_where_nobody_is_before_them() -> None:
    """Each of some calls, one after the other, is begun at the very next moments of the loop."""

    async def calls() -> list[Sequence[int]]:
        together: Batcher[int, int] = Batcher(64, anyio.CapacityLimiter(1))
        groups: list[Sequence[int]] = []

        def decide(numbers: Sequence[int]) -> list[int | Exception]:
            groups.append(numbers)
            return list(numbers)

        for number in range(3):
            assert await together.answer("kind", number, 1, decide) == number
        return groups

    assert asyncio.run(calls()) == [[0], [1], [2]]


def test_an_error_reaches_everybody_in_the_group_and_the_next_group_is_served() -> None:
    async def calls() -> list[Any]:
        together: Batcher[int, int] = Batcher(64, anyio.CapacityLimiter(1))

        def decide(numbers: Sequence[int]) -> list[int | Exception]:
            if 1 in numbers:
                raise RuntimeError("broken")
            return list(numbers)

        both = await asyncio.gather(*(together.answer("a", n, 1, decide) for n in (0, 1)), return_exceptions=True)
        return [*both, await together.answer("a", 2, 1, decide)]

    first, second, third = asyncio.run(calls())
    assert str(first) == str(second) == "broken"
    assert third == 2


def test_a_client_that_leaves_takes_nobody_along() -> None:
    async def calls() -> list[Any]:
        together: Batcher[int, int] = Batcher(64, anyio.CapacityLimiter(1))
        go_on = threading.Event()

        def decide(numbers: Sequence[int]) -> list[int | Exception]:
            assert go_on.wait(60)
            return list(numbers)

        tasks = [asyncio.create_task(together.answer("a", n, 1, decide)) for n in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(calls())
    assert (first, third) == (0, 2)
    assert isinstance(second, asyncio.CancelledError)


# what a warm call asks of the database


def test_requests_that_miss_the_same_key_at_once_look_it_up_once() -> None:
    looks: list[int] = []

    def look_up() -> str:
        looks.append(1)
        time.sleep(0.05)
        return "found"

    async def calls() -> list[str]:
        remembered = LookupCache()
        return await asyncio.gather(*(remembered.get("key", look_up) for _ in range(20)))

    assert asyncio.run(calls()) == ["found"] * 20
    assert len(looks) == 1


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every SQL statement that this process runs meanwhile."""
    found: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(get_engine(), "before_cursor_execute", note)
    yield found
    sa.event.remove(get_engine(), "before_cursor_execute", note)


def test_a_warm_call_does_not_read_the_database(
    client: TestClient, posterior: Json, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FRESH_SECONDS", 60.0)
    client.app.state.posteriors = cache.cache_from_settings()
    prescribe(client, posterior["id"])
    statements.clear()
    for _ in range(5):
        prescribe(client, posterior["id"])
    # The log writes down answers by itself, now and then.
    assert [one for one in statements if "keys" not in one and not one.startswith("INSERT INTO prescriptions")] == []


def test_a_posterior_that_another_process_deletes_is_gone_after_a_second(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learned(client)
    prescribe(client, made["id"])
    with transaction() as session:
        session.execute(sa.delete(PosteriorRow).where(PosteriorRow.id == made["id"]))
    monkeypatch.setattr(cache, "monotonic", lambda: 1e12)
    response = client.post(path(made), json={"contexts": CONTEXTS[:1]})
    assert response.status_code == 404
    assert client.app.state.posteriors.in_memory(made["id"]) is None


def test_a_remembered_posterior_is_not_shown_to_another_workspace(client: TestClient, posterior: Json) -> None:
    prescribe(client, posterior["id"])
    with pytest.raises(NotFoundError):
        client.app.state.posteriors.row("elsewhere", posterior["id"])
    prescribe(client, posterior["id"])
