"""Read the query of a decision (context, policy, risk) from the page's address, and render parts of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from app.pages.decide.fields import ContextField, FormValues
from app.pages.error_pages import FRAGMENT
from app.pages.forms import parse_number
from app.pages.render import render
from bco_core.policies import POLICIES

# Risk aversion weighs the worst 5 % of cases.
LEVEL = 0.95
# Descriptions of the policies.
POLICY_WORDS = {
    "averaged": "the mean of all plausible models' decisions",
    "blended": "half-way between averaged and bcp",
    "bcp": "the best decision over all plausible models",
    "predictive": "the best decision over all possible outcomes, including noise",
    "map": "the decision of the single most likely model",
    "thompson": "the decision of one random model",
}
# Policies to compare: all but random ones.
COMPARED = tuple(name for name, policy in POLICIES.items() if not policy.random)


@dataclass(frozen=True)
class DecideQuery:
    """A context and how to decide for it; ``named`` is the posterior's id or alias."""

    named: str
    fields: tuple[ContextField, ...]
    policy: str = ""
    risk: str = ""

    @staticmethod
    def of(named: str, fields: list[ContextField], given: FormValues) -> DecideQuery:
        risk = _text(given, "risk")
        return DecideQuery(named, tuple(fields), _text(given, "policy"), "" if risk in ("0", "0.0") else risk)

    @property
    def api(self) -> str:
        """The posterior's path in the API."""
        return f"/v1/posteriors/{quote(self.named, safe='')}"

    @property
    def context(self) -> dict[str, Any]:
        return {field.name: field.request_value() for field in self.fields}

    @property
    def risk_weight(self) -> float:
        """The weight of the worst cases; 0 if the text is no number."""
        weight = parse_number(self.risk) if self.risk else 0.0
        return min(1.0, max(0.0, weight)) if isinstance(weight, int | float) else 0.0

    def options(self) -> dict[str, Any]:
        """Return policy and risk as API options, without defaults."""
        options: dict[str, Any] = {"policy": self.policy} if self.policy else {}
        if self.risk:
            options["risk"] = {"cvar_weight": parse_number(self.risk), "cvar_level": LEVEL}
        return options

    def body(self, **more: Any) -> dict[str, Any]:
        return {"contexts": [self.context]} | self.options() | more

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Form fields that repeat the query."""
        result = [(field.key, field.value) for field in self.fields]
        return result + [(name, text) for name, text in (("policy", self.policy), ("risk", self.risk)) if text]

    def address(self, part: str = "", **more: str) -> str:
        """Return the URL of this decision, or of a part of its page."""
        query = urlencode([*self.pairs, *more.items()], quote_via=quote)
        return f"{self.page(part)}?{query}"

    def page(self, part: str = "") -> str:
        return f"/posteriors/{quote(self.named, safe='')}/decide{part}"


def _text(given: FormValues, name: str) -> str:
    value = given.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def is_part(request: Request) -> bool:
    """Whether htmx requests a part of a page, not a page from the browser's history."""
    return FRAGMENT in request.headers and "hx-history-restore-request" not in request.headers


def render_part(
    request: Request, template: str, query: DecideQuery, posterior: Mapping[str, Any], status: int = 200, **given: Any
) -> Response:
    """Render a part of the page, or a whole page around it."""
    shown = template if is_part(request) else "decide_part.html"
    is_piece = is_part(request)
    return render(request, shown, status, piece=template, is_part=is_piece, query=query, posterior=posterior, **given)
