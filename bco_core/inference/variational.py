"""Mean-field variational inference for differentiable problems (Algorithm 1), R members as one batch.

Each member r minimises, over q_r = Π_j q(θ_j; μ_rj, σ_rj),

    E_q[R_n(θ)] + κ KL(q ‖ ρ_0),    κ = 1/(λn),                                     (equation VI of the paper)

by Adam on minibatches of its own training rows, with θ = μ + σ ∘ ξ drawn afresh at every step, σ = softplus(ρ) and the
KL in closed form. After every epoch the moving average of (μ, ρ) is judged by the cost of its own policy's decisions on
the member's validation rows; the best epoch is kept, and a member stops after ``patience`` epochs without a better one.
Members that have stopped leave the batch. One member without averaging is the paper's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bco_core.data import Folds
from bco_core.errors import Diverged
from bco_core.families import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.policies import POLICIES
from bco_core.scenarios import Scenarios

Progress = Callable[[float, str], None]

# Small data sets would otherwise be judged after every step or two, when nothing has been learned yet.
MINIMUM_STEPS_PER_EPOCH = 10
_TRACE_POINTS = 200
_CHUNK_NUMBERS = 8_000_000


@dataclass(frozen=True)
class VariationalOptions:
    """How to run Algorithm 1. ``patience`` None runs every epoch and keeps the last."""

    kl_weight: float
    policy: str = "bcp"
    epochs: int = 300
    patience: int | None = 20
    batch_size: int = 128
    learning_rate: float = 0.003
    initial_scale: float = 0.05
    draws: int = 1
    validation_draws: int = 16
    averaging: bool = True


@dataclass(frozen=True)
class TracePoint:
    """One epoch, averaged over the members still learning; costs in the user's units."""

    epoch: int
    risk: float
    kl: float
    validation_cost: float | None
    scale: float


@dataclass(frozen=True)
class VariationalFit:
    """The learned mixture, each member's best epoch, whether it stopped before the limit, and the thinned trace."""

    mixture: Mixture
    best_epochs: list[int]
    stopped_early: list[bool]
    trace: list[TracePoint]


@dataclass
class _State:
    """Stacked over (μ, ρ) and the members still learning: all tensors are (2, R, d)."""

    value: Tensor
    first_moment: Tensor
    second_moment: Tensor
    average: Tensor

    def keep(self, members: Tensor) -> _State:
        return _State(*(t[:, members] for t in (self.value, self.first_moment, self.second_moment, self.average)))


def fit_variational(
    target: GibbsTarget,
    folds: Folds,
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = lambda fraction, message: None,
) -> VariationalFit:
    """Fit one mean-field member for each row of ``folds`` and return their equally weighted mixture."""
    members, train_rows = folds.train.shape
    batch = min(options.batch_size, train_rows)
    steps = max(math.ceil(train_rows / batch), MINIMUM_STEPS_PER_EPOCH)
    encoded = target.predictor.encode(target.sample.contexts, target.prior_scale.dtype)

    loc = target.predictor.initial(members, generator).to(encoded)
    rho = torch.full_like(loc, math.log(math.expm1(options.initial_scale)))
    value = torch.stack([loc, rho])
    state = _State(value, torch.zeros_like(value), torch.zeros_like(value), value.clone())
    best = value.clone()
    best_cost = torch.full((members,), math.inf, dtype=torch.float64)
    best_epoch = torch.zeros(members, dtype=torch.long)
    noise = target.family.noise((members, options.validation_draws, loc.shape[1]), generator, loc.dtype)
    active = torch.arange(members)
    trace: list[TracePoint] = []

    for epoch in range(1, options.epochs + 1):
        risk, kl = _learn_epoch(
            target, folds.train[active], encoded, state, options, (epoch - 1) * steps, steps, generator
        )
        if not math.isfinite(risk + kl):
            raise Diverged("learning produced non-finite numbers; a smaller learning_rate usually helps")
        current = state.average if options.averaging else state.value
        validation_cost = None
        if options.patience is None:
            best[:, active] = current
            best_epoch[active] = epoch
        else:
            cost = _validation_cost(
                target, folds.validation[active], encoded, current, noise[active], options.policy, generator
            )
            validation_cost = cost.mean().item() * target.cost_scale
            better = cost < best_cost[active]
            winners = active[better]
            best[:, winners], best_cost[winners], best_epoch[winners] = current[:, better], cost[better], epoch
            going = epoch - best_epoch[active] < options.patience
            if not going.all():
                state, active = state.keep(going), active[going]
        mean_scale = softplus(current[1]).mean().item()
        trace.append(TracePoint(epoch, risk * target.cost_scale, kl, validation_cost, mean_scale))
        progress(epoch / options.epochs, _message(epoch, len(active), members, trace[-1]))
        if not len(active):
            break

    weights = torch.full((members,), 1 / members, dtype=loc.dtype)
    mixture = Mixture(target.family, weights, best[0], softplus(best[1]))
    still_learning = set(active.tolist())
    stopped = [member not in still_learning for member in range(members)]
    return VariationalFit(mixture, best_epoch.tolist(), stopped, _thinned(trace))


def _learn_epoch(
    target: GibbsTarget,
    train: Tensor,
    encoded: Tensor,
    state: _State,
    options: VariationalOptions,
    taken: int,
    steps: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """``steps`` Adam steps on all members at once; returns the mean risk (scaled) and KL met on the way."""
    members, rows = train.shape
    batch = min(options.batch_size, rows)
    decay = 0.5 ** (1 / steps)
    risk_sum = kl_sum = 0.0
    order, position = _shuffled(train, generator), 0
    for step in range(taken + 1, taken + steps + 1):
        if position + batch > rows:
            order, position = _shuffled(train, generator), 0
        chosen = order[:, position : position + batch]
        position += batch
        value = state.value.requires_grad_()
        scale = softplus(value[1])
        noise = target.family.noise((members, options.draws, value.shape[2]), generator, value.dtype)
        theta = (value[0][:, None] + scale[:, None] * noise).flatten(0, 1)
        rows_of = chosen.repeat_interleave(options.draws, dim=0) if options.draws > 1 else chosen
        risk = target.costs(theta, encoded[rows_of], target.sample.outcomes[rows_of]).mean() * members
        kl = target.family.kl(value[0], scale, target.prior_scale).sum()
        (gradient,) = torch.autograd.grad(risk + options.kl_weight * kl, value)
        state.value = value.detach()
        _adam(state, gradient, step, options.learning_rate)
        state.average.lerp_(state.value, 1 - decay)
        risk_sum += risk.item() / members
        kl_sum += kl.item() / members
    return risk_sum / steps, kl_sum / steps


def _adam(state: _State, gradient: Tensor, step: int, learning_rate: float) -> None:
    state.first_moment.lerp_(gradient, 0.1)
    state.second_moment.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    spread = (state.second_moment / (1 - 0.999**step)).sqrt_().add_(1e-8)
    state.value.addcdiv_(state.first_moment, spread, value=-learning_rate / (1 - 0.9**step))


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(dim=1))


def _validation_cost(
    target: GibbsTarget,
    validation: Tensor,
    encoded: Tensor,
    value: Tensor,
    noise: Tensor,
    policy: str,
    generator: torch.Generator,
) -> Tensor:
    """Mean scaled cost (R,) of each member's policy on its own validation rows, by fixed draws."""
    scenarios = member_scenarios(target, validation, encoded, value[0], softplus(value[1]), noise)
    decisions = POLICIES[policy](target.problem, scenarios, generator).decisions
    costs = target.problem.cost(decisions, target.sample.outcomes[validation.flatten()])
    return costs.view(validation.shape).mean(dim=1) / target.cost_scale


def member_scenarios(
    target: GibbsTarget, rows: Tensor, encoded: Tensor, loc: Tensor, scale: Tensor, noise: Tensor
) -> Scenarios:
    """Scenarios of each member for its own rows (R, n), as B = R·n contexts, by noise (R, K, d)."""
    members, draws, dim = noise.shape
    theta = torch.cat([loc[:, None] + scale[:, None] * noise, loc[:, None]], dim=1).view(-1, dim)
    width = max(target.predictor.widths)
    chunks = rows.split(max(1, _CHUNK_NUMBERS // (width * len(theta))), dim=1)
    with torch.no_grad():
        parts = [
            target.predictor.forward(theta, encoded[chunk].repeat_interleave(draws + 1, dim=0)) for chunk in chunks
        ]
    predictions = torch.cat(parts, dim=1).view(members, draws + 1, rows.shape[1], -1).transpose(1, 2).flatten(0, 1)
    weights = torch.full((draws,), 1 / draws, dtype=torch.float64)
    return Scenarios(predictions[:, :-1], weights, predictions[:, -1])


def _message(epoch: int, active: int, members: int, point: TracePoint) -> str:
    cost = "" if point.validation_cost is None else f", validation cost {point.validation_cost:.4g}"
    return f"epoch {epoch}, {active} of {members} members learning{cost}"


def _thinned(trace: list[TracePoint]) -> list[TracePoint]:
    """At most 200 points, first and last among them."""
    if len(trace) <= _TRACE_POINTS:
        return trace
    picks = torch.linspace(0, len(trace) - 1, _TRACE_POINTS).round().long().unique()
    return [replace(trace[i]) for i in picks.tolist()]
