"""The method ``vi``: variational inference with the caller's settings; one member is the paper's Algorithm 1.

From 8,000 rows on, members are parts that may learn in different processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bco_core.certificates import ModelClass
from bco_core.data import Arrays, Folds
from bco_core.distributions import FAMILIES
from bco_core.gibbs import resolve_kl_weight
from bco_core.inference.held_out import judge_policies, policy_of_paper
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import ViOptions
from bco_core.inference.vi.cross_validation import blocks_of, out_of_fold
from bco_core.inference.vi.finalize import Candidate, keep_history, make_posterior
from bco_core.inference.vi.fold_mixture import join_fits, pack_fit, unpack_fit
from bco_core.inference.vi.plan import LearningSettings, MixturePlan, make_plan
from bco_core.inference.vi.variational import PASSES_A_STEP, VariationalOptions, fit_variational
from bco_core.progress import Progress
from bco_core.seeds import entropy

# κ at 256 rows, for the paper's unit prior.
KL_WEIGHT = 1e-5
# More rows do not improve early stopping.
_STOPPING_ROWS = 2000


def _plan(task: Task) -> MixturePlan:
    options: ViOptions = task.options

    def settle(folds: Folds) -> LearningSettings:
        variational = VariationalOptions(
            kl_weight=resolve_kl_weight(len(task.sample), options.kl_weight, options.inverse_temperature, KL_WEIGHT),
            policy=options.policy or "bcp",
            epochs=options.epochs,
            patience=options.patience,
            batch_size=options.batch_size,
            optimizer=options.optimizer,
            learning_rate=options.learning_rate,
            initial_scale=options.initial_scale,
            draws=options.draws,
            averaging=len(folds.train) > 1,
            peers=len(folds.train),
        )
        kind = "mlp" if options.predictor.kind == "auto" else options.predictor.kind
        return LearningSettings(variational, {kind: options.prior_scale}, {kind: ()})

    return make_plan(task, options.members, settle)


def _split(task: Task, progress: Progress) -> list[Part]:
    """Return one part a member; none where one process learns them sooner as one batch."""
    plan = _plan(task)
    return [Part(1, {"member": np.array([member])}) for member in range(len(plan.folds.train))] if plan.shared else []


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    """Learn one member, which is stopped by rows of its own."""
    plan = _plan(task)
    (kind,) = plan.settings.sweeps
    member = int(data["member"][0])
    options = replace(plan.settings.variational, peers=1)
    folds = _stop_inside(plan.folds[member : member + 1])
    generator = torch.Generator().manual_seed(entropy(task.options.seed, 0, member))
    return pack_fit(fit_variational(plan.target(kind), folds, options, generator, progress))


def _stop_inside(folds: Folds) -> Folds:
    """Return the fold of one member that learns alone: it is stopped by some of its own training rows, not by the rows
    it is judged on. They are a tenth, at most 2,000; rows are in random order."""
    few = max(1, min(folds.train.shape[1] // 10, _STOPPING_ROWS))
    return Folds(folds.train[:, :-few], folds.train[:, -few:])


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    (kind,) = plan.settings.sweeps
    target = plan.target(kind)
    if plan.shared:
        fit = join_fits([unpack_fit(one, FAMILIES[task.options.family]) for one in results])
    else:
        fit = fit_variational(target, plan.folds, plan.settings.variational, plan.generator, progress)
    judging = fit
    if plan.forward is not None:
        # Members that know only earlier rows are judged; those that know all rows decide.
        options = replace(plan.settings.variational, peers=len(plan.forward.train))
        judging = fit_variational(target, plan.forward, options, plan.generator)
    seen = out_of_fold(target, plan.judging, judging.mixture, plan.generator)
    classes = [ModelClass(target, fit.mixture, 1.0)]
    candidate = Candidate(target, fit.mixture, classes, seen, [fit], plan.kl_weight)
    stored = keep_history(plan, candidate)
    block = blocks_of(plan.judging, len(task.sample))[stored.rows]
    whole = [(torch.arange(len(block)), seen.at(stored.rows).scenarios)]
    policy_results = judge_policies(target, whole, stored, block, plan.generator)
    return make_posterior(
        plan, candidate, stored, policy_results.under(task.options.policy or policy_of_paper(task.problem))
    )


def _vectors(options: ViOptions, rows: int) -> int:
    """Count a location and a scale for each member."""
    return 2 * options.members


def _passes(options: ViOptions, rows: int) -> float:
    return PASSES_A_STEP * options.epochs * options.members * options.draws


VI = Method("vi", "vi", "variational inference, as requested", True, _split, _work, _join, _vectors, _passes)
