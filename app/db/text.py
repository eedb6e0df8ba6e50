"""Text that every database takes and everybody reads alike."""

from __future__ import annotations

import re

# Control characters and line ends, and marks that turn the direction of writing.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def is_storable(text: str) -> bool:
    """Whether every database takes this text: no NUL, and no half characters, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def is_legible(text: str) -> bool:
    """Whether a name looks like what it is: nothing in it is hidden or shows in another order than it is written."""
    return _HIDDEN.search(text) is None
