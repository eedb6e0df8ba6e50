"""Included parts as tables: scenarios as one long table, and the parts of a prescription as columns of a batch."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
from pydantic import BaseModel

from app.db.tables import PosteriorRow
from app.http.errors import InvalidRequest
from app.http.tables import to_parquet
from app.prescriptions.cache import LoadedPosterior
from app.prescriptions.schemas import AttributionAnswer, DecisionOptions, DerivativeAnswer, OutcomeAnswer
from app.prescriptions.sensitivity import amounts, entries
from app.problems.schemas import outcome_names
from bco_core.prescribe import QUANTILES

_SCENARIOS_ONLY = 'only scenarios are served as a table: send include ["scenarios"], or accept application/json'


def check_table(request: DecisionOptions) -> None:
    """Refuse a table of anything but scenarios."""
    if set(request.include) != {"scenarios"}:
        raise InvalidRequest.at(("include",), _SCENARIOS_ONLY)


def scenario_table(answer: bytes) -> bytes:
    """Return the scenarios of an answer as Parquet: context, scenario, weight, the outcomes and the decision's cost.

    Contexts are numbered as in the request; refused ones have no rows.
    """
    pieces: list[pa.Table] = []
    for number, prescription in enumerate(orjson.loads(answer)["prescriptions"]):
        scenarios = prescription["scenarios"]
        if scenarios is not None:
            count = len(scenarios["weights"])
            columns: dict[str, pa.Array] = {
                "context": pa.array([number] * count, pa.int64()),
                "scenario": pa.array(range(count), pa.int64()),
                "weight": pa.array(scenarios["weights"], pa.float64()),
            }
            columns |= {
                f"outcome.{name}": pa.array(values, pa.float64()) for name, values in scenarios["outcomes"].items()
            }
            pieces.append(pa.table(columns | {"cost": pa.array(scenarios["costs"], pa.float64())}))
    return to_parquet(pa.concat_tables(pieces))


def flatten_parts(answer: dict[str, Any], row: PosteriorRow, loaded: LoadedPosterior) -> None:
    """Turn included parts into columns: the same ones for every context, lists as JSON text."""
    outcomes = outcome_names(row.problem)
    for name in ("scenarios", "recourse", "neighbours"):
        if name in answer:
            answer[name] = _text(answer[name])
    if "outcomes" in answer and answer["outcomes"] is None:
        answer["outcomes"] = {name: _blank(OutcomeAnswer) | {"quantiles": _levels()} for name in outcomes}
    if "sensitivity" in answer:
        sensitivity = answer["sensitivity"] or _no_sensitivity(row, loaded, outcomes)
        answer["sensitivity"] = sensitivity | {name: _text(sensitivity[name]) for name in ("switches", "prices")}


def _no_sensitivity(row: PosteriorRow, loaded: LoadedPosterior, outcomes: list[str]) -> dict[str, Any]:
    """Return an empty ``SensitivityAnswer``, for a context without a prediction."""
    slope = _blank(DerivativeAnswer) | {"decision": dict.fromkeys(loaded.decisions)}
    share = _blank(AttributionAnswer) | {"contributions": dict.fromkeys(entries(loaded.encoding))}
    return {
        "derivatives": dict.fromkeys(amounts(loaded.encoding, row.columns), slope),
        "switches": None,
        "attribution": {"method": None, "baseline": None, "outcomes": dict.fromkeys(outcomes, share)},
        "prices": None,
    }


def _blank(model: type[BaseModel]) -> dict[str, Any]:
    return dict.fromkeys(model.model_fields)


def _levels() -> dict[str, None]:
    return {str(level): None for level in QUANTILES}


def _text(part: Any) -> str | None:
    return None if part is None else orjson.dumps(part).decode()
