"""Vectors and sparse matrices whose numbers are a constant plus a combination of outcomes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core.solvers.linear_form import Array


@dataclass(frozen=True)
class Vector:
    """Numbers (n,) that are ``constant + by_outcome @ y``."""

    constant: Array
    by_outcome: sparse.csr_array

    def at(self, outcomes: Array) -> Array:
        """Evaluate at outcomes (K, d_y): (K, n)."""
        added: Array = (self.by_outcome @ outcomes.T).T
        return self.constant + added

    @property
    def certain(self) -> bool:
        return len(self.by_outcome.data) == 0


@dataclass(frozen=True)
class Matrix:
    """A sparse matrix (m, n) in which the entries at ``places`` (u, 2), rows and columns, grow by ``by_outcome @ y``.

    Every uncertain entry is stored in ``constant``, too, if only as a zero, so that all matrices have one pattern;
    ``at_entry`` (u,) are their places in its data.
    """

    constant: sparse.csr_array
    places: NDArray[np.int64]
    by_outcome: sparse.csr_array
    at_entry: NDArray[np.int64]

    def at(self, outcome: Array) -> sparse.csr_array:
        """Evaluate at one outcome (d_y,)."""
        if self.certain:
            return self.constant
        return self.with_entries(self.entries(outcome[None])[0])

    def entries(self, outcomes: Array) -> Array:
        """Return the uncertain entries (K, u) at outcomes (K, d_y)."""
        added: Array = (self.by_outcome @ outcomes.T).T
        return np.asarray(self.constant.data[self.at_entry]) + added

    def with_entries(self, entries: Array) -> sparse.csr_array:
        """Return the matrix with these uncertain entries (u,)."""
        data = self.constant.data.copy()
        data[self.at_entry] = entries
        return sparse.csr_array((data, self.constant.indices, self.constant.indptr), shape=self.constant.shape)

    def times(self, outcomes: Array, vectors: Array) -> Array:
        """Multiply the matrix at each outcome (n, d_y) by its own vector (n, columns): (n, rows)."""
        product: Array = (self.constant @ vectors.T).T
        if self.certain:
            return product
        rows, count = self.constant.shape[0], len(self.places)
        added: Array = (self.by_outcome @ outcomes.T).T * vectors[:, self.places[:, 1]]
        to_rows = sparse.csr_array((np.ones(count), (self.places[:, 0], np.arange(count))), shape=(rows, count))
        return np.asarray(product + (to_rows @ added.T).T)

    def rows(self, which: NDArray[np.int64]) -> Matrix:
        """Select these rows, in this order."""
        place = np.full(self.constant.shape[0], -1)
        place[which] = np.arange(len(which))
        kept = np.flatnonzero(place[self.places[:, 0]] >= 0)
        places = np.stack([place[self.places[kept, 0]], self.places[kept, 1]], axis=1)
        return matrix_of(self.constant[which], places, self.by_outcome[kept])

    @property
    def certain(self) -> bool:
        return len(self.places) == 0


def matrix_of(constant: sparse.csr_array, places: NDArray[np.int64], by_outcome: sparse.csr_array) -> Matrix:
    """Build from a ``constant`` that already has an entry at each of the places."""
    constant = sparse.csr_array(constant)
    constant.sort_indices()
    rows, columns = constant.shape
    # Keys of entries sorted by row and column are sorted.
    row_of = np.repeat(np.arange(rows, dtype=np.int64), np.diff(constant.indptr))
    keys = row_of * max(columns, 1) + constant.indices
    at_entry = np.searchsorted(keys, places[:, 0] * max(columns, 1) + places[:, 1])
    return Matrix(constant, places, sparse.csr_array(by_outcome), at_entry)


def beside(left: Matrix, right: Matrix) -> Matrix:
    """Join two matrices with the same number of rows side by side."""
    places = np.concatenate([left.places, right.places + np.array([0, left.constant.shape[1]])])
    together = sparse.hstack([left.constant, right.constant], format="csr")
    return matrix_of(together, places, sparse.vstack([left.by_outcome, right.by_outcome], format="csr"))


def above(top: Matrix, bottom: Matrix) -> Matrix:
    """Stack two matrices; the narrower one gets columns of zeros on its right."""
    width = max(top.constant.shape[1], bottom.constant.shape[1])
    parts = [
        sparse.csr_array((one.data, one.indices, one.indptr), shape=(one.shape[0], width))
        for one in (top.constant, bottom.constant)
    ]
    places = np.concatenate([top.places, bottom.places + np.array([top.constant.shape[0], 0])])
    together = sparse.vstack(parts, format="csr")
    return matrix_of(together, places, sparse.vstack([top.by_outcome, bottom.by_outcome], format="csr"))


def stacked(first: Vector, second: Vector) -> Vector:
    """Concatenate two vectors."""
    rows = sparse.vstack([first.by_outcome, second.by_outcome], format="csr")
    return Vector(np.concatenate([first.constant, second.constant]), rows)
