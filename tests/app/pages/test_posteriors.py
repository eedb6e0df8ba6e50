"""Pages about posteriors of every kind: the list, diagnostics with any part missing, drift and aliases."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.keys import service as keys
from app.pages.render import number, percent
from tests.support.journey import Json, check_json, create_job, learn_posterior
from tests.support.pages import token
from tests.support.polling import wait_until
from tests.support.posterior_kinds import KINDS, one_of_each

pytestmark = pytest.mark.usefixtures("posteriors")


@pytest.fixture(scope="module")
def posteriors(client: TestClient, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    return one_of_each(client, tmp_path_factory.mktemp("imported"))


def get_page(browser: TestClient, path: str, status: int = 200) -> str:
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def words(page: str) -> str:
    """Return the visible text of a page without tooltips."""
    page = re.sub(r'<span class="tip".*?</span>', "", page)
    return " ".join(html.unescape(re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.S)).split())


def tight(page: str) -> str:
    """Return the visible text without spaces, since tags may add some."""
    return words(page).replace(" ", "")


def diagnostics_of(client: TestClient, posterior: Json) -> Json:
    return check_json(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))


def send(browser: TestClient, posterior: Json, to: str, **fields: str) -> Any:
    address = f"/posteriors/{posterior['id']}"
    return browser.post(f"{address}/{to}", data={"csrf": token(browser, address)} | fields)


# the list


def test_the_list_shows_quality_reason_problem_data_and_aliases(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    check_json(client.put("/v1/aliases/in.the.list", json={"posterior_id": posteriors["chains"]["id"]}))
    page = words(get_page(browser, "/posteriors"))
    for one in posteriors.values():
        assert one["reason"][1:] in page
        assert one["name"] in page
    assert "in.the.list" in page
    assert "unavailable (imported)" in page
    for name in ("fund", "months", "roads", "drives"):
        assert name in page


def test_the_list_can_be_filtered(browser: TestClient, posteriors: dict[str, Json]) -> None:
    quality = posteriors["chains"]["quality"]
    page = get_page(browser, f"/posteriors?quality={quality}")
    for one in posteriors.values():
        assert (f'href="/posteriors/{one["id"]}"' in page) == (one["quality"] == quality)
    page = get_page(browser, f"/posteriors?problem_id={posteriors['feasibility']['problem_id']}")
    assert words(page).count("Decide") == 1
    assert "Filtered: for the problem fund" in words(page)
    assert "No posterior matches the filter" in words(
        get_page(browser, f"/posteriors?dataset_id={posteriors['time']['id']}")
    )
    get_page(browser, "/posteriors?quality=splendid", 422)


def test_an_empty_list_says_what_to_do_next(browser: TestClient, make_key: Callable[[str], str]) -> None:
    key = keys.create("test", "nothing-here", ["read", "train"], None)[1]
    make_key("read")
    page = browser.get("/posteriors", headers={"Authorization": f"Bearer {key}"}).text
    assert "No posteriors yet" in words(page)
    assert 'href="/datasets/new"' in page
    assert 'href="/jobs/new"' in page


# one posterior


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_posterior_shows_its_diagnostics(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json], kind: str
) -> None:
    posterior = posteriors[kind]
    diagnostics, page = diagnostics_of(client, posterior), get_page(browser, f"/posteriors/{posterior['id']}")
    plain, text = tight(page), words(page)
    assert posterior["reason"][1:] in text
    assert number(diagnostics["judged_cost"]["mean"]) in text
    for path in (("judged_cost",), ("constant_decision_cost",), ("promise", "expected"), ("promise", "realised")):
        found = diagnostics
        for name in path:
            found = found[name]
        assert number(found["mean"], 3) in text, path
    saved = diagnostics["gain_over_constant"]
    assert f"{number(abs(saved['mean']), 3)}±{number(2 * saved['standard_error'], 2)}".replace(" ", "") in plain
    assert f"covered{percent(diagnostics['calibration']['coverage']['0.8'], 1)}".replace(" ", "") in plain
    assert posterior["digest"] in page
    for address in ("decide", "drivers", "since"):
        assert (f"/posteriors/{posterior['id']}/{address}" in page) == (address != "drivers" or kind != "imported")
    assert f"/backtests/new?posterior={posterior['id']}" in page
    assert f'href="/problems/{posterior["problem_id"]}"' in page


def test_verdicts_say_which_differences_are_significant(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    for kind in ("mixture", "time", "chains", "surrogate"):
        diagnostics, page = (
            diagnostics_of(client, posteriors[kind]),
            words(get_page(browser, f"/posteriors/{posteriors[kind]['id']}")),
        )
        for name, rule in (("gain_over_constant", "one constant"), ("gain_over_regression", "plain regression")):
            more = diagnostics[name]
            clear = abs(more["mean"]) > 2.5 * more["standard_error"]
            sentence = next(one for one in re.split(r"\. |\.$", page) if one.startswith(f"Compared with {rule}"))
            assert sentence.endswith(", significant") == clear
            assert (" saves " in sentence) == (more["mean"] <= 0)


def test_expected_and_realised_costs_are_shown_over_time(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    diagnostics, page = (
        diagnostics_of(client, posteriors["time"])["forward"],
        get_page(browser, f"/posteriors/{posteriors['time']['id']}"),
    )
    assert "Expected and realised cost over time" in page
    assert "Expected and realised cost by distance ahead" in page
    for line in diagnostics["stretches"] + diagnostics["distances"]:
        assert f"<td>{number(line['promised'])}</td><td>{number(line['cost']['mean'])}</td>" in page
        assert f"<td>{number(100 * line['above_95'])}</td>" in page
    first = date(1970, 1, 1) + timedelta(diagnostics["stretches"][0]["from_period"])
    assert f"<td>{first}</td>" in page
    assert number(diagnostics["season"]["mean"]) in page
    for kind in ("mixture", "chains", "squared error", "learned on"):
        page = get_page(browser, f"/posteriors/{posteriors[kind]['id']}")
        assert "Expected and realised cost on held-out rows" in page
        assert ("The data has no time column" in page) == (kind != "learned on")
        assert ("New rows are judged" in page) == (kind == "learned on")


def test_mixtures_show_their_candidates_and_training_charts(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    diagnostics, page = (
        diagnostics_of(client, posteriors["mixture"]),
        get_page(browser, f"/posteriors/{posteriors['mixture']['id']}"),
    )
    assert f"{len(diagnostics['candidates'])} candidates compared" in page
    for line in diagnostics["candidates"] + diagnostics["policies"]:
        assert number(line["against_default"]["mean"]) in page
        assert f"costs {number(line['cost']['mean'])}" in page
    assert f"network {percent(diagnostics['network_share'])}" in page or diagnostics["network_share"] in (0, 1)
    for title in ("Cost by share of the network", "Cost during training", "Distance from the prior"):
        assert title in page


def test_chains_show_their_mixing_diagnostics(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    diagnostics, page = (
        diagnostics_of(client, posteriors["chains"])["chains"],
        words(get_page(browser, f"/posteriors/{posteriors['chains']['id']}")),
    )
    assert "Cost along the chains" in page
    assert number(diagnostics["predictions"]["r_hat"]) in page
    assert number(diagnostics["loss"]["ess_bulk"], 3) in page
    assert " · ".join(percent(one) for one in diagnostics["acceptance"]) in page


@pytest.mark.parametrize(("kind", "loss"), [("surrogate", "spo_plus"), ("squared error", "squared_error")])
def test_a_surrogate_loss_is_named(browser: TestClient, posteriors: dict[str, Json], kind: str, loss: str) -> None:
    assert posteriors[kind]["loss"] == loss
    page = words(get_page(browser, f"/posteriors/{posteriors[kind]['id']}"))
    assert f"Trained on a surrogate : {posteriors[kind]['loss_meaning']}." in page
    assert "Loss during training" in page or "No training trace was recorded" in page


def test_uncertain_constraints_show_how_often_they_were_met(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    diagnostics, page = (
        diagnostics_of(client, posteriors["feasibility"]),
        words(get_page(browser, f"/posteriors/{posteriors['feasibility']['id']}")),
    )
    share = percent(diagnostics["held_out_feasibility"], 1)
    assert f"Constraints were met on {share}" in page.replace("\u00a0", " ")
    assert "need not meet the constraints" in page


def test_a_certificate_shows_its_terms_or_why_it_is_missing(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    certificate = diagnostics_of(client, posteriors["certified"])["certificate"]
    page = words(get_page(browser, f"/posteriors/{posteriors['certified']['id']}"))
    for value in (
        *certificate["bounds"].values(),
        certificate["terms"]["empirical_risk"],
        certificate["terms"]["cost_bound"],
    ):
        assert number(value) in page
    assert "With a confidence of 95 %" in page or "it is vacuous" in page
    for kind in ("mixture", "chains", "surrogate"):
        why = diagnostics_of(client, posteriors[kind])["certificate"]["reason"]
        assert f"No certificate. {why[:1].upper()}{why[1:]}." in words(
            get_page(browser, f"/posteriors/{posteriors[kind]['id']}")
        )


def test_a_posterior_shows_its_provenance(client: TestClient, browser: TestClient, posteriors: dict[str, Json]) -> None:
    for kind in ("mixture", "time", "learned on"):
        posterior = posteriors[kind]
        origin = diagnostics_of(client, posterior)["origin"]
        page = get_page(browser, f"/posteriors/{posterior['id']}")
        assert origin["dataset_digest"] in page
        assert f"torch {origin['versions']['torch']}" in page
        assert f'href="/jobs/{posterior["job_id"]}"' in page
        assert f'href="/datasets/{posterior["dataset_id"]}"' in page
    assert f'href="/posteriors/{posteriors["time"]["id"]}"' in page
    assert "with 80 new rows, as the prior, forgetting 25 %" in words(page)
    assert "calendar: weekday" in words(page)
    page = words(get_page(browser, f"/posteriors/{posteriors['imported']['id']}"))
    assert "the posterior was imported" in page


def test_an_alias_opens_the_page_of_its_posterior(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    check_json(client.put("/v1/aliases/by.name", json={"posterior_id": posteriors["time"]["id"]}))
    assert posteriors["time"]["id"] in get_page(browser, "/posteriors/by.name")
    assert "no posterior has this id" in words(get_page(browser, "/posteriors/nobody", 404)).lower()
    queued = create_job(client)
    assert "is queued" in words(get_page(browser, f"/posteriors/{queued['posterior_id']}", 409))


BARE: Json = {
    "quality": "warn",
    "reason": "too long ago",
    "method": "auto",
    "policy": "bcp",
    "certificate": {},
    "kl_weight": 0.1,
    "inverse_temperature": 10.0,
    "cost_scale": 1.0,
}


def store_diagnostics(posterior: Json, diagnostics: Json) -> None:
    with transaction() as session:
        session.get_one(PosteriorRow, posterior["id"]).diagnostics = diagnostics


def without_numbers(diagnostics: Any) -> Any:
    """Replace every number by None, as if nothing was finite."""
    if isinstance(diagnostics, dict):
        return {name: without_numbers(part) for name, part in diagnostics.items()}
    if isinstance(diagnostics, list):
        return [without_numbers(part) for part in diagnostics]
    return None if isinstance(diagnostics, int | float) and not isinstance(diagnostics, bool) else diagnostics


def drop_some(diagnostics: Any, rng: random.Random) -> Any:
    """Drop some fields at random, at every level."""
    if isinstance(diagnostics, list):
        return [drop_some(part, rng) if isinstance(part, dict) else part for part in diagnostics]
    if not isinstance(diagnostics, dict):
        return diagnostics
    return {name: drop_some(part, rng) for name, part in diagnostics.items() if rng.random() < 0.8}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_renders_with_any_part_of_the_diagnostics_missing(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json], kind: str
) -> None:
    posterior = posteriors[kind]
    with transaction() as session:
        stored = session.get_one(PosteriorRow, posterior["id"]).diagnostics
    parts = {name: part for name, part in stored.items() if isinstance(part, dict | list) and part}
    required = {name: stored[name] for name in BARE}
    # The API guarantees that these two fields hold numbers.
    loose = {name: part for name, part in parts.items() if name not in ("best_epochs", "shares")}
    tried: list[Json] = [BARE, stored | {name: without_numbers(part) for name, part in loose.items()}]
    tried += [required | {name: part} for name, part in parts.items()]
    rng = random.Random(0)
    for _ in range(8):
        left = {name: part for name, part in stored.items() if name in BARE or rng.random() < 0.7}
        tried.append(left | {name: drop_some(part, rng) for name, part in left.items() if name in parts})
    try:
        for one in tried:
            store_diagnostics(posterior, one)
            page = get_page(browser, f"/posteriors/{posterior['id']}")
            assert "Training" in page
        store_diagnostics(posterior, BARE)
        page = words(get_page(browser, f"/posteriors/{posterior['id']}"))
        assert "Too long ago." in page
        assert "is unknown" in page
    finally:
        store_diagnostics(posterior, stored)


# parts that load later


@pytest.mark.parametrize("kind", ["mixture", "time", "surrogate"])
def test_drivers_are_shapley_values_over_the_latest_rows(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json], kind: str
) -> None:
    posterior = posteriors[kind]
    before = client.get("/v1/prescriptions").json()["items"]
    text = get_part(browser, f"/posteriors/{posterior['id']}/drivers")
    assert "over 12 rows sampled from the latest" in text
    for column in posterior["columns"]:
        assert (column["name"] in text) == (column["role"] in ("context", "time", "series", "outcome"))
    assert client.get("/v1/prescriptions").json()["items"] == before


def get_part(browser: TestClient, path: str) -> str:
    """Return the text of a page part once the solver processes have started."""
    found = ""

    def has_loaded() -> bool:
        nonlocal found
        found = words(get_page(browser, path))
        return "is starting" not in found

    wait_until("the part has loaded", has_loaded)
    return found


def test_drivers_agree_with_the_api(client: TestClient, browser: TestClient, posteriors: dict[str, Json]) -> None:
    """With a single column, the drivers show only its mean absolute contribution."""
    posterior = posteriors["surrogate"]
    rows = check_json(client.get(f"/v1/datasets/{posterior['dataset_id']}/rows?last=true&limit=120"))["items"]
    sample = random.Random(0).sample(rows, 12)
    body = {"contexts": [{"rain": row["rain"]} for row in sample], "include": ["sensitivity"]}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    text = get_part(browser, f"/posteriors/{posterior['id']}/drivers")
    for name in ("bridge", "tunnel"):
        shares = [
            one["sensitivity"]["attribution"]["outcomes"][name]["contributions"]["rain"]
            for one in answer["prescriptions"]
        ]
        assert f"rain {number(sum(map(abs, shares)) / 12, 3)}" in text


def test_an_imported_posterior_has_no_drivers(
    browser: TestClient, posteriors: dict[str, Json], monkeypatch: Any
) -> None:
    page = get_page(browser, f"/posteriors/{posteriors['imported']['id']}")
    assert "what-ifs are disabled" in words(page)
    assert "drivers are unavailable" in get_part(browser, f"/posteriors/{posteriors['imported']['id']}/drivers")
    get_page(browser, "/posteriors/nobody/drivers", 404)


def test_the_drift_section_shows_the_verdict_on_recent_data(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    found = {}

    def judged() -> bool:
        answer = client.get(f"/v1/posteriors/{posteriors['time']['id']}/drift")
        found.update(answer.json())
        return answer.status_code == 200

    wait_until("later rows are judged", judged)
    text = get_part(browser, f"/posteriors/{posteriors['time']['id']}/since")
    assert found["sentence"][1:] in text
    assert number(found["overall"]["ratio"], 3) in text
    assert "Expected and realised cost of recent data" in text
    assert ("Drift detected" in text) == (found["verdict"] == "drifting")
    assert "No recent data" in get_part(browser, f"/posteriors/{posteriors['chains']['id']}/since")
    assert "No recent data" in get_part(browser, f"/posteriors/{posteriors['imported']['id']}/since")


# aliases


def test_aliases_are_added_moved_and_deleted(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    old, new = posteriors["time"], posteriors["learned on"]
    assert "Add an alias" in get_page(browser, f"/posteriors/{new['id']}")
    answer = send(browser, old, "aliases", name="shop.live")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/posteriors/{old['id']}#names")
    page = get_page(browser, f"/posteriors/{new['id']}")
    assert "shop.live" in page
    assert "not compared" not in words(page)
    assert send(browser, new, "aliases", name="shop.live", names_now=old["id"]).status_code == 303
    assert check_json(client.get("/v1/aliases/shop.live"))["posterior_id"] == new["id"]
    page = words(get_page(browser, f"/posteriors/{new['id']}"))
    assert "shop.live points to this posterior since" in page
    assert "History of shop.live" in page
    refused = send(browser, new, "delete")
    assert refused.status_code == 409
    assert "the alias shop.live names this posterior" in words(refused.text).lower()
    assert send(browser, new, "aliases/shop.live/delete").status_code == 303
    assert client.get("/v1/aliases/shop.live").status_code == 404
    assert send(browser, new, "aliases/shop.live/delete").status_code == 404


@pytest.mark.parametrize("name", ["two words", "post_x", "ä", "..", "a/b", "x" * 65, "..."])
def test_an_invalid_alias_shows_an_error_at_its_field(
    browser: TestClient, posteriors: dict[str, Json], name: str
) -> None:
    answer = send(browser, posteriors["chains"], "aliases", name=name)
    assert answer.status_code == 422
    assert "an alias is 1 to 64 letters" in words(answer.text).lower()
    assert f'name="name" value="{name}"' in answer.text
    assert 'aria-invalid="true"' in answer.text


def test_a_taken_alias_is_moved_only_after_confirmation(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    check_json(client.put("/v1/aliases/taken", json={"posterior_id": posteriors["surrogate"]["id"]}))
    answer = send(browser, posteriors["chains"], "aliases", name="taken")
    assert answer.status_code == 409
    assert "taken points to another posterior" in words(answer.text)
    assert f'name="names_now" value="{posteriors["surrogate"]["id"]}"' in answer.text
    assert check_json(client.get("/v1/aliases/taken"))["posterior_id"] == posteriors["surrogate"]["id"]
    stale = send(browser, posteriors["chains"], "aliases", name="taken", names_now=posteriors["time"]["id"])
    assert stale.status_code == 409
    assert (
        send(
            browser, posteriors["chains"], "aliases", name="taken", names_now=posteriors["surrogate"]["id"]
        ).status_code
        == 303
    )


def test_a_posterior_can_be_updated_with_new_rows(
    client: TestClient, browser: TestClient, posteriors: dict[str, Json]
) -> None:
    page = get_page(browser, f"/posteriors/{posteriors['time']['id']}")
    assert "Update with new rows" in page
    assert "Update with new rows" not in get_page(browser, f"/posteriors/{posteriors['mixture']['id']}")
    answer = send(browser, posteriors["time"], "learn-on", alias="learned.live")
    assert answer.status_code == 303
    job = check_json(client.get(f"/v1{answer.headers['location']}"))
    assert job["spec"]["from_posterior"]["posterior_id"] == posteriors["time"]["id"]
    assert job["spec"]["promote"] == {"alias": "learned.live", "when": "if_not_worse"}
    check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)
    refused = send(browser, posteriors["mixture"], "learn-on")
    assert refused.status_code == 422
    assert "already learned from all rows" in words(refused.text)


def test_a_posterior_can_be_deleted(client: TestClient, browser: TestClient) -> None:
    gone = learn_posterior(client, name="gone")
    answer = send(browser, gone, "delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/posteriors")
    get_page(browser, f"/posteriors/{gone['id']}", 404)


FORMS = ["aliases", "aliases/x/delete", "delete", "learn-on"]


@pytest.mark.parametrize("form", FORMS)
def test_forms_from_other_sites_are_rejected(browser: TestClient, posteriors: dict[str, Json], form: str) -> None:
    address = f"/posteriors/{posteriors['time']['id']}/{form}"
    assert browser.post(address, data={"name": "stolen"}).status_code == 403
    fields = {"name": "stolen", "csrf": token(browser, f"/posteriors/{posteriors['time']['id']}")}
    assert browser.post(address, data=fields, headers={"Origin": "https://elsewhere.example"}).status_code == 403


def test_a_read_only_key_sees_no_forms_and_is_rejected(
    browser: TestClient, posteriors: dict[str, Json], make_key: Callable[[str], str]
) -> None:
    reader = {"Authorization": f"Bearer {make_key('read')}"}
    address = f"/posteriors/{posteriors['time']['id']}"
    page = browser.get(address, headers=reader).text
    assert "Expected and realised cost" in page
    assert f'action="{address}' not in page
    assert "Train another" not in browser.get("/posteriors", headers=reader).text
    form = re.search(r'X-CSRF-Token":"([0-9a-f]{64})"', page)
    assert form is not None
    for path in FORMS:
        fields = {"csrf": form[1], "name": "mine", "names_now": ""}
        assert browser.post(f"{address}/{path}", data=fields, headers=reader).status_code == 403, path
    assert browser.get("/posteriors").status_code == 303
