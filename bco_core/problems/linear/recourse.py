"""What recourse costs in a linear model, for many pairs of a decision and an outcome.

One recourse matrix for all outcomes, no whole numbers and few rows go to the certified simplex
(:mod:`bco_core.problems.linear.fixed_recourse`); everything else goes to HiGHS, one pair after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bco_core.problems.base import Status
from bco_core.problems.linear.fixed_recourse import FixedRecourse
from bco_core.problems.linear.model import Model
from bco_core.problems.linear.scenarios import OneByOne
from bco_core.solvers.dual_simplex import OPTIMAL
from bco_core.solvers.linear_form import Array

_VALUES = {Status.INFEASIBLE: np.inf, Status.UNBOUNDED: -np.inf}
# Numbers of right-hand sides and costs that are worked on at once.
_NUMBERS_AT_ONCE = 5_000_000
# So many answers of searches are kept, of so many pairs at most.
_REMEMBERED, _REMEMBERED_ROWS = 8, 10_000


@dataclass(frozen=True)
class Later:
    """The rows with recourse, and the fast path where it serves the model."""

    model: Model
    quick: FixedRecourse | None
    recent: dict[tuple[bytes, bytes], tuple[Array, Array]] = field(default_factory=dict, compare=False, repr=False)

    def plans(self, decisions: Array, outcomes: Array) -> tuple[Array, Array]:
        """Least costs (n,) of mending decisions (n, d_z) for outcomes (n, d_y), and how (n, d_x).

        ∞ and NaN where nothing mends it, −∞ where the cost falls without limit. An answer asks for the same costs
        several times, and searches are not done twice.
        """
        if not self.model.recourse_integer.any():
            return self._plans(decisions, outcomes)
        asked = decisions.tobytes(), outcomes.tobytes()
        found = self.recent.get(asked)
        if found is None:
            found = self._plans(decisions, outcomes)
            if len(outcomes) <= _REMEMBERED_ROWS:
                while len(self.recent) >= _REMEMBERED:
                    self.recent.pop(next(iter(self.recent), asked), None)
                self.recent[asked] = found
        return found[0].copy(), found[1].copy()

    def _plans(self, decisions: Array, outcomes: Array) -> tuple[Array, Array]:
        model = self.model
        values = np.zeros(len(outcomes))
        amounts = np.full((len(outcomes), len(model.recourse_lower)), np.nan)
        if not amounts.shape[1]:
            return values, amounts
        size = max(1, _NUMBERS_AT_ONCE // (amounts.shape[1] + len(model.senses) + 1))
        for start in range(0, len(outcomes), size):
            part = slice(start, start + size)
            values[part], amounts[part] = self._solved(decisions[part], outcomes[part])
        # Rounding must not carry an amount past its bounds, nor the sign of a zero.
        return values, np.clip(amounts, model.recourse_lower, model.recourse_upper) + 0.0

    def _solved(self, decisions: Array, outcomes: Array) -> tuple[Array, Array]:
        model = self.model
        if self.quick is not None:
            found = self.quick.solve(decisions, outcomes)
            return found.value, np.where((found.status == OPTIMAL)[:, None], found.primal, np.nan)
        limits = model.limits.at(outcomes) - model.technology.times(outcomes, decisions)
        each = OneByOne(
            model.recourse,
            model.recourse_cost,
            model.senses,
            model.recourse_lower,
            model.recourse_upper,
            model.recourse_integer,
        )
        values, amounts = np.full(len(outcomes), np.nan), np.full((len(outcomes), len(model.recourse_lower)), np.nan)
        for k, answer in enumerate(each.solve(outcomes, limits)):
            values[k] = _VALUES.get(answer.status, answer.objective)
            if answer.status is Status.OPTIMAL:
                amounts[k] = answer.values
        return values, amounts
