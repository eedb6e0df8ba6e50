"""Options as keyword arguments; the service's API page explains each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Json = Mapping[str, Any]
Quality = Literal["ok", "warn", "bad"]
Include = Literal["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]


class PrescribeArguments(TypedDict, total=False):
    """Options of deciding."""

    policy: str
    alpha: float
    scenarios: int
    seed: int
    costs_over: Literal["predictive", "posterior"]
    risk: Json
    require_quality: Quality
    problem_patch: Json
    include: Sequence[Include]
    neighbours: int
    time_limit_seconds: float


class LearnArguments(TypedDict, total=False):
    """Options of learning."""

    predictor: Json
    inference: Json
    policy: str
    features: str
    from_posterior: Json
    seed: int
    promote: Json
    time_limit_seconds: float


class BacktestArguments(TypedDict, total=False):
    """Policies to compare, and rows to compare them on."""

    ours: Sequence[Json]
    baselines: Sequence[str]
    posteriors: Sequence[str]
    features: str
    splits: int
    judged: float
    seed: int
    time_limit_seconds: float


class RoleArguments(TypedDict, total=False):
    """Roles of the columns of a history."""

    outcomes: Sequence[str] | str
    contexts: Sequence[str]
    categorical: Sequence[str]
    time: str
    series: Sequence[str] | str
    lead: int
    missing: Literal["reject", "drop", "impute"]
    unseen: Literal["reject", "other"]
    decisions: Sequence[str]


def names(given: Sequence[str] | str) -> list[str]:
    """One name or several."""
    return [given] if isinstance(given, str) else list(given)
