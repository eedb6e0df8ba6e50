"""Append rows to a data set: check them like an upload and against the stored rows, then store a new revision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from app.datasets.columns import with_other
from app.datasets.parsing import RawTable
from app.datasets.profile import CleanTable, ProfiledTable, clean, describe
from app.datasets.roles import ColumnRoles, StoredColumns
from app.datasets.service import MISSING, cut_into_chunks, digest, read_table
from app.datasets.times import DATE, DATETIME, GERMAN, TimeColumn, Times, first_duplicate, series_of, write_time
from app.datasets.validation_errors import Mistakes, quote
from app.db.engine import affected_rows, transaction
from app.db.tables import DatasetChunkRow, DatasetRow
from app.http.errors import ConflictError, InvalidRequest, NotFoundError
from app.http.idempotency import record_location
from app.http.rows import find
from app.settings import Settings, get_settings

# An attempt fails only if another append has succeeded meanwhile.
ATTEMPTS = 5
# Formats that may be appended to times of a stored format.
_SAME = {DATE: {DATE, GERMAN}, GERMAN: {DATE, GERMAN}, DATETIME: {DATETIME, DATE}}


def append(workspace: str, dataset_id: str, raw: RawTable) -> DatasetRow:
    """Append rows. A refusal leaves the data set unchanged; of two appends at once, the second sees the first."""
    for _ in range(ATTEMPTS):
        with transaction() as session:
            row = find(session, DatasetRow, workspace, dataset_id)
            if row is None:
                raise NotFoundError(MISSING)
            stored = read_table(session, row.id, row.revision)
        added, profiled = _grow(row, stored, raw, get_settings())
        if _store(row, added, profiled):
            return row
    raise ConflictError(
        "others append to this data set at the same time; send the rows again", headers={"Retry-After": "1"}
    )


def _store(row: DatasetRow, added: pa.Table, profiled: ProfiledTable) -> bool:
    """Store the new revision and update ``row``, unless another revision came first."""
    chunks = cut_into_chunks(added)
    with transaction() as session:
        before = sa.select(DatasetChunkRow.sha256).where(DatasetChunkRow.dataset_id == row.id)
        grow = sa.update(DatasetRow).where(DatasetRow.id == row.id, DatasetRow.revision == row.revision)
        # The first statement writes, so that from here on nobody else does.
        if not affected_rows(session, grow.values(revision=row.revision + 1)):
            return False
        checksums = list(session.scalars(before.order_by(DatasetChunkRow.seq)))
        row.revision += 1
        row.rows, row.columns, row.warnings = profiled.table.num_rows, profiled.columns, profiled.warnings
        row.digest = digest([*checksums, *(sha256 for sha256, _ in chunks)])
        values = {name: getattr(row, name) for name in ("rows", "columns", "warnings", "digest")}
        affected_rows(session, sa.update(DatasetRow).where(DatasetRow.id == row.id).values(values))
        for seq, (sha256, data) in enumerate(chunks, start=len(checksums)):
            session.add(DatasetChunkRow(dataset_id=row.id, seq=seq, revision=row.revision, sha256=sha256, data=data))
        record_location(session, f"/v1/datasets/{row.id}")
    return True


def _grow(row: DatasetRow, stored: pa.Table, raw: RawTable, settings: Settings) -> tuple[pa.Table, ProfiledTable]:
    """Return the rows to add, and the profile of all rows with them."""
    chosen, roles = _roles_of(row)
    _check_columns(raw, chosen, row.rows, settings)
    kinds = {column["name"]: column["kind"] for column in row.columns if column["role"] == "context"}
    cleaned = clean(raw, chosen, roles, kinds)
    if not cleaned.table.num_rows:
        raise InvalidRequest.at((raw.whole,), "there is no row without missing values to append")
    added = _known_categories(raw, cleaned, row).cast(stored.schema)
    time = TimeColumn.of(row.columns)
    whole = pa.concat_tables([stored, added])
    times = None
    if time is not None and cleaned.times is not None:
        times = Times(whole.column(time.name).combine_chunks(), time.format, time.zone)
        _check_format(raw, cleaned.times, time)
        _refuse_known_times(raw, cleaned, chosen, whole, times)
    missing = {column["name"]: column["missing"] + cleaned.missing[column["name"]] for column in row.columns}
    everything = CleanTable(whole, np.arange(whole.num_rows), missing, times, cleaned.notes)
    profiled = describe(everything, chosen, roles, settings)
    if time is not None:
        _check_spacing(raw, time, profiled.columns)
    return added, profiled


def _roles_of(row: DatasetRow) -> tuple[StoredColumns, ColumnRoles]:
    by_role: dict[str, list[str]] = {"time": [], "series": [], "context": [], "outcome": [], "decision": []}
    for column in row.columns:
        by_role[column["role"]].append(column["name"])
    time = by_role["time"][0] if by_role["time"] else None
    chosen = StoredColumns(time, by_role["series"], by_role["context"], by_role["outcome"], by_role["decision"])
    roles = ColumnRoles(
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


def _check_columns(raw: RawTable, chosen: StoredColumns, rows: int, settings: Settings) -> None:
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


def _known_categories(raw: RawTable, cleaned: CleanTable, row: DatasetRow) -> pa.Table:
    """Turn new categories into "other", or refuse them, as the data set says."""
    mistakes, table = Mistakes(raw), cleaned.table
    for column in row.columns:
        if column["kind"] != "categorical":
            continue
        name, categories = column["name"], column["categories"]
        values = table.column(name)
        if column.get("other"):
            table = table.set_column(table.column_names.index(name), name, with_other(values, categories[:-1]))
            continue
        new_values = np.flatnonzero(~np.asarray(pc.is_in(values, pa.array(categories, pa.string()))))
        can_be = ", ".join(categories[:20]) + (", …" if len(categories) > 20 else "")
        for index in new_values[:20]:
            sentence = f"{quote(values[index].as_py())} is new to '{name}'; it can be {can_be}"
            mistakes.at([int(cleaned.rows[index])], name, sentence)
    mistakes.refuse()
    return table


def _check_format(raw: RawTable, times: Times, time: TimeColumn) -> None:
    if times.format not in _SAME.get(time.format, {time.format}) or times.zone != time.zone:
        zones = {"": "without a time zone", "UTC": "with a time zone"}
        detail = (
            f"times are written as {times.format} {zones[times.zone]}, and those of the data set as {time.format} "
            f"{zones[time.zone]}; the last is {time.last}"
        )
        raise InvalidRequest.at((raw.whole,), detail)


def _refuse_known_times(
    raw: RawTable, cleaned: CleanTable, chosen: StoredColumns, whole: pa.Table, times: Times
) -> None:
    """Refuse a row whose time and series are stored already, or come twice."""
    pair = first_duplicate(times.numbers, series_of(whole, chosen.series)[1])
    if pair is None or chosen.time is None:
        return
    stored = whole.num_rows - cleaned.table.num_rows
    where, words = raw.place(int(cleaned.rows[pair[1] - stored]), chosen.time)
    before = "a stored row"
    if pair[0] >= stored:
        before = raw.place(int(cleaned.rows[pair[0] - stored]), chosen.time)[1]
    what = "time and series" if chosen.series else "time"
    moment = write_time(int(times.numbers[pair[1]]), times.format)
    raise InvalidRequest.at(where, f"{words}: the same {what} ({moment}) as {before}; each may occur once")


def _check_spacing(raw: RawTable, time: TimeColumn, columns: list[dict[str, Any]]) -> None:
    """Refuse rows that change the spacing; stored rows of a single moment have none."""
    spacing, now = (time.step, time.unit), (columns[0]["step"], columns[0]["unit"])
    if spacing != now and time.first != time.last:
        before, would_be = (f"{step} {unit}{'s' if step > 1 else ''}" for step, unit in (spacing, now))
        detail = f"times of the data set are {before} apart, and with these rows they would be {would_be} apart"
        raise InvalidRequest.at((raw.whole,), detail)
