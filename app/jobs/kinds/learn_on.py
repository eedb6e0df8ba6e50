"""Learning on from an old posterior: the part of a learning job that differs when it names one."""

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
from app.http.schemas import Request
from app.posteriors import service as posteriors
from app.posteriors.history import EncodedHistory, in_time, outcomes_of
from app.problems.schemas import outcome_names
from bco_core.data import Sample
from bco_core.distributions import CHAINS
from bco_core.inference.update import UpdateOptions, update
from bco_core.inference.vi.recipes import recipe_for
from bco_core.posterior import Posterior
from bco_core.problems.registry import build_problem
from bco_core.progress import Progress

# About how much less it takes than starting over.
SPEEDUP = 5.0


class FromPosterior(Request):
    """Learn on from a posterior of the same problem and data set, to which rows have been appended since."""

    posterior_id: str = Field(description="the posterior, or an alias of it, whose components members start from")
    as_prior: bool = Field(False, description="take its components as the prior, too: the coherent Gibbs update")
    forgetting: float = Field(0.0, ge=0, le=1, description="how much of that prior's say is given up")


def check(session: Session, workspace: str, asked: FromPosterior, problem: ProblemRow, dataset: DatasetRow) -> str:
    """The id of the posterior to learn on from; refuses what cannot be."""

    def refuse(detail: str) -> InvalidRequest:
        return InvalidRequest.at(("from_posterior", "posterior_id"), detail)

    previous = find(session, PosteriorRow, workspace, real_id(session, workspace, asked.posterior_id))
    if previous is None:
        raise refuse("no posterior has this id or alias; GET /v1/posteriors lists them")
    if previous.problem_id != problem.id:
        raise refuse("the posterior was learned for another problem")
    if previous.dataset_id != dataset.id:
        raise refuse("the posterior was learned from another data set")
    if previous.description["family"] == CHAINS:
        raise refuse("only a posterior learned by auto or vi can be learned on from; start over without from_posterior")
    if dataset.revision <= posteriors.learned_revision(session, previous):
        raise refuse("the data set has no rows that the posterior has not learned from; append some first")
    if asked.forgetting and not asked.as_prior:
        raise InvalidRequest.at(("from_posterior", "forgetting"), "only a prior can be forgotten; set as_prior")
    return previous.id


@dataclass(frozen=True)
class Previous:
    """A posterior to learn on from, and which rows (n,) it has not seen."""

    row: PosteriorRow
    posterior: Posterior
    fresh: torch.Tensor
    options: UpdateOptions


def read(
    session: Session, dataset: DatasetRow, table: pa.Table, revision: int, asked: dict[str, Any], seed: int
) -> tuple[EncodedHistory, Previous]:
    """All rows of a revision as the old posterior sees them."""
    row = session.get_one(PosteriorRow, asked["posterior_id"])
    known = count_rows(session, dataset.id, posteriors.learned_revision(session, row))
    values = outcomes_of(table, outcome_names(row.problem))
    encoding = ContextEncoding.of(row.columns, row.recipe)
    looking = encoding.looking
    state = None if row.recipe is None else row.recipe | {"revision": revision}
    if looking is None or state is None:
        encoded = encoding.encode_table(table)
        kept = encoded.usable
        sample = Sample(torch.from_numpy(encoded.matrix[kept]), torch.from_numpy(values[kept]))
        found = EncodedHistory(sample, state, len(encoded.matrix) - len(kept))
    else:
        past = looking.past(table, revision)
        state["learned_until"] = past.last
        found, kept = in_time(encoding, looking, past, table, values, dataset.lead, looking.recipe.season, state)
    posterior = posteriors.load(session, row)
    options = UpdateOptions(
        kl_weight=row.diagnostics["kl_weight"],
        policy=row.policy,
        prior_scale=recipe_for(posterior.predictor.kind).prior_scale,
        as_prior=asked["as_prior"],
        forgetting=asked["forgetting"],
        seed=seed,
    )
    return found, Previous(row, posterior, torch.from_numpy(kept >= known), options)


def learn(
    previous: Previous, sample: Sample, progress: Progress
) -> tuple[Posterior, dict[str, Any], PromotionComparison]:
    """The new posterior, what is told of it, and how it compares with the old one."""
    problem = build_problem(previous.row.problem)
    found = update(problem, sample, previous.posterior, previous.fresh, previous.options, progress)
    rows, difference = found.comparison.rows, found.comparison.difference
    told = found.diagnostics.to_json() | {
        "method": previous.row.diagnostics["method"],
        "inference": "vi",
        "inference_reason": "learned on from an older posterior",
        "update": {
            "from_posterior": previous.row.id,
            "new_rows": int(previous.fresh.sum()),
            "compared_rows": rows,
            "difference": {"mean": difference.mean, "standard_error": difference.standard_error},
        },
    }
    return found.posterior, told, PromotionComparison(previous.row.id, rows, difference)
