"""Decisions of the planner's own: what they would cost against ours, one at a time or along a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from app.http.errors import InvalidRequest
from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, Refused
from app.pages.charts import Chart, Mark, Series
from app.pages.decide.answer import Money, money_of
from app.pages.decide.entries import Entry, entries_of, rules_of
from app.pages.decide.fields import Given, given_fields, number_of
from app.pages.decide.parts import part
from app.pages.decide.query import Asked
from app.pages.render import number

router = APIRouter(include_in_schema=False)

# Entries of a decision have their names after this.
PREFIX = "d."
YOURS = "yours"
_MOST_ANEW = 12
# What is tried out must not keep the service busy for long.
_SECONDS = 20


class Compared(NamedTuple):
    """One thing about two decisions."""

    words: str
    ours: float | None
    yours: float | None
    is_share: bool = False


@dataclass(frozen=True)
class Tried:
    """A decision of the planner's own beside ours."""

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
        """How a decision can be clearly better on average than ours; empty where it is not."""
        extra_cost, error = self.yours["extra_cost"], self.yours["extra_cost_standard_error"]
        if extra_cost is None or error is None or not extra_cost < -2 * error < 0:
            return ""
        if self.minds_risk:
            return "Ours minds the worst cases, and pays for that on average."
        if self.policy == "predictive":
            return ""
        return (
            f"Ours is decided by the policy {self.policy}, which does not look at the scenarios that costs are "
            "computed over. The policy predictive does."
        )

    @property
    def chosen_anew(self) -> list[tuple[str, float | None, float | None]]:
        """What was left to us and has become something else than in our own decision."""
        found = []
        for name in self.yours["filled"]:
            ours, yours = self.ours["decision"][name], self.yours["decision"][name]
            if ours is None or yours is None or abs(ours - yours) > 1e-4 * max(abs(ours), abs(yours), 1e-6):
                found.append((name, ours, yours))
        return found[:_MOST_ANEW]

    @property
    def lines(self) -> list[Compared]:
        """What is said of both."""
        money, ours, yours = self.money, self.ours, self.yours
        our_ends, ends = money.ends(ours["cost_quantiles"]), money.ends(yours["cost_quantiles"])
        found = [
            Compared(f"expected {money.word}", money(ours["expected_cost"]), money(yours["expected_cost"])),
            Compared("in 5 % of cases below", our_ends[0], ends[0]),
            Compared("in 5 % of cases above", our_ends[1], ends[1]),
            Compared("mean of the worst 5 %", money(ours["cvar_95"]), money(yours["cvar_95"])),
        ]
        for name, level in (ours["service_level"] or {}).items():
            found.append(Compared(f"{name}: served in full", level, yours["service_level"][name], is_share=True))
        if yours["feasibility"] is not None:
            found.append(Compared("rules kept", ours["feasibility"], yours["feasibility"], is_share=True))
        return found


def verdict(yours: Mapping[str, Any], our_cost: float | None, money: Money) -> str:
    """Whether another decision is better than ours, and how sure that is."""
    extra_cost, error = yours["extra_cost"], yours["extra_cost_standard_error"]
    if extra_cost is None:
        return yours["reason"] or "What it would cost cannot be said: in some scenario nothing mends it."
    if not plain(extra_cost, abs(our_cost or 0.0)):
        return f"It {'brings' if money.is_value else 'costs'} the same as ours."
    more, less = ("brings {} less", "brings {} more") if money.is_value else ("costs {} more", "costs {} less")
    amount = (more if extra_cost > 0 else less).format(number(abs(extra_cost)))
    margin = f"give or take {number(2 * error)}" if error is not None else "how surely is not known"
    if error is not None and abs(extra_cost) <= 2 * error:
        return f"No clear difference: on average it {amount} than ours, {margin}."
    worse = f"{100 * yours['worse_in']:.0f} %" if yours["worse_in"] is not None else "–"
    return f"On average it {amount} than ours ({margin}); in {worse} of cases it is worse."


def plain(difference: float | None, size: float) -> float | None:
    """A difference of costs of some size, without what rounding alone has left of one."""
    return 0.0 if difference is not None and abs(difference) <= 1e-6 * size else difference


async def asked_again(api: Api, named: str, given: Given) -> tuple[Asked, Mapping[str, Any]]:
    """What the page has asked for, out of a form that it has made itself; and the posterior."""
    posterior = await api.get(Asked(named, ()).api)
    fields = given_fields(posterior, given)
    if fields is None:
        raise InvalidRequest.at(("contexts",), "this form lacks columns of the context; open the page again")
    return Asked.of(named, fields, given), posterior


def amounts(given: Given) -> dict[str, Any]:
    """The entries that a form has, as numbers where they are, and None where they are left to us."""
    found = {}
    for key, text in given.multi_items():
        if key.startswith(PREFIX) and isinstance(text, str):
            found[key.removeprefix(PREFIX)] = number_of(text) if text.strip() else None
    return found


async def whole(api: Api, asked: Asked, given: Given) -> dict[str, Any]:
    """The decision that is tried: what the form has and, for what it has not, ours or what goes best with it."""
    mine = amounts(given)
    if given.get("rest") == "free":
        chosen = given.get("entry")
        return {chosen: mine.get(chosen)} if isinstance(chosen, str) and chosen in mine else mine
    if given.get("all") == "1":
        return mine
    answer = await api.post(f"{asked.api}/prescribe", asked.body(), kept=False)
    return dict(answer["prescriptions"][0]["decision"]) | mine


@router.post("/posteriors/{named}/decide/evaluate")
async def try_decision(named: str, request: Request, caller: Reader) -> Response:
    """What a decision of the planner's own would cost, beside ours. It is not kept in the log."""
    form = await forms.submitted(request)
    api = Api(request)
    asked, posterior = await asked_again(api, named, form)
    decision = await whole(api, asked, form)
    body = asked.body(alternatives=[{"name": YOURS, "decision": decision}], time_limit_seconds=_SECONDS)
    try:
        answer = await api.post(f"{asked.api}/evaluate", body, kept=False)
    except Refused as refused:
        return part(
            request, "decide_mine.html", asked, posterior, refused.status, refused=refused, tried=None, asking=[]
        )
    found = answer["evaluations"][0]
    tried = Tried(
        found["ours"], found["alternatives"][0], money_of(found["ours"]), answer["policy"], "risk" in asked.options()
    )
    return part(request, "decide_mine.html", asked, posterior, tried=tried, asking=api.calls[-1:])


@router.post("/posteriors/{named}/decide/curve")
async def curve(named: str, request: Request, caller: Reader) -> Response:
    """The cost over all amounts of one entry, the others as they are or as they go best with it."""
    form = await forms.submitted(request)
    api = Api(request)
    asked, posterior = await asked_again(api, named, form)
    rules = await rules_of(api, posterior)
    body = asked.body(include=["scenarios", "outcomes"])
    ours = (await api.post(f"{asked.api}/prescribe", body, kept=False))["prescriptions"][0]
    entries = {entry.name: entry for entry in entries_of(ours, rules)}
    entry = entries.get(forms.text(form, "entry")) or next(iter(entries.values()), None)
    if entry is None:
        raise InvalidRequest.at(("entry",), "there is no decision to move")
    rest = {} if form.get("rest") == "free" else dict(ours["decision"]) | amounts(form)
    points = entry.points()
    tries = [{"name": f"{point:g}"[:100], "decision": rest | {entry.name: point}} for point in points]
    body = asked.body(alternatives=tries, time_limit_seconds=_SECONDS)
    try:
        answer = await api.post(f"{asked.api}/evaluate", body, kept=False)
    except Refused as refused:
        return part(
            request, "decide_curve.html", asked, posterior, refused.status, refused=refused, chart=None, asking=[]
        )
    chart = _curve(entry, points, answer["evaluations"][0], money_of(ours))
    return part(request, "decide_curve.html", asked, posterior, chart=chart, entry=entry, asking=api.calls[-1:])


def _curve(entry: Entry, points: list[float], found: Mapping[str, Any], money: Money) -> Chart:
    told = found["alternatives"]
    ends = [money.ends(one["cost_quantiles"]) for one in told]
    expected = [money(one["expected_cost"]) for one in told]
    series = [
        Series("5–95 % of cases", [low for low, _ in ends], "band", 0, upper=[high for _, high in ends]),
        Series(f"expected {money.word}", expected, "line", 0),
        Series("mean of the worst 5 %", [money(one["cvar_95"]) for one in told], "line", 1, dashed=True),
    ]
    marks = [Mark(entry.amount, "ours", colour=2)]
    for bound, word in ((entry.rule.minimum, "least"), (entry.rule.maximum, "most")):
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
