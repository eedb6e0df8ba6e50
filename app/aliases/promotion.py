"""Whether an alias moves to what a job has just learned: only if that has earned it, unless asked otherwise."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.orm import Session

from app.aliases.schemas import AliasName
from app.aliases.service import locked, move
from app.db.tables import PosteriorRow
from app.http.schemas import StrictModel
from bco_core.estimates import Estimate

LEAST_ROWS = 20


class Promotion(StrictModel):
    """What to do with an alias once a job has succeeded."""

    alias: AliasName
    when: Literal["if_not_worse", "always", "never"] = Field(
        "if_not_worse",
        description="if_not_worse moves the alias only if the new posterior costs no more than the one that it names, "
        "on the same newest rows, which neither has learned from; never only says what would have happened",
    )


class Comparison(NamedTuple):
    """How much more the challenger costs than the incumbent on the same rows; negative is better."""

    incumbent_id: str
    rows: int
    difference: Estimate


def consider(
    session: Session,
    workspace: str,
    promotion: Promotion,
    challenger: PosteriorRow,
    comparison: Comparison | None,
    by: str | None,
) -> tuple[bool, str]:
    """Move the alias if the challenger may have it, in the transaction that stores it; and why, in a sentence.

    An alias that does not exist yet is made. It is locked while it is compared, so what is judged is what is replaced.
    """
    alias, row = promotion.alias, locked(session, workspace, promotion.alias)
    incumbent = None if row is None else session.get_one(PosteriorRow, row.posterior_id)
    earned, why = _earned(incumbent, challenger, comparison)
    if promotion.when == "never" or not (earned or promotion.when == "always"):
        stays = f"names {incumbent.id} still" if incumbent else "is not made"
        return False, f"the alias {alias} {stays}: {why}"
    told = f"the alias {alias} names {challenger.id} now: {why}"
    try:
        with session.begin_nested():
            move(session, workspace, alias, row, challenger.id, by, told)
    except sa.exc.IntegrityError:
        return False, f"the alias {alias} does not move: another made it at the same moment"
    return True, told


def _earned(
    incumbent: PosteriorRow | None, challenger: PosteriorRow, comparison: Comparison | None
) -> tuple[bool, str]:
    """Whether the challenger is not worse than the incumbent, as far as the same rows tell."""
    if incumbent is None:
        return True, "there was no such alias"
    if incumbent.problem_id != challenger.problem_id:
        return False, "the two posteriors are of different problems, so their costs cannot be compared"
    if comparison is None or comparison.incumbent_id != incumbent.id:
        return False, "the two posteriors were not compared on rows that neither has learned from"
    rows, (mean, error) = comparison.rows, (comparison.difference.mean, comparison.difference.standard_error)
    if rows < LEAST_ROWS or not math.isfinite(mean):
        return False, f"{rows} row(s) are too few to compare the two posteriors; at least {LEAST_ROWS} are needed"
    words = "more" if mean > 0 else "less"
    return mean <= 0, f"the new posterior costs {abs(mean):.3g} ± {error:.2g} {words} a row on the newest {rows} rows"
