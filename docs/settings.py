"""Write the table of settings in ``docs/operations.md`` from ``app/settings.py``: ``make docs``."""

from __future__ import annotations

import re
from pathlib import Path

from app.settings import Settings

PAGE = Path(__file__).with_name("operations.md")
BEGIN, END = "<!-- settings: written by `make docs` -->\n", "<!-- end of settings -->\n"


def table() -> str:
    rows = [
        f"| `BCO_{name.upper()}` | `{field.default}` | {field.description} |\n"
        for name, field in Settings.model_fields.items()
    ]
    return "".join(["| variable | default | meaning |\n", "|---|---|---|\n", *rows])


def renew(page: str) -> str:
    """Return the page with the table of the current settings between its two marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: BEGIN + table() + END, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(renew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
