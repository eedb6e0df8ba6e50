"""The slot between a context and θ: a predictor sees a context only through its features.

Features may be fitted to outcomes. A row's own outcome must then not reach what θ learns from, or out-of-fold judgement
would be flattered: :meth:`Features.of_history` gives every row as a model sees it that was fitted without the row's
fold, and :meth:`Features.of_new` gives new contexts as all models together see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bco_core.data import Sample, Standardizer


class Features(Protocol):
    """Fitted features: what the predictor's input is made of. Most kinds have no bases."""

    @property
    def kind(self) -> str: ...

    @property
    def context_dim(self) -> int:
        """Columns d_x of a context."""
        ...

    @property
    def width(self) -> int:
        """Columns of what the predictor sees."""
        ...

    @property
    def spread(self) -> Tensor:
        """The spread (width,) that each column had in the history, in its own units."""
        ...

    @property
    def bases(self) -> Standardizer | None:
        """The scale of what follows the features, a prediction of each outcome to depart from; None where none does."""
        return None

    @property
    def base_columns(self) -> tuple[int, ...]:
        """Where the bases are among the features, outcome by outcome; empty where there are none."""
        return ()

    @property
    def shrink(self) -> Tensor:
        """How far outcomes scatter around the bases, (d_y,), in units of their own spread; ones where none are."""
        return torch.ones(1, dtype=torch.float64)

    def of_new(self, contexts: Tensor) -> Tensor:
        """Contexts that nothing was fitted to: (..., d_x) → (..., width), then the bases."""
        ...

    def of_history(self, sample: Sample) -> Tensor:
        """The rows that the features were fitted to, in their order: (n, width), then the bases."""
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A plain description, empty where the kind says it all, and the arrays that go with it."""
        ...


@dataclass(frozen=True)
class FeatureKind:
    """One kind of features: how it is fitted to a sample whose rows have fold numbers (n,), and how it is restored.

    ``sees_outcomes`` says that fitting looks at outcomes, so that a prior on θ is no longer independent of the rows.
    """

    name: str
    fit: Callable[[Sample, Tensor], Features]
    from_arrays: Callable[[dict[str, Any], dict[str, Tensor]], Features]
    sees_outcomes: bool = False
