"""Bodies and files that attackers send: cheap to make and expensive to read."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.demo import MORNINGS, as_csv, bakery_rows

IN_FLIGHT = "bco_prescriptions_in_flight "
BOMB_STRINGS, BOMB_BYTES = 4, 300_000_000


def json_of_keys(size: int) -> bytes:
    """Return one JSON object of about ``size`` bytes with nothing but unknown keys."""
    return b"{" + b",".join(b'"k%07d":1' % number for number in range(size // 13)) + b"}"


def json_of_rows(values: int) -> bytes:
    """Return a data set of two columns that stays just below the limit on values in a JSON body."""
    rows = b",".join(b'{"x":%d,"demand":%d}' % (number, number % 97) for number in range(values // 4))
    return b'{"name": "rows", "outcomes": ["demand"], "rows": [' + rows + b"]}"


def parquet_bomb() -> bytes:
    """Return some kilobytes of Parquet that decompress to strings of hundreds of megabytes."""
    schema = pa.schema([("x", pa.large_string()), ("demand", pa.float64())])
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd", use_dictionary=False, write_statistics=False) as writer:
        row = pa.table({"x": pa.array(["x" * BOMB_BYTES], pa.large_string()), "demand": [1.0]}, schema)
        for _ in range(BOMB_STRINGS):
            writer.write_table(row)
    return buffer.getvalue()


def mornings(rows: int) -> bytes:
    """Return contexts of the bakery as CSV."""
    return as_csv([{name: row[name] for name in MORNINGS[0]} for row in bakery_rows(rows, seed=3)]).encode()


def trucks(kinds: int = 40) -> dict[str, Any]:
    """Return a problem of whole trucks in many odd sizes, which takes branch and bound a long time."""
    rng = np.random.default_rng(1)
    names = [f"truck{number}" for number in range(kinds)]
    sizes = rng.integers(17, 97, kinds)
    decisions = [
        {"name": name, "cost": float(size) * 1.8 + float(rng.uniform(0, 3)), "maximum": 9, "integer": True}
        for name, size in zip(names, sizes, strict=True)
    ]
    row = {
        "recourse": {"courier": 1},
        "decisions": {name: float(size) for name, size in zip(names, sizes, strict=True)},
        "sense": ">=",
        "outcomes": {"load": 1},
    }
    spec = {
        "kind": "two_stage_linear",
        "decisions": decisions,
        "outcomes": [{"name": "load", "minimum": 0}],
        "recourse": [{"name": "courier", "cost": 3}],
        "rows": [row],
    }
    return {"name": "trucks", "spec": spec}


def loads() -> dict[str, Any]:
    """Return a history for the trucks."""
    rng = np.random.default_rng(0)
    days = [{"rain": float(rain), "load": float(900 + 150 * rain + rng.gamma(2, 90))} for rain in rng.uniform(0, 5, 80)]
    return {"name": "loads", "outcomes": ["load"], "rows": days}


def large_problem(decisions: int = 60, recourse: int = 300, rows: int = 100) -> bytes:
    """Return a dense program with recourse, near the largest size that the service accepts."""
    rng = np.random.default_rng(2)
    names, mends = [f"d{number}" for number in range(decisions)], [f"m{number}" for number in range(recourse)]

    def row(number: int) -> dict[str, Any]:
        return {
            "recourse": {
                mend: round(float(value), 2) for mend, value in zip(mends, rng.uniform(1, 2, recourse), strict=True)
            },
            "decisions": {
                name: round(float(value), 2) for name, value in zip(names, rng.uniform(0, 1, decisions), strict=True)
            },
            "sense": ">=",
            "outcomes": {f"o{number % 20}": 1.0},
        }

    spec = {
        "kind": "two_stage_linear",
        "decisions": [{"name": name, "cost": 1.0, "maximum": 100} for name in names],
        "outcomes": [{"name": f"o{number}", "minimum": 0, "maximum": 100} for number in range(20)],
        "recourse": [{"name": mend, "cost": 5.0} for mend in mends],
        "rows": [row(number) for number in range(rows)],
    }
    return json.dumps({"name": "large", "spec": spec}).encode()
