"""A posterior's problem with the numbers of a request's patch: built once, and kept in memory for a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from app.db.tables import PosteriorRow
from app.http.errors import InvalidRequest
from app.prescriptions.cache import PosteriorCache, size_of
from app.problems import patch as patches
from bco_core import deadlines
from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem

# Bytes of the cache's budget that a patched problem takes besides its arrays, and for each byte of its specification:
# many small ones must not add up to more than is counted.
_LEAST_BYTES, _BYTES_A_BYTE = 20_000, 20


@dataclass(frozen=True)
class PatchedProblem:
    """The problem to decide, its specification, and its differences from the one learned for.

    ``differs`` is None without a patch; ``warnings`` mention the differences in the answer.
    """

    problem: DecisionProblem
    spec: dict[str, Any]
    differs: list[dict[str, Any]] | None = None
    warnings: list[str] = field(default_factory=list)


def cached_patched_problem(
    cache: PosteriorCache, row: PosteriorRow, learned_for: DecisionProblem, patch: dict[str, Any] | None
) -> PatchedProblem:
    """Return the posterior's problem with a patch, from memory or built under the deadline in force."""
    if patch is None:
        return PatchedProblem(learned_for, row.problem)

    def make() -> tuple[PatchedProblem, int]:
        patched = build_patched_problem(row, learned_for, patch)
        arrays = 0 if patched.problem is learned_for else size_of(patched.problem)
        return patched, arrays + _LEAST_BYTES + _BYTES_A_BYTE * len(orjson.dumps(patched.spec))

    return cache.get((row.id, "patch", patches.digest(patch)), make)


def build_patched_problem(
    row: PosteriorRow, learned_for: DecisionProblem, patch: dict[str, Any] | None
) -> PatchedProblem:
    """Build the posterior's problem with a patch; 422 if the patched specification is invalid."""
    if patch is None:
        return PatchedProblem(learned_for, row.problem)
    spec, differs = patches.apply(row.problem, patch)
    deadlines.check()
    problem = learned_for
    if differs:
        try:
            problem = build_problem(spec)
        except InvalidInput as error:
            where = (patches.PLACE, *patches.named(spec, error.where))
            raise InvalidRequest.at(where, str(error)) from None
    differences = [one.model_dump() for one in differs[: patches.MOST_LISTED]]
    return PatchedProblem(problem, spec, differences, [patches.warning(differs)])
