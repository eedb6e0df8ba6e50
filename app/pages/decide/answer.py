"""Show a prescription: its entries with their limits, its cost, possible outcomes, and recourse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.pages.api_client import Api, ApiRefusal
from app.pages.charts import Chart, Mark, Series
from app.pages.render import number
from bco_core.problems.ready.kinds import READY

# With more entries, a table replaces the sliders, with a slider for one entry.
MOST_HANDLES = 12
# Of longer decisions, the largest entries are shown.
MOST_SHOWN = 200
# Points of a curve.
_POINTS = 25


@dataclass(frozen=True)
class EntryLimits:
    """Bounds and step of an entry, as the problem sets them."""

    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    # on hand, in addition to the order
    stock: float = 0.0


@dataclass(frozen=True)
class EntryView:
    """One entry of a decision; ``alone`` is the amount of the MAP decision."""

    name: str
    amount: float
    alone: float | None
    rule: EntryLimits = EntryLimits()
    # range of its slider
    low: float = 0.0
    high: float = 1.0

    @property
    def field_text(self) -> str:
        """The amount as text for a field, with 7 significant digits."""
        return f"{self.amount + 0.0:.7g}"

    @property
    def slide(self) -> float:
        """The step of its slider."""
        return self.rule.step or _round_down((self.high - self.low) / 200)

    @property
    def allowed(self) -> str:
        """The bounds as text; empty without bounds."""
        least, most = self.rule.minimum, self.rule.maximum
        words = [f"at least {least:g}"] if least else []
        words += [f"at most {most:g}"] if most is not None else []
        if self.rule.step:
            words.append("integers" if self.rule.step == 1 else f"multiples of {self.rule.step:g}")
        return ", ".join(words)

    @property
    def is_yes_or_no(self) -> bool:
        return (self.rule.minimum, self.rule.maximum, self.rule.step) == (0, 1, 1)

    def points(self) -> list[float]:
        """Return amounts over the range of the slider, including this entry's own."""
        if self.rule.step:
            first, last = math.ceil(self.low / self.rule.step), math.floor(self.high / self.rule.step)
            stride = max(1, -(-(last - first) // (_POINTS - 1)))
            result = {k * self.rule.step for k in range(first, last + 1, stride)}
        else:
            result = {self.low + (self.high - self.low) * k / (_POINTS - 1) for k in range(_POINTS)}
        return sorted(result | {self.amount})


async def get_limits(api: Api, posterior: Mapping[str, Any]) -> dict[str, EntryLimits]:
    """Get the limits of each entry; none for a ready-made problem that was deleted."""
    spec = posterior["problem"]
    if spec["kind"] in READY:
        try:
            spec = (await api.get(f"/v1/problems/{posterior['problem_id']}/compiled"))["spec"]
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise
            return {}
    return limits_of(spec)


def limits_of(spec: Mapping[str, Any]) -> dict[str, EntryLimits]:
    if spec["kind"] == "newsvendor":
        return {
            item["name"]: EntryLimits(
                item.get("minimum_order", 0.0),
                item.get("maximum_order"),
                item.get("pack_size") or (1.0 if item.get("integer") else None),
                item.get("stock", 0.0),
            )
            for item in spec["items"]
        }
    if spec["kind"] == "shipment":
        return {source["name"]: EntryLimits(0.0, source.get("maximum_order")) for source in spec["sources"]}
    if spec["kind"] in ("linear", "two_stage_linear"):
        return {
            one["name"]: EntryLimits(one.get("minimum", 0.0), one.get("maximum"), 1.0 if one.get("integer") else None)
            for one in spec["decisions"]
        }
    return {
        asset["name"]: EntryLimits(asset.get("minimum", 0.0), asset.get("maximum")) for asset in spec.get("assets", [])
    }


def share_constraints(spec: Mapping[str, Any]) -> bool:
    """Whether entries share constraints, so that moving one affects the others."""
    return spec["kind"] != "shipment" and (spec["kind"] != "newsvendor" or bool(spec.get("decision_rows")))


def entries_of(prescription: Mapping[str, Any], known: Mapping[str, EntryLimits]) -> list[EntryView]:
    """Return the entries of a decision in order; none without a decision."""
    decision: Mapping[str, float | None] = prescription["decision"]
    alone = prescription["map"]["decision"]
    amounts = {name: amount for name, amount in decision.items() if amount is not None}
    if len(amounts) < len(decision):
        return []
    bounds = (prescription["facts"] or {}).get("bounds", {})
    scale = max((abs(amount) for amount in amounts.values()), default=0.0) or 1.0
    demand = _demand(prescription)
    result = []
    for name, amount in amounts.items():
        rule = known.get(name, EntryLimits())
        if name in bounds:
            rule = EntryLimits(bounds[name][0], bounds[name][1])
        low, high = _reach(amount, rule, scale, demand.get(name, []))
        result.append(EntryView(name, amount + 0.0, alone.get(name), rule, low, high))
    return result


def _demand(prescription: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Return the scenarios of outcomes that are served by the entry of their name."""
    values = (prescription.get("scenarios") or {}).get("outcomes", {})
    outcomes = prescription.get("outcomes") or {}
    return {
        name: values[name] for name, about in outcomes.items() if about["service_level"] is not None and name in values
    }


def _reach(amount: float, rule: EntryLimits, scale: float, demand: Sequence[float]) -> tuple[float, float]:
    """Return the range of a slider: all plausible amounts within the bounds."""
    least = -math.inf if rule.minimum is None else rule.minimum
    most = math.inf if rule.maximum is None else rule.maximum
    if demand:
        low, high = min([amount, *demand]) - rule.stock, max([amount, *demand]) - rule.stock
    elif math.isfinite(most - least) and most - least <= 4 * max(scale, amount - least):
        low, high = least, most
    else:
        width = abs(amount) or scale
        low, high = amount - width, amount + width
    low, high = min(max(low, least), amount), max(min(high, most), amount)
    if not high > low:
        high = low + (rule.step or scale)
    step = rule.step or _round_down((high - low) / 200)
    return max(math.floor(low / step) * step, least), min(math.ceil(high / step) * step, max(most, amount))


def largest_entries(entries: Sequence[EntryView]) -> list[EntryView]:
    """Return the entries to show: all in order or, of many, the largest first."""
    if len(entries) <= MOST_HANDLES:
        return list(entries)
    return sorted(entries, key=lambda entry: -abs(entry.amount))[:MOST_SHOWN]


def _round_down(step: float) -> float:
    """Round down to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next((m * power for m in (5, 2, 1) if m * power <= step), power)


# More outcomes than this are shown as a table instead of charts.
MOST_CHARTS = 4
_MOST_LINES = 100
_LOW, _HIGH = "0.05", "0.95"
STATUS_WORDS = {
    "optimal": "Optimal for this policy.",
    "best_effort": "Best decision found; optimality is not proven.",
    "time_limit": "Best decision found within the time limit.",
    "infeasible": "No decision meets all constraints. Check the limits of the problem.",
    "unbounded": "Unbounded: the cost can fall without limit. Add limits to the problem.",
    "refused": "No decision for this context.",
}
_FACTS = {
    "expected_return": "expected return",
    "tail_return": "mean return of the worst cases",
    "volatility": "volatility",
    "variance": "variance",
    "invested": "invested",
    "turnover": "turnover",
    "turnover_cost": "turnover cost",
}


@dataclass(frozen=True)
class Money:
    """Convert costs to what the page shows: costs, or values (negative costs) of a maximisation problem."""

    is_value: bool

    @property
    def word(self) -> str:
        return "value" if self.is_value else "cost"

    def __call__(self, cost: float | None) -> float | None:
        if cost is None:
            return None
        return -cost if self.is_value else cost

    def ends(self, quantiles: Mapping[str, float | None]) -> tuple[float | None, float | None]:
        """Return the 5–95 % range, smaller end first."""
        low, high = self(quantiles[_LOW]), self(quantiles[_HIGH])
        return (high, low) if self.is_value else (low, high)


def money_of(prescription: Mapping[str, Any]) -> Money:
    return Money("expected_value" in (prescription["facts"] or {}))


@dataclass(frozen=True)
class OutcomeView:
    """Distribution of one outcome."""

    name: str
    mean: float | None
    low: float | None
    high: float | None
    service: float | None
    chart: Chart


@dataclass(frozen=True)
class DecisionView:
    """A decision with its cost, outcomes and recourse."""

    prescription: Mapping[str, Any]
    entries: list[EntryView]
    money: Money
    costs: Chart | None
    outcomes: list[OutcomeView]

    @property
    def status(self) -> str:
        return STATUS_WORDS[self.prescription["status"]]

    @property
    def main_entries(self) -> list[EntryView]:
        return largest_entries(self.entries)

    @property
    def is_large(self) -> bool:
        """Whether the entries are shown as a table."""
        return len(self.entries) > MOST_HANDLES

    @property
    def selected_names(self) -> list[str] | None:
        """Names of selected entries, if all are binary."""
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
        """Further figures of the problem."""
        facts = self.prescription["facts"] or {}
        return [(words, number(facts[name])) for name, words in _FACTS.items() if name in facts]

    @property
    def recourse(self) -> Mapping[str, Any] | None:
        result: Mapping[str, Any] | None = self.prescription.get("recourse")
        return result

    @property
    def later(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Recourse actions, largest first."""
        plan = (self.recourse or {}).get("expected", {})
        return sorted(plan.items(), key=lambda one: -abs(one[1]["amount"] or 0.0))[:_MOST_LINES]

    @property
    def tight(self) -> list[Mapping[str, Any]]:
        """Second-stage constraints that bind in some scenarios but not in all."""
        rows = (self.recourse or {}).get("rows", [])
        result = [row for row in rows if row["binding_in"] is not None and 0 < row["binding_in"] < 1]
        return sorted(result, key=lambda row: -row["binding_in"])[:_MOST_LINES]


def decision_view(prescription: Mapping[str, Any], rules: Mapping[str, EntryLimits]) -> DecisionView:
    """Build the view of a prescription that includes scenarios and outcomes."""
    money, scenarios = money_of(prescription), prescription.get("scenarios")
    entries = entries_of(prescription, rules)
    if scenarios is None:
        return DecisionView(prescription, entries, money, None, [])
    weights = scenarios["weights"]
    costs = [money(cost) for cost in scenarios["costs"]]
    marks = _marks(money(prescription["expected_cost"]), money.ends(prescription["cost_quantiles"]))
    chart = histogram(f"Distribution of {money.word}", costs, weights, money.word, marks)
    orders = {entry.name: entry.amount + entry.rule.stock for entry in entries}
    outcomes = [
        # An outcome served by the entry of its name has the same unit.
        _outcome_view(
            name,
            about,
            scenarios["outcomes"][name],
            weights,
            orders.get(name) if about["service_level"] is not None else None,
        )
        for name, about in list((prescription.get("outcomes") or {}).items())[:_MOST_LINES]
    ]
    return DecisionView(prescription, entries, money, chart, outcomes)


def warnings_of(answer: Mapping[str, Any]) -> list[str]:
    """Return the warnings of the context, then those of the answer, except the posterior's quality, which is shown
    anyway."""
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
    marks = [Mark(low, "", x_end=high)] if low is not None and high is not None else []
    return marks + ([Mark(mean, "mean", colour=3)] if mean is not None else [])


def counts(values: Sequence[float | None], weights: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the centres of equal bins and the weight in each, in per cent; missing values are left out with their
    weight."""
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
    """Draw a weighted histogram of scenario values."""
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
