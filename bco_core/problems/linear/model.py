"""Any linear model in which some numbers are uncertain, by names, and the sparse matrices it stands for.

``{"sense": "minimize" or "maximize",
   "decisions": [{"name", "cost", "minimum", "maximum", "integer"}],
   "recourse": [{"name", "cost", "minimum", "maximum", "integer"}],
   "outcomes": [{"name", "minimum", "maximum"}],
   "rows": [{"name", "decisions": {z: t}, "recourse": {x: w}, "sense", "limit"}]}``

where a row reads  Σ t z + Σ w x  (sense)  limit.  Every cost, coefficient and limit is a number, or
``{"constant": c, "outcomes": {y: h}}`` for c + Σ h y. Decisions and recourse are at least zero unless they say
otherwise, and a null bound is no bound. What is maximised is kept as its negative, which is minimised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import InvalidInput
from bco_core.problems.linear.affine import Matrix, Vector, matrix_of
from bco_core.problems.linear.description import LARGEST_FORM, SENSES, Where
from bco_core.solvers.linear_form import EQUAL, Array
from bco_core.status import GAP, Gap

MOST = {"decisions": 10_000, "recourse": 20_000, "outcomes": 200, "rows": 20_000}
# Coefficients of rows, and terms of uncertain numbers.
MOST_NUMBERS, MOST_TERMS = 2_000_000, 200_000
LARGEST = 1e12
# What the fast two-stage problem takes.
_FAST = {"decisions": 200, "recourse": 1_000, "rows": 200}

Case = Literal["right_hand_side", "objective", "general"]

__all__ = ["Case", "Matrix", "Model", "Vector", "case_of", "read_model"]


@dataclass(frozen=True)
class Model:
    """min c(y)'z + q(y)'x  over  T(y) z + W(y) x (senses) h(y),  bounds, and whole numbers where marked.

    ``rows_at`` are the rows' places in the specification's list of them.
    """

    cost: Vector
    recourse_cost: Vector
    technology: Matrix
    recourse: Matrix
    senses: NDArray[np.int64]
    limits: Vector
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
    rows_at: NDArray[np.int64]
    maximize: bool = False
    gap: Gap = GAP

    @property
    def later(self) -> NDArray[np.bool_]:
        """The rows (m,) in which recourse takes part; the others are rules for decisions alone."""
        return np.asarray(np.diff(self.recourse.constant.indptr) > 0)

    @property
    def uncertain_rows(self) -> NDArray[np.bool_]:
        """The rows (m,) in which an outcome takes part."""
        found: NDArray[np.bool_] = np.diff(self.limits.by_outcome.indptr) > 0
        found[self.technology.places[:, 0]] = True
        found[self.recourse.places[:, 0]] = True
        return found


def read_model(spec: dict[str, Any]) -> Model:
    """The matrices of a specification; what does not fit is refused with its place in the specification."""
    parts = {name: _parts(spec, name, name in ("decisions", "outcomes")) for name in MOST}
    decisions, recourse, outcomes, rows = parts["decisions"], parts["recourse"], parts["outcomes"], parts["rows"]
    z, x, y = (_places(parts[name], name) for name in ("decisions", "recourse", "outcomes"))
    sense = spec.get("sense") or "minimize"
    if sense not in ("minimize", "maximize"):
        raise InvalidInput("the sense must be minimize or maximize", ("sense",))
    sign = -1.0 if sense == "maximize" else 1.0
    reader = _Reader(y)
    lowest, highest = _bounds(outcomes, "outcomes", None)
    cost = reader.vector([part.get("cost") for part in decisions], ("decisions", "cost"), sign)
    later_cost = reader.vector([part.get("cost") for part in recourse], ("recourse", "cost"), sign)
    return Model(
        cost,
        later_cost,
        reader.matrix(rows, "decisions", z),
        reader.matrix(rows, "recourse", x),
        _senses(rows),
        reader.vector([_needed(row, "limit", index) for index, row in enumerate(rows)], ("rows", "limit")),
        *_bounds(decisions, "decisions", 0.0),
        _whole(decisions, "decisions"),
        *_bounds(recourse, "recourse", 0.0),
        _whole(recourse, "recourse"),
        lowest,
        highest,
        tuple(z),
        tuple(x),
        tuple(y),
        _row_names(rows),
        np.arange(len(rows)),
        sense == "maximize",
        Gap(_gap(spec, "relative", GAP.relative), _gap(spec, "absolute", GAP.absolute * _cost_unit(cost, later_cost))),
    )


def _cost_unit(*costs: Vector) -> float:
    """The largest cost of a unit of anything where that is below one: a gap must be small beside small costs."""
    parts = chain.from_iterable((cost.constant, cost.by_outcome.data) for cost in costs)
    return min(float(np.abs(np.concatenate([*parts])).max(initial=0)), 1.0) or 1.0


def case_of(model: Model) -> Case:
    """Which of the problems can serve the model: the first that can is the quickest."""
    certain = model.technology.certain and model.recourse.certain
    later = model.later
    if not len(model.recourse_names):
        rows_certain = certain and model.limits.certain
        return "objective" if rows_certain and not model.cost.certain else "general"
    costs_certain = model.cost.certain and model.recourse_cost.certain
    if not (certain and costs_certain and later.any()) or model.recourse_integer.any():
        return "general"
    if (model.uncertain_rows & ~later).any():
        return "general"
    boxed = int((np.isfinite(model.recourse_lower) & np.isfinite(model.recourse_upper)).sum())
    form = int(later.sum()) + int((model.senses[later] == EQUAL).sum()) + boxed
    small = (
        form <= LARGEST_FORM
        and int((~later).sum()) <= _FAST["rows"]
        and len(model.decision_names) <= _FAST["decisions"]
        and len(model.recourse_names) <= _FAST["recourse"]
    )
    return "right_hand_side" if small else "general"


class _Reader:
    """Reads numbers that may depend on outcomes."""

    def __init__(self, outcomes: dict[str, int]) -> None:
        self.outcomes = outcomes
        self.terms = 0

    def number(self, value: Any, where: Where, default: float | None = 0.0) -> tuple[float, list[tuple[int, float]]]:
        """The constant, and what outcomes add: their numbers and factors."""
        if type(value) is float and -LARGEST <= value <= LARGEST:
            return value, []
        if value is None and default is not None:
            return default, []
        if not isinstance(value, dict):
            return _number(value, where), []
        strange = next((name for name in value if name not in ("constant", "outcomes")), None)
        if strange is not None:
            raise InvalidInput("a number that depends on outcomes has a constant and outcomes only", (*where, strange))
        constant, terms = value.get("constant"), value.get("outcomes") or {}
        if not isinstance(terms, dict):
            raise InvalidInput('outcomes are written as {"name": factor}', (*where, "outcomes"))
        found = []
        for name, factor in terms.items():
            place = self.outcomes.get(name)
            if place is None:
                raise InvalidInput("there is no outcome of this name", (*where, "outcomes", name))
            found.append((place, _number(factor, (*where, "outcomes", name))))
        self.terms += len(found)
        if self.terms > MOST_TERMS:
            raise InvalidInput(f"outcomes may take part in {MOST_TERMS:,} places at most", where)
        kept = [(place, factor) for place, factor in found if factor]
        return (0.0 if constant is None else _number(constant, (*where, "constant"))), kept

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
                    raise InvalidInput("there is nothing of this name to refer to", ("rows", index, field, name))
                constant, own = self.number(value, ("rows", index, field, name), None)
                if own:
                    uncertain.append((index, column))
                    terms.append(own)
                elif constant == 0:
                    continue
                columns.append(column)
                values.append(constant)
            starts.append(len(columns))
            if len(columns) > MOST_NUMBERS:
                raise InvalidInput(f"rows may have {MOST_NUMBERS:,} coefficients at most", ("rows", index, field))
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
    if not isinstance(parts, list) or len(parts) > MOST[name]:
        raise InvalidInput(f"{name} must be a list of {MOST[name]:,} at most", (name,))
    for index, part in enumerate(parts):
        if not isinstance(part, dict):
            raise InvalidInput("fields by their names are needed here", (name, index))
    return parts


def _places(parts: Iterable[dict[str, Any]], name: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, part in enumerate(parts):
        label = part.get("name")
        if not label or not isinstance(label, str) or label in places:
            raise InvalidInput("names must be given and all different", (name, index, "name"))
        places[label] = index
    return places


def _row_names(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    names: set[str] = set()
    for index, row in enumerate(rows):
        name = row.get("name")
        if name is not None and (not isinstance(name, str) or name in names):
            raise InvalidInput("rows that have names need different ones", ("rows", index, "name"))
        names.add(name or "")
    return tuple(row.get("name") or f"row {index + 1}" for index, row in enumerate(rows))


def _number(value: Any, where: Where) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput("a finite number is needed here", where)
    if abs(value) > LARGEST:
        raise InvalidInput(f"a number must be no larger than {LARGEST:g}", where)
    return float(value)


def _needed(row: dict[str, Any], field: str, index: int) -> Any:
    if row.get(field) is None:
        raise InvalidInput("a finite number is needed here", ("rows", index, field))
    return row[field]


def _bounds(parts: Sequence[dict[str, Any]], name: str, default: float | None) -> tuple[Array, Array]:
    """Bounds, where an absent minimum is the default and a null one is no bound."""
    lower, upper = np.full(len(parts), -np.inf), np.full(len(parts), np.inf)
    for index, part in enumerate(parts):
        low, high = part.get("minimum", default), part.get("maximum")
        if low is not None:
            lower[index] = _number(low, (name, index, "minimum"))
        if high is not None:
            upper[index] = _number(high, (name, index, "maximum"))
        if lower[index] > upper[index]:
            raise InvalidInput("the minimum is above the maximum", (name, index, "minimum"))
    return lower, upper


def _senses(rows: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    for index, row in enumerate(rows):
        if row.get("sense") not in SENSES:
            raise InvalidInput("the sense must be one of <=, >= and =", ("rows", index, "sense"))
    return np.array([SENSES[row["sense"]] for row in rows], dtype=np.int64)


def _whole(parts: Sequence[dict[str, Any]], name: str) -> NDArray[np.bool_]:
    for index, part in enumerate(parts):
        if not isinstance(part.get("integer") or False, bool):
            raise InvalidInput("integer is true or false", (name, index, "integer"))
    return np.array([bool(part.get("integer")) for part in parts], dtype=bool)


def _gap(spec: dict[str, Any], name: str, default: float) -> float:
    value = spec.get(f"{name}_gap")
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput("a gap is a number that is not negative, such as 1e-6", (f"{name}_gap",))
    return float(value)
