"""Run a backtest: split it into parts, compute a part, and summarise all of them.

A part is one policy in one split: it learns from the rows known at its beginning, decides for the rows that are judged,
and returns the costs. The job engine and the command line compute the same digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from app.backtests.existing import ExistingPosterior
from app.backtests.schemas import JUDGED, BacktestOptions
from app.datasets.times import write_time
from app.db.tables import DatasetRow
from app.http.errors import InvalidRequest, of_core
from app.posteriors import history
from app.posteriors.history import Features, RowPositions
from app.problems.schemas import decision_names, outcome_names
from bco_core.arrays import Integers
from bco_core.backtest.realised_costs import RealisedCosts, judge
from bco_core.backtest.rules import RULES, Origin, learned_decisions
from bco_core.backtest.splits import Split, random_parts, rolling
from bco_core.backtest.summary import MOST_SERIES, BacktestRows, align, summarize
from bco_core.backtest.verdict import ACTUAL_DECISION
from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem, complete_spec
from bco_core.progress import Progress, part_of
from bco_core.timeline import Timeline


class Step(NamedTuple):
    """A part: one policy in one split."""

    split: int
    policy: str


@dataclass(frozen=True)
class Backtest:
    """A problem, the rows of a data set, and the policies compared on them.

    Existing ``posteriors`` are compared on the ``judged`` rows; otherwise everything is learned, split by split.
    """

    spec: dict[str, Any]
    dataset: DatasetRow
    table: pa.Table
    options: BacktestOptions
    posteriors: tuple[ExistingPosterior, ...] = ()
    judged: Tensor | None = None
    _last: dict[int, tuple[Origin, Integers]] = field(default_factory=dict)

    @cached_property
    def problem(self) -> DecisionProblem:
        """Problem by which decisions are judged; quantities left to the history are estimated from all rows."""
        return build_problem(complete_spec(self.spec, history.outcomes_of(self.table, self.outcomes)))

    def _known_problem(self, split: int) -> DecisionProblem:
        """Return the problem of a split; quantities left to the history are estimated from known rows."""
        known = self.table.take(pa.array(self.splits[split].known.numpy()))
        spec = complete_spec(self.spec, history.outcomes_of(known, self.outcomes))
        return self.problem if spec == self.spec else build_problem(spec)

    @cached_property
    def outcomes(self) -> list[str]:
        return outcome_names(self.spec)

    @cached_property
    def places(self) -> RowPositions | None:
        return history.row_positions(self.dataset, self.table, self.outcomes)

    @cached_property
    def splits(self) -> list[Split]:
        """Known and judged rows of each split; refuses a history that is too short."""
        if self.judged is not None:
            return [Split(torch.empty(0, dtype=torch.int64), self.judged)]
        try:
            if self.places is None:
                return random_parts(self.table.num_rows, self.options.splits, self.options.seed)
            periods, series = torch.from_numpy(self.places.periods), torch.from_numpy(self.places.series)
            timeline = Timeline(periods, series, self.dataset.lead)
            return rolling(
                timeline, self.options.splits, JUDGED if self.options.judged is None else self.options.judged
            )
        except InvalidInput as error:
            raise of_core(error) from None

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Reasons why baselines do not apply here, by name."""
        if self.posteriors:
            return {}
        season = 0 if self.places is None else self.places.season
        wanted = list(RULES) if self.options.baselines is None else self.options.baselines
        reasons = {name: RULES[name].refusal(self.problem, season) for name in wanted}
        return {name: reason for name, reason in reasons.items() if reason}

    @cached_property
    def ours(self) -> list[str]:
        return [one.label for one in self.posteriors or self.options.ours]

    @cached_property
    def policies(self) -> dict[str, str]:
        """Label of each policy in sentences, by name."""
        words = {name: name for name in self.ours}
        if self.options.actual_decision:
            words[ACTUAL_DECISION] = "the decisions actually taken"
        if not self.posteriors:
            wanted = list(RULES) if self.options.baselines is None else self.options.baselines
            words |= {name: RULES[name].label for name in wanted if name not in self.left_out}
        return words

    @cached_property
    def steps(self) -> list[Step]:
        """All parts. Those of a split are neighbours, because they share its encoding."""
        return [Step(split, policy) for split in range(len(self.splits)) for policy in self.policies]

    @property
    def possible_steps(self) -> list[Step]:
        """All parts that there may be, without building the problem."""
        rules = list(RULES) if self.options.baselines is None else self.options.baselines
        actual = [ACTUAL_DECISION] if self.options.actual_decision else []
        return [Step(split, policy) for split in range(len(self.splits)) for policy in [*self.ours, *actual, *rules]]

    def work(self, step: Step, progress: Progress) -> pa.Table:
        """Compute a part: a line for each row that the policy was judged on in the split."""
        progress(0.0, f"{step.policy}, split {step.split + 1} of {len(self.splits)}")
        rows, decisions = self._decide(step, part_of(progress, 0.0, 0.95))
        outcomes = torch.from_numpy(history.outcomes_of(self.table.take(pa.array(rows)), self.outcomes))
        costs = judge(self.problem, decisions, outcomes)
        progress(1.0, f"{step.policy}, split {step.split + 1} of {len(self.splits)}: {len(rows)} rows")
        return self._lines(step, rows, decisions, costs)

    def _decide(self, step: Step, progress: Progress) -> tuple[Integers, Tensor]:
        """Return the judged rows (m,) and the decisions (m, d_z) for them, NaN where there is none."""
        if self.posteriors:
            rows = self.splits[0].judged.numpy()
            if step.policy == ACTUAL_DECISION:
                return rows, self._actual(rows)
            one = next(one for one in self.posteriors if one.label == step.policy)
            return rows, one.decisions(self.table, rows, progress)
        origin, rows = self._origin(step.split)
        if step.policy == ACTUAL_DECISION:
            return rows, self._actual(rows)
        problem = self._known_problem(step.split)
        if step.policy in RULES:
            return rows, RULES[step.policy].decide(problem, origin)
        ours = next(one for one in self.options.ours if one.label == step.policy)
        return rows, learned_decisions(problem, origin, ours.learning_options(self.options.seed), progress)

    def _origin(self, split: int) -> tuple[Origin, Integers]:
        if split not in self._last:
            self._last.clear()
            origin, rows = origin_of(
                self.dataset,
                self.table,
                self.splits[split],
                self.places,
                self.options.features,
                self.outcomes,
                self.options.seed,
            )
            if not len(rows):
                raise InvalidInput(f"no row of split {split + 1} could be decided for from rows known before it")
            self._last[split] = origin, rows
        return self._last[split]

    def _actual(self, rows: Integers) -> Tensor:
        columns = [
            self.table.column(self.options.actual_decision[name]).take(pa.array(rows))
            for name in decision_names(self.spec)
        ]
        return torch.from_numpy(np.stack([column.to_numpy().astype(np.float64) for column in columns], axis=1))

    def _lines(self, step: Step, rows: Integers, decisions: Tensor, costs: RealisedCosts) -> pa.Table:
        columns: dict[str, Any] = {"row": rows}
        if self.places is not None:
            columns["time"] = [self.places.clock.text(period) for period in self.places.periods[rows].tolist()]
            for column in self.dataset.columns:
                if column["role"] == "series":
                    columns[f"series.{column['name']}"] = self.table.column(column["name"]).take(pa.array(rows))
        columns |= {"split": np.full(len(rows), step.split), "policy": [step.policy] * len(rows)}
        columns |= {"cost": _numbers(costs.cost), "regret": _numbers(costs.regret)}
        undecided = costs.cost.isnan().numpy()
        columns["feasible"] = pa.array(costs.feasible.numpy(), mask=undecided)
        columns |= {
            f"decision.{name}": _numbers(decisions[:, index]) for index, name in enumerate(decision_names(self.spec))
        }
        if costs.served is not None:
            served = costs.served.numpy()
            columns |= {
                f"served.{name}": pa.array(served[:, index], mask=undecided) for index, name in enumerate(self.outcomes)
            }
        return pa.table(columns)

    def summary(self, tables: Sequence[pa.Table]) -> dict[str, Any]:
        """Summarise the results of all parts, in the order of ``steps``."""
        rows = np.unique(np.concatenate([table.column("row").to_numpy() for table in tables]))
        pieces: dict[str, list[tuple[Tensor, RealisedCosts]]] = {name: [] for name in self.policies}
        split = np.zeros(len(rows), dtype=np.int64)
        for step, table in zip(self.steps, tables, strict=True):
            places = np.searchsorted(rows, table.column("row").to_numpy())
            split[places] = step.split
            pieces[step.policy].append((torch.from_numpy(places), self._read(table)))
        costs = {name: align(len(rows), some) for name, some in pieces.items()}
        summary = summarize(self.problem, self._rows(rows, split), costs, self.ours, self.policies, self.outcomes)
        for number, line in enumerate(summary["splits"]):
            line["learned_from"] = len(self.splits[number].known)
        return summary | {"left_out": self.left_out, "notes": self._notes(rows, costs)}

    def _rows(self, rows: Integers, split: Integers) -> BacktestRows:
        if self.places is None:
            return BacktestRows(torch.from_numpy(split))
        periods, series = (torch.from_numpy(values[rows]) for values in (self.places.periods, self.places.series))
        return BacktestRows(
            torch.from_numpy(split),
            periods,
            series,
            self.dataset.lead,
            self.places.season,
            self.places.clock.text,
            self.places.names,
        )

    def _read(self, table: pa.Table) -> RealisedCosts:
        def whether(name: str) -> Tensor:
            return torch.from_numpy(table.column(name).fill_null(False).to_numpy().astype(bool))

        cost, regret = (torch.from_numpy(_plain(table, name)) for name in ("cost", "regret"))
        names = [f"served.{name}" for name in self.outcomes]
        served = torch.stack([whether(name) for name in names], dim=1) if names[0] in table.column_names else None
        return RealisedCosts(cost, regret, whether("feasible"), served)

    def _notes(self, rows: Integers, costs: dict[str, RealisedCosts]) -> list[str]:
        notes = [f"{name} is left out: {reason}." for name, reason in self.left_out.items()]
        wanted = sum(len(split.judged) for split in self.splits)
        if len(rows) < wanted:
            notes.append(
                f"{wanted - len(rows)} of {wanted} rows could not be decided for from earlier rows (a new category or "
                "series, or nothing known in time); they are left out for every policy."
            )
        for name, judged in costs.items():
            gaps = int(judged.cost.isnan().sum())
            if gaps and name == ACTUAL_DECISION:
                notes.append(
                    f"The decision actually taken is missing in {gaps} of {len(rows)} rows; its cost, and differences "
                    "from it, are computed on the rest."
                )
            elif gaps:
                notes.append(
                    f"{name} has no decision for {gaps} of {len(rows)} rows; these are left out of its numbers."
                )
        if self.places is not None and len(self.places.names) > MOST_SERIES:
            notes.append(f"Of {len(self.places.names)} series, those {MOST_SERIES} with the most rows are shown.")
        return notes


# a data set as it was known at the beginning of a split


def origin_of(
    dataset: DatasetRow,
    table: pa.Table,
    split: Split,
    places: RowPositions | None,
    features: Features,
    outcomes: list[str],
    seed: int,
) -> tuple[Origin, Integers]:
    """Return a split as policies see it, and the rows (m,) of the table that are judged.

    Rows that could not have been decided for, such as those of a new category, are left out.
    """
    known, judged = split.known.numpy(), split.judged.numpy()
    upto = np.sort(np.concatenate([known, judged]))
    if places is not None:
        # Features look back on rows that become known within the split; nothing is learned from them.
        upto = np.flatnonzero(places.periods <= places.periods[judged].max())
    past = table.take(pa.array(known))
    then = DatasetRow(
        columns=known_columns(dataset.columns, past),
        lead=dataset.lead,
        handling=dataset.handling,
        revision=dataset.revision,
    )
    encoded, usable = history.encode_rows(then, past, table.take(pa.array(upto)), features, outcomes, dataset.revision)
    rows = upto[usable]
    inside = np.isin(rows, judged)
    learned, decided = (torch.from_numpy(np.flatnonzero(mask)) for mask in (np.isin(rows, known), inside))
    return Origin(encoded.sample, learned, decided, seed), rows[inside]


def known_columns(columns: list[dict[str, Any]], past: pa.Table) -> list[dict[str, Any]]:
    """Return a data set's profile as these rows alone would have it, for the encoding."""
    return [column | _profile_known_rows(column, past.column(column["name"])) for column in columns]


def _profile_known_rows(column: dict[str, Any], values: pa.ChunkedArray) -> dict[str, Any]:
    if column["role"] == "time":
        bounds = pc.min_max(values.cast(pa.int64())).as_py()
        return {
            name: write_time(bounds[which], column["format"]) for name, which in (("first", "min"), ("last", "max"))
        }
    if column["role"] == "series":
        return {"distinct": pc.count_distinct(values).as_py()}
    if column["role"] == "context" and column.get("categories") is not None:
        seen = set(pc.unique(values).to_pylist())
        last = column["categories"][-1:] if column.get("other") else []
        return {"categories": [one for one in column["categories"] if one in seen or one in last]}
    if column["role"] == "context" and column.get("median") is not None:
        there = values.drop_null().to_numpy()
        return {"missing": values.null_count, "median": float(np.median(there)) if len(there) else 0.0}
    return {}


# actual decisions


def check_actual_decision(spec: dict[str, Any], columns: list[dict[str, Any]], actual: dict[str, str]) -> None:
    """Refuse columns of actual decisions that do not match the problem's decisions."""
    if not actual:
        return
    names = decision_names(spec)
    decisions = [column["name"] for column in columns if column["role"] == "decision"]
    for name, column in actual.items():
        if name not in names:
            raise InvalidRequest.at(
                ("actual_decision", name), f"the problem has no such decision; it has {', '.join(names)}"
            )
        if column not in decisions:
            there = f"it has {', '.join(decisions)}" if decisions else "it has none: send it with decisions"
            raise InvalidRequest.at(("actual_decision", name), f"the data set has no such column of decisions; {there}")
    lacking = [name for name in names if name not in actual]
    if lacking:
        detail = f"name the column of every decision; missing: {', '.join(lacking)}"
        raise InvalidRequest.at(("actual_decision",), detail)


def _numbers(values: Tensor) -> pa.Array:
    return pa.array(values.numpy(), from_pandas=True)


def _plain(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy().astype(np.float64)
