"""Names that stored documents had before they were renamed, translated when the documents are read.

Requests are never translated: a former name in one is refused like any other unknown field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

Json = dict[str, Any]

# The policy of a backtest that stands for the decisions actually taken, then and now.
FORMER_ACTUAL, ACTUAL = "done", "actual_decision"
_JOB = {"posterior": "inference", "done": "actual_decision", "problem": "problem_patch"}
_REQUEST = {"problem": "problem_patch"}
_ALTERNATIVE = {
    "regret": "extra_cost",
    "regret_standard_error": "extra_cost_standard_error",
    "regret_quantiles": "extra_cost_quantiles",
}
_DIFFERENCE = {"asked": "requested"}
_DATASET = {"policy": "handling"}


class TranslatedJson(sa.TypeDecorator[Any]):
    """JSON that is translated when it is read."""

    impl = sa.JSON
    cache_ok = True

    def __init__(self, translate: Callable[[Json], Json]) -> None:
        super().__init__()
        self.translate = translate

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return self.translate(value) if isinstance(value, dict) else value

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        return self.impl_instance.coerce_compared_value(op, value)


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> Json:
    return {names.get(name, name): value for name, value in fields.items()}


def job_spec(spec: Json) -> Json:
    """Return a job's request under today's names."""
    result = _renamed(spec, _JOB)
    if result.get("ours"):
        result["ours"] = [_renamed(one, _JOB) for one in result["ours"]]
    return result


def job_summary(summary: Json) -> Json:
    """Return the summary of a backtest under today's names."""
    if not any(one["name"] == FORMER_ACTUAL for one in summary.get("policies", ())):
        return summary

    def by_policy(line: Json) -> Json:
        return line | {"cost": {policy(name): cost for name, cost in line["cost"].items()}}

    return summary | {
        "against": policy(summary["against"]),
        "policies": [one | {"name": policy(one["name"])} for one in summary["policies"]],
        "differences": [one | {"against": policy(one["against"])} for one in summary["differences"]],
        **{part: [by_policy(line) for line in summary[part]] for part in ("splits", "over_time", "series")},
    }


def policy(name: str) -> str:
    """Return today's name of a backtest's policy."""
    return ACTUAL if name == FORMER_ACTUAL else name


def logged_request(fields: Json) -> Json:
    """Return a logged prescribe or evaluate request under today's names."""
    return _renamed(fields, _REQUEST)


def logged_answer(answer: Json) -> Json:
    """Return a logged answer under today's names."""
    changes = {}
    if answer.get("problem_differs"):
        changes["problem_differs"] = [_renamed(one, _DIFFERENCE) for one in answer["problem_differs"]]
    if "evaluations" in answer:
        changes["evaluations"] = [
            one | {"alternatives": [_renamed(alternative, _ALTERNATIVE) for alternative in one["alternatives"]]}
            for one in answer["evaluations"]
        ]
    return answer | changes


def exported_dataset(facts: Json) -> Json:
    """Return the data set's facts in an exported posterior under today's names."""
    return _renamed(facts, _DATASET)
