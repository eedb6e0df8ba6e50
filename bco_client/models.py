"""Convert models of pyomo, linopy, gurobipy and highspy to MPS files; existing files pass unchanged.

None of these packages is imported here: models are recognised by their package and write themselves. Names are the
model's own; where a file must spell them differently, :class:`ModelFile` maps them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CANNOT = "a model is one of pyomo, linopy, gurobipy or highspy, or the path or content of an MPS or LP file"
_PYOMO_ROW = re.compile(r"(c_[ule]|r_[lu])_(.+)_")
_LINOPY_NAME = re.compile(r"(.+)#\d+")


@dataclass(frozen=True)
class ModelFile:
    """Content of a file, with the model's names of columns and rows that the file spells differently."""

    content: bytes
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)

    def described(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a description to the file's names; add the model's names, for the problem."""
        columns = {name: code for code, name in self.columns.items()}
        rows = {name: code for code, name in self.rows.items()}
        message = dict(description)
        if message.get("decisions") is not None:
            message["decisions"] = [columns.get(name, name) for name in message["decisions"]]
        message["entries"] = [
            {
                **entry,
                "row": rows.get(entry.get("row"), entry.get("row")),
                "column": columns.get(entry.get("column"), entry.get("column")),
            }
            for entry in message.get("entries") or []
        ]
        return {**message, "columns": dict(self.columns), "rows": dict(self.rows)}


def as_file(model: Any) -> ModelFile:
    """Return a model, or a file of one, as a file to send."""
    if isinstance(model, ModelFile):
        return model
    if isinstance(model, bytes):
        return ModelFile(model)
    if isinstance(model, str | os.PathLike):
        return ModelFile(Path(model).read_bytes())
    for kind in type(model).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _WRITERS:
            with tempfile.TemporaryDirectory(prefix="bco-model-") as folder:
                return _WRITERS[package](model, Path(folder, "model.mps"))
    raise TypeError(CANNOT)


def _pyomo(model: Any, path: Path) -> ModelFile:
    _, number = model.write(str(path), format="mps", io_options={"symbolic_solver_labels": True})
    symbols = {symbol: part.name for symbol, part in model.solutions.symbol_map[number].bySymbol.items()}
    content = path.read_bytes()
    rows = {}
    for code in _names(content, "ROWS"):
        result = _PYOMO_ROW.fullmatch(code)
        if result is not None and result[2] in symbols:
            ending = {"r_l": " at least", "r_u": " at most"}.get(result[1], "")
            rows[code] = symbols[result[2]] + ending
    columns = {code: symbols[code] for code in _names(content, "COLUMNS") if code in symbols}
    return ModelFile(content, _changed(columns), _changed(rows))


def _linopy(model: Any, path: Path) -> ModelFile:
    model.to_file(path, explicit_coordinate_names=True)
    content = path.read_bytes()
    columns, rows = (
        {code: result[1] for code in _names(content, part) if (result := _LINOPY_NAME.fullmatch(code))}
        for part in ("COLUMNS", "ROWS")
    )
    return ModelFile(content, _changed(columns), _changed(rows))


def _gurobipy(model: Any, path: Path) -> ModelFile:
    model.update()
    for part in (*model.getVars(), *model.getConstrs()):
        name = part.VarName if hasattr(part, "VarName") else part.ConstrName
        if not name or len(name.split()) != 1:
            raise ValueError(f"Gurobi cannot write names with blanks: rename '{name}'")
    model.write(str(path))
    return ModelFile(path.read_bytes())


def _highspy(model: Any, path: Path) -> ModelFile:
    lp = model.getLp()
    for name in (*lp.col_names_, *lp.row_names_):
        if name and len(name.split()) != 1:
            raise ValueError(f"HiGHS cannot write names with blanks: rename '{name}'")
    # HiGHS does not report a failure.
    model.writeModel(str(path))
    if not path.exists():
        raise ValueError("HiGHS could not write the model; do two columns or two rows share a name?")
    return ModelFile(path.read_bytes())


_WRITERS: dict[str, Callable[[Any, Path], ModelFile]] = {
    "pyomo": _pyomo,
    "linopy": _linopy,
    "gurobipy": _gurobipy,
    "highspy": _highspy,
}


def _names(content: bytes, part: str) -> Iterator[str]:
    """Return the names of rows or columns in an MPS file, in order."""
    section, last = "", ""
    for line in content.decode().splitlines():
        fields = line.split()
        if not fields or line.startswith("*"):
            continue
        if not line.startswith((" ", "\t")):
            section = fields[0]
        elif section == part:
            name = fields[1] if part == "ROWS" else fields[0]
            if name != last and "'MARKER'" not in fields:
                yield name
            last = name


def _changed(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names that the file spells differently, except those that two codes share."""
    message = Counter(names.values())
    return {code: name for code, name in names.items() if name != code and message[name] == 1}
