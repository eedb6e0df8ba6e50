"""Write the results of ``benchmarks/results`` into README.md, docs/experiments.md and their figure: ``make docs``."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.experiments import summary

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "experiments.md")
FIGURE = ROOT / "docs" / "images" / "results.svg"
TABLES = {
    "results": lambda folder: summary.table(summary.strongest_rivals(folder) + summary.published_methods(folder)),
    "single_rivals": lambda folder: summary.table(summary.single_rivals(folder)),
    "other_figures": summary.other_figures,
}
_MARKS = re.compile(r"(<!-- table of (\w+): written by `make docs` -->\n)(.*?)(<!-- end of table -->\n)", re.DOTALL)


def renew(page: str, folder: Path = summary.RESULTS) -> str:
    """Return the page with each marked table computed from the files of results."""
    return _MARKS.sub(lambda match: f"{match[1]}{TABLES[match[2]](folder)}\n{match[4]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renew(path.read_text(encoding="utf-8")), encoding="utf-8")
    summary.plot(summary.strongest_rivals(), FIGURE)
