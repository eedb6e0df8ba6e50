"""What the form for a new job says, as a request of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData

from app.pages import forms
from app.pages.problems.forms import as_number, parsed

# Choices with their words, the default first.
METHODS = {
    "auto": "let the service choose and tune it (best for most)",
    "vi": "variational inference, with settings of your own",
    "mh": "chains (Metropolis–Hastings): slower, exact in the long run",
}
PREDICTORS = {
    "auto": "let held-out rows choose and mix",
    "linear": "linear: fast, easy to follow",
    "skip_mlp": "a network beside a linear model",
    "mlp": "a network",
    "relu_affine": "linear, never below zero",
    "boosted": "boosted trees and departures from them",
}
POLICIES = {
    "": "what held-out rows recommend",
    "averaged": "averaged: the mean of all models' decisions",
    "bcp": "bcp: least mean cost over all models",
    "blended": "blended: between the two",
    "predictive": "predictive: least mean cost over outcomes, noise included",
    "map": "map: by the single most plausible model",
    "thompson": "thompson: by one model drawn at random",
}
FEATURES = {"auto": "calendar, lags and windows, chosen by the spacing of the rows", "none": "no features of time"}
FIELDS = (
    "name",
    "problem_id",
    "dataset_id",
    "method",
    "predictor",
    "seed",
    "features",
    "features_text",
    "options",
    "policy",
    "time_limit",
)
DEFAULTS = {"method": "auto", "predictor": "auto", "seed": "0", "features": "auto"}
# Where the API says what is wrong, and the field that is meant; more specific places first.
PLACES = {
    "name": ("#/name",),
    "problem_id": ("#/problem_id",),
    "dataset_id": ("#/dataset_id",),
    "method": ("#/inference/method",),
    "predictor": ("#/predictor", "#/predictor/kind", "#/predictor/hidden"),
    "seed": ("#/seed",),
    "features": ("#/features",),
    "policy": ("#/policy",),
    "time_limit": ("#/time_limit_seconds",),
}


@dataclass(frozen=True)
class Asked:
    """The form as it was filled in, the request that it makes, and what keeps it from making one, by field."""

    given: dict[str, str]
    body: dict[str, Any]
    wrong: dict[str, str] = field(default_factory=dict)


def first(problem: str, dataset: str, name: str = "") -> Asked:
    """The form before anything is filled in."""
    return _asked(dict.fromkeys(FIELDS, "") | DEFAULTS | {"problem_id": problem, "dataset_id": dataset, "name": name})


def asked(form: FormData) -> Asked:
    given = {name: forms.text(form, name) for name in FIELDS}
    return _asked({name: value or DEFAULTS.get(name, "") for name, value in given.items()})


def _asked(given: dict[str, str]) -> Asked:
    """What is as it would be anyway is left out, so that the request is as short as somebody would write it."""
    wrong: dict[str, str] = {}
    body: dict[str, Any] = {name: given[name].strip() for name in ("name", "problem_id", "dataset_id")}
    if not body["name"]:
        del body["name"]
    options = _options(given["options"], "options", wrong)
    if given["method"] != "auto" or options:
        body["inference"] = {"method": given["method"]} | options
    if given["predictor"] != "auto":
        body["predictor"] = {"kind": given["predictor"]}
    if given["features"] == "own":
        body["features"] = _options(given["features_text"], "features_text", wrong)
    elif given["features"] != "auto":
        body["features"] = given["features"]
    if given["policy"]:
        body["policy"] = given["policy"]
    body["seed"] = as_number(given["seed"])
    if given["time_limit"].strip():
        body["time_limit_seconds"] = as_number(given["time_limit"])
    return Asked(given, body, wrong)


def _options(text: str, name: str, wrong: dict[str, str]) -> dict[str, Any]:
    if not text.strip():
        return {}
    value, why = parsed(text)
    if why:
        wrong[name] = why
        return {}
    found: dict[str, Any] = value
    return found


def is_advanced(given: Mapping[str, str]) -> bool:
    """Whether anything is filled in that is folded away at first."""
    return any(given[name].strip() for name in ("options", "policy", "time_limit"))
