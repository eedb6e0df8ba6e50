"""The scenarios behind the costs of a prescription, and their summary for each outcome."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.posterior import Posterior
from bco_core.prescribe import QUANTILES, PrescribeOptions, scenario_sets
from bco_core.problems.base import DecisionProblem
from bco_core.scenarios import Scenarios
from bco_core.weighted_stats import sort_atoms, sorted_quantile


def cost_scenarios(posterior: Posterior, contexts: Tensor, options: PrescribeOptions, draws: Tensor) -> Scenarios:
    """Return the scenarios over which :func:`bco_core.prescribe.prescribe` prices decisions, for contexts (B, d_x)."""
    encoded = posterior.encode(contexts)
    scenarios = posterior.scenarios(contexts, draws, encoded)
    return scenario_sets(posterior, contexts, encoded, scenarios, options)[1]


@dataclass(frozen=True)
class OutcomeSummary:
    """Summary of each outcome over the scenarios of B contexts.

    ``mean`` and ``deviation`` (B, d_y), ``quantiles`` (B, d_y, m) at :data:`~bco_core.prescribe.QUANTILES`, and the
    share ``served`` (B, d_y) of scenarios in which each outcome is covered; None where a problem does not define it.
    """

    mean: Tensor
    deviation: Tensor
    quantiles: Tensor
    served: Tensor | None


def summary(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> OutcomeSummary:
    """Summarise atoms (B, K, d_y) and how often decisions (B, d_z) serve each outcome; NaN without a decision."""
    mean = atoms.mean()
    spread = torch.einsum("bky,k->by", (atoms.outcomes - mean[:, None]).square(), atoms.weights).sqrt()
    ordered, share = sort_atoms(atoms.outcomes.transpose(1, 2).contiguous(), atoms.weights)
    quantiles = sorted_quantile(ordered, share, torch.tensor(QUANTILES, dtype=torch.float64))
    served = problem.covered(decisions[:, None], atoms.outcomes)
    if served is not None:
        undecided = decisions.isnan().any(dim=1, keepdim=True)
        share = torch.einsum("bky,k->by", served.double(), atoms.weights).clamp(max=1.0)
        served = share.masked_fill(undecided, torch.nan)
    return OutcomeSummary(mean, spread, quantiles, served)
