"""Writes what ``benchmarks/results`` says into README.md and docs/experiments.md: ``make docs``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from benchmarks.experiments import sentences

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "experiments.md")
TEXTS = {
    "newsvendor": sentences.newsvendor,
    "shipment": sentences.shipment,
    "portfolio": sentences.portfolio,
    "yaz": sentences.yaz,
    "real": sentences.real,
    "shortest_path": sentences.shortest_path,
    "knapsack": sentences.knapsack,
}
WIDTH = 124
_MARKED = re.compile(
    r"(<!-- results of (\w+): written by `make docs` -->\n)(.*?)(<!-- end of results -->\n)", re.DOTALL
)


def renewed(page: str, folder: Path = sentences.RESULTS) -> str:
    """The page with what the files of results say between each pair of marks."""

    def written(match: re.Match[str]) -> str:
        text = textwrap.fill(TEXTS[match[2]](folder), WIDTH, break_long_words=False, break_on_hyphens=False)
        return f"{match[1]}{text}\n{match[4]}"

    return _MARKED.sub(written, page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
