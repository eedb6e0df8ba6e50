"""Decision-focused Gibbs posteriors: the numerics, free of web, validation and database packages.

problem = build_problem({"kind": "newsvendor", "items": [{"underage_cost": 3, "overage_cost": 1}]})
learned = learn(problem, Sample(contexts, outcomes))
answer = prescribe(learned.posterior, problem, new_contexts)
"""

from bco_core.data import Sample
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.registry import build_problem

__all__ = ["PrescribeOptions", "Sample", "build_problem", "learn", "make_options", "prescribe"]
