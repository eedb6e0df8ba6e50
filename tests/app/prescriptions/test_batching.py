"""Batching: waiting prescribe calls are decided together, with the same answers as alone."""

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
from tests.support.journey import CONTEXTS, QUICK, Json, learn_posterior, prescribe, without_id


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(
        client, seed=4, predictor={"kind": "skip_mlp", "hidden": [9]}, inference=QUICK | {"particles": 60}
    )


def path(posterior: Json) -> str:
    return f"/v1/posteriors/{posterior['id']}/prescribe"


class BlockedPrescribe:
    """``prescribe`` that blocks on its first call and records batch sizes."""

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
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockedPrescribe]:
    monkeypatch.setattr("app.prescriptions.batching.TURN_SECONDS", 60.0)
    made = BlockedPrescribe(monkeypatch)
    yield made
    made.go_on.set()


def post_concurrently(client: TestClient, blocked: BlockedPrescribe, url: str, bodies: Sequence[Json]) -> list[Json]:
    """Post all bodies; the first call blocks until all others wait."""
    admission = client.app.state.admission
    with ThreadPoolExecutor(len(bodies)) as pool:
        first = pool.submit(client.post, url, json=bodies[0])
        assert blocked.begun.wait(60)
        others = [pool.submit(client.post, url, json=body) for body in bodies[1:]]
        while admission.taken < len(bodies):
            assert not first.done()
        blocked.go_on.set()
        responses = [one.result(60) for one in (first, *others)]
    return [{"status": one.status_code} | json.loads(without_id(one.content)) for one in responses]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_batched_answers_equal_single_answers(
    client: TestClient, posterior: Json, blocked: BlockedPrescribe, policy: str
) -> None:
    bodies = [{"contexts": CONTEXTS[n : n + 1 + n % 3], "policy": policy, "scenarios": 50} for n in range(12)]
    blocked.go_on.set()
    alone = [{"status": 200} | prescribe(client, posterior["id"], **body) for body in bodies]
    blocked.go_on.clear()
    blocked.begun.clear()
    blocked.sizes.clear()
    assert post_concurrently(client, blocked, path(posterior), bodies) == alone
    assert blocked.sizes == ([1] * 12 if POLICIES[policy].random else [1, 11])


def test_a_bad_request_does_not_affect_others_of_its_batch(
    client: TestClient, posterior: Json, blocked: BlockedPrescribe
) -> None:
    blocked.go_on.set()
    prescribe(client, posterior["id"])
    blocked.go_on.clear()
    blocked.begun.clear()
    good: Json = {"contexts": CONTEXTS[:1]}
    bad: Json = {"contexts": [CONTEXTS[0] | {"temperature": "warm"}]}
    answers = post_concurrently(client, blocked, path(posterior), [good, good, bad, good])
    assert [answer["status"] for answer in answers] == [200, 200, 422, 200]
    assert answers[2]["errors"][0]["pointer"] == "#/contexts/0/temperature"
    assert answers[0] == answers[1] == answers[3]


def test_requests_with_different_options_are_not_batched(
    client: TestClient, posterior: Json, blocked: BlockedPrescribe
) -> None:
    blocked.go_on.set()
    prescribe(client, posterior["id"])
    blocked.go_on.clear()
    blocked.begun.clear()
    blocked.sizes.clear()
    plain: Json = {"contexts": CONTEXTS[:1]}
    changes: list[Json] = [{}, {"policy": "map"}, {"scenarios": 7}, {"seed": 5}, {"costs_over": "posterior"}]
    others = post_concurrently(client, blocked, path(posterior), [plain | change for change in changes])
    assert [answer["status"] for answer in others] == [200] * 5
    assert blocked.sizes == [1] * 5


def test_batches_stay_within_their_limit_and_a_limit_of_one_disables_them(
    posterior: Json, blocked: BlockedPrescribe, settings: Callable[..., None]
) -> None:
    for most, sizes in ((4, [1, 4, 3]), (1, [1] * 8)):
        settings(max_batched_contexts=most)
        with TestClient(create_app()) as client:
            blocked.go_on.set()
            prescribe(client, posterior["id"])
            blocked.go_on.clear()
            blocked.begun.clear()
            blocked.sizes.clear()
            answers = post_concurrently(client, blocked, path(posterior), [{"contexts": CONTEXTS[:1]}] * 8)
        assert [answer["status"] for answer in answers] == [200] * 8
        assert sorted(blocked.sizes) == sorted(sizes)


def test_a_call_without_others_ahead_does_not_wait() -> None:
    """Sequential calls start at once, each in a batch of its own."""

    async def calls() -> list[Sequence[int]]:
        batcher: Batcher[int, int] = Batcher(64, anyio.CapacityLimiter(1))
        groups: list[Sequence[int]] = []

        def decide(numbers: Sequence[int]) -> list[int | Exception]:
            groups.append(numbers)
            return list(numbers)

        for number in range(3):
            assert await batcher.answer("kind", number, 1, decide) == number
        return groups

    assert asyncio.run(calls()) == [[0], [1], [2]]


def test_an_error_reaches_its_whole_batch_and_the_next_batch_is_served() -> None:
    async def calls() -> list[Any]:
        batcher: Batcher[int, int] = Batcher(64, anyio.CapacityLimiter(1))

        def decide(numbers: Sequence[int]) -> list[int | Exception]:
            if 1 in numbers:
                raise RuntimeError("broken")
            return list(numbers)

        both = await asyncio.gather(*(batcher.answer("a", n, 1, decide) for n in (0, 1)), return_exceptions=True)
        return [*both, await batcher.answer("a", 2, 1, decide)]

    first, second, third = asyncio.run(calls())
    assert str(first) == str(second) == "broken"
    assert third == 2


def test_a_client_that_disconnects_does_not_affect_its_batch() -> None:
    async def calls() -> list[Any]:
        batcher: Batcher[int, int] = Batcher(64, anyio.CapacityLimiter(1))
        go_on = threading.Event()

        def decide(numbers: Sequence[int]) -> list[int | Exception]:
            assert go_on.wait(60)
            return list(numbers)

        tasks = [asyncio.create_task(batcher.answer("a", n, 1, decide)) for n in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(calls())
    assert (first, third) == (0, 2)
    assert isinstance(second, asyncio.CancelledError)


# database reads of warm calls


def test_concurrent_misses_of_one_key_load_it_once() -> None:
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
    """Collect the SQL statements that this process runs meanwhile."""
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
    # The log writes answers in the background.
    assert [one for one in statements if "keys" not in one and not one.startswith("INSERT INTO prescriptions")] == []


def test_a_posterior_deleted_by_another_process_is_gone_after_a_second(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learn_posterior(client)
    prescribe(client, made["id"])
    with transaction() as session:
        session.execute(sa.delete(PosteriorRow).where(PosteriorRow.id == made["id"]))
    monkeypatch.setattr(cache, "monotonic", lambda: 1e12)
    response = client.post(path(made), json={"contexts": CONTEXTS[:1]})
    assert response.status_code == 404
    assert client.app.state.posteriors.in_memory(made["id"]) is None


def test_a_cached_posterior_is_hidden_from_other_workspaces(client: TestClient, posterior: Json) -> None:
    prescribe(client, posterior["id"])
    with pytest.raises(NotFoundError):
        client.app.state.posteriors.row("elsewhere", posterior["id"])
    prescribe(client, posterior["id"])
