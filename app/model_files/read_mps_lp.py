"""Read an MPS or LP file into plain arrays: by HiGHS, after checks for what HiGHS would silently ignore.

It runs in a process of its own (:mod:`app.model_files.child`) and imports little. The file gets a fixed name, so that
HiGHS opens no other file; its format is detected from its content.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import highspy

from app.child_processes import InvalidFile

LONGEST_LINE = 100_000
LONGEST_NAME = 200
# Specifications refuse larger numbers, too.
LARGEST = 1e12
_MPS_SECTIONS = {"NAME", "ROWS", "COLUMNS", "RHS", "RANGES", "BOUNDS", "OBJSENSE", "OBJNAME", "OBJSECT", "ENDATA"}
_MPS_REFUSED = {
    **dict.fromkeys(("SOS", "SOS1", "SOS2", "SETS"), "special ordered sets"),
    **dict.fromkeys(("QUADOBJ", "QMATRIX", "QSECTION", "QCMATRIX", "QUADS", "HESSIAN"), "quadratic parts"),
    **dict.fromkeys(("CSECTION", "PSDMATRIX"), "cones"),
    **dict.fromkeys(("INDICATORS", "GENCONS", "PWLOBJ"), "constraints that are not linear"),
    **dict.fromkeys(("LAZYCONS", "USERCUTS"), "lazy constraints"),
}
_LP_FIRST = {"maximize", "maximise", "maximum", "max", "minimize", "minimise", "minimum", "min"}
_LP_REFUSED = {
    **dict.fromkeys(("sos", "sos1", "sos2"), "special ordered sets"),
    **dict.fromkeys(("semi-continuous", "semis", "semi"), "semicontinuous variables"),
    "pwlobj": "constraints that are not linear",
}
# Warnings of HiGHS that concern no number: names with blanks, sums that it names one by one, and whole numbers without
# a bound, which some writers bound by 1e20 and more.
_HARMLESS = re.compile(
    r"switching to fixed format|repeated variable|BOUNDS section: ignored 0 duplicate values|"
    r"is [+-]?(\d(\.\d+)?e\+(2\d|[3-9]\d|\d{3})|inf): not integer"
)
_NUMBERED = ("COLUMNS", "RHS", "RANGES", "BOUNDS")
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE)
_UNNAMED_ROW = re.compile(r"HiGHS_R\d+")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
NOT_LINEAR = "the model has {what}; only linear rows with continuous, whole and binary variables can be used"


class FileModel(NamedTuple):
    """The content of a file: columns, rows from ``row_lower`` to ``row_upper``, and the entries of each row by column.

    ``rhs_names`` are the names of its right-hand sides, ``objective`` that of its objective, and ``free`` those of rows
    that bound nothing. Rows without a name have None. ``notes`` lists what was ignored.
    """

    maximize: bool
    offset: float
    columns: list[str]
    costs: list[float]
    lower: list[float]
    upper: list[float]
    integer: list[bool]
    rows: list[str | None]
    row_lower: list[float]
    row_upper: list[float]
    entries: list[dict[int, float]]
    objective: str | None
    rhs_names: set[str]
    free: list[str]
    notes: list[str]


class MpsOutline(NamedTuple):
    """Names in an MPS file that HiGHS does not report."""

    objective: str | None
    rhs_names: set[str]
    free: list[str]


def decode_text(content: bytes, where: str = "file") -> str:
    """Decode an uploaded file; refuse compressed and binary ones."""
    if content[:2] == b"\x1f\x8b" or (content[:1] == b"x" and content[1:2] in (b"\x01", b"\x9c", b"\xda")):
        raise InvalidFile("the file is compressed; unpack it first and send the text", (where,))
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise InvalidFile(
            "the file is not text in UTF-8; send it as it was written, not compressed", (where,)
        ) from None
    result = _UNREADABLE.search(text)
    if result is not None:
        line = text.count("\n", 0, result.start()) + 1
        raise InvalidFile(f"line {line} holds a control character; the file is no text", (where,))
    for number, line_text in enumerate(text.split("\n"), start=1):
        if len(line_text) > LONGEST_LINE:
            raise InvalidFile(f"line {number} has more than {LONGEST_LINE} characters; break it up", (where,))
    return text


def detect_format(text: str) -> str:
    """Return ``mps`` or ``lp``, whatever the file's name."""
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped or stripped.startswith(("*", "\\")):
            continue
        first = stripped.split()[0]
        if line[0] not in " \t" and first.upper() in _MPS_SECTIONS:
            return "mps"
        if first.lower().partition(":")[0] in _LP_FIRST:
            return "lp"
        break
    raise InvalidFile("the file is neither MPS (NAME, ROWS, COLUMNS, …) nor LP (minimize … subject to …)", ("file",))


def read_model(text: str, folder: Path, most_rows: int, most_columns: int, most_entries: int) -> FileModel:
    """Read the model of an MPS or LP file. ``folder`` is for this file alone."""
    kind = detect_format(text)
    outline = _outline(text) if kind == "mps" else _checked_lp(text)
    path = folder / f"model.{kind}"
    path.write_text(text, encoding="utf-8")
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    messages: list[str] = []
    solver.setOptionValue("log_to_console", False)
    solver.setOptionValue("small_matrix_value", 1e-12)
    solver.cbLogging.subscribe(lambda event: messages.append(event.message.strip()))
    status = solver.readModel(str(path))
    notes = _notes(messages, status, kind)
    lp = solver.getLp()
    for what, count, most in (
        ("rows", lp.num_row_, most_rows),
        ("columns", lp.num_col_, most_columns),
        ("entries", len(lp.a_matrix_.value_), most_entries),
    ):
        if count > most:
            raise InvalidFile(f"the model has {count} {what}; at most {most} can be used", ("file",))
    if solver.getModel().hessian_.dim_:
        raise InvalidFile(NOT_LINEAR.format(what="quadratic parts"), ("file",))
    return _plain(lp, outline, notes)


def _outline(text: str) -> MpsOutline:
    section, objective = "", None
    rhs_names: set[str] = set()
    free: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line[0] in "*":
            continue
        fields = line.split()
        if line[0] not in " \t" and fields[0].upper() in _MPS_REFUSED:
            what = _MPS_REFUSED[fields[0].upper()]
            raise InvalidFile(f"line {number}: {NOT_LINEAR.format(what=what)}", ("file",))
        if line[0] not in " \t" and fields[0].upper() in _MPS_SECTIONS:
            section = fields[0].upper()
        elif section == "ROWS" and fields[0].upper() == "N":
            name = " ".join(fields[1:])
            if objective is None:
                objective = name
            else:
                free.append(name)
        elif section in _NUMBERED and "'MARKER'" not in fields:
            if section == "RHS" and len(fields) in (3, 5):
                rhs_names.add(fields[0])
            _check_numbers(line, fields, section, number)
        if section == "ENDATA":
            return MpsOutline(objective, rhs_names or {"RHS"}, free)
    raise InvalidFile("the file ends without ENDATA; it seems to be cut off", ("file",))


def _check_numbers(line: str, fields: list[str], section: str, number: int) -> None:
    """Refuse values that are not numbers, which HiGHS would read as zero."""
    if section == "BOUNDS" and fields[0].upper() in ("FR", "MI", "PL", "BV"):
        return
    values = [fields[-1]]
    if section != "BOUNDS" and len(fields) in (4, 5) and not _NUMBER.fullmatch(fields[-3]):
        # Names with blanks may have as many words as a line with two numbers; then numbers stand in fixed places.
        values.append(line[24:36].strip())
    if not all(map(_NUMBER.fullmatch, values)):
        raise InvalidFile(f"line {number}: a value is not a finite number", ("file",))


def _checked_lp(text: str) -> MpsOutline:
    last = ""
    for number, line in enumerate(text.split("\n"), start=1):
        word = line.partition("\\")[0].strip().lower()
        if word in _LP_REFUSED:
            raise InvalidFile(f"line {number}: {NOT_LINEAR.format(what=_LP_REFUSED[word])}", ("file",))
        last = word or last
    if last != "end":
        raise InvalidFile("the file ends without End; it seems to be cut off", ("file",))
    return MpsOutline(None, set(), [])


def _notes(messages: list[str], status: Any, kind: str) -> list[str]:
    """Return HiGHS's harmless warnings; refuse the file for all others."""
    notes = []
    for line in messages:
        level, _, words = line.partition(":")
        words = words.strip()
        if level == "WARNING" and ("values summed" in words or "less than or equal to" in words):
            notes.append(f"HiGHS says: {words}")
        elif level == "WARNING" and not _HARMLESS.search(words):
            raise InvalidFile(f"HiGHS cannot make sense of the file: {words}", ("file",))
        elif level == "ERROR" and "Parser error" not in words:
            raise InvalidFile(f"HiGHS cannot read the file: {words}", ("file",))
    if status == highspy.HighsStatus.kError:
        hint = "; a row with two limits must be two rows, or send MPS" if kind == "lp" else ""
        raise InvalidFile(f"HiGHS cannot read the file as {kind.upper()}{hint}", ("file",))
    return notes


def _plain(lp: Any, outline: MpsOutline, notes: list[str]) -> FileModel:
    columns = _names(lp.col_names_, lp.num_col_, "column")
    rows = [None if _UNNAMED_ROW.fullmatch(name) else name for name in _names(lp.row_names_, lp.num_row_, "row")]
    kinds = list(lp.integrality_) or [highspy.HighsVarType.kContinuous] * lp.num_col_
    for name, kind in zip(columns, kinds, strict=True):
        if kind not in (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger):
            raise InvalidFile(f"column '{name}': {NOT_LINEAR.format(what='semicontinuous variables')}", ("file",))
    entries: list[dict[int, float]] = [{} for _ in rows]
    start, index, value = list(lp.a_matrix_.start_), list(lp.a_matrix_.index_), list(lp.a_matrix_.value_)
    by_column = lp.a_matrix_.format_ == highspy.MatrixFormat.kColwise
    for outer in range(len(start) - 1):
        for place in range(start[outer], start[outer + 1]):
            row, column = (index[place], outer) if by_column else (outer, index[place])
            entries[row][column] = _number(value[place], f"column '{columns[column]}' in {_called(rows, row)}")
    costs = [_number(cost, f"the cost of '{name}'") for name, cost in zip(columns, list(lp.col_cost_), strict=True)]
    row_lower = [_limit(bound, _called(rows, row)) for row, bound in enumerate(list(lp.row_lower_))]
    row_upper = [_limit(bound, _called(rows, row)) for row, bound in enumerate(list(lp.row_upper_))]
    lower = [_limit(bound, f"'{name}'") for name, bound in zip(columns, list(lp.col_lower_), strict=True)]
    upper = [_limit(bound, f"'{name}'") for name, bound in zip(columns, list(lp.col_upper_), strict=True)]
    return FileModel(
        maximize=lp.sense_ == highspy.ObjSense.kMaximize,
        offset=_number(lp.offset_, "the constant of the objective"),
        columns=columns,
        costs=costs,
        lower=lower,
        upper=upper,
        integer=[kind == highspy.HighsVarType.kInteger for kind in kinds],
        rows=rows,
        row_lower=row_lower,
        row_upper=row_upper,
        entries=entries,
        objective=outline.objective,
        rhs_names=outline.rhs_names,
        free=outline.free,
        notes=notes,
    )


def _names(given: Any, count: int, what: str) -> list[str]:
    names = [str(name).strip() for name in given] or [f"{what} {number}" for number in range(1, count + 1)]
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        if not name:
            raise InvalidFile(f"{what} {number} has no name", ("file",))
        if len(name) > LONGEST_NAME:
            raise InvalidFile(f"the name of {what} {number} has more than {LONGEST_NAME} characters", ("file",))
        if name in seen:
            raise InvalidFile(f"two {what}s are called '{name}'; rename one", ("file",))
        seen.add(name)
    return names


def _called(rows: list[str | None], row: int) -> str:
    return f"row {row + 1}" if rows[row] is None else f"row '{rows[row]}'"


def _number(value: float, what: str) -> float:
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise InvalidFile(f"{what} is not a number between −1e12 and 1e12", ("file",))
    return float(value)


def _limit(value: float, what: str) -> float:
    """Read a bound, which may be infinite."""
    if math.isnan(value) or (LARGEST < abs(value) < 1e20):
        raise InvalidFile(f"a bound of {what} is neither infinite nor a number between −1e12 and 1e12", ("file",))
    return math.copysign(math.inf, value) if abs(value) >= 1e20 else float(value)
