"""Experiment 1's shipment problem and data: four warehouses, twelve locations, contexts from an ARMA(2,2) process.

Demand is Y_j = max{0, a_j'(X + δ_j/4) + (b_j'X) ε_j}, with δ_j in R³ and ε_j standard Gaussian for every location j.
Two things differ from the printed text: Φ₂[2,1] is −0.5, since with +0.5 the process explodes (spectral radius 1.09),
and emergency orders have one cost for each of the four warehouses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.problems.linear.two_stage import TwoStageLinear

SIGNAL_DIM = 3
WAREHOUSES, LOCATIONS = 4, 12
ORDER_COST, EMERGENCY_COST = 5.0, 100.0
_BURN_IN = 50


def _matrix(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


_PHI = (_matrix([[0.5, -0.9, 0], [1.1, -0.7, 0], [0, 0, 0.5]]), _matrix([[0, -0.5, 0], [-0.5, 0, 0], [0, 0, 0]]))
_THETA = (_matrix([[0.4, 0.8, 0], [-1.1, -0.3, 0], [0, 0, 0]]), _matrix([[0, -0.8, 0], [-1.1, 0, 0], [0, 0, 0]]))
_INNOVATIONS = _matrix([[1.0, 0.5, 0], [0.5, 1.2, 0.5], [0, 0.5, 0.8]])
_A = 2.5 * _matrix([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]] * 4)
_B = 7.5 * _matrix(
    [
        [0, -1, -1],
        [-1, 0, -1],
        [-1, -1, 0],
        [0, -1, 1],
        [-1, 0, 1],
        [-1, 1, 0],
        [0, 1, -1],
        [1, 0, -1],
        [1, -1, 0],
        [0, 1, 1],
        [1, 0, 1],
        [1, 1, 0],
    ]
)
# Distance from each location to each warehouse. Warehouses are at four of the twelve locations on a circle, so the
# distances from one are those from the next, rotated by a quarter.
_DISTANCES = _matrix(
    [
        [0.15, 1.3124, 1.85, 1.3124],
        [0.50026, 0.93408, 1.7874, 1.6039],
        [0.93408, 0.50026, 1.6039, 1.7874],
        [1.3124, 0.15, 1.3124, 1.85],
        [1.6039, 0.50026, 0.93408, 1.7874],
        [1.7874, 0.93408, 0.50026, 1.6039],
        [1.85, 1.3124, 0.15, 1.3124],
        [1.7874, 1.6039, 0.50026, 0.93408],
        [1.6039, 1.7874, 0.93408, 0.50026],
        [1.3124, 1.85, 1.3124, 0.15],
        [0.93408, 1.7874, 1.6039, 0.50026],
        [0.50026, 1.6039, 1.7874, 0.93408],
    ]
)


def shipment_spec() -> dict[str, object]:
    """Return the experiment's problem in the format of the API."""
    return {
        "kind": "shipment",
        "sources": [
            {"name": f"warehouse {i + 1}", "order_cost": ORDER_COST, "emergency_cost": EMERGENCY_COST}
            for i in range(WAREHOUSES)
        ],
        "destinations": [f"location {j + 1}" for j in range(LOCATIONS)],
        "transport_costs": _DISTANCES.T.tolist(),
    }


def shipment_problem() -> TwoStageLinear:
    return TwoStageLinear.from_shipment(shipment_spec())


def draw_contexts(count: int, noisy: int, generator: torch.Generator) -> Tensor:
    """Draw a stretch of the process, (count, 3), followed by ``noisy`` irrelevant standard Gaussian columns."""
    length = count + _BURN_IN
    root = torch.linalg.cholesky(_INNOVATIONS)
    innovations = torch.randn(length, SIGNAL_DIM, generator=generator, dtype=torch.float64) @ root.T
    series = torch.randn(length, SIGNAL_DIM, generator=generator, dtype=torch.float64)
    for t in range(2, length):
        past = sum(phi @ series[t - lag] for lag, phi in enumerate(_PHI, 1))
        shocks = sum(theta @ innovations[t - lag] for lag, theta in enumerate(_THETA, 1))
        series[t] = past + shocks + innovations[t]
    noise = torch.randn(count, noisy, generator=generator, dtype=torch.float64)
    return torch.cat([series[_BURN_IN:], noise], dim=1)


def draw_outcomes(contexts: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Draw demands (n, draws, 12) for contexts (n, 3 + noisy)."""
    signal = contexts[:, :SIGNAL_DIM]
    shape = (len(signal), draws, LOCATIONS)
    delta = torch.randn(*shape, SIGNAL_DIM, generator=generator, dtype=torch.float64)
    epsilon = torch.randn(*shape, generator=generator, dtype=torch.float64)
    level = (signal @ _A.T)[:, None] + (delta * _A).sum(-1) / 4
    return torch.relu(level + (signal @ _B.T)[:, None] * epsilon)


def draw_sample(count: int, noisy: int, generator: torch.Generator) -> Sample:
    contexts = draw_contexts(count, noisy, generator)
    return Sample(contexts, draw_outcomes(contexts, 1, generator)[:, 0])
