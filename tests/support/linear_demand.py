"""Demand that is linear in the context with little noise, quick options to learn it, and costs of decisions."""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.inference.learn import learn
from bco_core.inference.options import LearningOptions, ViOptions, make_options
from bco_core.inference.vi.diagnostics import VariationalDiagnostics
from bco_core.policies import decide
from bco_core.posterior import Posterior
from bco_core.predictors.registry import PredictorOptions
from bco_core.problems.base import DecisionProblem, best_constant
from bco_core.problems.newsvendor import Newsvendor

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})
OPTIONS = ViOptions(
    predictor=PredictorOptions("mlp", (16,)),
    family="laplace",
    prior_scale=1.0,
    members=5,
    kl_weight=1e-4,
    policy="bcp",
    epochs=40,
    patience=8,
    batch_size=32,
    learning_rate=0.02,
    initial_scale=0.05,
    draws=1,
    particles=50,
    seed=1,
)
AUTO = make_options(method="auto", predictor="auto", hidden=(8,), epochs=15, particles=60, seed=1)
LINEAR = PredictorOptions("linear")


class Stepwise(Newsvendor):
    """A newsvendor that declares no gradients."""

    @property
    def differentiable(self) -> bool:
        return False


STEPWISE = Stepwise(**vars(PROBLEM))


def make_sample(rows: int = 120, seed: int = 0, context_dim: int = 2) -> Sample:
    draw = torch.Generator().manual_seed(seed)
    contexts = 20 + 5 * torch.randn(rows, context_dim, generator=draw, dtype=torch.float64)
    slopes = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64)[:context_dim, None]
    noise = torch.randn(rows, 1, generator=draw, dtype=torch.float64)
    return Sample(contexts, 200 + contexts @ slopes + noise)


def learn_mixture(
    sample: Sample, options: LearningOptions, problem: DecisionProblem = PROBLEM
) -> tuple[Posterior, VariationalDiagnostics]:
    """Learn and return the posterior and its diagnostics."""
    found = learn(problem, sample, options)
    assert isinstance(found.diagnostics, VariationalDiagnostics)
    return found.posterior, found.diagnostics


def learn_diagnostics(
    sample: Sample, options: LearningOptions, problem: DecisionProblem = PROBLEM
) -> VariationalDiagnostics:
    """Learn and return the diagnostics."""
    return learn_mixture(sample, options, problem)[1]


def decisions_of(posterior: Posterior, contexts: Tensor, policy: str = "bcp") -> Tensor:
    return decide(PROBLEM, posterior.scenarios(contexts, posterior.draws()), policy).decisions


def mean_cost(posterior: Posterior, sample: Sample, policy: str = "bcp") -> float:
    return PROBLEM.cost(decisions_of(posterior, sample.contexts, policy), sample.outcomes).mean().item()


def constant_cost(history: Sample, sample: Sample) -> float:
    return PROBLEM.cost(best_constant(PROBLEM, history.outcomes).decisions, sample.outcomes).mean().item()
