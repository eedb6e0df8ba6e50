"""Roles of columns as the caller names them, checked against the columns of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.datasets.parsing import RawTable
from app.http.errors import InvalidRequest
from app.settings import Settings


@dataclass(frozen=True)
class ColumnRoles:
    """Columns by role, as the caller names them. ``contexts`` None means all columns without another role.

    ``missing`` is reject, drop or impute; ``unseen`` is reject or other, for categories that are rare or new later.
    Decisions are made ``lead`` periods ahead. ``decisions`` hold the decisions actually taken, for comparison; they are
    never contexts.
    """

    outcomes: list[str]
    contexts: list[str] | None
    categorical: list[str]
    missing: str = "reject"
    time: str | None = None
    series: Sequence[str] = ()
    lead: int = 1
    unseen: str = "reject"
    decisions: Sequence[str] = ()

    @property
    def handling(self) -> dict[str, Any]:
        return {"missing": self.missing, "unseen": self.unseen}


@dataclass(frozen=True)
class StoredColumns:
    """Columns to store, in the order of storage."""

    time: str | None
    series: list[str]
    contexts: list[str]
    outcomes: list[str]
    decisions: list[str]

    @property
    def names(self) -> list[str]:
        before = [*([] if self.time is None else [self.time]), *self.series]
        return [*before, *self.contexts, *self.outcomes, *self.decisions]


def choose_columns(raw: RawTable, roles: ColumnRoles, settings: Settings) -> StoredColumns:
    """Return the columns to store; refuse roles that do not fit the table."""
    if not raw.rows or not raw.columns:
        raise InvalidRequest.at((raw.whole,), "the data set is empty; send at least 2 rows with named columns")
    if raw.rows > settings.max_rows:
        raise InvalidRequest.at((raw.whole,), f"at most {settings.max_rows} rows (BCO_MAX_ROWS)")
    if not roles.outcomes:
        raise InvalidRequest.at(
            ("outcomes",), "name at least one outcome column: a quantity that is unknown when deciding"
        )
    _check_time(raw, roles)
    contexts = roles.contexts
    if contexts is None:
        taken = {*roles.outcomes, *roles.series, *roles.decisions, roles.time}
        contexts = [name for name in raw.columns if name not in taken]
    fields = (
        ("outcomes", roles.outcomes),
        ("series", roles.series),
        ("contexts", contexts),
        ("decisions", roles.decisions),
        ("categorical", roles.categorical),
    )
    for field, listed in fields:
        for index, name in enumerate(listed):
            if name not in raw.columns:
                raise InvalidRequest.at((field, index), _no_such_column(raw))
            if name in listed[:index]:
                raise InvalidRequest.at((field, index), f"'{name}' is listed twice")
    _check_one_role(roles, contexts)
    if not contexts and roles.time is None and roles.contexts is None:
        detail = "there is no context column besides the outcomes; add one, or send an empty list of contexts"
        raise InvalidRequest.at(("contexts",), detail)
    chosen = StoredColumns(roles.time, list(roles.series), contexts, roles.outcomes, list(roles.decisions))
    if len(chosen.names) > settings.max_columns:
        limit = settings.max_columns
        raise InvalidRequest.at(("contexts",), f"more than {limit} columns (BCO_MAX_COLUMNS); list the useful ones")
    return chosen


def _no_such_column(raw: RawTable) -> str:
    return f"there is no such column; the columns are {', '.join(list(raw.columns)[:20])}"


def _check_time(raw: RawTable, roles: ColumnRoles) -> None:
    if roles.time is not None and roles.time not in raw.columns:
        raise InvalidRequest.at(("time",), _no_such_column(raw))
    if roles.time is None and roles.series:
        raise InvalidRequest.at(("series",), "series need a time column; name it as time")
    if roles.time is None and roles.lead != 1:
        raise InvalidRequest.at(("lead",), "a lead is counted in periods of the time column; name it as time")


def _check_one_role(roles: ColumnRoles, contexts: list[str]) -> None:
    held = dict.fromkeys(roles.outcomes, "an outcome")
    for index, name in enumerate(contexts):
        if name in held:
            raise InvalidRequest.at(("contexts", index), f"'{name}' is both a context and an outcome; it can be one")
    held |= dict.fromkeys(contexts, "a context")
    for index, name in enumerate(roles.series):
        if name in held:
            raise InvalidRequest.at(("series", index), f"'{name}' is both a series key and {held[name]}; it can be one")
    held |= dict.fromkeys(roles.series, "a series key")
    for index, name in enumerate(roles.decisions):
        if name in held:
            detail = f"'{name}' is both a decision that was made and {held[name]}; it can be one"
            raise InvalidRequest.at(("decisions", index), detail)
    held |= dict.fromkeys(roles.decisions, "a decision that was made")
    if roles.time in held:
        raise InvalidRequest.at(("time",), f"'{roles.time}' is both the time and {held[roles.time]}; it can be one")
    for index, name in enumerate(roles.categorical):
        if name in roles.outcomes or name in roles.decisions:
            raise InvalidRequest.at(("categorical", index), f"'{name}' is {held[name]}, and must be numbers")
