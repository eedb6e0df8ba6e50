"""Kernels give bit-identical results freshly compiled and loaded from the disk cache.

Compiling them all takes a minute or more, so this test is not in the ordinary run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib
import numpy as np
import torch
from bco_core.problems.base import Risk
from bco_core.solvers.dual_newton import FactorQP, least_variance, mean_variance, tail_portfolio
from benchmarks.experiments.shipment.data import shipment_problem

torch.set_num_threads(1)
random = np.random.default_rng(0)
loadings, deviations = random.uniform(-0.02, 0.02, (13, 3)), random.uniform(0.01, 0.04, 13)
qp = FactorQP(loadings, deviations, np.zeros(13), np.ones(13), 1.0)
returns = 0.02 + 0.04 * random.normal(size=(300, 13))
problem = shipment_problem()
outcomes = torch.from_numpy(random.gamma(2.0, 10.0, (4, 60, 12)))
weights = torch.full((60,), 1 / 60, dtype=torch.float64)
found = problem.prescribe(outcomes, weights, Risk(0.5, 0.9))
answers = [
    *least_variance(qp, returns, 0.05),
    *mean_variance(qp, returns / 20),
    tail_portfolio(qp, returns, np.full(300, 1 / 300), 0.9, 0.005)[0],
    found.decisions.numpy(),
    found.objective.numpy(),
    problem.cost(found.decisions[:, None], outcomes).numpy(),
]
print(" ".join(hashlib.sha256(np.ascontiguousarray(answer).tobytes()).hexdigest() for answer in answers))
"""


@pytest.mark.torture
def test_a_cached_kernel_gives_bit_identical_results(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", SCRIPT]
    first, second = (
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    )
    assert len(first) == 8
    assert first == second
    assert list(tmp_path.rglob("*.nbc"))
