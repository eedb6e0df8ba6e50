"""Checks of text: whether databases can store it, and whether it is displayed as written."""

from __future__ import annotations

import re

NOT_PLAIN = "a control or bidirectional character, or one that cannot be stored; remove it"
# Control characters, ends of lines and paragraphs, and marks that change the direction of text.
UNPLAIN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNPLAIN = re.compile(f"[{UNPLAIN}]")


def is_storable(text: str) -> bool:
    """Return whether every database can store this text: no NUL, no lone surrogates, which JSON can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def is_plain(text: str) -> bool:
    """Return whether a name can be stored and is displayed as written."""
    return is_storable(text) and _UNPLAIN.search(text) is None
