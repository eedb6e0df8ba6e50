"""Decision problems: create, import, export and list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bco_client import models
from bco_client.records import ProblemRecord
from bco_client.steps import Steps, answer, content, delete, done, get, listed, record, upload
from bco_client.steps import create as creating
from bco_client.tables import File
from bco_client.to_json import to_json


def create(spec: Mapping[str, Any], name: str = "", *, idempotency_key: str | None = None) -> Steps[ProblemRecord]:
    """Create a problem from its specification (with ``kind``), or from the whole request body (``name``, ``spec``)."""
    body = {"name": name or str(spec.get("kind", "problem")), "spec": spec}
    if "kind" not in spec and "spec" in spec:
        body = {**spec, "name": name or spec.get("name") or str(spec["spec"].get("kind", "problem"))}
    return record(ProblemRecord, creating("problems", body=body, key=idempotency_key))


def import_model(
    model: Any,
    name: str = "",
    *,
    decisions: Sequence[str] | None = None,
    outcomes: Sequence[str | Mapping[str, Any]] = (),
    entries: Sequence[Mapping[str, Any]] = (),
    time: str | File | None = None,
    scenarios: str | File | None = None,
    idempotency_key: str | None = None,
) -> Steps[ProblemRecord]:
    """Create a problem from a model of pyomo, linopy, gurobipy or highspy, or from an MPS or LP file: path or bytes.

    ``decisions`` are the columns of the first stage, all by default. ``entries`` say which numbers depend on
    ``outcomes``: ``{"row": …, "column": …, "outcomes": {name: factor}, "constant": …}`` with the model's own names, no
    row for the objective, no column for the right-hand side. ``time`` and ``scenarios`` are SMPS files instead.
    """
    file = models.as_file(model)
    description = {
        "name": name or "imported model",
        "decisions": None if decisions is None else list(decisions),
        "outcomes": [{"name": outcome} if isinstance(outcome, str) else dict(outcome) for outcome in outcomes],
        "entries": [dict(entry) for entry in entries],
    }
    files = {"file": ("model", file.content), "description": ("description", to_json(file.described(description)))}
    for part, given in (("time", time), ("scenarios", scenarios)):
        if given is not None:
            files[part] = (part, given if isinstance(given, bytes) else Path(given).read_bytes())
    return record(ProblemRecord, upload("problems", "import", form={}, key=idempotency_key, **files))


def mps(problem_id: str, *, at: Mapping[str, float] | None = None) -> Steps[str]:
    """Return a linear problem as free MPS, with uncertain numbers at the outcomes ``at``, 0 by default."""
    values = [f"{name}={float(value)!r}" for name, value in (at or {}).items()]
    return (yield from content(get("problems", problem_id, "mps", at=values or None))).decode()


def mps_description(problem_id: str) -> Steps[dict[str, Any]]:
    """Return the description that an MPS file lacks: with it, the file can be imported again."""
    return answer(get("problems", problem_id, "mps", part="description"))


def read(problem_id: str) -> Steps[ProblemRecord]:
    return record(ProblemRecord, get("problems", problem_id))


def list_all(
    *, name: str | None = None, kind: str | None = None, limit: int | None = None
) -> Steps[list[ProblemRecord]]:
    """List problems, newest first; arguments filter by name and kind."""
    return listed(ProblemRecord, "problems", limit=limit, name=name, kind=kind)


def remove(problem_id: str) -> Steps[None]:
    """Delete a problem that no job uses."""
    return done(delete("problems", problem_id))
