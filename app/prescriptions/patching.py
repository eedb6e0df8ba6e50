"""Posteriors asked for a problem with other numbers than they were learned for: built once, and kept a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from app.db.tables import PosteriorRow
from app.http.errors import InvalidRequest
from app.prescriptions.cache import PosteriorCache
from app.prescriptions.memory import size_of
from app.problems import patch as patches
from bco_core import deadline
from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem

# What a patched problem takes of the cache's budget besides its arrays, in bytes: many small ones must not add up to
# more than is counted. And for each byte of its specification, which becomes objects.
_LEAST_BYTES, _BYTES_A_BYTE = 20_000, 20


@dataclass(frozen=True)
class PatchedProblem:
    """The problem that a request asks for, its specification, and what is to be said of how it differs from the one
    that the posterior was learned for; ``differs`` is None where a request has no patch."""

    problem: DecisionProblem
    spec: dict[str, Any]
    differs: list[dict[str, Any]] | None = None
    warnings: list[str] = field(default_factory=list)


def cached_patched_problem(
    cache: PosteriorCache, row: PosteriorRow, learned_for: DecisionProblem, patch: dict[str, Any] | None
) -> PatchedProblem:
    """The posterior's problem with a patch, from memory or built under the deadline in force."""
    if patch is None:
        return PatchedProblem(learned_for, row.problem)

    def make() -> tuple[PatchedProblem, int]:
        made = build_patched_problem(row, learned_for, patch)
        arrays = 0 if made.problem is learned_for else size_of(made.problem)
        return made, arrays + _LEAST_BYTES + _BYTES_A_BYTE * len(orjson.dumps(made.spec))

    return cache.get((row.id, "patch", patches.digest(patch)), make)


def build_patched_problem(
    row: PosteriorRow, learned_for: DecisionProblem, patch: dict[str, Any] | None
) -> PatchedProblem:
    """The posterior's problem with a patch; 422 where no problem can be built from it."""
    if patch is None:
        return PatchedProblem(learned_for, row.problem)
    spec, differs = patches.apply(row.problem, patch)
    deadline.check()
    problem = learned_for
    if differs:
        try:
            problem = build_problem(spec)
        except InvalidInput as error:
            where = (patches.PLACE, *patches.named(spec, error.where))
            raise InvalidRequest.at(where, str(error)) from None
    listed = [one.model_dump() for one in differs[: patches.MOST_LISTED]]
    return PatchedProblem(problem, spec, listed, [patches.warning(differs)])
