"""The covariance of returns: as a matrix, as factors, or estimated from the returns of a history.

Estimates are Ledoit and Wolf's shrinkage of the sample covariance towards a multiple of the identity, or principal
factors of the correlations: those beyond Marchenko and Pastur's edge for independent returns, plus a residual variance
of each asset.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bco_core.errors import InvalidInput
from bco_core.problems.portfolio.rules import Rules
from bco_core.solvers.dual_newton import MAXIMUM_RANK, Array, FactorQP

SHRINKAGE, FACTORS = "shrinkage", "factors"
_MOST_FACTORS = 20
# Smallest estimate of an asset's residual variance as a share of its variance, and of any portfolio's variance.
_OWN, _SMALLEST = 0.01, 1e-6


def is_given(spec: dict[str, Any]) -> bool:
    """Return whether a specification states the risk itself."""
    return spec.get("covariance") is not None or spec.get("factors") is not None


def with_risk(spec: dict[str, Any], returns: Array | None) -> dict[str, Any]:
    """Return the specification with the risk estimated from returns (n, m), if it states none, and its source.

    Without returns, the risk is that of independent assets of variance one.
    """
    if spec.get("estimate") not in (None, SHRINKAGE, FACTORS):
        raise InvalidInput(f"estimate must be {SHRINKAGE} or {FACTORS}", ("estimate",))
    if is_given(spec):
        if spec.get("estimate") is not None and not spec.get("covariance_source"):
            raise InvalidInput("the risk is stated, so it needs no estimate: leave one of them out", ("estimate",))
        return spec
    if returns is None:
        count = len(spec.get("assets") or [])
        return spec | {"factors": {"loadings": [[0.0]] * count, "residual_variances": [1.0] * count}}
    rows, count = returns.shape
    if rows < 2:
        raise InvalidInput("estimating a covariance needs at least two rows of returns", ("covariance",))
    deviations = returns.std(axis=0)
    if not np.isfinite(deviations).all() or not (deviations > 1e-12 * np.abs(returns).max()).any():
        raise InvalidInput("the returns are constant, so they show no risk: state the covariance", ("covariance",))
    if (spec.get("estimate") or (FACTORS if count > MAXIMUM_RANK else SHRINKAGE)) == FACTORS:
        return _by_factors(spec, returns)
    # Importing takes a second, and few problems need it.
    from sklearn.covariance import ledoit_wolf

    covariance, shrinkage = ledoit_wolf(returns)
    covariance = covariance + _SMALLEST * float(covariance.diagonal().mean()) * np.eye(count)
    source = f"estimated from {rows} rows of returns by Ledoit–Wolf shrinkage of {shrinkage:.3g}"
    return spec | {"covariance": ((covariance + covariance.T) / 2).tolist(), "covariance_source": source}


def _by_factors(spec: dict[str, Any], returns: Array) -> dict[str, Any]:
    rows, count = returns.shape
    scale = np.maximum(returns.std(axis=0), 1e-3 * returns.std(axis=0).max())
    standard = (returns - returns.mean(axis=0)) / scale
    # Singular values of the standardised rows exist even if there are more assets than rows.
    _, values, vectors = np.linalg.svd(standard / math.sqrt(rows), full_matrices=False)
    edge = (1 + math.sqrt(count / rows)) ** 2
    kept = min(int((values**2 > edge).sum()), _MOST_FACTORS)
    # Leading directions contain as much noise as the others.
    noise = (count - float((values[:kept] ** 2).sum())) / max(count - kept, 1)
    loadings = vectors[:kept].T * np.sqrt(np.maximum(values[:kept] ** 2 - noise, 0.0))
    own = np.maximum(1 - (loadings**2).sum(axis=1), _OWN)
    source = f"estimated from {rows} rows of returns by {kept} principal factor{'s' if kept != 1 else ''}"
    loadings = loadings if kept else np.zeros((count, 1))
    factors = {"loadings": (loadings * scale[:, None]).tolist(), "residual_variances": (own * scale**2).tolist()}
    return spec | {"factors": factors, "covariance_source": source}


def risk_of(spec: dict[str, Any], rules: Rules) -> tuple[Array, FactorQP]:
    """Return the covariance matrix (m, m) and its factor form, from whichever of the two is stated."""
    count = len(rules.lower)
    bounds = rules.lower, rules.upper, rules.budget, rules.full
    if spec.get("covariance") is not None and spec.get("factors") is not None:
        raise InvalidInput("give the risk as covariance or as factors, not both", ("covariance",))
    if not is_given(spec):
        raise InvalidInput(
            "the risk is unknown: give covariance or factors, or returns to estimate it from", ("covariance",)
        )
    if spec.get("factors") is not None:
        loadings = _matrix(spec["factors"].get("loadings"), ("factors", "loadings"), count, None)
        residual = np.array(spec["factors"].get("residual_variances"), dtype=np.float64)
        if residual.shape != (count,) or not (residual > 0).all() or not np.isfinite(residual).all():
            raise InvalidInput("every asset needs a positive residual variance", ("factors", "residual_variances"))
        covariance = loadings @ loadings.T + np.diag(residual)
        return covariance, FactorQP(loadings, np.sqrt(residual), *bounds)
    covariance = _matrix(spec["covariance"], ("covariance",), count, count)
    if np.abs(covariance - covariance.T).max() > 1e-9 * np.abs(covariance).max():
        raise InvalidInput("the covariance matrix is not symmetric", ("covariance",))
    covariance = (covariance + covariance.T) / 2
    values = np.linalg.eigvalsh(covariance)
    if not values[0] > 1e-10 * values[-1]:
        raise InvalidInput("the covariance matrix must be positive definite", ("covariance",))
    return covariance, FactorQP.of(covariance, *bounds)


def _matrix(value: Any, where: tuple[str | int, ...], rows: int, columns: int | None) -> Array:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("a matrix must be a list of rows of numbers, all of the same length", where) from None
    if matrix.ndim != 2 or len(matrix) != rows or columns not in (None, matrix.shape[1]):
        size = f"{rows} rows" if columns is None else f"{rows} rows of {columns} numbers"
        raise InvalidInput(f"with {rows} assets the matrix needs {size}", where)
    if not np.isfinite(matrix).all():
        raise InvalidInput("a matrix must have finite numbers", where)
    return matrix
