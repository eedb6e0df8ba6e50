"""Problems that decide each context independently: batching changes no bit of a decision."""

from __future__ import annotations

import pytest
import torch

from bco_core.data import Standardizer
from bco_core.distributions import FAMILIES, equal_mixture
from bco_core.features.standardized import standardize
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.predictive import Carrier, History
from bco_core.predictors.linear import Linear
from bco_core.prescribe import PrescribeOptions, PrescribeResult, decides_alone, prescribe
from bco_core.problems.base import Risk
from bco_core.problems.registry import build_problem
from tests.contract.contract_tables import PROBLEM_ROWS as ROWS_OF_KINDS
from tests.contract.contract_tables import history_of
from tests.support.seeds import seeded

CONTEXTS = 9
PROBLEM_ROWS = {f"{kind}-{place}": row for kind, rows in ROWS_OF_KINDS.items() for place, row in enumerate(rows)}
ALONE = {name for name, row in PROBLEM_ROWS.items() if row.spec["kind"] in ("newsvendor", "mean_variance_portfolio")}
# Several rows across items need a program, whose basis pool depends on earlier contexts.
ALONE -= {name for name, row in PROBLEM_ROWS.items() if len(row.spec.get("decision_rows") or ()) > 1}


def posterior_for(name: str) -> Posterior:
    """Return a linear predictor around the outcomes of a kind, with a history to carry outcomes from."""
    sample = history_of(PROBLEM_ROWS[name])
    outcomes = Standardizer.fit(sample.outcomes)
    widths = (sample.contexts.shape[1], sample.outcomes.shape[1])
    predictor = Linear(widths, standardize(sample), outcomes)
    loc = 0.2 * torch.randn(3, predictor.dim, generator=seeded(1))
    mixture = equal_mixture(FAMILIES["gaussian"], loc, torch.full_like(loc, 0.05))
    carrier = Carrier("shift", 0.5, torch.ones(widths[1], dtype=torch.float64))
    history = History(sample.outcomes.roll(1, 0), sample.outcomes, outcomes.scale, carrier)
    return Posterior(predictor, mixture, mixture.sample(20, seeded(2)), 2, history)


def digits(found: PrescribeResult, row: int) -> list[bytes]:
    """Return every number of one context as bytes."""
    costs = found.costs
    numbers = (found.decisions, costs.mean, costs.quantiles, costs.cvar, found.gaps, found.feasibility)
    return [values[row].numpy().tobytes() for values in (*numbers, found.map_decisions, found.map_costs)]


def test_problems_with_closed_form_decisions_declare_independence() -> None:
    declared = {
        name
        for name, row in PROBLEM_ROWS.items()
        if decides_alone(posterior_for(name), build_problem(row.spec), PrescribeOptions())
    }
    assert declared == ALONE != set()


@pytest.mark.parametrize("name", sorted(PROBLEM_ROWS))
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("risk", [None, Risk(0.0)])
def test_batching_does_not_change_a_single_decision(name: str, policy: str, risk: Risk | None) -> None:
    if risk is not None and not POLICIES[policy].hedges:
        return
    posterior, problem = posterior_for(name), build_problem(PROBLEM_ROWS[name].spec)
    options = PrescribeOptions(policy, scenarios=20, risk=risk)
    if not decides_alone(posterior, problem, options):
        assert name not in ALONE or POLICIES[policy].random
        return
    contexts = torch.randn(CONTEXTS, posterior.predictor.features.context_dim, generator=seeded(3), dtype=torch.float64)
    together = prescribe(posterior, problem, contexts, options)
    for row in range(CONTEXTS):
        alone = prescribe(posterior, problem, contexts[row : row + 1], options)
        assert digits(alone, 0) == digits(together, row)
        assert (alone.status, alone.reasons) == (together.status[row : row + 1], together.reasons[row : row + 1])
