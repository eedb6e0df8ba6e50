"""Option `include`: its parts agree with other calls, other files and other solvers."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import cvxpy
import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobPartRow, PosteriorRow
from app.demo import example_problem
from app.jobs import compute, parts, service
from app.prescriptions.schemas import PrescribeAnswer
from tests.support.journey import (
    CONTEXTS,
    OUTCOMES,
    ROWS,
    Json,
    await_solvers,
    check_json,
    create_dataset,
    learn_posterior,
    prescribe,
)
from tests.support.prescription_details import ALL, DAYS, STORES, atoms, learn_from_spec, prescribe_with_details

PARQUET = "application/vnd.apache.parquet"


@pytest.fixture(scope="module")
def bakery(client: TestClient) -> Json:
    return learn_posterior(client)


def test_sensitivity_matches_finite_differences_of_other_calls(client: TestClient, bakery: Json) -> None:
    context = CONTEXTS[0]
    found = prescribe_with_details(client, bakery, context, policy="averaged")
    part = found["sensitivity"]

    def change(**other: Any) -> dict[str, float]:
        there = prescribe(client, bakery["id"], contexts=[context | other], scenarios=20, policy="averaged")
        answer = there["prescriptions"][0]
        moved = {name: answer["decision"][name] - found["decision"][name] for name in OUTCOMES}
        return moved | {"cost": answer["expected_cost"] - found["expected_cost"]}

    for name in ("temperature", "rain"):
        slope, step = part["derivatives"][name], 1e-4
        up, down = change(**{name: context[name] + step}), change(**{name: context[name] - step})
        if slope["method"] == "exact":
            for item in OUTCOMES:
                assert slope["decision"][item] == pytest.approx(
                    (up[item] - down[item]) / (2 * step), rel=1e-2, abs=0.01
                )
            moved = (up["cost"] - down["cost"]) / (2 * step)
            assert slope["expected_cost"] == pytest.approx(moved, rel=1e-2, abs=0.05)
        else:
            step = slope["step"]
            up, down = change(**{name: context[name] + step}), change(**{name: context[name] - step})
            for item in OUTCOMES:
                assert slope["decision"][item] == pytest.approx((up[item] - down[item]) / (2 * step))
    assert set(part["derivatives"]) == {"temperature", "rain"}
    assert context["weekday"] not in part["switches"]["weekday"]
    for name in ("weekday", "promotion"):
        for value, effect in part["switches"][name].items():
            moved_by = change(**{name: {"true": True, "false": False}.get(value, value)})
            assert effect["decision"] == pytest.approx({item: moved_by[item] for item in OUTCOMES}, abs=1e-6)
            assert effect["expected_cost"] == pytest.approx(moved_by["cost"], abs=1e-6)
    for shares in part["attribution"]["outcomes"].values():
        total = shares["base"] + sum(shares["contributions"].values()) + shares["residual"]
        assert total == pytest.approx(shares["prediction"], rel=1e-12)
        assert abs(shares["residual"]) < 1e-6 * abs(shares["prediction"])
        assert set(shares["contributions"]) == set(context)
    assert part["attribution"]["method"] == "linear"


def test_shadow_prices_are_listed_by_constraint_name(client: TestClient) -> None:
    tight = STORES | {"decision_rows": [STORES["decision_rows"][0] | {"limit": 15}]}
    found = prescribe_with_details(
        client,
        learn_from_spec(client, tight, ["port", "mill"], DAYS),
        {"rain": 2.0},
        include=["sensitivity", "scenarios"],
    )
    prices = {one["rule"]: one["price"] for one in found["sensitivity"]["prices"]}
    assert {"decision_rows/budget", "rows/serve port", "rows/row 2"} <= set(prices)
    outcomes = np.array([list(outcomes.values()) for _, outcomes, _ in atoms(found)])

    def optimal_cost(limit: float) -> float:
        near, far = cvxpy.Variable(nonneg=True), cvxpy.Variable(nonneg=True)
        later = 9 * cvxpy.sum(cvxpy.pos(outcomes[:, 0] - near)) + 7 * cvxpy.sum(cvxpy.pos(outcomes[:, 1] - far))
        program = cvxpy.Minimize(2 * near + far + later / len(outcomes))
        return float(cvxpy.Problem(program, [near <= 12, 2 * near + far <= limit]).solve(solver=cvxpy.HIGHS))

    assert prices["decision_rows/budget"] == pytest.approx((optimal_cost(15) - optimal_cost(15.001)) / 0.001, rel=1e-3)


def test_neighbours_are_the_nearest_rows_with_the_cost_of_the_decision(client: TestClient, bakery: Json) -> None:
    found = prescribe_with_details(client, bakery, CONTEXTS[7], include=["neighbours"], neighbours=3)
    assert set(found) & set(ALL) == {"neighbours"}
    part = found["neighbours"]
    assert part["of_rows"] == len(ROWS)
    assert [len(part["rows"]), part["rows"][0]["distance"]] == [3, pytest.approx(0, abs=1e-6)]
    nearest = part["rows"][0]
    assert nearest["outcomes"] == {name: ROWS[7][name] for name in OUTCOMES}
    assert nearest["context"] == CONTEXTS[7]
    cost = 0.0
    for item in example_problem()["spec"]["items"]:
        short = ROWS[7][item["name"]] - found["decision"][item["name"]]
        cost += max(item["underage_cost"] * short, -item["overage_cost"] * short)
    assert nearest["cost"] == pytest.approx(cost)


def test_neighbours_are_refused_when_the_rows_are_gone(client: TestClient) -> None:
    posterior = learn_posterior(client)
    with transaction() as session:
        session.get_one(PosteriorRow, posterior["id"]).dataset_id = None
    body = {"contexts": CONTEXTS[:1], "include": ["neighbours"]}
    problem = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body), 409)
    assert "rows of the history" in problem["detail"]


def test_scenarios_are_served_as_one_long_table(client: TestClient, bakery: Json) -> None:
    body = {"contexts": CONTEXTS[:2], "scenarios": 15, "include": ["scenarios"]}
    address = f"/v1/posteriors/{bakery['id']}/prescribe"
    plain = check_json(client.post(address, json=body))["prescriptions"]
    response = client.post(address, json=body, headers={"accept": PARQUET})
    assert (response.status_code, response.headers["content-type"]) == (200, PARQUET)
    table = pq.read_table(io.BytesIO(response.content))
    assert table.column_names == ["context", "scenario", "weight", *(f"outcome.{name}" for name in OUTCOMES), "cost"]
    assert table.num_rows == 30
    assert table["context"].to_pylist() == [0] * 15 + [1] * 15
    assert table["cost"].to_pylist() == [cost for one in plain for cost in one["scenarios"]["costs"]]
    refused = client.post(address, json=body | {"include": ["outcomes"]}, headers={"accept": PARQUET})
    assert "only scenarios" in check_json(refused, 422)["detail"]


def test_parts_not_included_are_absent_and_change_nothing(client: TestClient, bakery: Json) -> None:
    plain = prescribe(client, bakery["id"], contexts=CONTEXTS[:2], scenarios=20)
    assert not set(plain["prescriptions"][0]) & set(ALL)
    body = prescribe(client, bakery["id"], contexts=CONTEXTS[:2], scenarios=20, include=["outcomes"])
    for opened_one, one in zip(body["prescriptions"], plain["prescriptions"], strict=True):
        assert {name: value for name, value in opened_one.items() if name != "outcomes"} == one


def test_an_answer_with_all_parts_matches_its_schema(client: TestClient, bakery: Json) -> None:
    await_solvers(client)
    answer = {"id": None} | prescribe(client, bakery["id"], contexts=CONTEXTS[:2], include=ALL)
    assert PrescribeAnswer.model_validate(answer, strict=False).model_dump() == answer


def test_a_refused_context_has_no_included_parts(client: TestClient, bakery: Json) -> None:
    contexts = [CONTEXTS[0] | {"weekday": "NEVER"}, CONTEXTS[1]]
    await_solvers(client)
    refused, other = prescribe(client, bakery["id"], contexts=contexts, include=ALL)["prescriptions"]
    assert [refused[name] for name in ALL] == [None] * 5
    assert other["outcomes"] is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"include": ["weather"]}, "Input should be"),
        ({"include": ["outcomes"], "scenarios": 2000, "contexts": CONTEXTS * 5}, "fewer contexts or scenarios"),
        ({"include": ["sensitivity"], "policy": "thompson"}, "at random"),
        ({"include": ["neighbours"], "neighbours": 101}, "less than or equal to 100"),
    ],
)
def test_an_unusable_include_is_refused(client: TestClient, bakery: Json, changes: Json, words: str) -> None:
    body = {"contexts": CONTEXTS[:1]} | changes
    problem = check_json(client.post(f"/v1/posteriors/{bakery['id']}/prescribe", json=body), 422)
    assert words in json.dumps(problem)


def run_batch(client: TestClient, job_id: str) -> None:
    """Run a batch and all its parts in this process."""
    attempt = service.start(job_id)
    assert attempt is not None
    assert parts.offer(job_id, attempt)
    with transaction() as session:
        left = list(session.scalars(sa.select(JobPartRow.seq).where(JobPartRow.job_id == job_id)))

    def next_part() -> None:
        seq = left.pop()
        assert parts.start(job_id, seq)
        compute.run_part(job_id, seq)

    compute.run(job_id, attempt, next_part)
    assert check_json(client.get(f"/v1/jobs/{job_id}"))["state"] == "succeeded"


def batch_lines(client: TestClient, posterior: Json, contexts: list[Json], **options: Any) -> list[Json]:
    """Return the lines of a batch's CSV file."""
    dataset = create_dataset(
        client, outcomes=["none"], rows=[one | {"none": index} for index, one in enumerate(contexts)]
    )
    body = {"dataset_id": dataset["id"], "scenarios": 20, "neighbours": 2} | options
    job = check_json(client.post(f"/v1/posteriors/{posterior['id']}/batch-prescriptions", json=body), 202)
    run_batch(client, job["id"])
    return list(csv.DictReader(client.get(f"/v1/jobs/{job['id']}/result").text.splitlines()))


def test_a_batch_has_the_included_parts_as_columns(client: TestClient, bakery: Json) -> None:
    rows = [CONTEXTS[0], CONTEXTS[1] | {"weekday": "NEVER"}, CONTEXTS[2]]
    text = "\n".join(
        [
            ",".join(rows[0]),
            *(
                ",".join(str(float(value) if isinstance(value, bool) else value) for value in row.values())
                for row in rows
            ),
        ]
    )
    form = {"include": "outcomes, sensitivity,scenarios,neighbours", "scenarios": "20", "neighbours": "2"}
    address = f"/v1/posteriors/{bakery['id']}/batch-prescriptions/upload"
    job = check_json(client.post(address, data=form, files={"file": ("days.csv", text.encode())}), 202)
    run_batch(client, job["id"])
    response = client.get(f"/v1/jobs/{job['id']}/result", params={"format": "parquet"})
    table = pq.read_table(io.BytesIO(response.content)).to_pylist()
    await_solvers(client)
    part = prescribe(client, bakery["id"], contexts=[rows[0], rows[2]], include=ALL, scenarios=20, neighbours=2)
    for line, one in zip((table[0], table[2]), part["prescriptions"], strict=True):
        for name, outcome in one["outcomes"].items():
            assert line[f"outcomes.{name}.mean"] == pytest.approx(outcome["mean"])
            assert line[f"outcomes.{name}.quantiles.0.95"] == pytest.approx(outcome["quantiles"]["0.95"])
            assert line[f"outcomes.{name}.service_level"] == pytest.approx(outcome["service_level"])
        slope = one["sensitivity"]["derivatives"]["temperature"]
        assert line["sensitivity.derivatives.temperature.method"] == slope["method"]
        assert line["sensitivity.derivatives.temperature.decision.loaves"] == pytest.approx(slope["decision"]["loaves"])
        assert json.loads(line["scenarios"])["costs"] == pytest.approx(one["scenarios"]["costs"])
        assert json.loads(line["neighbours"])["rows"][0]["outcomes"] == one["neighbours"]["rows"][0]["outcomes"]
        assert set(json.loads(line["sensitivity.switches"])["weekday"]) == set(
            one["sensitivity"]["switches"]["weekday"]
        )
    assert table[1]["status"] == "refused"
    assert table[1]["outcomes.loaves.mean"] is None
    wrong = client.post(address, data=form | {"include": "weather"}, files={"file": ("days.csv", text.encode())})
    assert "separated by commas" in check_json(wrong, 422)["detail"]


def test_a_part_with_only_refused_rows_has_the_same_columns(
    client: TestClient, bakery: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.jobs.kinds.prescribe._MOST_ROWS_AT_ONCE", 2)
    lines = batch_lines(
        client, bakery, [*CONTEXTS[:2], *(one | {"weekday": "NEVER"} for one in CONTEXTS[:2])], include=ALL[1:]
    )
    assert [line["status"] for line in lines[2:]] == ["refused"] * 2
    assert all(None not in line for line in lines)
    assert lines[0]["sensitivity.derivatives.rain.decision.loaves"] != ""
    assert lines[2]["sensitivity.derivatives.rain.decision.loaves"] == ""


def test_a_posterior_with_lags_supports_include(client: TestClient) -> None:
    rows = [
        {"day": f"2024-{1 + n // 28:02}-{1 + n % 28:02}", "rain": float(n % 5), "sold": 20.0 + n % 7 + n % 5}
        for n in range(84)
    ]
    spec = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 2, "overage_cost": 1}]}
    problem = check_json(client.post("/v1/problems", json={"name": "shop", "spec": spec}), 201)
    dataset = create_dataset(client, outcomes=["sold"], time="day", rows=rows)
    shop = learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"])
    context = {"day": "2024-03-28", "rain": 3.0}
    found = prescribe_with_details(client, shop, context)
    part = found["sensitivity"]
    (other,) = part["switches"]["day"]
    assert other in ("2024-03-29", "2024-03-27")
    there = prescribe(client, shop["id"], contexts=[context | {"day": other}], scenarios=20)["prescriptions"][0]
    moved = there["decision"]["sold"] - found["decision"]["sold"]
    assert part["switches"]["day"][other]["decision"]["sold"] == pytest.approx(moved, abs=1e-6)
    assert set(part["attribution"]["outcomes"]["sold"]["contributions"]) == {"day", "rain"}
    assert found["neighbours"]["rows"][0]["context"] == context


def test_included_parts_that_take_too_long_are_refused(client: TestClient, bakery: Json) -> None:
    body = {"contexts": CONTEXTS[:1], "include": ["sensitivity"], "time_limit_seconds": 1e-4}
    problem = check_json(client.post(f"/v1/posteriors/{bakery['id']}/prescribe", json=body), 503)
    assert "include less" in problem["detail"]
