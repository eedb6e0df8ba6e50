"""Pages about posteriors: of every kind, with what the API tells of them, and with any part of that missing."""

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
from tests.support.journey import Json, answered, create_job, learned
from tests.support.pages import token
from tests.support.polling import wait_until
from tests.support.posterior_kinds import KINDS, one_of_each

pytestmark = pytest.mark.usefixtures("made")


@pytest.fixture(scope="module")
def made(client: TestClient, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    return one_of_each(client, tmp_path_factory.mktemp("imported"))


def opened(browser: TestClient, path: str, status: int = 200) -> str:
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def words(page: str) -> str:
    """What stands in a page, without its marks and the hints of words that explain themselves."""
    page = re.sub(r'<span class="tip".*?</span>', "", page)
    return " ".join(html.unescape(re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.S)).split())


def tight(page: str) -> str:
    """The words without spaces, which marks may have added."""
    return words(page).replace(" ", "")


def told_of(client: TestClient, posterior: Json) -> Json:
    return answered(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))


def send(browser: TestClient, posterior: Json, to: str, **fields: str) -> Any:
    address = f"/posteriors/{posterior['id']}"
    return browser.post(f"{address}/{to}", data={"csrf": token(browser, address)} | fields)


# the list


def test_the_list_shows_quality_reason_problem_data_and_aliases(
    client: TestClient, browser: TestClient, made: dict[str, Json]
) -> None:
    answered(client.put("/v1/aliases/in.the.list", json={"posterior_id": made["chains"]["id"]}))
    page = words(opened(browser, "/posteriors"))
    for one in made.values():
        assert one["reason"][1:] in page
        assert one["name"] in page
    assert "in.the.list" in page
    assert "unavailable (imported)" in page
    for name in ("fund", "months", "roads", "drives"):
        assert name in page


def test_the_list_can_be_narrowed_and_goes_on(browser: TestClient, made: dict[str, Json]) -> None:
    quality = made["chains"]["quality"]
    page = opened(browser, f"/posteriors?quality={quality}")
    for one in made.values():
        assert (f'href="/posteriors/{one["id"]}"' in page) == (one["quality"] == quality)
    page = opened(browser, f"/posteriors?problem_id={made['feasibility']['problem_id']}")
    assert words(page).count("Decide") == 1
    assert "Filtered: for the problem fund" in words(page)
    assert "No posterior matches the filter" in words(opened(browser, f"/posteriors?dataset_id={made['time']['id']}"))
    opened(browser, "/posteriors?quality=splendid", 422)


def test_an_empty_list_says_what_to_do_next(browser: TestClient, make_key: Callable[[str], str]) -> None:
    key = keys.create("test", "nothing-here", ["read", "train"], None)[1]
    make_key("read")
    page = browser.get("/posteriors", headers={"Authorization": f"Bearer {key}"}).text
    assert "No posteriors yet" in words(page)
    assert 'href="/datasets/new"' in page
    assert 'href="/jobs/new"' in page


# one of them


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_posterior_is_told_of(
    client: TestClient, browser: TestClient, made: dict[str, Json], kind: str
) -> None:
    posterior = made[kind]
    told, page = told_of(client, posterior), opened(browser, f"/posteriors/{posterior['id']}")
    plain, text = tight(page), words(page)
    assert posterior["reason"][1:] in text
    assert number(told["judged_cost"]["mean"]) in text
    for path in (("judged_cost",), ("constant_decision_cost",), ("promise", "expected"), ("promise", "realised")):
        found = told
        for name in path:
            found = found[name]
        assert number(found["mean"], 3) in text, path
    saved = told["gain_over_constant"]
    assert f"{number(abs(saved['mean']), 3)}±{number(2 * saved['standard_error'], 2)}".replace(" ", "") in plain
    assert f"covered{percent(told['calibration']['coverage']['0.8'], 1)}".replace(" ", "") in plain
    assert posterior["digest"] in page
    for address in ("decide", "drivers", "since"):
        assert (f"/posteriors/{posterior['id']}/{address}" in page) == (address != "drivers" or kind != "imported")
    assert f"/backtests/new?posterior={posterior['id']}" in page
    assert f'href="/problems/{posterior["problem_id"]}"' in page


def test_verdicts_say_what_is_beyond_chance(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    for kind in ("mixture", "time", "chains", "surrogate"):
        told, page = told_of(client, made[kind]), words(opened(browser, f"/posteriors/{made[kind]['id']}"))
        for name, rule in (("gain_over_constant", "one constant"), ("gain_over_regression", "plain regression")):
            more = told[name]
            clear = abs(more["mean"]) > 2.5 * more["standard_error"]
            said = next(one for one in re.split(r"\. |\.$", page) if one.startswith(f"Compared with {rule}"))
            assert said.endswith(", significant") == clear
            assert (" saves " in said) == (more["mean"] <= 0)


def test_promises_are_shown_over_time_where_there_is_time(
    client: TestClient, browser: TestClient, made: dict[str, Json]
) -> None:
    told, page = told_of(client, made["time"])["forward"], opened(browser, f"/posteriors/{made['time']['id']}")
    assert "Expected and realised cost over time" in page
    assert "Expected and realised cost by distance ahead" in page
    for line in told["stretches"] + told["distances"]:
        assert f"<td>{number(line['promised'])}</td><td>{number(line['cost']['mean'])}</td>" in page
        assert f"<td>{number(100 * line['above_95'])}</td>" in page
    first = date(1970, 1, 1) + timedelta(told["stretches"][0]["from_period"])
    assert f"<td>{first}</td>" in page
    assert number(told["season"]["mean"]) in page
    for kind in ("mixture", "chains", "squared error", "learned on"):
        page = opened(browser, f"/posteriors/{made[kind]['id']}")
        assert "Expected and realised cost on held-out rows" in page
        assert ("The data has no time column" in page) == (kind != "learned on")
        assert ("New rows are judged" in page) == (kind == "learned on")


def test_mixtures_show_what_they_were_chosen_from_and_how_they_learned(
    client: TestClient, browser: TestClient, made: dict[str, Json]
) -> None:
    told, page = told_of(client, made["mixture"]), opened(browser, f"/posteriors/{made['mixture']['id']}")
    assert f"{len(told['candidates'])} candidates compared" in page
    for line in told["candidates"] + told["policies"]:
        assert number(line["against_default"]["mean"]) in page
        assert f"costs {number(line['cost']['mean'])}" in page
    assert f"network {percent(told['network_share'])}" in page or told["network_share"] in (0, 1)
    for title in ("Cost by share of the network", "Cost during training", "Distance from the prior"):
        assert title in page


def test_chains_show_how_they_mixed(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    told, page = (
        told_of(client, made["chains"])["chains"],
        words(opened(browser, f"/posteriors/{made['chains']['id']}")),
    )
    assert "Cost along the chains" in page
    assert number(told["predictions"]["r_hat"]) in page
    assert number(told["loss"]["ess_bulk"], 3) in page
    assert " · ".join(percent(one) for one in told["acceptance"]) in page


@pytest.mark.parametrize(("kind", "loss"), [("surrogate", "spo_plus"), ("squared error", "squared_error")])
def test_what_was_learned_on_is_said(browser: TestClient, made: dict[str, Json], kind: str, loss: str) -> None:
    assert made[kind]["loss"] == loss
    page = words(opened(browser, f"/posteriors/{made[kind]['id']}"))
    assert f"Trained on a surrogate : {made[kind]['loss_meaning']}." in page
    assert "Loss during training" in page or "No training trace was recorded" in page


def test_constraints_that_are_uncertain_are_spoken_of(
    client: TestClient, browser: TestClient, made: dict[str, Json]
) -> None:
    told, page = (
        told_of(client, made["feasibility"]),
        words(opened(browser, f"/posteriors/{made['feasibility']['id']}")),
    )
    kept = percent(told["held_out_feasibility"], 1)
    assert f"Constraints were met on {kept}" in page.replace("\u00a0", " ")
    assert "need not meet the constraints" in page


def test_a_certificate_is_shown_with_its_terms_or_with_what_fails(
    client: TestClient, browser: TestClient, made: dict[str, Json]
) -> None:
    given = told_of(client, made["certified"])["certificate"]
    page = words(opened(browser, f"/posteriors/{made['certified']['id']}"))
    for value in (*given["bounds"].values(), given["terms"]["empirical_risk"], given["terms"]["cost_bound"]):
        assert number(value) in page
    assert "With a confidence of 95 %" in page or "it is vacuous" in page
    for kind in ("mixture", "chains", "surrogate"):
        why = told_of(client, made[kind])["certificate"]["reason"]
        assert f"No certificate. {why[:1].upper()}{why[1:]}." in words(
            opened(browser, f"/posteriors/{made[kind]['id']}")
        )


def test_a_posterior_says_where_it_came_from(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    for kind in ("mixture", "time", "learned on"):
        posterior = made[kind]
        origin = told_of(client, posterior)["origin"]
        page = opened(browser, f"/posteriors/{posterior['id']}")
        assert origin["dataset_digest"] in page
        assert f"torch {origin['versions']['torch']}" in page
        assert f'href="/jobs/{posterior["job_id"]}"' in page
        assert f'href="/datasets/{posterior["dataset_id"]}"' in page
    assert f'href="/posteriors/{made["time"]["id"]}"' in page
    assert "with 80 new rows, as the prior, forgetting 25 %" in words(page)
    assert "calendar: weekday" in words(page)
    page = words(opened(browser, f"/posteriors/{made['imported']['id']}"))
    assert "the posterior was imported" in page


def test_an_alias_stands_for_the_posterior(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    answered(client.put("/v1/aliases/by.name", json={"posterior_id": made["time"]["id"]}))
    assert made["time"]["id"] in opened(browser, "/posteriors/by.name")
    assert "no posterior has this id" in words(opened(browser, "/posteriors/nobody", 404)).lower()
    queued = create_job(client)
    assert "is queued" in words(opened(browser, f"/posteriors/{queued['posterior_id']}", 409))


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


def changed(posterior: Json, diagnostics: Json) -> None:
    with transaction() as session:
        session.get_one(PosteriorRow, posterior["id"]).diagnostics = diagnostics


def emptied(told: Any) -> Any:
    """The same shape with no number in it, as where nothing was finite."""
    if isinstance(told, dict):
        return {name: emptied(part) for name, part in told.items()}
    if isinstance(told, list):
        return [emptied(part) for part in told]
    return None if isinstance(told, int | float) and not isinstance(told, bool) else told


def without_some(told: Any, drawn: random.Random) -> Any:
    """The same with some fields missing, here and further in."""
    if isinstance(told, list):
        return [without_some(part, drawn) if isinstance(part, dict) else part for part in told]
    if not isinstance(told, dict):
        return told
    return {name: without_some(part, drawn) for name, part in told.items() if drawn.random() < 0.8}


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_of_the_diagnostics_is_needed(
    client: TestClient, browser: TestClient, made: dict[str, Json], kind: str
) -> None:
    posterior = made[kind]
    with transaction() as session:
        stored = session.get_one(PosteriorRow, posterior["id"]).diagnostics
    parts = {name: part for name, part in stored.items() if isinstance(part, dict | list) and part}
    required = {name: stored[name] for name in BARE}
    # What the API promises to be numbers is.
    loose = {name: part for name, part in parts.items() if name not in ("best_epochs", "shares")}
    tried: list[Json] = [BARE, stored | {name: emptied(part) for name, part in loose.items()}]
    tried += [required | {name: part} for name, part in parts.items()]
    drawn = random.Random(0)
    for _ in range(8):
        left = {name: part for name, part in stored.items() if name in BARE or drawn.random() < 0.7}
        tried.append(left | {name: without_some(part, drawn) for name, part in left.items() if name in parts})
    try:
        for one in tried:
            changed(posterior, one)
            page = opened(browser, f"/posteriors/{posterior['id']}")
            assert "Training" in page
        changed(posterior, BARE)
        page = words(opened(browser, f"/posteriors/{posterior['id']}"))
        assert "Too long ago." in page
        assert "is unknown" in page
    finally:
        changed(posterior, stored)


# what is asked for later


@pytest.mark.parametrize("kind", ["mixture", "time", "surrogate"])
def test_drivers_are_shapley_values_over_the_latest_rows(
    client: TestClient, browser: TestClient, made: dict[str, Json], kind: str
) -> None:
    posterior = made[kind]
    asked = client.get("/v1/prescriptions").json()["items"]
    text = patiently(browser, f"/posteriors/{posterior['id']}/drivers")
    assert "over 12 rows sampled from the latest" in text
    for column in posterior["columns"]:
        assert (column["name"] in text) == (column["role"] in ("context", "time", "series", "outcome"))
    assert client.get("/v1/prescriptions").json()["items"] == asked


def patiently(browser: TestClient, path: str) -> str:
    """A part of a page, once the solver processes that it may need have started."""
    found = ""

    def came() -> bool:
        nonlocal found
        found = words(opened(browser, path))
        return "is starting" not in found

    wait_until("the part has come", came)
    return found


def test_drivers_agree_with_the_api(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    """With a single column the mean size of its share is all there is to tell."""
    posterior = made["surrogate"]
    rows = answered(client.get(f"/v1/datasets/{posterior['dataset_id']}/rows?last=true&limit=120"))["items"]
    drawn = random.Random(0).sample(rows, 12)
    body = {"contexts": [{"rain": row["rain"]} for row in drawn], "include": ["sensitivity"]}
    answer = answered(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    text = patiently(browser, f"/posteriors/{posterior['id']}/drivers")
    for name in ("bridge", "tunnel"):
        shares = [
            one["sensitivity"]["attribution"]["outcomes"][name]["contributions"]["rain"]
            for one in answer["prescriptions"]
        ]
        assert f"rain {number(sum(map(abs, shares)) / 12, 3)}" in text


def test_what_cannot_be_driven_is_said(browser: TestClient, made: dict[str, Json], monkeypatch: Any) -> None:
    page = opened(browser, f"/posteriors/{made['imported']['id']}")
    assert "what-ifs are disabled" in words(page)
    assert "drivers are unavailable" in patiently(browser, f"/posteriors/{made['imported']['id']}/drivers")
    opened(browser, "/posteriors/nobody/drivers", 404)


def test_since_then_tells_whether_promises_held(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    found = {}

    def judged() -> bool:
        answer = client.get(f"/v1/posteriors/{made['time']['id']}/drift")
        found.update(answer.json())
        return answer.status_code == 200

    wait_until("later rows are judged", judged)
    text = patiently(browser, f"/posteriors/{made['time']['id']}/since")
    assert found["sentence"][1:] in text
    assert number(found["overall"]["ratio"], 3) in text
    assert "Expected and realised cost of recent data" in text
    assert ("Drift detected" in text) == (found["verdict"] == "drifting")
    assert "No recent data" in patiently(browser, f"/posteriors/{made['chains']['id']}/since")
    assert "No recent data" in patiently(browser, f"/posteriors/{made['imported']['id']}/since")


# names


def test_names_are_given_moved_and_deleted(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    old, new = made["time"], made["learned on"]
    assert "Add an alias" in opened(browser, f"/posteriors/{new['id']}")
    answer = send(browser, old, "aliases", name="shop.live")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/posteriors/{old['id']}#names")
    page = opened(browser, f"/posteriors/{new['id']}")
    assert "shop.live" in page
    assert "not compared" not in words(page)
    assert send(browser, new, "aliases", name="shop.live", names_now=old["id"]).status_code == 303
    assert answered(client.get("/v1/aliases/shop.live"))["posterior_id"] == new["id"]
    page = words(opened(browser, f"/posteriors/{new['id']}"))
    assert "shop.live points to this posterior since" in page
    assert "History of shop.live" in page
    refused = send(browser, new, "delete")
    assert refused.status_code == 409
    assert "the alias shop.live names this posterior" in words(refused.text).lower()
    assert send(browser, new, "aliases/shop.live/delete").status_code == 303
    assert client.get("/v1/aliases/shop.live").status_code == 404
    assert send(browser, new, "aliases/shop.live/delete").status_code == 404


@pytest.mark.parametrize("name", ["two words", "post_x", "ä", "..", "a/b", "x" * 65, "..."])
def test_a_name_that_cannot_be_is_refused_beside_its_field(
    browser: TestClient, made: dict[str, Json], name: str
) -> None:
    answer = send(browser, made["chains"], "aliases", name=name)
    assert answer.status_code == 422
    assert "an alias is 1 to 64 letters" in words(answer.text).lower()
    assert f'name="name" value="{name}"' in answer.text
    assert 'aria-invalid="true"' in answer.text


def test_a_name_that_is_taken_is_moved_only_when_asked_again(
    client: TestClient, browser: TestClient, made: dict[str, Json]
) -> None:
    answered(client.put("/v1/aliases/taken", json={"posterior_id": made["surrogate"]["id"]}))
    answer = send(browser, made["chains"], "aliases", name="taken")
    assert answer.status_code == 409
    assert "taken points to another posterior" in words(answer.text)
    assert f'name="names_now" value="{made["surrogate"]["id"]}"' in answer.text
    assert answered(client.get("/v1/aliases/taken"))["posterior_id"] == made["surrogate"]["id"]
    stale = send(browser, made["chains"], "aliases", name="taken", names_now=made["time"]["id"])
    assert stale.status_code == 409
    assert send(browser, made["chains"], "aliases", name="taken", names_now=made["surrogate"]["id"]).status_code == 303


def test_newer_rows_can_be_learned_from(client: TestClient, browser: TestClient, made: dict[str, Json]) -> None:
    page = opened(browser, f"/posteriors/{made['time']['id']}")
    assert "Update with new rows" in page
    assert "Update with new rows" not in opened(browser, f"/posteriors/{made['mixture']['id']}")
    answer = send(browser, made["time"], "learn-on", alias="learned.live")
    assert answer.status_code == 303
    job = answered(client.get(f"/v1{answer.headers['location']}"))
    assert job["spec"]["from_posterior"]["posterior_id"] == made["time"]["id"]
    assert job["spec"]["promote"] == {"alias": "learned.live", "when": "if_not_worse"}
    answered(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)
    refused = send(browser, made["mixture"], "learn-on")
    assert refused.status_code == 422
    assert "already learned from all rows" in words(refused.text)


def test_a_posterior_is_deleted_for_good(client: TestClient, browser: TestClient) -> None:
    gone = learned(client, name="gone")
    answer = send(browser, gone, "delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/posteriors")
    opened(browser, f"/posteriors/{gone['id']}", 404)


FORMS = ["aliases", "aliases/x/delete", "delete", "learn-on"]


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_other_sites_do_nothing(browser: TestClient, made: dict[str, Json], form: str) -> None:
    address = f"/posteriors/{made['time']['id']}/{form}"
    assert browser.post(address, data={"name": "stolen"}).status_code == 403
    fields = {"name": "stolen", "csrf": token(browser, f"/posteriors/{made['time']['id']}")}
    assert browser.post(address, data=fields, headers={"Origin": "https://elsewhere.example"}).status_code == 403


def test_a_key_that_only_reads_sees_no_forms_and_is_refused(
    browser: TestClient, made: dict[str, Json], make_key: Callable[[str], str]
) -> None:
    reader = {"Authorization": f"Bearer {make_key('read')}"}
    address = f"/posteriors/{made['time']['id']}"
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
