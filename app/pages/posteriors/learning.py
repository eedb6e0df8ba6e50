"""How learning went, as charts and words: epochs of members, chains, and the certificate with its terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.pages.api_client import sentence
from app.pages.charts import Chart, Mark, Series
from app.pages.posteriors.figures import Json, lines, numbers, part, value
from app.pages.render import number, percent

_LOW_HEIGHT = 200
_COLOURS = 7
_BOUNDS = {
    "lemma": "PAC-Bayes, as in the paper",
    "kl": "PAC-Bayes-kl",
    "bernstein": "PAC-Bayes with the spread of costs",
}
_VACUOUS = "The bound is no lower than the largest cost that is possible, so it tells nothing: more rows are needed."
_TERMS = {
    "empirical_risk": "mean cost over the history",
    "monte_carlo_margin": "room for estimating that by draws",
    "deviation": "room for what new rows may be like",
    "kl": "how far the posterior moved from the prior (KL)",
    "cost_bound": "the largest cost that is possible",
    "mean_squared_cost": "mean squared cost",
    "mean_squared_cost_margin": "room for estimating that",
}


def traces(told: Json) -> list[Chart]:
    """Cost, KL and width by epoch, as far as they were noted."""
    table = [line for line in lines(told, "trace") if value(line, "epoch") is not None]
    if not table:
        return []
    epochs = [value(line, "epoch") or 0.0 for line in table]
    columns = {name: [value(line, name) for line in table] for name in ("risk", "validation_cost", "kl", "scale")}
    what = "cost" if part(told, "loss") in (None, "cost") else "loss"
    drawn = [
        (
            f"{sentence(what)} while learning",
            f"mean {what}",
            [
                Series("on rows that are learned from", columns["risk"], "line", 0),
                Series("on held-out rows", columns["validation_cost"], "line", 1, dashed=True),
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


def stopping_text(told: Json) -> str:
    """When members stopped, in a sentence."""
    best = part(told, "best_epochs")
    epochs = [one for row in best if isinstance(row, list) for one in row] if isinstance(best, list) else []
    epochs = [one for one in epochs if isinstance(one, int | float)]
    early = part(told, "stopped_early")
    words = []
    # Who learns on from an older posterior does not note epochs.
    if any(epochs):
        low, high = min(epochs), max(epochs)
        many = f"epoch {low}" if low == high else f"epochs {low} to {high}"
        words.append(f"{_count(len(epochs), 'member')} learned, and did best after {many}.")
    if early is False:
        words.append("Learning reached its last epoch while it still improved; more epochs may help.")
    elif early is True and any(epochs):
        who = "It" if len(epochs) == 1 else "All of them"
        words.append(f"{who} stopped because nothing improved any more.")
    return " ".join(words)


def agreement_text(told: Json) -> str:
    """How far members agree, in a sentence."""
    count, effective = value(told, "members", "count"), value(told, "members", "effective")
    if count is None:
        return ""
    if count <= 1 and part(told, "loss") == "spo_plus":
        return "It is a Gaussian around a regression, learned from all rows."
    if count <= 1:
        return "It is a single member, so nothing tells how far another one would agree."
    worth = "" if effective is None else f", worth {number(effective, 2)} of equal weight,"
    apart = value(told, "members", "disagreement")
    spread = "decide together" if apart is None else f"differ by {percent(apart, 1)} of the outcomes' own spread"
    return f"The {number(count)} that have a share{worth} {spread}."


def _count(count: int, what: str) -> str:
    return f"One {what}" if count == 1 else f"{count} {what}s"


@dataclass(frozen=True)
class MixingView:
    """A row of the table of chains: how some quantity mixed."""

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
    def words(self) -> str:
        return {"ok": "mixed", "warn": "nearly mixed", "bad": "not mixed"}.get(self.tone, "not known")


def mixing(told: Json) -> list[MixingView]:
    found = []
    for name, words in (("loss", "cost of decisions"), ("predictions", "predictions")):
        if isinstance(part(told, "chains", name), Mapping):
            figures = (value(told, "chains", name, one) for one in ("r_hat", "ess_bulk", "ess_tail"))
            found.append(MixingView(words, *figures))
    return found


def chain_trace(told: Json) -> Chart | None:
    """The loss of every chain by step."""
    table = [line for line in lines(told, "chains", "trace") if value(line, "step") is not None]
    count = max((len(numbers(line, "loss")) for line in table), default=0)
    if not count:
        return None
    burn_in = value(told, "chains", "burn_in")
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
        marks=[] if burn_in is None else [Mark(burn_in, "counted from here")],
    )


def chain_facts(told: Json) -> list[tuple[str, str]]:
    """What else is known of the chains, name and value."""
    chains = part(told, "chains") or {}
    found = []
    for name, words in (("count", "chains"), ("steps", "steps of each"), ("burn_in", "steps before counting")):
        if value(chains, name) is not None:
            found.append((words, number(value(chains, name), 9)))
    taken = numbers(chains, "acceptance")
    if taken:
        found.append(("proposals accepted", " · ".join(percent(one) for one in taken)))
    if value(told, "effective_draws") is not None:
        found.append(
            ("draws that count when a row is left out", f"at least {number(value(told, 'effective_draws'), 3)}")
        )
    kept = value(told, "history", "feasibility")
    if kept is not None and value(told, "history", "required_feasibility") is not None:
        asked = percent(value(told, "history", "required_feasibility"), 1)
        found.append(("constraints kept on learned rows", f"{percent(kept, 1)}; the chains ask for {asked}"))
    return found


def temperatures(told: Json) -> tuple[list[str], list[list[Any]]]:
    """The inverse temperatures that were tried: heads and rows."""
    table = lines(told, "temperatures")
    words = {
        "inverse_temperature": "inverse temperature",
        "loss_before": "cost, first half",
        "loss_after": "cost, second half",
        "cost": "cost on rows set aside",
        "feasibility": "constraints kept",
    }
    names = [name for name in words if any(value(line, name) is not None for line in table)]
    rows = [[value(line, name) for name in names] + ["yes" if line.get("chosen") else ""] for line in table]
    return [*(words[name] for name in names), "chosen"], rows


@dataclass(frozen=True)
class CertificateView:
    """What is certified, in words, with its terms; without a bound, why there is none."""

    bound: float | None
    words: str
    vacuous: bool = False
    terms: tuple[tuple[str, float], ...] = ()
    bounds: tuple[tuple[str, float, bool], ...] = ()
    notes: tuple[str, ...] = ()


def certificate(told: Json) -> CertificateView | None:
    given = part(told, "certificate")
    if not isinstance(given, Mapping) or not given:
        return None
    bound, confidence = value(given, "bound"), value(given, "confidence")
    if bound is None:
        why = str(given.get("reason") or "it is not said why")
        return CertificateView(None, sentence(why if why.endswith(".") else f"{why}."))
    sure = f"With a confidence of {percent(confidence)}, decisions" if confidence else "Decisions"
    words = f"{sure} cost at most {number(bound)} on average, in contexts like those of the history."
    if given.get("vacuous"):
        words = _VACUOUS
    bounds, best = part(given, "bounds"), given.get("by")
    return CertificateView(
        bound,
        words,
        bool(given.get("vacuous")),
        tuple((words, found) for name, words in _TERMS.items() if (found := value(given, "terms", name)) is not None),
        tuple(
            (_BOUNDS.get(name, str(name)), found, name == best)
            for name in (bounds if isinstance(bounds, Mapping) else {})
            if (found := value(bounds, name)) is not None
        ),
        tuple(_notes(given, str(part(told, "policy") or ""))),
    )


def _notes(given: Json, policy: str) -> list[str]:
    """For whom it holds, what it assumes, and what stored draws add."""
    notes = []
    policies = part(given, "policies")
    if isinstance(policies, list | tuple) and policies:
        others = "" if policy in policies else f", not for {policy}, which decides here unless told otherwise"
        notes.append(f"It is for the policies {' and '.join(map(str, policies))}{others}.")
    for name, words in (("assumes", "It assumes that"), ("holds_for", "It holds for")):
        if given.get(name):
            # What comes after is told below with its numbers.
            notes.append(f"{words} {str(given[name]).partition(';')[0]}.")
    stored, sure = value(given, "particles", "bound"), value(given, "particles", "confidence")
    if stored is not None:
        confidence = "" if sure is None else f", with a confidence of {percent(sure)}"
        count = number(value(given, "particles", "count"))
        notes.append(f"The mean of the {count} stored draws' decisions costs at most {number(stored)}{confidence}.")
    return notes
