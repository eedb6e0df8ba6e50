"""A backtest from beginning to end: its parts, what a part finds, and what all of them tell.

A part is one policy in one split: it learns from what was known, decides for the rows that are judged, and says what
that would have cost. Whoever computes the parts, the job engine or the command line, gets the same digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from app.backtests.existing import Existing
from app.backtests.origins import origin_of
from app.backtests.schemas import JUDGED, BacktestOptions
from app.datasets.encode_values import Whole
from app.db.tables import DatasetRow
from app.http.errors import InvalidRequest, of_core
from app.posteriors import history
from app.posteriors.history import RowPositions
from app.problems.schemas import decision_names, outcome_names
from bco_core.backtest.judge import Judged, judge
from bco_core.backtest.ours import learned_decisions
from bco_core.backtest.rules import RULES, Origin
from bco_core.backtest.splits import Split, random_parts, rolling
from bco_core.backtest.summary import MOST_SERIES, Rows, aligned, summarize
from bco_core.backtest.verdict import ACTUAL_DECISION
from bco_core.errors import InvalidInput
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem, completed
from bco_core.progress import Progress, part_of
from bco_core.timeline import Timeline


class Step(NamedTuple):
    """A part: one policy in one split."""

    split: int
    policy: str


@dataclass(frozen=True)
class Backtest:
    """A problem, the rows of a data set and what is compared on them. ``judged`` rows are given where ``posteriors``
    that are there already are compared; otherwise everything is learned, split by split."""

    spec: dict[str, Any]
    dataset: DatasetRow
    table: pa.Table
    asked: BacktestOptions
    posteriors: tuple[Existing, ...] = ()
    judged: Tensor | None = None
    _last: dict[int, tuple[Origin, Whole]] = field(default_factory=dict)

    @cached_property
    def problem(self) -> DecisionProblem:
        """What decisions are judged by; what a specification leaves to the history is estimated from all its rows."""
        return build_problem(completed(self.spec, history.outcomes_of(self.table, self.outcomes)))

    def _known_problem(self, split: int) -> DecisionProblem:
        """What is decided for in a split: what is estimated comes from rows that were known."""
        known = self.table.take(pa.array(self.splits[split].known.numpy()))
        spec = completed(self.spec, history.outcomes_of(known, self.outcomes))
        return self.problem if spec == self.spec else build_problem(spec)

    @cached_property
    def outcomes(self) -> list[str]:
        return outcome_names(self.spec)

    @cached_property
    def places(self) -> RowPositions | None:
        return history.row_positions(self.dataset, self.table, self.outcomes)

    @cached_property
    def splits(self) -> list[Split]:
        """Which rows are judged by what is known of which; refuses a history that is too short."""
        if self.judged is not None:
            return [Split(torch.empty(0, dtype=torch.int64), self.judged)]
        try:
            if self.places is None:
                return random_parts(self.table.num_rows, self.asked.splits, self.asked.seed)
            periods, series = torch.from_numpy(self.places.periods), torch.from_numpy(self.places.series)
            timeline = Timeline(periods, series, self.dataset.lead)
            return rolling(timeline, self.asked.splits, JUDGED if self.asked.judged is None else self.asked.judged)
        except InvalidInput as error:
            raise of_core(error) from None

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Baselines that make no sense here, and why."""
        if self.posteriors:
            return {}
        season = 0 if self.places is None else self.places.season
        wanted = list(RULES) if self.asked.baselines is None else self.asked.baselines
        reasons = {name: RULES[name].refusal(self.problem, season) for name in wanted}
        return {name: reason for name, reason in reasons.items() if reason}

    @cached_property
    def ours(self) -> list[str]:
        return [one.called for one in self.posteriors or self.asked.ours]

    @cached_property
    def policies(self) -> dict[str, str]:
        """How sentences call each policy, by its name."""
        found = {name: name for name in self.ours}
        if self.asked.actual_decision:
            found[ACTUAL_DECISION] = "what was really done"
        if not self.posteriors:
            wanted = list(RULES) if self.asked.baselines is None else self.asked.baselines
            found |= {name: RULES[name].words for name in wanted if name not in self.left_out}
        return found

    @cached_property
    def steps(self) -> list[Step]:
        """All parts. Those of a split come one after the other, because they share its encoding."""
        return [Step(split, policy) for split in range(len(self.splits)) for policy in self.policies]

    @property
    def possible_steps(self) -> list[Step]:
        """The parts there are at most, told without building the problem."""
        rules = list(RULES) if self.asked.baselines is None else self.asked.baselines
        actual = [ACTUAL_DECISION] if self.asked.actual_decision else []
        return [Step(split, policy) for split in range(len(self.splits)) for policy in [*self.ours, *actual, *rules]]

    def work(self, step: Step, progress: Progress) -> pa.Table:
        """One line for each row that a policy was judged on in a split."""
        progress(0.0, f"{step.policy}, split {step.split + 1} of {len(self.splits)}")
        rows, decisions = self._decided(step, part_of(progress, 0.0, 0.95))
        outcomes = torch.from_numpy(history.outcomes_of(self.table.take(pa.array(rows)), self.outcomes))
        found = judge(self.problem, decisions, outcomes)
        progress(1.0, f"{step.policy}, split {step.split + 1} of {len(self.splits)}: {len(rows)} rows")
        return self._lines(step, rows, decisions, found)

    def _decided(self, step: Step, progress: Progress) -> tuple[Whole, Tensor]:
        """The rows (m,) that are judged and the decisions (m, d_z) for them, NaN where there is none."""
        if self.posteriors:
            rows = self.splits[0].judged.numpy()
            if step.policy == ACTUAL_DECISION:
                return rows, self._taken(rows)
            one = next(one for one in self.posteriors if one.called == step.policy)
            return rows, one.decisions(self.table, rows, progress)
        origin, rows = self._origin(step.split)
        if step.policy == ACTUAL_DECISION:
            return rows, self._taken(rows)
        problem = self._known_problem(step.split)
        if step.policy in RULES:
            return rows, RULES[step.policy].decide(problem, origin)
        ours = next(one for one in self.asked.ours if one.called == step.policy)
        return rows, learned_decisions(problem, origin, ours.learning_options(self.asked.seed), progress)

    def _origin(self, split: int) -> tuple[Origin, Whole]:
        if split not in self._last:
            self._last.clear()
            found = origin_of(
                self.dataset,
                self.table,
                self.splits[split],
                self.places,
                self.asked.features,
                self.outcomes,
                self.asked.seed,
            )
            if not len(found[1]):
                raise InvalidInput(
                    f"no row of split {split + 1} could have been decided for by what was known before it"
                )
            self._last[split] = found
        return self._last[split]

    def _taken(self, rows: Whole) -> Tensor:
        columns = [
            self.table.column(self.asked.actual_decision[name]).take(pa.array(rows))
            for name in decision_names(self.spec)
        ]
        return torch.from_numpy(np.stack([column.to_numpy().astype(np.float64) for column in columns], axis=1))

    def _lines(self, step: Step, rows: Whole, decisions: Tensor, found: Judged) -> pa.Table:
        columns: dict[str, Any] = {"row": rows}
        if self.places is not None:
            columns["time"] = [self.places.clock.text(period) for period in self.places.periods[rows].tolist()]
            for column in self.dataset.columns:
                if column["role"] == "series":
                    columns[f"series.{column['name']}"] = self.table.column(column["name"]).take(pa.array(rows))
        columns |= {"split": np.full(len(rows), step.split), "policy": [step.policy] * len(rows)}
        columns |= {"cost": _numbers(found.cost), "regret": _numbers(found.regret)}
        there = found.cost.isnan().numpy()
        columns["feasible"] = pa.array(found.feasible.numpy(), mask=there)
        columns |= {
            f"decision.{name}": _numbers(decisions[:, index]) for index, name in enumerate(decision_names(self.spec))
        }
        if found.served is not None:
            served = found.served.numpy()
            columns |= {
                f"served.{name}": pa.array(served[:, index], mask=there) for index, name in enumerate(self.outcomes)
            }
        return pa.table(columns)

    def summary(self, tables: Sequence[pa.Table]) -> dict[str, Any]:
        """What all parts tell, in the order of ``steps``."""
        rows = np.unique(np.concatenate([table.column("row").to_numpy() for table in tables]))
        pieces: dict[str, list[tuple[Tensor, Judged]]] = {name: [] for name in self.policies}
        split = np.zeros(len(rows), dtype=np.int64)
        for step, table in zip(self.steps, tables, strict=True):
            places = np.searchsorted(rows, table.column("row").to_numpy())
            split[places] = step.split
            pieces[step.policy].append((torch.from_numpy(places), self._read(table)))
        found = {name: aligned(len(rows), some) for name, some in pieces.items()}
        told = summarize(self.problem, self._rows(rows, split), found, self.ours, self.policies, self.outcomes)
        for number, line in enumerate(told["splits"]):
            line["learned_from"] = len(self.splits[number].known)
        return told | {"left_out": self.left_out, "notes": self._notes(rows, found)}

    def _rows(self, rows: Whole, split: Whole) -> Rows:
        if self.places is None:
            return Rows(torch.from_numpy(split))
        periods, series = (torch.from_numpy(values[rows]) for values in (self.places.periods, self.places.series))
        return Rows(
            torch.from_numpy(split),
            periods,
            series,
            self.dataset.lead,
            self.places.season,
            self.places.clock.text,
            self.places.names,
        )

    def _read(self, table: pa.Table) -> Judged:
        def whether(name: str) -> Tensor:
            return torch.from_numpy(table.column(name).fill_null(False).to_numpy().astype(bool))

        cost, regret = (torch.from_numpy(_plain(table, name)) for name in ("cost", "regret"))
        names = [f"served.{name}" for name in self.outcomes]
        served = torch.stack([whether(name) for name in names], dim=1) if names[0] in table.column_names else None
        return Judged(cost, regret, whether("feasible"), served)

    def _notes(self, rows: Whole, found: dict[str, Judged]) -> list[str]:
        notes = [f"{name} is left out: {reason}." for name, reason in self.left_out.items()]
        wanted = sum(len(split.judged) for split in self.splits)
        if len(rows) < wanted:
            notes.append(
                f"{wanted - len(rows)} of {wanted} rows could not have been decided for by what was known before them "
                "(a new category or series, or nothing of it known in time), and are left out for every policy."
            )
        for name, judged in found.items():
            gaps = int(judged.cost.isnan().sum())
            if gaps and name == ACTUAL_DECISION:
                notes.append(
                    f"{gaps} of {len(rows)} rows do not say what was done: they are left out of what was done and of "
                    "differences from it, which are paired on the rest."
                )
            elif gaps:
                notes.append(
                    f"{name} has no decision for {gaps} of {len(rows)} rows; these are left out of its numbers."
                )
        if self.places is not None and len(self.places.names) > MOST_SERIES:
            notes.append(f"Of {len(self.places.names)} series, those {MOST_SERIES} with the most rows are shown.")
        return notes


def check_actual_decision(spec: dict[str, Any], columns: list[dict[str, Any]], actual: dict[str, str]) -> None:
    """Refuse what does not say for every decision which column holds it."""
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
        detail = f"say for every decision which column holds it; {', '.join(lacking)} are lacking"
        raise InvalidRequest.at(("actual_decision",), detail)


def _numbers(values: Tensor) -> pa.Array:
    return pa.array(values.numpy(), from_pandas=True)


def _plain(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy().astype(np.float64)
