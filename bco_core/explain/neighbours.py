"""Nearest rows of a history to a context, by the root mean square difference of standardised columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.data import Standardizer

_CHUNK_NUMBERS = 4_000_000


@dataclass(frozen=True)
class Neighbourhood:
    """Standardised contexts (n, d_x) of a history, in float32."""

    scale: Standardizer
    contexts: Tensor

    @staticmethod
    def of(contexts: Tensor) -> Neighbourhood:
        """Build the neighbourhood of encoded contexts (n, d_x)."""
        scale = Standardizer.fit(contexts)
        return Neighbourhood(scale, scale.apply(contexts).float())

    def nearest(self, contexts: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the nearest rows (B, k) to contexts (B, d_x), nearest first, and their distances (B, k), k ≤ count."""
        count = min(count, len(self.contexts))
        wanted = self.scale.apply(contexts)
        rows, distances = [], []
        for chunk in wanted.split(max(1, _CHUNK_NUMBERS // len(self.contexts))):
            deadlines.check()
            nearest_rows = torch.cdist(chunk.float(), self.contexts).topk(count, largest=False).indices
            # Once more in full precision: of equal rows the earlier one comes first.
            exact = (chunk[:, None] - self.contexts[nearest_rows].double()).square().mean(dim=2).sqrt()
            order = torch.argsort(nearest_rows, dim=1)
            nearest_rows, exact = nearest_rows.gather(1, order), exact.gather(1, order)
            order = torch.argsort(exact, dim=1, stable=True)
            rows.append(nearest_rows.gather(1, order))
            distances.append(exact.gather(1, order))
        return torch.cat(rows), torch.cat(distances)
