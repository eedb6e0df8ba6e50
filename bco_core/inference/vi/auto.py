"""``auto``: a fold mixture from warm starts that selects everything by out-of-fold decision cost.

A linear model and a network with a linear skip path each let their configurations compete; the two winners are mixed by
the share whose averaged decisions cost least on held-out rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from bco_core.certificates import ModelClass
from bco_core.data import FOLDS, Arrays, Folds
from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget, resolve_kl_weight
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import AutoOptions
from bco_core.inference.vi import members
from bco_core.inference.vi.conclude import Candidate, conclude, keep_history
from bco_core.inference.vi.judgement import Views, judge
from bco_core.inference.vi.mixture import fit_configurations, joined, linear_in_network, warm_start
from bco_core.inference.vi.out_of_fold import OutOfFold, out_of_fold, pooled
from bco_core.inference.vi.plan import Plan, Settings, make_plan
from bco_core.inference.vi.recipes import members_for, recipe_for, sweep_for
from bco_core.inference.vi.variational import PASSES_A_STEP, VariationalFit, VariationalOptions
from bco_core.policies import decide
from bco_core.predictors.registry import PREDICTORS
from bco_core.progress import Progress, part_of
from bco_core.select import select, share_costs

# κ at 256 rows; it goes with priors scaled to the predictor.
KL_WEIGHT = 2e-4
EPOCHS = 300


def _plan(task: Task) -> Plan:
    options: AutoOptions = task.options
    rows = len(task.sample)

    def settle(folds: Folds) -> Settings:
        learning_rows = folds.train.shape[1]
        variational = VariationalOptions(
            kl_weight=resolve_kl_weight(learning_rows, options.kl_weight, options.inverse_temperature, KL_WEIGHT),
            policy="averaged",
            epochs=options.epochs or EPOCHS,
            batch_size=128 if rows <= 1500 else 256,
            draws=options.draws or 1,
            validation_draws=4,
        )
        kinds = options.predictor.kinds
        sweeps = {
            kind: tuple(
                configuration
                for configuration in sweep_for(rows, recipe_for(kind))
                if configuration.kl_factor == 1 or not options.has_temperature
            )
            for kind in kinds
        }
        return Settings(variational, {kind: recipe_for(kind).prior_scale for kind in kinds}, sweeps)

    return make_plan(task, options.members or members_for(rows), settle)


def _split(task: Task, progress: Progress) -> list[Part]:
    return members.split(_plan(task))


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    return members.work(_plan(task), data, progress)


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    fits = members.collected(plan, results)
    learned: list[Candidate] = []
    kinds: list[Views] = []
    last = len(plan.settings.sweeps) - 1
    for index, kind in enumerate(plan.settings.sweeps):
        part = part_of(progress, 0.0 if index == 0 else 0.1, 1.0 if index == last else 0.1)
        candidate, views = _learn_kind(plan, kind, part, None if fits is None else fits[kind])
        learned.append(candidate)
        kinds.append(views)
    final = learned[-1] if len(learned) == 1 else _stacked(*learned)
    candidates = [row for one in learned for row in one.candidates]
    final = replace(final, candidates=candidates)
    kept = keep_history(plan, final)
    judged = judge(final.target, kinds, kept, plan.folds, plan.generator)
    return conclude(plan, final, kept, judged.under(task.options.policy))


def _learn_kind(
    plan: Plan, kind: str, progress: Progress, fits: list[VariationalFit] | None
) -> tuple[Candidate, Views]:
    """Learn with one kind of predictor: configurations compete on the first partition, the winner learns on all.

    Linear members are cheap, and compete on all partitions; so do those that have been learned already.
    """
    recipe, sweep, options = recipe_for(kind), plan.settings.sweeps[kind], plan.settings.variational
    folds, generator, target = plan.folds, plan.generator, plan.target(kind)
    competing = FOLDS if fits is None and PREDICTORS[kind].is_network else len(folds.train)
    first, later = slice(None, competing), slice(competing, None)
    if fits is None:
        loc, scale = warm_start(target, folds, recipe, options, generator, part_of(progress, 0.0, 0.4))
        start, part = (loc[first], scale[first]), part_of(progress, 0.4, 0.9)
        fits = fit_configurations(target, folds[first], recipe, sweep, options, start, generator, part)
    seen = [out_of_fold(target, folds[first], fit.mixture, generator) for fit in fits]
    labels = [{"predictor": kind} | asdict(configuration) for configuration in sweep]
    costs = [_averaged_costs(target, view) for view in seen]
    choice = select(costs, labels)
    fit, configuration = fits[choice.chosen], sweep[choice.chosen]
    if len(folds.train) > competing:
        start, part = (loc[later], scale[later]), part_of(progress, 0.9, 1.0)
        chosen = [configuration]
        rest = fit_configurations(target, folds[later], recipe, chosen, options, start, generator, part)
        fit = joined([fit, *rest])
    view = out_of_fold(target, folds, fit.mixture, generator)
    kl_weight = plan.kl_weight * configuration.kl_factor
    classes = [ModelClass(target, fit.mixture, 1.0)]
    candidate = Candidate(target, fit.mixture, classes, view, [fit], kl_weight, choice.table)
    return candidate, Views(seen, costs, choice.chosen, view)


def _stacked(linear: Candidate, network: Candidate) -> Candidate:
    """The mixture of a linear and a network candidate whose averaged decisions cost least out of fold."""
    outcomes = linear.target.sample.outcomes[linear.seen.rows]
    shares = share_costs(linear.target.problem, linear.seen.scenarios, network.seen.scenarios, outcomes)
    share = shares.best()
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
    fits = linear.fits + network.fits
    return Candidate(
        network.target, mixture, classes, seen, fits, network.kl_weight, share=share, shares=shares.table()
    )


def _averaged_costs(target: GibbsTarget, seen: OutOfFold) -> Tensor:
    decisions = decide(target.problem, seen.scenarios, "averaged").decisions
    return target.problem.cost(decisions, target.sample.outcomes[seen.rows])


def _vectors(options: AutoOptions, rows: int) -> int:
    """A location and a scale for each member of each kind of predictor."""
    return 2 * (options.members or members_for(rows)) * len(options.predictor.kinds)


def _passes(options: AutoOptions, rows: int) -> float:
    configurations = sum(len(sweep_for(rows, recipe_for(kind))) for kind in options.predictor.kinds)
    count = options.members or members_for(rows)
    return PASSES_A_STEP * (options.epochs or EPOCHS) * count * (options.draws or 1) * configurations


_REASON = "variational inference, because decisions have a gradient by the prediction"
AUTO = Method("auto", "vi", _REASON, True, _split, _work, _join, _vectors, _passes)
