"""Minibatch training of R independent members as one batch, each stopped early on its own held-out rows.

What is learned is a tensor of shape (P, R, d): P parameters (μ and ρ for a mean-field member, θ alone for a point
estimate), R members, d coordinates. Members never interact, so the sum of their losses has their own gradients, and a
member that has stopped simply leaves the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.errors import Diverged

Progress = Callable[[float, str], None]
# Loss of each member (R,) for its parameters (P, R, d) on its own rows (R, b); ``members`` (R,) says which they are.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# Held-out cost of each member (R,) for its parameters (P, R, d).
Judge = Callable[[Tensor, Tensor], Tensor]

# Small data sets would otherwise be judged after every step or two, when nothing has been learned yet.
MINIMUM_STEPS_PER_EPOCH = 10


def no_progress(fraction: float, message: str) -> None:
    """For callers that do not watch."""


@dataclass(frozen=True)
class TrainingOptions:
    """``patience`` None runs every epoch and keeps the last. ``averaging`` judges and keeps a moving average of the
    parameters with a half-life of one epoch. ``learning_rate`` may differ by member, (R,), and coordinate, (R, d)."""

    epochs: int = 300
    patience: int | None = 20
    batch_size: int = 128
    learning_rate: float | Tensor = 0.003
    optimizer: str = "adam"
    averaging: bool = True


@dataclass(frozen=True)
class Epoch:
    """What one epoch met, averaged over the members still learning."""

    number: int
    loss: float
    held_out_cost: float | None
    value: Tensor


@dataclass(frozen=True)
class Trained:
    """Each member's best parameters (P, R, d), its held-out cost then, that epoch, and whether it stopped by itself."""

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
    watch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train from ``initial`` (P, R, d) on ``train_rows`` (R, n); ``watch`` sees every epoch."""
    members = initial.shape[1]
    steps = max(math.ceil(train_rows.shape[1] / options.batch_size), MINIMUM_STEPS_PER_EPOCH)
    state = _State(initial.clone(), torch.zeros_like(initial), torch.zeros_like(initial), initial.clone())
    best, active = initial.clone(), torch.arange(members)
    best_cost = torch.full((members,), math.nan, dtype=torch.float64)
    best_epoch = torch.zeros(members, dtype=torch.long)
    if options.patience is not None:
        # The start counts: a warm start that learning cannot better is kept.
        best_cost = judge(initial, active).nan_to_num(nan=math.inf)

    for epoch in range(1, options.epochs + 1):
        met = _train_epoch(state, train_rows[active], active, loss, options, (epoch - 1) * steps, steps, generator)
        if not math.isfinite(met):
            raise Diverged("learning produced non-finite numbers; a smaller learning_rate usually helps")
        current = state.average if options.averaging else state.value
        if options.patience is None:
            best, best_epoch[:] = current, epoch
            cost = None
        else:
            costs = judge(current, active)
            better = costs < best_cost[active]
            winners = active[better]
            best[:, winners], best_cost[winners], best_epoch[winners] = current[:, better], costs[better], epoch
            cost = costs.mean().item()
            going = epoch - best_epoch[active] < options.patience
            if not going.all():
                state, active = state.keep(going), active[going]
        watch(Epoch(epoch, met, cost, current))
        progress(epoch / options.epochs, f"epoch {epoch}, {len(active)} of {members} members learning")
        if not len(active):
            break

    still = set(active.tolist())
    return Trained(best, best_cost, best_epoch.tolist(), [member not in still for member in range(members)])


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
    """``steps`` steps on all members at once; returns the mean loss met on the way."""
    rows = train_rows.shape[1]
    batch = min(options.batch_size, rows)
    rate = options.learning_rate
    if isinstance(rate, Tensor):
        rate = rate[members] if rate.ndim > 1 else rate[members, None]
    decay = 0.5 ** (1 / steps)
    total, order, position = 0.0, _shuffled(train_rows, generator), 0
    for step in range(taken + 1, taken + steps + 1):
        if position + batch > rows:
            order, position = _shuffled(train_rows, generator), 0
        chosen = order[:, position : position + batch]
        position += batch
        value = state.value.requires_grad_()
        losses = loss(value, chosen, members)
        (gradient,) = torch.autograd.grad(losses.sum(), value)
        state.value = value.detach()
        OPTIMIZERS[options.optimizer](state, gradient, step, rate)
        if options.averaging:
            state.average.lerp_(state.value, 1 - decay)
        total += losses.mean().item()
    return total / steps


def _adam(state: _State, gradient: Tensor, step: int, rate: float | Tensor) -> None:
    state.first.lerp_(gradient, 0.1)
    state.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    # The usual bias corrections, folded into two numbers.
    correction = math.sqrt(1 - 0.999**step)
    spread = state.second.sqrt().add_(1e-8 * correction)
    size = rate * (correction / (1 - 0.9**step))
    if isinstance(size, Tensor):
        state.value -= (state.first / spread).mul_(size)
    else:
        state.value.addcdiv_(state.first, spread, value=-size)


def _sgd(state: _State, gradient: Tensor, step: int, rate: float | Tensor) -> None:
    state.value -= rate * gradient


OPTIMIZERS = {"adam": _adam, "sgd": _sgd}


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(dim=1))
