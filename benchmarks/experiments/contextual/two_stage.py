"""Two stages: predict the costs as well as possible, then decide by the prediction."""

from __future__ import annotations

import numpy as np

from benchmarks.experiments.contextual.data import Array

RIDGES = np.logspace(-3, 4, 22)
LEAVES, RATE, ROUNDS, FOLDS = 6, 0.05, 300, 4


def least_squares(contexts: Array, outcomes: Array, new: Array) -> Array:
    """Return predictions (m, d) for new contexts (m, features)."""
    weights = np.linalg.lstsq(_with_one(contexts), outcomes, rcond=None)[0]
    return _with_one(new) @ weights


def ridge(contexts: Array, outcomes: Array, new: Array) -> Array:
    """Predict by ridge regression with the penalty of least leave-one-out squared error over all outcomes."""
    from sklearn.linear_model import RidgeCV

    predict_costs: Array = RidgeCV(RIDGES).fit(contexts, outcomes).predict(new)
    return predict_costs


def boosted(contexts: Array, outcomes: Array, new: Array, seed: int) -> Array:
    """Predict each outcome by LightGBM; cross-validation, averaged over outcomes, chooses the number of rounds."""
    import lightgbm

    parameters = {
        "num_leaves": LEAVES,
        "learning_rate": RATE,
        "min_data_in_leaf": max(5, len(contexts) // 50),
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "num_threads": 1,
        "seed": seed,
        "verbosity": -1,
    }
    table = lightgbm.Dataset(contexts, outcomes[:, 0], free_raw_data=False)
    errors = np.zeros(ROUNDS)
    for outcome in outcomes.T:
        tried = lightgbm.cv(
            parameters, table.set_label(outcome), ROUNDS, nfold=FOLDS, stratified=False, seed=seed, metrics="l2"
        )
        errors += np.array(tried["valid l2-mean"]) / outcome.var()
    rounds = int(errors.argmin()) + 1
    models = [lightgbm.train(parameters, table.set_label(outcome), rounds) for outcome in outcomes.T]
    return np.column_stack([model.predict(new) for model in models])


def _with_one(contexts: Array) -> Array:
    return np.hstack([np.ones((len(contexts), 1)), contexts])
