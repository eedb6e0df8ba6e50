"""Appending rows to a data set: checked like an upload and beside what is stored, then kept as a new revision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from app.datasets.categories import with_other
from app.datasets.parsing import RawTable
from app.datasets.profile import Clean, Profiled, clean, described
from app.datasets.roles import Chosen, Roles
from app.datasets.series import series_codes
from app.datasets.service import MISSING, chunked, digest, read_table
from app.datasets.times import DATE, DATETIME, GERMAN, Times, first_duplicate, written
from app.datasets.validation_errors import Mistakes, shown
from app.db.engine import affected, transaction
from app.db.tables import DatasetChunkRow, DatasetRow
from app.http.errors import ConflictError, InvalidRequest, NotFoundError
from app.http.idempotency import record_location
from app.http.rows import find
from app.settings import Settings, get_settings

# Each attempt that fails is one that another append has won.
ATTEMPTS = 5
# Formats that mean the same kind of moment as that of the stored times.
_SAME = {DATE: {DATE, GERMAN}, GERMAN: {DATE, GERMAN}, DATETIME: {DATETIME, DATE}}


def append(workspace: str, dataset_id: str, raw: RawTable) -> DatasetRow:
    """The data set with more rows. What is refused leaves it as it was; of two at once, the second sees the first."""
    for _ in range(ATTEMPTS):
        with transaction() as session:
            row = find(session, DatasetRow, workspace, dataset_id)
            if row is None:
                raise NotFoundError(MISSING)
            stored = read_table(session, row.id, row.revision)
        added, profiled = _grown(row, stored, raw, get_settings())
        if _store(row, added, profiled):
            return row
    raise ConflictError(
        "others append to this data set at the same time; send the rows again", headers={"Retry-After": "1"}
    )


def _store(row: DatasetRow, added: pa.Table, profiled: Profiled) -> bool:
    """Keep the new revision unless another came first; ``row`` then says what is stored."""
    chunks = chunked(added)
    with transaction() as session:
        before = sa.select(DatasetChunkRow.sha256).where(DatasetChunkRow.dataset_id == row.id)
        grow = sa.update(DatasetRow).where(DatasetRow.id == row.id, DatasetRow.revision == row.revision)
        # The first statement writes, so that from here on nobody else does.
        if not affected(session, grow.values(revision=row.revision + 1)):
            return False
        checksums = list(session.scalars(before.order_by(DatasetChunkRow.seq)))
        row.revision += 1
        row.rows, row.columns, row.warnings = profiled.table.num_rows, profiled.columns, profiled.warnings
        row.digest = digest([*checksums, *(sha256 for sha256, _ in chunks)])
        values = {name: getattr(row, name) for name in ("rows", "columns", "warnings", "digest")}
        affected(session, sa.update(DatasetRow).where(DatasetRow.id == row.id).values(values))
        for seq, (sha256, data) in enumerate(chunks, start=len(checksums)):
            session.add(DatasetChunkRow(dataset_id=row.id, seq=seq, revision=row.revision, sha256=sha256, data=data))
        record_location(session, f"/v1/datasets/{row.id}")
    return True


def _grown(row: DatasetRow, stored: pa.Table, raw: RawTable, settings: Settings) -> tuple[pa.Table, Profiled]:
    """The rows to add, and the profile of the stored rows with them."""
    chosen, roles = _roles_of(row)
    _check_columns(raw, chosen, row.rows, settings)
    kinds = {column["name"]: column["kind"] for column in row.columns if column["role"] == "context"}
    found = clean(raw, chosen, roles, kinds)
    if not found.table.num_rows:
        raise InvalidRequest.at((raw.whole,), "there is no row without missing values to append")
    added = _known_categories(raw, found, row).cast(stored.schema)
    time = next((column for column in row.columns if column["role"] == "time"), None)
    whole = pa.concat_tables([stored, added])
    times = None
    if time is not None and found.times is not None:
        times = Times(whole.column(time["name"]).combine_chunks(), time["format"], time["zone"])
        _check_format(raw, found.times, time)
        _refuse_known_times(raw, found, chosen, whole, times)
    missing = {column["name"]: column["missing"] + found.missing[column["name"]] for column in row.columns}
    everything = Clean(whole, np.arange(whole.num_rows), missing, times, found.notes)
    profiled = described(everything, chosen, roles, settings)
    if time is not None:
        _check_spacing(raw, time, profiled.columns[0])
    return added, profiled


def _roles_of(row: DatasetRow) -> tuple[Chosen, Roles]:
    by_role: dict[str, list[str]] = {"time": [], "series": [], "context": [], "outcome": [], "decision": []}
    for column in row.columns:
        by_role[column["role"]].append(column["name"])
    time = by_role["time"][0] if by_role["time"] else None
    chosen = Chosen(time, by_role["series"], by_role["context"], by_role["outcome"], by_role["decision"])
    roles = Roles(
        chosen.outcomes,
        chosen.contexts,
        [],
        time=time,
        series=chosen.series,
        lead=row.lead,
        decisions=chosen.decisions,
        **row.handling,
    )
    return chosen, roles


def _check_columns(raw: RawTable, chosen: Chosen, rows: int, settings: Settings) -> None:
    if not raw.rows or not raw.columns:
        raise InvalidRequest.at((raw.whole,), "there are no rows to append; send at least one with named columns")
    mistakes = Mistakes(raw)
    listed = ", ".join(chosen.names[:20]) + (", …" if len(chosen.names) > 20 else "")
    for name in chosen.names:
        if name not in raw.columns:
            mistakes.add((raw.whole,), f"the column '{name}' is missing; the data set has {listed}")
    if raw.columns.keys() - set(chosen.names):
        mistakes.add((raw.whole,), f"there is a column that the data set does not have; it has {listed}")
    mistakes.refuse()
    for what, number, limit in (
        ("rows", rows + raw.rows, settings.max_rows),
        ("cells", (rows + raw.rows) * len(chosen.names), settings.max_cells),
    ):
        if number > limit:
            raise InvalidRequest.at((raw.whole,), f"with these the data set has more than {limit} {what}")


def _known_categories(raw: RawTable, found: Clean, row: DatasetRow) -> pa.Table:
    """The rows with categories of the data set alone: new ones are "other" or refused, as it was made to do."""
    mistakes, table = Mistakes(raw), found.table
    for column in row.columns:
        if column["kind"] != "categorical":
            continue
        name, categories = column["name"], column["categories"]
        values = table.column(name)
        if column.get("other"):
            table = table.set_column(table.column_names.index(name), name, with_other(values, categories[:-1]))
            continue
        strangers = np.flatnonzero(~np.asarray(pc.is_in(values, pa.array(categories, pa.string()))))
        can_be = ", ".join(categories[:20]) + (", …" if len(categories) > 20 else "")
        for index in strangers[:20]:
            sentence = f"{shown(values[index].as_py())} is new to '{name}'; it can be {can_be}"
            mistakes.at([int(found.rows[index])], name, sentence)
    mistakes.refuse()
    return table


def _check_format(raw: RawTable, times: Times, time: dict[str, Any]) -> None:
    known = time["format"]
    if times.format not in _SAME.get(known, {known}) or times.zone != time["zone"]:
        zones = {"": "without a time zone", "UTC": "with a time zone"}
        detail = (
            f"times are written as {times.format} {zones[times.zone]}, and those of the data set as {known} "
            f"{zones[time['zone']]}; the last is {time['last']}"
        )
        raise InvalidRequest.at((raw.whole,), detail)


def _refuse_known_times(raw: RawTable, found: Clean, chosen: Chosen, whole: pa.Table, times: Times) -> None:
    """Refuse a row whose time and series are stored already, or come twice."""
    pair = first_duplicate(times.numbers, series_codes(whole, chosen.series)[0])
    if pair is None or chosen.time is None:
        return
    stored = whole.num_rows - found.table.num_rows
    where, words = raw.place(int(found.rows[pair[1] - stored]), chosen.time)
    before = "a stored row"
    if pair[0] >= stored:
        before = raw.place(int(found.rows[pair[0] - stored]), chosen.time)[1]
    what = "time and series" if chosen.series else "time"
    moment = written(int(times.numbers[pair[1]]), times.format)
    raise InvalidRequest.at(where, f"{words}: the same {what} ({moment}) as {before}; each may occur once")


def _check_spacing(raw: RawTable, time: dict[str, Any], grown: dict[str, Any]) -> None:
    """New rows keep the spacing; where all stored ones are of one moment, there was none to keep."""
    spacing, now = ((entry["step"], entry["unit"]) for entry in (time, grown))
    if spacing != now and time["first"] != time["last"]:
        kept, would_be = (f"{step} {unit}{'s' if step > 1 else ''}" for step, unit in (spacing, now))
        detail = f"times of the data set are {kept} apart, and with these rows they would be {would_be} apart"
        raise InvalidRequest.at((raw.whole,), detail)
