"""A prescription as a planner reads it: amounts, what they may cost, what may happen, what is done later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.pages.charts import Chart, Mark, Series
from app.pages.decide.entries import MOST_HANDLES, EntryView, EntryLimits, entries_of, largest_entries
from app.pages.render import number

# Up to so many outcomes each have a chart; more have a line in a table.
MOST_CHARTS = 4
_MOST_LINES = 100
_LOW, _HIGH = "0.05", "0.95"
STATUS_WORDS = {
    "optimal": "Solved: by its rule there is no better decision.",
    "best_effort": "The best that was found; it is not proven that there is no better one.",
    "time_limit": "The best that was found in the time allowed.",
    "infeasible": "There is no decision that keeps all rules.",
    "unbounded": "There is no best decision: the cost could fall without limit.",
    "refused": "This context cannot be decided for.",
}
_FACTS = {
    "expected_return": "expected return",
    "tail_return": "return in the worst cases",
    "volatility": "volatility",
    "variance": "variance",
    "invested": "invested",
    "turnover": "turnover",
    "turnover_cost": "cost of turnover",
}


@dataclass(frozen=True)
class Money:
    """Costs, or values where the problem seeks the most: these are costs with the other sign."""

    is_value: bool

    @property
    def word(self) -> str:
        return "value" if self.is_value else "cost"

    def __call__(self, cost: float | None) -> float | None:
        if cost is None:
            return None
        return -cost if self.is_value else cost

    def ends(self, quantiles: Mapping[str, float | None]) -> tuple[float | None, float | None]:
        """The 5–95 % range, the smaller end first."""
        low, high = self(quantiles[_LOW]), self(quantiles[_HIGH])
        return (high, low) if self.is_value else (low, high)


def money_of(prescription: Mapping[str, Any]) -> Money:
    return Money("expected_value" in (prescription["facts"] or {}))


@dataclass(frozen=True)
class OutcomeView:
    """What may become of one outcome."""

    name: str
    mean: float | None
    low: float | None
    high: float | None
    service: float | None
    chart: Chart


@dataclass(frozen=True)
class DecisionView:
    """Everything that the page says of one decision at once."""

    prescription: Mapping[str, Any]
    entries: list[EntryView]
    money: Money
    costs: Chart | None
    outcomes: list[OutcomeView]

    @property
    def status(self) -> str:
        return STATUS_WORDS[self.prescription["status"]]

    @property
    def shown(self) -> list[EntryView]:
        return largest_entries(self.entries)

    @property
    def is_large(self) -> bool:
        """Whether there are too many entries to write each of them large."""
        return len(self.entries) > MOST_HANDLES

    @property
    def chosen(self) -> list[str] | None:
        """Where everything is a yes or no: what is chosen."""
        if not self.entries or not all(entry.is_yes_or_no for entry in self.entries):
            return None
        return [entry.name for entry in self.entries if entry.amount > 0.5]

    @property
    def expected(self) -> float | None:
        return self.money(self.prescription["expected_cost"])

    @property
    def ends(self) -> tuple[float | None, float | None]:
        return self.money.ends(self.prescription["cost_quantiles"])

    @property
    def worst(self) -> float | None:
        return self.money(self.prescription["cvar_95"])

    @property
    def has_charts(self) -> bool:
        return len(self.outcomes) <= MOST_CHARTS

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What else the problem says of the decision."""
        told = self.prescription["facts"] or {}
        return [(words, number(told[name])) for name, words in _FACTS.items() if name in told]

    @property
    def recourse(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.prescription.get("recourse")
        return found

    @property
    def later(self) -> list[tuple[str, Mapping[str, Any]]]:
        """What is done once outcomes are known, the most used first."""
        plan = (self.recourse or {}).get("expected", {})
        return sorted(plan.items(), key=lambda one: -abs(one[1]["amount"] or 0.0))[:_MOST_LINES]

    @property
    def tight(self) -> list[Mapping[str, Any]]:
        """The rules of the second stage that leave no room in some scenario, though not in all."""
        rows = (self.recourse or {}).get("rows", [])
        found = [row for row in rows if row["binding_in"] is not None and 0 < row["binding_in"] < 1]
        return sorted(found, key=lambda row: -row["binding_in"])[:_MOST_LINES]


def decision_view(prescription: Mapping[str, Any], rules: Mapping[str, EntryLimits]) -> DecisionView:
    """A prescription, opened by its scenarios and outcomes, ready to be shown."""
    money, told = money_of(prescription), prescription.get("scenarios")
    entries = entries_of(prescription, rules)
    if told is None:
        return DecisionView(prescription, entries, money, None, [])
    weights = told["weights"]
    costs = [money(cost) for cost in told["costs"]]
    marks = _marks(money(prescription["expected_cost"]), money.ends(prescription["cost_quantiles"]))
    chart = histogram(f"What it may {'bring' if money.is_value else 'cost'}", costs, weights, money.word, marks)
    orders = {entry.name: entry.amount + entry.rule.stock for entry in entries}
    outcomes = [
        # An outcome that is served by the entry of its name is an amount of the same thing.
        _outcome_view(
            name,
            about,
            told["outcomes"][name],
            weights,
            orders.get(name) if about["service_level"] is not None else None,
        )
        for name, about in list((prescription.get("outcomes") or {}).items())[:_MOST_LINES]
    ]
    return DecisionView(prescription, entries, money, chart, outcomes)


def warnings_of(answer: Mapping[str, Any]) -> list[str]:
    """What is unusual about the one context, then what the whole answer warns of; not how good the posterior is, which
    stands beside it anyway, and nothing twice."""
    own: list[str] = answer["prescriptions"][0]["warnings"]
    whole = [text for text in answer["warnings"] if "context(s)" not in text and "quality is" not in text]
    return [*own, *whole]


def _outcome_view(
    name: str, about: Mapping[str, Any], values: Sequence[float], weights: Sequence[float], order: float | None
) -> OutcomeView:
    low, high = about["quantiles"][_LOW], about["quantiles"][_HIGH]
    marks = _marks(about["mean"], (low, high))
    if order is not None:
        marks.append(Mark(order, "decision", colour=1))
    chart = histogram(name, values, weights, name, marks)
    return OutcomeView(name, about["mean"], low, high, about["service_level"], chart)


def _marks(mean: float | None, ends: tuple[float | None, float | None]) -> list[Mark]:
    low, high = ends
    marks = [Mark(low, "", until=high)] if low is not None and high is not None else []
    return marks + ([Mark(mean, "mean", colour=3)] if mean is not None else [])


def counts(values: Sequence[float | None], weights: Sequence[float]) -> tuple[list[float], list[float]]:
    """The middles of equal bins and the share of the weight in each, in per cent; values that are missing are left
    out, and their weight with them."""
    kept = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    if not kept:
        return [], []
    numbers, weight = np.array(kept).T
    if numbers.min() == numbers.max():
        return [float(numbers[0])], [100 * float(weight.sum())]
    bins = int(min(24, max(8, round(1.5 * np.sqrt(len(numbers))))))
    heights, edges = np.histogram(numbers, bins, weights=weight)
    return ((edges[1:] + edges[:-1]) / 2).tolist(), (100 * heights).round(4).tolist()


def histogram(
    title: str, values: Sequence[float | None], weights: Sequence[float], x_label: str, marks: Sequence[Mark]
) -> Chart:
    """How often what is expected, by the scenarios' weights."""
    x, shares = counts(values, weights)
    room = 0.6 * (x[-1] - x[0]) / (len(x) - 1) if len(x) > 1 else 0.6
    places = [mark.x for mark in marks] + [x[0] - room, x[-1] + room] if x else [0.0, 1.0]
    return Chart(
        title,
        x,
        [Series("share of cases, %", shares, "bars", 0)],
        x_label=x_label,
        y_label="share of cases, %",
        marks=marks,
        note="shaded: 90 % of cases",
        zero=True,
        extra={"range": [min(places), max(places)], "yRange": [0, 1.3 * max(shares, default=1.0)]},
    )
