"""Portfolio constraints over HTTP: estimated risk, groups, turnover, facts, and targets refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf
from starlette.testclient import TestClient

from app.posteriors import portable
from tests.support.journey import ASSETS, FUND, Json, check_json, create_job, learn, months, prepare_fund

QUICK: Json = {"chains": 2, "steps": 120, "burn_in": 60, "particles": 40, "inverse_temperature": 100}
RULES: Json = {
    "kind": "mean_variance_portfolio",
    "risk_aversion": 20,
    "assets": [{"name": name, "maximum": 0.7} for name in ASSETS],
    "fully_invested": True,
    "groups": [{"name": "safe", "assets": ASSETS[1:], "minimum": 0.5}],
    "current": {ASSETS[0]: 0.6, ASSETS[1]: 0.4},
    "turnover_cost": 0.001,
    "maximum_turnover": 0.8,
}
CONTEXTS = [{"mood": 0.5, "rates": 0.0}, {"mood": -1.0, "rates": 0.3}]


@pytest.fixture(scope="module")
def dataset(client: TestClient) -> str:
    return str(prepare_fund(client)["dataset_id"])


def problem_of(client: TestClient, spec: Json) -> str:
    return str(check_json(client.post("/v1/problems", json={"name": "fund", "spec": spec}), 201)["id"])


def learn_portfolio(client: TestClient, dataset: str, spec: Json, **options: Any) -> Json:
    job = create_job(client, problem_id=problem_of(client, spec), dataset_id=dataset, **options)
    job = learn(client, job["id"])
    assert job["state"] == "succeeded", job["error"]
    return check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))


@pytest.fixture(scope="module")
def posterior(client: TestClient, dataset: str) -> Json:
    options = {"method": "vi", "members": 2, "epochs": 2}
    return learn_portfolio(client, dataset, RULES, inference=options, predictor={"kind": "linear"})


def test_the_covariance_is_estimated_from_the_returns_and_stored(posterior: Json) -> None:
    returns = np.array([[row[name] for name in ASSETS] for row in months()])
    expected, shrinkage = ledoit_wolf(returns)
    spec = posterior["problem"]
    np.testing.assert_allclose(spec["covariance"], expected, rtol=1e-5, atol=1e-9)
    assert spec["covariance_source"] == (
        f"estimated from 60 rows of returns by Ledoit–Wolf shrinkage of {shrinkage:.3g}"
    )


def test_answers_have_return_risk_turnover_and_bounds(client: TestClient, posterior: Json) -> None:
    body = {"contexts": CONTEXTS, "scenarios": 40}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    for one in answer["prescriptions"]:
        held, facts = one["decision"], one["facts"]
        positions = np.array([held[name] for name in ASSETS])
        assert one["status"] == "optimal"
        assert positions.sum() == pytest.approx(1)
        assert held["bonds"] + held["gold"] >= 0.5 - 1e-9
        assert facts["turnover"] == pytest.approx(np.abs(positions - [0.6, 0.4, 0.0]).sum())
        assert facts["turnover"] <= 0.8 + 1e-9
        assert facts["turnover_cost"] == pytest.approx(0.001 * facts["turnover"])
        variance = positions @ np.array(posterior["problem"]["covariance"]) @ positions
        assert facts["variance"] == pytest.approx(variance)
        assert facts["volatility"] == pytest.approx(variance**0.5)
        # The cost is ½γ variance minus the return after turnover costs.
        assert one["expected_cost"] == pytest.approx(10 * variance - facts["expected_return"])
        assert facts["bounds"] == {name: [0, pytest.approx(0.7)] for name in ASSETS}
        assert facts["covariance"].startswith("estimated from 60 rows")


def test_an_exported_posterior_includes_its_estimated_covariance(
    client: TestClient, posterior: Json, tmp_path: Path
) -> None:
    manifest = portable.export(posterior["id"], tmp_path / "fund.zip")
    assert manifest.problem["covariance"] == posterior["problem"]["covariance"]
    assert "covariance" in posterior["problem"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_return": 0.3}, "portfolios return 0.3 in 0.0% of the rows, and 95% is required; the largest target"),
        ({"target_return": 0.2, "target_on": "mean"}, "on average, and 0.2 is required"),
        ({"target_return": 0.099, "groups": [{"assets": ASSETS, "maximum": 0.5}]}, "the largest target within reach"),
    ],
)
def test_an_impossible_target_is_refused_on_creation_of_the_job(
    client: TestClient, dataset: str, changes: Json, words: str
) -> None:
    problem = problem_of(client, FUND | {"covariance": None} | changes)
    refusal = check_json(client.post("/v1/jobs", json={"problem_id": problem, "dataset_id": dataset}), 422)
    assert refusal["errors"][0]["pointer"] == "#/problem_id"
    assert "out of reach" in refusal["detail"]
    assert words in refusal["detail"]


def test_a_target_above_every_constant_portfolio_gives_a_log_warning(client: TestClient, dataset: str) -> None:
    problem = problem_of(client, FUND | {"target_return": 0.099})
    job = create_job(client, problem_id=problem, dataset_id=dataset, inference=QUICK)
    log = check_json(client.get(f"/v1/jobs/{job['id']}/log"))
    assert any("a constant portfolio returns at most" in line["text"] for line in log["lines"])
    check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)


def test_a_target_on_the_mean_is_met_on_average(client: TestClient, dataset: str) -> None:
    spec = FUND | {"covariance": None, "estimate": "factors", "target_on": "mean", "fully_invested": True}
    made = learn_portfolio(client, dataset, spec | {"target_return": 0.09}, inference=QUICK)
    assert made["problem"]["covariance_source"].endswith("principal factor")
    body = {"contexts": CONTEXTS, "scenarios": 40, "policy": "predictive"}
    for one in check_json(client.post(f"/v1/posteriors/{made['id']}/prescribe", json=body))["prescriptions"]:
        assert one["status"] == "optimal"
        assert one["facts"]["expected_return"] >= 0.09 - 1e-9
        assert one["facts"]["target_return"] == 0.09
        assert one["facts"]["invested"] == pytest.approx(1)
