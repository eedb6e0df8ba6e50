"""Learning from beginning to end: rows and a problem in, a posterior and its diagnostics out.

``auto`` learns a fold mixture from warm starts and selects everything by out-of-fold decision cost; where decisions
have no gradient, it samples by Metropolis–Hastings instead. ``vi`` is plain variational inference; with one member it
is the paper's Algorithm 1. ``mh`` is Algorithm 2, and Algorithm 3 where constraints are uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.certificates import ModelClass, certify
from bco_core.data import FOLDS, Folds, Sample, make_folds
from bco_core.errors import InvalidInput
from bco_core.families import FAMILIES, Mixture
from bco_core.gibbs import GibbsTarget, make_target, resolve_kl_weight
from bco_core.inference.chains import TEMPERATURES, THINNING, Deal, continue_chain, learn_by_chains
from bco_core.inference.diagnostics import diagnose, held_out_costs
from bco_core.inference.mixture import (
    LINEAR,
    NETWORK,
    Configuration,
    OutOfFold,
    Recipe,
    fit_configurations,
    joined,
    linear_in_network,
    members_for,
    out_of_fold,
    packed,
    sweep_for,
    unpacked,
    warm_start,
)
from bco_core.inference.select import pooled, select, stack
from bco_core.inference.training import OPTIMIZERS, Progress, no_progress
from bco_core.inference.variational import VariationalFit, VariationalOptions, fit_variational
from bco_core.policies import POLICIES, averaged
from bco_core.posterior import Arrays, Posterior
from bco_core.predictors import KINDS, NETWORKS, build_predictor
from bco_core.problems.base import DecisionProblem
from bco_core.scenarios import History
from bco_core.seeds import entropy

MINIMUM_ROWS = 10
# Fewer rows are learned from sooner as one batch of all members than by workers that share them out.
DEALT_ROWS = 8000
HISTORY_ROWS = 1000
CONFIDENCE = 0.95
METHODS = ("auto", "vi", "mh")
# κ at 256 rows. For `auto` it goes with priors scaled to the predictor; for `vi` with the paper's unit prior.
AUTO_KL_WEIGHT = 2e-4
VI_KL_WEIGHT = 1e-5
# The policies that may be recommended, the default first: those that use the whole posterior. Held-out rows are seen by
# few members, so they would flatter one that needs only one.
RECOMMENDABLE = ("averaged", "blended", "bcp")


@dataclass(frozen=True)
class LearningOptions:
    """Everything a caller may choose about learning; None means that the method chooses.

    ``auto`` ignores what it selects itself: ``initial_scale``, ``learning_rate``, ``optimizer``, ``prior_scale``,
    ``batch_size`` and ``patience``. At most one of the two temperatures may be given; it then holds for every
    candidate. ``certify`` scales the predictors with a tenth of the rows, so that the prior is independent of the
    others and a certificate may hold.

    ``chains``, ``steps``, ``burn_in``, ``temperature``, ``scale_costs`` and ``thinning`` are for Metropolis–Hastings:
    how a temperature that is not given is found, whether it is for costs in units of the best constant decision's, and
    how the particles are chosen from the draws.
    """

    method: str = "auto"
    predictor: str = "auto"
    hidden: tuple[int, ...] = (128, 128)
    family: str = "laplace"
    members: int | None = None
    kl_weight: float | None = None
    inverse_temperature: float | None = None
    policy: str | None = None
    epochs: int = 300
    prior_scale: float = 1.0
    patience: int = 20
    batch_size: int = 128
    optimizer: str = "adam"
    learning_rate: float = 0.003
    initial_scale: float = 0.05
    draws: int = 1
    particles: int = 200
    certify: bool = False
    chains: int = 4
    steps: int = 15_000
    burn_in: int = 5_000
    temperature: str = "settle"
    scale_costs: bool = True
    thinning: str = "support_points"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prior_scale", "initial_scale", "learning_rate", "kl_weight", "inverse_temperature"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} must be a positive number", ("posterior", name))
        for name in ("members", "epochs", "patience", "batch_size", "draws", "particles", "chains", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1", ("posterior", name))
        for name, value, known in (
            ("method", self.method, METHODS),
            ("family", self.family, tuple(FAMILIES)),
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("predictor", self.predictor, ("auto", *KINDS)),
            ("policy", self.policy or "bcp", tuple(POLICIES)),
            ("temperature", self.temperature, TEMPERATURES),
            ("thinning", self.thinning, THINNING),
        ):
            if value not in known:
                raise InvalidInput(f"the {name} must be one of {', '.join(known)}", (name,))
        if not 0 <= self.burn_in < self.steps:
            raise InvalidInput("burn_in must be shorter than the chain", ("posterior", "burn_in"))


# The kinds of predictor to learn, with the configurations that compete for each: none where the caller chose.
Sweeps = dict[str, tuple[Configuration, ...]]
# For each kind of predictor, one fit a configuration.
Fits = dict[str, list[VariationalFit]]


@dataclass(frozen=True)
class _Learned:
    """What a method hands over: the mixture in its predictor's space, its out-of-fold view and the tables it left."""

    target: GibbsTarget
    mixture: Mixture
    classes: list[ModelClass]
    seen: OutOfFold
    fits: list[VariationalFit]
    kl_weight: float
    tables: dict[str, Any]


def learn(
    problem: DecisionProblem,
    sample: Sample,
    options: LearningOptions,
    progress: Progress = no_progress,
    deal: Deal | None = None,
) -> tuple[Posterior, dict[str, Any]]:
    """Learn the Gibbs posterior of ``problem`` from ``sample``. The same seed gives the same posterior.

    ``deal`` may have parts of the work computed elsewhere, by :func:`continue_part`: chains, and members learned from
    ``DEALT_ROWS`` rows or more.
    """
    check(problem, sample)
    problem = problem.relaxation
    inference, reason = _inference(problem, options)
    if inference == "mh":
        posterior, diagnostics = learn_by_chains(problem, sample, options, progress, deal)
        certificate = {"bound": None, "reason": "a certificate needs variational inference"}
        diagnostics |= {"method": options.method, "certificate": certificate}
        return posterior, diagnostics | {"inference": inference, "inference_reason": reason}
    plan = _plan(problem, sample, options)
    generator = plan.generator
    fits = _dealt_fits(plan, progress, deal) if plan.dealt else None
    learned = _learn_auto(plan, progress, fits) if options.method == "auto" else _learn_vi(plan, progress, fits)

    costs = held_out_costs(learned.target, learned.seen, generator)
    choice = select([costs[name] for name in RECOMMENDABLE], [{"policy": name} for name in RECOMMENDABLE])
    policy = options.policy or (RECOMMENDABLE[choice.chosen] if options.method == "auto" else "bcp")
    converged = all(all(fit.stopped_early) for fit in learned.fits)
    diagnostics = diagnose(learned.target, learned.seen, costs, policy, learned.mixture, converged)
    diagnostics |= learned.tables | {
        "policy": policy,
        "policies": choice.table,
        "method": options.method,
        "kl_weight": learned.kl_weight,
        "inverse_temperature": 1 / learned.kl_weight,
        "cost_scale": learned.target.cost_scale,
        "best_epochs": [fit.best_epochs for fit in learned.fits],
        "stopped_early": converged,
        "trace": [asdict(point) for point in learned.fits[-1].trace],
        "inference": inference,
        "inference_reason": reason,
    }
    diagnostics["certificate"] = certify(learned.classes, plan.judged, CONFIDENCE, generator)
    particles = learned.mixture.sample(options.particles, torch.Generator().manual_seed(options.seed))
    history = _history(learned, generator)
    return Posterior(learned.target.predictor, learned.mixture, particles, options.seed, history), diagnostics


def check(problem: DecisionProblem, sample: Sample) -> None:
    """Refuse, before any work, what cannot be learned."""
    if len(sample) < MINIMUM_ROWS:
        raise InvalidInput(f"learning needs at least {MINIMUM_ROWS} rows, and there are {len(sample)}", ("dataset",))
    if sample.outcomes.shape[1] != problem.outcome_dim:
        raise InvalidInput(
            f"the problem has {problem.outcome_dim} uncertain outcomes, the data {sample.outcomes.shape[1]}",
            ("dataset",),
        )


def _inference(problem: DecisionProblem, options: LearningOptions) -> tuple[str, str]:
    """Variational inference or Metropolis–Hastings, and why."""
    if options.method == "mh":
        return "mh", "Metropolis–Hastings, as asked for"
    if options.method == "vi":
        if not problem.differentiable:
            raise InvalidInput(
                "decisions have no gradient here, and variational inference needs one; use mh or auto",
                ("posterior", "method"),
            )
        return "vi", "variational inference, as asked for"
    if problem.differentiable:
        return "vi", "variational inference, because decisions have a gradient by the prediction"
    return "mh", "Metropolis–Hastings, because decisions have no useful gradient by the prediction"


def _set_aside(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A tenth of the rows, at least five, to scale predictors with; and the rest, to judge by."""
    shuffled = torch.randperm(rows, generator=generator)
    few = max(5, rows // 10)
    return shuffled[:few], shuffled[few:]


def _history(learned: _Learned, generator: torch.Generator) -> History:
    """Out-of-fold predictions and outcomes of up to 1,000 rows."""
    scenarios, outcomes = learned.seen.scenarios, learned.target.sample.outcomes[learned.seen.rows]
    predictions = scenarios.mean()
    kept = torch.randperm(len(outcomes), generator=generator)[:HISTORY_ROWS]
    return History.of(predictions[kept], outcomes[kept], learned.target.predictor.outcomes.scale)


@dataclass(frozen=True)
class _Plan:
    """What everyone who learns a part of a posterior agrees on, worked out from the data, the options and the seed.

    ``generator`` goes on from there; ``scaling`` are the rows that predictors are scaled with, ``judged`` those that a
    certificate may be judged by.
    """

    problem: DecisionProblem
    sample: Sample
    options: LearningOptions
    generator: torch.Generator
    scaling: Sample
    judged: Tensor | None
    folds: Folds
    variational: VariationalOptions
    sweeps: Sweeps

    @property
    def dealt(self) -> bool:
        """Whether every member learns by itself, so that workers may share them."""
        return len(self.sample) >= DEALT_ROWS and len(self.folds.train) > 1

    @property
    def kl_weight(self) -> float:
        return float(self.variational.kl_weight)

    def target(self, kind: str) -> GibbsTarget:
        predictor = build_predictor(kind, self.scaling, self.options.hidden if kind in NETWORKS else ())
        prior_scale = _recipe(kind).prior_scale if self.options.method == "auto" else self.options.prior_scale
        return make_target(self.problem, predictor, self.sample, FAMILIES[self.options.family], prior_scale)


def _recipe(kind: str) -> Recipe:
    return NETWORK if kind in NETWORKS else LINEAR


def _plan(problem: DecisionProblem, sample: Sample, options: LearningOptions) -> _Plan:
    rows, generator, auto = len(sample), torch.Generator().manual_seed(options.seed), options.method == "auto"
    scaling, judged = _set_aside(rows, generator) if options.certify else (torch.arange(rows), None)
    folds = make_folds(rows, options.members or (members_for(rows) if auto else 1), generator)
    variational, sweeps = (_auto_settings if auto else _vi_settings)(options, rows, folds)
    return _Plan(problem, sample, options, generator, sample.rows(scaling), judged, folds, variational, sweeps)


def _vi_settings(options: LearningOptions, rows: int, folds: Folds) -> tuple[VariationalOptions, Sweeps]:
    variational = VariationalOptions(
        kl_weight=resolve_kl_weight(rows, options.kl_weight, options.inverse_temperature, VI_KL_WEIGHT),
        policy=options.policy or "bcp",
        epochs=options.epochs,
        patience=options.patience,
        batch_size=options.batch_size,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        initial_scale=options.initial_scale,
        draws=options.draws,
        averaging=len(folds.train) > 1,
    )
    return variational, {"mlp" if options.predictor == "auto" else options.predictor: ()}


def _auto_settings(options: LearningOptions, rows: int, folds: Folds) -> tuple[VariationalOptions, Sweeps]:
    learning_rows = folds.train.shape[1]
    variational = VariationalOptions(
        kl_weight=resolve_kl_weight(learning_rows, options.kl_weight, options.inverse_temperature, AUTO_KL_WEIGHT),
        policy="averaged",
        epochs=options.epochs,
        batch_size=128 if rows <= 1500 else 256,
        draws=options.draws,
        validation_draws=4,
    )
    explicit = options.kl_weight is not None or options.inverse_temperature is not None
    kinds = ("linear", "skip_mlp") if options.predictor == "auto" else (options.predictor,)
    sweeps = {
        kind: tuple(c for c in sweep_for(rows, _recipe(kind)) if c.kl_factor == 1 or not explicit) for kind in kinds
    }
    return variational, sweeps


def _learn_vi(plan: _Plan, progress: Progress, fits: Fits | None) -> _Learned:
    (kind,) = plan.sweeps
    target = plan.target(kind)
    if fits is None:
        fit = fit_variational(target, plan.folds, plan.variational, plan.generator, progress)
    else:
        (fit,) = fits[kind]
    seen = out_of_fold(target, plan.folds, fit.mixture, plan.generator)
    return _Learned(target, fit.mixture, [ModelClass(target, fit.mixture, 1.0)], seen, [fit], plan.kl_weight, {})


def _learn_auto(plan: _Plan, progress: Progress, fits: Fits | None) -> _Learned:
    learned, last = [], len(plan.sweeps) - 1
    for index, kind in enumerate(plan.sweeps):
        part = _part_of(progress, 0.0 if index == 0 else 0.1, 1.0 if index == last else 0.1)
        learned.append(_learn_kind(plan, kind, part, None if fits is None else fits[kind]))
    final = learned[-1] if len(learned) == 1 else _stacked(*learned)
    candidates = [row for one in learned for row in one.tables["candidates"]]
    return replace(final, tables=final.tables | {"candidates": candidates})


def _learn_kind(plan: _Plan, kind: str, progress: Progress, fits: list[VariationalFit] | None) -> _Learned:
    """Learn with one kind of predictor: configurations compete on the first partition, the winner learns on all.

    Linear members are cheap, and compete on all partitions; so do those that have been learned already.
    """
    recipe, sweep, folds, generator = _recipe(kind), plan.sweeps[kind], plan.folds, plan.generator
    target = plan.target(kind)
    competing = FOLDS if fits is None and recipe is NETWORK else len(folds.train)
    first, later = slice(None, competing), slice(competing, None)
    if fits is None:
        loc, scale = warm_start(target, folds, recipe, plan.variational, generator, _part_of(progress, 0.0, 0.4))
        start, part = (loc[first], scale[first]), _part_of(progress, 0.4, 0.9)
        fits = fit_configurations(target, folds[first], recipe, sweep, plan.variational, start, generator, part)
    seen = [out_of_fold(target, folds[first], fit.mixture, generator) for fit in fits]
    labels = [{"predictor": kind} | asdict(configuration) for configuration in sweep]
    choice = select([_averaged_costs(target, view) for view in seen], labels)
    fit, configuration = fits[choice.chosen], sweep[choice.chosen]
    if len(folds.train) > competing:
        start, part = (loc[later], scale[later]), _part_of(progress, 0.9, 1.0)
        chosen = [configuration]
        rest = fit_configurations(target, folds[later], recipe, chosen, plan.variational, start, generator, part)
        fit = joined([fit, *rest])
    view = out_of_fold(target, folds, fit.mixture, generator)
    kl_weight = plan.kl_weight * configuration.kl_factor
    classes = [ModelClass(target, fit.mixture, 1.0)]
    return _Learned(target, fit.mixture, classes, view, [fit], kl_weight, {"candidates": choice.table})


def _dealt_fits(plan: _Plan, progress: Progress, deal: Deal | None) -> Fits:
    """Have every member of every kind learned as a part of its own."""
    members = range(len(plan.folds.train))
    parts = [
        (1000 if kind in NETWORKS else 100, {"kind": np.array([kind]), "member": np.array([member])})
        for kind in plan.sweeps
        for member in members
    ]
    if deal is not None:
        done = deal(lambda: parts, progress)
    else:
        done = []
        for number, (_, part) in enumerate(parts):
            within = _part_of(progress, number / len(parts), (number + 1) / len(parts))
            done.append(_learn_member(plan, part, within))
    each = iter(unpacked(one, FAMILIES[plan.options.family]) for one in done)
    return {kind: [joined(fits) for fits in zip(*(next(each) for _ in members), strict=True)] for kind in plan.sweeps}


def _learn_member(plan: _Plan, part: Arrays, progress: Progress) -> Arrays:
    """One member of a kind of predictor under each of its configurations, with random numbers of its own."""
    kind, member = str(part["kind"][0]), int(part["member"][0])
    target, folds = plan.target(kind), plan.folds[member : member + 1]
    generator = torch.Generator().manual_seed(entropy(plan.options.seed, list(plan.sweeps).index(kind), member))
    sweep, recipe = plan.sweeps[kind], _recipe(kind)
    if sweep:
        start = warm_start(target, folds, recipe, plan.variational, generator, _part_of(progress, 0.0, 0.4))
        rest = _part_of(progress, 0.4, 1.0)
        fits = fit_configurations(target, folds, recipe, sweep, plan.variational, start, generator, rest)
    else:
        fits = [fit_variational(target, folds, plan.variational, generator, progress)]
    return packed(fits)


def continue_part(
    problem: DecisionProblem,
    sample: Sample,
    options: LearningOptions,
    part: Arrays,
    progress: Progress = no_progress,
    checkpoint: Callable[[Arrays], None] | None = None,
) -> Arrays:
    """Compute a part that :func:`learn` dealt out; a chain goes on from its last checkpoint."""
    if "member" in part:
        return _learn_member(_plan(problem.relaxation, sample, options), part, progress)
    return continue_chain(problem.relaxation, sample, options, part, progress, checkpoint)


def _stacked(linear: _Learned, network: _Learned) -> _Learned:
    """The mixture of a linear and a network candidate whose averaged decisions cost least out of fold."""
    outcomes = linear.target.sample.outcomes[linear.seen.rows]
    share, table = stack(linear.target.problem, linear.seen.scenarios, network.seen.scenarios, outcomes)
    embedded = linear_in_network(network.target, linear.mixture)
    mixture = Mixture(
        network.mixture.family,
        torch.cat([embedded.weights * (1 - share), network.mixture.weights * share]),
        torch.cat([embedded.loc, network.mixture.loc]),
        torch.cat([embedded.scale, network.mixture.scale]),
    )
    classes = [
        ModelClass(linear.target, linear.mixture, 1 - share),
        ModelClass(network.target, network.mixture, share),
    ]
    seen = pooled(linear.seen, network.seen, share)
    tables = {"network_share": share, "shares": table}
    return _Learned(network.target, mixture, classes, seen, linear.fits + network.fits, network.kl_weight, tables)


def _averaged_costs(target: GibbsTarget, seen: OutOfFold) -> Tensor:
    decisions = averaged(target.problem, seen.scenarios, torch.Generator()).decisions
    return target.problem.cost(decisions, target.sample.outcomes[seen.rows])


def _part_of(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part that takes the whole from ``first`` to ``last``."""
    return lambda fraction, message: progress(first + fraction * (last - first), message)
