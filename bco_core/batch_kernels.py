"""Compiled sums over the atoms of each context; a context's digits do not depend on the other contexts of the batch.

Libraries sum in an order that depends on the number of rows. Here every row is summed alone, atom by atom.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


def compiled(function: Any) -> Any:
    """Compile a function at its first call, without the interpreter lock; cache it on disk where that is writable.

    A product and a sum may be fused into one operation; sums are never reordered.
    """
    try:
        return numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:
        return numba.njit(**OPTIONS)(function)


def mean_of_atoms(values: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_k w_k v_bk: values (B, K, m) or (B, K), weights (K,) → (B, m) or (B,)."""
    atoms = _array(values).reshape(*values.shape[:2], values.shape[2:].numel())
    result = np.empty((atoms.shape[0], atoms.shape[2]))
    _mean(atoms, _array(weights), result)
    return torch.from_numpy(result.reshape(len(values), *values.shape[2:]))


def sum_of_rows(values: Tensor) -> Tensor:
    """Return Σ_k v_k: (..., K) → (...)."""
    rows = _array(values).reshape(values.shape[:-1].numel(), values.shape[-1])
    result = np.empty(len(rows))
    _sum(rows, result)
    return torch.from_numpy(result.reshape(values.shape[:-1]))


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows (..., m) by a matrix (m, n): (..., n)."""
    flat = _array(rows).reshape(rows.shape[:-1].numel(), rows.shape[-1])
    result = np.empty((len(flat), matrix.shape[1]))
    _product(flat, _array(matrix), result)
    return torch.from_numpy(result.reshape(*rows.shape[:-1], matrix.shape[1]))


def exp_affine(features: Tensor, slopes: Tensor) -> Tensor:
    """Return exp of an affine function of features (B, width), with slopes (width + 1, m), constant last: (B, m)."""
    result = np.empty((len(features), slopes.shape[1]))
    _exp_affine(_array(features), _array(slopes), result)
    return torch.from_numpy(result)


def sample_near(here: Tensor, there: Tensor, bandwidth: float, count: int) -> Tensor:
    """Sample rows (B, count) of ``there`` (H, m) systematically, weighted ∝ exp(−‖here − there‖ / h), here (B, m)."""
    result = np.empty((len(here), count), np.int64)
    _sample_near(_array(here), _array(there), bandwidth, result)
    return torch.from_numpy(result)


def _array(values: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return contiguous float64 numbers, as compiled loops take them."""
    return np.ascontiguousarray(values.detach().numpy(), dtype=np.float64)


@compiled
def _mean(atoms, weights, result):  # type: ignore[no-untyped-def]
    for b in range(atoms.shape[0]):
        for j in range(atoms.shape[2]):
            result[b, j] = 0.0
        for k in range(atoms.shape[1]):
            for j in range(atoms.shape[2]):
                result[b, j] += weights[k] * atoms[b, k, j]


@compiled
def _sum(rows, result):  # type: ignore[no-untyped-def]
    for b in range(len(rows)):
        total = 0.0
        for k in range(rows.shape[1]):
            total += rows[b, k]
        result[b] = total


@compiled
def _product(rows, matrix, result):  # type: ignore[no-untyped-def]
    for b in range(len(rows)):
        for j in range(matrix.shape[1]):
            result[b, j] = 0.0
        for i in range(matrix.shape[0]):
            for j in range(matrix.shape[1]):
                result[b, j] += rows[b, i] * matrix[i, j]


@compiled
def _exp_affine(features, slopes, result):  # type: ignore[no-untyped-def]
    width = features.shape[1]
    for b in range(features.shape[0]):
        for j in range(slopes.shape[1]):
            total = slopes[width, j]
            for i in range(width):
                total += features[b, i] * slopes[i, j]
            result[b, j] = math.exp(total)


@compiled
def _sample_near(here, there, bandwidth, result):  # type: ignore[no-untyped-def]
    rows, count = len(there), result.shape[1]
    share = np.empty(rows)
    for b in range(len(here)):
        least = math.inf
        for i in range(rows):
            total = 0.0
            for j in range(there.shape[1]):
                away = here[b, j] - there[i, j]
                total += away * away
            share[i] = math.sqrt(total) / bandwidth
            least = min(least, share[i])
        # The nearest row always counts, however far it is.
        total = 0.0
        for i in range(rows):
            total += math.exp(least - share[i])
            share[i] = total
        i = 0
        for k in range(count):
            wanted = (k + 0.5) / count * total
            while i < rows - 1 and share[i] < wanted:
                i += 1
            result[b, k] = i
