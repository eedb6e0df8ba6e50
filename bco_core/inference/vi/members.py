"""Members as parts: each learns by itself, under every configuration that competes, with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bco_core.data import Arrays, Folds
from bco_core.families import FAMILIES
from bco_core.inference.method import Part
from bco_core.inference.vi.mixture import fit_configurations, joined, packed, unpacked, warm_start
from bco_core.inference.vi.plan import Fits, Plan
from bco_core.inference.vi.recipes import recipe_for
from bco_core.inference.vi.variational import fit_variational
from bco_core.predictors.registry import PREDICTORS
from bco_core.progress import Progress, part_of
from bco_core.seeds import entropy

# How much longer a network takes than a linear model, roughly.
_NETWORK_WORK, _LINEAR_WORK = 1000, 100


def split(plan: Plan) -> list[Part]:
    """Every member of every kind of predictor as a part; none where one process learns them sooner as one batch."""
    if not plan.shared:
        return []
    return [
        Part(
            _NETWORK_WORK if PREDICTORS[kind].is_network else _LINEAR_WORK,
            {"kind": np.array([kind]), "member": np.array([member])},
        )
        for kind in plan.settings.sweeps
        for member in range(len(plan.folds.train))
    ]


def work(plan: Plan, part: Arrays, progress: Progress) -> Arrays:
    """One member under each of its configurations."""
    kind, member = str(part["kind"][0]), int(part["member"][0])
    # It learns alone, so nobody else stops it.
    sweeps, options = plan.settings.sweeps, replace(plan.settings.variational, peers=1)
    target, folds = plan.target(kind), _stopped_inside(plan.folds[member : member + 1])
    seed = entropy(plan.task.options.seed, list(sweeps).index(kind), member)
    generator = torch.Generator().manual_seed(seed)
    sweep, recipe = sweeps[kind], recipe_for(kind)
    if not sweep:
        return packed([fit_variational(target, folds, options, generator, progress)])
    start = warm_start(target, folds, recipe, options, generator, part_of(progress, 0.0, 0.4))
    rest = part_of(progress, 0.4, 1.0)
    return packed(fit_configurations(target, folds, recipe, sweep, options, start, generator, rest))


def _stopped_inside(folds: Folds) -> Folds:
    """The fold of one member that learns alone: it is stopped by a tenth of its own rows, not by those it is judged on.

    Rows are in random order.
    """
    few = max(1, folds.train.shape[1] // 10)
    return Folds(folds.train[:, :-few], folds.train[:, -few:])


def collected(plan: Plan, results: Sequence[Arrays]) -> Fits | None:
    """The fits of all parts, by kind and configuration; None where nothing was split off."""
    if not plan.shared:
        return None
    members = range(len(plan.folds.train))
    each = iter(unpacked(one, FAMILIES[plan.task.options.family]) for one in results)
    return {
        kind: [joined(fits) for fits in zip(*(next(each) for _ in members), strict=True)]
        for kind in plan.settings.sweeps
    }
