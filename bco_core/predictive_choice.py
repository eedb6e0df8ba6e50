"""Choice of predictive scenarios: the carrier, and the weights of the history's rows, by a proper score.

For one outcome the score is the continuous ranked probability score, for several the energy score,

    E‖Y_k − y‖ − ½ E‖Y_k − Y_l‖,

in units of the outcomes' spread, always on rows that the scenarios leave out: row j is judged by the rows other than j.
With several outcomes, scenarios may fit overall and miss what the decision depends on, so the cost of the decision for
the prediction is scored as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bco_core.predictive import Carrier, History, carry_outcomes, predictive_scenarios, row_weights, spread_at
from bco_core.problems.base import DecisionProblem
from bco_core.regression import ridge
from bco_core.select import Table, select

# Bandwidths that compete, as factors on the median distance between predictions.
BANDWIDTHS = (0.5, 0.2, 0.1, 0.05)
_JUDGED_ROWS = 300
_ATOMS = 64
_SAFE = 0.05
# Many carriers compete, and with few rows some look better by chance: standard errors that a gain must exceed.
_CLEAR = 2.0
# A column with a larger correlation with time carries little else.
_TIME_CORRELATION = 0.8
_PENALTIES = 10.0 ** torch.linspace(-2, 2, 9, dtype=torch.float64)


@dataclass(frozen=True)
class CarrierChoice:
    """The history with the carrier of least score, the ``order`` (H,) of its rows, and the scores of all candidates."""

    history: History
    order: Tensor
    table: Table


def choose_carrier(
    predictions: Tensor,
    outcomes: Tensor,
    spread: Tensor,
    features: Tensor,
    shrink: Tensor,
    problem: DecisionProblem | None = None,
    periods: Tensor | None = None,
) -> CarrierChoice:
    """Choose the carrier that scores best, for out-of-fold predictions and outcomes (H, d_y) and features (H, width).

    For a problem with several outcomes its costs are scored, too. Features that only follow the ``periods`` (H,) are
    not used for the spread of outcomes, because their next values have never been seen.
    """
    order = _by_residual(predictions, outcomes, spread)
    predictions, outcomes, features = predictions[order], outcomes[order], features[order]
    residuals = outcomes - predictions
    slopes = _log_spread(features, residuals, None if periods is None else periods[order])
    full = torch.ones_like(shrink)
    plain = History(predictions, outcomes, spread, Carrier("shift", None, full))
    judged = judged_rows(len(outcomes))
    candidates = list(_candidates(plain, features, slopes))
    if len(outcomes) < 3:
        candidates = candidates[:1]
    scores = [score(one, judged, features) for one in candidates]
    if problem is not None and outcomes.shape[1] > 1:
        scores = _with_costs(scores, _cost_scores(candidates, judged, features, problem))
    labels: Table = [{"carry": one.carrier.carry, "bandwidth": one.carrier.bandwidth} for one in candidates]
    choice = select(scores, labels, _CLEAR)
    chosen = candidates[choice.best]
    carrier = replace(chosen.carrier, shrink=shrink, bandwidth=_sharper(chosen.carrier.bandwidth, shrink))
    return CarrierChoice(replace(chosen, carrier=carrier), order, choice.table)


def _sharper(bandwidth: float | None, shrink: Tensor) -> float | None:
    """Return the bandwidth for predictions of all members.

    Distances were judged between rows that few members predicted, each with its own error. At a new context one of the
    two errors is smaller: its square by the factor shrink².
    """
    return None if bandwidth is None else bandwidth * math.sqrt((1 + shrink.square().mean().item()) / 2)


def _with_costs(scores: list[Tensor], costs: list[Tensor]) -> list[Tensor]:
    """Add the scores (m,) of outcomes and costs, each in units of the first candidate's mean score."""
    unit, cost_unit = scores[0].mean(), costs[0].mean()
    # Costs that no outcome changes carry no information.
    if not cost_unit.isfinite() or cost_unit <= 0:
        return scores
    return [one / unit + cost / cost_unit for one, cost in zip(scores, costs, strict=True)]


def _cost_scores(
    candidates: Sequence[History], rows: Tensor, features: Tensor, problem: DecisionProblem
) -> list[Tensor]:
    """Return, for each history, the ranked probability score (m,) of the cost of the decision for the prediction.

    The histories differ only in their carriers.
    """
    predictions, scores = candidates[0].predictions[rows], []
    with torch.no_grad():
        decisions = problem.decide(predictions)
        truth = problem.cost(decisions, candidates[0].outcomes[rows]).double()
        for one in candidates:
            atoms = predictive_scenarios(one, predictions, _ATOMS, features[rows], own=rows)
            costs = problem.cost(decisions[:, None], atoms.outcomes).double()
            scores.append(crps(costs, torch.full_like(costs, 1 / _ATOMS), truth))
    return scores


def _candidates(plain: History, features: Tensor, slopes: Tensor) -> Sequence[History]:
    full = plain.carrier.shrink
    distances = torch.pdist(plain.predictions[:1000] / plain.spread)
    median = distances.median().item() if len(distances) else 0.0
    kernels = [max(factor * median, 1e-6) for factor in BANDWIDTHS] if median > 0 else []
    # Stretching divides by predictions: nearly all of them must be safely positive.
    level = plain.outcomes.mean(dim=0)
    positive = bool((level > 0).all()) and (plain.predictions > _SAFE * level).all(dim=1).double().mean() >= 0.99
    result = [replace(plain, carrier=Carrier("shift", width, full)) for width in (None, *kernels)]
    if positive:
        result += [replace(plain, carrier=Carrier("stretch", width, full)) for width in (None, *kernels)]
    result += [replace(plain, carrier=Carrier("keep", width, full)) for width in kernels]
    if len(plain) >= 30:
        scales = spread_at(slopes, features)
        result.append(replace(plain, carrier=Carrier("scaled", None, full, slopes), scales=scales))
    return result


def judged_rows(count: int) -> Tensor:
    """Return the rows, evenly spaced among ``count``, on which scenarios are judged."""
    rows: Tensor = torch.linspace(0, count - 1, min(_JUDGED_ROWS, count)).round().long().unique()
    return rows


def score(history: History, rows: Tensor, features: Tensor) -> Tensor:
    """Return the score (m,) of the scenarios at rows (m,) of the history, each without its own row."""
    predictions, outcomes = history.predictions[rows], history.outcomes[rows]
    if outcomes.shape[1] == 1:
        atoms, shares = atoms_of(history, rows, features)
        return crps(atoms[..., 0], shares, outcomes[:, 0]) / history.spread[0]
    result = predictive_scenarios(history, predictions, _ATOMS, features[rows], own=rows).outcomes / history.spread
    return energy_score(result, outcomes / history.spread)


def atoms_of(history: History, rows: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return all atoms (m, H, d_y) and their shares (m, H) at rows (m,) of the history, each without its own row."""
    predictions = history.predictions[rows]
    everything = torch.arange(len(history)).expand(len(rows), -1)
    atoms = carry_outcomes(history, everything, predictions, history.scales_at(features[rows]))
    share = row_weights(history, predictions, rows)
    return atoms, share / share.sum(dim=1, keepdim=True)


def crps(atoms: Tensor, shares: Tensor, truth: Tensor) -> Tensor:
    """Return the continuous ranked probability score (m,) of atoms (m, K) with shares (m, K) for the truth (m,)."""
    ordered, order = atoms.sort(dim=1)
    share = shares.gather(1, order)
    before = share.cumsum(dim=1) - share
    half_spread = (ordered * share * (2 * before + share - 1)).sum(dim=1)
    return ((atoms - truth[:, None]).abs() * shares).sum(dim=1) - half_spread


def energy_score(atoms: Tensor, truth: Tensor) -> Tensor:
    """Return the energy score (m,) of equally weighted atoms (m, K, d) for the truth (m, d)."""
    near = (atoms - truth[:, None]).norm(dim=2).mean(dim=1)
    count = atoms.shape[1]
    between = torch.cdist(atoms, atoms).sum(dim=(1, 2)) / (count * max(count - 1, 1))
    difference: Tensor = near - 0.5 * between
    return difference


def _by_residual(predictions: Tensor, outcomes: Tensor, spread: Tensor) -> Tensor:
    """Return the order (H,) of rows along the direction in which residuals vary most."""
    residuals = (outcomes - predictions) / spread
    if residuals.shape[1] == 1 or len(residuals) < 3:
        return residuals.sum(dim=1).argsort(stable=True)
    centred = residuals - residuals.mean(dim=0)
    direction = torch.linalg.eigh(centred.T @ centred)[1][:, -1]
    direction = direction * (1 if direction.sum() >= 0 else -1)
    along: Tensor = centred @ direction
    return along.argsort(stable=True)


def _log_spread(features: Tensor, residuals: Tensor, periods: Tensor | None) -> Tensor:
    """Return slopes and constant (width + 1, d_y) of ln|residual| on features: ridge with leave-one-out penalties."""
    size = residuals.abs()
    floor = 1e-3 * size.mean(dim=0).clamp_min(1e-300)
    used = features.double()
    if periods is not None and len(periods) > 1:
        # A constant column has no influence.
        used = torch.where(_follows(used, periods) > _TIME_CORRELATION, used.mean(dim=0), used)
    return ridge(used, size.clamp_min(floor).log(), _PENALTIES)


def _follows(features: Tensor, periods: Tensor) -> Tensor:
    """Return the absolute correlation (width,) of each column with periods (H,)."""
    time, columns = (values - values.mean(dim=0) for values in (periods.double()[:, None], features))
    size = time.square().sum().sqrt() * columns.square().sum(dim=0).sqrt()
    return (time * columns).sum(dim=0).abs() / size.clamp_min(1e-300)
