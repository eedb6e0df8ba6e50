"""Identifiers: a prefix that says what it is, then 26 characters that sort by time of creation."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID = re.compile(f"[a-z]+_[{_ALPHABET}]{{26}}")


def new_id(prefix: str) -> str:
    """Return an id such as ``post_01JCXV7Q0GZ3M5W8K2T4N6P9RS``.

    It has 48 bits of milliseconds and 80 random bits, in Crockford base 32.
    """
    return _format(prefix, (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80))


def first_id(prefix: str, milliseconds: int) -> str:
    """Return the smallest id that can be created at ``milliseconds``: a lower bound for time filters."""
    return _format(prefix, min(max(milliseconds, 0), (1 << 48) - 1) << 80)


def _format(prefix: str, number: int) -> str:
    return f"{prefix}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def created_at(identifier: str) -> float:
    """Return when an id was created, in seconds since 1970."""
    number = 0
    for letter in identifier.partition("_")[2][:10]:
        number = number << 5 | _ALPHABET.index(letter)
    return number / 1000


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def sibling_id(identifier: str, prefix: str) -> str:
    """Return the id of a related object of another kind: the posterior of ``job_X`` is ``post_X``."""
    return f"{prefix}_{identifier.partition('_')[2]}"
