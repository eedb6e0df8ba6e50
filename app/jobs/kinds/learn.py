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
from app.jobs.kinds.base import Checkpoint, JobDraft, JobKind, JobPart, Store
from app.jobs.kinds.learn_on import LearnOnOptions, PreviousPosterior
from app.posteriors import history
from app.posteriors import service as posteriors
from app.posteriors.history import EncodedHistory, Features, outcomes_of
from app.posteriors.options import AutoInference, InferenceSpec, PredictorSpec, learning_options
from app.problems.schemas import outcome_names
from app.problems.service import MISSING as NO_PROBLEM
from app.settings import get_settings
from bco_core.data import Arrays
from bco_core.errors import InvalidInput
from bco_core.inference.learn import MINIMUM_ROWS, LearningPlan, estimate, stored_vectors
from bco_core.inference.options import LearningOptions
from bco_core.posterior import Posterior, strip_particles
from bco_core.problems.base import ProblemOutline
from bco_core.problems.registry import PROBLEMS, build_problem, complete_spec
from bco_core.progress import Progress

# Packages that results depend on.
_NUMERIC_PACKAGES = ("bco-service", "torch", "numpy", "lightgbm", "highspy")


class LearnRequest(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "bakery", "problem_id": "prob_DEMO", "dataset_id": "data_DEMO", "seed": 7}]
        }
    )

    kind: Literal["learn"] = "learn"
    name: Name = Field("", validate_default=False, description="name of the job and of its posterior")
    problem_id: str
    dataset_id: str
    predictor: PredictorSpec = PredictorSpec()
    inference: InferenceSpec = AutoInference()
    policy: PolicyName | None = Field(
        None, description="default policy of prescribe; if left out, the one that held-out rows recommend"
    )
    features: Features = Field("auto", description=history.DESCRIPTION)
    from_posterior: LearnOnOptions | None = Field(
        None,
        description="continue from an older posterior, with its predictor and features, instead of starting over",
    )
    seed: Seed = 0
    promote: Promotion | None = Field(None, description="alias to move to the new posterior")
    time_limit_seconds: TimeLimit | None = Field(
        None, description="fail after this many seconds; by default the longest time that the service allows"
    )

    def learning_options(self) -> LearningOptions:
        return learning_options(self.predictor, self.inference, self.policy, self.seed)


class _Outline(NamedTuple):
    """Outline of a problem without building it, which may take seconds and was tried when the problem was created."""

    outcome_dim: int
    differentiable: bool


def outline_of(spec: dict[str, Any]) -> ProblemOutline:
    return _Outline(len(outcome_names(spec)), PROBLEMS[spec["kind"]].differentiable)


def check(workspace: str, request: LearnRequest) -> JobDraft:
    """Refuse a request that cannot be learned, or whose posterior would be larger than the service allows."""
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
    return JobDraft(
        name=request.name or problem.name,
        problem_id=problem.id,
        dataset_id=dataset.id,
        spec=spec,
        estimate_seconds=seconds,
        warnings=warnings,
    )


def _check_reach(spec: dict[str, Any], dataset: DatasetRow, needed: list[str]) -> list[str]:
    """Refuse targets that no decision can reach in this history; return warnings about hard ones for the job's log."""
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


def _check_size(parameters: int, vectors: int, limits: dict[str, int]) -> None:
    """Refuse a posterior with too many parameters, members or particles, or with too many bytes in all."""
    settings = get_settings()
    for field, what, value, limit in (
        (("predictor", "hidden"), "parameters", parameters, settings.max_parameters),
        (("inference", "members"), "members", limits.get("members", 0), settings.max_members),
        (("inference", "particles"), "particles", limits.get("particles", 0), settings.max_particles),
        (("inference", "particles"), "posterior_mb", 4e-6 * parameters * vectors, settings.max_posterior_mb),
    ):
        if value > limit:
            words = what.replace("posterior_mb", "MB a posterior")
            raise InvalidRequest.at(field, f"at most {limit} {words} (BCO_MAX_{what.upper()})")


@dataclass(frozen=True)
class LearnInputs:
    """A learning job with its problem, data set and options.

    ``spec`` is the problem's specification, completed from the history.
    """

    job: JobRow
    problem: ProblemRow
    spec: dict[str, Any]
    dataset: DatasetRow
    history: EncodedHistory
    learning: LearningPlan
    previous: PreviousPosterior | None = None


def read(job: JobRow) -> LearnInputs:
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        options = {name: value for name, value in job.spec.items() if name != "revision"}
        # Jobs from before data sets had revisions learn from the newest one.
        revision = job.spec.get("revision", dataset.revision)
        table = read_table(session, dataset.id, revision)
        previous = None
        if options.get("from_posterior") is not None:
            how, seed = options["from_posterior"], options["seed"]
            rows, previous = learn_on.read(session, dataset, table, revision, how, seed)
    request = LearnRequest(problem_id=problem.id, dataset_id=dataset.id, **options)
    needed = outcome_names(problem.spec)
    if previous is None:
        rows = history.encode(dataset, table, request.features, needed, revision)
        spec = complete_spec(problem.spec, outcomes_of(table, needed))
    else:
        # Keep what was estimated before, so that costs can be compared.
        spec = previous.row.problem
    learning = LearningPlan.of(build_problem(spec), rows.sample, request.learning_options())
    return LearnInputs(job, problem, spec, dataset, rows, learning, previous)


def split(inputs: LearnInputs, progress: Progress) -> list[JobPart]:
    left_out = inputs.history.left_out
    without = f"; {left_out} rows without enough earlier rows are left out" if left_out else ""
    progress(0.0, f"learning from {len(inputs.history.sample)} rows{without}")
    if inputs.previous is not None:
        return []
    return [JobPart(part.work, _to_bytes(part.data)) for part in inputs.learning.split(progress)]


def work(inputs: LearnInputs, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """Compute a part from its last checkpoint."""
    return _to_bytes(inputs.learning.work(_to_arrays(data), progress, lambda part: checkpoint(_to_bytes(part))))


def join(inputs: LearnInputs, results: Sequence[bytes], progress: Progress) -> Store:
    if inputs.previous is not None:
        posterior, diagnostics, comparison = learn_on.learn(inputs.previous, inputs.history.sample, progress)
        return store_posterior(
            inputs.job,
            inputs.problem,
            inputs.dataset,
            posterior,
            diagnostics,
            inputs.history.state,
            comparison,
            inputs.spec,
        )
    learned = inputs.learning.join([_to_arrays(result) for result in results], progress)
    diagnostics, state = learned.diagnostics.to_json(), inputs.history.state
    return store_posterior(
        inputs.job, inputs.problem, inputs.dataset, learned.posterior, diagnostics, state, spec=inputs.spec
    )


def store_posterior(
    job: JobRow,
    problem: ProblemRow,
    dataset: DatasetRow,
    posterior: Posterior,
    diagnostics: dict[str, Any],
    recipe: dict[str, Any] | None = None,
    comparison: PromotionComparison | None = None,
    spec: dict[str, Any] | None = None,
) -> Store:
    """Return a function that writes a job's posterior, and moves an alias to it if requested and the comparison allows.

    ``spec`` is the specification that was learned for, by default the problem's own.
    """
    description, arrays = posterior.to_arrays()
    content = posteriors.digest_of(description, recipe, arrays)
    stored = strip_particles(description, arrays)

    def store(session: Session) -> str | None:
        # Created here: a row that an outage has kept from being written belongs to its failed transaction.
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
    """Return the provenance of a posterior: revision, digest and versions."""
    revision = job.spec.get("revision", dataset.revision)
    return {
        "revision": revision,
        "dataset_digest": digest_of(session, dataset.id, revision),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _NUMERIC_PACKAGES},
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
    request=LearnRequest,
    check=check,
    read=read,
    split=split,
    work=work,
    join=join,
    makes_posterior=True,
)
