"""The pages of documentation and their fenced blocks.

The word after a block's language says how a test treats it; a block without a known word fails.

    bash run       all such blocks of a page are run in order, in one shell, against their own service
    bash refused   the same, and the service must refuse a request in it
    bash check     its commands are not run but must exist, with these options and files
    json FILE      a part of the file that the page's commands wrote
    json MODEL     a valid value of the request model of this name
    python         all such blocks of a page are executed in order
    python run     the same, with their own service and in a folder with bakery.csv
    text           a diagram; not checked
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """Return the page without its fenced blocks."""
    return _FENCE.sub("", read(page))


def blocks(page: str, language: str = "", *marks: str) -> list[Block]:
    """Return the page's blocks in order, optionally only those of a language and with one of these marks."""
    text = read(page)
    found = []
    for match in _FENCE.finditer(text):
        language_of, _, mark = match[1].partition(" ")
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, language_of, mark, match[2]))
    return [
        block for block in found if (not language or block.language == language) and (not marks or block.mark in marks)
    ]


def all_blocks(language: str, *marks: str) -> list[Block]:
    return [block for page in NAMES for block in blocks(page, language, *marks)]
