"""Posteriors: read them, decide with them, check them for drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from bco_client.options import PrescribeArguments, Quality
from bco_client.records import DriftRecord, EvaluateReply, PosteriorRecord, PrescribeReply
from bco_client.steps import Steps, answer, ask, content, delete, done, get, listed, record

Context = Mapping[str, Any] | Sequence[Any]
Decision = Mapping[str, float | None]


def read(posterior_id: str) -> Steps[PosteriorRecord]:
    """Return a posterior by its id or alias."""
    return record(PosteriorRecord, get("posteriors", posterior_id))


def list_all(
    *,
    problem_id: str | None = None,
    dataset_id: str | None = None,
    job_id: str | None = None,
    name: str | None = None,
    quality: Quality | None = None,
    limit: int | None = None,
) -> Steps[list[PosteriorRecord]]:
    """List posteriors, newest first; arguments filter by problem, data set, job, name and quality."""
    only = {"problem_id": problem_id, "dataset_id": dataset_id, "job_id": job_id, "name": name, "quality": quality}
    return listed(PosteriorRecord, "posteriors", limit=limit, **only)


def diagnostics(posterior_id: str) -> Steps[dict[str, Any]]:
    """Return held-out costs of every policy and of the best constant decision, and the course of learning."""
    return answer(get("posteriors", posterior_id, "diagnostics"))


def particles(posterior_id: str, *, first: int = 0, count: int | None = None) -> Steps[bytes]:
    """Return the particles as the content of a NumPy .npz file."""
    return content(get("posteriors", posterior_id, "particles", first=first, count=count))


def drift(
    posterior_id: str, *, dataset_id: str | None = None, source: Literal["dataset", "log"] | None = None
) -> Steps[DriftRecord]:
    """Compare realised with promised costs: on rows after learning, on another data set, or on outcomes in the log."""
    return record(DriftRecord, get("posteriors", posterior_id, "drift", dataset_id=dataset_id, source=source))


def prescribe(
    posterior_id: str, contexts: Sequence[Context], **options: Unpack[PrescribeArguments]
) -> Steps[PrescribeReply]:
    """Decide for contexts, each a dict or the values in column order; return the whole answer of one call."""
    return record(PrescribeReply, ask("posteriors", posterior_id, "prescribe", body={"contexts": contexts, **options}))


def evaluate(
    posterior_id: str,
    contexts: Sequence[Context],
    *,
    alternatives: Sequence[Mapping[str, Any]] | None = None,
    decisions: Sequence[Any] | None = None,
    **options: Unpack[PrescribeArguments],
) -> Steps[EvaluateReply]:
    """Compare decisions of your own with the prescription: ``alternatives`` for every context, or one of ``decisions``
    for each. The service decides values that are None or missing."""
    body: dict[str, Any] = {"contexts": contexts, **options}
    if alternatives is not None:
        body["alternatives"] = [entry if "decision" in entry else {"decision": entry} for entry in alternatives]
    if decisions is not None:
        body["decisions"] = decisions
    return record(EvaluateReply, ask("posteriors", posterior_id, "evaluate", body=body))


def remove(posterior_id: str) -> Steps[None]:
    """Delete a posterior that no alias names."""
    return done(delete("posteriors", posterior_id))
