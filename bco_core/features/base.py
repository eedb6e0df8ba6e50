"""Features: predictors see a context only through them.

Features may be fitted to outcomes. θ must then not learn from a row's own outcome, or out-of-fold judgement would be
flattered: :meth:`Features.of_history` computes every row by a model fitted without the row's fold, and
:meth:`Features.of_new` computes new contexts by all models together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bco_core.data import Sample, Standardizer


class Features(Protocol):
    """Fitted features, the input of predictors. Most kinds have no bases."""

    @property
    def kind(self) -> str: ...

    @property
    def context_dim(self) -> int:
        """Number of columns d_x of a context."""
        ...

    @property
    def width(self) -> int:
        """Number of columns that the predictor sees."""
        ...

    @property
    def spread(self) -> Tensor:
        """Spread (width,) of each column in the history, in its own units."""
        ...

    @property
    def bases(self) -> Standardizer | None:
        """Scale of the bases, which follow the features: a prediction of each outcome to depart from; None without."""
        return None

    @property
    def base_columns(self) -> tuple[int, ...]:
        """Column of each outcome's base among the features; empty without bases."""
        return ()

    @property
    def shrink(self) -> Tensor:
        """Scatter of the outcomes around the bases, (d_y,), in units of their own spread; ones without bases."""
        return torch.ones(1, dtype=torch.float64)

    def of_new(self, contexts: Tensor) -> Tensor:
        """Compute features of new contexts: (..., d_x) → (..., width), then the bases."""
        ...

    def of_history(self, sample: Sample) -> Tensor:
        """Compute features of the rows that the features were fitted to, in order: (n, width), then the bases."""
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a plain description, empty where the kind suffices, and the arrays that go with it."""
        ...


@dataclass(frozen=True)
class FeatureKind:
    """One kind of features: ``fit`` takes a sample and the fold (n,) of each row, ``from_arrays`` restores.

    With ``sees_outcomes``, fitting uses outcomes, so that a prior on θ is not independent of the rows.
    """

    name: str
    fit: Callable[[Sample, Tensor], Features]
    from_arrays: Callable[[dict[str, Any], dict[str, Tensor]], Features]
    sees_outcomes: bool = False
