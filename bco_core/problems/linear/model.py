"""A linear model some of whose numbers are uncertain: its specification by names, and its sparse matrices.

All problem kinds that are linear programs become a :class:`LinearModel`. This module reads kind ``linear``:

``{"sense": "minimize" or "maximize",
   "decisions": [{"name", "cost", "minimum", "maximum", "integer"}],
   "recourse": [{"name", "cost", "minimum", "maximum", "integer"}],
   "outcomes": [{"name", "minimum", "maximum"}],
   "rows": [{"name", "decisions": {z: t}, "recourse": {x: w}, "sense", "limit"}]}``

where a row reads  Σ t z + Σ w x  (sense)  limit.  Every cost, coefficient and limit is a number, or
``{"constant": c, "outcomes": {y: h}}`` for c + Σ h y. Decisions and recourse are at least zero unless they say
otherwise, and a null bound is no bound. A maximised objective is stored as its negative, which is minimised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import InvalidInput
from bco_core.problems.linear.affine import Matrix, Vector, matrix_of
from bco_core.solvers.linear_form import EQUAL, LEAST, MOST, Array
from bco_core.status import GAP, Gap

SENSES = {">=": LEAST, "=": EQUAL, "<=": MOST}
MAXIMUM_PARTS = {"decisions": 10_000, "recourse": 20_000, "outcomes": 200, "rows": 20_000}
# Coefficients of rows, and terms of uncertain numbers.
MAXIMUM_COEFFICIENTS, MAXIMUM_TERMS = 2_000_000, 200_000
LARGEST_NUMBER = 1e12
# Rows of the recourse in the form A x ≥ r, x ≥ 0 that dense kernels take: equalities and variables with two bounds
# count twice.
LARGEST_FORM = 200
# The largest model that TwoStageLinear takes.
_TWO_STAGE_PARTS = {"decisions": 200, "recourse": 1_000, "rows": 200}

# Place of a part in a specification.
Where = tuple[str | int, ...]
Case = Literal["right_hand_side", "objective", "general"]


@dataclass(frozen=True)
class LinearModel:
    """min c(y)'z + q(y)'x  over  T(y) z + W(y) x (senses) h(y),  bounds, and integers where marked.

    ``second_stage`` (m,) marks the rows that recourse must satisfy once the outcome is known; the others bind decisions
    alone. ``rows_at`` and ``recourse_at`` are the places of rows and recourse variables in the specification, () for
    those that it does not spell out; ``bounds_at`` is its list of decisions and the fields of their bounds.
    """

    cost: Vector
    recourse_cost: Vector
    technology: Matrix
    recourse: Matrix
    senses: NDArray[np.int64]
    limits: Vector
    second_stage: NDArray[np.bool_]
    lower: Array
    upper: Array
    integer: NDArray[np.bool_]
    recourse_lower: Array
    recourse_upper: Array
    recourse_integer: NDArray[np.bool_]
    lowest: Array
    highest: Array
    decision_names: tuple[str, ...]
    recourse_names: tuple[str, ...]
    outcome_names: tuple[str, ...]
    row_names: tuple[str, ...]
    rows_at: tuple[Where, ...]
    recourse_at: tuple[Where, ...]
    bounds_at: tuple[str, str, str] = ("decisions", "minimum", "maximum")
    maximize: bool = False
    gap: Gap = GAP

    @property
    def uncertain_rows(self) -> NDArray[np.bool_]:
        """Mark the rows (m,) that depend on an outcome."""
        uncertain: NDArray[np.bool_] = np.diff(self.limits.by_outcome.indptr) > 0
        uncertain[self.technology.places[:, 0]] = True
        uncertain[self.recourse.places[:, 0]] = True
        return uncertain

    def with_rows(self, which: NDArray[np.int64]) -> LinearModel:
        """Return the model with only these rows, in this order."""
        return replace(
            self,
            technology=self.technology.rows(which),
            recourse=self.recourse.rows(which),
            senses=self.senses[which],
            limits=Vector(self.limits.constant[which], self.limits.by_outcome[which]),
            second_stage=self.second_stage[which],
            row_names=tuple(self.row_names[row] for row in which),
            rows_at=tuple(self.rows_at[row] for row in which),
        )


def read_model(spec: dict[str, Any]) -> LinearModel:
    """Read a specification of kind ``linear``; InvalidInput names the place of what is wrong."""
    parts = {name: _parts(spec, name, name in ("decisions", "outcomes")) for name in MAXIMUM_PARTS}
    decisions, recourse, outcomes, rows = parts["decisions"], parts["recourse"], parts["outcomes"], parts["rows"]
    z, x, y = (index_names(parts[name], name) for name in ("decisions", "recourse", "outcomes"))
    sense = spec.get("sense") or "minimize"
    if sense not in ("minimize", "maximize"):
        raise InvalidInput("the sense must be minimize or maximize", ("sense",))
    sign = -1.0 if sense == "maximize" else 1.0
    reader = _Reader(y)
    lowest, highest = read_bounds(outcomes, "outcomes", None, LARGEST_NUMBER)
    cost = reader.vector([part.get("cost") for part in decisions], ("decisions", "cost"), sign)
    recourse_cost = reader.vector([part.get("cost") for part in recourse], ("recourse", "cost"), sign)
    technology, recourse_matrix = reader.matrix(rows, "decisions", z), reader.matrix(rows, "recourse", x)
    _check_row_names(rows)
    return LinearModel(
        cost,
        recourse_cost,
        technology,
        recourse_matrix,
        read_senses(rows, "rows"),
        reader.vector([_needed(row, "limit", index) for index, row in enumerate(rows)], ("rows", "limit")),
        np.asarray(np.diff(recourse_matrix.constant.indptr) > 0),
        *read_bounds(decisions, "decisions", 0.0, LARGEST_NUMBER),
        _integers(decisions, "decisions"),
        *read_bounds(recourse, "recourse", 0.0, LARGEST_NUMBER),
        _integers(recourse, "recourse"),
        lowest,
        highest,
        tuple(z),
        tuple(x),
        tuple(y),
        row_names(rows),
        tuple(("rows", index) for index in range(len(rows))),
        tuple(("recourse", index) for index in range(len(recourse))),
        maximize=sense == "maximize",
        gap=read_gap(spec, cost, recourse_cost),
    )


def cost_unit(*costs: Vector) -> float:
    """Return the largest unit cost where all are below one, else one: small costs need small gaps."""
    parts = chain.from_iterable((cost.constant, cost.by_outcome.data) for cost in costs)
    return min(float(np.abs(np.concatenate([*parts])).max(initial=0)), 1.0) or 1.0


def case_of(model: LinearModel) -> Case:
    """Return which problem class serves the model, the fastest one that can."""
    certain = model.technology.certain and model.recourse.certain
    second = model.second_stage
    if not len(model.recourse_names):
        rows_certain = certain and model.limits.certain
        return "objective" if rows_certain and not model.cost.certain else "general"
    costs_certain = model.cost.certain and model.recourse_cost.certain
    if not (certain and costs_certain and second.any()) or model.recourse_integer.any():
        return "general"
    if (model.uncertain_rows & ~second).any():
        return "general"
    small = (
        form_size(model.senses[second], model.recourse_lower, model.recourse_upper) <= LARGEST_FORM
        and int((~second).sum()) <= _TWO_STAGE_PARTS["rows"]
        and len(model.decision_names) <= _TWO_STAGE_PARTS["decisions"]
        and len(model.recourse_names) <= _TWO_STAGE_PARTS["recourse"]
    )
    return "right_hand_side" if small else "general"


def form_size(senses: NDArray[np.int64], lower: Array, upper: Array) -> int:
    """Count the rows of a recourse in the form A x ≥ r, x ≥ 0."""
    boxed = int((np.isfinite(lower) & np.isfinite(upper)).sum())
    return len(senses) + int((senses == EQUAL).sum()) + boxed


class _Reader:
    """Reader of numbers that may depend on outcomes."""

    def __init__(self, outcomes: dict[str, int]) -> None:
        self.outcomes = outcomes
        self.terms = 0

    def number(self, value: Any, where: Where, default: float | None = 0.0) -> tuple[float, list[tuple[int, float]]]:
        """Return the constant and the terms: each an outcome's index and its factor."""
        if type(value) is float and -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
            return value, []
        if value is None and default is not None:
            return default, []
        if not isinstance(value, dict):
            return read_number(value, where, LARGEST_NUMBER), []
        strange = next((name for name in value if name not in ("constant", "outcomes")), None)
        if strange is not None:
            raise InvalidInput("an uncertain number has only a constant and outcomes", (*where, strange))
        constant, terms = value.get("constant"), value.get("outcomes") or {}
        if not isinstance(terms, dict):
            raise InvalidInput('outcomes are written as {"name": factor}', (*where, "outcomes"))
        result = []
        for name, factor in terms.items():
            place = self.outcomes.get(name)
            if place is None:
                raise InvalidInput("there is no outcome of this name", (*where, "outcomes", name))
            result.append((place, read_number(factor, (*where, "outcomes", name), LARGEST_NUMBER)))
        self.terms += len(result)
        if self.terms > MAXIMUM_TERMS:
            raise InvalidInput(f"outcomes may appear in at most {MAXIMUM_TERMS:,} places", where)
        value = 0.0 if constant is None else read_number(constant, (*where, "constant"), LARGEST_NUMBER)
        return value, [(place, factor) for place, factor in result if factor]

    def vector(self, values: Sequence[Any], place: tuple[str, str], sign: float = 1.0) -> Vector:
        part, field = place
        constant = np.empty(len(values))
        terms: list[list[tuple[int, float]]] = []
        for index, value in enumerate(values):
            constant[index], own = self.number(value, (part, index, field))
            terms.append(own)
        return Vector(sign * constant, sign * self._by_outcome(terms))

    def matrix(self, rows: Sequence[dict[str, Any]], field: str, places: dict[str, int]) -> Matrix:
        columns: list[int] = []
        values: list[float] = []
        starts = [0]
        uncertain: list[tuple[int, int]] = []
        terms: list[list[tuple[int, float]]] = []
        for index, row in enumerate(rows):
            entries = row.get(field) or {}
            if not isinstance(entries, dict):
                raise InvalidInput('coefficients are written as {"name": number}', ("rows", index, field))
            for name, value in entries.items():
                column = places.get(name)
                if column is None:
                    raise InvalidInput("no part of the problem has this name", ("rows", index, field, name))
                constant, own = self.number(value, ("rows", index, field, name), None)
                if own:
                    uncertain.append((index, column))
                    terms.append(own)
                elif constant == 0:
                    continue
                columns.append(column)
                values.append(constant)
            starts.append(len(columns))
            if len(columns) > MAXIMUM_COEFFICIENTS:
                raise InvalidInput(
                    f"rows may have at most {MAXIMUM_COEFFICIENTS:,} coefficients", ("rows", index, field)
                )
        constant_part = sparse.csr_array(
            (np.array(values, dtype=np.float64), np.array(columns, dtype=np.int32), np.array(starts, dtype=np.int32)),
            shape=(len(rows), len(places)),
        )
        at = np.array(uncertain, dtype=np.int64).reshape(-1, 2)
        return matrix_of(constant_part, at, self._by_outcome(terms))

    def _by_outcome(self, terms: Sequence[Sequence[tuple[int, float]]]) -> sparse.csr_array:
        flat = list(chain.from_iterable(terms))
        starts = np.cumsum([0, *(len(own) for own in terms)])
        return sparse.csr_array(
            (np.array([factor for _, factor in flat]), np.array([place for place, _ in flat], dtype=np.int64), starts),
            shape=(len(terms), len(self.outcomes)),
        )


def _parts(spec: dict[str, Any], name: str, needed: bool) -> list[dict[str, Any]]:
    parts = spec.get(name) or []
    if needed and not parts:
        raise InvalidInput(f"{name} must not be empty", (name,))
    if not isinstance(parts, list) or len(parts) > MAXIMUM_PARTS[name]:
        raise InvalidInput(f"{name} must be a list of at most {MAXIMUM_PARTS[name]:,}", (name,))
    for index, part in enumerate(parts):
        if not isinstance(part, dict):
            raise InvalidInput("this must be an object with named fields", (name, index))
    return parts


def index_names(parts: Iterable[dict[str, Any]], name: str) -> dict[str, int]:
    """Return the position of each named part of a list."""
    places: dict[str, int] = {}
    for index, part in enumerate(parts):
        label = part.get("name")
        if not label or not isinstance(label, str) or label in places:
            raise InvalidInput("names must be present and unique", (name, index, "name"))
        places[label] = index
    return places


def row_names(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the names of rows; unnamed ones are numbered."""
    return tuple(row.get("name") or f"row {index + 1}" for index, row in enumerate(rows))


def _check_row_names(rows: Sequence[dict[str, Any]]) -> None:
    names: set[str] = set()
    for index, row in enumerate(rows):
        name = row.get("name")
        if name is not None and (not isinstance(name, str) or name in names):
            raise InvalidInput("names of rows must be unique", ("rows", index, "name"))
        names.add(name or "")


def read_number(value: Any, where: Where, largest: float = math.inf) -> float:
    """Read a finite number of at most this size."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput("this must be a finite number", where)
    if abs(value) > largest:
        raise InvalidInput(f"a number must be no larger than {largest:g}", where)
    return float(value)


def _needed(row: dict[str, Any], field: str, index: int) -> Any:
    if row.get(field) is None:
        raise InvalidInput("this must be a finite number", ("rows", index, field))
    return row[field]


def read_bounds(
    parts: Sequence[dict[str, Any]], name: str, default: float | None, largest: float = math.inf
) -> tuple[Array, Array]:
    """Read the bounds of variables or outcomes: an absent minimum is the default, a null one no bound."""
    lower, upper = np.full(len(parts), -np.inf), np.full(len(parts), np.inf)
    for index, part in enumerate(parts):
        low, high = part.get("minimum", default), part.get("maximum")
        if low is not None:
            lower[index] = read_number(low, (name, index, "minimum"), largest)
        if high is not None:
            upper[index] = read_number(high, (name, index, "maximum"), largest)
        if lower[index] > upper[index]:
            raise InvalidInput("the minimum is above the maximum", (name, index, "minimum"))
    return lower, upper


def read_senses(rows: Sequence[dict[str, Any]], name: str) -> NDArray[np.int64]:
    """Read the senses of rows."""
    for index, row in enumerate(rows):
        if row.get("sense") not in SENSES:
            raise InvalidInput("the sense must be one of <=, >= and =", (name, index, "sense"))
    return np.array([SENSES[row["sense"]] for row in rows], dtype=np.int64)


def _integers(parts: Sequence[dict[str, Any]], name: str) -> NDArray[np.bool_]:
    for index, part in enumerate(parts):
        if not isinstance(part.get("integer") or False, bool):
            raise InvalidInput("integer must be true or false", (name, index, "integer"))
    return np.array([bool(part.get("integer")) for part in parts], dtype=bool)


def read_gap(spec: dict[str, Any], *costs: Vector) -> Gap:
    """Read the optimality gap of a specification; the default is small compared with the unit costs."""
    defaults = {"relative": GAP.relative, "absolute": GAP.absolute * cost_unit(*costs)}
    values = []
    for name, default in defaults.items():
        value = spec.get(f"{name}_gap")
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InvalidInput("a gap is a number that is not negative, such as 1e-6", (f"{name}_gap",))
        values.append(float(value))
    return Gap(*values)
