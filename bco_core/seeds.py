"""Seeds of independent random streams."""

from __future__ import annotations

import numpy as np


def entropy(*parts: int) -> int:
    """Return a seed for torch; seeds of different parts give independent streams."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1
