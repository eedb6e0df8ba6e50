"""Learning jobs that continue from an older posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from pydantic import Field
from sqlalchemy.orm import Session

from app.aliases.promotion import PromotionComparison
from app.aliases.service import real_id
from app.datasets.encoding import ContextEncoding
from app.datasets.service import count_rows
from app.db.tables import DatasetRow, PosteriorRow, ProblemRow
from app.http.errors import InvalidRequest
from app.http.rows import find
from app.http.schemas import StrictModel
from app.posteriors import service as posteriors
from app.posteriors.history import EncodedHistory, in_time, outcomes_of
from app.problems.schemas import outcome_names
from bco_core.data import Sample
from bco_core.distributions import CHAINS
from bco_core.inference.update import UpdateOptions, update
from bco_core.inference.vi.hyperparameters import recipe_for
from bco_core.posterior import Posterior
from bco_core.problems.registry import build_problem
from bco_core.progress import Progress

# Estimated speedup over starting over.
SPEEDUP = 5.0


class LearnOnOptions(StrictModel):
    """Continue from a posterior of the same problem and data set, to which rows have been appended since."""

    posterior_id: str = Field(
        description="id or alias of the posterior whose components are the start of the new members"
    )
    as_prior: bool = Field(False, description="use its components as the prior, too: the coherent Gibbs update")
    forgetting: float = Field(0.0, ge=0, le=1, description="share of that prior's weight to give up, from 0 to 1")


def check(session: Session, workspace: str, options: LearnOnOptions, problem: ProblemRow, dataset: DatasetRow) -> str:
    """Return the id of the posterior to continue from; refuse one that cannot be continued."""

    def refuse(detail: str) -> InvalidRequest:
        return InvalidRequest.at(("from_posterior", "posterior_id"), detail)

    previous = find(session, PosteriorRow, workspace, real_id(session, workspace, options.posterior_id))
    if previous is None:
        raise refuse("no posterior has this id or alias; GET /v1/posteriors lists them")
    if previous.problem_id != problem.id:
        raise refuse("the posterior was learned for another problem")
    if previous.dataset_id != dataset.id:
        raise refuse("the posterior was learned from another data set")
    if previous.description["family"] == CHAINS:
        raise refuse("only a posterior learned by auto or vi can be continued; start over without from_posterior")
    if dataset.revision <= posteriors.learned_revision(session, previous):
        raise refuse("the posterior has already learned from all rows of the data set; append rows first")
    if options.forgetting and not options.as_prior:
        raise InvalidRequest.at(("from_posterior", "forgetting"), "only a prior can be forgotten; set as_prior")
    return previous.id


@dataclass(frozen=True)
class PreviousPosterior:
    """A posterior to continue from; ``fresh`` (n,) marks the rows that it has not seen."""

    row: PosteriorRow
    posterior: Posterior
    fresh: torch.Tensor
    options: UpdateOptions


def read(
    session: Session, dataset: DatasetRow, table: pa.Table, revision: int, how: dict[str, Any], seed: int
) -> tuple[EncodedHistory, PreviousPosterior]:
    """Return all rows of a revision, encoded for the old posterior, and the posterior."""
    row = session.get_one(PosteriorRow, how["posterior_id"])
    known = count_rows(session, dataset.id, posteriors.learned_revision(session, row))
    values = outcomes_of(table, outcome_names(row.problem))
    encoding = ContextEncoding.of(row.columns, row.recipe)
    lookback = encoding.lookback
    state = None if row.recipe is None else row.recipe | {"revision": revision}
    if lookback is None or state is None:
        encoded = encoding.encode_table(table)
        usable = encoded.usable
        sample = Sample(torch.from_numpy(encoded.matrix[usable]), torch.from_numpy(values[usable]))
        rows = EncodedHistory(sample, state, len(encoded.matrix) - len(usable))
    else:
        past = lookback.past(table, revision)
        state["learned_until"] = past.last
        rows, usable = in_time(encoding, lookback, past, table, values, dataset.lead, lookback.recipe.season, state)
    posterior = posteriors.load(session, row)
    options = UpdateOptions(
        kl_weight=row.diagnostics["kl_weight"],
        policy=row.policy,
        prior_scale=recipe_for(posterior.predictor.kind).prior_scale,
        as_prior=how["as_prior"],
        forgetting=how["forgetting"],
        seed=seed,
    )
    return rows, PreviousPosterior(row, posterior, torch.from_numpy(usable >= known), options)


def learn(
    previous: PreviousPosterior, sample: Sample, progress: Progress
) -> tuple[Posterior, dict[str, Any], PromotionComparison]:
    """Return the new posterior, its diagnostics, and its comparison with the old one."""
    problem = build_problem(previous.row.problem)
    updated = update(problem, sample, previous.posterior, previous.fresh, previous.options, progress)
    rows, difference = updated.comparison.rows, updated.comparison.difference
    diagnostics = updated.diagnostics.to_json() | {
        "method": previous.row.diagnostics["method"],
        "inference": "vi",
        "inference_reason": "continued from an older posterior",
        "update": {
            "from_posterior": previous.row.id,
            "new_rows": int(previous.fresh.sum()),
            "compared_rows": rows,
            "difference": {"mean": difference.mean, "standard_error": difference.standard_error},
        },
    }
    return updated.posterior, diagnostics, PromotionComparison(previous.row.id, rows, difference)
