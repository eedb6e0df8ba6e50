"""Collect all mistakes of a table, so that an upload is refused once and not once for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.datasets.parsing import RawTable
from app.db.text import is_plain
from app.http.errors import InvalidRequest

MOST = 20
_SHOWN = 40


class Mistakes:
    """Mistakes of a raw table: the first are listed, the rest only counted."""

    def __init__(self, raw: RawTable) -> None:
        self._raw = raw
        self._listed: list[tuple[Sequence[str | int], str]] = []
        self._count = 0

    def add(self, where: Sequence[str | int], detail: str) -> None:
        self._count += 1
        if len(self._listed) < MOST:
            self._listed.append((where, detail))

    def at(self, rows: Sequence[int], name: str, sentence: str | Callable[[int], str]) -> None:
        """Add a mistake in each of these rows of a column; the sentence may depend on the row."""
        room = max(0, MOST - len(self._listed))
        for row in rows[:room]:
            where, words = self._raw.place(int(row), name)
            self.add(where, f"{words}: {sentence if isinstance(sentence, str) else sentence(int(row))}")
        self._count += len(rows[room:])

    def refuse(self, summary: str | None = None) -> None:
        """Raise InvalidRequest if there are mistakes."""
        if not self._listed:
            return
        detail = summary or self._listed[0][1]
        if summary is None and self._count > 1:
            detail += f" (and {self._count - 1} more)"
        raise InvalidRequest(detail, *self._listed)


def quote(value: Any) -> str:
    """Quote a value in a sentence: short and in plain characters."""
    text = str(value).strip()
    text = "".join(mark if is_plain(mark) else "?" for mark in text[: _SHOWN + 1])
    return f"'{text[:_SHOWN]}…'" if len(text) > _SHOWN else f"'{text}'"
