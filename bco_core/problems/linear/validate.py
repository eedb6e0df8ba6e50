"""Refuse linear models without an optimal decision, before anything is learned for them.

``check_general`` tries corners and guesses of outcomes. ``check_recourse``, for two-stage problems whose limits alone
are uncertain, asks whether every decision and outcome has a recourse: one linear program tells whether the recourse
serves any right-hand side at all. If not, it looks for the worst case by turns, with the recourse in the form A x ≥ r,
x ≥ 0: for a decision and an outcome, the dual ray that proves the largest violation; for a ray, the worst decision and
outcome. Such a pair is a proof that shows the planner what is missing. Finding none proves nothing, so a prescription
still says when it meets one.
"""

from __future__ import annotations

import math
import time
from itertools import islice, product

import numpy as np
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.base import Status
from bco_core.problems.linear.first_stage import program_at
from bco_core.problems.linear.model import LinearModel
from bco_core.problems.linear.recourse import RecourseSolver
from bco_core.problems.linear.stages import ProgramSequence, StagedModel
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearForm, LinearProgram, linear_form

# Seconds that a new problem is searched for a case without recourse.
CHECK_SECONDS = 5.0
# Corners of the outcomes' bounds, and decisions, to try.
_CORNERS, _DECISIONS = 8, 6
# Values to try for outcomes without bounds, and the limit of decisions without bounds.
_GUESSES, _REACH = (0.0, 1.0, 10.0, 1000.0, -1.0, -100.0), 1000.0
# Turns between rays and pairs of a decision and an outcome.
_TURNS = 4
# Limits of outcomes and decisions without bounds, the smallest first.
_REACHES = (1.0, 100.0, 10_000.0)


def check_first_stage(first: LinearModel) -> None:
    """Refuse a model whose first stage has no feasible decision."""
    program = program_at(first, np.zeros(len(first.lower)))
    answer = highs.run(highs.model_of(*program.rows_and_bounds))
    if answer.status is not Status.OPTIMAL:
        raise InvalidInput(
            "no decision satisfies all bounds and the rows without recourse, for all outcomes within their bounds",
            ("rows",),
        )
    values = answer.values[first.integer]
    if np.abs(values - values.round()).max(initial=0) > 0:
        answer = highs.run(highs.model_of(*program.rows_and_bounds, first.integer), CHECK_SECONDS)
        if answer.status is Status.INFEASIBLE:
            raise InvalidInput("no decision in whole numbers satisfies all bounds and rows", ("rows",))


def check_general(stages: StagedModel, recourse: RecourseSolver) -> None:
    """Refuse a model without a feasible or without an optimal decision, or with a case that has no recourse.

    Finding no such case proves nothing.
    """
    check_first_stage(stages.first)
    outcomes, bounded = _outcomes_to_try(stages.model)
    _check_optimum(stages, outcomes, bounded)
    try:
        with deadlines.until(time.monotonic() + CHECK_SECONDS):
            _check_edges(stages, recourse, outcomes if bounded else outcomes[:1])
    except OutOfTime:
        # This search has used its time, or the caller has none left, or the caller wants no long work.
        deadlines.before_long_work()


def _outcomes_to_try(model: LinearModel) -> tuple[Array, bool]:
    """Return outcomes (n, d_y), and whether they all may happen."""
    parts = (model.cost, model.recourse_cost, model.technology, model.recourse, model.limits)
    used = np.unique(np.concatenate([part.by_outcome.indices for part in parts]))
    low, high = np.zeros(len(model.lowest)), np.zeros(len(model.lowest))
    low[used], high[used] = model.lowest[used], model.highest[used]
    if np.isfinite(low).all() and np.isfinite(high).all():
        corners = np.array([*islice(product((0.0, 1.0), repeat=min(len(low), 3)), _CORNERS)])
        sides = np.tile(corners, (1, len(low) // corners.shape[1] + 1))[:, : len(low)]
        return np.concatenate([(low + high)[None] / 2, low + sides * (high - low)]), True
    return np.stack([np.clip(guess, low, high) for guess in _GUESSES]), False


def _check_optimum(stages: StagedModel, outcomes: Array, bounded: bool) -> None:
    """Require an optimum of decision and recourse together: for all outcomes that may happen, or one of the guesses."""
    first, second = stages.first, stages.second
    limits = np.concatenate([np.tile(first.limits.constant, (len(outcomes), 1)), second.limits.at(outcomes)], axis=1)
    refusal: InvalidInput | None = None
    for outcome, answer in zip(outcomes, ProgramSequence.of_stages(stages).solve(outcomes, limits), strict=True):
        if answer.status is Status.OPTIMAL:
            if not bounded:
                return
            continue
        values = _name_values(first.outcome_names, outcome)
        if answer.status is Status.UNBOUNDED:
            sentence = (
                f"the cost can fall without limit with outcome {values}: a decision or recourse needs a bound or a row"
            )
            refusal = refusal or InvalidInput(sentence, ("decisions",))
        else:
            sentence = (
                f"with outcome {values} no decision and recourse keep the rows: add a recourse that costs more but "
                "always works, or bound the outcomes"
            )
            refusal = refusal or InvalidInput(sentence, ("rows",))
        if bounded:
            break
    if refusal is not None:
        raise refusal


def _check_edges(stages: StagedModel, recourse: RecourseSolver, outcomes: Array) -> None:
    """Try decisions at the edges of the first stage, whatever they cost, with each of the outcomes."""
    first = stages.first
    if not len(stages.second.senses):
        return
    rng = np.random.default_rng(0)
    lower, upper = _reachable_bounds(first.lower, first.upper, _REACH)
    program = program_at(first, np.zeros(len(lower)))
    _, matrix, least, most, _, _ = program.rows_and_bounds
    for _ in range(_DECISIONS):
        direction = rng.normal(size=len(lower))
        answer = highs.run(highs.model_of(direction, matrix, least, most, lower, upper))
        if answer.status is not Status.OPTIMAL:
            continue
        values, _ = recourse.plans(np.tile(answer.values, (len(outcomes), 1)), outcomes)
        worst = int(np.argmax(values))
        if np.isposinf(values[worst]):
            raise InvalidInput(
                f"there is not always a recourse: with decision {_name_values(first.decision_names, answer.values)} "
                f"and outcome {_name_values(first.outcome_names, outcomes[worst])} no recourse keeps the rows. Add a "
                "recourse that costs more but always works, or bound the outcomes",
                ("rows",),
            )


def check_recourse(stages: StagedModel, deadline: float = math.inf) -> None:
    """Refuse a model in which some decision and outcome leave no recourse, with such a pair in the message.

    The search ends at ``deadline`` on the monotonic clock.
    """
    if _serves_everything(stages.recourse_program):
        return
    form, first = linear_form(stages.recourse_program), stages.first
    for reach in _REACHES:
        try:
            with deadlines.until(deadline):
                witness = _witness(stages, form, reach)
        except OutOfTime:
            # This search has used its time, or the caller has none left, or the caller wants no long work.
            deadlines.before_long_work()
            return
        if witness is not None:
            decision, outcome, row = witness
            raise InvalidInput(
                f"there is not always a recourse: with decision {_name_values(first.decision_names, decision)} and "
                f"outcome {_name_values(first.outcome_names, outcome)} no recourse keeps the rows "
                f"('{stages.second.row_names[row]}' among them). Add a recourse that costs more but always works, or "
                "bound the outcomes",
                stages.second.rows_at[row],
            )


def _serves_everything(recourse: LinearProgram) -> bool:
    """Return whether W x (sense) r has a solution for every r.

    It has if the equalities' rows are independent and some x̂ satisfies every inequality and every one-sided bound
    strictly and every homogeneous equality: to a solution of the equalities, bounds aside, add enough of x̂. Otherwise
    it has not.
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


def _witness(stages: StagedModel, form: LinearForm, reach: float) -> tuple[Array, Array, int] | None:
    """Return a decision and an outcome without recourse, and the row to blame, if the search finds any."""
    by_decision, by_outcome = form.by_limit @ stages.by_decision, form.by_limit @ stages.by_outcome
    constant, _ = form.rhs(stages.second.limits.constant)
    size = max(1.0, float(np.abs(constant).max()))
    model = stages.model
    lowest = np.maximum(model.lowest, np.minimum(-reach * size, model.highest))
    highest = np.minimum(model.highest, np.maximum(reach * size, model.lowest))
    seen: set[bytes] = set()
    for direction in np.eye(len(constant)):
        ray = direction
        for _ in range(_TURNS):
            deadlines.check()
            outcome = np.where(ray @ by_outcome >= 0, highest, lowest)
            decision = _worst_decision(stages.first, ray @ by_decision, reach * size)
            key = np.concatenate([outcome, decision]).tobytes()
            if key in seen:
                break
            seen.add(key)
            violation = constant + by_outcome @ outcome - by_decision @ decision
            ray, amount = _worst_ray(form, violation)
            if amount > 1e-7 * (1 + np.abs(violation).max()):
                blame = np.abs(ray @ form.by_limit)
                return decision, outcome, int(blame.argmax())
    return None


def _worst_decision(first: LinearModel, direction: Array, reach: float) -> Array:
    """Minimise direction'z over decisions, no further out than ``reach`` where one has no bound."""
    lower, upper = _reachable_bounds(first.lower, first.upper, reach)
    _, matrix, least, most, _, _ = program_at(first, direction).rows_and_bounds
    answer = highs.run(highs.model_of(direction, matrix, least, most, lower, upper, first.integer))
    return answer.values if len(answer.values) else lower


def _worst_ray(form: LinearForm, violation: Array) -> tuple[Array, float]:
    """Maximise σ'r over σ ≥ 0, σ'A ≤ 0, Σσ ≤ 1."""
    rows, count = form.matrix.shape
    matrix = sparse.csr_array(np.concatenate([form.matrix.T, np.ones((1, rows))]))
    upper = np.concatenate([np.zeros(count), [1.0]])
    model = highs.model_of(
        -violation, matrix, np.full(count + 1, -np.inf), upper, np.zeros(rows), np.full(rows, np.inf)
    )
    answer = highs.run(model)
    return answer.values, -answer.objective


def _reachable_bounds(lower: Array, upper: Array, reach: float) -> tuple[Array, Array]:
    """Return bounds, with ``reach`` where there is none."""
    return (
        np.where(np.isfinite(lower), lower, np.minimum(-reach, upper)),
        np.where(np.isfinite(upper), upper, np.maximum(reach, lower)),
    )


def _name_values(names: tuple[str, ...], values: Array) -> str:
    terms = [f"{name} = {value:g}" for name, value in zip(names[:5], values[:5], strict=True)]
    return ", ".join(terms) + (" …" if len(names) > 5 else "")
