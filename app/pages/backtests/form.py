"""The form that asks for a backtest: what was typed, and the request that it stands for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData, QueryParams

# How a planner may have the candidate made, in the order in which they are offered.
AUTO, QUICK, LIKE, EXISTING = "auto", "quick", "like", "existing"
# A look that takes seconds: good enough to see whether anything can be gained.
QUICK_OPTIONS: dict[str, Any] = {
    "name": "quick",
    "predictor": {"kind": "linear"},
    "inference": {"method": "vi", "epochs": 30},
}
# What a rule does, for who has never heard of it.
BASELINES = {
    "constant": ("Always the same", "the one decision that would have been best over all that is known"),
    "season": ("Same weekday as before", "the best over the last eight of the same season; needs a time column"),
    "regression": ("Forecast and its errors", "a regression, and a decision that allows for how far it was off"),
    "boosted": ("Boosted trees", "a forecast of the right quantile by LightGBM; where decisions are quantiles"),
    "neighbours": ("Most similar days", "the best over the most similar rows of the history"),
    "kernel": ("Similar days weigh more", "the best over the history, each row weighted by how similar it is"),
    "ieo": ("Trained for cost", "models trained for the cost of decisions, without hedging; takes the longest"),
}
_ACTUAL_DECISION = re.compile(r"actual_decision\.(.+)")


@dataclass
class Typed:
    """What stands in the form, as text."""

    name: str = ""
    dataset: str = ""
    problem: str = ""
    posterior: str = ""
    how: str = AUTO
    posteriors: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=lambda: list(BASELINES))
    actual_decision: dict[str, str] = field(default_factory=dict)
    splits: str = "4"
    judged: str = ""
    seed: str = "0"

    @staticmethod
    def of(given: FormData | QueryParams) -> Typed:
        """What was sent. A form that was sent says which boxes are ticked; an address that leads to it does not."""
        plain = {key: value for key, value in given.multi_items() if isinstance(value, str)}
        typed = Typed()
        for name in ("name", "dataset", "problem", "posterior", "how", "splits", "judged", "seed"):
            if name in plain:
                setattr(typed, name, plain[name].strip())
        typed.posteriors = [str(one) for one in given.getlist("posteriors")]
        if "sent" in plain:
            typed.baselines = [name for name in BASELINES if name in given.getlist("baselines")]
        typed.actual_decision = {
            found[1]: value for key, value in plain.items() if (found := _ACTUAL_DECISION.fullmatch(key))
        }
        return typed


def request_of(typed: Typed, has_time: bool, like: Mapping[str, Any] | None) -> dict[str, Any]:
    """The job that the form asks for; ``like`` says how a posterior was learned that is to be learned anew."""
    body: dict[str, Any] = {"kind": "backtest", "problem_id": typed.problem, "dataset_id": typed.dataset}
    if typed.name:
        body["name"] = typed.name
    actual = {name: column for name, column in typed.actual_decision.items() if column}
    if typed.how == EXISTING:
        return body | {"posteriors": typed.posteriors} | ({"actual_decision": actual} if actual else {}) | _seed(typed)
    if typed.how == QUICK:
        body["ours"] = [QUICK_OPTIONS]
    elif typed.how == LIKE and like is not None:
        body |= like
    if len(typed.baselines) < len(BASELINES):
        body["baselines"] = typed.baselines
    if actual:
        body["actual_decision"] = actual
    body["splits"] = _number(typed.splits)
    if has_time and typed.judged:
        share = _number(typed.judged)
        body["judged"] = share / 100 if isinstance(share, int | float) else share
    return body | _seed(typed)


def _seed(typed: Typed) -> dict[str, Any]:
    seed = _number(typed.seed)
    return {} if seed in (0, "") else {"seed": seed}


def _number(text: str) -> int | float | str:
    """A number as it was typed; text stays text, for the API to say what is wrong with it."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return int(value) if value.is_integer() else value


def learned_like(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the job that has made a posterior was asked for, as a backtest is asked to learn it anew."""
    ours: dict[str, Any] = {"name": name}
    for part in ("predictor", "inference"):
        ours[part] = {key: value for key, value in spec.get(part, {}).items() if value is not None}
    if spec.get("policy") is not None:
        ours["policy"] = spec["policy"]
    features = spec.get("features", "auto")
    return {"ours": [ours]} | ({} if features == "auto" else {"features": features})


def proposed(decisions: list[str], columns: list[str], actual: Mapping[str, str]) -> dict[str, str]:
    """Which column holds what was really decided, for each decision: as typed, by its name, or the only one."""
    only = columns[0] if len(columns) == len(decisions) == 1 else ""
    return {name: actual.get(name, name if name in columns else only) for name in decisions}
