"""Posteriors: what was learned, what it decides, and whether it still holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from bco_client.options import PrescribeOptions, Quality
from bco_client.records import Drift, Evaluated, Posterior, Prescribed
from bco_client.steps import Steps, answer, ask, content, delete, done, get, listed, record

Context = Mapping[str, Any] | Sequence[Any]
Decision = Mapping[str, float | None]


def read(posterior_id: str) -> Steps[Posterior]:
    """A posterior by its id or alias."""
    return record(Posterior, get("posteriors", posterior_id))


def list_all(
    *,
    problem_id: str | None = None,
    dataset_id: str | None = None,
    job_id: str | None = None,
    name: str | None = None,
    quality: Quality | None = None,
    limit: int | None = None,
) -> Steps[list[Posterior]]:
    """All posteriors, newest first, or those of a problem, data set or job, with a name, or of a quality."""
    only = {"problem_id": problem_id, "dataset_id": dataset_id, "job_id": job_id, "name": name, "quality": quality}
    return listed(Posterior, "posteriors", limit=limit, **only)


def diagnostics(posterior_id: str) -> Steps[dict[str, Any]]:
    """Held-out cost of every policy beside the best constant decision's, and how learning went."""
    return answer(get("posteriors", posterior_id, "diagnostics"))


def particles(posterior_id: str, *, first: int = 0, count: int | None = None) -> Steps[bytes]:
    """The particles as the content of NumPy's .npz."""
    return content(get("posteriors", posterior_id, "particles", first=first, count=count))


def drift(
    posterior_id: str, *, dataset_id: str | None = None, source: Literal["dataset", "log"] | None = None
) -> Steps[Drift]:
    """Whether rows that came after learning, those of another data set, or what the log has, cost what was promised."""
    return record(Drift, get("posteriors", posterior_id, "drift", dataset_id=dataset_id, source=source))


def prescribe(posterior_id: str, contexts: Sequence[Context], **options: Unpack[PrescribeOptions]) -> Steps[Prescribed]:
    """Decide for contexts, each a dict or the values in column order: the whole answer of one call."""
    return record(Prescribed, ask("posteriors", posterior_id, "prescribe", body={"contexts": contexts, **options}))


def evaluate(
    posterior_id: str,
    contexts: Sequence[Context],
    *,
    alternatives: Sequence[Mapping[str, Any]] | None = None,
    decisions: Sequence[Any] | None = None,
    **options: Unpack[PrescribeOptions],
) -> Steps[Evaluated]:
    """What decisions of your own would cost beside ours: ``alternatives`` for every context, or one of ``decisions``
    for each. What is None or left out in a decision is left to us."""
    body: dict[str, Any] = {"contexts": contexts, **options}
    if alternatives is not None:
        body["alternatives"] = [entry if "decision" in entry else {"decision": entry} for entry in alternatives]
    if decisions is not None:
        body["decisions"] = decisions
    return record(Evaluated, ask("posteriors", posterior_id, "evaluate", body=body))


def remove(posterior_id: str) -> Steps[None]:
    """Delete a posterior that no alias names."""
    return done(delete("posteriors", posterior_id))
