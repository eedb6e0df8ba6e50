"""Histories with time and series, from learning to prescribing: lag features, refusals, appended rows."""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from datetime import date, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobPartRow
from app.jobs import compute, parts, service
from app.posteriors import portable
from app.prescriptions import cache
from app.prescriptions.cache import cache_from_settings
from app.prescriptions.drift import judge_rows
from bco_core.errors import InvalidInput
from tests.support.journey import QUICK, Json, check_json, create_dataset, create_job, create_problem, learn, prescribe

FIRST, DAYS, LEAD = date(2023, 1, 2), 120, 3
GOOD: Json = QUICK | {"epochs": 200}
SPEC: Json = {"kind": "newsvendor", "items": [{"name": "demand", "underage_cost": 3, "overage_cost": 1}]}


def day(number: int) -> str:
    return (FIRST + timedelta(days=number)).isoformat()


def demand(shop: str, number: int) -> float:
    level = {"north": 50, "south": 500}.get(shop, 5)
    return level * (1 + 0.3 * (number % 7 == 5)) + number % 5


def shop_rows(days: range, shops: tuple[str, ...] = ("north", "south")) -> list[Json]:
    return [
        {"day": day(n), "shop": shop, "promotion": n % 3 == 0, "demand": demand(shop, n)}
        for shop in shops
        for n in days
    ]


def shops(client: TestClient, rows: list[Json] | None = None, **changes: Any) -> Json:
    body = {
        "outcomes": ["demand"],
        "time": "day",
        "series": ["shop"],
        "lead": LEAD,
        "rows": rows or shop_rows(range(DAYS)),
    }
    return create_dataset(client, **body | changes)


def learned_from(client: TestClient, dataset: Json, **changes: Any) -> Json:
    problem = create_problem(client, name="shop", spec=SPEC)
    job = create_job(client, problem_id=problem["id"], dataset_id=dataset["id"], **changes)
    job = learn(client, job["id"])
    assert job["state"] == "succeeded", job["error"]
    return check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learned_from(client, shops(client), inference=GOOD)


def context(number: int, shop: str = "north", **changes: Any) -> Json:
    return {"day": day(number), "shop": shop, "promotion": False} | changes


def refusal_of(client: TestClient, posterior: Json, *contexts: Any) -> Json:
    response = client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json={"contexts": list(contexts)})
    return check_json(response, 422)


# learning


def test_a_posterior_describes_its_recipe(posterior: Json) -> None:
    recipe = posterior["recipe"]["recipe"]
    assert recipe["clock"] == {"unit": "day", "step": 1, "phase": 0}
    assert recipe["lead"] == LEAD
    assert min(recipe["lags"]) == LEAD
    assert recipe["season"] == 7
    assert posterior["recipe"]["keys"] == {"shop": ["north", "south"]}
    assert posterior["recipe"]["revision"] == 1
    # The first rows of each shop have no lags.
    assert posterior["recipe"]["left_out"] == 2 * LEAD
    assert posterior["recipe"]["rows"] == 2 * (DAYS - LEAD)


def test_requested_features_replace_those_of_auto(client: TestClient) -> None:
    features = {"lags": [7, 14], "windows": [], "calendar": [], "trend": False, "holidays": "DE"}
    posterior = learned_from(client, shops(client), features=features)
    recipe = posterior["recipe"]["recipe"]
    assert (recipe["lags"], recipe["windows"], recipe["calendar"]) == ([7, 14], [], [])
    assert recipe["holidays"] == "DE"
    assert prescribe(client, posterior["id"], contexts=[context(DAYS)])["prescriptions"][0]["status"] == "optimal"


def test_without_time_features_contexts_need_no_time(client: TestClient) -> None:
    posterior = learned_from(client, shops(client), features="none")
    assert posterior["recipe"]["recipe"] is None
    answer = prescribe(client, posterior["id"], contexts=[{"shop": "north", "promotion": True}, context(900)])
    assert [one["status"] for one in answer["prescriptions"]] == ["optimal", "optimal"]
    assert answer["history"] is None


def test_integers_are_periods(client: TestClient) -> None:
    rows = [{"week": 100 + n, "demand": 10.0 + n % 4} for n in range(60)]
    posterior = learned_from(client, create_dataset(client, outcomes=["demand"], time="week", rows=rows))
    answer = prescribe(client, posterior["id"], contexts=[{"week": 160}, {"week": "161"}, {"week": 160.5}])
    assert [one["status"] for one in answer["prescriptions"]] == ["optimal", "refused", "refused"]
    assert answer["history"] == {"revision": 1, "last": "159"}


REFUSED_FEATURES: dict[str, tuple[Any, str, str]] = {
    "lags younger than lead": ({"lags": [1]}, "#/features/lags", "from 3 to"),
    "an unknown country": ({"holidays": "XY"}, "#/features/holidays", "ISO codes"),
    "an unknown part": ({"calendar": ["moon"]}, "#/features", "weekday"),
    "a window that is too wide": ({"windows": [5000]}, "#/features/windows", "1 to 1,000"),
    "no lag at all": ({"lags": [0]}, "#/features", "1"),
    "another word": ("all", "#/features", "auto"),
}


@pytest.mark.parametrize("name", REFUSED_FEATURES)
def test_impossible_features_are_refused_on_creation_of_the_job(client: TestClient, name: str) -> None:
    features, pointer, says = REFUSED_FEATURES[name]
    ids = {"problem_id": create_problem(client, spec=SPEC)["id"], "dataset_id": shops(client)["id"]}
    answer = check_json(client.post("/v1/jobs", json=ids | {"inference": QUICK, "features": features}), 422)
    assert any(error["pointer"].startswith(pointer) for error in answer["errors"]), answer
    assert says in str(answer)


def test_time_features_need_a_time_column(client: TestClient) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    answer = check_json(client.post("/v1/jobs", json=ids | {"features": {"lags": [7]}}), 422)
    assert answer["errors"][0]["pointer"] == "#/features"
    assert "no time column" in answer["detail"]


# prescribing


def test_each_series_gets_decisions_at_its_own_level(client: TestClient, posterior: Json) -> None:
    answer = prescribe(client, posterior["id"], contexts=[context(DAYS, "north"), context(DAYS, "south")])
    north, south = (one["decision"]["demand"] for one in answer["prescriptions"])
    assert 30 < north < 150
    assert 300 < south < 1000
    assert answer["history"] == {"revision": 1, "last": day(DAYS - 1)}
    assert answer["warnings"] == [warning for warning in answer["warnings"] if "quality" in warning]
    assert [one["warnings"] for one in answer["prescriptions"]] == [[], []]


def test_every_format_of_the_same_day_gives_the_same_decision(client: TestClient, posterior: Json) -> None:
    when = FIRST + timedelta(days=DAYS)
    spelled = [when.isoformat(), f"{when:%d.%m.%Y}", f"{when.isoformat()}T00:00:00", f" {when.isoformat()} "]
    answer = prescribe(client, posterior["id"], contexts=[context(0, day=text) for text in spelled])
    assert len({one["decision"]["demand"] for one in answer["prescriptions"]}) == 1


def test_contexts_may_be_lists_of_time_keys_and_contexts(client: TestClient, posterior: Json) -> None:
    answer = prescribe(client, posterior["id"], contexts=[[day(DAYS), "north", False], context(DAYS)])
    first, second = answer["prescriptions"]
    assert first == second


BAD_CONTEXTS: dict[str, tuple[Json, str, str]] = {
    "a day beyond lead": (context(DAYS + LEAD), "day", f"after {day(DAYS + LEAD - 1)}"),
    "far beyond lead": (context(0, day="9999-12-31"), "day", "append newer rows"),
    "a day before anything is known": (context(LEAD - 1), "day", "nothing of it is known"),
    "long before the history": (context(0, day="0001-01-01"), "day", "nothing of it is known"),
    "a shop never seen": (context(DAYS, "west"), "shop", "no series"),
    "no shop": (context(DAYS, shop=None), "shop", "missing"),
    "a nested shop": (context(DAYS, shop=["north"]), "shop", "missing"),
    "no day": (context(DAYS, day=None), "day", "missing"),
    "no such day": (context(DAYS, day="2023-02-30"), "day", "2024-01-31"),
    "another format": (context(DAYS, day="05/02/2023"), "day", "2024-01-31"),
    "a number for a day": (context(DAYS, day=20230502), "day", "2024-01-31"),
    "a true day": (context(DAYS, day=True), "day", "2024-01-31"),
    "a time zone": (context(DAYS, day=f"{day(DAYS)}T00:00:00+02:00"), "day", "time zone"),
    "a missing number": (context(DAYS, promotion=None), "promotion", "missing"),
}


@pytest.mark.parametrize("name", BAD_CONTEXTS)
def test_an_invalid_context_is_refused_and_others_are_served(client: TestClient, posterior: Json, name: str) -> None:
    bad, column, says = BAD_CONTEXTS[name]
    alone = refusal_of(client, posterior, bad)
    assert alone["errors"][0]["pointer"] == f"#/contexts/0/{column}"
    assert says in alone["detail"]
    answer = prescribe(client, posterior["id"], contexts=[context(DAYS), bad, context(DAYS, "south")])
    first, second, third = answer["prescriptions"]
    assert (first["status"], third["status"]) == ("optimal", "optimal")
    assert second["status"] == "refused"
    assert says in second["reason"]
    assert second["decision"] == {"demand": None}
    assert "1 context(s) are refused, each with its reason" in answer["warnings"]
    undisturbed = prescribe(client, posterior["id"], contexts=[context(DAYS)])
    assert undisturbed["prescriptions"][0]["decision"] == first["decision"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"shop": "north", "promotion": False}, "lacks 'day'"),
        ({"day": day(DAYS), "promotion": False}, "lacks 'shop'"),
        (context(DAYS, price=1), "does not know"),
        ([day(DAYS), "north"], "3 values"),
    ],
)
def test_a_context_of_another_shape_fails_the_call(client: TestClient, posterior: Json, bad: Any, says: str) -> None:
    assert says in refusal_of(client, posterior, context(DAYS), bad)["detail"]


def test_a_date_within_the_history_is_served_with_a_warning(client: TestClient, posterior: Json) -> None:
    (one,) = prescribe(client, posterior["id"], contexts=[context(60)])["prescriptions"]
    assert one["status"] == "optimal"
    assert "not after the data set's last row" in one["warnings"][0]


def test_a_short_series_gives_a_warning_for_its_row(client: TestClient) -> None:
    rows = shop_rows(range(DAYS)) + [
        {"day": day(n), "shop": "new", "promotion": False, "demand": 30_000.0} for n in range(DAYS - 5, DAYS)
    ]
    posterior = learned_from(client, shops(client, shop_rows(range(DAYS))))
    assert posterior["recipe"]["rows"] > 0
    short = learned_from(client, shops(client, rows))
    answer = prescribe(client, short["id"], contexts=[context(DAYS, "new"), context(DAYS)])
    warnings = answer["prescriptions"][0]["warnings"]
    assert any("the series is short" in sentence for sentence in warnings)
    assert answer["prescriptions"][1]["warnings"] == []
    assert any("the series is short" in sentence for sentence in answer["warnings"])


@pytest.mark.slow
def test_unseen_series_are_served_at_the_overall_level_on_request(client: TestClient) -> None:
    posterior = learned_from(client, shops(client, unseen="other"), inference=GOOD)
    answer = prescribe(client, posterior["id"], contexts=[context(DAYS, "west"), context(DAYS)])
    west, north = answer["prescriptions"]
    assert west["status"] == "optimal"
    assert math.isfinite(west["decision"]["demand"])
    assert west["decision"]["demand"] > north["decision"]["demand"]
    assert any("not in the history" in sentence for sentence in west["warnings"])


# missing numbers and unseen categories


def test_missing_numbers_and_unseen_categories_are_imputed_on_request(client: TestClient) -> None:
    rows = [
        {"x": None if n % 10 == 0 else float(n % 7), "kind": "ab"[n % 2], "demand": 10.0 + n % 7} for n in range(80)
    ]
    problem = create_problem(client, spec=SPEC)["id"]

    def learn_with(**changes: Any) -> str:
        dataset = create_dataset(client, outcomes=["demand"], rows=rows, **changes)
        job = learn(client, create_job(client, problem_id=problem, dataset_id=dataset["id"])["id"])
        assert job["state"] == "succeeded", job["error"]
        return str(job["posterior_id"])

    lenient, strict = learn_with(missing="impute", unseen="other"), learn_with(missing="drop")
    contexts = [{"x": 3, "kind": "a"}, {"x": None, "kind": "a"}, {"x": 3, "kind": "z"}, {"x": "3", "kind": None}]
    found = [one["status"] for one in prescribe(client, lenient, contexts=contexts)["prescriptions"]]
    assert found == ["optimal", "optimal", "optimal", "refused"]
    found = [one["status"] for one in prescribe(client, strict, contexts=contexts)["prescriptions"]]
    assert found == ["optimal", "refused", "refused", "refused"]


# batches


def batch_rows(client: TestClient, posterior: Json, content: str) -> list[Json]:
    """Run a batch in this process and return the rows of its result."""
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    job = check_json(client.post(path, files={"file": ("contexts.csv", content.encode())}), 202)
    attempt = service.start(job["id"])
    assert attempt is not None
    assert parts.offer(job["id"], attempt)
    with transaction() as session:
        left = list(session.scalars(sa.select(JobPartRow.seq).where(JobPartRow.job_id == job["id"])))

    def run_next_part() -> None:
        seq = left.pop()
        assert parts.start(job["id"], seq)
        compute.run_part(job["id"], seq)

    compute.run(job["id"], attempt, run_next_part)
    result = client.get(f"/v1/jobs/{job['id']}/result", params={"format": "csv"})
    assert result.status_code == 200, result.text
    return list(csv.DictReader(io.StringIO(result.text)))


def test_a_batch_refuses_rows_one_by_one_and_decides_as_prescribe_does(client: TestClient, posterior: Json) -> None:
    contexts = [context(DAYS), context(DAYS + 1, "south"), context(DAYS + LEAD), context(DAYS, "west"), context(50)]
    lines = [f"{one['day']},{one['shop']},{int(one['promotion'])},n{n}" for n, one in enumerate(contexts)]
    lines += ["nonsense,north,0,n5", f"{day(DAYS)},north,,n6"]
    rows = batch_rows(client, posterior, "\n".join(["day,shop,promotion,note", *lines]) + "\n")
    assert [row["note"] for row in rows] == [f"n{n}" for n in range(7)]
    statuses = ["optimal", "optimal", "refused", "refused", "optimal", "refused", "refused"]
    assert [row["status"] for row in rows] == statuses
    assert "append newer rows" in rows[2]["reason"]
    assert "no series" in rows[3]["reason"]
    assert "not after" in rows[4]["warnings"]
    assert "2024-01-31" in rows[5]["reason"]
    assert "missing" in rows[6]["reason"]
    alone = prescribe(client, posterior["id"], contexts=contexts[:2])
    expected = [one["decision"]["demand"] for one in alone["prescriptions"]]
    assert [float(row["decision.demand"]) for row in rows[:2]] == pytest.approx(expected, rel=1e-12)


def test_a_batch_without_usable_rows_is_refused_at_once(client: TestClient, posterior: Json) -> None:
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    content = b"day,shop,promotion\nnonsense,north,1\nmore,north,1\n"
    answer = check_json(client.post(path, files={"file": ("contexts.csv", content)}), 422)
    assert "line 2" in answer["detail"]
    content = b"shop,promotion\nnorth,1\n"
    answer = check_json(client.post(path, files={"file": ("contexts.csv", content)}), 422)
    assert "'day' is missing" in answer["detail"]


# appended rows


def append(client: TestClient, dataset_id: str, rows: list[Json]) -> Json:
    return check_json(client.post(f"/v1/datasets/{dataset_id}/rows", json={"rows": rows}), 201)


def test_appended_rows_feed_lags_without_learning_again(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FRESH_SECONDS", 0.0)
    dataset = shops(client)
    posterior = learned_from(client, dataset, inference=GOOD)
    before = prescribe(client, posterior["id"], contexts=[context(DAYS)])
    new = [row | {"demand": 10 * row["demand"]} for row in shop_rows(range(DAYS, DAYS + 10))]
    new += shop_rows(range(DAYS, DAYS + 10), ("west",))
    assert append(client, dataset["id"], new)["revision"] == 2
    later = DAYS + 10 + LEAD - 1
    answer = prescribe(client, posterior["id"], contexts=[context(later), context(later, "west"), context(DAYS)])
    assert answer["history"] == {"revision": 2, "last": day(DAYS + 9)}
    north, west, as_before = answer["prescriptions"]
    assert north["decision"]["demand"] > 1.2 * before["prescriptions"][0]["decision"]["demand"]
    assert west["status"] == "optimal"
    assert as_before["decision"] == before["prescriptions"][0]["decision"]
    assert check_json(client.get(f"/v1/posteriors/{posterior['id']}"))["recipe"]["revision"] == 1


def test_a_job_learns_from_its_revision(client: TestClient) -> None:
    dataset = shops(client)
    problem = create_problem(client, spec=SPEC)
    job = create_job(client, problem_id=problem["id"], dataset_id=dataset["id"])
    append(client, dataset["id"], shop_rows(range(DAYS, DAYS + 10)))
    assert job["spec"]["revision"] == 1
    learn(client, job["id"])
    posterior = check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))
    assert posterior["recipe"]["rows"] == 2 * (DAYS - LEAD)


def test_an_outdated_posterior_gives_a_warning(client: TestClient) -> None:
    dataset = shops(client)
    posterior = learned_from(client, dataset)
    append(client, dataset["id"], shop_rows(range(DAYS, DAYS + 60)))
    later = prescribe(client, posterior["id"], contexts=[context(DAYS + 60)])
    assert any("learn again" in sentence for sentence in later["prescriptions"][0]["warnings"])


# export and import


def test_an_exported_posterior_includes_the_rows_of_its_lags(client: TestClient, tmp_path: Path) -> None:
    posterior, file = learned_from(client, shops(client)), tmp_path / "shop.bco"
    portable.export(posterior["id"], file)
    contexts = [context(DAYS + LEAD - 1), context(DAYS, "south")]
    here = prescribe(client, posterior["id"], contexts=contexts)
    row, new = portable.import_(file, "default")
    assert not new
    assert client.delete(f"/v1/posteriors/{posterior['id']}").status_code == 204
    row, new = portable.import_(file, "default")
    assert new
    assert (row.dataset_id or "").startswith("data_")
    assert row.dataset_id != posterior["dataset_id"]
    there = prescribe(client, row.id, contexts=contexts)
    assert there["prescriptions"] == here["prescriptions"]
    assert there["digest"] == here["digest"]
    stored = check_json(client.get(f"/v1/datasets/{row.dataset_id}"))
    assert stored["lead"] == LEAD
    assert stored["rows"] < 2 * DAYS
    grown = append(client, stored["id"], shop_rows(range(DAYS, DAYS + 1)))
    assert grown["revision"] == 2
    # The import has no job but knows its revision, so the two new rows count as new.
    found = judge_rows(cache_from_settings(), "default", row.id, None, monotonic() + 60)
    assert (found.learned_revision, found.revision, found.verdict) == (1, 2, "too_few")
    assert found.overall is not None
    assert found.overall.rows == 2


def test_a_file_with_changed_rows_is_refused(client: TestClient, tmp_path: Path) -> None:
    posterior = learned_from(client, shops(client))
    file, changed = tmp_path / "shop.bco", tmp_path / "changed.bco"
    portable.export(posterior["id"], file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data[:-1] + b"x" if name == portable.ROWS else data)
    with pytest.raises(InvalidInput, match=r"rows\.parquet does not match"):
        portable.read(changed)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == portable.MANIFEST:
                manifest = json.loads(data)
                manifest["recipe"]["recipe"]["lags"] = [LEAD]
                data = json.dumps(manifest).encode()
            new.writestr(name, data)
    with pytest.raises(InvalidInput, match="digest"):
        portable.read(changed)


@pytest.mark.slow
def test_boosted_residual_models_need_the_method_auto(client: TestClient) -> None:
    dataset, problem = shops(client), create_problem(client, name="shop", spec=SPEC)
    body = {
        "problem_id": problem["id"],
        "dataset_id": dataset["id"],
        "predictor": {"kind": "boosted"},
        "inference": QUICK,
    }
    refusal = check_json(client.post("/v1/jobs", json=body), 422)
    assert refusal["errors"][0]["pointer"] == "#/predictor/kind"
    assert "needs the method auto" in refusal["errors"][0]["detail"]
    quick = {"method": "auto", "epochs": 2, "members": 5}
    job = create_job(client, **body | {"inference": quick})
    job = learn(client, job["id"])
    assert job["state"] == "succeeded", job["error"]
    context = {"day": day(DAYS), "shop": "north", "promotion": False}
    found = prescribe(client, job["posterior_id"], contexts=[context])["prescriptions"][0]
    assert found["status"] == "optimal"
    assert 30 < found["decision"]["demand"] < 90
