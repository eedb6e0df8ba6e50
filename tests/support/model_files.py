"""Small models as MPS, LP, TIM and STO files, and a function that imports them."""

from __future__ import annotations

import json
from typing import Any

from httpx import Response
from starlette.testclient import TestClient

Json = dict[str, Any]

# Order now at 5, or express at 8 once demand is known. At most 40 units fit. Leftovers cost nothing.
MPS = """\
NAME bakery
ROWS
 N cost
 G meet
 L room
COLUMNS
 order cost 5 meet 1
 order room 1
 express cost 8 meet 1
RHS
 RHS meet 10 room 40
ENDATA
"""
LP = """\
\\ the same
Minimize
 cost: 5 order + 8 express
Subject To
 meet: order + express >= 10
 room: order <= 40
End
"""
DESCRIPTION: Json = {
    "name": "bakery",
    "decisions": ["order"],
    "outcomes": [{"name": "demand", "minimum": 0}],
    "entries": [{"row": "meet", "column": None, "outcomes": {"demand": 1}}],
}
TIM = """\
TIME bakery
PERIODS IMPLICIT
 order cost NOW
 express meet LATER
ENDATA
"""
STO = """\
STOCH bakery
INDEP DISCRETE
 RHS meet 10 LATER 0.25
 RHS meet 20 LATER 0.5
 RHS meet 30 LATER 0.25
ENDATA
"""


def send(client: TestClient, file: str | bytes, description: Any = None, **parts: str) -> Response:
    """POST an import. ``description`` is DESCRIPTION by default, else JSON or raw text."""
    content = DESCRIPTION if description is None else description
    files = {part: (f"../../{part}.mps", text.encode()) for part, text in parts.items()}
    files["file"] = ("../../etc/model.lp.gz", file if isinstance(file, bytes) else file.encode())
    form = {"description": content if isinstance(content, str) else json.dumps(content)}
    return client.post("/v1/problems/import", data=form, files=files)
