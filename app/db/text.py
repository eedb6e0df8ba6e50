"""Text that every database takes."""

from __future__ import annotations


def is_storable(text: str) -> bool:
    """Whether every database takes this text: no NUL, and no half characters, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text
