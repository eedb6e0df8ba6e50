"""Webhooks: whether a message comes from the service, and is recent."""

from __future__ import annotations

import hashlib
import hmac
import time

from bco_client.errors import BadSignature

HEADER = "BCO-Signature"


def verify_webhook(
    secret: str | bytes, body: bytes, signature: str, tolerance: float = 300.0, now: float | None = None
) -> None:
    """Raise :class:`BadSignature` unless the body was signed with the secret within the last ``tolerance`` seconds.

    ``signature`` is the header ``BCO-Signature``: ``t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">``. The body is
    what was received, byte for byte, before it is parsed. Several ``v1`` may be given while a secret is changed.
    """
    sent_at, codes = _parts(signature)
    key = secret.encode() if isinstance(secret, str) else secret
    expected = hmac.new(key, f"{sent_at}.".encode() + body, hashlib.sha256).hexdigest().encode()
    # Every code is compared, and to its end: the time taken says nothing about the right one.
    matches = [hmac.compare_digest(expected, code) for code in codes]
    if not any(matches):
        raise BadSignature("the webhook was not signed with this secret, or its body was changed on the way")
    age = (time.time() if now is None else now) - sent_at
    if abs(age) > tolerance:
        raise BadSignature(f"the webhook was signed {age:.0f} s ago, and at most {tolerance:g} s are allowed")


def _parts(signature: str) -> tuple[int, list[bytes]]:
    pairs = [part.strip().partition("=") for part in signature.split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    codes = [value.encode() for name, _, value in pairs if name == "v1"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdigit()) or not codes:
        raise BadSignature(f"the header {HEADER} is not t=<unix seconds>,v1=<hex digits>")
    return int(times[0]), codes
