"""Compile kernels, or read them from disk, before the first request waits for them."""

from __future__ import annotations

import torch

from bco_core.data import Standardizer
from bco_core.distributions import equal_mixture
from bco_core.families import FAMILIES
from bco_core.features.standardized import StandardizedFeatures
from bco_core.posterior import Posterior
from bco_core.predictive import Carrier, History
from bco_core.predictors.linear import Linear
from bco_core.prescribe import prescribe
from bco_core.problems.newsvendor import Newsvendor


def warm_up() -> None:
    """Make one prescription by the code that most requests use."""
    zeros, ones = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    units, table = Standardizer(zeros, ones), torch.ones(2, 1, dtype=torch.float64)
    predictor = Linear((1, 1), StandardizedFeatures(units), units)
    mixture = equal_mixture(FAMILIES["gaussian"], torch.zeros(1, 2), torch.ones(1, 2))
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 1, "overage_cost": 1}]})
    for carrier in (Carrier("keep", 1.0, ones), Carrier("scaled", None, ones, table)):
        history = History(table, table, ones, carrier, table)
        posterior = Posterior(predictor, mixture, torch.zeros(2, 2), 0, history)
        prescribe(posterior, problem, torch.zeros(1, 1, dtype=torch.float64))
