"""Learn a posterior for a problem from a data set."""

from __future__ import annotations

import io
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session

from app.aliases.promotion import Promotion, PromotionComparison, consider
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import digest_of, read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, PosteriorRow, ProblemRow
from app.http.errors import InvalidRequest, of_core
from app.http.rows import find
from app.http.schemas import Body, Name, PolicyName, Seed, TimeLimit
from app.ids import sibling_id
from app.jobs import queue
from app.jobs.kinds import learn_on
from app.jobs.kinds.base import Checkpoint, Draft, JobKind, Part, Store
from app.jobs.kinds.learn_on import FromPosterior, Previous
from app.posteriors import history
from app.posteriors import service as posteriors
from app.posteriors.history import EncodedHistory, Features, outcomes_of
from app.posteriors.options import AutoInference, InferenceSpec, PredictorSpec, learning_options
from app.problems.schemas import outcome_names
from app.problems.service import MISSING as NO_PROBLEM
from app.settings import get_settings
from bco_core.data import Arrays
from bco_core.errors import InvalidInput
from bco_core.inference.learn import MINIMUM_ROWS, Learning, estimate, stored_vectors
from bco_core.inference.options import LearningOptions
from bco_core.posterior import Posterior, without_particles
from bco_core.problems.base import Outline
from bco_core.problems.registry import PROBLEMS, build_problem, completed
from bco_core.progress import Progress

# What numbers depend on.
_COMPUTES_WITH = ("bco-service", "torch", "numpy", "lightgbm", "highspy")


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
    inference: InferenceSpec = AutoInference()
    policy: PolicyName | None = Field(None, description="prescribe's default; by default what held-out rows recommend")
    features: Features = Field("auto", description=history.DESCRIPTION)
    from_posterior: FromPosterior | None = Field(
        None,
        description="learn on from an older posterior, with its predictor and features, instead of starting over",
    )
    seed: Seed = 0
    promote: Promotion | None = Field(None, description="an alias to move to the posterior once it is there")
    time_limit_seconds: TimeLimit | None = Field(
        None, description="stop computing after so long and fail; by default as long as the service allows"
    )

    def learning_options(self) -> LearningOptions:
        return learning_options(self.predictor, self.inference, self.policy, self.seed)


class _Outline(NamedTuple):
    """A problem that is not built: that may take seconds, and it was tried when the problem was created."""

    outcome_dim: int
    differentiable: bool


def outline_of(spec: dict[str, Any]) -> Outline:
    return _Outline(len(outcome_names(spec)), PROBLEMS[spec["kind"]].differentiable)


def check(workspace: str, request: NewJob) -> Draft:
    """Refuse what cannot be learned, or would make a larger posterior than the service allows."""
    with transaction() as session:
        problem = find(session, ProblemRow, workspace, request.problem_id)
        if problem is None:
            raise InvalidRequest.at(("problem_id",), NO_PROBLEM)
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
        previous = None
        if request.from_posterior is not None:
            previous = learn_on.check(session, workspace, request.from_posterior, problem, dataset)
    needed = outcome_names(problem.spec)
    check_rows(needed, dataset)
    columns = history.planned_width(dataset, request.features, needed)
    warnings = _check_reach(problem.spec, dataset, needed)
    learned_for = outline_of(problem.spec)
    try:
        options = request.learning_options()
        vectors = options.particles + stored_vectors(learned_for, options, dataset.rows)
        seconds = estimate(learned_for, options, dataset.rows, columns)
    except InvalidInput as error:
        raise of_core(error) from None
    _check_size(options.predictor.size(columns, learned_for.outcome_dim), vectors, request.inference.limits())
    spec = request.model_dump(exclude={"kind", "name", "problem_id", "dataset_id"}) | {"revision": dataset.revision}
    if previous is not None:
        # An alias may move before the job begins.
        spec["from_posterior"]["posterior_id"] = previous
        seconds /= learn_on.SPEEDUP
    return Draft(
        name=request.name or problem.name,
        problem_id=problem.id,
        dataset_id=dataset.id,
        spec=spec,
        seconds=seconds,
        warnings=warnings,
    )


def _check_reach(spec: dict[str, Any], dataset: DatasetRow, needed: list[str]) -> list[str]:
    """Refuse what no decision could have kept in this history; sentences for the job's log say what will be hard."""
    reach = PROBLEMS[spec["kind"]].reach
    if reach is None:
        return []
    with transaction() as session:
        table = read_table(session, dataset.id, dataset.revision)
    try:
        return reach(spec, outcomes_of(table, needed))
    except InvalidInput as error:
        raise InvalidRequest.at(("problem_id",), str(error)) from None


def check_rows(needed: list[str], dataset: DatasetRow) -> None:
    outcomes = [column["name"] for column in dataset.columns if column["role"] == "outcome"]
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
        (("inference", "members"), "members", asked.get("members", 0), settings.max_members),
        (("inference", "particles"), "particles", asked.get("particles", 0), settings.max_particles),
        (("inference", "particles"), "posterior_mb", 4e-6 * parameters * vectors, settings.max_posterior_mb),
    ):
        if value > limit:
            words = what.replace("posterior_mb", "MB a posterior")
            raise InvalidRequest.at(field, f"at most {limit} {words} (BCO_MAX_{what.upper()})")


@dataclass(frozen=True)
class Given:
    """A job, what it learns for and from, and how.

    ``spec`` is the problem's specification, with what that leaves to the history.
    """

    job: JobRow
    problem: ProblemRow
    spec: dict[str, Any]
    dataset: DatasetRow
    history: EncodedHistory
    learning: Learning
    previous: Previous | None = None


def read(job: JobRow) -> Given:
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        asked = {name: value for name, value in job.spec.items() if name != "revision"}
        # Jobs from before there were revisions learn from the newest one.
        revision = job.spec.get("revision", dataset.revision)
        table = read_table(session, dataset.id, revision)
        previous = None
        if asked.get("from_posterior") is not None:
            how, seed = asked["from_posterior"], asked["seed"]
            found, previous = learn_on.read(session, dataset, table, revision, how, seed)
    request = NewJob(problem_id=problem.id, dataset_id=dataset.id, **asked)
    needed = outcome_names(problem.spec)
    if previous is None:
        found = history.encode(dataset, table, request.features, needed, revision)
        spec = completed(problem.spec, outcomes_of(table, needed))
    else:
        # What was estimated once stays, so that costs can be compared.
        spec = previous.row.problem
    learning = Learning.of(build_problem(spec), found.sample, request.learning_options())
    return Given(job, problem, spec, dataset, found, learning, previous)


def split(given: Given, progress: Progress) -> list[Part]:
    left_out = given.history.left_out
    without = f"; {left_out} have nothing before them that is known in time, and are left out" if left_out else ""
    progress(0.0, f"learning from {len(given.history.sample)} rows{without}")
    if given.previous is not None:
        return []
    return [Part(part.work, _to_bytes(part.data)) for part in given.learning.split(progress)]


def work(given: Given, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """Compute a part from wherever it is."""
    return _to_bytes(given.learning.work(_to_arrays(data), progress, lambda part: checkpoint(_to_bytes(part))))


def join(given: Given, results: Sequence[bytes], progress: Progress) -> Store:
    if given.previous is not None:
        posterior, told, comparison = learn_on.learn(given.previous, given.history.sample, progress)
        return storing(
            given.job, given.problem, given.dataset, posterior, told, given.history.state, comparison, given.spec
        )
    learned = given.learning.join([_to_arrays(result) for result in results], progress)
    diagnostics, state = learned.diagnostics.to_json(), given.history.state
    return storing(given.job, given.problem, given.dataset, learned.posterior, diagnostics, state, spec=given.spec)


def storing(
    job: JobRow,
    problem: ProblemRow,
    dataset: DatasetRow,
    posterior: Posterior,
    diagnostics: dict[str, Any],
    recipe: dict[str, Any] | None = None,
    comparison: PromotionComparison | None = None,
    spec: dict[str, Any] | None = None,
) -> Store:
    """What writes a job's posterior, and moves an alias to it if that is asked for and the comparison allows it.

    ``spec`` is the problem's specification as it was learned for, by default the problem's own.
    """
    description, arrays = posterior.to_arrays()
    content = posteriors.digest_of(description, recipe, arrays)
    stored = without_particles(description, arrays)

    def store(session: Session) -> str | None:
        # Made here, because a row that an outage has kept from being written belongs to its failed transaction.
        row = PosteriorRow(
            id=sibling_id(job.id, "post"),
            workspace=job.workspace,
            job_id=job.id,
            problem_id=problem.id,
            dataset_id=dataset.id,
            name=job.name,
            problem=problem.spec if spec is None else spec,
            columns=dataset.columns,
            recipe=recipe,
            description=description,
            diagnostics=diagnostics | {"origin": _origin(session, job, dataset)},
            policy=diagnostics["policy"],
            digest=content,
            particles=len(posterior.particles),
        )
        posteriors.add(session, row, stored)
        if job.spec.get("promote") is None:
            return None
        return consider(session, job.workspace, Promotion(**job.spec["promote"]), row, comparison, job.id)[1]

    return store


def _origin(session: Session, job: JobRow, dataset: DatasetRow) -> dict[str, Any]:
    """What a posterior is learned from and with, for who wants to know later whether another one is alike."""
    revision = job.spec.get("revision", dataset.revision)
    return {
        "revision": revision,
        "dataset_digest": digest_of(session, dataset.id, revision),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _COMPUTES_WITH},
    }


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
