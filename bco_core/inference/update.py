"""Update an old posterior with new rows, for a fraction of the work of learning from scratch.

Members start from the old components. With ``as_prior`` these are also the prior, which is the coherent Gibbs update:

    minimise  E_q[mean cost of the new rows] + κ (1 − f) KL(q ‖ old component)

where the forgetting f reduces the weight of the old posterior. Without ``as_prior`` members learn from old and new rows
under their first prior. On boosted features they always learn from the new rows alone, which the trees have not seen.

The old posterior and a challenger are compared on the newest third of the new rows, which neither has learned from;
then the challenger learns from that third as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bco_core.certificates import Certificate
from bco_core.data import Sample, evenly, make_folds
from bco_core.distributions import MatrixGaussian, Mixture
from bco_core.errors import InvalidInput
from bco_core.estimates import Estimate, paired_difference
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.held_out import HISTORY_ROWS, StoredHistory, autocorrelation, judge_policies, summarize
from bco_core.inference.method import Learned
from bco_core.inference.training import TrainingOptions, by_autograd, train
from bco_core.inference.vi.diagnostics import diagnose
from bco_core.inference.vi.surrogate import continue_member
from bco_core.inference.vi.variational import VariationalFit, member_scenarios
from bco_core.policies import decide, first_policy
from bco_core.posterior import Posterior
from bco_core.predictive_choice import choose_carrier
from bco_core.prescribe import PrescribeOptions, decisions
from bco_core.problems.base import DecisionProblem
from bco_core.progress import Progress, no_progress, part_of

LEAST_ROWS = 30
MOST_ROWS = 4000
_EPOCHS, _PATIENCE, _RATE, _BATCH = 60, 3, 0.001, 128
_DRAWS = 4
# The smallest weight of a forgotten prior.
_LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class UpdateComparison:
    """Cost of the new posterior less that of the old one on the newest ``rows``; negative is better."""

    rows: int
    difference: Estimate


@dataclass(frozen=True)
class UpdateResult(Learned):
    """The updated posterior, its diagnostics, and its comparison with the old posterior."""

    comparison: UpdateComparison


@dataclass(frozen=True)
class UpdateOptions:
    """``kl_weight`` and ``policy`` are the old posterior's. ``as_prior`` makes its components the prior, whose weight
    ``forgetting``, from 0 to 1, reduces."""

    kl_weight: float
    policy: str
    prior_scale: float = 1.0
    as_prior: bool = False
    forgetting: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.forgetting <= 1:
            raise InvalidInput("forgetting must be a share from 0 to 1", ("forgetting",))
        if self.forgetting and not self.as_prior:
            raise InvalidInput("forgetting needs as_prior: only a prior can be forgotten", ("forgetting",))


def update(
    problem: DecisionProblem,
    sample: Sample,
    previous: Posterior,
    fresh: Tensor,
    options: UpdateOptions,
    progress: Progress = no_progress,
) -> UpdateResult:
    """Update ``previous``, which has not seen the ``fresh`` rows, a mask (n,)."""
    mixture, problem = previous.distribution, problem.relaxation
    if not isinstance(mixture, Mixture):
        raise InvalidInput("only a posterior learned by auto or vi can be updated", ("from_posterior",))
    if sample.contexts.shape[1] != previous.predictor.features.context_dim:
        raise InvalidInput(
            "the rows have other columns than those that the posterior learned from", ("from_posterior",)
        )
    new = _in_order(sample, fresh.nonzero().flatten())
    if len(new) < LEAST_ROWS:
        raise InvalidInput(
            f"an update needs at least {LEAST_ROWS} rows that the posterior has not seen, and there are {len(new)}",
            ("from_posterior",),
        )
    known, newest = new[: len(new) * 2 // 3], new[len(new) * 2 // 3 :]
    apart = options.as_prior or previous.predictor.features.bases is not None
    old = torch.empty(0, dtype=torch.long) if apart else _in_order(sample, (~fresh).nonzero().flatten())
    generator = torch.Generator().manual_seed(options.seed)

    challenger = _continue_learning(problem, sample, previous, mixture, torch.cat([old, known]), options, generator)
    progress(0.5, "compared with the old posterior on the newest rows")
    comparison = _compare(problem, sample.rows(newest), previous, replace(previous, distribution=challenger), options)
    final = _continue_learning(
        problem, sample, previous, challenger, torch.cat([old, new]), options, generator, part_of(progress, 0.5, 1.0)
    )
    return _conclude(problem, sample, previous, challenger, final, known, newest, options, comparison, generator)


def _in_order(sample: Sample, rows: Tensor) -> Tensor:
    """Return rows ordered by time or, without one, as they are."""
    return rows if sample.timeline is None else rows[sample.timeline.periods[rows].argsort(stable=True)]


def _target(
    problem: DecisionProblem, sample: Sample, posterior: Posterior, mixture: Mixture, scale: float
) -> GibbsTarget:
    features = posterior.encode(sample.contexts)
    return make_target(problem, posterior.predictor, sample, mixture.family, scale, features)


def _continue_learning(
    problem: DecisionProblem,
    sample: Sample,
    previous: Posterior,
    start: Mixture,
    rows: Tensor,
    options: UpdateOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> Mixture:
    """Train members from ``start`` on some rows, each stopped early by a fifth of them."""
    used = rows[evenly(len(rows), MOST_ROWS)]
    target = _target(problem, sample.rows(used), previous, start, options.prior_scale)
    old = previous.distribution
    assert isinstance(old, Mixture)  # noqa: S101
    if isinstance(old, MatrixGaussian):
        weight = options.kl_weight * (1 - options.forgetting)
        return continue_member(target, old, options.as_prior, max(weight, _LEAST_WEIGHT), generator)
    folds = make_folds(len(used), len(start.loc), generator)
    centre = old.loc if options.as_prior else torch.zeros_like(old.loc)
    width = old.scale if options.as_prior else torch.full_like(old.scale, options.prior_scale)
    weight = options.kl_weight * (1 - options.forgetting)
    encoded, outcomes, family = target.encoded(start.loc.dtype), target.sample.outcomes, start.family
    noise = family.noise((len(start.loc), _DRAWS, start.dim), generator, start.loc.dtype)

    def loss(value: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        loc, scale = value[0], softplus(value[1])
        theta = loc + scale * family.noise(tuple(loc.shape), generator, loc.dtype)
        risk = target.losses(target.predictor.forward(theta, encoded[rows]), rows).mean(dim=1)
        return risk + weight * family.kl(loc - centre[members], scale, width[members]).sum(dim=1)

    def judge(value: Tensor, members: Tensor) -> Tensor:
        held_out = folds.validation[members]
        scenarios = member_scenarios(target, held_out, encoded, value[0], softplus(value[1]), noise[members])
        chosen = decide(problem, scenarios, first_policy(problem)).decisions
        return problem.cost(chosen, outcomes[held_out.flatten()]).view(held_out.shape).mean(dim=1) / target.cost_scale

    rho = start.scale + torch.log(-torch.expm1(-start.scale))
    how = TrainingOptions(epochs=_EPOCHS, patience=_PATIENCE, batch_size=_BATCH, learning_rate=_RATE)
    trained = train(torch.stack([start.loc, rho]), folds.train, by_autograd(loss), judge, how, generator, progress)
    return Mixture(family, start.weights, trained.value[0], softplus(trained.value[1]))


def _compare(
    problem: DecisionProblem, newest: Sample, previous: Posterior, challenger: Posterior, options: UpdateOptions
) -> UpdateComparison:
    costs = []
    for posterior in (previous, challenger):
        draws = posterior.distribution.sample(len(previous.particles), torch.Generator().manual_seed(options.seed))
        own = replace(posterior, particles=draws)
        own_decisions = decisions(own, problem, newest.contexts, PrescribeOptions(policy=options.policy))
        costs.append(problem.cost(own_decisions, newest.outcomes))
    return UpdateComparison(len(newest), paired_difference(costs[1], costs[0]))


def _conclude(
    problem: DecisionProblem,
    sample: Sample,
    previous: Posterior,
    challenger: Mixture,
    final: Mixture,
    known: Tensor,
    newest: Tensor,
    options: UpdateOptions,
    comparison: UpdateComparison,
    generator: torch.Generator,
) -> UpdateResult:
    """Return the new posterior, judged by the old one's and the challenger's predictions of rows they had not seen."""
    rows = torch.cat([known, newest])[-HISTORY_ROWS:]
    own = sample.rows(rows)
    target = _target(problem, own, previous, final, options.prior_scale)
    compared = torch.isin(rows, newest)
    seen = []
    for places, mixture in ((~compared, previous.distribution), (compared, challenger)):
        draws = mixture.sample(len(previous.particles), torch.Generator().manual_seed(options.seed))
        seen.append((places.nonzero().flatten(), previous.scenarios(own.contexts[places], draws)))
    seen = [(places, scenarios) for places, scenarios in seen if len(places)]
    predictions = torch.empty_like(own.outcomes)
    for places, scenarios in seen:
        predictions[places] = scenarios.mean()
    full = torch.ones(own.outcomes.shape[1], dtype=torch.float64)
    choice = choose_carrier(
        predictions, own.outcomes, previous.predictor.outcomes.scale, target.features, full, problem
    )
    order = autocorrelation(own.outcomes - predictions, torch.arange(len(rows)))
    stored = StoredHistory(choice.history, choice.order, choice.table, order)
    places_of = torch.empty_like(choice.order).index_copy_(0, choice.order, torch.arange(len(rows)))
    judged = judge_policies(
        target,
        [(places_of[places], scenarios) for places, scenarios in seen],
        stored,
        compared[choice.order].long(),
        generator,
    ).under(options.policy)
    fit = VariationalFit(final, [0] * len(final.loc), [True] * len(final.loc), [])
    diagnostics = diagnose(
        target,
        summarize(target, stored, judged),
        final,
        [fit],
        options.kl_weight,
        policy=options.policy,
        candidates=[],
        network_share=None,
        shares=[],
        boosted_share=None,
        certificate=Certificate.absent("the prior is an older posterior, which other rows have shaped"),
    )
    particles = final.sample(len(previous.particles), torch.Generator().manual_seed(options.seed))
    posterior = Posterior(previous.predictor, final, particles, options.seed, choice.history)
    return UpdateResult(posterior, diagnostics, comparison)
