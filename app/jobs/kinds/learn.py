"""Learn a posterior for a problem from a data set."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session

from app.datasets.encoding import ContextEncoding
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, PosteriorRow, ProblemRow
from app.http.errors import InvalidRequest, of_core
from app.http.rows import find
from app.http.schemas import Body, Name, PolicyName, Seed, TimeLimit
from app.ids import sibling_id
from app.jobs import queue
from app.jobs.kinds.base import Checkpoint, Draft, JobKind, Part, Store
from app.posteriors import service as posteriors
from app.posteriors.options import AutoPosterior, PosteriorSpec, PredictorSpec, learning_options
from app.problems.schemas import outcome_names
from app.problems.service import MISSING as NO_PROBLEM
from app.settings import get_settings
from bco_core.data import Arrays, Sample
from bco_core.errors import InvalidInput
from bco_core.inference.learn import MINIMUM_ROWS, Learning, estimate, stored_vectors
from bco_core.inference.options import LearningOptions
from bco_core.posterior import Posterior, digest
from bco_core.problems.registry import build_problem
from bco_core.progress import Progress


class NewJob(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "bakery", "problem_id": "prob_DEMO", "dataset_id": "data_DEMO", "seed": 7}]
        }
    )

    kind: Literal["learn"] = "learn"
    name: Name = Field("", validate_default=False, description="carried over to the posterior")
    problem_id: str
    dataset_id: str
    predictor: PredictorSpec = PredictorSpec()
    posterior: PosteriorSpec = AutoPosterior()
    policy: PolicyName | None = Field(None, description="prescribe's default; by default what held-out rows recommend")
    seed: Seed = 0
    time_limit_seconds: TimeLimit | None = Field(
        None, description="stop computing after so long and fail; by default as long as the service allows"
    )

    def learning_options(self) -> LearningOptions:
        return learning_options(self.predictor, self.posterior, self.policy, self.seed)


def check(workspace: str, request: NewJob) -> Draft:
    """Refuse what cannot be learned, or would make a larger posterior than the service allows."""
    with transaction() as session:
        problem = find(session, ProblemRow, workspace, request.problem_id)
        if problem is None:
            raise InvalidRequest.at(("problem_id",), NO_PROBLEM)
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
    _check_rows(problem, dataset)
    columns = ContextEncoding.of(dataset.columns).width
    options, learned_for = request.learning_options(), build_problem(problem.spec)
    try:
        vectors = options.particles + stored_vectors(learned_for, options, dataset.rows)
        seconds = estimate(learned_for, options, dataset.rows, columns)
    except InvalidInput as error:
        raise of_core(error) from None
    _check_size(options.predictor.size(columns, learned_for.outcome_dim), vectors, request.posterior.limits())
    return Draft(
        name=request.name or problem.name,
        problem_id=problem.id,
        dataset_id=dataset.id,
        spec=request.model_dump(exclude={"kind", "name", "problem_id", "dataset_id"}),
        seconds=seconds,
    )


def _check_rows(problem: ProblemRow, dataset: DatasetRow) -> None:
    outcomes = [column["name"] for column in dataset.columns if column["role"] == "outcome"]
    needed = outcome_names(problem.spec)
    if not set(needed) <= set(outcomes):
        detail = (
            f"the problem needs the outcome column(s) {', '.join(needed)}, and the data set's outcomes are "
            f"{', '.join(outcomes)}; rename the problem's outcomes or upload the data with these"
        )
        raise InvalidRequest.at(("dataset_id",), detail)
    if dataset.rows < MINIMUM_ROWS:
        detail = f"learning needs at least {MINIMUM_ROWS} rows, and the data set has {dataset.rows}"
        raise InvalidRequest.at(("dataset_id",), detail)


def _check_size(parameters: int, vectors: int, asked: dict[str, int]) -> None:
    """Bound a posterior of so many vectors of so many parameters, and what was asked for of members and particles."""
    settings = get_settings()
    for field, what, value, limit in (
        (("predictor", "hidden"), "parameters", parameters, settings.max_parameters),
        (("posterior", "members"), "members", asked.get("members", 0), settings.max_members),
        (("posterior", "particles"), "particles", asked.get("particles", 0), settings.max_particles),
        (("posterior", "particles"), "posterior_mb", 4e-6 * parameters * vectors, settings.max_posterior_mb),
    ):
        if value > limit:
            words = what.replace("posterior_mb", "MB a posterior")
            raise InvalidRequest.at(field, f"at most {limit} {words} (BCO_MAX_{what.upper()})")


@dataclass(frozen=True)
class Given:
    """A job, what it learns for and from, and how."""

    job: JobRow
    problem: ProblemRow
    dataset: DatasetRow
    learning: Learning


def read(job: JobRow) -> Given:
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        table = read_table(session, dataset.id)
    request = NewJob(problem_id=problem.id, dataset_id=dataset.id, **job.spec)
    contexts = torch.from_numpy(ContextEncoding.of(dataset.columns).encode_table(table))
    columns = [torch.tensor(table.column(name).to_numpy()) for name in outcome_names(problem.spec)]
    sample = Sample(contexts, torch.stack(columns, dim=1))
    return Given(job, problem, dataset, Learning.of(build_problem(problem.spec), sample, request.learning_options()))


def split(given: Given, progress: Progress) -> list[Part]:
    progress(0.0, f"learning from {given.dataset.rows} rows")
    return [Part(part.work, _to_bytes(part.data)) for part in given.learning.split(progress)]


def work(given: Given, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """Compute a part from wherever it is."""
    return _to_bytes(given.learning.work(_to_arrays(data), progress, lambda part: checkpoint(_to_bytes(part))))


def join(given: Given, results: Sequence[bytes], progress: Progress) -> Store:
    learned = given.learning.join([_to_arrays(result) for result in results], progress)
    diagnostics = learned.diagnostics.to_json()
    return storing(given.job, given.problem, given.dataset, learned.posterior, diagnostics)


def storing(
    job: JobRow, problem: ProblemRow, dataset: DatasetRow, posterior: Posterior, diagnostics: dict[str, Any]
) -> Store:
    """What writes a job's posterior."""
    description, arrays = posterior.to_arrays()
    content = digest(description, arrays)

    def store(session: Session) -> None:
        # Made here, because a row that an outage has kept from being written belongs to its failed transaction.
        row = PosteriorRow(
            id=sibling_id(job.id, "post"),
            workspace=job.workspace,
            job_id=job.id,
            problem_id=problem.id,
            dataset_id=dataset.id,
            name=job.name,
            problem=problem.spec,
            columns=dataset.columns,
            description=description,
            diagnostics=diagnostics,
            policy=diagnostics["policy"],
            digest=content,
            particles=len(posterior.particles),
        )
        posteriors.add(session, row, arrays)

    return store


def _to_bytes(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _to_arrays(data: bytes) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        return dict(loaded)


LEARN = JobKind(
    name="learn",
    queue=queue.COMPUTING,
    request=NewJob,
    check=check,
    read=read,
    split=split,
    work=work,
    join=join,
    makes_posterior=True,
)
