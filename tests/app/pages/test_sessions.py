"""Sessions: login with a key, CSRF tokens, session lifetime, workspaces and readable error pages."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.base import now
from app.db.engine import transaction
from app.db.tables import SessionRow
from app.http import security
from app.keys import service as keys
from app.main import create_app
from app.pages.api_client import Call
from tests.support.journey import check_json, create_problem
from tests.support.pages import HTML, token


def log_in(browser: TestClient, key: str, **more: str) -> str:
    answer = browser.post("/login", data={"csrf": token(browser), "key": key, **more})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def test_a_page_redirects_to_the_login_and_back(browser: TestClient, make_key: Callable[..., str]) -> None:
    key = make_key()
    answer = browser.get("/datasets?limit=2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fdatasets%3Flimit%3D2")
    assert log_in(browser, key, next="/datasets?limit=2") == "/datasets?limit=2"
    assert browser.get("/").status_code == 200
    assert browser.get("/v1/problems").status_code == 200


@pytest.mark.parametrize(
    "elsewhere", ["https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", "x"]
)
def test_the_login_redirects_only_to_our_own_pages(
    browser: TestClient, make_key: Callable[..., str], elsewhere: str
) -> None:
    assert log_in(browser, make_key(), next=elsewhere) == "/"


@pytest.mark.parametrize("wrong", ["", "nonsense", "bco_01JCXV7Q0GZ3M5W8K2T4N6P9RS_guess", "bco_ü", "x" * 5000])
def test_a_wrong_key_is_rejected(browser: TestClient, make_key: Callable[..., str], wrong: str) -> None:
    make_key()
    answer = browser.post("/login", data={"csrf": token(browser), "key": wrong})
    assert answer.status_code == 401
    assert "This key is unknown" in answer.text
    assert browser.get("/v1/problems").status_code == 401


def test_a_key_without_read_scope_cannot_log_in(browser: TestClient, make_key: Callable[..., str]) -> None:
    answer = browser.post("/login", data={"csrf": token(browser), "key": make_key(scopes="train")})
    assert answer.status_code == 401
    assert "scope read" in answer.text


@pytest.mark.parametrize("odd", ["%3F", "%3Flimit=1", "%23", "%2e", "%2e%2e", "%00", "%0a", "a%2fb", "%ff", "x" * 300])
@pytest.mark.parametrize("under", ["/datasets/", "/problems/", "/jobs/", "/posteriors/", "/backtests/", "/log/"])
def test_malformed_ids_answer_404_and_never_500(browser: TestClient, under: str, odd: str) -> None:
    answer = browser.get(under + odd)
    assert answer.status_code in (200, 303, 404), answer.text
    if "decide" not in answer.text:
        assert browser.get(f"{under}{odd}/decide").status_code == 404
    for query in ("problem", "dataset", "posterior", "like"):
        for form in ("/jobs/new", "/backtests/new", "/problems/new", "/datasets/new"):
            assert browser.get(f"{form}?{query}={odd}").status_code < 500


@pytest.mark.parametrize("spec", ['{"a": 99999999999999999999999999}', '{"a": "\\ud800"}', "[" * 900, "{", "9" * 5000])
def test_invalid_form_values_never_answer_500(browser: TestClient, spec: str) -> None:
    form = {"csrf": token(browser), "kind": "linear", "name": "x", "spec": spec}
    for address in ("/problems/check", "/problems/new"):
        assert browser.post(address, data=form).status_code < 500
    whole = {"csrf": form["csrf"], "sent": "yes", "seed": "9" * 30, "splits": "9" * 30}
    assert browser.post("/backtests", data=whole).status_code < 500


def test_curl_commands_quote_special_characters() -> None:
    call = Call("POST", "/v1/datasets/upload", file="it's; a,\"b.csv", fields={"name": "@home", "outcomes": "a;type=b"})
    words = shlex.split(call.curl("http://localhost", False))
    assert words[words.index("-F") + 1] == 'file=@"it\'s; a,\\"b.csv"'
    strings = [words[at + 1] for at, word in enumerate(words) if word == "--form-string"]
    assert strings == ["name=@home", "outcomes=a;type=b"]


def test_repeated_wrong_keys_are_throttled(
    browser: TestClient, make_key: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("anyio.sleep", sleep)
    form = token(browser)
    for number in range(30):
        browser.post("/login", data={"csrf": form, "key": f"bco_guess{number}"})
    assert max(waits) == security.WRONG_KEY_WAIT_SECONDS


def test_the_cookie_holds_a_session_token_and_never_the_key(browser: TestClient, make_key: Callable[..., str]) -> None:
    key = make_key()
    before = token(browser)
    answer = browser.post("/login", data={"csrf": before, "key": key})
    cookie = answer.headers["set-cookie"]
    assert key not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    # The token from before the login is no longer valid.
    assert token(browser, "/nothing") != before
    with transaction() as session:
        kept = session.scalars(sa.select(SessionRow.sha256)).all()
    assert browser.cookies["bco_session"] not in kept


def test_a_session_cannot_write_through_the_api(browser: TestClient, make_key: Callable[..., str]) -> None:
    log_in(browser, make_key())
    spec = {"kind": "newsvendor", "items": [{"name": "a", "underage_cost": 1, "overage_cost": 1}]}
    refused = browser.post("/v1/problems", json={"name": "mine", "spec": spec})
    assert refused.status_code == 401
    assert browser.delete("/v1/problems/prob_01JCXV7Q0GZ3M5W8K2T4N6P9RS").status_code == 401


@pytest.mark.parametrize("form", [{}, {"csrf": "guessed"}, {"csrf": "0" * 64}])
def test_a_form_without_a_csrf_token_is_rejected(
    browser: TestClient, make_key: Callable[..., str], form: dict[str, str]
) -> None:
    log_in(browser, make_key())
    assert browser.post("/logout", data=form).status_code == 403
    assert browser.get("/v1/problems").status_code == 200


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", "http://localhost:1"])
def test_a_form_from_another_origin_is_rejected(browser: TestClient, make_key: Callable[..., str], origin: str) -> None:
    log_in(browser, make_key())
    mine = token(browser, "/nothing")
    assert browser.post("/logout", data={"csrf": mine}, headers={"Origin": origin}).status_code == 403
    here = browser.post("/logout", data={"csrf": mine}, headers={"Origin": "http://localhost"})
    assert (here.status_code, here.headers["location"]) == (303, "/login")


def test_a_session_ends_at_logout(browser: TestClient, make_key: Callable[..., str]) -> None:
    log_in(browser, make_key())
    kept = browser.cookies["bco_session"]
    assert browser.post("/logout", data={"csrf": token(browser, "/nothing")}).status_code == 303
    browser.cookies.set("bco_session", kept)
    assert browser.get("/v1/problems").status_code == 401


def test_a_session_ends_when_its_key_is_revoked(browser: TestClient, make_key: Callable[..., str]) -> None:
    log_in(browser, make_key())
    keys.revoke(keys.listing()[-1].id)
    assert browser.get("/v1/problems").status_code == 401
    assert browser.get("/").status_code == 303


def test_an_expired_session_is_rejected_and_deleted(browser: TestClient, make_key: Callable[..., str]) -> None:
    key = make_key()
    log_in(browser, key)
    with transaction() as session:
        session.execute(sa.update(SessionRow).values(expires_at=now() - timedelta(seconds=1)))
    assert browser.get("/v1/problems").status_code == 401
    log_in(browser, key)
    with transaction() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(SessionRow)) == 1


def test_a_session_sees_only_the_workspace_of_its_key(client: TestClient, make_key: Callable[..., str]) -> None:
    problem = create_problem(client)
    mine, theirs = make_key(), make_key("read", "others")
    for key, status in ((mine, 200), (theirs, 404)):
        with TestClient(client.app, raise_server_exceptions=False, follow_redirects=False, headers=HTML) as browser:
            log_in(browser, key)
            assert browser.get(f"/v1/problems/{problem['id']}").status_code == status
            assert browser.get(f"/problems/{problem['id']}").status_code == status


def test_without_keys_only_local_calls_are_allowed(client: TestClient) -> None:
    with TestClient(client.app, base_url="http://elsewhere.example", headers=HTML, follow_redirects=False) as browser:
        refused = browser.get("/")
        assert refused.status_code == 403
        assert "only calls to 127.0.0.1" in refused.text


# error pages


def test_a_browser_gets_errors_as_html_pages(browser: TestClient) -> None:
    for path, status in (("/nothing", 404), ("/v1/problems/prob_nothing", 404), ("/v1/jobs?limit=0", 422)):
        answer = browser.get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert f"Status {status}" in answer.text
        assert "x-request-id" in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        plain = browser.get(path, headers={"Accept": "application/json"})
        assert plain.headers["content-type"] == "application/problem+json"


def test_an_unexpected_error_is_a_page_without_details(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app()

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret of ours")

    with TestClient(app, raise_server_exceptions=False, headers=HTML) as browser:
        answer = browser.get("/broken")
    assert answer.status_code == 500
    assert answer.headers["content-type"].startswith("text/html")
    assert "secret" not in answer.text


def test_an_htmx_request_gets_the_error_as_a_notice(browser: TestClient) -> None:
    answer = browser.get("/v1/jobs?limit=0", headers={"HX-Request": "true", "Accept": "*/*"})
    assert answer.status_code == 422
    assert answer.text.startswith('<div class="notice bad" role="alert">')


def test_request_paths_are_escaped_in_pages(browser: TestClient) -> None:
    for path in ("/<script>alert(1)</script>", "/login?next=/%22%3E%3Cscript%3Ealert(1)%3C/script%3E"):
        assert "<script>alert" not in browser.get(path).text


def test_the_content_security_policy_allows_only_our_own_files(browser: TestClient) -> None:
    policy = browser.get("/login").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy


def test_redoc_is_served_without_any_other_host(browser: TestClient) -> None:
    assert "redoc" in browser.get("/redoc").text
    script = browser.get("/docs/redoc.js")
    assert script.status_code == 200
    assert "cdn.redoc.ly" not in script.text
    check_json(browser.get("/openapi.json"))
