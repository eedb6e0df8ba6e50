"""Bayesian contextual optimisation: learn decision-focused Gibbs posteriors and prescribe decisions from them.

The library needs no web, validation or database package. A newsvendor whose demand depends on one column:

    >>> import torch
    >>> from bco_core import PrescribeOptions, Sample, build_problem, learn, make_options, prescribe
    >>> problem = build_problem({"kind": "newsvendor", "items": [{"underage_cost": 3, "overage_cost": 1}]})
    >>> contexts = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    >>> learned = learn(problem, Sample(contexts, 50 + 10 * contexts), make_options(predictor="linear", epochs=5))
    >>> result = prescribe(learned.posterior, problem, contexts[:2], PrescribeOptions(policy="bcp"))
    >>> result.decisions.shape
    torch.Size([2, 1])

``learn`` returns a :class:`Learned`: the :class:`Posterior` and its :class:`Diagnostics`. ``prescribe`` decides for new
contexts, and ``evaluate`` compares a caller's own decisions with those. Errors derive from :class:`BcoError` and name
the argument that is wrong.
"""

from bco_core.data import Sample
from bco_core.errors import BcoError, Cancelled, Diverged, InvalidInput, OutOfTime, SolverFailure
from bco_core.evaluate import EvaluateResult, evaluate
from bco_core.inference.diagnostics import Diagnostics
from bco_core.inference.learn import learn
from bco_core.inference.method import Learned
from bco_core.inference.options import LearningOptions, make_options
from bco_core.inference.update import UpdateOptions, UpdateResult, update
from bco_core.posterior import Posterior
from bco_core.prescribe import PrescribeOptions, PrescribeResult, prescribe
from bco_core.problems.base import Prescription, Risk
from bco_core.problems.registry import build_problem
from bco_core.scenarios import CostDistribution, Scenarios
from bco_core.status import Status
from bco_core.timeline import Timeline

__all__ = [
    "BcoError",
    "Cancelled",
    "CostDistribution",
    "Diagnostics",
    "Diverged",
    "EvaluateResult",
    "InvalidInput",
    "Learned",
    "LearningOptions",
    "OutOfTime",
    "Posterior",
    "PrescribeOptions",
    "PrescribeResult",
    "Prescription",
    "Risk",
    "Sample",
    "Scenarios",
    "SolverFailure",
    "Status",
    "Timeline",
    "UpdateOptions",
    "UpdateResult",
    "build_problem",
    "evaluate",
    "learn",
    "make_options",
    "prescribe",
    "update",
]
