"""Move an alias to a job's new posterior, by default only if that costs no more than the current one."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.orm import Session

from app.aliases.schemas import AliasName
from app.aliases.service import lock_alias, move
from app.db.tables import PosteriorRow
from app.http.schemas import StrictModel
from bco_core.estimates import Estimate

LEAST_ROWS = 20


class Promotion(StrictModel):
    """Which alias to move once a job has succeeded, and when."""

    alias: AliasName
    when: Literal["if_not_worse", "always", "never"] = Field(
        "if_not_worse",
        description="if_not_worse moves the alias only if the new posterior costs no more than the current one on the "
        "same newest rows, which neither was learned from; never only reports the comparison",
    )


class PromotionComparison(NamedTuple):
    """Extra cost of the challenger over the incumbent on the same rows; negative is better."""

    incumbent_id: str
    rows: int
    difference: Estimate


def consider(
    session: Session,
    workspace: str,
    promotion: Promotion,
    challenger: PosteriorRow,
    comparison: PromotionComparison | None,
    by: str | None,
) -> tuple[bool, str]:
    """Move the alias to the challenger if that is allowed; return whether it moved, and why in a sentence.

    This happens in the transaction that stores the challenger. A new alias is created. An existing one is locked, so
    that it cannot move between comparison and move.
    """
    alias, row = promotion.alias, lock_alias(session, workspace, promotion.alias)
    incumbent = None if row is None else session.get_one(PosteriorRow, row.posterior_id)
    earned, why = _judge_challenger(incumbent, challenger, comparison)
    if promotion.when == "never" or not (earned or promotion.when == "always"):
        stays = f"still names {incumbent.id}" if incumbent else "is not created"
        return False, f"the alias {alias} {stays}: {why}"
    sentence = f"the alias {alias} now names {challenger.id}: {why}"
    try:
        with session.begin_nested():
            move(session, workspace, alias, row, challenger.id, by, sentence)
    except sa.exc.IntegrityError:
        return False, f"the alias {alias} does not move: another request created it at the same moment"
    return True, sentence


def _judge_challenger(
    incumbent: PosteriorRow | None, challenger: PosteriorRow, comparison: PromotionComparison | None
) -> tuple[bool, str]:
    """Return whether the challenger costs no more than the incumbent on the same rows, and why."""
    if incumbent is None:
        return True, "there was no such alias"
    if incumbent.problem_id != challenger.problem_id:
        return False, "the two posteriors are of different problems, so their costs cannot be compared"
    if comparison is None or comparison.incumbent_id != incumbent.id:
        return False, "the two posteriors were not compared on rows that neither was learned from"
    rows, (mean, error) = comparison.rows, (comparison.difference.mean, comparison.difference.standard_error)
    if rows < LEAST_ROWS or not math.isfinite(mean):
        return False, f"{rows} row(s) are too few to compare the two posteriors; at least {LEAST_ROWS} are needed"
    words = "more" if mean > 0 else "less"
    return mean <= 0, f"the new posterior costs {abs(mean):.3g} ± {error:.2g} {words} a row on the newest {rows} rows"
