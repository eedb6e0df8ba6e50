"""Integer programs that no search solves within minutes: market splits (Cornuéjols and Dawande)."""

from __future__ import annotations

from typing import Any

import numpy as np


def market_split(rows: int = 6, columns: int = 50, seed: int = 0) -> dict[str, Any]:
    """Assign retailers to two divisions so that each product is split in half.

    Each missing or surplus unit costs one. Outcomes shift the targets slightly.
    """
    shares = np.random.default_rng(seed).integers(0, 100, (rows, columns))
    names = [f"retailer {number}" for number in range(columns)]
    return {
        "kind": "two_stage_linear",
        "decisions": [{"name": name, "cost": 0, "maximum": 1, "integer": True} for name in names],
        "outcomes": [{"name": "shift", "minimum": -5, "maximum": 5}],
        "recourse": [{"name": f"{side} {row}", "cost": 1} for side in ("missing", "surplus") for row in range(rows)],
        "rows": [
            {
                "recourse": {f"missing {row}": 1, f"surplus {row}": -1},
                "decisions": dict(zip(names, map(float, shares[row]), strict=True)),
                "sense": "=",
                "constant": float(shares[row].sum() // 2),
                "outcomes": {"shift": 1.0},
            }
            for row in range(rows)
        ],
    }
