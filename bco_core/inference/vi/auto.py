"""``auto``: a fold mixture from warm starts that selects everything by out-of-fold decision cost.

A linear model and a network with a linear skip path each let their configurations compete; the two winners are mixed by
the share whose averaged decisions cost least on held-out rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bco_core.certificates import ModelClass
from bco_core.data import FOLDS, Arrays, Folds
from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget, resolve_kl_weight
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import AutoOptions
from bco_core.inference.vi import members
from bco_core.inference.vi.conclude import Candidate, conclude, keep_history
from bco_core.inference.vi.judgement import Views, judge
from bco_core.inference.vi.mixture import joined, learn_all, linear_in_network
from bco_core.inference.vi.out_of_fold import averaged_costs, out_of_fold, pooled
from bco_core.inference.vi.plan import Plan, Settings, make_plan
from bco_core.inference.vi.recipes import at_one_temperature, labels, members_for, recipe_for, sweep_for
from bco_core.inference.vi.variational import PASSES_A_STEP, VariationalFit, VariationalOptions
from bco_core.predictors.registry import PREDICTORS
from bco_core.progress import Progress, part_of
from bco_core.select import Selection, select, share_costs

# κ at 256 rows; it goes with priors scaled to the predictor.
KL_WEIGHT = 2e-4
EPOCHS, EPOCH_ROWS = 300, 8192


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
            epoch_rows=EPOCH_ROWS,
        )
        kinds = options.predictor.kinds
        fixed = options.has_temperature
        sweeps = {kind: sweep_for(rows, recipe_for(kind)) for kind in kinds}
        sweeps = {kind: at_one_temperature(sweep) if fixed else sweep for kind, sweep in sweeps.items()}
        return Settings(variational, {kind: recipe_for(kind).prior_scale for kind in kinds}, sweeps)

    return make_plan(task, options.members or members_for(rows), settle)


def _split(task: Task, progress: Progress) -> list[Part]:
    return members.split(_plan(task), progress)


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    return members.work(_plan(task), data, progress)


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    done = members.collected(plan, results)
    learned: list[Candidate] = []
    kinds: list[Views] = []
    last = len(plan.settings.sweeps) - 1
    for index, kind in enumerate(plan.settings.sweeps):
        part = part_of(progress, 0.0 if index == 0 else 0.1, 1.0 if index == last else 0.1)
        candidate, views = _compete(plan, kind, part) if done is None else _chosen(plan, kind, done[kind])
        learned.append(candidate)
        kinds.append(views)
    final = learned[-1] if len(learned) == 1 else _stacked(*learned)
    candidates = [row for one in learned for row in one.candidates]
    final = replace(final, candidates=candidates)
    kept = keep_history(plan, final)
    judged = judge(final.target, kinds, kept, plan.folds, plan.generator)
    return conclude(plan, final, kept, judged.under(task.options.policy))


def _compete(plan: Plan, kind: str, progress: Progress) -> tuple[Candidate, Views]:
    """Learn with one kind of predictor: configurations compete on the first partition, the winner learns on all.

    Linear members are cheap, and compete on all partitions.
    """
    recipe, sweep, options = recipe_for(kind), plan.settings.sweeps[kind], plan.settings.variational
    folds, generator, target = plan.folds, plan.generator, plan.target(kind)
    competing = FOLDS if PREDICTORS[kind].is_network else len(folds.train)
    first, later = slice(None, competing), slice(competing, None)
    fits = learn_all(target, folds[first], recipe, sweep, options, generator, part_of(progress, 0.0, 0.8))
    seen = [out_of_fold(target, folds[first], fit.mixture, generator) for fit in fits]
    costs = [averaged_costs(target, view) for view in seen]
    choice = select(costs, labels(kind, sweep))
    fit = fits[choice.chosen]
    if len(folds.train) > competing:
        best, part = [sweep[choice.chosen]], part_of(progress, 0.8, 1.0)
        fit = joined([fit, *learn_all(target, folds[later], recipe, best, options, generator, part)])
    candidate = _candidate(plan, kind, target, fit, choice)
    return candidate, Views(seen, costs, choice.chosen, candidate.seen)


def _chosen(plan: Plan, kind: str, done: members.Collected) -> tuple[Candidate, Views]:
    """The same for members that have learned already, under the configuration that a pilot chose."""
    assert done.selection is not None, "auto has configurations for every kind of predictor"  # noqa: S101
    candidate = _candidate(plan, kind, plan.target(kind), done.fit, done.selection)
    costs = averaged_costs(candidate.target, candidate.seen)
    return candidate, Views([candidate.seen], [costs], 0, candidate.seen)


def _candidate(plan: Plan, kind: str, target: GibbsTarget, fit: VariationalFit, choice: Selection) -> Candidate:
    seen = out_of_fold(target, plan.folds, fit.mixture, plan.generator)
    kl_weight = plan.kl_weight * plan.settings.sweeps[kind][choice.chosen].whole_kl_factor
    return Candidate(target, fit.mixture, [ModelClass(target, fit.mixture, 1.0)], seen, [fit], kl_weight, choice.table)


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


def _vectors(options: AutoOptions, rows: int) -> int:
    """A location and a scale for each member of each kind of predictor."""
    return 2 * (options.members or members_for(rows)) * len(options.predictor.kinds)


def _passes(options: AutoOptions, rows: int) -> float:
    configurations = sum(len(sweep_for(rows, recipe_for(kind))) for kind in options.predictor.kinds)
    count = options.members or members_for(rows)
    return PASSES_A_STEP * (options.epochs or EPOCHS) * count * (options.draws or 1) * configurations


_REASON = "variational inference, because decisions have a gradient by the prediction"
AUTO = Method("auto", "vi", _REASON, True, _split, _work, _join, _vectors, _passes)
