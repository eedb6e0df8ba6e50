"""Minibatch training of R independent members as one batch, each stopped early by its cost on held-out rows.

The trained value has shape (P, R, d): P parameters (μ and ρ for a mean-field member, θ alone for a point estimate), R
members, d coordinates. Members never interact, so the gradient of the sum of their losses holds each member's own
gradient, and a member that has stopped leaves the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bco_core.errors import Diverged
from bco_core.progress import Message, Progress, no_progress

Array = np.ndarray[Any, np.dtype[np.float32]]
# Loss (R,) of members with numbers (R,) for their parameters (P, R, d) on their own rows (R, b), and the gradient
# (P, R, d) of the objective, which may have terms besides the loss.
Loss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# Held-out cost of each member (R,) for its parameters (P, R, d).
Judge = Callable[[Tensor, Tensor], Tensor]

# Small data sets would otherwise be judged after every step or two, before anything has been learned.
MINIMUM_STEPS_PER_EPOCH = 10
# A group is given up at this multiple of the best group's held-out cost.
CLEARLY_WORSE = 1.2


def by_autograd(losses: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Loss:
    """Return a loss whose gradient is computed by autograd."""

    def loss(value: Tensor, rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        value = value.detach().requires_grad_()
        each = losses(value, rows, members)
        (gradient,) = torch.autograd.grad(each.sum(), value)
        return each.detach(), gradient

    return loss


@dataclass(frozen=True)
class TrainingOptions:
    """Options of minibatch training.

    ``patience`` None runs every epoch and returns the last. ``averaging`` judges and returns a moving average of the
    parameters with a half-life of one epoch. ``learning_rate`` may differ by member, (R,), and coordinate, (R, d). An
    epoch is a pass over all rows, or over ``epoch_rows`` of them. After each epoch in ``rungs`` only the better half of
    the groups of members continues (successive halving).
    """

    epochs: int = 300
    patience: int | None = 20
    batch_size: int = 128
    learning_rate: float | Tensor = 0.003
    optimizer: str = "adam"
    averaging: bool = True
    epoch_rows: int | None = None
    rungs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch, averaged over the members still learning."""

    number: int
    loss: float
    held_out_cost: float | None
    value: Tensor


@dataclass(frozen=True)
class TrainingResult:
    """Each member's best parameters (P, R, d), their held-out cost (R,), their epoch, and whether it stopped early."""

    value: Tensor
    cost: Tensor
    best_epochs: list[int]
    stopped_early: list[bool]


@dataclass
class _State:
    """Parameters, Adam's moments and the moving average of the members still learning, each (P, R, d)."""

    value: Tensor
    first: Tensor
    second: Tensor
    average: Tensor

    def keep(self, going: Tensor) -> _State:
        return _State(*(t[:, going] for t in (self.value, self.first, self.second, self.average)))


def train(
    initial: Tensor,
    train_rows: Tensor,
    loss: Loss,
    judge: Judge,
    options: TrainingOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
    watch: Callable[[Epoch], Mapping[str, float | None] | None] = lambda epoch: None,
    together: int = 1,
) -> TrainingResult:
    """Train from ``initial`` (P, R, d) on ``train_rows`` (R, n); ``watch`` receives every epoch and may return figures.

    Every ``together`` consecutive members form a group, which leaves the batch once all of them have stopped improving.
    A member's result depends on its own held-out cost alone, not on how long its group stays.
    """
    members = initial.shape[1]
    rows = min(train_rows.shape[1], options.epoch_rows or train_rows.shape[1])
    steps = max(math.ceil(rows / options.batch_size), MINIMUM_STEPS_PER_EPOCH)
    state = _State(initial.clone(), torch.zeros_like(initial), torch.zeros_like(initial), initial.clone())
    best, active = initial.clone(), torch.arange(members)
    best_cost = torch.full((members,), math.nan, dtype=torch.float64)
    best_epoch = torch.zeros(members, dtype=torch.long)
    if options.patience is not None:
        # The start counts: a warm start that learning does not improve is returned.
        best_cost = judge(initial, active).nan_to_num(nan=math.inf)

    for epoch in range(1, options.epochs + 1):
        mean_loss = _train_epoch(
            state, train_rows[active], active, loss, options, (epoch - 1) * steps, steps, generator
        )
        if not math.isfinite(mean_loss):
            raise Diverged("learning produced non-finite numbers; a smaller learning_rate usually helps")
        current = state.average
        if options.patience is None:
            best, best_epoch[:] = current.clone(), epoch
            cost = None
        else:
            costs = judge(current, active)
            better = (costs < best_cost[active]) & (epoch - best_epoch[active] <= options.patience)
            winners = active[better]
            best[:, winners], best_cost[winners], best_epoch[winners] = current[:, better], costs[better], epoch
            cost = costs.mean().item()
            groups = (epoch - best_epoch[active] < options.patience).view(-1, together).any(dim=1)
            if epoch in options.rungs:
                groups &= _better_half(best_cost[active].view(-1, together).mean(dim=1), bool(active[0] == 0))
            if not groups.all():
                going = groups.repeat_interleave(together)
                state, active = state.keep(going), active[going]
        figures = watch(Epoch(epoch, mean_loss, cost, current)) or {}
        words = f"epoch {epoch}, {len(active)} of {members} members learning"
        progress(epoch / options.epochs, Message(words, figures))
        if not len(active):
            break

    still = set(active.tolist())
    return TrainingResult(best, best_cost, best_epoch.tolist(), [member not in still for member in range(members)])


def _better_half(costs: Tensor, with_first: bool) -> Tensor:
    """Return which groups (G,) continue: the better half, and the first, the default, unless it is clearly worse."""
    keep_first = with_first and bool(costs[0] <= CLEARLY_WORSE * costs.min())
    order = costs.argsort(stable=True)
    order = order[order != 0] if keep_first else order
    survivors = torch.zeros(len(costs), dtype=torch.bool)
    survivors[order[: (len(order) + 1) // 2]] = True
    survivors[0] |= keep_first
    return survivors


def _train_epoch(
    state: _State,
    train_rows: Tensor,
    members: Tensor,
    loss: Loss,
    options: TrainingOptions,
    taken: int,
    steps: int,
    generator: torch.Generator,
) -> float:
    """Take ``steps`` steps on all members at once and return the mean loss."""
    rows = train_rows.shape[1]
    batch = min(options.batch_size, rows)
    rate = options.learning_rate
    if isinstance(rate, Tensor):
        rate = rate[members] if rate.ndim > 1 else rate[members, None]
    # A moving average with a half-life of one epoch.
    share = 1 - 0.5 ** (1 / steps) if options.averaging else 1.0
    total, order, position = 0.0, _shuffled(train_rows, generator), 0
    for step in range(taken + 1, taken + steps + 1):
        if position + batch > rows:
            order, position = _shuffled(train_rows, generator), 0
        chosen = order[:, position : position + batch]
        position += batch
        losses, gradient = loss(state.value, chosen, members)
        OPTIMIZERS[options.optimizer](state, gradient, step, rate, share)
        total += losses.mean().item()
    return total / steps


def _adam(state: _State, gradient: Tensor, step: int, rate: float | Tensor, share: float) -> None:
    rates = torch.as_tensor(rate, dtype=state.value.dtype)
    rates = rates.expand(gradient.shape[1], rates.shape[1] if rates.ndim else 1).contiguous()
    value, first, second, average = (t.numpy() for t in (state.value, state.first, state.second, state.average))
    _adam_pass(value, first, second, average, gradient.contiguous().numpy(), rates.numpy(), step, share)


@njit(fastmath={"contract"}, error_model="numpy", cache=True)
def _adam_pass(
    value: Array, first: Array, second: Array, average: Array, gradient: Array, rates: Array, step: int, share: float
) -> None:
    """Update Adam and the moving average in one pass over memory; rates are (R, 1) or (R, d)."""
    # The usual bias corrections, folded into two numbers.
    correction = math.sqrt(1 - 0.999**step)
    number = value.dtype.type
    tiny, factor = number(1e-8 * correction), number(correction / (1 - 0.9**step))
    slow, slower, part = number(0.1), number(0.001), number(share)
    stride = 0 if rates.shape[1] == 1 else 1
    for p in range(value.shape[0]):
        for r in range(value.shape[1]):
            for j in range(value.shape[2]):
                g = gradient[p, r, j]
                m = first[p, r, j] + slow * (g - first[p, r, j])
                v = second[p, r, j] + slower * (g * g - second[p, r, j])
                x = value[p, r, j] - factor * rates[r, stride * j] * m / (np.sqrt(v) + tiny)
                first[p, r, j], second[p, r, j], value[p, r, j] = m, v, x
                average[p, r, j] += part * (x - average[p, r, j])


def _sgd(state: _State, gradient: Tensor, step: int, rate: float | Tensor, share: float) -> None:
    state.value -= rate * gradient
    state.average.lerp_(state.value, share)


OPTIMIZERS = {"adam": _adam, "sgd": _sgd}


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the rows (R, n) in one order for all members, so that configurations meet the same batches."""
    return rows[:, torch.randperm(rows.shape[1], generator=generator)]
