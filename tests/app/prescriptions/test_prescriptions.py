"""POST /v1/posteriors/{id}/prescribe: decisions, costs, policies, scenarios and warnings."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import Tensor

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.demo import example_problem
from app.posteriors.service import load
from app.prescriptions import cache
from app.prescriptions.schemas import IncludedAnswer, PrescribeAnswer
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.problems.registry import build_problem
from bco_core.scenarios import Scenarios
from tests.support.journey import CONTEXTS, OUTCOMES, QUICK, Json, check_json, learn_posterior, prescribe, without_id

ITEMS = example_problem()["spec"]["items"]
WEEKDAYS = ["FRI", "MON", "SAT", "SUN", "THU", "TUE", "WED"]
POLICY_NAMES = sorted(POLICIES)


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, seed=4, inference=QUICK | {"particles": 60, "initial_scale": 0.3})


@pytest.fixture(scope="module")
def network(client: TestClient) -> Json:
    return learn_posterior(client, seed=4, predictor={"kind": "mlp", "hidden": [8]})


def load_posterior(posterior_id: str) -> Posterior:
    with transaction() as session:
        return load(session, session.get_one(PosteriorRow, posterior_id))


def encode_by_hand(contexts: list[Json]) -> Any:
    """One-hot encode by hand: one column per weekday in alphabetical order, then the numbers."""
    rows = [
        [float(context["weekday"] == day) for day in WEEKDAYS]
        + [float(context[name]) for name in ("temperature", "rain", "promotion", "holiday")]
        for context in contexts
    ]
    return np.array(rows)


def predictive_scenarios(posterior: Posterior, contexts: list[Json], predictions: Tensor, count: int) -> Scenarios:
    found = posterior.predictive(torch.from_numpy(encode_by_hand(contexts)), predictions, count)
    assert found is not None
    return found


def test_the_answer_matches_its_schema(client: TestClient, posterior: Json) -> None:
    body = {"contexts": CONTEXTS[:3]}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    promised = PrescribeAnswer.model_validate(answer)
    absent = {"prescriptions": {"__all__": set(IncludedAnswer.model_fields)}}
    assert promised.model_dump(exclude=absent) == answer
    assert (answer["posterior_id"], answer["digest"]) == (posterior["id"], posterior["digest"])
    assert (answer["policy"], answer["quality"]) == ("bcp", posterior["quality"])
    assert len(answer["prescriptions"]) == 3
    for found in answer["prescriptions"]:
        assert list(found["decision"]) == list(found["map"]["decision"]) == OUTCOMES
        assert list(found["cost_quantiles"]) == ["0.05", "0.25", "0.5", "0.75", "0.95"]
        assert found["status"] == "optimal"


def test_a_prescription_can_be_recomputed_by_hand_from_the_downloaded_particles(
    client: TestClient, posterior: Json
) -> None:
    """Uses only numpy and the definition of the linear model."""
    file = client.get(f"/v1/posteriors/{posterior['id']}/particles").content
    with np.load(io.BytesIO(file), allow_pickle=False) as arrays:
        # With 59 scenarios no quantile falls exactly on an atom, where rounding would matter.
        theta = arrays["particles"][:59].astype(np.float64)
        contexts = (encode_by_hand(CONTEXTS[:5]) - arrays["context_mean"]) / arrays["context_scale"]
        outcome_mean, outcome_scale = arrays["outcome_mean"], arrays["outcome_scale"]
    weights, bias = theta[:, :-2].reshape(-1, 11, 2), theta[:, None, -2:]
    predictions = (np.einsum("bx,kxy->kby", contexts, weights) + bias) * outcome_scale + outcome_mean
    under, over = (np.array([item[name] for item in ITEMS]) for name in ("underage_cost", "overage_cost"))
    answer = prescribe(client, posterior["id"], contexts=CONTEXTS[:5], scenarios=59, costs_over="posterior")
    assert answer["scenarios"] == {"count": 59, "source": "particles", "seed": 4, "costs_over": "posterior"}
    for b, found in enumerate(answer["prescriptions"]):
        scenarios = predictions[:, b]
        for j, item in enumerate(ITEMS):
            level = under[j] / (under[j] + over[j])
            order = np.quantile(scenarios[:, j], level, method="inverted_cdf").clip(0, item.get("maximum_order"))
            assert found["decision"][item["name"]] == pytest.approx(order, rel=1e-5)
        short = scenarios - np.array(list(found["decision"].values()))
        costs = np.sort(np.where(short > 0, under * short, -over * short).sum(axis=1))
        assert found["expected_cost"] == pytest.approx(costs.mean(), rel=1e-4)
        worst = np.array([1, 1, 0.95])  # 5 % of 59 scenarios
        assert found["cvar_95"] == pytest.approx(worst @ costs[-1:-4:-1] / worst.sum(), rel=1e-4)
        for level, cost in found["cost_quantiles"].items():
            expected = np.quantile(costs, float(level), method="inverted_cdf")
            assert cost == pytest.approx(expected, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("costs_over", ["posterior", "predictive"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_expected_costs_equal_the_cores_own_over_the_loaded_posterior(
    client: TestClient, network: Json, policy: str, costs_over: str
) -> None:
    options = {"policy": policy, "scenarios": 30, "costs_over": costs_over}
    answer = prescribe(client, network["id"], contexts=CONTEXTS[:4], **options)
    assert answer["scenarios"]["costs_over"] == costs_over
    posterior, problem = load_posterior(network["id"]), build_problem(network["problem"])
    scenarios = posterior.scenarios(torch.from_numpy(encode_by_hand(CONTEXTS[:4])), posterior.particles[:30])
    map_decisions = problem.decide(scenarios.mode)
    atoms = scenarios.outcomes
    if costs_over == "predictive":
        atoms = predictive_scenarios(posterior, CONTEXTS[:4], atoms.mean(dim=1), 30).outcomes
    for b, found in enumerate(answer["prescriptions"]):
        decision = torch.tensor(list(found["decision"].values()), dtype=torch.float64)
        cost = problem.cost(decision, atoms[b]).mean().item()
        assert found["expected_cost"] == pytest.approx(cost, rel=1e-9)
        assert list(found["map"]["decision"].values()) == map_decisions[b].tolist()
        map_cost = problem.cost(map_decisions[b], atoms[b]).mean().item()
        assert found["map"]["expected_cost"] == pytest.approx(map_cost, rel=1e-9)
        assert found["hedging_gain"] == pytest.approx(map_cost - cost, abs=1e-9)


def test_every_policy_follows_its_definition(client: TestClient, network: Json) -> None:
    posterior, problem = load_posterior(network["id"]), build_problem(network["problem"])
    scenarios = posterior.scenarios(torch.from_numpy(encode_by_hand(CONTEXTS[:4])), posterior.particles)
    own = problem.decide(scenarios.outcomes)
    found = {
        policy: torch.tensor(
            [
                list(p["decision"].values())
                for p in prescribe(client, network["id"], contexts=CONTEXTS[:4], policy=policy, scenarios=40)[
                    "prescriptions"
                ]
            ],
            dtype=torch.float64,
        )
        for policy in POLICY_NAMES
    }
    torch.testing.assert_close(found["bcp"], problem.prescribe(scenarios.outcomes, scenarios.weights).decisions)
    torch.testing.assert_close(found["averaged"], own.mean(dim=1))
    atoms = predictive_scenarios(posterior, CONTEXTS[:4], scenarios.mean(), 40)
    torch.testing.assert_close(found["predictive"], problem.prescribe(atoms.outcomes, atoms.weights).decisions)
    mean = scenarios.outcomes.mean(dim=1, keepdim=True)
    shrunk = mean + 0.5 * (scenarios.outcomes - mean)
    torch.testing.assert_close(found["blended"], problem.prescribe(shrunk, scenarios.weights).decisions)
    torch.testing.assert_close(found["map"], problem.decide(scenarios.mode))
    for b, decision in enumerate(found["thompson"]):
        assert (own[b] == decision).all(dim=1).any()
    assert len({tuple(decisions.flatten().tolist()) for decisions in found.values()}) == len(POLICY_NAMES)


def test_the_policy_of_the_job_is_the_default(client: TestClient) -> None:
    made = learn_posterior(client, policy="averaged")
    assert prescribe(client, made["id"])["policy"] == "averaged"
    averaged = prescribe(client, made["id"], policy="averaged")
    assert prescribe(client, made["id"]) == averaged
    assert prescribe(client, made["id"], policy="map")["policy"] == "map"


def test_hedging_never_costs_more_than_the_map_decision_under_the_same_scenarios(
    client: TestClient, posterior: Json, network: Json
) -> None:
    for made in (posterior, network):
        answer = prescribe(client, made["id"], contexts=CONTEXTS, policy="bcp", costs_over="posterior")
        gains = [found["hedging_gain"] for found in answer["prescriptions"]]
        assert min(gains) >= -1e-9
        assert max(gains) > 0


def test_bcp_is_the_cheapest_policy_over_the_posterior_for_every_context(client: TestClient, posterior: Json) -> None:
    costs = {
        policy: [
            found["expected_cost"]
            for found in prescribe(client, posterior["id"], contexts=CONTEXTS, policy=policy, costs_over="posterior")[
                "prescriptions"
            ]
        ]
        for policy in POLICY_NAMES
    }
    for policy in POLICY_NAMES:
        assert all(best <= cost + 1e-9 for best, cost in zip(costs["bcp"], costs[policy], strict=True))


def test_blended_is_bcp_at_one_and_the_decision_of_the_mean_at_zero(client: TestClient, network: Json) -> None:
    posterior, problem = load_posterior(network["id"]), build_problem(network["problem"])
    scenarios = posterior.scenarios(torch.from_numpy(encode_by_hand(CONTEXTS[:3])), posterior.particles)
    options = {"contexts": CONTEXTS[:3], "scenarios": 40}
    zero, one = (
        prescribe(client, network["id"], policy="blended", alpha=alpha, **options)["prescriptions"] for alpha in (0, 1)
    )
    bcp = prescribe(client, network["id"], policy="bcp", **options)["prescriptions"]
    of_the_mean = problem.decide(scenarios.outcomes.mean(dim=1))
    for b in range(3):
        assert one[b]["decision"] == pytest.approx(bcp[b]["decision"], rel=1e-9)
        assert list(zero[b]["decision"].values()) == pytest.approx(of_the_mean[b].tolist(), rel=1e-9)


def test_predictive_costs_include_the_noise_of_outcomes(client: TestClient, network: Json) -> None:
    predictive, posterior = (
        prescribe(client, network["id"], contexts=CONTEXTS, policy="bcp", costs_over=over)["prescriptions"]
        for over in ("predictive", "posterior")
    )
    assert [found["decision"] for found in predictive] == [found["decision"] for found in posterior]
    cost = {"predictive": predictive, "posterior": posterior}
    means = {name: np.mean([found["expected_cost"] for found in answers]) for name, answers in cost.items()}
    assert means["predictive"] > means["posterior"]


def test_the_map_policy_has_no_hedging_gain(client: TestClient, posterior: Json) -> None:
    for found in prescribe(client, posterior["id"], contexts=CONTEXTS[:5], policy="map")["prescriptions"]:
        assert found["hedging_gain"] == 0
        assert found["decision"] == found["map"]["decision"]


def test_contexts_by_name_and_by_list_give_the_same_answer(client: TestClient, posterior: Json) -> None:
    by_name = prescribe(client, posterior["id"], contexts=CONTEXTS[:4])
    reversed_names = [dict(reversed(context.items())) for context in CONTEXTS[:4]]
    by_list = [list(context.values()) for context in CONTEXTS[:4]]
    assert prescribe(client, posterior["id"], contexts=reversed_names) == by_name
    assert prescribe(client, posterior["id"], contexts=by_list) == by_name
    assert prescribe(client, posterior["id"], contexts=[*by_list[:2], *CONTEXTS[2:4]]) == by_name


def test_one_context_and_many_give_the_same_decisions(client: TestClient, network: Json) -> None:
    many = prescribe(client, network["id"], contexts=CONTEXTS)["prescriptions"]
    assert len(many) == len(CONTEXTS)
    for index in (0, 17, 59):
        (single,) = prescribe(client, network["id"], contexts=[CONTEXTS[index]])["prescriptions"]
        assert single["decision"] == pytest.approx(many[index]["decision"], rel=1e-6)
        assert single["expected_cost"] == pytest.approx(many[index]["expected_cost"], rel=1e-4)


def test_booleans_and_integers_are_the_same_context(client: TestClient, posterior: Json) -> None:
    as_numbers = [context | {"promotion": int(context["promotion"])} for context in CONTEXTS[:3]]
    assert prescribe(client, posterior["id"], contexts=as_numbers) == prescribe(
        client, posterior["id"], contexts=CONTEXTS[:3]
    )


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_same_request_gives_the_same_answer_bit_for_bit(client: TestClient, posterior: Json, policy: str) -> None:
    for seed in (None, 9):
        body = {"contexts": CONTEXTS[:6], "policy": policy, "seed": seed, "scenarios": 50}
        first, second = (client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body) for _ in range(2))
        assert first.status_code == 200
        assert without_id(first.content) == without_id(second.content)


def test_each_seed_draws_its_own_fresh_scenarios(client: TestClient, posterior: Json) -> None:
    plain, nine, ten = (prescribe(client, posterior["id"], scenarios=50, seed=seed) for seed in (None, 9, 10))
    assert plain["scenarios"] == {"count": 50, "source": "particles", "seed": 4, "costs_over": "predictive"}
    assert nine["scenarios"] == {"count": 50, "source": "fresh draws", "seed": 9, "costs_over": "predictive"}
    decisions = [answer["prescriptions"][0]["decision"]["croissants"] for answer in (plain, nine, ten)]
    assert len(set(decisions)) == 3


def test_more_scenarios_than_stored_particles_are_drawn_fresh(client: TestClient, posterior: Json) -> None:
    assert prescribe(client, posterior["id"], scenarios=60)["scenarios"]["source"] == "particles"
    answer = prescribe(client, posterior["id"], scenarios=61)
    assert (answer["scenarios"]["source"], answer["scenarios"]["seed"]) == ("fresh draws", 4)
    assert prescribe(client, posterior["id"], scenarios=61) == answer


def test_fewer_scenarios_are_the_first_particles(client: TestClient, posterior: Json) -> None:
    (found,) = prescribe(client, posterior["id"], scenarios=1)["prescriptions"]
    made, problem = load_posterior(posterior["id"]), build_problem(posterior["problem"])
    scenarios = made.scenarios(torch.from_numpy(encode_by_hand(CONTEXTS[:1])), made.particles[:1])
    assert list(found["decision"].values()) == problem.decide(scenarios.outcomes)[0, 0].tolist()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_reloaded_posterior_prescribes_the_same_bit_for_bit(client: TestClient, network: Json, policy: str) -> None:
    body = {"contexts": CONTEXTS, "policy": policy}
    path = f"/v1/posteriors/{network['id']}/prescribe"
    requests = [body, body | {"seed": 3}, body | {"scenarios": 17}]
    first = [without_id(client.post(path, json=request).content) for request in requests]
    client.app.state.posteriors = cache.cache_from_settings()
    assert [without_id(client.post(path, json=request).content) for request in requests] == first


def test_a_poor_posterior_warns_and_refuses_if_quality_is_required(client: TestClient) -> None:
    poor = learn_posterior(client, inference=QUICK | {"epochs": 1, "learning_rate": 1e-9, "initial_scale": 3})
    assert poor["quality"] == "bad"
    answer = prescribe(client, poor["id"])
    assert answer["quality"] == "bad"
    assert answer["warnings"] == [f"posterior quality is bad: {poor['reason']}"]
    for required in ("warn", "ok"):
        body = {"contexts": CONTEXTS[:1], "require_quality": required}
        response = client.post(f"/v1/posteriors/{poor['id']}/prescribe", json=body)
        assert response.status_code == 409
        assert poor["reason"] in response.json()["detail"]


def test_a_good_posterior_prescribes_without_warnings(client: TestClient) -> None:
    inference = {"method": "vi", "members": 5, "epochs": 300, "patience": 8, "learning_rate": 0.05, "particles": 40}
    rng = np.random.default_rng(0)
    rows = [
        {"x": x, "croissants": 10.0 * x + rng.normal(), "loaves": 50 - x + 0.5 * rng.normal()}
        for x in rng.uniform(1, 10, 100)
    ]
    dataset = check_json(client.post("/v1/datasets", json={"name": "easy", "outcomes": OUTCOMES, "rows": rows}), 201)
    good = learn_posterior(client, inference=inference, dataset_id=dataset["id"], predictor={"kind": "linear"})
    assert good["quality"] == "ok", good["reason"]
    answer = prescribe(client, good["id"], contexts=[{"x": 4}], require_quality="ok")
    assert answer["warnings"] == []
    assert answer["prescriptions"][0]["decision"]["croissants"] == pytest.approx(40, abs=8)


def test_contexts_far_from_the_history_cause_warnings_by_column(client: TestClient, posterior: Json) -> None:
    usual = prescribe(client, posterior["id"], contexts=CONTEXTS)["warnings"]
    strange = [CONTEXTS[0] | {"temperature": 400}, CONTEXTS[1] | {"temperature": -400, "rain": 900}, CONTEXTS[2]]
    warnings = [note for note in prescribe(client, posterior["id"], contexts=strange)["warnings"] if note not in usual]
    assert len(warnings) == 2
    assert warnings[0].startswith("'temperature' is far outside")
    assert warnings[0].endswith("in 2 context(s)")
    assert warnings[1].startswith("'rain' is far outside")
    assert warnings[1].endswith("in 1 context(s)")


def test_decisions_keep_their_order_bounds(client: TestClient) -> None:
    items = [
        {"name": "croissants", "underage_cost": 1, "overage_cost": 1, "minimum_order": 1000},
        {"name": "loaves", "underage_cost": 1, "overage_cost": 1, "maximum_order": 5},
    ]
    spec = {"kind": "newsvendor", "items": items}
    problem = check_json(client.post("/v1/problems", json={"name": "bounds", "spec": spec}), 201)
    made = learn_posterior(client, problem_id=problem["id"])
    for policy in POLICY_NAMES:
        (found,) = prescribe(client, made["id"], policy=policy)["prescriptions"]
        assert found["decision"] == {"croissants": 1000.0, "loaves": 5.0}


def test_one_call_answers_a_thousand_contexts_in_order(client: TestClient, network: Json) -> None:
    contexts = [CONTEXTS[0] | {"temperature": index / 50} for index in range(1000)]
    found = prescribe(client, network["id"], contexts=contexts)["prescriptions"]
    assert len(found) == 1000
    for index in (0, 500, 999):
        (single,) = prescribe(client, network["id"], contexts=[contexts[index]])["prescriptions"]
        assert found[index]["decision"] == pytest.approx(single["decision"], rel=1e-6)
