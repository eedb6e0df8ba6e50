"""GET /v1/posteriors/{id}/drift: expected and realised costs on rows added after training."""

from __future__ import annotations

import random
from datetime import date, timedelta
from time import monotonic
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from app.db.tables import PosteriorRow
from app.demo import bakery_rows
from app.http.errors import InvalidRequest, NotFoundError
from app.prescriptions import drift
from app.prescriptions.cache import cache_from_settings, cached_posterior
from app.prescriptions.drift import DriftAnswer, judge_rows
from bco_core.errors import OutOfTime
from bco_core.prescribe import PrescribeOptions, prescribe
from tests.support.journey import (
    OUTCOMES,
    Json,
    await_solvers,
    check_json,
    create_dataset,
    create_problem,
    learn_posterior,
)

# The posterior learns from HISTORY; LATER is appended.
HISTORY, LATER = bakery_rows(400)[:200], bakery_rows(400)[200:]
GOOD: Json = {"inference": {"method": "vi", "members": 2, "epochs": 20, "particles": 100}}


def append(client: TestClient, posterior: Json, rows: list[Json]) -> None:
    """Append rows to the posterior's data set as its next revision."""
    check_json(client.post(f"/v1/datasets/{posterior['dataset_id']}/rows", json={"rows": rows}), 201)


def float_rows(rows: list[Json], **factors: float) -> list[Json]:
    return [
        {
            name: value * factors.get(name, 1.0) if isinstance(value, int | float) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def drift_of(posterior: Json, dataset_id: str | None = None, seconds: float = 60.0) -> DriftAnswer:
    return judge_rows(cache_from_settings(), "default", posterior["id"], dataset_id, monotonic() + seconds)


@pytest.fixture
def posterior(client: TestClient) -> Json:
    dataset = create_dataset(client, rows=float_rows(HISTORY))
    return learn_posterior(client, dataset_id=dataset["id"], **GOOD)


def test_without_later_rows_the_verdict_is_too_few(posterior: Json) -> None:
    found = drift_of(posterior)
    assert (found.verdict, found.overall, found.stretches) == ("too_few", None, [])
    assert (found.learned_revision, found.revision) == (1, 1)


def test_unchanged_demand_is_steady_and_higher_demand_drifts(client: TestClient, posterior: Json) -> None:
    append(client, posterior, float_rows(LATER[:100]))
    found = drift_of(posterior)
    assert found.overall is not None
    assert (found.verdict, found.overall.rows, found.revision) == ("steady", 100, 2), found.sentence
    append(client, posterior, float_rows(LATER[100:], croissants=1.6, loaves=1.6))
    found = drift_of(posterior)
    assert (found.verdict, found.revision, sum(one.rows for one in found.stretches)) == ("drifting", 3, 200)
    ratios = [one.ratio or 0.0 for one in found.stretches]
    assert min(ratios[6:]) > max(ratios[:6])


def test_each_row_is_costed_with_the_decision_of_prescribe(client: TestClient, posterior: Json) -> None:
    append(client, posterior, float_rows(LATER[:30]))
    found = drift_of(posterior)
    cache = cache_from_settings()
    row: PosteriorRow = cache.row("default", posterior["id"])
    loaded = cached_posterior(cache, row)
    contexts = [{name: value for name, value in one.items() if name not in OUTCOMES} for one in float_rows(LATER[:30])]
    encoded = torch.from_numpy(loaded.encoding.encode_rows(loaded.encoding.in_order(contexts)).matrix)
    decided = prescribe(loaded.posterior, loaded.problem, encoded, PrescribeOptions(policy=row.policy))
    happened = torch.tensor([[one[name] for name in OUTCOMES] for one in LATER[:30]], dtype=torch.float64)
    realised = loaded.problem.cost(decided.decisions, happened)
    assert found.overall is not None
    assert found.overall.realised == pytest.approx(realised.mean().item())
    assert found.overall.promised == pytest.approx(decided.costs.mean.mean().item())
    above = (realised > decided.costs.quantiles[:, -1]).double().mean().item()
    assert found.overall.above.share == pytest.approx(above)


def drift_on_rows(client: TestClient, posterior: Json, rows: list[Json]) -> DriftAnswer:
    """Return the drift on exactly these rows."""
    return drift_of(posterior, create_dataset(client, rows=float_rows(rows))["id"])


def test_above_the_row_limit_the_oldest_rows_are_left_out(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (0, 40):
        append(client, posterior, float_rows(LATER[first : first + 40]))
    with monkeypatch.context() as patch:
        patch.setattr(drift, "MOST_ROWS", 50)
        found = drift_of(posterior)
    assert found.overall == drift_on_rows(client, posterior, LATER[30:80]).overall


def test_without_enough_time_the_oldest_rows_are_left_out(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(client, posterior, float_rows(LATER[:60]))
    real = drift.prescribe

    def stop_early(*given: Any, **limits: Any) -> Any:
        found = real(*given, **limits)
        found.decisions[40:] = torch.nan
        return found

    with monkeypatch.context() as patch:
        patch.setattr(drift, "prescribe", stop_early)
        found = drift_of(posterior)
    assert found.left_out == 20
    assert found.overall == drift_on_rows(client, posterior, LATER[20:60]).overall
    with pytest.raises(OutOfTime):
        drift_of(posterior, seconds=-1.0)


def test_all_rows_of_another_data_set_are_judged(client: TestClient, posterior: Json) -> None:
    other = create_dataset(client, rows=float_rows(LATER, croissants=2.0, loaves=2.0))
    found = drift_of(posterior, other["id"])
    assert (found.verdict, found.dataset_id, found.learned_revision) == ("drifting", other["id"], None)
    assert found.overall is not None
    assert found.overall.rows == 200


def test_stretches_follow_time_and_begin_at_its_values(client: TestClient, posterior: Json) -> None:
    dated = [{"day": f"2025-{1 + n // 28:02}-{1 + n % 28:02}"} | row for n, row in enumerate(float_rows(LATER[:60]))]
    other = create_dataset(client, rows=dated[::-1], time="day")
    found = drift_of(posterior, other["id"])
    edges = [(one.first, one.last) for one in found.stretches]
    assert edges == sorted(edges)
    assert (edges[0][0] or "")[:10] == "2025-01-01"
    assert (edges[-1][1] or "")[:10] == "2025-03-04"


def test_lags_use_only_outcomes_known_at_that_time(client: TestClient) -> None:
    """Demand jumps after training: costs drift from then on, and decisions before the jump do not change."""
    drawn = random.Random(3)
    days = [
        {"day": (date(2024, 1, 1) + timedelta(days=n)).isoformat(), "demand": 100.0 + 0.5 * drawn.gauss(0, 10)}
        for n in range(260)
    ]
    dataset = create_dataset(client, rows=days[:200], outcomes=["demand"], time="day")
    item = {"name": "demand", "underage_cost": 3, "overage_cost": 1}
    problem = create_problem(client, spec={"kind": "newsvendor", "items": [item]})
    made = learn_posterior(client, dataset_id=dataset["id"], problem_id=problem["id"], **GOOD)
    append(client, made, days[200:])
    calm = drift_of(made)
    assert calm.overall is not None
    assert (calm.verdict, calm.overall.rows, calm.left_out, calm.learned_revision) == ("steady", 60, 0, 1)
    jumped = [{"day": (date(2024, 9, 17) + timedelta(days=n)).isoformat(), "demand": 300.0} for n in range(30)]
    append(client, made, jumped)
    after = drift_of(made)
    assert after.verdict == "drifting"
    # Decisions for the first thirty rows do not know of the jump.
    assert costs_of(after, 30) == pytest.approx(costs_of(calm, 30))


def costs_of(found: DriftAnswer, rows: int) -> tuple[float, float]:
    """Sum the expected and realised costs of the stretches over the first rows."""
    sums, counted = [0.0, 0.0], 0
    for one in found.stretches:
        if counted < rows:
            assert one.promised is not None
            assert one.realised is not None
            counted += one.rows
            sums = [sums[0] + one.rows * one.promised, sums[1] + one.rows * one.realised]
    assert counted == rows
    return sums[0], sums[1]


@pytest.mark.parametrize("lacking", ["weekday", "loaves"])
def test_a_data_set_without_a_needed_column_is_refused(client: TestClient, posterior: Json, lacking: str) -> None:
    rows = [{name: value for name, value in row.items() if name != lacking} for row in float_rows(LATER)]
    outcomes = [name for name in OUTCOMES if name != lacking]
    other = create_dataset(client, rows=rows, outcomes=outcomes)
    with pytest.raises(InvalidRequest, match=f"'{lacking}'"):
        drift_of(posterior, other["id"])


def test_a_posterior_of_another_workspace_is_not_found(client: TestClient, posterior: Json) -> None:
    with pytest.raises(NotFoundError):
        judge_rows(cache_from_settings(), "elsewhere", posterior["id"], None, monotonic() + 60)


@pytest.mark.slow
def test_drift_runs_in_a_solver_process_and_accepts_an_alias(client: TestClient, posterior: Json) -> None:
    await_solvers(client)
    append(client, posterior, float_rows(LATER[:60]))
    check_json(client.put("/v1/aliases/drifts", json={"posterior_id": posterior["id"]}))
    found = check_json(client.get("/v1/posteriors/drifts/drift"))
    assert found == drift_of(posterior).model_dump()
    assert (found["posterior_id"], found["digest"]) == (posterior["id"], posterior["digest"])
    assert client.app.state.solvers.pids()  # type: ignore[attr-defined]
    for dataset_id in ("data_x", "data_01M7MPTHJ1DCFSMQB79MNFQ5XR"):
        refused = client.get("/v1/posteriors/drifts/drift", params={"dataset_id": dataset_id})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["pointer"] == "#/query/dataset_id"
    assert client.get("/v1/posteriors/nobody/drift").status_code == 404
