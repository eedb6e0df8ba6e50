"""Text that every database takes, and text that reads as it is written."""

from __future__ import annotations

import re

NOT_PLAIN = "a control or bidirectional character, or one that cannot be stored; take it out"
# Control characters, ends of lines and paragraphs, and marks that change the direction in which text is shown.
UNPLAIN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNPLAIN = re.compile(f"[{UNPLAIN}]")


def is_storable(text: str) -> bool:
    """Whether every database takes this text: no NUL, and no half characters, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def is_plain(text: str) -> bool:
    """Whether a name can be stored and is shown as it is written."""
    return is_storable(text) and _UNPLAIN.search(text) is None
