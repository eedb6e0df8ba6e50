"""Ensembles of regression trees as plain arrays: stored without pickling, evaluated without their library.

A prediction is the same, bit for bit, whichever rows are predicted together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from bco_core.batch_kernels import compiled
from bco_core.data import Arrays

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Forest:
    """P models, each the sum of its trees.

    A node sends a row to ``left`` where the column ``feature`` is at most ``threshold``, and to ``right`` otherwise;
    both are nodes of the same tree or, below zero, one's complement of a leaf, which adds its ``value``. Trees start at
    ``node_start`` and ``leaf_start``, (T + 1,) each; the trees of model p are ``model_start[p]`` to the next.
    """

    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    node_start: Array
    leaf_start: Array
    model_start: Array

    def __len__(self) -> int:
        return len(self.model_start) - 1

    def predict(self, rows: Array) -> Array:
        """Return predictions (n, P) for rows (n, d)."""
        predictions = np.zeros((len(rows), len(self)))
        _evaluate(np.ascontiguousarray(rows, np.float64), *astuple(self), predictions)
        return predictions

    def first(self, rounds: Sequence[int]) -> Forest:
        """Keep the first ``rounds`` trees of each model."""
        trees, counts = [], []
        for start, end, most in zip(self.model_start[:-1], self.model_start[1:], rounds, strict=True):
            trees.append(np.arange(start, min(end, start + most)))
            counts.append(len(trees[-1]))
        return self._of(np.concatenate(trees), np.array(counts))

    def _of(self, trees: Array, counts: Array) -> Forest:
        nodes, leaves = self.node_start, self.leaf_start
        node_rows = _ranges(nodes[trees], nodes[trees + 1])
        return Forest(
            self.feature[node_rows],
            self.threshold[node_rows],
            self.left[node_rows],
            self.right[node_rows],
            self.value[_ranges(leaves[trees], leaves[trees + 1])],
            _starts(nodes[trees + 1] - nodes[trees]),
            _starts(leaves[trees + 1] - leaves[trees]),
            _starts(counts),
        )

    def to_arrays(self, prefix: str) -> Arrays:
        return {prefix + one.name: getattr(self, one.name) for one in fields(self)}

    @staticmethod
    def from_arrays(prefix: str, arrays: Arrays) -> Forest:
        return Forest(*(np.asarray(arrays[prefix + one.name]) for one in fields(Forest)))


def join_forests(forests: Sequence[Forest]) -> Forest:
    """Join the models of several forests, in order."""
    parts = {one.name: [getattr(forest, one.name) for forest in forests] for one in fields(Forest)}
    plain = (np.concatenate(parts[name]) for name in ("feature", "threshold", "left", "right", "value"))
    starts = (
        _starts(np.concatenate([np.diff(values) for values in parts[name]]))
        for name in ("node_start", "leaf_start", "model_start")
    )
    return Forest(*plain, *starts)


def from_lightgbm(texts: Sequence[str]) -> Forest:
    """Read models from LightGBM's texts. Splits must be numeric; rows must have no missing numbers."""
    models = [list(_trees(text)) for text in texts]
    trees = [tree for model in models for tree in model]

    def concatenate(name: str, kind: Any) -> Array:
        return np.concatenate([np.empty(0, kind), *(tree[name].astype(kind) for tree in trees)])

    return Forest(
        concatenate("split_feature", np.int32),
        concatenate("threshold", np.float64),
        concatenate("left_child", np.int32),
        concatenate("right_child", np.int32),
        concatenate("leaf_value", np.float64),
        _starts(np.array([len(tree["split_feature"]) for tree in trees], np.int64)),
        _starts(np.array([len(tree["leaf_value"]) for tree in trees], np.int64)),
        _starts(np.array([len(model) for model in models], np.int64)),
    )


_TREE_FIELDS = ("split_feature", "threshold", "left_child", "right_child", "leaf_value")


def _trees(text: str) -> Iterator[dict[str, Array]]:
    for block in text.split("\n\n"):
        lines = dict(line.split("=", 1) for line in block.strip().splitlines() if "=" in line)
        if "Tree" in lines:
            yield {name: np.array(lines.get(name, "").split(), np.float64) for name in _TREE_FIELDS}


def _starts(counts: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _ranges(first: Array, last: Array) -> Array:
    """Return all numbers from each ``first`` up to its ``last``."""
    counts = last - first
    if not counts.sum():
        return np.empty(0, np.int64)
    return np.repeat(first - _starts(counts)[:-1], counts) + np.arange(counts.sum())


@compiled
def _evaluate(rows, feature, threshold, left, right, value, node_start, leaf_start, model_start, predictions):  # type: ignore[no-untyped-def]
    for model in range(len(model_start) - 1):
        for tree in range(model_start[model], model_start[model + 1]):
            nodes, leaves = node_start[tree], leaf_start[tree]
            if node_start[tree + 1] == nodes:
                for row in range(len(rows)):
                    predictions[row, model] += value[leaves]
                continue
            for row in range(len(rows)):
                at = 0
                while at >= 0:
                    node = nodes + at
                    at = left[node] if rows[row, feature[node]] <= threshold[node] else right[node]
                predictions[row, model] += value[leaves + ~at]
