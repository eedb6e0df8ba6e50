"""Members that learn by themselves, wherever there is room: the parts of ``vi`` where rows are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bco_core.data import Arrays, Folds
from bco_core.families import FAMILIES
from bco_core.inference.method import Part
from bco_core.inference.vi.mixture import joined, packed, unpacked
from bco_core.inference.vi.plan import Plan
from bco_core.inference.vi.variational import VariationalFit, fit_variational
from bco_core.progress import Progress
from bco_core.seeds import entropy

# More rows than these do not tell better when to stop.
_STOPPING_ROWS = 2000


def split(plan: Plan) -> list[Part]:
    """Every member as a part; none where one process learns them sooner as one batch."""
    if not plan.shared:
        return []
    return [Part(1, {"member": np.array([member])}) for member in range(len(plan.folds.train))]


def work(plan: Plan, kind: str, part: Arrays, progress: Progress) -> Arrays:
    """One member; nobody else stops it."""
    member = int(part["member"][0])
    options = replace(plan.settings.variational, peers=1)
    folds = _stopped_inside(plan.folds[member : member + 1])
    generator = torch.Generator().manual_seed(entropy(plan.task.options.seed, 0, member))
    return packed(fit_variational(plan.target(kind), folds, options, generator, progress))


def _stopped_inside(folds: Folds) -> Folds:
    """The fold of one member that learns alone: it is stopped by some of its own rows, not by those it is judged on.

    They are a tenth, up to 2,000; rows are in random order.
    """
    few = max(1, min(folds.train.shape[1] // 10, _STOPPING_ROWS))
    return Folds(folds.train[:, :-few], folds.train[:, -few:])


def collected(plan: Plan, results: Sequence[Arrays]) -> VariationalFit | None:
    """The fit of all members; None where nothing was split off."""
    if not plan.shared:
        return None
    family = FAMILIES[plan.task.options.family]
    return joined([unpacked(one, family) for one in results])
