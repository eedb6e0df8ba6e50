"""Boosted quantile regression: LightGBM at the newsvendor's critical fractile, a rule that many planners use.

It needs the package ``lightgbm``, which is imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bco_core.data import Sample


def boosted_quantiles(
    sample: Sample, contexts: Tensor, level: float, leaves: int, rounds: Sequence[int], seed: int = 0
) -> list[Tensor]:
    """Return the predicted quantile (n,) of the first outcome for contexts (n, d_x), after each number of rounds."""
    import lightgbm

    parameters = {
        "objective": "quantile",
        "alpha": level,
        "num_leaves": leaves,
        "learning_rate": 0.05,
        "min_data_in_leaf": 40,
        "feature_fraction": 0.7,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "num_threads": 1,
        "seed": seed,
        "verbosity": -1,
    }
    table = lightgbm.Dataset(sample.contexts.numpy(), sample.outcomes[:, 0].numpy())
    model = lightgbm.train(parameters, table, max(rounds))
    return [torch.from_numpy(model.predict(contexts.numpy(), num_iteration=number)) for number in rounds]
