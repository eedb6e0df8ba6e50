"""Charts and tables of a posterior's diagnostics: costs, selection, calibration, time, training, certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.pages.api_client import sentence
from app.pages.charts import Chart, Interval, Intervals, Mark, Number, Series
from app.pages.posteriors.diagnostics import MARGIN, EstimateView, Json, estimate, finite, lines, numbers, part, value
from app.pages.render import number, percent
from bco_core.errors import InvalidInput
from bco_core.timeline import Clock

_HEIGHT = 200


@dataclass(frozen=True)
class LevelChart(Chart):
    """A chart of levels over spans of x; the table has a row per level."""

    heads: Sequence[str] = ()
    cells: Sequence[Sequence[Any]] = ()

    @property
    def columns(self) -> list[str]:
        return list(self.heads)

    def rows(self, most: int = 200) -> list[list[Any]]:
        return [list(row) for row in self.cells]


@dataclass(frozen=True)
class _Axis:
    """Positions of periods on an axis: times if the clock has a calendar, else period numbers."""

    clock: Clock | None

    @property
    def is_time(self) -> bool:
        return self.clock is not None and self.clock.has_calendar

    @property
    def has_hours(self) -> bool:
        return self.clock is not None and self.clock.unit in ("hour", "minute")

    def place(self, period: float) -> float:
        if self.clock is None or not self.clock.has_calendar:
            return period
        return float(self.clock.moments(np.array([int(period)])).astype("datetime64[s]").astype(np.int64)[0])

    def text(self, period: float) -> str:
        return number(period) if self.clock is None else self.clock.text(int(period))


def clock_of(recipe: Json | None) -> Clock | None:
    """Return the clock of a feature recipe."""
    diagnostics = part(recipe, "recipe", "clock")
    try:
        return Clock(**diagnostics) if isinstance(diagnostics, dict) else None
    except (InvalidInput, TypeError):
        return None


def periods(recipe: Json | None) -> str:
    """Return the unit of periods: days, hours, steps of 2 weeks."""
    clock = clock_of(recipe)
    if clock is None or clock.unit == "period":
        return "periods"
    return f"{clock.unit}s" if clock.step == 1 else f"steps of {clock.step} {clock.unit}s"


def over_time(diagnostics: Json, recipe: Json | None) -> list[Chart]:
    """Draw expected and realised cost over time, and how often costs exceeded the 95 % limit."""
    axis = _Axis(clock_of(recipe))
    result = _forward_lines(lines(diagnostics, "forward", "stretches"), "from_period", "to_period", axis)
    when = "time" if axis.is_time else "period"
    return result.charts("over time", when, ("from", "to")) if result.spans else []


def by_distance(diagnostics: Json, recipe: Json | None) -> list[Chart]:
    """Draw the same by the distance from the last known row."""
    result = _forward_lines(lines(diagnostics, "forward", "distances"), "from_distance", "to_distance", _Axis(None))
    label = f"{periods(recipe)} after the last known row"
    return result.charts("by distance ahead", label, ("from", "to")) if result.spans else []


@dataclass(frozen=True)
class _ForwardLines:
    """Rows of a forward judgement, each over a span of the axis."""

    axis: _Axis
    spans: list[tuple[float, float]]
    diagnostics: list[Json]

    def charts(self, words: str, label: str, heads: tuple[str, str]) -> list[Chart]:
        costs = [estimate(line, "cost") or EstimateView(math.nan) for line in self.diagnostics]
        promised = [value(line, "promised") for line in self.diagnostics]
        above = [value(line, "above_95") for line in self.diagnostics]
        rows = [value(line, "rows") or 0.0 for line in self.diagnostics]
        x = [place for span in self.spans for place in span]
        chance = [MARGIN * 100 * math.sqrt(0.0475 / count) if count else None for count in rows]
        shared: dict[str, Any] = {
            "x": x,
            "x_label": label,
            "time": self.axis.is_time,
            "height": _HEIGHT,
            "zero": True,
            "extra": {"hours": True} if self.axis.has_hours else {},
        }
        return [
            LevelChart(
                title=f"Expected and realised cost {words}",
                note="The band is ± two standard errors of the realised cost.",
                y_label="mean cost",
                series=[
                    Series(
                        "random variation",
                        _twice([one.low for one in costs]),
                        "band",
                        0,
                        _twice([one.high for one in costs]),
                    ),
                    Series("realised", _twice([finite(one.mean) for one in costs]), "line", 0),
                    Series("expected", _twice(promised), "line", 1, dashed=True),
                ],
                heads=[*heads, "rows", "expected", "realised", "± (two standard errors)"],
                cells=[
                    [*self._edges(index), rows[index], promised[index], finite(costs[index].mean), costs[index].margin]
                    for index in range(len(self.diagnostics))
                ],
                **shared,
            ),
            LevelChart(
                title=f"Costs above the 95 % limit {words}",
                note="5 % is expected.",
                y_label="% of the rows",
                series=[
                    Series(
                        "random variation",
                        _twice([None if one is None else max(0.0, 5 - one) for one in chance]),
                        "band",
                        None,
                        _twice([None if one is None else 5 + one for one in chance]),
                    ),
                    Series("above the limit", _twice([None if one is None else 100 * one for one in above]), "line", 0),
                    Series("expected", [5.0] * len(x), "line", 1, dashed=True),
                ],
                heads=[*heads, "rows", "% above the limit"],
                cells=[
                    [*self._edges(index), rows[index], None if above[index] is None else 100 * (above[index] or 0.0)]
                    for index in range(len(self.diagnostics))
                ],
                **shared,
            ),
        ]

    def _edges(self, index: int) -> list[Any]:
        first, last = self.spans[index]
        return [first, self._last[index]] if self.axis.is_time else [number(first), number(last)]

    @property
    def _last(self) -> list[str]:
        return [self.axis.text(value(line, "to_period") or 0.0) for line in self.diagnostics]


def _forward_lines(diagnostics: list[Json], first: str, last: str, axis: _Axis) -> _ForwardLines:
    kept, spans = [], []
    for line in diagnostics:
        begin, end = value(line, first), value(line, last)
        if begin is not None and end is not None:
            spans.append((axis.place(begin), axis.place(end)))
            kept.append(line)
    return _ForwardLines(axis, spans, kept)


def _twice(values: Sequence[Number]) -> list[Number]:
    """Repeat values for the start and the end of each span."""
    return [one for one in values for _ in range(2)]


_SIDE = 200
# Names of predictors.
_KINDS = {
    "linear": "linear model",
    "skip_mlp": "network",
    "mlp": "network",
    "relu_affine": "linear model, clipped at zero",
}
# How far a posterior may move from its regression.
_STRENGTHS = {
    "none": "the regression itself",
    "held": "close to the regression",
    "free": "free of the regression",
    "loose": "far from the regression",
}
_CARRIES = {
    "shift": "same difference from the prediction",
    "scaled": "difference scaled to the local spread",
    "stretch": "proportional to the prediction",
    "keep": "unchanged",
}


def promise(diagnostics: Json) -> Intervals | None:
    """Compare expected and realised cost on held-out rows."""
    rows = [
        Interval(name, of.mean, of.low, of.high, strong=strong)
        for name, of, strong in (
            ("expected", estimate(diagnostics, "promise", "expected"), False),
            ("realised", estimate(diagnostics, "promise", "realised"), True),
        )
        if of is not None
    ]
    if not rows:
        return None
    return Intervals(
        "Expected and realised cost on held-out rows",
        rows,
        "mean cost per decision",
        note="Ranges are ± two standard errors.",
    )


def baselines(diagnostics: Json) -> Intervals | None:
    """Compare other rules with these decisions on the same rows."""
    rows = []
    for name, cost, gain in (
        ("one constant decision", "constant_decision_cost", "gain_over_constant"),
        ("plain regression with its residuals", "regression_cost", "gain_over_regression"),
    ):
        of, more = estimate(diagnostics, cost), estimate(diagnostics, gain)
        if more is not None:
            other = more.negated
            note = "" if of is None else f"costs {number(of.mean)}; {other.chance}"
            rows.append(Interval(name, other.mean, other.low, other.high, note))
    if not rows:
        return None
    return Intervals(
        "Extra cost of other rules",
        rows,
        "paired difference in mean cost",
        zero=0.0,
        note="Right of the dashed line the other rule costs more. Paired by row, ± two standard errors.",
    )


def policies(diagnostics: Json) -> Intervals | None:
    """Compare the policies with the first of them."""
    rows = _selection(lines(diagnostics, "policies"), "policy", str(part(diagnostics, "policy") or ""))
    if not rows:
        return None
    first = rows[0].name
    return Intervals(
        f"Policies compared with {first}",
        rows,
        "paired difference in mean cost",
        zero=0.0,
        note=f"Left of the dashed line is cheaper. The policy in use is bold.{_other_rows(diagnostics)}",
    )


def _other_rows(diagnostics: Json) -> str:
    """Explain why the cost of the policy in use differs from the verdict."""
    here, there = (
        value(diagnostics, "held_out_cost", str(part(diagnostics, "policy")), "mean"),
        value(diagnostics, "judged_cost", "mean"),
    )
    if here is None or there is None or math.isclose(here, there, rel_tol=1e-3):
        return ""
    return " These rows also chose its settings; the verdict leaves out each row it judges."


def candidates(diagnostics: Json) -> list[Intervals]:
    """Return a chart for each group of candidates that were compared."""
    by_error = [line for line in lines(diagnostics, "candidates") if estimate(line, "squared_error") is not None]
    if by_error:
        return [_by_error(by_error)]
    groups: list[list[Json]] = []
    for line in lines(diagnostics, "candidates"):
        same = estimate(line, "against_default")
        is_first = same is not None and same.mean == 0 and same.error in (0, None)
        if not groups or (is_first and line.get("predictor") not in {one.get("predictor") for one in groups[-1]}):
            groups.append([])
        groups[-1].append(line)
    result = []
    for group in groups:
        kinds = list(dict.fromkeys(str(line.get("predictor", "")) for line in group))
        named = [{**line, "label": _candidate(line, len(kinds) > 1)} for line in group]
        chosen = next((str(line["label"]) for line in named if line.get("chosen")), "")
        title = " and ".join(dict.fromkeys(kind_words(kind) for kind in kinds))
        result.append(
            Intervals(
                f"{title[:1].upper()}{title[1:]}, compared with the first",
                _selection(named, "label", chosen),
                "paired difference in mean cost",
                zero=0.0,
                note="Left of the dashed line is cheaper. The first is replaced only for a clear gain.",
            )
        )
    return result


def _by_error(table: list[Json]) -> Intervals:
    """Compare predictors by their squared error."""
    result = [(line, estimate(line, "squared_error") or EstimateView(math.nan)) for line in table]
    rows = [
        Interval(
            kind_words(str(line.get("predictor", ""))),
            finite(of.mean),
            of.low,
            of.high,
            "chosen" if line.get("chosen") else "",
            bool(line.get("chosen")),
        )
        for line, of in result
    ]
    return Intervals(
        "Prediction error on held-out rows",
        rows,
        "mean squared error",
        note="A network is chosen only if it is clearly better. Ranges are ± two standard errors.",
    )


def _candidate(line: Json, several: bool) -> str:
    name = str(line.get("name", "")) or "default"
    name = _STRENGTHS.get(name, name)
    return f"{kind_words(str(line.get('predictor', '')))}: {name}" if several else name


def kind_words(kind: str) -> str:
    """Describe a kind such as ``linear on boosted``."""
    base, _, beside = kind.partition(" on ")
    named = _KINDS.get(base, base.replace("_", " "))
    if beside.startswith("boosted"):
        return f"{named} on boosted trees" + (" and contexts" if beside.endswith("contexts") else "")
    return f"{named} on {beside}" if beside else named


def _selection(table: Sequence[Json], name: str, used: str) -> list[Interval]:
    rows = []
    for line in table:
        of, more = estimate(line, "cost"), estimate(line, "against_default")
        label = str(line.get(name, ""))
        words = [] if of is None else [f"costs {number(of.mean)}"]
        words += ["chosen"] * bool(line.get("chosen")) + ["in use"] * (label == used and not line.get("chosen"))
        drawn = more or EstimateView(math.nan)
        rows.append(Interval(label, finite(drawn.mean), drawn.low, drawn.high, ", ".join(words), strong=label == used))
    return rows


def shares(diagnostics: Json) -> Chart | None:
    """Draw held-out cost over the share of the network."""
    table = [(value(line, "share"), value(line, "cost")) for line in lines(diagnostics, "shares")]
    points = [(share, cost) for share, cost in table if share is not None and cost is not None]
    if len(points) < 2:
        return None
    chosen = value(diagnostics, "network_share")
    return Chart(
        "Cost by share of the network",
        [100 * share for share, _ in points],
        [Series("mean cost on held-out rows", [cost for _, cost in points], "line", 0)],
        "% network (rest: linear model)",
        "mean cost",
        marks=[] if chosen is None else [Mark(100 * chosen, f"chosen: {percent(chosen)}")],
        height=_SIDE,
    )


def mixture(diagnostics: Json) -> list[tuple[str, float]]:
    """Return the parts of the mixture with their shares, largest first."""
    network, boosted = value(diagnostics, "network_share"), value(diagnostics, "boosted_share")
    if network is None and boosted is None:
        return []
    rest = 1 - (boosted or 0.0)
    parts = [("boosted trees with corrections", boosted or 0.0)]
    parts += [("linear model", rest)] if network is None else []
    parts += [] if network is None else [("network", rest * network), ("linear model", rest * (1 - network))]
    return sorted(((name, share) for name, share in parts if share > 0), key=lambda one: -one[1])


def pit(diagnostics: Json) -> Chart | None:
    """Draw the probability integral transform of held-out outcomes."""
    result, rows = numbers(diagnostics, "calibration", "pit"), value(diagnostics, "calibration", "rows")
    if not result:
        return None
    usual, count = 100 / len(result), len(result)
    doubt = MARGIN * 100 * math.sqrt((1 / count) * (1 - 1 / count) / rows) if rows else 0.0
    names = [f"{round(100 * one / count)}–{round(100 * (one + 1) / count)} %" for one in range(count)]
    low, high = max(0.0, usual - doubt), usual + doubt
    return LevelChart(
        "Outcomes within predicted distributions",
        list(range(count)),
        [
            Series("random variation", [low] * count, "band", None, [high] * count),
            Series("outcomes", [100 * one for one in result], "bars", 0),
            Series("perfect", [usual] * count, "line", 1, dashed=True),
        ],
        "predicted quantile range",
        "% of outcomes",
        names=names,
        height=_SIDE,
        zero=True,
        heads=["part", "% of outcomes", "random variation from", "to"],
        cells=[[name, 100 * one, low, high] for name, one in zip(names, result, strict=True)],
    )


def coverage(diagnostics: Json) -> Intervals | None:
    """Compare the coverage of ranges with their nominal level."""
    given, rows = part(diagnostics, "calibration", "coverage"), value(diagnostics, "calibration", "rows")
    if not isinstance(given, dict):
        return None
    result = []
    for level, held in ((_level(name), value(given, name)) for name in given):
        if level is None or held is None:
            continue
        off, room = 100 * (held - level), MARGIN * 100 * math.sqrt(level * (1 - level) / rows) if rows else None
        low, high = (None, None) if room is None else (off - room, off + room)
        result.append(
            Interval(f"{percent(level)} range", off, low, high, f"covered {percent(held, 1)}".replace(" %", "\u00a0%"))
        )
    if not result:
        return None
    return Intervals(
        "Coverage minus nominal level",
        result,
        "percentage points",
        zero=0.0,
        note="Left of the dashed line a range is too narrow, right of it too wide.",
    )


def _level(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def carriers(diagnostics: Json) -> Intervals | None:
    """Compare the ways to transfer outcomes to a new context."""
    named = []
    for line in lines(diagnostics, "carriers"):
        width = value(line, "bandwidth")
        near = "" if width is None else f", rows with similar predictions first ({number(width, 2)})"
        carry = str(line.get("carry", ""))
        named.append({**line, "label": f"{_CARRIES.get(carry, carry)}{near}"})
    chosen = next((str(line["label"]) for line in named if line.get("chosen")), "")
    rows = [
        Interval(row.name, row.mean, row.low, row.high, row.note.replace("costs", "scores"), row.strong)
        for row in _selection(named, "label", chosen)
    ]
    if not rows:
        return None
    return Intervals(
        "Transfer of past outcomes to a new context, compared with the first way",
        rows,
        "paired difference in score",
        zero=0.0,
        note="Left of the dashed line predicts better.",
    )


_LOW_HEIGHT = 200
_COLOURS = 7
_BOUNDS = {
    "lemma": "PAC-Bayes, as in the paper",
    "kl": "PAC-Bayes-kl",
    "bernstein": "PAC-Bayes-Bernstein",
}
_VACUOUS = "The bound is not below the largest possible cost, so it is vacuous. Train with more rows."
_TERMS = {
    "empirical_risk": "mean cost over the history",
    "monte_carlo_margin": "Monte Carlo margin",
    "deviation": "margin for new rows",
    "kl": "KL divergence from the prior",
    "cost_bound": "largest possible cost",
    "mean_squared_cost": "mean squared cost",
    "mean_squared_cost_margin": "margin of the mean squared cost",
}


def traces(diagnostics: Json) -> list[Chart]:
    """Draw cost, KL and width by epoch, as far as recorded."""
    table = [line for line in lines(diagnostics, "trace") if value(line, "epoch") is not None]
    if not table:
        return []
    epochs = [value(line, "epoch") or 0.0 for line in table]
    columns = {name: [value(line, name) for line in table] for name in ("risk", "validation_cost", "kl", "scale")}
    what = "cost" if part(diagnostics, "loss") in (None, "cost") else "loss"
    drawn = [
        (
            f"{sentence(what)} during training",
            f"mean {what}",
            [
                Series("training rows", columns["risk"], "line", 0),
                Series("held-out rows", columns["validation_cost"], "line", 1, dashed=True),
            ],
        ),
        ("Distance from the prior", "KL", [Series("KL to the prior", columns["kl"], "line", 2)]),
        ("Width of the members", "mean scale", [Series("mean scale", columns["scale"], "line", 3)]),
    ]
    charts = []
    for title, label, series in drawn:
        known = [one for one in series if any(height is not None for height in one.values)]
        if known:
            charts.append(Chart(title, epochs, known, "epoch", label, height=_LOW_HEIGHT))
    return charts


def stopping_text(diagnostics: Json) -> str:
    """Describe when members stopped training."""
    best = part(diagnostics, "best_epochs")
    epochs = [one for row in best if isinstance(row, list) for one in row] if isinstance(best, list) else []
    epochs = [one for one in epochs if isinstance(one, int | float)]
    early = part(diagnostics, "stopped_early")
    words = []
    # Updates record no epochs.
    if any(epochs):
        low, high = min(epochs), max(epochs)
        many = f"epoch {low}" if low == high else f"epochs {low} to {high}"
        words.append(f"{_count(len(epochs), 'member')} trained; best after {many}.")
    if early is False:
        words.append("Training reached its last epoch while still improving; more epochs may help.")
    elif early is True and any(epochs):
        who = "It" if len(epochs) == 1 else "All of them"
        words.append(f"{who} stopped when validation cost no longer improved.")
    return " ".join(words)


def agreement_text(diagnostics: Json) -> str:
    """Describe how far members agree."""
    count, effective = value(diagnostics, "members", "count"), value(diagnostics, "members", "effective")
    if count is None:
        return ""
    if count <= 1 and part(diagnostics, "loss") == "spo_plus":
        return "A Gaussian around a regression, trained on all rows."
    if count <= 1:
        return "There is a single member, so agreement is unknown."
    worth = "" if effective is None else f" (effectively {number(effective, 2)})"
    apart = value(diagnostics, "members", "disagreement")
    spread = "decide together" if apart is None else f"differ by {percent(apart, 1)} of the outcomes' own spread"
    return f"The {number(count)} weighted members{worth} {spread}."


def _count(count: int, what: str) -> str:
    return f"One {what}" if count == 1 else f"{count} {what}s"


@dataclass(frozen=True)
class MixingView:
    """Mixing of one quantity of the chains."""

    name: str
    r_hat: float | None
    ess_bulk: float | None
    ess_tail: float | None

    @property
    def tone(self) -> str:
        if self.r_hat is None:
            return ""
        return "ok" if self.r_hat <= 1.01 and (self.ess_bulk or 0) >= 400 else "warn" if self.r_hat <= 1.1 else "bad"

    @property
    def label(self) -> str:
        return {"ok": "mixed", "warn": "nearly mixed", "bad": "not mixed"}.get(self.tone, "not known")


def mixing(diagnostics: Json) -> list[MixingView]:
    result = []
    for name, words in (("loss", "cost of decisions"), ("predictions", "predictions")):
        if isinstance(part(diagnostics, "chains", name), Mapping):
            figures = (value(diagnostics, "chains", name, one) for one in ("r_hat", "ess_bulk", "ess_tail"))
            result.append(MixingView(words, *figures))
    return result


def chain_trace(diagnostics: Json) -> Chart | None:
    """Draw the loss of every chain by step."""
    table = [line for line in lines(diagnostics, "chains", "trace") if value(line, "step") is not None]
    count = max((len(numbers(line, "loss")) for line in table), default=0)
    if not count:
        return None
    burn_in = value(diagnostics, "chains", "burn_in")
    losses = [numbers(line, "loss") for line in table]
    return Chart(
        "Cost along the chains",
        [value(line, "step") or 0.0 for line in table],
        [
            Series(f"chain {one + 1}", [row[one] if one < len(row) else None for row in losses], "line", one % _COLOURS)
            for one in range(count)
        ],
        "step",
        "mean cost over the history",
        marks=[] if burn_in is None else [Mark(burn_in, "end of burn-in")],
    )


def chain_facts(diagnostics: Json) -> list[tuple[str, str]]:
    """Return further facts of the chains, name and value."""
    chains = part(diagnostics, "chains") or {}
    result = []
    for name, words in (("count", "chains"), ("steps", "steps per chain"), ("burn_in", "burn-in steps")):
        if value(chains, name) is not None:
            result.append((words, number(value(chains, name), 9)))
    taken = numbers(chains, "acceptance")
    if taken:
        result.append(("proposals accepted", " · ".join(percent(one) for one in taken)))
    if value(diagnostics, "effective_draws") is not None:
        result.append(
            ("effective draws when a row is left out", f"at least {number(value(diagnostics, 'effective_draws'), 3)}")
        )
    kept = value(diagnostics, "history", "feasibility")
    if kept is not None and value(diagnostics, "history", "required_feasibility") is not None:
        asked = percent(value(diagnostics, "history", "required_feasibility"), 1)
        result.append(("constraints met on training rows", f"{percent(kept, 1)}; required: {asked}"))
    return result


def temperatures(diagnostics: Json) -> tuple[list[str], list[list[Any]]]:
    """Return the table of inverse temperatures: heads and rows."""
    table = lines(diagnostics, "temperatures")
    words = {
        "inverse_temperature": "inverse temperature",
        "loss_before": "cost, first half",
        "loss_after": "cost, second half",
        "cost": "cost on validation rows",
        "feasibility": "constraints met",
    }
    names = [name for name in words if any(value(line, name) is not None for line in table)]
    rows = [[value(line, name) for name in names] + ["yes" if line.get("chosen") else ""] for line in table]
    return [*(words[name] for name in names), "chosen"], rows


@dataclass(frozen=True)
class CertificateView:
    """A certificate with its terms; without a bound, the reason."""

    bound: float | None
    sentence: str
    vacuous: bool = False
    terms: tuple[tuple[str, float], ...] = ()
    bounds: tuple[tuple[str, float, bool], ...] = ()
    notes: tuple[str, ...] = ()


def certificate(diagnostics: Json) -> CertificateView | None:
    given = part(diagnostics, "certificate")
    if not isinstance(given, Mapping) or not given:
        return None
    bound, confidence = value(given, "bound"), value(given, "confidence")
    if bound is None:
        why = str(given.get("reason") or "no reason was recorded")
        return CertificateView(None, sentence(why if why.endswith(".") else f"{why}."))
    sure = f"With a confidence of {percent(confidence)}, decisions" if confidence else "Decisions"
    words = f"{sure} cost at most {number(bound)} on average in contexts like those of the history."
    if given.get("vacuous"):
        words = _VACUOUS
    bounds, best = part(given, "bounds"), given.get("by")
    return CertificateView(
        bound,
        words,
        bool(given.get("vacuous")),
        tuple((words, result) for name, words in _TERMS.items() if (result := value(given, "terms", name)) is not None),
        tuple(
            (_BOUNDS.get(name, str(name)), result, name == best)
            for name in (bounds if isinstance(bounds, Mapping) else {})
            if (result := value(bounds, name)) is not None
        ),
        tuple(_notes(given, str(part(diagnostics, "policy") or ""))),
    )


def _notes(given: Json, policy: str) -> list[str]:
    """Return the policies, assumptions and stored draws of a certificate."""
    notes = []
    policies = part(given, "policies")
    if isinstance(policies, list | tuple) and policies:
        others = "" if policy in policies else f", not for {policy}, the default here"
        notes.append(f"It holds for the policies {' and '.join(map(str, policies))}{others}.")
    for name, words in (("assumes", "It assumes that"), ("holds_for", "It holds for")):
        if given.get(name):
            # The rest follows below with its numbers.
            notes.append(f"{words} {str(given[name]).partition(';')[0]}.")
    stored, sure = value(given, "particles", "bound"), value(given, "particles", "confidence")
    if stored is not None:
        confidence = "" if sure is None else f", with a confidence of {percent(sure)}"
        count = number(value(given, "particles", "count"))
        notes.append(f"The mean decision of the {count} stored draws costs at most {number(stored)}{confidence}.")
    return notes
