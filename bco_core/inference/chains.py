"""Learning by Metropolis–Hastings from beginning to end: where chains start, how cold they run, and how they went.

A chain of Algorithm 3 can only accept θ with F_n(θ) ≥ F_0, so it needs a start that has it: each chain is fitted to
squared error on rows of its own, and its predictions are then shifted by the least constant that reaches F_0.

The temperature is the caller's, or found from short runs: raised until the traces of the decision loss settle (the
paper's recipe, section 5.2), or by the cost, and feasibility, on rows set aside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds, Sample, make_folds
from bco_core.evaluation import estimate, paired_difference
from bco_core.families import FAMILIES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.diagnostics import FEW_ROWS, Quality
from bco_core.inference.metropolis import MetropolisOptions, MetropolisState, begin, dealt, joined, run
from bco_core.inference.training import Progress, TrainingOptions, by_autograd, no_progress, train
from bco_core.inference.warm_start import SquaredError, ridge_start
from bco_core.policies import POLICIES
from bco_core.posterior import Arrays, ChainDraws, Posterior
from bco_core.predictors import NETWORKS, Predictor, build_predictor
from bco_core.problems.base import DecisionProblem, UncertainConstraints
from bco_core.scenarios import History, Scenarios
from bco_core.support_points import support_points

if TYPE_CHECKING:
    from bco_core.inference.learn import LearningOptions

# Makes the parts, each with its amount of work, has them computed and returns what became of them, in order.
Deal = Callable[[Callable[[], list[tuple[int, Arrays]]], Progress], list[Arrays]]
# What all chains know of how they were begun.
_FACTS = ("kind", "ladder", "shift", "start_feasibility")

AUTO_PREDICTORS = ("linear", "skip_mlp")
TEMPERATURES = ("settle", "validation")
THINNING = ("support_points", "regular")
DRAWS = 1000
HISTORY_ROWS = 1000
# λn of the scaled cost: each a factor four above the last.
LADDER = tuple(10.0 * 4.0**k for k in range(9))
_PILOT = 600
_PILOT_DRAWS = 25
_DRIFT = 0.05
_SHIFTS = torch.linspace(0, 4, 161, dtype=torch.float64)
_FIT = TrainingOptions(epochs=300, patience=15, batch_size=64, learning_rate=0.003)
_PROBES = 10
_TRACE_POINTS = 200
R_HAT = 1.1
FEW_DRAWS = 100


@dataclass(frozen=True)
class Starts:
    """θ (C, d) with the least shift, in standard deviations of the outcomes, that reaches F_0; what F_n it has."""

    theta: Tensor
    shift: Tensor
    feasibility: Tensor


def learn_by_chains(
    problem: DecisionProblem,
    sample: Sample,
    options: LearningOptions,
    progress: Progress = no_progress,
    deal: Deal | None = None,
) -> tuple[Posterior, dict[str, Any]]:
    """The posterior by C chains, and its diagnostics; ``deal`` may have the chains computed elsewhere."""
    kind = options.predictor
    candidates: list[dict[str, Any]] = []
    if kind == "auto":
        kind, candidates = choose_predictor(problem, sample, options)
    target = _target(problem, sample, options, kind)

    def parts() -> list[tuple[int, Arrays]]:
        """Every chain before its first step, and what all of them know."""
        plan = _plan(problem, options)
        generator = torch.Generator().manual_seed(options.seed)
        starts = find_starts(target, options.chains, plan.minimum_feasibility, generator)
        if plan.minimum_feasibility is not None:
            plan = replace(plan, minimum_feasibility=min(plan.minimum_feasibility, starts.feasibility.min().item()))
        progress(0.02, "chains have their starts; looking for a temperature")
        facts = {
            "kind": np.array([kind]),
            "ladder": _temperature(target, plan, starts, options, progress),
            "shift": starts.shift.numpy(),
            "start_feasibility": starts.feasibility.numpy(),
        }
        state = begin(target, _planned(plan, facts), starts.theta, options.seed)
        return [(plan.steps, one.to_arrays() | facts) for one in dealt(state)]

    def sampling(fraction: float, message: str) -> None:
        progress(0.1 + 0.88 * fraction, message)

    done = [part for _, part in parts()] if deal is None else deal(parts, sampling)
    facts = {name: done[0][name] for name in _FACTS}
    plan, state = _planned(_plan(problem, options), facts), joined([MetropolisState.from_arrays(one) for one in done])
    # Nothing is left to do here for chains that were dealt out.
    state = run(target, plan, state, sampling)
    progress(0.98, "judging the chains")
    posterior = _posterior(target, plan, state, options)
    return posterior, diagnose_chains(target, plan, state, posterior, facts, options) | {"candidates": candidates}


def continue_chain(
    problem: DecisionProblem,
    sample: Sample,
    options: LearningOptions,
    part: Arrays,
    progress: Progress = no_progress,
    checkpoint: Callable[[Arrays], None] | None = None,
) -> Arrays:
    """Bring a dealt chain to its end, from wherever it is; ``checkpoint`` now and then sees a part to go on from."""
    facts = {name: part[name] for name in _FACTS}
    target = _target(problem, sample, options, str(part["kind"][0]))

    def save(current: MetropolisState) -> None:
        if checkpoint is not None:
            checkpoint(current.to_arrays() | facts)

    plan = _planned(_plan(problem, options), facts)
    return run(target, plan, MetropolisState.from_arrays(part), progress, save).to_arrays() | facts


def _target(problem: DecisionProblem, sample: Sample, options: LearningOptions, kind: str) -> GibbsTarget:
    predictor = build_predictor(kind, sample, options.hidden if kind in NETWORKS else ())
    target = make_target(problem, predictor, sample, FAMILIES[options.family], options.prior_scale)
    return target if options.scale_costs else replace(target, cost_scale=1.0)


def _plan(problem: DecisionProblem, options: LearningOptions) -> MetropolisOptions:
    """What does not depend on the data; the temperature is yet to be found."""
    return MetropolisOptions(
        inverse_temperature=1.0,
        steps=options.steps,
        burn_in=options.burn_in,
        kept=max(1, math.ceil(max(DRAWS, options.particles) / options.chains)),
        minimum_feasibility=problem.confidence if isinstance(problem, UncertainConstraints) else None,
        initial_scale=0.1 * options.prior_scale,
    )


def choose_predictor(
    problem: DecisionProblem, sample: Sample, options: LearningOptions
) -> tuple[str, list[dict[str, Any]]]:
    """A linear model, in whose few dimensions chains move well, unless a network predicts clearly better.

    Both are fitted to squared error on five folds and compared on the rows each fold held out. Those rows also told the
    network when to stop, which flatters it, so its gain must be two standard errors and a fiftieth of the error.
    """
    errors = []
    for kind in AUTO_PREDICTORS:
        generator = torch.Generator().manual_seed(options.seed)
        predictor = build_predictor(kind, sample, options.hidden if kind in NETWORKS else ())
        target = make_target(problem, predictor, sample, FAMILIES[options.family])
        folds = make_folds(len(sample), FOLDS, generator)
        theta = fitted(target, folds, generator)
        with torch.no_grad():
            seen = predictor.forward(theta, predictor.encode(sample.contexts)[folds.validation])
        surrogate = SquaredError(predictor.outcomes.scale)
        errors.append(surrogate.cost(seen, sample.outcomes[folds.validation]).flatten())
    gain = paired_difference(errors[1], errors[0])
    chosen = int(gain.mean < -max(2 * gain.standard_error, 0.02 * errors[0].mean().item()))
    table = [
        {"predictor": kind, "squared_error": asdict(estimate(error)), "chosen": index == chosen}
        for index, (kind, error) in enumerate(zip(AUTO_PREDICTORS, errors, strict=True))
    ]
    return AUTO_PREDICTORS[chosen], table


def _planned(plan: MetropolisOptions, facts: Arrays) -> MetropolisOptions:
    """With the temperature chosen, and a feasibility that every chain's start has."""
    chosen = facts["ladder"][facts["ladder"][:, -1] == 1][0, 0]
    required = plan.minimum_feasibility
    if required is not None:
        required = min(required, facts["start_feasibility"].min().item())
    return replace(plan, inverse_temperature=float(chosen), minimum_feasibility=required)


def find_starts(target: GibbsTarget, chains: int, required: float | None, generator: torch.Generator) -> Starts:
    """A start for each chain, fitted to squared error on four fifths of the rows, dealt anew for each."""
    predictor, sample = target.predictor, target.sample
    folds = make_folds(len(sample), chains, generator)
    theta = fitted(target, folds, generator)
    if required is None:
        nothing = torch.zeros(chains, dtype=torch.float64)
        return Starts(theta, nothing, torch.ones_like(nothing))
    best_shift, best_share = torch.zeros(chains, dtype=torch.float64), torch.full((chains,), -1.0).double()
    predictions = predictor.predict(theta, sample.contexts)
    for sign in (-1.0, 1.0):
        for size in _SHIFTS.tolist():
            todo = best_share < required
            if not todo.any():
                break
            shifted = predictions[todo] + sign * size * predictor.outcomes.scale
            decisions = target.problem.decide(shifted)
            share = _kept(target.problem, decisions, sample.outcomes).double().mean(dim=1)
            better = todo.clone()
            better[todo] = share > best_share[todo]
            best_shift[better] = sign * size
            best_share[better] = share[better[todo]]
    outputs = predictor.widths[-1]
    theta = theta.clone()
    theta[:, -outputs:] += best_shift[:, None].to(theta)
    # Predictions clipped at zero, or rounding of θ, may say otherwise than the shifted ones: believe θ itself.
    decisions = target.problem.decide(predictor.predict(theta, sample.contexts))
    share = _kept(target.problem, decisions, sample.outcomes).double().mean(dim=1)
    return Starts(theta, best_shift, share)


def _kept(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> Tensor:
    """Whether the outcome lets each decision keep its constraints, as the chains see it."""
    if isinstance(problem, UncertainConstraints):
        return problem.slack(decisions, outcomes) >= 0
    return problem.feasible(decisions, outcomes)


def fitted(target: GibbsTarget, folds: Folds, generator: torch.Generator) -> Tensor:
    predictor, sample = target.predictor, target.sample
    encoded = predictor.encode(sample.contexts, target.prior_scale.dtype)
    theta = predictor.initial(len(folds.train), generator).to(encoded)
    standardized = predictor.outcomes.apply(sample.outcomes)
    theta = ridge_start(predictor, encoded, standardized, folds.train, theta)
    if predictor.kind not in NETWORKS:
        return theta
    surrogate = SquaredError(predictor.outcomes.scale)

    def error(values: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        return surrogate.cost(predictor.forward(values[0], encoded[rows]), sample.outcomes[rows]).mean(dim=1)

    def judge(values: Tensor, members: Tensor) -> Tensor:
        with torch.no_grad():
            return error(values, folds.validation[members], members)

    return train(theta[None], folds.train, by_autograd(error), judge, _FIT, generator).value[0]


def _temperature(
    target: GibbsTarget, plan: MetropolisOptions, starts: Starts, options: LearningOptions, progress: Progress
) -> np.ndarray[Any, Any]:
    """What was tried: rows of (λn, figure before, figure after, chosen).

    For ``settle`` the figures are the mean loss in the second and in the last quarter of a short run; for
    ``validation`` the cost and the feasibility on rows set aside.
    """
    given = options.inverse_temperature if options.kl_weight is None else 1 / options.kl_weight
    if given is not None:
        return np.array([[given, math.nan, math.nan, 1.0]])
    pilot = replace(plan, steps=_PILOT, burn_in=_PILOT - 1, kept=1)
    if options.temperature == "validation":
        return _by_validation(target, pilot, options, progress)
    tried: list[list[float]] = []
    theta = starts.theta
    for number, level in enumerate(LADDER):
        progress(0.02 + 0.08 * number / len(LADDER), f"trying an inverse temperature of {level:g}")
        colder = replace(pilot, inverse_temperature=level)
        done = run(target, colder, begin(target, colder, theta, options.seed))
        quarters = done.risks.chunk(4)
        before, after = quarters[1].mean().item(), quarters[3].mean().item()
        settled = abs(after - before) <= _DRIFT * before
        tried.append([level, before * target.cost_scale, after * target.cost_scale, float(settled)])
        if settled:
            break
    tried[-1][-1] = 1.0
    return np.array(tried)


def _by_validation(
    target: GibbsTarget, pilot: MetropolisOptions, options: LearningOptions, progress: Progress
) -> np.ndarray[Any, Any]:
    """Short runs on four fifths of the rows; the last fifth says how their decisions fare."""
    generator = torch.Generator().manual_seed(options.seed)
    folds = make_folds(len(target.sample), 1, generator)
    held_out = target.sample.rows(folds.validation[0])
    training = replace(target, sample=target.sample.rows(folds.train[0]))
    required = pilot.minimum_feasibility
    starts = find_starts(training, options.chains, required, generator)
    if required is not None:
        required = min(required, starts.feasibility.min().item())
    tried = []
    for number, level in enumerate(LADDER[::2]):
        progress(0.02 + 0.08 * number / len(LADDER), f"trying an inverse temperature of {level:g}")
        colder = replace(
            pilot,
            inverse_temperature=level,
            minimum_feasibility=required,
            burn_in=_PILOT // 2,
            kept=_PILOT_DRAWS,
        )
        done = run(training, colder, begin(training, colder, starts.theta, options.seed))
        scenarios = _scenarios(target.predictor, done.kept.flatten(0, 1), held_out.contexts)
        decisions = POLICIES["bcp"](target.problem, scenarios, generator).decisions
        cost = target.problem.cost(decisions, held_out.outcomes).mean().item()
        kept = target.problem.feasible(decisions, held_out.outcomes).double().mean().item()
        tried.append([level, cost, kept, 0.0])
    # The cheapest of those that keep their constraints often enough; else the one that keeps them most often.
    goal = target.problem.confidence if isinstance(target.problem, UncertainConstraints) else 0.0
    enough = min(goal, max(row[2] for row in tried))
    min((row for row in tried if row[2] >= enough), key=lambda row: row[1])[-1] = 1.0
    return np.array(tried)


def _scenarios(predictor: Predictor, theta: Tensor, contexts: Tensor) -> Scenarios:
    outcomes = predictor.predict(theta, contexts).transpose(0, 1)
    weights = torch.full((len(theta),), 1 / len(theta), dtype=torch.float64)
    return Scenarios(outcomes, weights, outcomes.mean(dim=1))


def _posterior(
    target: GibbsTarget, plan: MetropolisOptions, state: MetropolisState, options: LearningOptions
) -> Posterior:
    draws = state.kept.flatten(0, 1)
    # The density of a kept draw: its loss is in the trace, its prior is cheap.
    kept_at = torch.tensor(plan.keeping) - 1
    loss = state.risks[kept_at].flatten()
    prior = target.family.log_prob(draws.double(), torch.zeros(()).double(), target.prior_scale.double()).sum(dim=1)
    best = int((prior - plan.inverse_temperature * loss).argmax())
    chosen = thin(target.predictor, state.kept, target.sample.contexts, options.particles, options.thinning)
    history = _history(target, draws[chosen], options.seed)
    return Posterior(target.predictor, ChainDraws(draws, best), draws[chosen], options.seed, history)


def thin(predictor: Predictor, kept: Tensor, contexts: Tensor, count: int, how: str) -> Tensor:
    """Which of the draws (k, C, d), numbered along both axes, to decide from: at regular intervals, or support points.

    Support points are sought in the space of predictions at up to ten contexts.
    """
    steps, chains, _ = kept.shape
    draws = kept.flatten(0, 1)
    count = min(count, len(draws))
    if how == "regular":
        # Every chain gives the same share, at regular intervals, in an order that mixes chains.
        places = ((torch.arange(count) // chains + 0.5) * steps * chains / count).long().clamp_max(steps - 1)
        return places * chains + torch.arange(count) % chains
    predictions = _probed(predictor, draws, contexts)
    return support_points(predictions, count)


def _probed(predictor: Predictor, draws: Tensor, contexts: Tensor) -> Tensor:
    """Standardised predictions (N, probes·d_y) of draws (N, d) at up to ten contexts of the history."""
    probes = contexts[torch.linspace(0, len(contexts) - 1, min(_PROBES, len(contexts))).long()]
    return (predictor.predict(draws, probes) / predictor.outcomes.scale).flatten(1)


def _history(target: GibbsTarget, theta: Tensor, seed: int) -> History:
    """Mean predictions and outcomes of up to 1,000 rows. Chains learn from all rows, so these were learned from."""
    rows = torch.randperm(len(target.sample), generator=torch.Generator().manual_seed(seed))[:HISTORY_ROWS]
    predictions = target.predictor.predict(theta, target.sample.contexts[rows]).mean(dim=0)
    return History.of(predictions, target.sample.outcomes[rows], target.predictor.outcomes.scale)


def diagnose_chains(
    target: GibbsTarget,
    plan: MetropolisOptions,
    state: MetropolisState,
    posterior: Posterior,
    facts: Arrays,
    options: LearningOptions,
) -> dict[str, Any]:
    """How well the chains mixed, by predictions and loss, and what their decisions do on the history they learned from.

    R-hat is rank-normalised and split, ESS bulk and tail (Vehtari et al., 2021), by arviz-stats.
    """
    sampled = state.risks[plan.burn_in :]
    loss = _convergence(sampled.T.numpy()[:, :, None])
    steps, chains, _ = state.kept.shape
    probed = _probed(target.predictor, state.kept.flatten(0, 1), target.sample.contexts).view(steps, chains, -1)
    predictions = _convergence(probed.transpose(0, 1).numpy())
    between = probed.mean(dim=0).std(dim=0) if chains > 1 else torch.zeros(probed.shape[2])
    within = probed.std(dim=0).mean(dim=0) if steps > 1 else torch.ones(probed.shape[2])
    ratio = (between / within.clamp_min(1e-12)).median().item()
    accepted = state.accepted[plan.burn_in :].double().mean(dim=0)

    scenarios = posterior.scenarios(target.sample.contexts, posterior.particles)
    prescription = POLICIES["bcp"](target.problem, scenarios, torch.Generator())
    feasible = target.problem.feasible(prescription.decisions, target.sample.outcomes).double()
    costs = target.problem.cost(prescription.decisions, target.sample.outcomes)
    quality = judge_chains(len(target.sample), loss, predictions, accepted, ratio, plan, target.problem)
    picks = torch.linspace(0, len(state.risks) - 1, min(_TRACE_POINTS, len(state.risks))).long()
    names = ("inverse_temperature", "cost", "feasibility", "chosen")
    if options.temperature == "settle":
        names = ("inverse_temperature", "loss_before", "loss_after", "chosen")
    return {
        "quality": quality.verdict,
        "reason": quality.reason,
        "policy": options.policy or "bcp",
        "method": "mh",
        "kl_weight": 1 / plan.inverse_temperature,
        "inverse_temperature": plan.inverse_temperature,
        "temperatures": [
            {name: None if math.isnan(value) else value for name, value in zip(names, row, strict=True)}
            for row in facts["ladder"].tolist()
        ],
        "cost_scale": target.cost_scale,
        "chains": {
            "count": chains,
            "steps": plan.steps,
            "burn_in": plan.burn_in,
            "draws": steps * chains,
            "acceptance": accepted.tolist(),
            "loss": loss,
            "predictions": predictions,
            "between_over_within": ratio,
            "mean_loss": (sampled.mean(dim=0) * target.cost_scale).tolist(),
            "trace": [
                {"step": int(step) + 1, "loss": (state.risks[step] * target.cost_scale).tolist()} for step in picks
            ],
            "rejected_unseen": (state.unseen.double() / plan.steps).tolist(),
            "rejected_early": (state.early.double() / plan.steps).tolist(),
        },
        "prior": {"family": target.family.name, "scale": target.prior_scale.item()},
        "start": {"shift": facts["shift"].tolist(), "feasibility": facts["start_feasibility"].tolist()},
        "history": {
            "rows": len(target.sample),
            "cost": asdict(estimate(costs)),
            "feasibility": feasible.mean().item(),
            "chain_feasibility": (1 - state.failures.double() / len(target.sample)).tolist(),
            "required_feasibility": plan.minimum_feasibility,
            "not_optimal": sum(status != "optimal" for status in prescription.status) / len(prescription.status),
        },
    }


def _convergence(values: np.ndarray[Any, Any]) -> dict[str, float | None]:
    """The worst R-hat and the least ESS of quantities (chains, draws, quantities); None where they cannot be known."""
    # Imported late: it takes seconds, and only chains need it.
    from arviz_stats.base import array_stats  # type: ignore[attr-defined]

    stats: Any = array_stats
    draws = values.shape[1]
    moving = values.std(axis=(0, 1)) > 0
    if draws < 8 or not moving.any():
        return {"r_hat": None, "ess_bulk": None, "ess_tail": None}
    axes = {"chain_axis": 0, "draw_axis": 1}
    values = values[:, :, moving]
    bulk = stats.ess(values, method="bulk", **axes)
    tail = stats.ess(values, method="tail", prob=(0.05, 0.95), **axes)
    worst = stats.rhat(values, method="rank", **axes)
    found = {"r_hat": np.max(worst), "ess_bulk": np.min(bulk), "ess_tail": np.min(tail)}
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def judge_chains(
    rows: int,
    loss: dict[str, float | None],
    predictions: dict[str, float | None],
    accepted: Tensor,
    ratio: float,
    plan: MetropolisOptions,
    problem: DecisionProblem,
) -> Quality:
    """A verdict in a planner's words."""
    required = problem.confidence if isinstance(problem, UncertainConstraints) else None
    if accepted.min() == 0:
        return Quality("bad", "a chain did not move after burn-in: allow more steps, or a lower inverse temperature")
    if required is not None and plan.minimum_feasibility is not None and plan.minimum_feasibility < required:
        return Quality(
            "bad",
            f"no model was found whose decisions keep their constraints in {required:.0%} of the history; "
            f"the chains only ask for {plan.minimum_feasibility:.1%}",
        )
    worst = max((figures["r_hat"] or math.inf) for figures in (loss, predictions))
    if worst > R_HAT:
        return Quality(
            "warn",
            f"chains disagree: R-hat is {worst:.2f}, and predictions differ {ratio:.1f} times as much between chains "
            "as within one, so each chain has seen only its own part of the posterior; more steps or chains help",
        )
    few = min((figures["ess_bulk"] or 0.0) for figures in (loss, predictions))
    if few < FEW_DRAWS:
        return Quality("warn", f"chains move slowly: all draws are worth {few:.0f} independent ones; more steps help")
    if rows < FEW_ROWS:
        return Quality("warn", f"only {rows} rows of history: decisions may change much with a little more data")
    return Quality("ok", "the chains agree, and their draws are worth enough independent ones")
