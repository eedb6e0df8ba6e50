"""Choosing predictive scenarios by a proper score, and telling how well they are calibrated.

For one outcome the score is the continuous ranked probability score, for several the energy score,

    E‖Y_k − y‖ − ½ E‖Y_k − Y_l‖,

in units of the outcomes' spread, always on rows that the scenarios leave out: row j is judged by the rows other than j.
Several outcomes may be told well on the whole and badly in what a decision depends on, so what the decision for the
prediction would cost is scored beside them.
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
LEVELS = (0.5, 0.8, 0.9, 0.95)
BINS = 10
JUDGED_ROWS = 300
_ATOMS = 64
_SAFE = 0.05
# Many ways compete, and with few rows some look better by chance: a gain must be so many standard errors.
_CLEAR = 2.0
# A column that correlates more than this with time tells little else.
_TELLS_THE_TIME = 0.8
_PENALTIES = 10.0 ** torch.linspace(-2, 2, 9, dtype=torch.float64)


@dataclass(frozen=True)
class HistoryChoice:
    """The history with the carrier of least score, the ``order`` (H,) in which it holds the rows, and every candidate's
    score."""

    history: History
    order: Tensor
    table: Table


@dataclass(frozen=True)
class Calibration:
    """How predictive scenarios did on held-out rows.

    ``pit`` counts, in ten bins, where the outcomes lay in their predicted distributions, as shares: 0.1 each is
    perfect. An outcome that ties with scenarios counts for all the places that they take up. ``coverage`` is the share
    of outcomes within the central interval of each level. ``score`` is the mean score, ``constant_score`` that of the
    history's outcomes without any context.
    """

    rows: int
    carry: str
    bandwidth: float | None
    pit: list[float]
    coverage: dict[str, float]
    score: float
    constant_score: float


def choose_history(
    predictions: Tensor,
    outcomes: Tensor,
    spread: Tensor,
    features: Tensor,
    shrink: Tensor,
    problem: DecisionProblem | None = None,
    periods: Tensor | None = None,
) -> HistoryChoice:
    """The way of carrying that scores best, for out-of-fold predictions and outcomes (H, d_y) of rows with features
    (H, width). Where there is a problem of several outcomes, its costs are scored, too. Features that only tell the
    time, by periods (H,), have no say in how far outcomes scatter: their next values have never been seen."""
    order = _by_residual(predictions, outcomes, spread)
    predictions, outcomes, features = predictions[order], outcomes[order], features[order]
    residuals = outcomes - predictions
    slopes = _log_spread(features, residuals, None if periods is None else periods[order])
    full = torch.ones_like(shrink)
    plain = History(predictions, outcomes, spread, Carrier("shift", None, full))
    judged = torch.linspace(0, len(outcomes) - 1, min(JUDGED_ROWS, len(outcomes))).round().long().unique()
    candidates = list(_candidates(plain, features, slopes))
    if len(outcomes) < 3:
        candidates = candidates[:1]
    scores = [score(one, judged, features) for one in candidates]
    if problem is not None and outcomes.shape[1] > 1:
        scores = _with_costs(scores, _cost_scores(candidates, judged, features, problem))
    labels: Table = [{"carry": one.carrier.carry, "bandwidth": one.carrier.bandwidth} for one in candidates]
    choice = select(scores, labels, _CLEAR)
    chosen = candidates[choice.chosen]
    carrier = replace(chosen.carrier, shrink=shrink, bandwidth=_sharper(chosen.carrier.bandwidth, shrink))
    return HistoryChoice(replace(chosen, carrier=carrier), order, choice.table)


def _sharper(bandwidth: float | None, shrink: Tensor) -> float | None:
    """The bandwidth for predictions that all members make. Distances were judged between rows that few members
    predicted, each with its own error; at a new context one of the two errors is smaller, its square by shrink²."""
    return None if bandwidth is None else bandwidth * math.sqrt((1 + shrink.square().mean().item()) / 2)


def _with_costs(scores: list[Tensor], costs: list[Tensor]) -> list[Tensor]:
    """Scores (m,) of outcomes and of costs together, each in units of the first candidate's."""
    unit, cost_unit = scores[0].mean(), costs[0].mean()
    # Costs that no outcome changes have nothing to tell.
    if not cost_unit.isfinite() or cost_unit <= 0:
        return scores
    return [one / unit + cost / cost_unit for one, cost in zip(scores, costs, strict=True)]


def _cost_scores(
    candidates: Sequence[History], rows: Tensor, features: Tensor, problem: DecisionProblem
) -> list[Tensor]:
    """The ranked probability score (m,) of what the decision for its prediction costs at rows (m,) of each history;
    histories differ in how they carry outcomes alone."""
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
    found = [replace(plain, carrier=Carrier("shift", width, full)) for width in (None, *kernels)]
    if positive:
        found += [replace(plain, carrier=Carrier("stretch", width, full)) for width in (None, *kernels)]
    found += [replace(plain, carrier=Carrier("keep", width, full)) for width in kernels]
    if len(plain) >= 30:
        scales = spread_at(slopes, features)
        found.append(replace(plain, carrier=Carrier("scaled", None, full, slopes), scales=scales))
    return found


def score(history: History, rows: Tensor, features: Tensor) -> Tensor:
    """Score (m,) of the scenarios at rows (m,) of the history, each without its own row."""
    predictions, outcomes = history.predictions[rows], history.outcomes[rows]
    if outcomes.shape[1] == 1:
        atoms, shares = _atoms(history, rows, features)
        return crps(atoms[..., 0], shares, outcomes[:, 0]) / history.spread[0]
    found = predictive_scenarios(history, predictions, _ATOMS, features[rows], own=rows).outcomes / history.spread
    return energy_score(found, outcomes / history.spread)


def _atoms(history: History, rows: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """All the history's atoms (m, H, d_y) and their shares (m, H) at rows (m,) of it, each without its own row."""
    predictions = history.predictions[rows]
    everything = torch.arange(len(history)).expand(len(rows), -1)
    atoms = carry_outcomes(history, everything, predictions, history.scales_at(features[rows]))
    share = row_weights(history, predictions, rows)
    return atoms, share / share.sum(dim=1, keepdim=True)


def crps(atoms: Tensor, shares: Tensor, truth: Tensor) -> Tensor:
    """Of weighted atoms (m, K) against the truth (m,): → (m,)."""
    ordered, order = atoms.sort(dim=1)
    share = shares.gather(1, order)
    before = share.cumsum(dim=1) - share
    half_spread = (ordered * share * (2 * before + share - 1)).sum(dim=1)
    return ((atoms - truth[:, None]).abs() * shares).sum(dim=1) - half_spread


def energy_score(atoms: Tensor, truth: Tensor) -> Tensor:
    """Of equally weighted atoms (m, K, d) against the truth (m, d): → (m,)."""
    near = (atoms - truth[:, None]).norm(dim=2).mean(dim=1)
    count = atoms.shape[1]
    between = torch.cdist(atoms, atoms).sum(dim=(1, 2)) / (count * max(count - 1, 1))
    difference: Tensor = near - 0.5 * between
    return difference


def calibrate(history: History, features: Tensor) -> Calibration:
    """How the history's own rows, each left out, look under its scenarios."""
    rows = torch.linspace(0, len(history) - 1, min(JUDGED_ROWS, len(history))).round().long().unique()
    atoms, shares = _atoms(history, rows, features)
    truth = history.outcomes[rows]
    below = (shares[..., None] * (atoms < truth[:, None])).sum(dim=1)
    ties = (shares[..., None] * (atoms == truth[:, None])).sum(dim=1)
    pit = below.flatten().clamp(0, 1), ties.flatten()
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    constant = History(
        torch.zeros_like(history.outcomes),
        history.outcomes,
        history.spread,
        Carrier("keep", None, history.carrier.shrink),
    )
    return Calibration(
        rows=len(rows),
        carry=history.carrier.carry,
        bandwidth=history.carrier.bandwidth,
        pit=_below(*pit, edges).diff().tolist(),
        coverage={str(level): _within(*pit, level) for level in LEVELS},
        score=score(history, rows, features).mean().item(),
        constant_score=score(constant, rows, features).mean().item(),
    )


def _below(low: Tensor, width: Tensor, edges: Tensor) -> Tensor:
    """The share of places in [0, 1] below each of the edges, the last of which is above all. An outcome that atoms tie
    with is spread evenly from ``low`` (m,) over their ``width`` (m,): so a discrete distribution that is right looks
    right (Czado et al., 2009)."""
    spread = (edges[:, None] - low) / width.clamp_min(1e-300)
    share = torch.where(width > 0, spread.clamp(0, 1), (low < edges[:, None]).double()).mean(dim=1)
    share[0], share[-1] = 0.0, 1.0
    return share


def _within(low: Tensor, width: Tensor, level: float) -> float:
    """The share of such places in the central interval of a level, ends included."""
    least, most = (1 - level) / 2, (1 + level) / 2
    overlap = ((low + width).clamp_max(most) - low.clamp_min(least)).clamp_min(0) / width.clamp_min(1e-300)
    point = (low - 0.5).abs() <= level / 2
    return torch.where(width > 0, overlap, point.double()).mean().item()


def _by_residual(predictions: Tensor, outcomes: Tensor, spread: Tensor) -> Tensor:
    """Rows ordered along the direction in which residuals differ most."""
    residuals = (outcomes - predictions) / spread
    if residuals.shape[1] == 1 or len(residuals) < 3:
        return residuals.sum(dim=1).argsort(stable=True)
    centred = residuals - residuals.mean(dim=0)
    direction = torch.linalg.eigh(centred.T @ centred)[1][:, -1]
    direction = direction * (1 if direction.sum() >= 0 else -1)
    along: Tensor = centred @ direction
    return along.argsort(stable=True)


def _log_spread(features: Tensor, residuals: Tensor, periods: Tensor | None) -> Tensor:
    """Slopes and constant (width + 1, d_y) of ln|residual| by features: ridge with leave-one-out penalties."""
    size = residuals.abs()
    floor = 1e-3 * size.mean(dim=0).clamp_min(1e-300)
    used = features.double()
    if periods is not None and len(periods) > 1:
        # A column that is left out is one that is always the same.
        used = torch.where(_follows(used, periods) > _TELLS_THE_TIME, used.mean(dim=0), used)
    return ridge(used, size.clamp_min(floor).log(), _PENALTIES)


def _follows(features: Tensor, periods: Tensor) -> Tensor:
    """How far each column (width,) goes with time: the size of its correlation with periods (H,)."""
    time, columns = (values - values.mean(dim=0) for values in (periods.double()[:, None], features))
    size = time.square().sum().sqrt() * columns.square().sum(dim=0).sqrt()
    return (time * columns).sum(dim=0).abs() / size.clamp_min(1e-300)
