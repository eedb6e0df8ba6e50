"""Learn a posterior and its diagnostics from a problem and a sample.

    learned = learn(problem, sample)                     # in this process
    learning = Learning.of(problem, sample, options)     # or in parts, on any process
    results = [learning.work(part.data) for part in learning.split()]
    learned = learning.join(results)

The same seed gives the same posterior, wherever parts are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bco_core.certificates import NO_CERTIFICATE
from bco_core.data import Arrays, Sample
from bco_core.errors import InvalidInput
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.mh.method import MH
from bco_core.inference.options import AutoOptions, LearningOptions
from bco_core.inference.vi.auto import AUTO
from bco_core.inference.vi.method import VI
from bco_core.inference.vi.surrogate import SURROGATE, allows_linear
from bco_core.problems.base import DecisionProblem, ProblemOutline
from bco_core.problems.surrogate import Surrogate
from bco_core.progress import Progress, no_progress, part_of

MINIMUM_ROWS = 10
# Every method by name: a new one is one file, its options, and one line here.
METHODS: dict[str, Method] = {method.name: method for method in (AUTO, VI, MH)}
# Cost of deciding for one row, in multiplications, besides its prediction: by a formula, or by a solver.
_DECISION, _SOLVED_DECISION = 3_000, 500_000
# Seconds of a pass over the rows, however few, and of each multiplication: measured, good to a factor of five.
_SECONDS_A_PASS, _SECONDS_A_PRODUCT = 3e-4, 3e-11


@dataclass(frozen=True)
class LearningPlan:
    """A task with its method, the name of the ``requested_method``, and the reason for the choice."""

    method: Method
    task: Task
    requested_method: str
    reason: str

    @staticmethod
    def of(problem: DecisionProblem, sample: Sample, options: LearningOptions | None = None) -> LearningPlan:
        """Choose the method; raise InvalidInput, before any work, for a task that cannot be learned."""
        options = options or AutoOptions()
        if len(sample) < MINIMUM_ROWS:
            raise InvalidInput(f"learning needs at least {MINIMUM_ROWS} rows, and there are {len(sample)}", ("sample",))
        if sample.outcomes.shape[1] != problem.outcome_dim:
            raise InvalidInput(
                f"the problem has {problem.outcome_dim} uncertain outcomes, the data {sample.outcomes.shape[1]}",
                ("sample",),
            )
        method, own, reason = resolve(problem, options)
        if isinstance(problem.relaxation, Surrogate) and method.inference == "vi":
            if getattr(own, "certify", None):
                raise InvalidInput(f"there is no certificate here: {NO_CERTIFICATE}", ("certify",))
            if isinstance(own, AutoOptions) and allows_linear(own):
                method, reason = SURROGATE, SURROGATE.reason
        return LearningPlan(method, Task(problem.relaxation, sample, own), options.method, reason)

    def split(self, progress: Progress = no_progress) -> list[Part]:
        return self.method.split(self.task, progress)

    def work(self, data: Arrays, progress: Progress = no_progress, checkpoint: Checkpoint | None = None) -> Arrays:
        return self.method.work(self.task, data, progress, checkpoint)

    def join(self, results: Sequence[Arrays], progress: Progress = no_progress) -> Learned:
        learned = self.method.join(self.task, results, progress)
        diagnostics = replace(
            learned.diagnostics,
            method=self.requested_method,
            inference=self.method.inference,
            inference_reason=self.reason,
        )
        return replace(learned, diagnostics=diagnostics)


def learn(
    problem: DecisionProblem,
    sample: Sample,
    options: LearningOptions | None = None,
    progress: Progress = no_progress,
) -> Learned:
    """Learn the Gibbs posterior of ``problem`` from ``sample``, in this process."""
    learning = LearningPlan.of(problem, sample, options)
    parts = learning.split(part_of(progress, 0.0, 0.1))
    if not parts:
        return learning.join([], progress)
    results, total, done = [], sum(part.work for part in parts), 0
    for part in parts:
        within = part_of(progress, 0.1 + 0.88 * done / total, 0.1 + 0.88 * (done + part.work) / total)
        results.append(learning.work(part.data, within))
        done += part.work
    return learning.join(results, part_of(progress, 0.98, 1.0))


def resolve(problem: ProblemOutline, options: LearningOptions) -> tuple[Method, LearningOptions, str]:
    """Return the method, its own options, and the reason for the choice."""
    if isinstance(options, AutoOptions):
        if problem.differentiable:
            return AUTO, options.for_mixture(), AUTO.reason
        reason = "Metropolis–Hastings, because decisions have no useful gradient with respect to predictions"
        return MH, options.for_chains(), reason
    method = METHODS[options.method]
    if method.needs_gradient and not problem.differentiable:
        raise InvalidInput(
            "variational inference needs decisions with a gradient, and this problem has none; use mh or auto",
            ("method",),
        )
    return method, options, method.reason


def stored_vectors(problem: ProblemOutline, options: LearningOptions, rows: int) -> int:
    """Return the number of parameter vectors that the posterior stores besides its particles."""
    method, own, _ = resolve(problem, options)
    return method.vectors(own, rows)


def estimate(problem: ProblemOutline, options: LearningOptions, rows: int, columns: int) -> float:
    """Estimate the seconds that learning takes on one core."""
    method, own, _ = resolve(problem, options)
    decision = _DECISION if problem.differentiable else _SOLVED_DECISION
    parameters = own.predictor.size(columns, problem.outcome_dim)
    return method.passes(own, rows) * (_SECONDS_A_PASS + _SECONDS_A_PRODUCT * rows * (parameters + decision))
