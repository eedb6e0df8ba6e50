"""``vi``: variational inference with the caller's own settings; with one member it is the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bco_core.certificates import ModelClass
from bco_core.data import Arrays, Folds
from bco_core.gibbs import resolve_kl_weight
from bco_core.inference.held_out import judge_scenarios, policy_of_paper
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import ViOptions
from bco_core.inference.vi import member_parts
from bco_core.inference.vi.finalize import Candidate, conclude, keep_history
from bco_core.inference.vi.nested_judging import blocks_of
from bco_core.inference.vi.out_of_fold import out_of_fold
from bco_core.inference.vi.plan import Plan, Settings, make_plan
from bco_core.inference.vi.variational import PASSES_A_STEP, VariationalOptions, fit_variational
from bco_core.progress import Progress

# κ at 256 rows, for the paper's unit prior.
KL_WEIGHT = 1e-5


def _plan(task: Task) -> Plan:
    options: ViOptions = task.options

    def settle(folds: Folds) -> Settings:
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
        return Settings(variational, {kind: options.prior_scale}, {kind: ()})

    return make_plan(task, options.members, settle)


def _split(task: Task, progress: Progress) -> list[Part]:
    return member_parts.split(_plan(task))


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    plan = _plan(task)
    (kind,) = plan.settings.sweeps
    return member_parts.work(plan, kind, data, progress)


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    (kind,) = plan.settings.sweeps
    target, done = plan.target(kind), member_parts.collected(plan, results)
    fit = done or fit_variational(target, plan.folds, plan.settings.variational, plan.generator, progress)
    judging = fit
    if plan.forward is not None:
        # Members that only know the past are judged; those that know all of it decide.
        options = replace(plan.settings.variational, peers=len(plan.forward.train))
        judging = fit_variational(target, plan.forward, options, plan.generator)
    seen = out_of_fold(target, plan.judging, judging.mixture, plan.generator)
    classes = [ModelClass(target, fit.mixture, 1.0)]
    candidate = Candidate(target, fit.mixture, classes, seen, [fit], plan.kl_weight)
    kept = keep_history(plan, candidate)
    block = blocks_of(plan.judging, len(task.sample))[kept.rows]
    whole = [(torch.arange(len(block)), seen.at(kept.rows).scenarios)]
    judged = judge_scenarios(target, whole, kept, block, plan.generator)
    return conclude(plan, candidate, kept, judged.under(task.options.policy or policy_of_paper(task.problem)))


def _vectors(options: ViOptions, rows: int) -> int:
    """A location and a scale for each member."""
    return 2 * options.members


def _passes(options: ViOptions, rows: int) -> float:
    return PASSES_A_STEP * options.epochs * options.members * options.draws


VI = Method("vi", "vi", "variational inference, as asked for", True, _split, _work, _join, _vectors, _passes)
