"""Problems: what is decided and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bco_client import models
from bco_client.records import Problem
from bco_client.steps import Steps, answer, content, delete, done, get, listed, record, upload
from bco_client.steps import create as creating
from bco_client.tables import File
from bco_client.to_json import to_json


def create(spec: Mapping[str, Any], name: str = "", *, idempotency_key: str | None = None) -> Steps[Problem]:
    """Describe a decision problem: its specification (with ``kind``), or that and a name as the API takes it."""
    body = {"name": name or str(spec.get("kind", "problem")), "spec": spec}
    if "kind" not in spec and "spec" in spec:
        body = {**spec, "name": name or spec.get("name") or str(spec["spec"].get("kind", "problem"))}
    return record(Problem, creating("problems", body=body, key=idempotency_key))


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
) -> Steps[Problem]:
    """Make a problem of a model of pyomo, linopy, gurobipy or highspy, or of an MPS or LP file: a path, or bytes.

    ``decisions`` are the columns that are decided now, all by default. ``entries`` say which numbers depend on
    ``outcomes``: ``{"row": …, "column": …, "outcomes": {name: factor}, "constant": …}`` with the model's own names, no
    row for the objective, no column for the right-hand side. ``time`` and ``scenarios`` are SMPS files instead.
    """
    file = models.as_file(model)
    told = {
        "name": name or "imported model",
        "decisions": None if decisions is None else list(decisions),
        "outcomes": [{"name": outcome} if isinstance(outcome, str) else dict(outcome) for outcome in outcomes],
        "entries": [dict(entry) for entry in entries],
    }
    files = {"file": ("model", file.content), "description": ("description", to_json(file.described(told)))}
    for part, given in (("time", time), ("scenarios", scenarios)):
        if given is not None:
            files[part] = (part, given if isinstance(given, bytes) else Path(given).read_bytes())
    return record(Problem, upload("problems", "import", form={}, key=idempotency_key, **files))


def mps(problem_id: str, *, at: Mapping[str, float] | None = None) -> Steps[str]:
    """A linear problem as free MPS, with uncertain numbers at some values of the outcomes, 0 by default."""
    values = [f"{name}={float(value)!r}" for name, value in (at or {}).items()]
    return (yield from content(get("problems", problem_id, "mps", at=values or None))).decode()


def mps_description(problem_id: str) -> Steps[dict[str, Any]]:
    """What the MPS file of a problem cannot say: with it, the file can be imported again."""
    return answer(get("problems", problem_id, "mps", part="description"))


def read(problem_id: str) -> Steps[Problem]:
    return record(Problem, get("problems", problem_id))


def list_all(*, name: str | None = None, kind: str | None = None, limit: int | None = None) -> Steps[list[Problem]]:
    """All problems, newest first, or those with a name or of a kind."""
    return listed(Problem, "problems", limit=limit, name=name, kind=kind)


def remove(problem_id: str) -> Steps[None]:
    """Delete a problem that no job uses."""
    return done(delete("problems", problem_id))
