"""Summarise a posterior's diagnostics in sentences for a planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from app.pages.api_client import sentence
from app.pages.posteriors.diagnostics import EstimateView, Json, estimate, lines, part, value
from app.pages.render import number, percent, term

Tone = Literal["ok", "warn", "bad", ""]


@dataclass(frozen=True)
class VerdictView:
    """A sentence with a tone: for or against using this posterior."""

    text: Markup
    tone: Tone = ""


@dataclass(frozen=True)
class FigureView:
    """A key figure."""

    name: str
    value: str
    margin: str = ""


def margin(found: EstimateView) -> str:
    return "" if found.margin is None else f" ± {number(found.margin, 2)}"


def verdict_sentences(diagnostics: Json, problem: Json) -> list[VerdictView]:
    """Return sentences on held-out cost, comparisons, calibration and constraints."""
    asked = required_feasibility(problem)
    constant, regression = "one constant decision", "plain regression with its residuals"
    texts = [
        _cost(diagnostics),
        _compared_with(diagnostics, "constant_decision_cost", "gain_over_constant", constant, asked is not None),
        _compared_with(diagnostics, "regression_cost", "gain_over_regression", regression, asked is not None),
        _promise(diagnostics),
        None if asked is None else _constraints(diagnostics, asked),
        # Policies that meet constraints less often are cheaper.
        _policy(diagnostics) if asked is None else None,
        _update(diagnostics),
    ]
    return [VerdictView(_no_breaks(one.text), one.tone) for one in texts if one is not None]


def _no_breaks(text: Markup) -> Markup:
    """Put non-breaking spaces between numbers and their signs."""
    return text.replace(" %", "\u00a0%").replace(" ±", "\u00a0±").replace("± ", "±\u00a0")


def key_figures(diagnostics: Json) -> list[FigureView]:
    """Return the key figures behind the verdict."""
    result = []
    for name, of in (
        ("cost per decision", estimate(diagnostics, "judged_cost")),
        ("one constant decision", estimate(diagnostics, "constant_decision_cost")),
        ("plain regression", estimate(diagnostics, "regression_cost")),
        ("expected cost", estimate(diagnostics, "promise", "expected")),
    ):
        if of is not None:
            result.append(FigureView(name, number(of.mean, 3), margin(of)))
    covered = value(diagnostics, "calibration", "coverage", "0.9")
    if covered is not None:
        result.append(FigureView("coverage of the 90 % range", percent(covered)))
    return result


def _cost(diagnostics: Json) -> VerdictView | None:
    result = estimate(diagnostics, "judged_cost")
    if result is None:
        return VerdictView(Markup("The cost of its decisions on held-out rows is unknown."), "warn")
    if part(diagnostics, "forward") is not None:
        rows = term("forward", "later rows, by models trained on earlier rows")
    else:
        rows = term("held-out", "held-out rows")
    count = value(diagnostics, "held_out_rows")
    many = Markup("") if not count else Markup("{} ").format(number(count, 9))
    text = Markup("A decision costs <b>{}{}</b> on average on {}{}.")
    return VerdictView(text.format(number(result.mean), margin(result), many, rows))


def _compared_with(diagnostics: Json, cost: str, gain: str, what: str, constrained: bool) -> VerdictView | None:
    """Compare the cost with another rule, paired by row. Where constraints are uncertain, the other rule may be cheaper
    because it does not meet them."""
    of, more = estimate(diagnostics, cost), estimate(diagnostics, gain)
    if of is None or more is None:
        return None
    part_of_it = abs(more.mean) / of.mean if of.mean > 0 else None
    share = "" if part_of_it is None else f" ({percent(part_of_it, 0 if part_of_it >= 0.01 else 1)})"
    size = f"{number(abs(more.mean), 3)}{margin(more)}{share}"
    verb, word = ("saves", "") if more.mean <= 0 else ("costs", " more")
    tone: Tone = "" if constrained or not more.is_clear else "ok" if more.mean < 0 else "bad"
    rules = " and need not meet the constraints" if constrained else ""
    text = Markup("Compared with {}, which costs {}{}, it {} <b>{}</b>{}, {}.")
    return VerdictView(text.format(what, number(of.mean), rules, verb, size, word, more.chance), tone)


def _promise(diagnostics: Json) -> VerdictView | None:
    expected, realised = estimate(diagnostics, "promise", "expected"), estimate(diagnostics, "promise", "realised")
    warning = str(part(diagnostics, "promise_warning") or "")
    if warning:
        return VerdictView(Markup("<b>Costs differed from expectations:</b> {}.").format(warning), "warn")
    if expected is None or realised is None:
        return None
    covered = value(diagnostics, "calibration", "coverage", "0.9")
    ranges = "" if covered is None else f", and 90 % ranges covered {percent(covered)} of outcomes"
    if expected.mean <= 0:
        cost_text = f"decisions cost {number(realised.mean, 3)}; {number(expected.mean, 3)} was expected"
    else:
        cost_text = off_by(realised.mean / expected.mean, _ratio_error(diagnostics))
    # Drift in some period is explained by the reason.
    whole = " overall" if "drift" in str(part(diagnostics, "reason")) else ""
    return VerdictView(Markup("<b>Costs were as expected{}:</b> {}{}.").format(whole, cost_text, ranges), "ok")


def _ratio_error(diagnostics: Json) -> float | None:
    """Return the standard error of realised ÷ expected cost; the diagnostics have that of the inverse ratio."""
    ratio, error = value(diagnostics, "promise", "ratio"), value(diagnostics, "promise", "standard_error")
    return None if not ratio or error is None else error / ratio**2


def off_by(ratio: float, error: float | None) -> str:
    """Describe the ratio of realised to expected cost."""
    more = ratio - 1
    room = "" if error is None else f" ± {percent(2 * error)}"
    if abs(more) < 0.005:
        return f"realised cost equals expected cost{room if error and error >= 0.0025 else ''}"
    return f"decisions cost {percent(abs(more))}{room} {'more' if more > 0 else 'less'} than expected"


def required_feasibility(problem: Json) -> float | None:
    """Return the required probability of the uncertain constraints; None without such constraints."""
    if part(problem, "kind") != "return_constrained_portfolio" or part(problem, "target_on") == "mean":
        return None
    given = value(problem, "confidence")
    return 0.95 if given is None else given


def _constraints(diagnostics: Json, asked: float) -> VerdictView | None:
    kept = value(diagnostics, "held_out_feasibility")
    if kept is None:
        return None
    text = Markup("Constraints were met on <b>{}</b> of held-out rows; {} is required.")
    return VerdictView(text.format(percent(kept, 1), percent(asked)), "ok" if kept >= asked else "warn")


def _policy(diagnostics: Json) -> VerdictView | None:
    """Warn if another policy is clearly cheaper on held-out rows."""
    table = {str(line.get("policy")): line for line in lines(diagnostics, "policies")}
    policy = str(part(diagnostics, "policy"))
    best = next((name for name, line in table.items() if line.get("chosen")), policy)
    mine, other = value(diagnostics, "held_out_cost", policy, "mean"), value(table.get(best), "cost", "mean")
    # Both are compared with the same default, row by row.
    more, less = estimate(table.get(policy), "against_default"), estimate(table.get(best), "against_default")
    if mine is None or other is None or more is None or less is None or more.low is None or less.high is None:
        return None
    if best == policy or more.low <= less.high:
        return None
    text = Markup("It uses the {} <b>{}</b>; on the same rows <b>{}</b> would have cost {} instead of {}.")
    return VerdictView(text.format(term("policy"), policy, best, number(other, 3), number(mine, 3)), "warn")


def _update(diagnostics: Json) -> VerdictView | None:
    """Compare the cost with the posterior that this one updates."""
    more, rows = estimate(diagnostics, "update", "difference"), value(diagnostics, "update", "compared_rows")
    if more is None or rows is None:
        return None
    word = "more" if more.mean > 0 else "less"
    text = Markup("It updates an older posterior and costs {}{} {} on the newest {} rows, {}.")
    size = number(abs(more.mean), 3)
    tone: Tone = "" if not more.is_clear else "ok" if more.mean < 0 else "warn"
    return VerdictView(text.format(size, margin(more), word, number(rows), more.chance), tone)


def coverage_text(diagnostics: Json) -> str:
    """Describe the calibration of the predicted ranges."""
    pit, rows = part(diagnostics, "calibration", "pit"), value(diagnostics, "calibration", "rows")
    if not isinstance(pit, list) or len(pit) < 4 or not rows or any(not isinstance(one, int | float) for one in pit):
        return ""
    ends, below = pit[0] + pit[-1], sum(pit[: len(pit) // 2])
    usual = 2 / len(pit)
    doubt = 2.5 * (usual * (1 - usual) / rows) ** 0.5
    if ends > usual + doubt:
        return "Too many outcomes fall in the tails: ranges are too narrow."
    if ends < usual - doubt:
        return "Few outcomes fall in the tails: ranges are too wide."
    if abs(below - 0.5) > 2.5 * (0.25 / rows) ** 0.5:
        side = "below" if below > 0.5 else "above"
        return f"Outcomes fall {side} the predicted median too often."
    return "Ranges are well calibrated."


def quality_reason(diagnostics: Json) -> str:
    result = sentence(str(part(diagnostics, "reason") or ""))
    return result if not result or result.endswith(".") else f"{result}."
