"""All ready-made kinds by name: a new one is a file with ``draft`` and a line here."""

from __future__ import annotations

from collections.abc import Callable

from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.linear.build import build_linear
from bco_core.problems.ready import (
    assignment,
    facility_location,
    knapsack,
    production,
    shortest_path,
    unit_commitment,
)
from bco_core.problems.ready.draft import ModelDraft, Spec

READY: dict[str, Callable[[Spec], ModelDraft]] = {
    "shortest_path": shortest_path.draft,
    "assignment": assignment.draft,
    "knapsack": knapsack.draft,
    "facility_location": facility_location.draft,
    "production": production.draft,
    "unit_commitment": unit_commitment.draft,
}


def compile_ready(spec: Spec) -> Spec:
    """Write a ready-made problem as a specification of kind ``linear``."""
    return _draft(spec).spec()


def build_ready(spec: Spec) -> DecisionProblem:
    """Build a ready-made problem; refusals name the places of its own specification."""
    draft = _draft(spec)
    try:
        return build_linear(draft.spec())
    except InvalidInput as error:
        raise InvalidInput(str(error), draft.place(error.where)) from None


def _draft(spec: Spec) -> ModelDraft:
    draft = READY[spec["kind"]](spec)
    draft.gaps = {name: spec[name] for name in ("relative_gap", "absolute_gap") if spec.get(name) is not None}
    return draft
