"""Formulas as HTML that wraps on small screens: symbols, sums, and rules by the names of what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from app.pages.render import number

# What a formula shows of what is too long: terms of a sum, names in a row.
TERMS, NAMES = 8, 6
SENSES = {"<=": "≤", ">=": "≥", "=": "="}
MINUS = "−"

Roles = Mapping[str, str]


@dataclass(frozen=True)
class FormulaView:
    """A line below an objective: its formula, and what it is called or for whom it holds."""

    formula: Markup
    words: str = ""


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Parts side by side; what is not marked up yet is text."""
    return escape(between).join(parts)


def symbol(letter: str, index: str = "") -> Markup:
    """A letter as mathematicians write it, such as z with the index j."""
    below = Markup("<sub><i>{}</i></sub>").format(index) if index else Markup("")
    return Markup("<i>{}</i>{}").format(letter, below)


def named(name: str, role: str) -> Markup:
    """Something by its own name; ``role`` is decision, outcome or recourse."""
    return Markup('<span class="name {}">{}</span>').format(role, name)


def total(index: str) -> Markup:
    return Markup('<span class="sum">Σ</span><sub><i>{}</i></sub> ').format(index)


def mean(inside: Markup) -> Markup:
    return Markup('<span class="of">E</span>[ {} ]').format(inside)


def share(value: float) -> str:
    """A share as a percentage without idle zeros: 80 %, 97.5 %."""
    return f"{number(100 * value)} %"


def is_uncertain(value: Any) -> bool:
    """Whether a number depends on outcomes."""
    return isinstance(value, dict) and any(factor != 0 for factor in value.get("outcomes", {}).values())


def constant_of(value: Any) -> float:
    if isinstance(value, dict):
        return float(value.get("constant") or 0.0)
    return float(value or 0.0)


def terms_of(value: Any) -> list[tuple[float, Markup]]:
    """A number that may depend on outcomes as signed terms; a certain part has no name."""
    found: list[tuple[float, Markup]] = []
    if constant_of(value) or not is_uncertain(value):
        found.append((constant_of(value), Markup("")))
    if isinstance(value, dict):
        factors = value.get("outcomes", {})
        found += [(factor, named(name, "outcome")) for name, factor in factors.items() if factor != 0]
    return found


def signed_sum(terms: Sequence[tuple[float, Markup]], most: int = TERMS) -> Markup:
    """``2 a − b + …``: each term a factor and what it stands before, which may be nothing."""
    if not terms:
        return Markup("0")
    written: list[Markup] = []
    for place, (factor, what) in enumerate(terms[:most]):
        size = abs(factor)
        sign = (MINUS if factor < 0 else "") if place == 0 else (f" {MINUS} " if factor < 0 else " + ")
        shown = escape(number(size)) if not what else what if size == 1 else Markup("{} {}").format(number(size), what)
        written.append(Markup('{}<span class="part">{}</span>').format(sign, shown))
    if len(terms) > most:
        written.append(Markup(' + … <span class="muted">({} more)</span>').format(f"{len(terms) - most:,}"))
    return join(written)


def number_formula(value: Any) -> Markup:
    """A number of a model, certain or not: ``8 + 2 fuel price``."""
    return signed_sum(terms_of(value))


def weighted_terms(coefficients: Mapping[str, Any], role: str) -> list[tuple[float, Markup]]:
    """Σ coefficient · name as terms, where coefficients may depend on outcomes."""
    found: list[tuple[float, Markup]] = []
    for name, value in coefficients.items():
        shown = named(name, role)
        if not is_uncertain(value):
            if constant_of(value):
                found.append((constant_of(value), shown))
            continue
        inside = terms_of(value)
        if len(inside) == 1:
            factor, what = inside[0]
            found.append((factor, Markup("{} · {}").format(what, shown)))
        else:
            found.append((1.0, Markup("({}) {}").format(signed_sum(inside), shown)))
    return found


def few(names: Sequence[str], role: str, most: int = NAMES) -> Markup:
    """Some names of many."""
    shown = join([named(name, role) for name in names[:most]], ", ")
    return shown if len(names) <= most else shown + Markup(" … ({} in all)").format(f"{len(names):,}")


def bounds(variables: Sequence[Mapping[str, Any]], role: str) -> list[FormulaView]:
    """What variables may be, those alike in one line: bounds, whole numbers, yes or no."""
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
        return shown + " ∈ {0, 1}", "no or yes"
    words = "whole numbers" if whole else ""
    if low is None and high is None:
        return shown + Markup(" ∈ {}").format("ℤ" if whole else "ℝ"), words or "any amount"
    left = Markup("") if low is None or (high is None) else Markup("{} ≤ ").format(number(low))
    if high is None:
        return shown + Markup(" ≥ {}").format(number(low)), words
    return left + shown + Markup(" ≤ {}").format(number(high)), words
