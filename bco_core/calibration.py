"""Calibration of predictive scenarios: where held-out outcomes fall among them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.predictive import Carrier, History
from bco_core.predictive_choice import atoms_of, judged_rows, score

LEVELS = (0.5, 0.8, 0.9, 0.95)
BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Calibration of predictive scenarios on held-out rows.

    ``pit`` is the histogram, in ten bins, of the outcomes' ranks in their predicted distributions, as shares: 0.1 each
    is perfect. An outcome that ties with scenarios is spread over all their ranks. ``coverage`` is the share of
    outcomes within the central interval of each level. ``score`` is the mean score, ``constant_score`` the score of the
    history's outcomes without any context.
    """

    rows: int
    carry: str
    bandwidth: float | None
    pit: list[float]
    coverage: dict[str, float]
    score: float
    constant_score: float


def calibrate(history: History, features: Tensor) -> Calibration:
    """Return the calibration of the scenarios on the history's own rows, each left out."""
    rows = judged_rows(len(history))
    atoms, shares = atoms_of(history, rows, features)
    truth = history.outcomes[rows]
    below = (shares[..., None] * (atoms < truth[:, None])).sum(dim=1)
    ties = (shares[..., None] * (atoms == truth[:, None])).sum(dim=1)
    pit = below.flatten().clamp(0, 1), ties.flatten()
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    constant = History(
        torch.zeros_like(history.outcomes),
        history.outcomes,
        history.spread,
        Carrier("keep", None, history.carrier.shrink),
    )
    return Calibration(
        rows=len(rows),
        carry=history.carrier.carry,
        bandwidth=history.carrier.bandwidth,
        pit=_below(*pit, edges).diff().tolist(),
        coverage={str(level): _within(*pit, level) for level in LEVELS},
        score=score(history, rows, features).mean().item(),
        constant_score=score(constant, rows, features).mean().item(),
    )


def _below(low: Tensor, width: Tensor, edges: Tensor) -> Tensor:
    """Return the share of ranks in [0, 1] below each edge; all lie below the last one.

    The rank of an outcome that ties with atoms is spread evenly from ``low`` (m,) over their ``width`` (m,), so that a
    correct discrete distribution looks correct (Czado et al., 2009).
    """
    spread = (edges[:, None] - low) / width.clamp_min(1e-300)
    share = torch.where(width > 0, spread.clamp(0, 1), (low < edges[:, None]).double()).mean(dim=1)
    share[0], share[-1] = 0.0, 1.0
    return share


def _within(low: Tensor, width: Tensor, level: float) -> float:
    """Return the share of ranks in the central interval of a level, ends included."""
    least, most = (1 - level) / 2, (1 + level) / 2
    overlap = ((low + width).clamp_max(most) - low.clamp_min(least)).clamp_min(0) / width.clamp_min(1e-300)
    point = (low - 0.5).abs() <= level / 2
    return torch.where(width > 0, overlap, point.double()).mean().item()
