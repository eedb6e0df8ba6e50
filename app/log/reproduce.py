"""Answer a logged request again, and compare the new answer with the logged one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from app.db.former_names import logged_answer
from app.http.errors import ConflictError, NotFoundError, pointer
from app.log.service import LogEntry
from app.posteriors import service as posteriors
from app.prescriptions.context import AnswerBody

MOST_DIFFERENCES = 20
# Fields of sentences, which a later version may word otherwise.
_SENTENCES = {"reason", "warnings", "breaches"}

Where = tuple[str | int, ...]


def check(entry: LogEntry) -> None:
    """Refuse an entry whose posterior was deleted or replaced."""
    row = entry.row
    try:
        now = posteriors.get(row.workspace, row.posterior_id)
    except NotFoundError:
        detail = f"the posterior {row.posterior_id} was deleted, so the call cannot be repeated; the log has its answer"
        raise ConflictError(detail) from None
    if now.digest != row.digest:
        raise ConflictError(f"the posterior {row.posterior_id} has another digest now; the logged answer stays")


def revision(entry: LogEntry) -> int | None:
    """Return the revision of the data set that the answer looked back on; None if it did not."""
    history = orjson.loads(entry.answer).get("history")
    return None if history is None else int(history["revision"])


def compare(entry: LogEntry, body: AnswerBody) -> bytes:
    """Compare a logged answer with a new one: ``ReproduceAnswer`` as JSON.

    Sentences are not compared.
    """
    answer = body.with_id(entry.row.id)
    logged = orjson.dumps(logged_answer(orjson.loads(entry.answer)))
    differences = [] if answer == logged else list(_differences((), orjson.loads(logged), orjson.loads(answer)))
    numeric = all(_is_number(recorded) and _is_number(now) for _, recorded, now in differences)
    relative = (abs(one - other) / max(abs(one), abs(other)) for _, one, other in differences if numeric)
    fields = {
        "id": entry.row.id,
        "identical": not differences,
        "largest_difference": max(relative, default=0.0) if numeric else None,
        "differing": len(differences),
        "differences": [
            {"pointer": pointer(where), "recorded": recorded, "now": now}
            for where, recorded, now in differences[:MOST_DIFFERENCES]
        ],
    }
    return orjson.dumps(fields)[:-1] + b',"answer":%b}' % answer


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, list) and all(map(_is_text, value)))


def _differences(where: Where, one: Any, other: Any) -> Iterator[tuple[Where, Any, Any]]:
    """Yield the places at which two JSON values differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            if name not in _SENTENCES or not (_is_text(one.get(name)) and _is_text(other.get(name))):
                yield from _differences((*where, name), one.get(name), other.get(name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences((*where, index), *pair)
    elif one != other:
        yield where, one, other
