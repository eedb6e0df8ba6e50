"""Explain a decision: drivers of the prediction, sensitivity, prices of constraints, and similar rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.pages.api_client import Api, ApiRefusal
from app.pages.decide.answer import money_of
from app.pages.decide.query import render_part
from app.pages.decide.what_if import read_query
from app.pages.render import number

router = APIRouter(include_in_schema=False)

_NEIGHBOURS = 8
# Entries named per change, largest first.
_MOST_NAMED = 4
_MOST_OUTCOMES = 12
_MOST_SWITCHES = 12


@dataclass(frozen=True)
class ContributionView:
    """The contribution of a column to a prediction; ``left`` and ``width`` place its bar between 0 and 100."""

    name: str
    value: str
    amount: float
    left: float
    width: float


@dataclass(frozen=True)
class AttributionView:
    """The prediction of an outcome as contributions of columns."""

    name: str
    base: float
    prediction: float
    bars: list[ContributionView]
    middle: float
    adds_up: bool

    @property
    def total(self) -> float:
        return sum(bar.amount for bar in self.bars)


@router.get("/posteriors/{named}/decide/why")
async def why(named: str, request: Request, caller: Reader) -> Response:
    """Explain a decision."""
    api = Api(request)
    query, posterior = await read_query(api, named, request.query_params)
    gone = ""
    body = query.body(include=["sensitivity", "neighbours"], neighbours=_NEIGHBOURS)
    try:
        try:
            answer = await api.post(f"{query.api}/prescribe", body, kept=False)
        except ApiRefusal as refusal:
            # Without the training data there are no similar rows.
            if refusal.status != 409:
                raise
            gone = refusal.detail
            answer = await api.post(f"{query.api}/prescribe", query.body(include=["sensitivity"]), kept=False)
    except ApiRefusal as refusal:
        return render_part(request, "decide_why.html", query, posterior, refusal.status, refusal=refusal, asking=[])
    result = answer["prescriptions"][0]
    sensitivity, neighbours = result["sensitivity"], result.get("neighbours")
    return render_part(
        request,
        "decide_why.html",
        query,
        posterior,
        drivers=_drivers(sensitivity, query.context) if sensitivity else [],
        attribution=sensitivity["attribution"] if sensitivity else None,
        moves=_moves(sensitivity, posterior, result) if sensitivity else [],
        switches=_switches(sensitivity, result) if sensitivity else [],
        prices=[(_rule(one["rule"]), one["price"]) for one in sensitivity["prices"]] if sensitivity else [],
        neighbours=neighbours,
        money=money_of(result),
        gone=gone,
        asking=api.calls[-1:],
    )


def _drivers(sensitivity: Mapping[str, Any], context: Mapping[str, Any]) -> list[AttributionView]:
    result = []
    for name, one in list(sensitivity["attribution"]["outcomes"].items())[:_MOST_OUTCOMES]:
        if one["base"] is None or one["prediction"] is None:
            continue
        amounts = {column: amount or 0.0 for column, amount in one["contributions"].items()}
        low, high = min([0.0, *amounts.values()]), max([0.0, *amounts.values()])
        span = (high - low) or 1.0
        bars = [
            ContributionView(
                column,
                _value(context.get(column)),
                amount,
                round(100 * (min(amount, 0.0) - low) / span, 2),
                round(100 * abs(amount) / span, 2),
            )
            for column, amount in sorted(amounts.items(), key=lambda pair: -abs(pair[1]))
        ]
        left = one["prediction"] - one["base"] - sum(amounts.values())
        tolerance = 1e-6 * max(1.0, abs(one["prediction"]))
        adds_up = abs(left) <= tolerance or abs(left - (one["residual"] or 0.0)) <= tolerance
        result.append(AttributionView(name, one["base"], one["prediction"], bars, round(-100 * low / span, 2), adds_up))
    return result


def _value(value: Any) -> str:
    return "missing" if value is None else number(value) if isinstance(value, int | float) else str(value)


def _moves(
    sensitivity: Mapping[str, Any], posterior: Mapping[str, Any], found: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Describe the effect of increasing each number, as (cause, effect)."""
    spread = {column["name"]: column["std"] for column in posterior["columns"]}
    sentences = []
    for name, one in sensitivity["derivatives"].items():
        if one["method"] is None:
            continue
        units = _units(spread.get(name))
        moved = {entry: None if amount is None else units * amount for entry, amount in one["decision"].items()}
        cost = None if one["expected_cost"] is None else units * one["expected_cost"]
        sentences.append((f"{number(units)} more {name}", _describe_change(moved, cost, found)))
    return sentences


def _units(spread: float | None) -> float:
    """Return one unit, or a power of ten that fits the spread of a column."""
    if not spread or 0.2 <= spread <= 200:
        return 1.0
    return float(10.0 ** math.floor(math.log10(spread)))


def _switches(sensitivity: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Describe the effect of other values of a column."""
    return [
        (name, _yes(value), _describe_change(one["decision"], one["expected_cost"], found))
        for name, values in sensitivity["switches"].items()
        for value, one in list(values.items())[:_MOST_SWITCHES]
    ]


def _yes(value: str) -> str:
    return {"true": "yes", "false": "no"}.get(value, value)


def _describe_change(moved: Mapping[str, float | None], cost: float | None, found: Mapping[str, Any]) -> str:
    """``0.8 more croissants, 1.2 fewer loaves; expected cost 0.5 lower``."""
    size = max((abs(amount) for amount in found["decision"].values() if amount is not None), default=1.0)
    known = {name: amount for name, amount in moved.items() if amount is not None and abs(amount) > 1e-4 * size}
    ordered = sorted(known.items(), key=lambda pair: -abs(pair[1]))
    words = [
        f"{number(abs(amount), 3)} {'more' if amount > 0 else 'fewer'} {name}" for name, amount in ordered[:_MOST_NAMED]
    ]
    if len(ordered) > _MOST_NAMED:
        words.append(f"and {len(ordered) - _MOST_NAMED} more changes")
    sensitivity = ", ".join(words) or "same decision"
    if cost is None:
        return sensitivity
    money = money_of(found)
    change = money(cost) or 0.0
    if abs(change) <= 1e-4 * max(abs(found["expected_cost"] or 0.0), 1e-9):
        return f"{sensitivity}; same expected {money.word}"
    return f"{sensitivity}; expected {money.word} {number(abs(change), 3)} {'higher' if change > 0 else 'lower'}"


def _rule(place: str) -> str:
    """Format ``decision_rows/budget`` or ``items/loaves/maximum_order`` as text."""
    _, name, *which = (*place.split("/"), "")
    return ": ".join([name, *(one.replace("_", " ") for one in which if one)]) or place
