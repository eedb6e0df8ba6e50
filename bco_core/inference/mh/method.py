"""The method ``mh``: learning by Metropolis–Hastings, with one part a chain.

``split`` chooses the predictor, fits the starts and finds the temperature; these facts travel with every chain, so that
any process can continue it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from bco_core.certificates import Certificate
from bco_core.data import Arrays, fold_numbers
from bco_core.distributions import FAMILIES, ChainDraws
from bco_core.estimates import Estimate
from bco_core.features.base import Features
from bco_core.features.registry import FEATURES
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.diagnostics import held_out_fields
from bco_core.inference.held_out import (
    HISTORY_ROWS,
    PolicyResults,
    StoredHistory,
    autocorrelation,
    judge_policies,
    policy_of_paper,
    summarize,
)
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.mh.diagnostics import (
    ChainDiagnostics,
    LeaveOneOut,
    PriorReport,
    StartReport,
    judge_chains,
    leave_one_out,
    report_chains,
    report_learned_rows,
    temperature_table,
)
from bco_core.inference.mh.metropolis import (
    Chains,
    MetropolisOptions,
    init_chains,
    join_chains,
    run_chains,
    split_chains,
)
from bco_core.inference.mh.starts import choose_predictor, find_starts
from bco_core.inference.mh.temperature import LADDER, PILOT, find_temperature
from bco_core.inference.mh.thinning import thin
from bco_core.inference.options import MhOptions
from bco_core.posterior import Posterior
from bco_core.predictive_choice import choose_carrier
from bco_core.predictors.registry import AUTO, build_predictor
from bco_core.problems.base import UncertainConstraints
from bco_core.progress import Progress
from bco_core.scenarios import Scenarios
from bco_core.select import Table

DRAWS = 1000
# Standard errors of a share that the history must exceed the required confidence by.
_MARGIN = 2.0
# Facts that travel with every chain: the kind of predictor and the errors (2, 2) it was chosen by, the temperatures
# tried, and for every start its shift, its feasibility and whether it satisfies constraints on average.
_FACTS = ("kind", "errors", "ladder", "shift", "start_feasibility", "keeps_mean")


def _split(task: Task, progress: Progress) -> list[Part]:
    """Return every chain before its first step."""
    options: MhOptions = task.options
    kind = options.predictor.kind
    errors: list[Estimate] = []
    if kind == "auto":
        kind, errors = choose_predictor(task.problem, task.sample, options, _features(task))
    target, plan = _target(task, kind), _plan(task)
    starts = find_starts(target, options.chains, plan.minimum_feasibility, torch.Generator().manual_seed(options.seed))
    progress(0.2, "chains have their starts; looking for a temperature")
    facts = {
        "kind": np.array([kind]),
        "errors": np.array([[error.mean, error.standard_error] for error in errors]).reshape(-1, 2),
        "shift": starts.shift.numpy(),
        "start_feasibility": starts.feasibility.numpy(),
        "keeps_mean": starts.keeps_mean.numpy(),
    }
    reachable = _reachable(plan, facts)
    facts["ladder"] = find_temperature(target, reachable, starts, options, progress)
    chains = init_chains(target, _with_temperature(plan, facts), starts.theta, options.seed)
    return [Part(plan.steps, one.to_arrays() | facts) for one in split_chains(chains)]


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    """Run a chain to its end, from wherever it is."""
    facts = {name: data[name] for name in _FACTS}
    target, plan = _target(task, str(data["kind"][0])), _with_temperature(_plan(task), facts)

    def save(current: Chains) -> None:
        if checkpoint is not None:
            checkpoint(current.to_arrays() | facts)

    return run_chains(target, plan, Chains.from_arrays(data), progress, save).to_arrays() | facts


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    options: MhOptions = task.options
    facts = {name: results[0][name] for name in _FACTS}
    target, plan = _target(task, str(facts["kind"][0])), _with_temperature(_plan(task), facts)
    chains = join_chains([Chains.from_arrays(one) for one in results])
    progress(0.0, "judging the chains")
    draws, best, chosen = _draws(target, plan, chains, options)
    # Few rows are enough for judgement and for predictive scenarios.
    rows = torch.randperm(len(target.sample), generator=torch.Generator().manual_seed(options.seed))[:HISTORY_ROWS]
    without = leave_one_out(target, rows, chosen, plan.inverse_temperature)
    stored, policy_results = _judge(target, rows, without, options)
    held_out = summarize(target, stored, policy_results)
    posterior = Posterior(target.predictor, ChainDraws(draws, best), chosen, options.seed, stored.history)
    chain_report = report_chains(chains, plan, target)
    share = (
        target.problem.feasible(policy_results.policy_decisions, target.sample.outcomes[stored.rows])
        .double()
        .mean()
        .item()
    )
    quality = judge_chains(len(task.sample), chain_report, plan, task.problem, held_out, share)
    diagnostics = ChainDiagnostics(
        quality=quality.verdict,
        reason=quality.reason,
        policy=policy_results.policy,
        kl_weight=1 / plan.inverse_temperature,
        inverse_temperature=plan.inverse_temperature,
        cost_scale=target.cost_scale,
        certificate=Certificate.absent("a certificate needs variational inference"),
        candidates=_candidates(facts),
        temperatures=temperature_table(facts["ladder"], options.temperature),
        chains=chain_report,
        prior=PriorReport(target.family.name, target.prior_scale.item()),
        start=StartReport(facts["shift"].tolist(), facts["start_feasibility"].tolist()),
        history=report_learned_rows(target, plan, chains, posterior),
        held_out_feasibility=share,
        effective_draws=without.effective,
        **held_out_fields(held_out),
    )
    return Learned(posterior, diagnostics)


def _target(task: Task, kind: str) -> GibbsTarget:
    options: MhOptions = task.options
    predictor = build_predictor(kind, task.sample, options.predictor.layers(kind), _features(task))
    target = make_target(task.problem, predictor, task.sample, FAMILIES[options.family], options.prior_scale)
    return target if options.scale_costs else replace(target, cost_scale=1.0)


def _features(task: Task) -> Features:
    kind = FEATURES[task.options.predictor.features]
    return kind.fit(task.sample, fold_numbers(len(task.sample), task.options.seed))


def _plan(task: Task) -> MetropolisOptions:
    """Return the options that do not depend on the data; the temperature is a placeholder."""
    options, problem, rows = task.options, task.problem, len(task.sample)
    required = None
    if isinstance(problem, UncertainConstraints):
        # Learned rows satisfy constraints more often than new ones: require two standard errors more of them.
        asked = problem.confidence
        required = min(1.0, asked + _MARGIN * math.sqrt(asked * (1 - asked) / rows))
    return MetropolisOptions(
        inverse_temperature=1.0,
        steps=options.steps,
        burn_in=options.burn_in,
        stored_draws=max(1, math.ceil(max(DRAWS, options.particles) / options.chains)),
        minimum_feasibility=required,
        initial_scale=0.1 * options.prior_scale,
    )


def _with_temperature(plan: MetropolisOptions, facts: Arrays) -> MetropolisOptions:
    """Return the plan with the chosen temperature, and a feasibility that every chain's start reaches."""
    chosen = facts["ladder"][facts["ladder"][:, -1] == 1][0, 0]
    return replace(_reachable(plan, facts), inverse_temperature=float(chosen))


def _reachable(plan: MetropolisOptions, facts: Arrays) -> MetropolisOptions:
    """Return the plan with a feasibility that every chain's start reaches."""
    if plan.minimum_feasibility is None:
        return plan
    required = min(plan.minimum_feasibility, float(facts["start_feasibility"].min()))
    return replace(plan, minimum_feasibility=required, keep_mean=bool(facts["keeps_mean"].all()))


def _draws(
    target: GibbsTarget, plan: MetropolisOptions, chains: Chains, options: MhOptions
) -> tuple[Tensor, int, Tensor]:
    """Return all kept draws (N, d), the number of the densest, and the particles (K, d)."""
    info = chains.info
    draws = info.draws.flatten(0, 1)
    # The density of a kept draw: its loss is in the trace, its prior is cheap.
    loss = info.risks[torch.tensor(plan.stored_steps) - 1].flatten()
    prior = target.family.log_prob(draws.double(), torch.zeros(()).double(), target.prior_scale.double()).sum(dim=1)
    best = int((prior - plan.inverse_temperature * loss).argmax())
    chosen = thin(target.predictor, info.draws, target.sample.contexts, options.particles, options.thinning)
    return draws, best, draws[chosen]


def _judge(
    target: GibbsTarget, rows: Tensor, without: LeaveOneOut, options: MhOptions
) -> tuple[StoredHistory, PolicyResults]:
    """Return the history, each row predicted without itself, and the policies' results on its rows."""
    spread, outcomes = target.predictor.outcomes.scale, target.sample.outcomes[rows]
    ones = torch.ones_like(spread)
    choice = choose_carrier(without.predictions, outcomes, spread, target.features[rows], ones, target.problem)
    order = autocorrelation(outcomes - without.predictions, rows)
    stored = StoredHistory(choice.history, rows[choice.order], choice.table, order)
    seen = without.scenarios
    ordered = Scenarios(seen.outcomes[choice.order], seen.weights, seen.mode[choice.order])
    everything, one_block = torch.arange(len(rows)), torch.zeros(len(rows), dtype=torch.long)
    generator = torch.Generator().manual_seed(options.seed)
    policy_results = judge_policies(target, [(everything, ordered)], stored, one_block, generator)
    return stored, policy_results.under(options.policy or policy_of_paper(target.problem))


def _candidates(facts: Arrays) -> Table:
    errors = [Estimate(*row) for row in facts["errors"].tolist()]
    return [
        {"predictor": kind, "squared_error": asdict(error), "chosen": kind == str(facts["kind"][0])}
        for kind, error in zip(AUTO, errors, strict=bool(errors))
    ]


def _vectors(options: MhOptions, rows: int) -> int:
    """Count every kept draw of every chain."""
    wanted = math.ceil(max(DRAWS, options.particles) / options.chains)
    return options.chains * min(wanted, options.steps - options.burn_in)


def _passes(options: MhOptions, rows: int) -> float:
    pilots = 0 if options.has_temperature else PILOT * len(LADDER)
    return options.chains * (options.steps + pilots)


MH = Method("mh", "mh", "Metropolis–Hastings, as requested", False, _split, _work, _join, _vectors, _passes)
