"""The client against a running service: learning, deciding, and the methods of each resource."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.commands.serve import LocalService
from app.demo import as_csv
from bco_client import (
    AsyncClient,
    Client,
    Conflict,
    ContextPrescription,
    JobCancelled,
    NotFound,
    RemotePosterior,
    UnprocessableRequest,
    tables,
)
from bco_client.operations import workflows
from bco_client.options import PrescribeArguments

Json = dict[str, Any]
OUTCOMES = ["croissants", "loaves"]
MAKE = {"rows": list, "pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.Table.from_pylist}


@pytest.fixture
def mornings(history: list[Json]) -> list[Json]:
    return history[-5:]


# learning


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_learn_and_prescribe_take_and_return_frames(
    client: Client, history: list[Json], problem: Json, quick: Json, kind: str, mornings: list[Json]
) -> None:
    learned = client.learn(MAKE[kind](history), problem, name=f"from {kind}", **quick)
    assert learned.quality in ("ok", "warn", "bad")
    assert learned.reason
    assert learned.posterior.name == f"from {kind}"
    assert learned.posterior.outcome_names == OUTCOMES
    given = MAKE[kind](mornings)
    found = learned.prescribe(given)
    assert type(found) is type(given)
    assert len(found) == 5
    assert list(found.columns)[:2] == ["decision.croissants", "decision.loaves"]


@pytest.mark.slow
def test_every_kind_of_table_gives_the_same_posterior(
    client: Client, history: list[Json], learned: RemotePosterior, problem: Json, quick: Json, tmp_path: Path
) -> None:
    path = tmp_path / "bakery.csv"
    path.write_text(as_csv(history))
    for data in (
        path,
        path.read_bytes(),
        pd.DataFrame(history),
        client.datasets.get(learned.posterior.dataset_id or ""),
    ):
        assert client.learn(data, problem, **quick).posterior.digest == learned.posterior.digest


def test_learn_accepts_ids_of_existing_objects(client: Client, learned: RemotePosterior, quick: Json) -> None:
    posterior = learned.posterior
    again = client.learn(posterior.dataset_id or "", posterior.problem_id, **quick)
    assert again.posterior.digest == posterior.digest
    with pytest.raises(TypeError, match="the data set exists already; time can be given only"):
        client.learn(posterior.dataset_id or "", posterior.problem_id, time="day")


def test_an_idempotency_key_makes_learn_create_one_posterior(
    client: Client, history: list[Json], problem: Json, quick: Json
) -> None:
    found = {client.learn(history, problem, idempotency_key="once", **quick).id for _ in range(2)}
    assert len(found) == 1


def test_time_and_series_may_be_in_the_index(client: Client, quick: Json) -> None:
    days = pd.date_range("2024-01-01", periods=90)
    frame = pd.DataFrame({"sold": [20 + number % 7 for number in range(180)]})
    frame.index = pd.MultiIndex.from_product([["north", "south"], days], names=["store", "day"])
    problem = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 2, "overage_cost": 1}]}
    learned = client.learn(frame, problem, time="day", series="store", **quick)
    following = pd.DataFrame(index=pd.MultiIndex.from_product([["north", "south"], [pd.Timestamp("2024-03-31")]]))
    following.index.names = ["store", "day"]
    found = learned.prescribe(following)
    assert found.index.equals(following.index)
    assert found["decision.sold"].notna().all()
    pd.testing.assert_frame_equal(found, learned.prescribe(following, batch=True))
    grown = client.datasets.append(learned.posterior.dataset_id or "", following.assign(sold=[21, 22]))
    assert (grown.rows, grown.revision) == (182, 2)


# deciding


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_a_batch_gives_the_same_decisions_as_single_calls(
    learned: RemotePosterior, mornings: list[Json], kind: str
) -> None:
    given = MAKE[kind](mornings)
    alone, batch = (learned.prescribe(given, batch=batch, scenarios=50) for batch in (False, True))
    assert type(batch) is type(alone)
    assert tables.column_names(alone) == tables.column_names(batch)
    assert tables.as_rows(alone) == tables.as_rows(batch)


def test_each_row_gives_one_prescription(learned: RemotePosterior, mornings: list[Json]) -> None:
    many = learned.prescribe(mornings)
    assert [type(one) for one in many] == [ContextPrescription] * 5
    one = learned.prescribe(mornings[0])
    assert one == many[0]
    assert one.status == "optimal"
    assert set(one.decision) == set(OUTCOMES)
    assert one.map is not None
    assert one.map.expected_cost is not None
    assert one.expected_cost is not None
    assert one.hedging_gain == pytest.approx(one.map.expected_cost - one.expected_cost)


def test_large_frames_are_sent_as_a_batch_and_large_lists_in_chunks(
    client: Client, learned: RemotePosterior, history: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "MOST_AT_ONCE", 50)
    batches = len(client.jobs.list(kind="prescribe"))
    frame = pd.DataFrame(history, index=[f"day {number}" for number in range(len(history))])
    found = learned.prescribe(frame)
    assert list(found.index) == list(frame.index)
    assert len(client.jobs.list(kind="prescribe")) == batches + 1
    rows = learned.prescribe(history)
    assert len(client.jobs.list(kind="prescribe")) == batches + 1
    assert [one.decision["loaves"] for one in rows] == found["decision.loaves"].tolist()


def test_options_apply_to_calls_and_batches(learned: RemotePosterior, mornings: list[Json]) -> None:
    frame = pd.DataFrame(mornings)
    options: PrescribeArguments = {"policy": "blended", "alpha": 0.25, "costs_over": "posterior", "seed": 3}
    blended = learned.prescribe(frame, **options)
    assert not blended["decision.loaves"].equals(learned.prescribe(frame)["decision.loaves"])
    pd.testing.assert_frame_equal(blended, learned.prescribe(frame, batch=True, **options))


def test_mistakes_raise_the_error_message_of_the_service(learned: RemotePosterior, mornings: list[Json]) -> None:
    with pytest.raises(UnprocessableRequest, match="'weekday' was never seen in the history") as caught:
        learned.prescribe(mornings[0] | {"weekday": "SAMSTAG"})
    assert [mistake.pointer for mistake in caught.value.errors] == ["#/contexts/0/weekday"]
    with pytest.raises(UnprocessableRequest, match="lacks 'temperature'"):
        learned.prescribe({"weekday": "SAT"})
    with pytest.raises(UnprocessableRequest, match=r"#/alfa|alfa"):
        learned.prescribe(mornings[0], alfa=1)  # type: ignore[call-overload]


def test_only_the_invalid_row_of_a_frame_is_refused(learned: RemotePosterior, mornings: list[Json]) -> None:
    frame = pd.DataFrame(mornings)
    frame.loc[1, "weekday"] = "SAMSTAG"
    for batch in (False, True):
        found = learned.prescribe(frame, batch=batch)
        assert list(found["status"]) == ["optimal", "refused", "optimal", "optimal", "optimal"]
        assert "was never seen" in found["reason"][1]
        assert found["decision.loaves"].isna().tolist() == [False, True, False, False, False]


# resources


def test_data_sets_are_created_appended_read_and_deleted(client: Client, history: list[Json]) -> None:
    made = client.datasets.create(pl.DataFrame(history), "days", outcomes=OUTCOMES)
    assert made.rows == 120
    assert {column.name: column.role for column in made.columns}["loaves"] == "outcome"
    grown = client.datasets.append(made.id, history[:2])
    assert (grown.rows, grown.revision) == (122, 2)
    assert client.datasets.append(made.id, pd.DataFrame(history[:1])).rows == 123
    assert len(client.datasets.rows(made.id)) == 123
    assert client.datasets.rows(made.id, to="pandas", revision=1).shape == (120, 7)
    assert client.datasets.rows(made.id, to="polars", limit=7).shape == (7, 7)
    assert [found.id for found in client.datasets.list(name="days")] == [made.id]
    client.datasets.delete(made.id)
    with pytest.raises(NotFound, match="no data set has this id"):
        client.datasets.get(made.id)


def test_large_row_lists_are_uploaded_as_a_file(
    client: Client, history: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bco_client.operations.datasets.JSON_VALUES", 10)
    small = client.datasets.create(history, "days as a file", outcomes=OUTCOMES)
    assert small.rows == 120
    assert client.datasets.append(small.id, history[:3]).rows == 123


def test_problems_are_created_read_and_deleted(client: Client, problem: Json) -> None:
    made = client.problems.create({"name": "named", "spec": problem})
    assert (made.name, made.outcomes, made.decisions) == ("named", OUTCOMES, OUTCOMES)
    assert client.problems.get(made.id).spec["kind"] == "newsvendor"
    assert [found.id for found in client.problems.list(name="named", kind="newsvendor")] == [made.id]
    client.problems.delete(made.id)
    assert client.problems.list(name="named") == []


def test_jobs_are_started_read_cancelled_and_retried(
    client: Client, learned: RemotePosterior, history: list[Json], quick: Json
) -> None:
    posterior = learned.posterior
    job = client.jobs.prescribe(posterior.id, posterior.dataset_id or "", name="all days", scenarios=20)
    done = client.jobs.wait(job, timeout=120)
    assert (done.kind, done.progress, done.spec["scenarios"]) == ("prescribe", 1.0, 20)
    assert client.jobs.log(job.id)[0].text == "accepted"
    assert pq.read_table(io.BytesIO(client.jobs.file(job.id, format="parquet"))).num_rows == 120
    assert client.jobs.file(job.id).count(b"\n") == 121
    assert len(client.jobs.result(job.id)) == 120
    assert client.jobs.result(job.id, to="polars").height == 120
    assert job.id in [found.id for found in client.jobs.list(state="succeeded", created_after=job.created_at)]
    with pytest.raises(Conflict, match="makes no file"):
        client.jobs.file(posterior.job_id or "")
    slow = client.jobs.learn(
        posterior.problem_id, posterior.dataset_id or "", inference={"method": "vi", "epochs": 5000, "members": 8}
    )
    client.jobs.cancel(slow.id)
    with pytest.raises(JobCancelled):
        client.jobs.wait(slow)
    assert client.jobs.retry(slow.id).state in ("queued", "running")
    client.jobs.cancel(slow.id)


def test_posteriors_are_read_and_aliases_moved(client: Client, learned: RemotePosterior, mornings: list[Json]) -> None:
    alias = client.aliases.move("bakery-test", learned.id)
    assert (alias.posterior_id, alias.digest) == (learned.id, learned.posterior.digest)
    with pytest.raises(Conflict):
        client.aliases.move("bakery-test", learned.id, if_posterior_id=None)
    assert client.load("bakery-test").id == learned.id
    contexts = [{name: row[name] for name in learned.posterior.context_names} for row in mornings]
    answer = client.posteriors.prescribe("bakery-test", contexts, scenarios=30)
    assert (answer.posterior_id, answer.scenarios["count"]) == (learned.id, 30)
    assert len(answer.prescriptions) == 5
    assert [move.to_posterior_id for move in client.aliases.moves("bakery-test")] == [learned.id]
    assert "bakery-test" in [found.name for found in client.aliases.list()]
    with pytest.raises(Conflict):
        client.posteriors.delete(learned.id)
    client.aliases.delete("bakery-test")
    with pytest.raises(NotFound):
        client.aliases.get("bakery-test")
    assert client.posteriors.diagnostics(learned.id)["quality"] == learned.quality
    assert client.posteriors.particles(learned.id, count=2)[:2] == b"PK"
    assert client.posteriors.list(problem_id=learned.posterior.problem_id)[-1].digest == learned.posterior.digest
    assert learned.drift(dataset_id=learned.posterior.dataset_id).verdict in ("steady", "drifting", "too_few")


# asynchronous client


def test_the_asynchronous_client_gives_the_same_results(
    service: LocalService,
    learned: RemotePosterior,
    history: list[Json],
    problem: Json,
    quick: Json,
    mornings: list[Json],
) -> None:
    async def run() -> None:
        async with AsyncClient(service.url, quiet=True) as client:
            again = await client.learn(pl.DataFrame(history), problem, **quick)
            assert again.posterior.digest == learned.posterior.digest
            one, many, frame = await asyncio.gather(
                again.prescribe(mornings[0]), again.prescribe(mornings), again.prescribe(pl.DataFrame(mornings))
            )
            assert one == many[0] == learned.prescribe(mornings[0])
            assert frame["decision.loaves"].to_list() == [found.decision["loaves"] for found in many]
            with pytest.raises(UnprocessableRequest, match="never seen"):
                await again.prescribe(mornings[0] | {"weekday": "SAMSTAG"})
            assert (await client.load(again.id)).quality == again.quality

    asyncio.run(run())
