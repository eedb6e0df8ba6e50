"""Uncertain rows without recourse must hold for every outcome: replace them by certain rows for the worst outcomes.

For a decision, a row is linear in the outcomes, so its worst case lies at their bounds. Where outcomes change the limit
alone, one worst limit serves all decisions; where they change coefficients, the row is repeated for every corner.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from scipy import sparse

from bco_core.errors import InvalidInput
from bco_core.problems.linear.affine import Matrix, Vector, above, matrix_of, stacked
from bco_core.problems.linear.model import LinearModel
from bco_core.solvers.linear_form import EQUAL, Array

# Outcomes that may change the coefficients of one row without recourse: it becomes two to this power rows.
MOST_OUTCOMES = 6
_MEND = "give it a recourse that can satisfy it at a cost"


def with_robust_rows(model: LinearModel) -> LinearModel:
    """Return the model with certain rows in place of uncertain rows without recourse, before the others."""
    alone = np.flatnonzero(~model.second_stage)
    uncertain = model.uncertain_rows
    if not uncertain[alone].any():
        return model
    changed = np.zeros(len(model.senses), dtype=bool)
    changed[model.technology.places[:, 0]] = True
    parts: list[Array] = []
    kept: list[int] = []
    for row in alone.tolist():
        corners = _corners(model, row, bool(changed[row])) if uncertain[row] else np.zeros((1, len(model.lowest)))
        parts.append(corners)
        kept += [row] * len(corners)
    rows = np.array(kept, dtype=np.int64)
    each = model.with_rows(rows)
    outcomes = np.concatenate(parts)
    added = np.asarray(each.limits.by_outcome.multiply(outcomes).sum(axis=1)).ravel()
    certain = replace(
        each,
        technology=_at(each.technology, outcomes),
        limits=Vector(each.limits.constant + added, sparse.csr_array(each.limits.by_outcome.shape)),
    )
    return _stack(certain, model.with_rows(np.flatnonzero(model.second_stage)))


def _at(matrix: Matrix, outcomes: Array) -> Matrix:
    """Return the certain matrix whose every row is evaluated at its own outcome (rows, d_y)."""
    added = np.asarray(matrix.by_outcome.multiply(outcomes[matrix.places[:, 0]]).sum(axis=1)).ravel()
    certain = matrix.with_entries(matrix.constant.data[matrix.at_entry] + added)
    return matrix_of(certain, np.empty((0, 2), dtype=np.int64), matrix.by_outcome[:0])


def _stack(top: LinearModel, below: LinearModel) -> LinearModel:
    return replace(
        below,
        technology=above(top.technology, below.technology),
        recourse=above(top.recourse, below.recourse),
        senses=np.concatenate([top.senses, below.senses]),
        limits=stacked(top.limits, below.limits),
        second_stage=np.concatenate([top.second_stage, below.second_stage]),
        row_names=top.row_names + below.row_names,
        rows_at=top.rows_at + below.rows_at,
    )


def _corners(model: LinearModel, row: int, changed: bool) -> Array:
    """Return the outcomes (corners, d_y) for which a row must hold."""
    name, where = model.row_names[row], model.rows_at[row]
    limit = model.limits.by_outcome[[row]].toarray()[0]
    slopes = model.technology.by_outcome[np.flatnonzero(model.technology.places[:, 0] == row)].toarray()
    named = np.flatnonzero((limit != 0) | (slopes != 0).any(axis=0))
    if model.senses[row] == EQUAL and ((model.lowest < model.highest)[named]).any():
        raise InvalidInput(
            f"'{name}' is an equality that depends on outcomes and has no recourse: no decision satisfies it for all "
            f"outcomes; {_MEND}",
            where,
        )
    if not changed:
        # The worst limit of sense ≤ is the smallest.
        low = (limit > 0) == (model.senses[row] < 0)
        corner = np.where(limit != 0, np.where(low, model.lowest, model.highest), 0.0)
        corners = corner[None]
    else:
        if len(named) > MOST_OUTCOMES:
            raise InvalidInput(
                f"'{name}' depends on more than {MOST_OUTCOMES} outcomes and has no recourse; {_MEND}",
                where,
            )
        corners = np.zeros((2 ** len(named), len(limit)))
        corners[:, named] = np.array([*product(*zip(model.lowest[named], model.highest[named], strict=True))])
    if not np.isfinite(corners).all():
        missing = next(index for index in named.tolist() if not np.isfinite(corners[:, index]).all())
        raise InvalidInput(
            f"'{name}' depends on {model.outcome_names[missing]}, which has no bounds, and has no recourse: no "
            f"decision satisfies it for all outcomes; bound the outcome, or {_MEND}",
            where,
        )
    return corners
