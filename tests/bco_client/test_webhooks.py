"""A webhook is believed if it was signed with the secret, as it is, and lately."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from bco_client import BadSignature, verify_webhook

BODY = b'{"job_id": "job_1", "state": "succeeded"}'
NOW = 1_800_000_000


def signed(with_secret: str = "", at: int = NOW) -> str:
    key = (with_secret or "secret").encode()
    return f"t={at},v1={hmac.digest(key, f'{at}.'.encode() + BODY, hashlib.sha256).hex()}"


@pytest.mark.parametrize("secret", ["secret", b"secret"])
def test_what_the_service_signed_is_believed(secret: str | bytes) -> None:
    verify_webhook(secret, BODY, signed(), now=NOW + 200)
    verify_webhook(secret, BODY, signed(at=NOW - 1000), tolerance=2000, now=NOW)


def test_a_signature_of_today_needs_no_clock() -> None:
    with pytest.raises(BadSignature, match="s ago"):
        verify_webhook("secret", BODY, signed(at=1_000_000))


def test_one_right_signature_of_several_is_enough() -> None:
    old, new = signed("old"), signed("new")
    verify_webhook("new", BODY, f"{old},{new.partition(',')[2]}", now=NOW)


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        (signed("other"), BODY),
        (signed(), BODY + b" "),
        (signed().replace(f"t={NOW}", f"t={NOW + 1}"), BODY),
        (signed().replace("v1=", "v0="), BODY),
    ],
)
def test_what_was_changed_is_not(signature: str, body: bytes) -> None:
    with pytest.raises(BadSignature):
        verify_webhook("secret", body, signature, now=NOW)


@pytest.mark.parametrize("late", [301, -301])
def test_what_is_old_or_from_the_future_is_not(late: int) -> None:
    with pytest.raises(BadSignature, match="at most 300 s are allowed"):
        verify_webhook("secret", BODY, signed(), now=NOW + late)


@pytest.mark.parametrize(
    "header", ["", "t=,v1=", "t=1", "v1=ab", "t=1,t=2,v1=ab", "t=²,v1=ab", "t=x,v1=ab", "t=1,v1=ä"]
)
def test_a_header_that_is_no_signature_is_refused(header: str) -> None:
    with pytest.raises(BadSignature):
        verify_webhook("secret", BODY, header, now=NOW)
