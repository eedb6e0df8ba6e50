"""The same request again: what differs between the answer that was kept and the one made now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from app.db.former_names import logged_answer
from app.http.errors import ConflictError, NotFoundError, pointer
from app.log.schemas import AnswerDifference
from app.log.service import LogEntry
from app.posteriors import service as posteriors

MOST_DIFFERENCES = 20

Where = tuple[str | int, ...]


def check(found: LogEntry) -> None:
    """Refuse what cannot be answered again because the posterior is not the one that answered."""
    row = found.row
    try:
        now = posteriors.get(row.workspace, row.posterior_id)
    except NotFoundError:
        detail = f"the posterior {row.posterior_id} was deleted, so this cannot be decided again; its answer is kept"
        raise ConflictError(detail) from None
    if now.digest != row.digest:
        raise ConflictError(f"the posterior {row.posterior_id} has another digest now; the answer that is kept stays")


def revision(found: LogEntry) -> int | None:
    """The revision of the data set that the answer has looked back on; None where it did not."""
    history = orjson.loads(found.answer).get("history")
    return None if history is None else int(history["revision"])


def compared(found: LogEntry, body: bytes) -> bytes:
    """A kept answer beside the same one made now, which has no id yet: ``ReproduceAnswer`` as JSON."""
    answer = b'{"id":"%b",%b' % (found.row.id.encode(), body[1:])
    kept = _in_new_names(found.answer)
    identical = answer == kept
    largest, count, alike = 0.0, 0, True
    listed: list[AnswerDifference] = []
    for where, recorded, now in () if identical else _differences((), orjson.loads(kept), orjson.loads(answer)):
        count += 1
        if len(listed) < MOST_DIFFERENCES:
            listed.append(AnswerDifference(pointer=pointer(where), recorded=recorded, now=now))
        if _is_number(recorded) and _is_number(now):
            largest = max(largest, abs(recorded - now) / max(abs(recorded), abs(now)))
        else:
            alike = False
    about = {
        "id": found.row.id,
        "identical": identical,
        "largest_difference": largest if alike else None,
        "differing": count,
        "differences": [one.model_dump() for one in listed],
    }
    return orjson.dumps(about)[:-1] + b',"answer":%b}' % answer


def _in_new_names(answer: bytes) -> bytes:
    """A kept answer as it would be written now; evaluations of earlier versions have former names."""
    return orjson.dumps(logged_answer(orjson.loads(answer))) if b'"regret":' in answer else answer


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _differences(where: Where, one: Any, other: Any) -> Iterator[tuple[Where, Any, Any]]:
    """The places at which two values of JSON differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from _differences((*where, name), one.get(name), other.get(name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences((*where, index), *pair)
    elif one != other:
        yield where, one, other
