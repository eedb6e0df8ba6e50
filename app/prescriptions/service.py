"""From contexts to decisions, with everything a planner needs to trust them."""

from __future__ import annotations

import math
from functools import partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from app import metrics
from app.db.tables import PosteriorRow
from app.errors import Conflict, InvalidRequest, Unavailable
from app.posteriors import service as posteriors
from app.prescriptions.cache import Ready, draws, ready
from app.prescriptions.schemas import PrescribeRequest
from app.settings import get_settings
from bco_core.policies import HEDGING, POLICIES, Policy, decide_for
from bco_core.problems.base import EXPECTATION, Risk, Status, UncertainConstraints
from bco_core.scenarios import Scenarios, cost_distribution, expected_cost, predictive_scenarios

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_CHUNK_NUMBERS = 4_000_000
_RANKS = {"bad": 0, "warn": 1, "ok": 2}


def prescribe(workspace: str, posterior_id: str, request: PrescribeRequest) -> dict[str, Any]:
    """The answer to a prescribe request, in the shape of ``PrescribeAnswer``."""
    row = posteriors.get(workspace, posterior_id)
    _check(row, request)
    loaded = ready(row)
    contexts = torch.from_numpy(loaded.encoding.encode_requests(request.contexts))
    theta = draws(row, loaded.posterior, request.scenarios, request.seed)
    policy = request.policy or ("bcp" if request.risk else row.policy)
    seed = loaded.posterior.seed if request.seed is None else request.seed
    generator = torch.Generator().manual_seed(seed)

    # In chunks, so that memory is bounded however many contexts, scenarios and outcomes meet.
    size = max(1, _CHUNK_NUMBERS // (request.scenarios * loaded.problem.outcome_dim))
    prescriptions = []
    deadline = monotonic() + get_settings().prescribe_seconds
    for chunk in contexts.split(size):
        left = deadline - monotonic()
        if left < 0:
            seconds = get_settings().prescribe_seconds
            raise Unavailable(f"longer than {seconds} s (BCO_PRESCRIBE_SECONDS); send fewer contexts or scenarios")
        prescriptions += _prescriptions(loaded, chunk, theta, policy, request, generator, left)

    stored = request.seed is None and request.scenarios <= row.particles
    quality = row.diagnostics["quality"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {row.diagnostics['reason']}"]
    return {
        "posterior_id": row.id,
        "digest": row.digest,
        "policy": policy,
        "scenarios": {
            "count": request.scenarios,
            "source": "particles" if stored else "fresh draws",
            "seed": seed,
            "costs_over": request.costs_over,
        },
        "quality": quality,
        "warnings": warnings + _far_from_history(row, loaded, contexts),
        "prescriptions": prescriptions,
    }


def _prescriptions(
    loaded: Ready,
    contexts: Tensor,
    theta: Tensor,
    policy: str,
    request: PrescribeRequest,
    generator: torch.Generator,
    seconds: float,
) -> list[dict[str, Any]]:
    """Decide for encoded contexts (B, width) by parameter vectors (K, d)."""
    scenarios = loaded.posterior.scenarios(contexts, theta)
    if not torch.isfinite(scenarios.outcomes).all():
        raise InvalidRequest.at(("contexts",), "a context lies so far from the history that no prediction is possible")
    atoms = _cost_scenarios(loaded, scenarios, request)
    hedged = atoms if request.risk else scenarios
    prescription = _decide(policy, request, seconds)(loaded.problem, hedged, generator)
    metrics.count_prescriptions(prescription.status, prescription.solvers)
    decisions = prescription.decisions.clone()
    # A problem may know its best effort; who asked for none is not shown it.
    decisions[torch.tensor([status == Status.INFEASIBLE for status in prescription.status])] = torch.nan
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    costs = cost_distribution(loaded.problem, decisions, atoms, levels, 0.95)
    kept = torch.full((len(contexts),), torch.nan, dtype=torch.float64)
    if isinstance(loaded.problem, UncertainConstraints):
        kept = loaded.problem.feasible(decisions[:, None], atoms.outcomes).double() @ atoms.weights
    map_decisions = decide_for(loaded.problem, scenarios.mode)
    map_costs = expected_cost(loaded.problem, map_decisions, atoms)

    names, labels = loaded.decisions, [str(level) for level in QUANTILES]
    nothing = [""] * len(contexts)
    return [
        {
            "decision": dict(zip(names, decision, strict=True)),
            "expected_cost": mean,
            "cost_quantiles": dict(zip(labels, quantiles, strict=True)),
            "cvar_95": cvar,
            "status": status,
            "reason": reason,
            "solver": solver,
            "feasibility": share,
            "map": {"decision": dict(zip(names, map_decision, strict=True)), "expected_cost": map_cost},
            "hedging_gain": gain,
        }
        for decision, mean, quantiles, cvar, status, reason, solver, share, map_decision, map_cost, gain in zip(
            _listed(decisions),
            _listed(costs.mean),
            _listed(costs.quantiles),
            _listed(costs.cvar),
            prescription.status,
            prescription.reasons or nothing,
            prescription.solvers or nothing,
            _listed(kept),
            _listed(map_decisions),
            _listed(map_costs),
            _listed(map_costs - costs.mean),
            strict=True,
        )
    ]


def _decide(policy: str, request: PrescribeRequest, seconds: float) -> Policy:
    """The policy with what the request says about it, to be done within ``seconds``."""
    if policy not in HEDGING:
        return POLICIES[policy]
    risk = Risk(**request.risk.model_dump()) if request.risk else EXPECTATION
    decide = partial(POLICIES[policy], risk=risk, time_limit=min(seconds, request.time_limit or seconds))
    return partial(decide, alpha=request.alpha) if policy == "blended" else decide


def _listed(values: Tensor) -> list[Any]:
    """Plain numbers, with null for those that are not finite: JSON has no others."""
    listed: list[Any] = values.tolist()
    if torch.isfinite(values).all():
        return listed
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [value if math.isfinite(value) else None for value in listed]


def _cost_scenarios(loaded: Ready, scenarios: Scenarios, request: PrescribeRequest) -> Scenarios:
    """The scenarios that costs are computed over, as many as the decision hedges over."""
    history = loaded.posterior.history
    if request.costs_over == "posterior" or history is None:
        return scenarios
    return predictive_scenarios(history, scenarios.mean(), request.scenarios)


def _check(row: PosteriorRow, request: PrescribeRequest) -> None:
    settings = get_settings()
    if len(request.contexts) > settings.max_contexts:
        detail = f"at most {settings.max_contexts} contexts a call (BCO_MAX_CONTEXTS); send them in parts"
        raise InvalidRequest.at(("contexts",), detail)
    if request.scenarios > settings.max_scenarios:
        detail = f"at most {settings.max_scenarios} scenarios (BCO_MAX_SCENARIOS)"
        raise InvalidRequest.at(("scenarios",), detail)
    if request.risk and (request.policy or "bcp") not in HEDGING:
        raise InvalidRequest.at(("policy",), f"a risk needs a policy that minimises it: {' or '.join(HEDGING)}")
    quality = row.diagnostics["quality"]
    if _RANKS[quality] < _RANKS[request.require_quality]:
        reason = row.diagnostics["reason"]
        raise Conflict(
            f"the posterior's quality is {quality}, below the {request.require_quality} you require: {reason}"
        )


def _far_from_history(row: PosteriorRow, loaded: Ready, contexts: Tensor) -> list[str]:
    """A warning for each numeric context that lies beyond its range in the history by more than that range."""
    profile = {column["name"]: column for column in row.columns}
    warnings, position = [], 0
    for name, categories in loaded.encoding.columns:
        if categories is None:
            low, high = profile[name]["minimum"], profile[name]["maximum"]
            values = contexts[:, position]
            far = int(((values < 2 * low - high) | (values > 2 * high - low)).sum())
            if far:
                warnings.append(f"'{name}' is far outside the history's range {low:g} to {high:g} in {far} context(s)")
        position += 1 if categories is None else len(categories)
    return warnings
