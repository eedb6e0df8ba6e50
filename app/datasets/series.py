"""Which series each row belongs to: every combination of key values is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def series_codes(table: pa.Table, keys: list[str]) -> tuple[Numbers, int]:
    """The number of each row's series, from 0, and how many there are."""
    codes = np.zeros(table.num_rows, dtype=np.int64)
    count = 1
    for key in keys:
        encoded = table.column(key).combine_chunks().dictionary_encode()
        codes = codes * len(encoded.dictionary) + np.asarray(encoded.indices, dtype=np.int64)
        found, codes = np.unique(codes, return_inverse=True)
        count = len(found)
    return codes, count
