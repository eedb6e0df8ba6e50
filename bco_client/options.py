"""What can be asked for beside data, as keyword arguments; the service's docs page says what each does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Json = Mapping[str, Any]
Quality = Literal["ok", "warn", "bad"]
Include = Literal["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]


class PrescribeOptions(TypedDict, total=False):
    """How to decide."""

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


class LearnOptions(TypedDict, total=False):
    """How to learn."""

    predictor: Json
    inference: Json
    policy: str
    features: str
    from_posterior: Json
    seed: int
    promote: Json
    time_limit_seconds: float


class BacktestOptions(TypedDict, total=False):
    """What to compare, and on which rows."""

    ours: Sequence[Json]
    baselines: Sequence[str]
    posteriors: Sequence[str]
    features: str
    splits: int
    judged: float
    seed: int
    time_limit_seconds: float


class Roles(TypedDict, total=False):
    """What the columns of a history are."""

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
