"""Write a problem in mathematical notation, as HTML that wraps on small screens.

Kinds with a short formula are written with indices, linear models with the names of their variables, and ready-made
problems as the linear models they compile to. Long sums and lists are abbreviated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

from app.pages.render import number

# Terms of a sum and names of a list before abbreviation.
TERMS, NAMES = 8, 6
SENSES = {"<=": "≤", ">=": "≥", "=": "="}
MINUS = "−"

Roles = Mapping[str, str]


@dataclass(frozen=True)
class FormulaView:
    """A constraint: its formula and its name or meaning."""

    formula: Markup
    label: str = ""


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Join parts; plain strings are escaped."""
    return escape(between).join(parts)


def symbol(letter: str, index: str = "") -> Markup:
    """Render a symbol with an index, such as z with index j."""
    below = Markup("<sub><i>{}</i></sub>").format(index) if index else Markup("")
    return Markup("<i>{}</i>{}").format(letter, below)


def named(name: str, role: str) -> Markup:
    """Render a variable's name; ``role`` is decision, outcome or recourse."""
    return Markup('<span class="name {}">{}</span>').format(role, name)


def total(index: str) -> Markup:
    return Markup('<span class="sum">Σ</span><sub><i>{}</i></sub> ').format(index)


def mean(inside: Markup) -> Markup:
    return Markup('<span class="of">E</span>[ {} ]').format(inside)


def share(value: float) -> str:
    """Format a share as a percentage without trailing zeros: 80 %, 97.5 %."""
    return f"{number(100 * value)} %"


def is_uncertain(value: Any) -> bool:
    """Whether a number depends on outcomes."""
    return isinstance(value, dict) and any(factor != 0 for factor in value.get("outcomes", {}).values())


def constant_of(value: Any) -> float:
    if isinstance(value, dict):
        return float(value.get("constant") or 0.0)
    return float(value or 0.0)


def terms_of(value: Any) -> list[tuple[float, Markup]]:
    """Return a number that may depend on outcomes as signed terms; the constant has no name."""
    result: list[tuple[float, Markup]] = []
    if constant_of(value) or not is_uncertain(value):
        result.append((constant_of(value), Markup("")))
    if isinstance(value, dict):
        factors = value.get("outcomes", {})
        result += [(factor, named(name, "outcome")) for name, factor in factors.items() if factor != 0]
    return result


def signed_sum(terms: Sequence[tuple[float, Markup]]) -> Markup:
    """Render ``2 a − b + …`` from factors and names; a name may be empty."""
    if not terms:
        return Markup("0")
    written: list[Markup] = []
    for place, (factor, what) in enumerate(terms[:TERMS]):
        size = abs(factor)
        sign = (MINUS if factor < 0 else "") if place == 0 else (f" {MINUS} " if factor < 0 else " + ")
        shown = escape(number(size)) if not what else what if size == 1 else Markup("{} {}").format(number(size), what)
        written.append(Markup('{}<span class="part">{}</span>').format(sign, shown))
    if len(terms) > TERMS:
        written.append(Markup(' + … <span class="muted">({} more)</span>').format(f"{len(terms) - TERMS:,}"))
    return join(written)


def number_formula(value: Any) -> Markup:
    """Render a number of a model: ``8 + 2 fuel price``."""
    return signed_sum(terms_of(value))


def weighted_terms(coefficients: Mapping[str, Any], role: str) -> list[tuple[float, Markup]]:
    """Return Σ coefficient · name as terms; coefficients may depend on outcomes."""
    result: list[tuple[float, Markup]] = []
    for name, value in coefficients.items():
        shown = named(name, role)
        if not is_uncertain(value):
            if constant_of(value):
                result.append((constant_of(value), shown))
            continue
        inside = terms_of(value)
        if len(inside) == 1:
            factor, what = inside[0]
            result.append((factor, Markup("{} · {}").format(what, shown)))
        else:
            result.append((1.0, Markup("({}) {}").format(signed_sum(inside), shown)))
    return result


def few(names: Sequence[str], role: str) -> Markup:
    """Render the first names of a list."""
    shown = join([named(name, role) for name in names[:NAMES]], ", ")
    return shown if len(names) <= NAMES else shown + Markup(" … ({} in all)").format(f"{len(names):,}")


def bounds(variables: Sequence[Mapping[str, Any]], role: str) -> list[FormulaView]:
    """Render the domains of variables, one line for equal bounds."""
    alike: dict[tuple[Any, Any, bool], list[str]] = {}
    for one in variables:
        key = one.get("minimum", 0.0), one.get("maximum"), bool(one.get("integer"))
        alike.setdefault(key, []).append(one["name"])
    rules = []
    for (low, high, whole), names in alike.items():
        shown = few(names, role)
        rules.append(FormulaView(*_bounded(shown, low, high, whole)))
    return rules


def _bounded(shown: Markup, low: Any, high: Any, whole: bool) -> tuple[Markup, str]:
    if whole and (low or 0.0) == 0 and high == 1:
        return shown + " ∈ {0, 1}", "binary"
    words = "integers" if whole else ""
    if low is None and high is None:
        return shown + Markup(" ∈ {}").format("ℤ" if whole else "ℝ"), words or "unbounded"
    left = Markup("") if low is None or (high is None) else Markup("{} ≤ ").format(number(low))
    if high is None:
        return shown + Markup(" ≥ {}").format(number(low)), words
    return left + shown + Markup(" ≤ {}").format(number(high)), words


Spec = Mapping[str, Any]
# Constraints shown; the specification has all.
RULES = 12
Z, Y, S, V = symbol("z"), symbol("y"), symbol("s", "j"), Markup("<i>V</i>")
ZJ, YJ = symbol("z", "j"), symbol("y", "j")


@dataclass(frozen=True)
class ModelView:
    """A problem in mathematical notation: objective, constraints, and the meaning of symbols."""

    goal: str
    objective: Markup
    rules: list[FormulaView] = field(default_factory=list)
    symbols: list[tuple[Markup, str]] = field(default_factory=list)
    # constraints left out
    more: int = 0
    # formulas use the names of variables
    by_name: bool = False
    has_recourse: bool = False
    notes: list[Markup] = field(default_factory=list)

    @property
    def has_mean(self) -> bool:
        return any(">E</span>" in formula for formula in (self.objective, *(rule.formula for rule in self.rules)))


def model_of(spec: Spec, compiled: Spec | None = None) -> ModelView:
    """Return the notation; ``compiled`` is the linear model of a ready-made problem."""
    write = _KINDS.get(spec["kind"])
    return write(spec) if write is not None else _linear(compiled if compiled is not None else spec)


_RISK = Markup(
    "With risk aversion <i>w</i> (<code>risk</code> when deciding), the mean is replaced by "
    "(1 − <i>w</i>) · mean + <i>w</i> · CVaR."
)


# orders


def _newsvendor(spec: Spec) -> ModelView:
    items, rows = spec["items"], spec.get("decision_rows") or []
    stocked = any(item.get("stock") for item in items)
    have = join([S, " + ", ZJ]) if stocked else ZJ
    left = join([YJ, " − ", S, " − ", ZJ]) if stocked else join([YJ, " − ", ZJ])
    right = join([have, " − ", YJ])
    short, over = symbol("u", "j"), symbol("o", "j")
    inside = join([total("j"), short, " (", left, ")", _PLUS, " + ", over, " (", right, ")", _PLUS])
    symbols = [
        (ZJ, "order of item j: decided now"),
        (YJ, "its demand: uncertain, a column of the data"),
        (short, "cost of each unit short"),
        (over, "cost of each unit left over"),
        (Markup("( · )<sup>+</sup>"), "positive part"),
    ]
    if stocked:
        symbols.append((S, "stock on hand; it meets demand first"))
    rules, more = _order_bounds(items), 0
    if any(item.get("minimum_service_level") for item in items):
        level = symbol("α", "j")
        rules.append(FormulaView(join([_P, "[ ", YJ, " ≤ ", have, " ] ≥ ", level]), "minimum service level of an item"))
    overall = spec.get("minimum_service_level")
    if overall:
        met = mean(join([total("j"), "min(", YJ, ", ", have, ")"]))
        asked = join([escape(number(overall)), " ", mean(join([total("j"), YJ]))])
        rules.append(FormulaView(join([met, " ≥ ", asked]), f"{share(overall)} of total demand met on average"))
    for place, row in enumerate(rows[:RULES]):
        terms = signed_sum(weighted_terms(row["coefficients"], "decision"))
        formula = join([terms, f" {SENSES[row['sense']]} ", escape(number(row["limit"]))])
        rules.append(FormulaView(formula, row.get("name") or f"row {place + 1}"))
    more = max(0, len(rows) - RULES)
    return ModelView("minimise", mean(inside), rules, symbols, more, bool(rows), notes=[_RISK])


_PLUS, _P = Markup("<sup>+</sup>"), Markup('<span class="of">P</span>')


def _order_bounds(items: Sequence[Spec]) -> list[FormulaView]:
    low, high = symbol("l", "j"), symbol("h", "j")
    lowest = {item.get("minimum_order", 0.0) for item in items}
    highest = {item.get("maximum_order") for item in items}
    rules = []
    below = low if len(lowest) > 1 else None if lowest == {None} else escape(number(next(iter(lowest))))
    above = high if len(highest) > 1 else None if highest == {None} else escape(number(next(iter(highest))))
    if below is not None and above is not None:
        rules.append(FormulaView(join([below, " ≤ ", ZJ, " ≤ ", above]), "minimum and maximum orders"))
    elif below is not None:
        rules.append(FormulaView(join([ZJ, " ≥ ", below]), "minimum orders"))
    elif above is not None:
        rules.append(FormulaView(join([ZJ, " ≤ ", above]), "maximum orders"))
    packs = {item["name"]: item["pack_size"] for item in items if item.get("pack_size")}
    whole = [item["name"] for item in items if item.get("integer") and not item.get("pack_size")]
    if packs:
        pack = symbol("p", "j")
        words = "in packs: " + ", ".join(f"{name} of {number(size)}" for name, size in list(packs.items())[:4])
        rules.append(
            FormulaView(join([ZJ, " ∈ {0, ", pack, ", 2", pack, ", …}"]), words + (" …" if len(packs) > 4 else ""))
        )
    if whole:
        words = "all items" if len(whole) == len(items) else ", ".join(whole[:4]) + (" …" if len(whole) > 4 else "")
        rules.append(FormulaView(join([ZJ, " ∈ {0, 1, 2, …}"]), f"integers: {words}"))
    return rules


# linear models


def _linear(spec: Spec) -> ModelView:
    """Write any linear model with the names of its variables."""
    most = "maximise" if spec.get("sense") == "maximize" else "minimise"
    decisions, recourse, rows = spec["decisions"], spec.get("recourse") or [], spec.get("rows") or []
    now = weighted_terms({one["name"]: one.get("cost", 0.0) for one in decisions}, "decision")
    later = weighted_terms({one["name"]: one.get("cost", 0.0) for one in recourse}, "recourse")
    first = signed_sum(now)
    if any(is_uncertain(one.get("cost")) for one in decisions):
        first = mean(first)
    objective = first
    if recourse:
        inside = Markup("{} {}").format("max" if most == "maximise" else "min", signed_sum(later))
        objective = mean(inside) if not now else join([first, " + ", mean(inside)])
    rules = [_row(row, place) for place, row in _some(rows)]
    rules += bounds(decisions, "decision")[:RULES] + bounds(recourse, "recourse")[:RULES]
    more = max(0, len(rows) - RULES)
    return ModelView(most, objective, rules, more=more, by_name=True, has_recourse=bool(recourse), notes=[_RISK])


def _some(rows: Sequence[Spec]) -> list[tuple[int, Spec]]:
    """Return the constraints to show with their index: some of the first stage, then some of recourse."""
    now = [(place, row) for place, row in enumerate(rows) if not row.get("recourse")]
    later = [(place, row) for place, row in enumerate(rows) if row.get("recourse")]
    half = max(RULES // 2, RULES - len(later))
    return now[:half] + later[: RULES - len(now[:half])]


def _row(row: Spec, place: int) -> FormulaView:
    terms = weighted_terms(row.get("decisions") or {}, "decision") + weighted_terms(
        row.get("recourse") or {}, "recourse"
    )
    formula = join([signed_sum(terms), f" {SENSES[row['sense']]} ", number_formula(row["limit"])])
    return FormulaView(formula, row.get("name") or f"row {place + 1}")


def _shipment(spec: Spec) -> ModelView:
    z, x, w = symbol("z", "s"), symbol("x", "sd"), symbol("w", "s")
    order, express, way = symbol("a", "s"), symbol("e", "s"), symbol("t", "sd")
    later = join(["min ", total("s"), total("d"), way, " ", x, " + ", total("s"), express, " ", w])
    limited = any(source.get("maximum_order") is not None for source in spec["sources"])
    bound = join(["0 ≤ ", z, " ≤ ", symbol("h", "s")]) if limited else join([z, " ≥ 0"])
    rules = [
        FormulaView(join([total("s"), x, " ≥ ", symbol("y", "d")]), "demand is met at every destination"),
        FormulaView(join([total("d"), x, " ≤ ", z, " + ", w]), "no source ships more than it has"),
        FormulaView(bound, "orders"),
        FormulaView(join([x, ", ", w, " ≥ 0"]), "shipments and emergency orders"),
    ]
    symbols = [
        (z, "order to source s: decided now"),
        (symbol("y", "d"), "demand of destination d: uncertain, a column of the data"),
        (x, "shipment from s to d, once demand is known"),
        (w, "emergency order to s, once demand is known"),
        (join([order, ", ", express, ", ", way]), "unit costs: order, emergency order, shipment"),
    ]
    objective = join([total("s"), order, " ", z, " + ", mean(later)])
    return ModelView("minimise", objective, rules, symbols, notes=[_RISK])


# portfolios


def _mean_variance(spec: Spec) -> ModelView:
    aversion = escape(number(spec.get("risk_aversion", 1.0)))
    objective = join(["½ · ", aversion, " ", _variance(), " − ", mean(join([_product()])), _turnover_cost(spec)])
    return ModelView("minimise", objective, _positions(spec), _portfolio_symbols(spec))


def _return_constrained(spec: Spec) -> ModelView:
    gain = join([_product(), _turnover_cost(spec, " − ")])
    target = escape(number(spec["target_return"]))
    confidence = spec.get("confidence")
    level = 0.95 if confidence is None else confidence
    if spec.get("target_on") == "mean":
        rule = FormulaView(join([mean(gain), " ≥ ", target]), "mean return reaches the target")
    else:
        tail = Markup('<span class="of">E</span>[ {} | the worst {} ]').format(gain, share(1 - level))
        rule = FormulaView(join([tail, " ≥ ", target]), "mean return of the worst cases reaches the target")
    rules = [rule, *_positions(spec)]
    for name, sign, words in (("maximum_long", "+", "long"), ("maximum_short", "−", "short")):
        if spec.get(name) is not None:
            part = join([total("j"), "(", "−" if sign == "−" else "", ZJ, ")", _PLUS])
            rules.append(FormulaView(join([part, " ≤ ", escape(number(spec[name]))]), f"total {words} positions"))
    return ModelView("minimise", _variance(), rules, _portfolio_symbols(spec))


def _variance() -> Markup:
    return join([Z, Markup("ᵀ"), V, Z])


def _product() -> Markup:
    return join([Y, Markup("ᵀ"), Z])


def _turnover() -> Markup:
    return join([total("j"), "|", ZJ, " − ", symbol("c", "j"), "|"])


def _turnover_cost(spec: Spec, sign: str = " + ") -> Markup:
    cost = spec.get("turnover_cost")
    return join([sign, escape(number(cost)), " ", _turnover()]) if cost else Markup("")


def _positions(spec: Spec) -> list[FormulaView]:
    sense = "=" if spec.get("fully_invested") else "≤"
    rules = [FormulaView(join([total("j"), ZJ, f" {sense} ", escape(number(spec.get("budget", 1.0)))]), "budget")]
    lowest = {asset.get("minimum", 0.0) for asset in spec["assets"]}
    highest = {asset.get("maximum") for asset in spec["assets"]}
    low = symbol("l", "j") if len(lowest) > 1 else escape(number(next(iter(lowest))))
    if highest == {None}:
        rules.append(FormulaView(join([ZJ, " ≥ ", low]), "each position"))
    else:
        high = symbol("h", "j") if len(highest) > 1 else escape(number(next(iter(highest))))
        rules.append(FormulaView(join([low, " ≤ ", ZJ, " ≤ ", high]), "each position"))
    for place, group in enumerate((spec.get("groups") or [])[:RULES]):
        inside = signed_sum([(1.0, named(name, "decision")) for name in group["assets"]])
        low_, high_ = group.get("minimum"), group.get("maximum")
        parts = [escape(number(low_)), " ≤ "] if low_ is not None else []
        parts += [inside] + ([" ≤ ", escape(number(high_))] if high_ is not None else [])
        rules.append(FormulaView(join(parts), group.get("name") or f"group {place + 1}"))
    if spec.get("maximum_turnover") is not None:
        rules.append(
            FormulaView(join([_turnover(), " ≤ ", escape(number(spec["maximum_turnover"]))]), "maximum turnover")
        )
    return rules


def _portfolio_symbols(spec: Spec) -> list[tuple[Markup, str]]:
    given = spec.get("covariance") or spec.get("factors")
    symbols = [
        (ZJ, "position in asset j: decided now"),
        (YJ, "its return: uncertain, a column of the data"),
        (V, "covariance of returns, " + ("as given" if given else "estimated in training")),
    ]
    if spec.get("turnover_cost") or spec.get("maximum_turnover") is not None:
        symbols.append((symbol("c", "j"), "current position"))
    return symbols


_KINDS: dict[str, Callable[[Spec], ModelView]] = {
    "newsvendor": _newsvendor,
    "shipment": _shipment,
    "mean_variance_portfolio": _mean_variance,
    "return_constrained_portfolio": _return_constrained,
}
