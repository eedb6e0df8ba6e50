"""Charts of a posterior: beside other rules, what it was chosen from, how far its ranges can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.pages.charts import Chart, Interval, Intervals, Mark, Series
from app.pages.posteriors.figures import MARGIN, EstimateView, Json, estimate, finite, lines, numbers, part, value
from app.pages.posteriors.forward_charts import LevelChart
from app.pages.render import number, percent

_SIDE = 200
# What predictors are called in the diagnostics, and what they are.
_KINDS = {
    "linear": "linear model",
    "skip_mlp": "network",
    "mlp": "network",
    "relu_affine": "linear model, bent at zero",
}
# How far a posterior may leave the regression that it is around.
_STRENGTHS = {
    "none": "the regression itself",
    "held": "held near the regression",
    "free": "free to leave the regression",
    "loose": "free to leave it far",
}
_CARRIES = {
    "shift": "as far from the prediction as then",
    "scaled": "scaled to how far outcomes scatter in such contexts",
    "stretch": "in proportion to the prediction",
    "keep": "as it was",
}


def promise(told: Json) -> Intervals | None:
    """What decisions were expected to cost on held-out rows, and what they did."""
    rows = [
        Interval(name, of.mean, of.low, of.high, strong=strong)
        for name, of, strong in (
            ("promised", estimate(told, "promise", "expected"), False),
            ("realised", estimate(told, "promise", "realised"), True),
        )
        if of is not None
    ]
    if not rows:
        return None
    return Intervals(
        "Promised and realised cost on held-out rows",
        rows,
        "mean cost of a decision",
        note="From and to are two standard errors either side.",
    )


def baselines(told: Json) -> Intervals | None:
    """What other rules cost more than these decisions, row by row on the same rows."""
    rows = []
    for name, cost, gain in (
        ("one constant decision", "constant_decision_cost", "gain_over_constant"),
        ("plain regression with its residuals", "regression_cost", "gain_over_regression"),
    ):
        of, more = estimate(told, cost), estimate(told, gain)
        if more is not None:
            other = more.turned
            note = "" if of is None else f"costs {number(of.mean)}; {other.chance}"
            rows.append(Interval(name, other.mean, other.low, other.high, note))
    if not rows:
        return None
    return Intervals(
        "What other rules cost more than these decisions",
        rows,
        "paired difference in mean cost",
        zero=0.0,
        note="Right of the dashed line the other rule is dearer. Differences are row by row on the same rows, two "
        "standard errors wide.",
    )


def policies(told: Json) -> Intervals | None:
    """The policies that competed, beside the first of them."""
    rows = _selection(lines(told, "policies"), "policy", str(part(told, "policy") or ""))
    if not rows:
        return None
    first = rows[0].name
    return Intervals(
        f"Policies, beside {first}",
        rows,
        "paired difference in mean cost",
        zero=0.0,
        note=f"Left of the dashed line is cheaper. The policy that decides is in bold.{_other_rows(told)}",
    )


def _other_rows(told: Json) -> str:
    """Why the policy that decides may cost something else here than in the verdict."""
    here, there = value(told, "held_out_cost", str(part(told, "policy")), "mean"), value(told, "judged_cost", "mean")
    if here is None or there is None or math.isclose(here, there, rel_tol=1e-3):
        return ""
    return " The same rows have chosen its settings here; the verdict leaves a row out of all that decides for it."


def candidates(told: Json) -> list[Intervals]:
    """What competed in learning, one chart for each group that was compared among itself."""
    by_error = [line for line in lines(told, "candidates") if estimate(line, "squared_error") is not None]
    if by_error:
        return [_by_error(by_error)]
    groups: list[list[Json]] = []
    for line in lines(told, "candidates"):
        same = estimate(line, "against_default")
        is_first = same is not None and same.mean == 0 and same.error in (0, None)
        if not groups or (is_first and line.get("predictor") not in {one.get("predictor") for one in groups[-1]}):
            groups.append([])
        groups[-1].append(line)
    found = []
    for group in groups:
        kinds = list(dict.fromkeys(str(line.get("predictor", "")) for line in group))
        named = [{**line, "label": _candidate(line, len(kinds) > 1)} for line in group]
        chosen = next((str(line["label"]) for line in named if line.get("chosen")), "")
        title = " and ".join(dict.fromkeys(kind_words(kind) for kind in kinds))
        found.append(
            Intervals(
                f"{title[:1].upper()}{title[1:]}, beside the first",
                _selection(named, "label", chosen),
                "paired difference in mean cost",
                zero=0.0,
                note="Left of the dashed line is cheaper; the first is left only for a clear gain.",
            )
        )
    return found


def _by_error(table: list[Json]) -> Intervals:
    """Predictors that competed by how well they predict, before chains began."""
    found = [(line, estimate(line, "squared_error") or EstimateView(math.nan)) for line in table]
    rows = [
        Interval(
            kind_words(str(line.get("predictor", ""))),
            finite(of.mean),
            of.low,
            of.high,
            "chosen" if line.get("chosen") else "",
            bool(line.get("chosen")),
        )
        for line, of in found
    ]
    return Intervals(
        "How well predictors foretell held-out outcomes",
        rows,
        "mean squared error",
        note="A network is chosen only if it is clearly better. From and to are two standard errors either side.",
    )


def _candidate(line: Json, several: bool) -> str:
    name = str(line.get("name", "")) or "default"
    name = _STRENGTHS.get(name, name)
    return f"{kind_words(str(line.get('predictor', '')))}: {name}" if several else name


def kind_words(kind: str) -> str:
    """``linear on boosted`` and others, as people say it."""
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
        words += ["chosen"] * bool(line.get("chosen")) + ["decides"] * (label == used and not line.get("chosen"))
        drawn = more or EstimateView(math.nan)
        rows.append(Interval(label, finite(drawn.mean), drawn.low, drawn.high, ", ".join(words), strong=label == used))
    return rows


def shares(told: Json) -> Chart | None:
    """What mixing costs on held-out rows, by the share of the network."""
    table = [(value(line, "share"), value(line, "cost")) for line in lines(told, "shares")]
    points = [(share, cost) for share, cost in table if share is not None and cost is not None]
    if len(points) < 2:
        return None
    chosen = value(told, "network_share")
    return Chart(
        "Cost by the share of the network",
        [100 * share for share, _ in points],
        [Series("mean cost on held-out rows", [cost for _, cost in points], "line", 0)],
        "% network, the rest linear model",
        "mean cost",
        marks=[] if chosen is None else [Mark(100 * chosen, f"chosen: {percent(chosen)}")],
        height=_SIDE,
    )


def mixture(told: Json) -> list[tuple[str, float]]:
    """The shares that the posterior is mixed of, largest first."""
    network, boosted = value(told, "network_share"), value(told, "boosted_share")
    if network is None and boosted is None:
        return []
    rest = 1 - (boosted or 0.0)
    parts = [("departures from boosted trees", boosted or 0.0)]
    parts += [("linear model", rest)] if network is None else []
    parts += [] if network is None else [("network", rest * network), ("linear model", rest * (1 - network))]
    return sorted(((name, share) for name, share in parts if share > 0), key=lambda one: -one[1])


def pit(told: Json) -> Chart | None:
    """Where outcomes lay in their predicted distributions."""
    found, rows = numbers(told, "calibration", "pit"), value(told, "calibration", "rows")
    if not found:
        return None
    usual, count = 100 / len(found), len(found)
    doubt = MARGIN * 100 * math.sqrt((1 / count) * (1 - 1 / count) / rows) if rows else 0.0
    names = [f"{round(100 * one / count)}–{round(100 * (one + 1) / count)} %" for one in range(count)]
    low, high = max(0.0, usual - doubt), usual + doubt
    return LevelChart(
        "Where outcomes fell in what was predicted",
        list(range(count)),
        [
            Series("what chance may explain", [low] * count, "band", None, [high] * count),
            Series("outcomes", [100 * one for one in found], "bars", 0),
            Series("perfect", [usual] * count, "line", 1, dashed=True),
        ],
        "part of the predicted distribution",
        "% of outcomes",
        names=names,
        height=_SIDE,
        zero=True,
        heads=["part", "% of outcomes", "by chance from", "to"],
        cells=[[name, 100 * one, low, high] for name, one in zip(names, found, strict=True)],
    )


def coverage(told: Json) -> Intervals | None:
    """How far the ranges were from holding what they should."""
    given, rows = part(told, "calibration", "coverage"), value(told, "calibration", "rows")
    if not isinstance(given, dict):
        return None
    found = []
    for level, held in ((_level(name), value(given, name)) for name in given):
        if level is None or held is None:
            continue
        off, room = 100 * (held - level), MARGIN * 100 * math.sqrt(level * (1 - level) / rows) if rows else None
        low, high = (None, None) if room is None else (off - room, off + room)
        found.append(
            Interval(f"{percent(level)} range", off, low, high, f"held {percent(held, 1)}".replace(" %", "\u00a0%"))
        )
    if not found:
        return None
    return Intervals(
        "How far ranges were from holding what they should",
        found,
        "percentage points",
        zero=0.0,
        note="Left of the dashed line a range was too narrow, right of it too wide.",
    )


def _level(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def carriers(told: Json) -> Intervals | None:
    """The ways to carry outcomes to new contexts that competed."""
    named = []
    for line in lines(told, "carriers"):
        width = value(line, "bandwidth")
        near = "" if width is None else f", rows with like predictions first ({number(width, 2)})"
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
        "How an outcome of the history is carried to a new context, beside the first way",
        rows,
        "paired difference in score",
        zero=0.0,
        note="Left of the dashed line tells better what happens.",
    )
