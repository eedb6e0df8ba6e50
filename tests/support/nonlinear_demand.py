"""Demand that is nonlinear in the context, and a Gibbs target for it."""

from __future__ import annotations

import torch

from bco_core.data import Sample
from bco_core.distributions import FAMILIES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor
from tests.support.seeds import seeded

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def nonlinear_sample(rows: int = 200, seed: int = 0) -> Sample:
    draw = seeded(seed)
    contexts = torch.rand(rows, 3, generator=draw, dtype=torch.float64)
    signal = 40 * torch.sin(6 * contexts[:, :1]) + 20 * contexts[:, 1:2]
    return Sample(contexts, 100 + signal + 5 * torch.randn(rows, 1, generator=draw, dtype=torch.float64))


def target_of(kind: str, sample: Sample, hidden: tuple[int, ...] = ()) -> GibbsTarget:
    return make_target(PROBLEM, build_predictor(kind, sample, hidden), sample, FAMILIES["laplace"])
