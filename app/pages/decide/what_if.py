"""What-ifs: the cost of the planner's own decisions compared with the recommended one, singly or as a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from app.http.errors import InvalidRequest
from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal
from app.pages.charts import Chart, Mark, Series
from app.pages.decide.answer import EntryView, Money, entries_of, get_limits, money_of
from app.pages.decide.fields import FormValues, read_fields
from app.pages.decide.query import DecideQuery, render_part
from app.pages.forms import parse_number
from app.pages.render import number

router = APIRouter(include_in_schema=False)

# Prefix of fields that hold entries of a decision.
PREFIX = "d."
YOURS = "yours"
_MOST_ANEW = 12
# Time limit of a what-if.
_SECONDS = 20


class ComparisonView(NamedTuple):
    """One measure of two decisions."""

    label: str
    ours: float | None
    yours: float | None
    is_share: bool = False


@dataclass(frozen=True)
class WhatIfView:
    """The planner's decision compared with the recommended one."""

    ours: Mapping[str, Any]
    yours: Mapping[str, Any]
    money: Money
    policy: str
    minds_risk: bool

    @property
    def verdict(self) -> str:
        return verdict(self.yours, self.ours["expected_cost"], self.money)

    @property
    def why_better(self) -> str:
        """Why the planner's decision is clearly better on average; empty if it is not."""
        extra_cost, error = self.yours["extra_cost"], self.yours["extra_cost_standard_error"]
        if extra_cost is None or error is None or not extra_cost < -2 * error < 0:
            return ""
        if self.minds_risk:
            return "The recommended decision avoids the worst cases, at a higher mean cost."
        if self.policy == "predictive":
            return ""
        return (
            f"The policy {self.policy} does not optimise over the scenarios that costs are computed on. The policy "
            "predictive does."
        )

    @property
    def chosen_anew(self) -> list[tuple[str, float | None, float | None]]:
        """Entries that were adjusted and differ from the recommended decision."""
        result = []
        for name in self.yours["filled"]:
            ours, yours = self.ours["decision"][name], self.yours["decision"][name]
            if ours is None or yours is None or abs(ours - yours) > 1e-4 * max(abs(ours), abs(yours), 1e-6):
                result.append((name, ours, yours))
        return result[:_MOST_ANEW]

    @property
    def lines(self) -> list[ComparisonView]:
        """Measures of both decisions."""
        money, ours, yours = self.money, self.ours, self.yours
        our_ends, ends = money.ends(ours["cost_quantiles"]), money.ends(yours["cost_quantiles"])
        result = [
            ComparisonView(f"expected {money.word}", money(ours["expected_cost"]), money(yours["expected_cost"])),
            ComparisonView("5 % quantile", our_ends[0], ends[0]),
            ComparisonView("95 % quantile", our_ends[1], ends[1]),
            ComparisonView("mean of the worst 5 %", money(ours["cvar_95"]), money(yours["cvar_95"])),
        ]
        for name, level in (ours["service_level"] or {}).items():
            result.append(ComparisonView(f"{name}: served in full", level, yours["service_level"][name], is_share=True))
        if yours["feasibility"] is not None:
            result.append(ComparisonView("constraints met", ours["feasibility"], yours["feasibility"], is_share=True))
        return result


def verdict(yours: Mapping[str, Any], our_cost: float | None, money: Money) -> str:
    """Say whether another decision is better than the recommended one, and how surely."""
    extra_cost, error = yours["extra_cost"], yours["extra_cost_standard_error"]
    if extra_cost is None:
        return yours["reason"] or "The cost is unknown: in some scenario no recourse is feasible."
    if not drop_rounding(extra_cost, abs(our_cost or 0.0)):
        return f"It {'brings' if money.is_value else 'costs'} the same as the recommended decision."
    more, less = ("brings {} less", "brings {} more") if money.is_value else ("costs {} more", "costs {} less")
    amount = (more if extra_cost > 0 else less).format(number(abs(extra_cost)))
    margin = f"± {number(2 * error)}" if error is not None else "standard error unknown"
    if error is not None and abs(extra_cost) <= 2 * error:
        return f"No clear difference: on average it {amount} than the recommended decision ({margin})."
    worse = f"{100 * yours['worse_in']:.0f} %" if yours["worse_in"] is not None else "–"
    return f"On average it {amount} than the recommended decision ({margin}); it is worse in {worse} of cases."


def drop_rounding(difference: float | None, size: float) -> float | None:
    """Return a cost difference, or 0 if it is only rounding."""
    return 0.0 if difference is not None and abs(difference) <= 1e-6 * size else difference


async def read_query(api: Api, named: str, given: FormValues) -> tuple[DecideQuery, Mapping[str, Any]]:
    """Read the query of a form that the page sent, and get the posterior."""
    posterior = await api.get(DecideQuery(named, ()).api)
    fields = read_fields(posterior, given)
    if fields is None:
        raise InvalidRequest.at(("contexts",), "columns of the context are missing; reload the page")
    return DecideQuery.of(named, fields, given), posterior


def amounts(given: FormValues) -> dict[str, Any]:
    """Read the entries of a form: numbers where possible, None for empty ones."""
    result = {}
    for key, text in given.multi_items():
        if key.startswith(PREFIX) and isinstance(text, str):
            result[key.removeprefix(PREFIX)] = parse_number(text) if text.strip() else None
    return result


async def tried_decision(api: Api, query: DecideQuery, given: FormValues) -> dict[str, Any]:
    """Return the decision to evaluate: entries of the form, the others as recommended or left to be adjusted."""
    mine = amounts(given)
    if given.get("rest") == "free":
        chosen = given.get("entry")
        return {chosen: mine.get(chosen)} if isinstance(chosen, str) and chosen in mine else mine
    if given.get("all") == "1":
        return mine
    answer = await api.post(f"{query.api}/prescribe", query.body(), kept=False)
    return dict(answer["prescriptions"][0]["decision"]) | mine


@router.post("/posteriors/{named}/decide/evaluate")
async def try_decision(named: str, request: Request, caller: Reader) -> Response:
    """Evaluate the planner's decision without logging it."""
    form = await forms.read_form(request)
    api = Api(request)
    query, posterior = await read_query(api, named, form)
    decision = await tried_decision(api, query, form)
    body = query.body(alternatives=[{"name": YOURS, "decision": decision}], time_limit_seconds=_SECONDS)
    try:
        answer = await api.post(f"{query.api}/evaluate", body, kept=False)
    except ApiRefusal as refusal:
        return render_part(
            request, "decide_mine.html", query, posterior, refusal.status, refusal=refusal, tried=None, asking=[]
        )
    result = answer["evaluations"][0]
    tried = WhatIfView(
        result["ours"], result["alternatives"][0], money_of(result["ours"]), answer["policy"], "risk" in query.options()
    )
    return render_part(request, "decide_mine.html", query, posterior, tried=tried, asking=api.calls[-1:])


@router.post("/posteriors/{named}/decide/curve")
async def curve(named: str, request: Request, caller: Reader) -> Response:
    """Draw the cost over the amounts of one entry, with the others fixed or adjusted."""
    form = await forms.read_form(request)
    api = Api(request)
    query, posterior = await read_query(api, named, form)
    rules = await get_limits(api, posterior)
    body = query.body(include=["scenarios", "outcomes"])
    ours = (await api.post(f"{query.api}/prescribe", body, kept=False))["prescriptions"][0]
    entries = {entry.name: entry for entry in entries_of(ours, rules)}
    entry = entries.get(forms.text(form, "entry")) or next(iter(entries.values()), None)
    if entry is None:
        raise InvalidRequest.at(("entry",), "there is no decision to change")
    rest = {} if form.get("rest") == "free" else dict(ours["decision"]) | amounts(form)
    points = entry.points()
    tries = [{"name": f"{point:g}"[:100], "decision": rest | {entry.name: point}} for point in points]
    body = query.body(alternatives=tries, time_limit_seconds=_SECONDS)
    try:
        answer = await api.post(f"{query.api}/evaluate", body, kept=False)
    except ApiRefusal as refusal:
        return render_part(
            request, "decide_curve.html", query, posterior, refusal.status, refusal=refusal, chart=None, asking=[]
        )
    chart = _curve(entry, points, answer["evaluations"][0], money_of(ours))
    return render_part(request, "decide_curve.html", query, posterior, chart=chart, entry=entry, asking=api.calls[-1:])


def _curve(entry: EntryView, points: list[float], found: Mapping[str, Any], money: Money) -> Chart:
    alternatives = found["alternatives"]
    ends = [money.ends(one["cost_quantiles"]) for one in alternatives]
    expected = [money(one["expected_cost"]) for one in alternatives]
    series = [
        Series("5–95 % of cases", [low for low, _ in ends], "band", 0, upper=[high for _, high in ends]),
        Series(f"expected {money.word}", expected, "line", 0),
        Series("mean of the worst 5 %", [money(one["cvar_95"]) for one in alternatives], "line", 1, dashed=True),
    ]
    marks = [Mark(entry.amount, "recommended", colour=2)]
    for bound, word in ((entry.rule.minimum, "minimum"), (entry.rule.maximum, "maximum")):
        if bound is not None and points[0] < bound < points[-1]:
            marks.append(Mark(bound, word, colour=6))
    chart = Chart(
        f"{money.word.capitalize()} over {entry.name}",
        points,
        series,
        x_label=entry.name,
        y_label=money.word,
        marks=marks,
        key="cost-curve",
        height=320,
    )
    return replace(chart, extra={"entry": entry.name, "step": entry.slide})
