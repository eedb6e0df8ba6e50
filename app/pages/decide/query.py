"""What a decision is asked for with: the context and how to decide. All of it stands in the page's address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from app.pages.decide.fields import ContextField, FormValues, number_of
from bco_core.policies import POLICIES

# The worst one in twenty cases is what risk aversion looks at.
LEVEL = 0.95
# What each policy does, for who chooses one.
POLICY_WORDS = {
    "averaged": "the mean of what every plausible model would do",
    "blended": "the best over what the models predict, drawn half-way to their mean",
    "bcp": "the best over what all plausible models predict",
    "predictive": "the best over everything that may happen, chance included",
    "map": "what the single most plausible model would do",
    "thompson": "what one model, drawn at random, would do",
}
# Policies that are worth comparing: not one that throws dice.
COMPARED = tuple(name for name, policy in POLICIES.items() if not policy.random)


@dataclass(frozen=True)
class DecideQuery:
    """A context and how to decide for it. ``named`` is the posterior as the address has it, by id or alias."""

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
        """Where the API answers for the posterior."""
        return f"/v1/posteriors/{quote(self.named, safe='')}"

    @property
    def context(self) -> dict[str, Any]:
        return {field.name: field.sent() for field in self.fields}

    @property
    def risk_weight(self) -> float:
        """How much the worst cases count, for who shows it; 0 where the text is no number."""
        weight = number_of(self.risk) if self.risk else 0.0
        return min(1.0, max(0.0, weight)) if isinstance(weight, int | float) else 0.0

    def options(self) -> dict[str, Any]:
        """How to decide, in the API's words; nothing for what is left as it is."""
        options: dict[str, Any] = {"policy": self.policy} if self.policy else {}
        if self.risk:
            options["risk"] = {"cvar_weight": number_of(self.risk), "cvar_level": LEVEL}
        return options

    def body(self, **more: Any) -> dict[str, Any]:
        return {"contexts": [self.context]} | self.options() | more

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Names and texts that ask for the same again."""
        found = [(field.key, field.value) for field in self.fields]
        return found + [(name, text) for name, text in (("policy", self.policy), ("risk", self.risk)) if text]

    def address(self, part: str = "", **more: str) -> str:
        """The address that shows this decision, or a part of what is said of it."""
        query = urlencode([*self.pairs, *more.items()], quote_via=quote)
        return f"{self.page(part)}?{query}"

    def page(self, part: str = "") -> str:
        return f"/posteriors/{quote(self.named, safe='')}/decide{part}"


def _text(given: FormValues, name: str) -> str:
    value = given.get(name, "")
    return value.strip() if isinstance(value, str) else ""
