"""Mean-field variational inference for differentiable problems (Algorithm 1), R members as one batch.

Each member r minimises, over q_r = Π_j q(θ_j; μ_rj, σ_rj),

    E_q[R_n(θ)] + κ KL(q ‖ ρ_0),    κ = 1/(λn),                                     (equation (15) of the paper)

which is KL(q ‖ ρ_n), equation (14), up to a constant and a factor. It is minimised on minibatches of the member's own
training rows, with θ = μ + σ ∘ ξ drawn afresh at every step, σ = softplus(ρ) and the KL in closed form
(:mod:`bco_core.distributions`). After every epoch members are judged by the cost of their policy's decisions on
held-out rows, and each returns its best epoch.

A member that is stopped early by the rows that it holds out looks better on them than it is. So members that learn
together are stopped by each other: the curve that stops member r is the mean over the others' held-out rows, except the
rows that r itself holds out, on which r may then be judged. One member alone is stopped by its own held-out rows,
which, without averaging, is the paper's algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bco_core.data import Folds
from bco_core.distributions import Mixture, equal_mixture
from bco_core.gibbs import GibbsTarget
from bco_core.inference.training import Epoch, TrainingOptions, train
from bco_core.policies import Terms, decide
from bco_core.progress import Progress, no_progress
from bco_core.scenarios import Scenarios

# A step is one forward pass and one backward pass of about twice the time.
PASSES_A_STEP = 3
_TRACE_POINTS = 200
_CHUNK_NUMBERS = 2_000_000


@dataclass(frozen=True)
class VariationalOptions(TrainingOptions):
    """Options of Algorithm 1; the temperature and the initial scale may differ by member, (R,).

    Every ``peers`` consecutive members stop each other; with 1 each is stopped by its own held-out rows.
    """

    kl_weight: float | Tensor = 1e-5
    policy: str = "bcp"
    initial_scale: float | Tensor = 0.05
    draws: int = 1
    validation_draws: int = 16
    peers: int = 1


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


def fit_variational(
    target: GibbsTarget,
    folds: Folds,
    options: VariationalOptions,
    generator: torch.Generator,
    progress: Progress = no_progress,
    start: tuple[Tensor, Tensor] | None = None,
) -> VariationalFit:
    """Fit one mean-field member for each row of ``folds`` and return their equally weighted mixture.

    ``start`` holds initial locations and scales (R, d); by default random locations and the initial scale.
    """
    members = len(folds.train)
    family, outcomes, scale_of_cost = target.family, target.sample.outcomes, target.cost_scale
    encoded = target.encoded()
    if start is None:
        loc = target.predictor.initial(members, generator).to(encoded)
        scales = torch.as_tensor(options.initial_scale, dtype=loc.dtype).expand(members)[:, None].expand_as(loc)
    else:
        loc, scales = start
    rho = scales + torch.log(-torch.expm1(-scales))
    kl_weight = torch.as_tensor(options.kl_weight, dtype=loc.dtype).expand(members)
    noise = family.noise((members, options.validation_draws, loc.shape[1]), generator, loc.dtype)
    others = _rows_of_others(folds.validation[: options.peers], len(target.sample))
    trace: list[TracePoint] = []

    def loss(value: Tensor, rows: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        loc, rho = value
        scale = softplus(rho)
        xi = family.noise((len(active), options.draws, value.shape[2]), generator, value.dtype)
        theta = torch.addcmul(loc[:, None], scale[:, None], xi).flatten(0, 1).requires_grad_()
        each = rows.repeat_interleave(options.draws, dim=0) if options.draws > 1 else rows
        losses = target.losses(target.predictor.forward(theta, encoded[each]), each)
        risk = losses.view(len(active), -1).mean(dim=1)
        (by_theta,) = torch.autograd.grad(risk.sum(), theta)
        gradient = family.gradient(by_theta.view_as(xi), xi, loc, scale, target.prior_scale, kl_weight[active])
        return risk.detach(), gradient

    def judge(value: Tensor, active: Tensor) -> Tensor:
        held_out = folds.validation[active]
        scenarios = member_scenarios(target, held_out, encoded, value[0], softplus(value[1]), noise[active])
        decisions = decide(target.problem, scenarios, options.policy, Terms(generator)).decisions
        costs = target.problem.cost(decisions, outcomes[held_out.flatten()]).view(held_out.shape) / scale_of_cost
        if options.peers == 1:
            return costs.mean(dim=1)
        return torch.einsum("rsv,gsv->gr", others, costs.view(-1, options.peers, held_out.shape[1])).flatten()

    def watch(epoch: Epoch) -> Mapping[str, float | None]:
        scale = softplus(epoch.value[1])
        kl = family.kl(epoch.value[0], scale, target.prior_scale).sum(dim=1).mean().item()
        cost = None if epoch.held_out_cost is None else epoch.held_out_cost * scale_of_cost
        point = TracePoint(epoch.number, epoch.loss * scale_of_cost, kl, cost, scale.mean().item())
        trace.append(point)
        return {"epoch": point.epoch, "risk": point.risk, "kl": point.kl, "validation_cost": point.validation_cost}

    initial = torch.stack([loc, rho])
    trained = train(initial, folds.train, loss, judge, options, generator, progress, watch, options.peers)
    mixture = equal_mixture(family, trained.value[0], softplus(trained.value[1]))
    return VariationalFit(mixture, trained.best_epochs, trained.stopped_early, _thin_trace(trace))


def _rows_of_others(validation: Tensor, rows: int) -> Tensor:
    """Return the weight of member s's cost on its held-out row v for member r: (M, M, V), zero where r holds it out."""
    members = len(validation)
    held_out = torch.zeros(members, rows, dtype=torch.bool).scatter_(1, validation, True)
    counts = (~held_out[:, validation]).double()
    return counts / counts.sum(dim=(1, 2), keepdim=True).clamp_min(1)


def member_scenarios(
    target: GibbsTarget, rows: Tensor, encoded: Tensor, loc: Tensor, scale: Tensor, noise: Tensor
) -> Scenarios:
    """Return scenarios of each member for its own rows (R, n), as B = R·n contexts, from noise (R, K, d)."""
    members, draws, dim = noise.shape
    theta = torch.cat([loc[:, None] + scale[:, None] * noise, loc[:, None]], dim=1).view(-1, dim)
    width = max(target.predictor.widths)
    chunks = rows.split(max(1, _CHUNK_NUMBERS // (width * len(theta))), dim=1)
    with torch.no_grad():
        parts = [
            target.predictor.forward(theta, encoded[chunk].repeat_interleave(draws + 1, dim=0)) for chunk in chunks
        ]
    predictions = torch.cat(parts, dim=1).view(members, draws + 1, rows.shape[1], -1).transpose(1, 2).flatten(0, 1)
    return Scenarios.equal(predictions[:, :-1], predictions[:, -1])


def _thin_trace(trace: list[TracePoint]) -> list[TracePoint]:
    """Return at most 200 points, including the first and the last."""
    if len(trace) <= _TRACE_POINTS:
        return trace
    picks = torch.linspace(0, len(trace) - 1, _TRACE_POINTS).round().long().unique()
    return [trace[i] for i in picks.tolist()]
