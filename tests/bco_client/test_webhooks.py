"""Webhook signatures: only recent and unchanged bodies signed with the secret are accepted."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from bco_client import BadSignature, verify_webhook

BODY = b'{"job_id": "job_1", "state": "succeeded"}'
NOW = 1_800_000_000


def sign(secret: str = "", at: int = NOW) -> str:
    key = (secret or "secret").encode()
    return f"t={at},v1={hmac.digest(key, f'{at}.'.encode() + BODY, hashlib.sha256).hex()}"


@pytest.mark.parametrize("secret", ["secret", b"secret"])
def test_a_valid_signature_is_accepted(secret: str | bytes) -> None:
    verify_webhook(secret, BODY, sign(), now=NOW + 200)
    verify_webhook(secret, BODY, sign(at=NOW - 1000), tolerance=2000, now=NOW)


def test_the_system_clock_is_used_by_default() -> None:
    with pytest.raises(BadSignature, match="s ago"):
        verify_webhook("secret", BODY, sign(at=1_000_000))


def test_one_valid_signature_of_several_is_enough() -> None:
    old, new = sign("old"), sign("new")
    verify_webhook("new", BODY, f"{old},{new.partition(',')[2]}", now=NOW)


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        (sign("other"), BODY),
        (sign(), BODY + b" "),
        (sign().replace(f"t={NOW}", f"t={NOW + 1}"), BODY),
        (sign().replace("v1=", "v0="), BODY),
    ],
)
def test_a_changed_body_or_signature_is_rejected(signature: str, body: bytes) -> None:
    with pytest.raises(BadSignature):
        verify_webhook("secret", body, signature, now=NOW)


@pytest.mark.parametrize("late", [301, -301])
def test_old_and_future_signatures_are_rejected(late: int) -> None:
    with pytest.raises(BadSignature, match="at most 300 s are allowed"):
        verify_webhook("secret", BODY, sign(), now=NOW + late)


@pytest.mark.parametrize(
    "header", ["", "t=,v1=", "t=1", "v1=ab", "t=1,t=2,v1=ab", "t=²,v1=ab", "t=x,v1=ab", "t=1,v1=ä"]
)
def test_a_malformed_header_is_rejected(header: str) -> None:
    with pytest.raises(BadSignature):
        verify_webhook("secret", BODY, header, now=NOW)
