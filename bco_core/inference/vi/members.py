"""Members as parts: each learns by itself, with random numbers of its own.

Many rows make learning long and differences between configurations clear, so they do not all compete everywhere: a
pilot learns from some of the rows under each, and the parts learn under the one it chose. Rows that judged it judge
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from bco_core.data import Arrays, Folds
from bco_core.families import FAMILIES
from bco_core.inference.method import Part
from bco_core.inference.vi.mixture import joined, learn_all, packed, unpacked
from bco_core.inference.vi.out_of_fold import averaged_costs, out_of_fold
from bco_core.inference.vi.plan import Plan
from bco_core.inference.vi.recipes import labels, recipe_for
from bco_core.inference.vi.variational import VariationalFit, VariationalOptions, fit_variational
from bco_core.predictors.registry import PREDICTORS
from bco_core.progress import Progress, part_of
from bco_core.seeds import entropy
from bco_core.select import Selection, select

# How much longer a network takes than a linear model, roughly.
_NETWORK_WORK, _LINEAR_WORK = 1000, 100
# More rows than these do not tell better when to stop.
_STOPPING_ROWS = 2000


def split(plan: Plan, progress: Progress) -> list[Part]:
    """Every member of every kind of predictor as a part; none where one process learns them sooner as one batch."""
    if not plan.shared:
        return []
    parts, kinds = [], plan.settings.sweeps
    for index, kind in enumerate(kinds):
        chosen = pilot(plan, kind, part_of(progress, index / len(kinds), (index + 1) / len(kinds)))
        work = _NETWORK_WORK if PREDICTORS[kind].is_network else _LINEAR_WORK
        for member in range(len(plan.folds.train)):
            parts.append(Part(work, {"kind": np.array([kind]), "member": np.array([member]), **chosen}))
    return parts


def pilot(plan: Plan, kind: str, progress: Progress) -> Arrays:
    """What one member, learning from some of its rows, finds each configuration to cost: (configurations, held-out)."""
    sweep = plan.settings.sweeps[kind]
    if not sweep:
        return {}
    folds, target = plan.pilot, plan.target(kind)
    generator = torch.Generator().manual_seed(entropy(plan.task.options.seed, list(plan.settings.sweeps).index(kind)))
    fits = learn_all(target, folds, recipe_for(kind), sweep, _alone(plan), generator, progress)
    seen = [out_of_fold(target, folds, fit.mixture, generator) for fit in fits]
    return {"pilot": torch.stack([averaged_costs(target, view) for view in seen]).numpy()}


def work(plan: Plan, part: Arrays, progress: Progress) -> Arrays:
    """One member, under the configuration that the pilot chose."""
    kind, member = str(part["kind"][0]), int(part["member"][0])
    sweeps, options = plan.settings.sweeps, _alone(plan)
    target, folds = plan.target(kind), _stopped_inside(plan.folds[member : member + 1])
    seed = entropy(plan.task.options.seed, list(sweeps).index(kind), member)
    generator = torch.Generator().manual_seed(seed)
    if not sweeps[kind]:
        return packed(fit_variational(target, folds, options, generator, progress))
    best = [sweeps[kind][choice(plan, kind, part).chosen]]
    (fit,) = learn_all(target, folds, recipe_for(kind), best, options, generator, progress)
    return packed(fit) | {"pilot": part["pilot"]}


def choice(plan: Plan, kind: str, part: Arrays) -> Selection:
    """The configuration that the pilot's costs speak for."""
    costs = [torch.from_numpy(values) for values in part["pilot"]]
    return select(costs, labels(kind, plan.settings.sweeps[kind]))


def _alone(plan: Plan) -> VariationalOptions:
    """How a member learns by itself: nobody else stops it."""
    return replace(plan.settings.variational, peers=1)


def _stopped_inside(folds: Folds) -> Folds:
    """The fold of one member that learns alone: it is stopped by some of its own rows, not by those it is judged on.

    They are a tenth, up to 2,000; rows are in random order.
    """
    few = max(1, min(folds.train.shape[1] // 10, _STOPPING_ROWS))
    return Folds(folds.train[:, :-few], folds.train[:, -few:])


class Collected(NamedTuple):
    """The fit of all members of a kind of predictor, and the selection of their configuration, if several competed."""

    fit: VariationalFit
    selection: Selection | None


def collected(plan: Plan, results: Sequence[Arrays]) -> dict[str, Collected] | None:
    """What became of all parts, by kind; None where nothing was split off."""
    if not plan.shared:
        return None
    family, count = FAMILIES[plan.task.options.family], len(plan.folds.train)
    found = {}
    for index, (kind, sweep) in enumerate(plan.settings.sweeps.items()):
        own = results[index * count : (index + 1) * count]
        fit = joined([unpacked(one, family) for one in own])
        found[kind] = Collected(fit, choice(plan, kind, own[0]) if sweep else None)
    return found
