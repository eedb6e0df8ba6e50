"""Is there always a recourse? Whether every decision and outcome that may occur can be mended.

One linear program tells whether the recourse serves any right-hand side at all. If not, the worst case that decisions
and outcomes can make is sought by turns, with the recourse in the form A x ≥ r, x ≥ 0: for a decision and an outcome,
the dual ray that proves most trouble; for a ray, the decision and outcome that it makes most trouble for. Such a pair
is a proof, by which the planner can see what is missing. That none is found is no proof, and so a prescription still
says when it meets one.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from bco_core import deadline
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.base import Status
from bco_core.problems.linear.description import Description
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearForm, LinearProgram, linear_form

_TURNS = 4
# Outcomes and decisions without bounds are looked for up to these sizes, the smallest first.
_REACHES = (1.0, 100.0, 10_000.0)


def check_recourse(data: Description, until: float = math.inf) -> None:
    """Raise with a witness if some decision meets an outcome that no recourse can mend.

    The search for one ends at ``until``, a moment of the monotonic clock; it is no proof at any rate.
    """
    if _serves_everything(data.recourse):
        return
    form = linear_form(data.recourse)
    for reach in _REACHES:
        try:
            with deadline.until(until):
                witness = _witness(data, form, reach)
        except OutOfTime:
            # Either this search has had its time, or the caller has no more, or none for whole numbers.
            deadline.before_long_work()
            return
        if witness is not None:
            decision, outcome, row = witness
            raise InvalidInput(
                f"there is not always a recourse: with decision {named(data.decision_names, decision)} and outcome "
                f"{named(data.outcome_names, outcome)} no recourse keeps the rows ('{data.row_names[row]}' among "
                "them). Add a recourse that costs more but always works, or bound the outcomes",
                data.rows_at[row],
            )


def _serves_everything(recourse: LinearProgram) -> bool:
    """Whether W x (sense) r has a solution for every r.

    It has if the equalities' rows are independent and some x̂ leaves every inequality and every one-sided bound behind
    and every equality alone: to what serves the equalities, bounds aside, add enough of x̂. It has not, otherwise.
    """
    low, high = np.isfinite(recourse.lower), np.isfinite(recourse.upper)
    loose = ~(low & high)
    matrix, senses = recourse.matrix[:, loose], recourse.senses
    equal = matrix[senses == 0]
    if not loose.any() or (len(equal) and np.linalg.matrix_rank(equal) < len(equal)):
        return False
    program = LinearProgram(
        np.zeros(int(loose.sum())),
        matrix,
        senses,
        np.where(low[loose], 1.0, -np.inf),
        np.where(high[loose], -1.0, np.inf),
    )
    return highs.solve_program(program, senses.astype(np.float64)).status is Status.OPTIMAL


def _witness(data: Description, form: LinearForm, reach: float) -> tuple[Array, Array, int] | None:
    by_decision, by_outcome = form.by_limit @ data.by_decision, form.by_limit @ data.by_outcome
    constant, _ = form.rhs(data.constant)
    size = max(1.0, float(np.abs(constant).max()))
    lowest = np.maximum(data.lowest, np.minimum(-reach * size, data.highest))
    highest = np.minimum(data.highest, np.maximum(reach * size, data.lowest))
    seen: set[bytes] = set()
    for direction in np.eye(len(constant)):
        ray = direction
        for _ in range(_TURNS):
            deadline.check()
            outcome = np.where(ray @ by_outcome >= 0, highest, lowest)
            decision = _worst_decision(data, ray @ by_decision, reach * size)
            key = np.concatenate([outcome, decision]).tobytes()
            if key in seen:
                break
            seen.add(key)
            trouble = constant + by_outcome @ outcome - by_decision @ decision
            ray, amount = _worst_ray(form, trouble)
            if amount > 1e-7 * (1 + np.abs(trouble).max()):
                blamed = np.abs(ray @ form.by_limit)
                return decision, outcome, int(blamed.argmax())
    return None


def _worst_decision(data: Description, push: Array, reach: float) -> Array:
    """A decision of least push'z, no further out than ``reach`` where it has no bound."""
    first = data.first
    lower = np.where(np.isfinite(first.lower), first.lower, np.minimum(-reach, first.upper))
    upper = np.where(np.isfinite(first.upper), first.upper, np.maximum(reach, first.lower))
    senses = first.senses
    model = highs.model_of(
        push,
        sparse.csr_array(first.matrix),
        np.where(senses >= 0, data.limits, -np.inf),
        np.where(senses <= 0, data.limits, np.inf),
        lower,
        upper,
        data.integer,
    )
    answer = highs.run(model)
    return answer.values if len(answer.values) else lower


def _worst_ray(form: LinearForm, trouble: Array) -> tuple[Array, float]:
    """max σ'r over σ ≥ 0, σ'A ≤ 0, Σσ ≤ 1."""
    rows, count = form.matrix.shape
    matrix = sparse.csr_array(np.concatenate([form.matrix.T, np.ones((1, rows))]))
    upper = np.concatenate([np.zeros(count), [1.0]])
    model = highs.model_of(-trouble, matrix, np.full(count + 1, -np.inf), upper, np.zeros(rows), np.full(rows, np.inf))
    answer = highs.run(model)
    return answer.values, -answer.objective


def named(names: tuple[str, ...], values: Array) -> str:
    shown = [f"{name} = {value:g}" for name, value in zip(names[:5], values[:5], strict=True)]
    return ", ".join(shown) + (" …" if len(names) > 5 else "")
