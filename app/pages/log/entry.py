"""One kept call as a page shows it: what was asked, what was answered, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

from app.db.former_names import logged_answer
from app.pages.api_client import Call
from app.pages.format import in_a_line, written

# Contexts and columns that a page shows of a call that has many.
MOST_ROWS, MOST_COLUMNS = 50, 10
OUTCOME, ACTUAL_DECISION = "outcome.", "actual_decision."

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A record of the log, the posterior that has answered, None if it was deleted, and the context looked at."""

    record: Json
    posterior: Json | None
    index: int = 0

    @property
    def contexts(self) -> list[Any]:
        found: list[Any] = self.record["request"]["contexts"]
        return found

    @cached_property
    def answers(self) -> list[Json]:
        """What was decided for each context."""
        answer = self.record["answer"]
        if self.record["kind"] == "evaluate":
            return [one["ours"] for one in answer["evaluations"]]
        found: list[Json] = answer["prescriptions"]
        return found

    @property
    def answer(self) -> Json:
        return self.answers[self.index]

    @property
    def alternatives(self) -> list[Json]:
        """What else was judged for the context."""
        if self.record["kind"] != "evaluate":
            return []
        answer = logged_answer(self.record["answer"])
        found: list[Json] = answer["evaluations"][self.index]["alternatives"]
        return found

    @property
    def outcomes(self) -> dict[int, Json]:
        return {one["index"]: one for one in self.record["outcomes"]}

    @property
    def outcome(self) -> Json | None:
        return self.outcomes.get(self.index)

    # contexts as a table

    def context(self, index: int) -> dict[str, Any]:
        """A context by names of columns; it may have come as a list, in the order of the posterior's columns."""
        given = self.contexts[index]
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, list):
            return dict(zip(self._names, given, strict=False))
        return {}

    @property
    def _names(self) -> list[str]:
        columns = [] if self.posterior is None else self.posterior["columns"]
        return [column["name"] for column in columns if column["role"] not in ("outcome", "decision")]

    @cached_property
    def columns(self) -> list[str]:
        names: dict[str, None] = {}
        for index in range(self.shown):
            names |= dict.fromkeys(self.context(index))
        return list(names)[:MOST_COLUMNS]

    @property
    def shown(self) -> int:
        return min(len(self.contexts), MOST_ROWS)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The first contexts, with what was decided and what came of it."""
        found = []
        for index in range(self.shown):
            context, answer, happened = self.context(index), self.answers[index], self.outcomes.get(index)
            found.append(
                {
                    "index": index,
                    "cells": [written(context[name]) if name in context else "" for name in self.columns],
                    "decision": in_a_line(answer["decision"], 3),
                    "status": answer["status"],
                    "expected_cost": answer["expected_cost"],
                    "realised": None if happened is None else happened["realised_cost"],
                    "recorded": happened is not None,
                }
            )
        return found

    # what was asked, in words

    @property
    def how(self) -> list[tuple[str, str]]:
        request, answer = self.record["request"], self.record["answer"]
        scenarios = answer["scenarios"]
        said = [
            ("Policy", f"{answer['policy']}{'' if request['policy'] else ', as recommended'}"),
            ("Judged over", f"{scenarios['count']} scenarios ({scenarios['source']}, seed {scenarios['seed']})"),
        ]
        risk = request.get("risk")
        if risk:
            weight, level = risk["cvar_weight"], risk["cvar_level"]
            said.append(("Risk", f"the worst {1 - level:.0%} of cases count {weight:.0%}, the mean the rest"))
        if answer.get("history"):
            past = answer["history"]
            said.append(("Looked back on", f"rows up to {past['last']} (revision {past['revision']})"))
        if answer.get("problem_differs"):
            said.append(("Numbers changed", f"{len(answer['problem_differs'])} of the problem's, for this call alone"))
        return said

    @property
    def warnings(self) -> list[str]:
        return [*self.record["answer"]["warnings"], *self.answer.get("warnings", [])]

    @property
    def again(self) -> str:
        """The address at which to decide for the same context."""
        pairs = [(f"c.{name}", _typed(value)) for name, value in self.context(self.index).items() if value is not None]
        request = self.record["request"]
        if request["policy"]:
            pairs.append(("policy", request["policy"]))
        if request.get("risk"):
            pairs.append(("risk", _typed(request["risk"]["cvar_weight"])))
        place = quote(self.record["posterior_id"], safe="")
        return f"/posteriors/{place}/decide?{urlencode(pairs, quote_via=quote)}"

    # what came of it

    @property
    def outcome_names(self) -> list[str]:
        columns = [] if self.posterior is None else self.posterior["columns"]
        return [column["name"] for column in columns if column["role"] == "outcome"]

    @property
    def decision_names(self) -> list[str]:
        return list(self.answer["decision"])

    def recorded(self, values: Mapping[str, str] | None, kind: str, name: str) -> str:
        """What stands in a field: what was typed or, before that, what is recorded."""
        if values is not None:
            return values.get(f"{kind}{name}", "")
        known = {} if self.outcome is None else self.outcome["outcomes" if kind == OUTCOME else "actual_decision"]
        return "" if known.get(name) is None else _typed(known[name])

    @property
    def example(self) -> Call:
        """How outcomes are recorded without this page, with the decision itself as the numbers."""
        values = {name: _rounded(self.answer["decision"].get(name)) for name in self.decision_names}
        happened = {name: values.get(name, 0) for name in self.outcome_names}
        body = {"rows": [{"index": self.index, "outcomes": happened, "actual_decision": values}]}
        return Call("POST", f"/v1/prescriptions/{self.record['id']}/outcome", body)

    @property
    def reproducing(self) -> Call:
        return Call("POST", f"/v1/prescriptions/{self.record['id']}/reproduce")


def outcome_request(index: int, values: Mapping[str, str], replace: bool) -> dict[str, Any]:
    """What a form says of one context, as the API takes it; empty fields say nothing."""
    row: dict[str, Any] = {"index": index}
    for field, prefix in (("outcomes", OUTCOME), ("actual_decision", ACTUAL_DECISION)):
        told = {name.removeprefix(prefix): number_of(text) for name, text in values.items() if name.startswith(prefix)}
        if told := {name: value for name, value in told.items() if value != ""}:
            row[field] = told
    return {"rows": [row]} | ({"replace": True} if replace else {})


def number_of(text: str) -> float | str:
    """A number as it was typed; what is none stays text, for the API to say so. A comma may mean two things."""
    try:
        value = float(text)
    except ValueError:
        return text.strip()
    return value if math.isfinite(value) else text.strip()


def _typed(value: Any) -> str:
    """A value as it is typed into a field."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _rounded(value: Any) -> Any:
    return round(value) if isinstance(value, float) else value


def place(kind: str, name: str) -> str:
    """Where the API says what is wrong with a field: the request has one row."""
    field = "outcomes" if kind == OUTCOME else "actual_decision"
    return f"#/rows/0/{field}/{name.replace('~', '~0').replace('/', '~1')}"
