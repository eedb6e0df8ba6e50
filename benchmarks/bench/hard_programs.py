"""Two-stage problems on which solvers fail silently, and a count of our false optima on them.

Each instance is small enough to verify: by HiGHS on all scenarios at once and, if the two differ, by exact arithmetic.
The kinds occur in practice: recourse columns and rows that nearly coincide, numbers that differ by a factor of 10⁷,
ties, data that passed through single precision, whole numbers with a large fixed cost, and decisions without a
feasible recourse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import InvalidInput, SolverFailure
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.program import SparseProgram
from bco_core.problems.linear.two_stage import TwoStageLinear, extensive_program
from bco_core.solvers import highs
from benchmarks.bench.exact_simplex import exact_optimum, model_of

Array = NDArray[np.float64]
Random = np.random.Generator
Spec = dict[str, Any]

# An answer is wrong if its cost is off by more than this share of the cost, fixed cost excluded.
WRONG = 1e-5
RISKS = (EXPECTATION, EXPECTATION, Risk(1.0, 0.7), Risk(0.5, 0.5))


@dataclass(frozen=True)
class HardProgram:
    """A specification, its scenarios (K, d_y) with weights (K,), the risk to minimise, and the kind of difficulty."""

    kind: str
    spec: Spec
    atoms: Array
    weights: Array
    risk: Risk


def instances(count: int, seed: int) -> list[HardProgram]:
    """Return ``count`` instances, every kind in turn."""
    kinds = list(KINDS)
    return [_instance(kinds[index % len(kinds)], np.random.default_rng([seed, index])) for index in range(count)]


def false_optimal(count: int, seed: int) -> tuple[int, int]:
    """Try ``count`` hard instances; return the number of answers falsely called optimal, and the number tried.

    An instance whose specification is refused counts as tried: it was not called optimal.
    """
    verdicts = [is_false_optimal(instance) for instance in instances(count, seed)]
    return sum(verdicts), len(verdicts)


def is_false_optimal(instance: HardProgram) -> bool:
    """Return whether the answer is called optimal but is not, has no recourse, or states a wrong cost."""
    try:
        problem = TwoStageLinear.from_spec(instance.spec)
    except InvalidInput:
        return False
    atoms, weights = torch.from_numpy(instance.atoms), torch.from_numpy(instance.weights)
    result = problem.prescribe(atoms[None], weights, instance.risk)
    if result.status[0] is not Status.OPTIMAL:
        return False
    ours = result.objective.item()
    program = _in_units(extensive_program(problem.stages, instance.atoms, instance.weights, instance.risk))
    whole = np.zeros(len(program.cost), dtype=bool)
    whole[: len(problem.stages.first.integer)] = problem.stages.first.integer
    room = WRONG * (abs(ours - problem.fixed_cost) + 1e-6)
    truth = _by_highs(program, whole)
    if truth is not None and abs(truth - ours) <= room:
        return False
    if whole.any():
        # With whole numbers fixed, the other variables form a linear program, which exact arithmetic can judge.
        return _wrong_whole(program, whole, result.decisions[0].numpy(), ours, truth, room)
    exact = exact_optimum(program)
    return exact is None or abs(float(exact) - ours) > room


def _in_units(program: SparseProgram) -> SparseProgram:
    """Scale each row by a power of two so that its numbers are around one; the program stays exactly the same."""
    sizes = np.abs(program.matrix.toarray())
    logs = np.log2(np.where(sizes > 0, sizes, 1.0))
    most, least = logs.max(axis=1), np.where(sizes > 0, logs, np.inf).min(axis=1)
    units = 2.0 ** -np.round((most + np.where(np.isfinite(least), least, most)) / 2)
    return replace(
        program, matrix=sparse.csr_array(sparse.diags_array(units) @ program.matrix), limits=program.limits * units
    )


def _wrong_whole(
    program: SparseProgram, whole: NDArray[np.bool_], decision: Array, ours: float, truth: float | None, room: float
) -> bool:
    """Return whether our answer is wrong where HiGHS differs.

    It is wrong if the exact cost of its decision is not the stated one, or if HiGHS knows a better decision.
    """
    exact = exact_optimum(program.with_fixed_decision(decision, whole))
    if exact is None or abs(float(exact) - ours) > room:
        return True
    return truth is not None and truth < ours - room


def _by_highs(program: SparseProgram, whole: NDArray[np.bool_]) -> float | None:
    try:
        answer = highs.run(model_of(program, whole))
    except SolverFailure:
        return None
    return answer.objective if answer.status is Status.OPTIMAL else None


# instances


def _instance(kind: str, random: Random) -> HardProgram:
    spec = _plain(random)
    KINDS[kind](spec, random)
    count = int(random.integers(1, 6))
    atoms = random.choice([-2.0, -1.0, 0.0, 1.0, 3.0], (count, len(spec["outcomes"])))
    if random.random() < 0.5:
        atoms = atoms + random.normal(size=atoms.shape)
    atoms = np.clip(atoms, *(spec["outcomes"][0].get(name, end) for name, end in (("minimum", -9.0), ("maximum", 9.0))))
    weights = random.random(count) + 0.1
    return HardProgram(kind, spec, atoms, weights / weights.sum(), RISKS[int(random.integers(len(RISKS)))])


def _plain(random: Random) -> Spec:
    """Return a problem of one to three decisions, two to four rows and small numbers; recourse can repair every row."""
    decisions, rows, recourse, outcomes = (int(random.integers(*ends)) for ends in ((1, 4), (2, 5), (2, 5), (1, 3)))
    senses = [str(sense) for sense in random.choice(["<=", ">="], rows)]
    mend = [{"name": f"m{i}", "cost": float(random.choice([15.0, 20.0, 30.0]))} for i in range(rows)]

    def some(letter: str, count: int) -> dict[str, float]:
        numbers = random.integers(-2, 3, count)
        return {f"{letter}{j}": float(number) for j, number in enumerate(numbers) if number}

    return {
        "decisions": [
            {"name": f"z{j}", "cost": float(random.integers(1, 6)), "maximum": float(random.integers(2, 9))}
            for j in range(decisions)
        ],
        "outcomes": [{"name": f"y{j}"} for j in range(outcomes)],
        "recourse": [{"name": f"x{j}", "cost": float(random.integers(1, 9))} for j in range(recourse)] + mend,
        "rows": [
            {
                "recourse": some("x", recourse) | {f"m{i}": 1.0 if senses[i] == ">=" else -1.0},
                "decisions": some("z", decisions),
                "sense": senses[i],
                "constant": float(random.integers(-3, 4)),
                "outcomes": some("y", outcomes),
            }
            for i in range(rows)
        ],
    }


def _parallel_columns(spec: Spec, random: Random) -> None:
    """Add recourse columns that equal others up to the seventh to ninth digit, at the same or nearly the same cost."""
    for like in [part for part in spec["recourse"] if random.random() < 0.6]:
        by = 10.0 ** random.uniform(-9, -7)
        twin = like | {"name": f"twin {like['name']}", "cost": like["cost"] * (1 + random.choice([0.0, 0.0, by, -by]))}
        spec["recourse"].append(twin)
        for row in spec["rows"]:
            entry = row["recourse"].get(like["name"])
            if entry:
                row["recourse"][twin["name"]] = entry * (1 - by * random.choice([1.0, 0.5, -1.0]))


def _parallel_rows(spec: Spec, random: Random) -> None:
    """Add a row that equals another up to the seventh to ninth digit."""
    like = spec["rows"][int(random.integers(len(spec["rows"])))]
    by = 10.0 ** random.uniform(-9, -7)

    def nearly(numbers: dict[str, float]) -> dict[str, float]:
        return {name: number * (1 + by * random.choice([-1.0, 0.0, 1.0])) for name, number in numbers.items()}

    spec["rows"].append(like | {"recourse": nearly(like["recourse"]), "decisions": nearly(like["decisions"])})


def _scales(spec: Spec, random: Random) -> None:
    """Scale costs and rows by powers of ten, up to 10⁷ either way."""
    for part in spec["recourse"]:
        part["cost"] *= 10.0 ** random.choice([0, 0, 0, 3, 7, -4])
    for row in spec["rows"]:
        unit = 10.0 ** random.choice([-7, -3, 0, 0, 3, 7])
        for name in ("recourse", "decisions", "outcomes"):
            row[name] = {key: number * unit for key, number in row[name].items()}
        row["constant"] *= unit


def _ties(spec: Spec, random: Random) -> None:
    """Make costs equal and limits zero, and repeat a row."""
    for part in spec["recourse"]:
        part["cost"] = 20.0 if part["name"].startswith("m") else 2.0
    for row in spec["rows"]:
        row["constant"] = 0.0
    spec["rows"].append(dict(spec["rows"][0]))


def _single_precision(spec: Spec, random: Random) -> None:
    """Pass numbers through single precision after scaling each by a third, a tenth or 0.7."""

    def blurred(number: float) -> float:
        return float(np.float32(number * random.choice([1 / 3, 0.1, 0.7]))) * float(random.choice([3.0, 10.0, 1.0]))

    for row in spec["rows"]:
        for name in ("recourse", "decisions"):
            row[name] = {key: blurred(number) for key, number in row[name].items()}
    for part in spec["recourse"]:
        part["cost"] = float(np.float32(part["cost"] / 3))


def _no_recourse(spec: Spec, random: Random) -> None:
    """Bound the recourse that repairs rows, so that some or all decisions leave scenarios without a recourse."""
    for part in spec["recourse"]:
        if part["name"].startswith("m"):
            part["maximum"] = float(random.integers(0, 4))
    spec["outcomes"] = [outcome | {"minimum": -1.0, "maximum": 1.0} for outcome in spec["outcomes"]]


def _fixed_cost(spec: Spec, random: Random) -> None:
    """Make decisions whole numbers, and add a large cost that no decision changes and that hides their differences."""
    for decision in spec["decisions"]:
        decision["integer"] = True
    spec["decisions"].append({"name": "rent", "cost": 1e5, "minimum": 1.0, "maximum": 1.0})


def _twins(spec: Spec, random: Random) -> None:
    """Replace the problem: two nearly equal recourses help one row and hurt another, so that bases hold both."""
    by, cost = 10.0 ** random.uniform(-9, -7), float(np.round(random.uniform(1, 3), 2))
    dear = float(random.choice([10.0, 20.0, 50.0]))
    double, single = random.uniform(1.5, 2.5), random.uniform(0.7, 1.3)
    spec |= {
        "decisions": [{"name": "z0", "cost": cost, "maximum": float(random.integers(2, 6))}],
        "outcomes": [{"name": "y0"}],
        "recourse": [
            *({"name": name, "cost": cost} for name in ("a", "b")),
            *({"name": name, "cost": dear} for name in ("m", "p")),
        ],
        "rows": [
            {
                "recourse": {"a": -double, "b": -double + by, "m": -1.0},
                "decisions": {"z0": 1.0},
                "sense": "<=",
                "constant": -1.0,
                "outcomes": {},
            },
            {
                "recourse": {"a": -single, "b": -single + by * random.choice([1.0, 0.5]), "p": 1.0},
                "decisions": {"z0": -1.0},
                "sense": ">=",
                "constant": 2.0,
                "outcomes": {"y0": 1.0},
            },
        ],
    }


def _everything(spec: Spec, random: Random) -> None:
    _scales(spec, random)
    _parallel_columns(spec, random)
    _parallel_rows(spec, random)


KINDS: dict[str, Callable[[Spec, Random], None]] = {
    "parallel columns": _parallel_columns,
    "twins": _twins,
    "parallel rows": _parallel_rows,
    "scales": _scales,
    "ties": _ties,
    "single precision": _single_precision,
    "no recourse": _no_recourse,
    "fixed cost": _fixed_cost,
    "everything": _everything,
}
