"""What is decided, entry by entry: amounts, the bounds that the problem sets, and how far a handle reaches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.pages.api_client import Api, ApiRefusal
from bco_core.problems.ready.kinds import READY

# Up to so many entries each have a handle; of more there is a table, and a handle for one of them.
MOST_HANDLES = 12
# Of a decision with more entries than this, the largest are shown.
MOST_SHOWN = 200
# A curve has about so many points.
_POINTS = 25


@dataclass(frozen=True)
class EntryLimits:
    """What the problem allows for an entry: bounds, and a step that amounts are multiples of."""

    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    # on hand already, beside what is ordered
    stock: float = 0.0


@dataclass(frozen=True)
class EntryView:
    """One entry of a decision, and what the single most plausible model would take in its place."""

    name: str
    amount: float
    alone: float | None
    rule: EntryLimits = EntryLimits()
    # how far its handle goes
    low: float = 0.0
    high: float = 1.0

    @property
    def written(self) -> str:
        """The amount for a field: digits enough to be the same decision, and no more."""
        return f"{self.amount + 0.0:.7g}"

    @property
    def slide(self) -> float:
        """The step of its handle."""
        return self.rule.step or _round_down((self.high - self.low) / 200)

    @property
    def allowed(self) -> str:
        """The bounds in words; empty where there are none."""
        least, most = self.rule.minimum, self.rule.maximum
        words = [f"at least {least:g}"] if least else []
        words += [f"at most {most:g}"] if most is not None else []
        if self.rule.step:
            words.append("whole numbers" if self.rule.step == 1 else f"multiples of {self.rule.step:g}")
        return ", ".join(words)

    @property
    def is_yes_or_no(self) -> bool:
        return (self.rule.minimum, self.rule.maximum, self.rule.step) == (0, 1, 1)

    def points(self) -> list[float]:
        """Amounts over the whole reach of the handle, this entry's own among them."""
        if self.rule.step:
            first, last = math.ceil(self.low / self.rule.step), math.floor(self.high / self.rule.step)
            stride = max(1, -(-(last - first) // (_POINTS - 1)))
            found = {k * self.rule.step for k in range(first, last + 1, stride)}
        else:
            found = {self.low + (self.high - self.low) * k / (_POINTS - 1) for k in range(_POINTS)}
        return sorted(found | {self.amount})


async def get_limits(api: Api, posterior: Mapping[str, Any]) -> dict[str, EntryLimits]:
    """What the posterior's problem allows, by entry; nothing is known of a ready-made one whose problem is gone."""
    spec = posterior["problem"]
    if spec["kind"] in READY:
        try:
            spec = (await api.get(f"/v1/problems/{posterior['problem_id']}/compiled"))["spec"]
        except ApiRefusal as refused:
            if refused.status != 404:
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
    return {asset["name"]: EntryLimits(asset.get("minimum", 0.0), asset.get("maximum")) for asset in spec.get("assets", [])}


def share_constraints(spec: Mapping[str, Any]) -> bool:
    """Whether entries share rules, so that one is hardly moved without the others."""
    return spec["kind"] != "shipment" and (spec["kind"] != "newsvendor" or bool(spec.get("decision_rows")))


def entries_of(prescription: Mapping[str, Any], known: Mapping[str, EntryLimits]) -> list[EntryView]:
    """The entries of a decision, in its order; none where there is no decision."""
    decision: Mapping[str, float | None] = prescription["decision"]
    alone = prescription["map"]["decision"]
    amounts = {name: amount for name, amount in decision.items() if amount is not None}
    if len(amounts) < len(decision):
        return []
    bounds = (prescription["facts"] or {}).get("bounds", {})
    scale = max((abs(amount) for amount in amounts.values()), default=0.0) or 1.0
    demand = _demand(prescription)
    found = []
    for name, amount in amounts.items():
        rule = known.get(name, EntryLimits())
        if name in bounds:
            rule = EntryLimits(bounds[name][0], bounds[name][1])
        low, high = _reach(amount, rule, scale, demand.get(name, []))
        found.append(EntryView(name, amount + 0.0, alone.get(name), rule, low, high))
    return found


def _demand(prescription: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """What may happen to the outcomes that are served by the entry of their name: both are amounts of one thing."""
    values = (prescription.get("scenarios") or {}).get("outcomes", {})
    told = prescription.get("outcomes") or {}
    return {name: values[name] for name, about in told.items() if about["service_level"] is not None and name in values}


def _reach(amount: float, rule: EntryLimits, scale: float, demand: Sequence[float]) -> tuple[float, float]:
    """From where to where a handle goes: within the bounds, over all that may be worth a thought."""
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
    """The entries that a page shows: all in their order or, of many, the largest first."""
    if len(entries) <= MOST_HANDLES:
        return list(entries)
    return sorted(entries, key=lambda entry: -abs(entry.amount))[:MOST_SHOWN]


def with_amounts(entries: Sequence[EntryView], amounts: Mapping[str, float]) -> list[EntryView]:
    """The entries with other amounts; their handles reach as far as before."""
    return [replace(entry, amount=amounts.get(entry.name, entry.amount)) for entry in entries]


def _round_down(step: float) -> float:
    """1, 2 or 5 times a power of ten, at most a number."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next((m * power for m in (5, 2, 1) if m * power <= step), power)
