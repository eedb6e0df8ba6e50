"""Identifiers: a prefix that says what it is, then 26 characters that sort by time of creation."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID = re.compile(f"[a-z]+_[{_ALPHABET}]{{26}}")


def new_id(prefix: str) -> str:
    """Such as ``post_01JCXV7Q0GZ3M5W8K2T4N6P9RS``: 48 bits of milliseconds and 80 random bits, in Crockford base 32."""
    return _written(prefix, (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80))


def first_id(prefix: str, milliseconds: int) -> str:
    """What no id that is made so long after 1970, or later, sorts before."""
    return _written(prefix, min(max(milliseconds, 0), (1 << 48) - 1) << 80)


def _written(prefix: str, number: int) -> str:
    return f"{prefix}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def created_at(identifier: str) -> float:
    """When an id was made, in seconds since 1970."""
    number = 0
    for letter in identifier.partition("_")[2][:10]:
        number = number << 5 | _ALPHABET.index(letter)
    return number / 1000


def is_id(text: str) -> bool:
    """Whether this could be an id of ours at all."""
    return _ID.fullmatch(text) is not None


def sibling_id(identifier: str, prefix: str) -> str:
    """The id of another kind of object made by the same act: the posterior of ``job_X`` is ``post_X``."""
    return f"{prefix}_{identifier.partition('_')[2]}"
