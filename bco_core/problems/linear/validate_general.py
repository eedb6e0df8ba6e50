"""Whether a linear model has a best decision at all: what has none is refused before anything is learned."""

from __future__ import annotations

import time
from itertools import islice, product

import numpy as np

from bco_core import deadline
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.base import Status
from bco_core.problems.linear.first_stage import program_at
from bco_core.problems.linear.model import Model
from bco_core.problems.linear.recourse import Later
from bco_core.problems.linear.scenarios import OneByOne, Stages
from bco_core.problems.linear.validate_two_stage import named
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array

# How long a new problem is searched for a case that no recourse can mend; a prescription says when it meets one.
CHECK_SECONDS = 5.0
# Corners of the outcomes' bounds, and decisions, that are tried.
_CORNERS, _DECISIONS = 8, 6
# What outcomes without bounds are tried at, and decisions without bounds go up to.
_GUESSES, _REACH = (0.0, 1.0, 10.0, 1000.0, -1.0, -100.0), 1000.0


def has_decision(first: Model) -> None:
    """Refuse rows of decisions alone that none keeps."""
    program = program_at(first, np.zeros(len(first.lower)))
    found = highs.run(highs.model_of(*program.rows_and_bounds))
    if found.status is not Status.OPTIMAL:
        raise InvalidInput(
            "no decision satisfies all bounds and the rows without recourse, for all outcomes within their bounds",
            ("rows",),
        )
    values = found.values[first.integer]
    if np.abs(values - values.round()).max(initial=0) > 0:
        found = highs.run(highs.model_of(*program.rows_and_bounds, first.integer), CHECK_SECONDS)
        if found.status is Status.INFEASIBLE:
            raise InvalidInput("no decision in whole numbers satisfies all bounds and rows", ("rows",))


def examine(stages: Stages, recourse: Later) -> None:
    """Refuse a model without a decision or without a best one, and one with a case that no recourse mends.

    That no such case is found is no proof.
    """
    has_decision(stages.first)
    outcomes, bounded = _outcomes(stages.model)
    _has_best(stages, outcomes, bounded)
    try:
        with deadline.until(time.monotonic() + CHECK_SECONDS):
            _is_mended(stages, recourse, outcomes if bounded else outcomes[:1])
    except OutOfTime:
        # Either this search has had its time, or the caller has no more, or wants no long work begun.
        deadline.before_long_work()


def _outcomes(model: Model) -> tuple[Array, bool]:
    """Outcomes (n, d_y) to try, and whether they all may happen."""
    parts = (model.cost, model.recourse_cost, model.technology, model.recourse, model.limits)
    used = np.unique(np.concatenate([part.by_outcome.indices for part in parts]))
    low, high = np.zeros(len(model.lowest)), np.zeros(len(model.lowest))
    low[used], high[used] = model.lowest[used], model.highest[used]
    if np.isfinite(low).all() and np.isfinite(high).all():
        corners = np.array([*islice(product((0.0, 1.0), repeat=min(len(low), 3)), _CORNERS)])
        sides = np.tile(corners, (1, len(low) // corners.shape[1] + 1))[:, : len(low)]
        return np.concatenate([(low + high)[None] / 2, low + sides * (high - low)]), True
    return np.stack([np.clip(guess, low, high) for guess in _GUESSES]), False


def _has_best(stages: Stages, outcomes: Array, bounded: bool) -> None:
    """A least cost of decision and recourse together: for all outcomes that may happen, or some of those guessed."""
    first, later = stages.first, stages.later
    limits = np.concatenate([np.tile(first.limits.constant, (len(outcomes), 1)), later.limits.at(outcomes)], axis=1)
    refused: InvalidInput | None = None
    for outcome, answer in zip(outcomes, OneByOne.of_stages(stages).solve(outcomes, limits), strict=True):
        if answer.status is Status.OPTIMAL:
            if not bounded:
                return
            continue
        told = named(first.outcome_names, outcome)
        if answer.status is Status.UNBOUNDED:
            sentence = (
                f"the cost can fall without limit with outcome {told}: a decision or recourse needs a bound or a row"
            )
            refused = refused or InvalidInput(sentence, ("decisions",))
        else:
            sentence = (
                f"with outcome {told} no decision and recourse keep the rows: add a recourse that costs more but "
                "always works, or bound the outcomes"
            )
            refused = refused or InvalidInput(sentence, ("rows",))
        if bounded:
            break
    if refused is not None:
        raise refused


def _is_mended(stages: Stages, recourse: Later, outcomes: Array) -> None:
    """Some decisions at the edges of what is allowed, whatever they cost, with each of the outcomes."""
    first = stages.first
    if not len(stages.later.senses):
        return
    rng = np.random.default_rng(0)
    lower = np.where(np.isfinite(first.lower), first.lower, np.minimum(-_REACH, first.upper))
    upper = np.where(np.isfinite(first.upper), first.upper, np.maximum(_REACH, first.lower))
    program = program_at(first, np.zeros(len(lower)))
    _, matrix, least, most, _, _ = program.rows_and_bounds
    for _ in range(_DECISIONS):
        push = rng.normal(size=len(lower))
        answer = highs.run(highs.model_of(push, matrix, least, most, lower, upper))
        if answer.status is not Status.OPTIMAL:
            continue
        values, _ = recourse.plans(np.tile(answer.values, (len(outcomes), 1)), outcomes)
        worst = int(np.argmax(values))
        if np.isposinf(values[worst]):
            raise InvalidInput(
                f"there is not always a recourse: with decision {named(first.decision_names, answer.values)} and "
                f"outcome {named(first.outcome_names, outcomes[worst])} no recourse keeps the rows. Add a "
                "recourse that costs more but always works, or bound the outcomes",
                ("rows",),
            )
