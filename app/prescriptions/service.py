"""From contexts to decisions, with everything a planner needs to trust them."""

from __future__ import annotations

import math
from functools import partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from app import metrics
from app.datasets.encoding import Matrix
from app.db.tables import PosteriorRow
from app.http.errors import Conflict, InvalidRequest, Unavailable
from app.posteriors import service as posteriors
from app.prescriptions.cache import Ready, draws, ready
from app.prescriptions.schemas import PrescribeOptions, PrescribeRequest
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
    most = get_settings().max_contexts
    if len(request.contexts) > most:
        detail = f"at most {most} contexts a call (BCO_MAX_CONTEXTS); send them in parts, or as a batch"
        raise InvalidRequest.at(("contexts",), detail)
    check(row, request)
    loaded = ready(row)
    contexts = torch.from_numpy(loaded.encoding.encode_requests(request.contexts))
    allowed = get_settings().prescribe_seconds
    prescriptions = decide(row, loaded, contexts, request, allowed, request.time_limit_seconds or allowed)
    stored = request.seed is None and request.scenarios <= row.particles
    quality = row.diagnostics["quality"]
    warnings = [] if quality == "ok" else [f"posterior quality is {quality}: {row.diagnostics['reason']}"]
    return {
        "posterior_id": row.id,
        "digest": row.digest,
        "policy": _policy(row, request),
        "scenarios": {
            "count": request.scenarios,
            "source": "particles" if stored else "fresh draws",
            "seed": _seed(loaded, request),
            "costs_over": request.costs_over,
        },
        "quality": quality,
        "warnings": warnings + _far_from_history(row, loaded, contexts),
        "prescriptions": prescriptions,
    }


def decide(
    row: PosteriorRow,
    loaded: Ready,
    contexts: Tensor,
    request: PrescribeOptions,
    seconds: float = math.inf,
    solver_seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """A prescription for each encoded context (B, width), in chunks: memory is bounded however much meets.

    Solvers stop with the best they have after ``solver_seconds``; the whole is given up after ``seconds``.
    """
    theta = draws(row, loaded.posterior, request.scenarios, request.seed)
    generator = torch.Generator().manual_seed(_seed(loaded, request))
    size = max(1, _CHUNK_NUMBERS // (request.scenarios * loaded.problem.outcome_dim))
    prescriptions = []
    began = monotonic()
    for chunk in contexts.split(size):
        taken = monotonic() - began
        if taken > seconds:
            raise Unavailable(f"longer than {seconds} s (BCO_PRESCRIBE_SECONDS); send fewer contexts or scenarios")
        left = None if solver_seconds == math.inf else max(solver_seconds - taken, 0.0)
        prescriptions += _prescriptions(loaded, chunk, theta, _policy(row, request), request, generator, left)
    return prescriptions


def _policy(row: PosteriorRow, request: PrescribeOptions) -> str:
    return request.policy or ("bcp" if request.risk else row.policy)


def _seed(loaded: Ready, request: PrescribeOptions) -> int:
    return loaded.posterior.seed if request.seed is None else request.seed


def _prescriptions(
    loaded: Ready,
    contexts: Tensor,
    theta: Tensor,
    policy: str,
    request: PrescribeOptions,
    generator: torch.Generator,
    seconds: float | None,
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


def _decide(policy: str, request: PrescribeOptions, seconds: float | None) -> Policy:
    """The policy with what the request says about it, its solver stopped after ``seconds``."""
    if policy not in HEDGING:
        return POLICIES[policy]
    risk = Risk(**request.risk.model_dump()) if request.risk else EXPECTATION
    hedge = partial(POLICIES[policy], risk=risk, time_limit=seconds)
    return partial(hedge, alpha=request.alpha) if policy == "blended" else hedge


def _listed(values: Tensor) -> list[Any]:
    """Plain numbers, with null for those that are not finite: JSON has no others."""
    listed: list[Any] = values.tolist()
    if torch.isfinite(values).all():
        return listed
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [value if math.isfinite(value) else None for value in listed]


def _cost_scenarios(loaded: Ready, scenarios: Scenarios, request: PrescribeOptions) -> Scenarios:
    """The scenarios that costs are computed over, as many as the decision hedges over."""
    history = loaded.posterior.history
    if request.costs_over == "posterior" or history is None:
        return scenarios
    return predictive_scenarios(history, scenarios.mean(), request.scenarios)


def check(row: PosteriorRow, request: PrescribeOptions) -> None:
    """Refuse what asks for too much, or for a better posterior than this one."""
    settings = get_settings()
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


def far_from_history(column: dict[str, Any], values: Matrix) -> list[str]:
    """A warning if values of a numeric context lie beyond its range in the history by more than that range."""
    low, high = column["minimum"], column["maximum"]
    far = int(((values < 2 * low - high) | (values > 2 * high - low)).sum())
    name = column["name"]
    return [f"'{name}' is far outside the history's range {low:g} to {high:g} in {far} context(s)"] if far else []


def _far_from_history(row: PosteriorRow, loaded: Ready, contexts: Tensor) -> list[str]:
    """Such warnings for every numeric column of encoded contexts."""
    profile = {column["name"]: column for column in row.columns}
    warnings, position = [], 0
    for name, categories in loaded.encoding.columns:
        if categories is None:
            warnings += far_from_history(profile[name], contexts[:, position].numpy())
        position += 1 if categories is None else len(categories)
    return warnings
