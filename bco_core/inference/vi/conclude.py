"""From what a mixture has learned to the posterior: judge policies on held-out rows, certify, draw, keep a history."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bco_core.certificates import ModelClass, certify
from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.diagnostics import Table
from bco_core.inference.method import Learned
from bco_core.inference.select import select
from bco_core.inference.vi.diagnostics import diagnose
from bco_core.inference.vi.out_of_fold import OutOfFold
from bco_core.inference.vi.plan import Plan
from bco_core.inference.vi.variational import VariationalFit
from bco_core.policies import POLICIES, RECOMMENDABLE, Terms, decide
from bco_core.posterior import Posterior
from bco_core.scenarios import History

CONFIDENCE = 0.95
HISTORY_ROWS = 1000


@dataclass(frozen=True)
class Candidate:
    """A mixture in its predictor's space, its out-of-fold view, and the tables that its selection left.

    ``share`` is the weight of the network where two sorts of predictor were mixed, and ``shares`` the costs at each.
    """

    target: GibbsTarget
    mixture: Mixture
    classes: list[ModelClass]
    seen: OutOfFold
    fits: list[VariationalFit]
    kl_weight: float
    candidates: Table = field(default_factory=list)
    share: float | None = None
    shares: Table = field(default_factory=list)


def conclude(plan: Plan, learned: Candidate, recommend: bool) -> Learned:
    """The posterior; with ``recommend`` the policy that held-out rows recommend is its own, else the caller's or BCP.

    The order in which random numbers are drawn is part of what a seed means.
    """
    options, generator = plan.task.options, plan.generator
    costs = held_out_costs(learned.target, learned.seen, generator)
    choice = select([costs[name] for name in RECOMMENDABLE], [{"policy": name} for name in RECOMMENDABLE])
    policy = options.policy or (RECOMMENDABLE[choice.chosen] if recommend else "bcp")
    diagnostics = diagnose(
        learned.target,
        learned.seen,
        costs,
        learned.mixture,
        learned.fits,
        policy=policy,
        policies=choice.table,
        kl_weight=learned.kl_weight,
        candidates=learned.candidates,
        network_share=learned.share,
        shares=learned.shares,
        certificate=certify(learned.classes, plan.judged, CONFIDENCE, options.particles, generator),
    )
    particles = learned.mixture.sample(options.particles, torch.Generator().manual_seed(options.seed))
    history = _history(learned, generator)
    posterior = Posterior(learned.target.predictor, learned.mixture, particles, options.seed, history)
    return Learned(posterior, diagnostics)


def held_out_costs(target: GibbsTarget, seen: OutOfFold, generator: torch.Generator) -> dict[str, Tensor]:
    """Cost (m,) of every policy on the rows of ``seen``, in the user's units."""
    outcomes, terms = target.sample.outcomes[seen.rows], Terms(generator)
    return {
        name: target.problem.cost(decide(target.problem, seen.scenarios, name, terms).decisions, outcomes)
        for name in POLICIES
    }


def _history(learned: Candidate, generator: torch.Generator) -> History:
    """Out-of-fold predictions and outcomes of up to 1,000 rows."""
    outcomes, predictions = learned.target.sample.outcomes[learned.seen.rows], learned.seen.scenarios.mean()
    kept = torch.randperm(len(outcomes), generator=generator)[:HISTORY_ROWS]
    return History.of(predictions[kept], outcomes[kept], learned.target.predictor.outcomes.scale)
