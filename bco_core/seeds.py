"""Random numbers that do not depend on each other."""

from __future__ import annotations

import numpy as np


def entropy(*parts: int) -> int:
    """A seed for torch that any change of a part makes independent."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1
