"""A problem with some of its numbers changed for one request: costs, bounds, capacities, stock, targets.

A patch has the shape of the specification, but lists of named things are mappings from names:
``{"items": {"croissants": {"underage_cost": 2}}, "decision_rows": {"budget": {"limit": 900}}}``. Mappings are patched
entry by entry; numbers, texts and matrices are replaced. The structure stays: the kind, the names and their number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError, WithJsonSchema

from app.db.text import NOT_PLAIN, is_plain
from app.http.errors import InvalidRequest
from app.problems.schemas import ProblemSpec
from bco_core.errors import InvalidInput

Spec = dict[str, Any]
Path = tuple[str | int, ...]

# Place of a patch in a request.
PLACE = "problem_patch"
# Changes to list, the largest first.
MOST_LISTED = 100
# JSON readers may not distinguish larger integers.
_LARGEST = 2**53
_MOST_NAMED = 10
# Values of a patch, which are checked where requests are parsed.
_MOST_VALUES = 100_000
_SPEC: TypeAdapter[Any] = TypeAdapter(ProblemSpec)


class Difference(BaseModel):
    """A number of the problem that a request changes: the value learned for, and the value requested."""

    where: str = Field(examples=["items/croissants/underage_cost"])
    learned: Any = Field(examples=[1.8])
    requested: Any = Field(examples=[2.0])
    change: float | None = Field(
        description="relative change; null where the value learned for is zero, or one of them is no number",
        examples=[0.111],
    )


class PatchedSpec(NamedTuple):
    """A complete specification and its differences from the one that was patched, the largest change first."""

    spec: Spec
    differs: list[Difference]


def _check_patch(patch: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that cannot be written as JSON again without loss."""
    for number, value in enumerate(_values(patch)):
        if number >= _MOST_VALUES:
            raise ValueError(
                f"it holds more than {_MOST_VALUES} values; create a new problem and learn a posterior for it"
            )
        if isinstance(value, str) and not is_plain(value):
            raise ValueError(f"a text in it holds {NOT_PLAIN}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("its numbers must be finite")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError("a number in it is too large")
    return patch


def _values(value: Any) -> Iterator[Any]:
    """Iterate over the leaves of a JSON value, names included."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _values(part)
    elif isinstance(value, list):
        for part in value:
            yield from _values(part)
    else:
        yield value


_EXAMPLE = {"items": {"croissants": {"underage_cost": 2.0}}}
Patch = Annotated[
    dict[str, Any],
    AfterValidator(_check_patch),
    WithJsonSchema({"type": "object", "additionalProperties": True, "examples": [_EXAMPLE]}),
]


def digest(patch: Spec) -> str:
    """Return a digest of a patch that does not depend on the order of its fields."""
    return hashlib.sha256(orjson.dumps(patch, option=orjson.OPT_SORT_KEYS)).hexdigest()


def apply(spec: Spec, patch: Spec) -> PatchedSpec:
    """Apply a patch to a specification and validate the result; 422 names the place in the patch."""
    learned = _SPEC.validate_python(spec)
    before: Spec = learned.model_dump()
    fields = [name for name in before if name != "kind"]
    for name in patch:
        if name == "kind":
            raise _refused((name,), "the kind of a problem cannot be changed; learn a posterior for the other kind")
        if name not in before:
            raise _refused((name,), f"there is no such part of this problem; it has {_listed(fields)}")
    asked = before | {name: _put(before[name], value, (name,)) for name, value in patch.items()}
    try:
        after = _SPEC.validate_python(asked)
    except ValidationError as error:
        raise _in_patch(error, asked) from None
    try:
        names = after.outcome_names(), after.decision_names()
    except InvalidInput as error:
        raise _refused(named(asked, error.where), str(error)) from None
    if names != (learned.outcome_names(), learned.decision_names()):
        raise _refused((), "a patch changes numbers; names and counts cannot change")
    patched: Spec = after.model_dump()
    return PatchedSpec(patched, _differences(before, patched))


def warning(differs: Sequence[Difference]) -> str:
    """Return the warning of an answer for a patched problem."""
    if not differs:
        return "the problem's patch changes nothing: the posterior was learned for just these values"
    first = differs[0]
    by = "" if first.change is None else f" ({first.change:+.1%})"
    words = f"{first.where} was {_quote(first.learned)} and is {_quote(first.requested)}{by}"
    rest = f", the largest of {len(differs)} changes" if len(differs) > 1 else ""
    return f"the posterior was learned, and its quality estimated, for other values: {words}{rest}"


def _quote(value: Any) -> str:
    if value is None:
        return "not given"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _refused(where: Path, detail: str) -> InvalidRequest:
    return InvalidRequest.at((PLACE, *where), detail)


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest


def _names(parts: Any) -> list[str] | None:
    """Return the names of a list of named things, None for other values; unnamed rows are numbered."""
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) and "name" in part for part in parts):
        return None
    return [part["name"] or f"row {number}" for number, part in enumerate(parts, start=1)]


def _put(before: Any, patch: Any, where: Path) -> Any:
    """Apply a part of the patch to its part of the specification."""
    names = _names(before)
    if names is not None:
        if not isinstance(patch, dict):
            raise _refused(where, f'name what to change: {{"{names[0]}": {{…}}}}')
        for name, fields in patch.items():
            if name not in names:
                raise _refused((*where, name), f"there is nothing of this name in {where[-1]}; it has {_listed(names)}")
            if not isinstance(fields, dict):
                raise _refused((*where, name), "give the fields to change, by their names")
            if "name" in fields:
                raise _refused((*where, name, "name"), "a name cannot be changed; names identify outcomes")
        return [
            part | {field: _put(part.get(field), value, (*where, name, field)) for field, value in patch[name].items()}
            if name in patch
            else part
            for name, part in zip(names, before, strict=True)
        ]
    if isinstance(before, dict) and isinstance(patch, dict):
        return before | {name: _put(before.get(name), value, (*where, name)) for name, value in patch.items()}
    return patch


def _in_patch(error: ValidationError, spec: Spec) -> InvalidRequest:
    """Return the first mistakes of a specification, at the places of the patch that cause them."""
    # The first place of each is the tag that tells kinds apart.
    result = [
        ((PLACE, *named(spec, entry["loc"][1:])), entry["msg"].removeprefix("Value error, "))
        for entry in error.errors(include_url=False)[:_MOST_NAMED]
    ]
    return InvalidRequest(result[0][1], *result)


def named(spec: Spec, where: Path) -> Path:
    """Return a place in a specification by names instead of numbers, as in a patch."""
    result: list[str | int] = []
    part: Any = spec
    for place in where:
        names = _names(part)
        result.append(names[place] if names is not None and isinstance(place, int) else place)
        within = isinstance(part, dict) and place in part
        within = within or (isinstance(part, list) and isinstance(place, int) and place < len(part))
        part = part[place] if within else None
    return tuple(result)


def _differences(before: Spec, after: Spec) -> list[Difference]:
    result = list(_differing(before, after, ()))
    return sorted(result, key=lambda one: math.inf if one.change is None else abs(one.change), reverse=True)


def _differing(before: Any, after: Any, where: Path) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from _differing(before.get(name), after.get(name), (*where, name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        labels: Sequence[str | int] = _names(before) or range(len(before))
        for label, old, new in zip(labels, before, after, strict=True):
            yield from _differing(old, new, (*where, label))
    elif before != after:
        yield Difference(
            where="/".join(map(str, where)),
            learned=_plain(before),
            requested=_plain(after),
            change=_change(before, after),
        )


def _plain(value: Any) -> Any:
    """Return a value for an answer: a matrix or mapping is not repeated."""
    return value if value is None or isinstance(value, bool | int | float | str) else "given"


def _change(before: Any, after: Any) -> float | None:
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, after))
    return (after - before) / abs(before) if numbers and before else None
