"""Read model files in a process of its own, which ends if a file takes too much memory or time.

Run by :mod:`app.model_files.service`. It imports only HiGHS and our own readers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.child_processes import InvalidFile, serve_files
from app.model_files.read_mps_lp import decode_text, detect_format, read_model
from app.model_files.scenario_table import to_table
from app.model_files.smps import entry_name, read_groups, read_periods
from app.model_files.specification import first_stage_columns, write_specification


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Write the specification, rows of scenarios and notes as JSON into the folder of the request."""
    folder = Path(request["folder"])
    texts = {part: decode_text((folder / part).read_bytes(), part) for part in request["parts"]}
    description = request["description"]
    _check_parts(texts, description)
    model = read_model(texts["file"], folder, request["rows"], request["columns"], request["entries"])
    decided = first_stage_columns(model, description)
    periods: list[str] = []
    if "time" in texts:
        decided, periods = read_periods(texts["time"], model)
    table = to_table(read_groups(texts["scenarios"], model, periods)) if "scenarios" in texts else None
    spec, notes = write_specification(model, description, decided, table)
    result: dict[str, Any] = {"spec": spec, "notes": notes}
    if table is not None:
        result |= {"names": [entry_name(entry) for entry in table.entries], "rows": table.rows}
        result["notes"] += table.notes
    (folder / "result").write_text(json.dumps(result), encoding="utf-8")
    return {"done": True}


def _check_parts(texts: dict[str, str], description: dict[str, Any]) -> None:
    for part in ("time", "scenarios"):
        if part in texts and detect_format(texts["file"]) == "lp":
            raise InvalidFile("an SMPS file belongs to a model in MPS; send the model as MPS", (part,))
    if "time" in texts and description["decisions"] is not None:
        detail = "the .tim file says which columns are decided now; leave out decisions"
        raise InvalidFile(detail, ("description", "decisions"))
    for part in ("outcomes", "entries"):
        if "scenarios" in texts and description[part]:
            raise InvalidFile(f"the .sto file says what varies; leave out {part}", ("description", part))


def main() -> None:
    serve_files(answer)


if __name__ == "__main__":
    main()
