"""Explanations against finite differences, exact Shapley values and numpy."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core.data import Sample, Standardizer
from bco_core.distributions import FAMILIES, Mixture
from bco_core.explain.attribution import EXACT, LINEAR, PERMUTATIONS, attribute, mean_context, shapley
from bco_core.explain.derivatives import slopes
from bco_core.explain.neighbours import Neighbourhood
from bco_core.explain.outcomes import cost_scenarios, summary
from bco_core.posterior import Posterior
from bco_core.predictive import Carrier, History
from bco_core.predictors.registry import build_predictor
from bco_core.prescribe import QUANTILES, PrescribeOptions, prescribe
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem
from tests.support.seeds import seeded

SHIPMENT: dict[str, Any] = {
    "kind": "shipment",
    "sources": [
        {"name": "north", "order_cost": 5.0, "emergency_cost": 100.0},
        {"name": "south", "order_cost": 6.0, "emergency_cost": 90.0, "maximum_order": 60.0},
    ],
    "destinations": ["a", "b"],
    "transport_costs": [[1.0, 4.0], [3.0, 1.5]],
}
ITEMS: dict[str, Any] = {
    "kind": "newsvendor",
    "items": [
        {"name": "a", "underage_cost": 3, "overage_cost": 1},
        {"name": "b", "underage_cost": 0.5, "overage_cost": 2},
    ],
}
FUND: dict[str, Any] = {
    "kind": "mean_variance_portfolio",
    "assets": [{"name": "a"}, {"name": "b"}],
    "covariance": [[40.0, 5.0], [5.0, 30.0]],
    "budget": 10.0,
}
KINDS = {spec["kind"]: spec for spec in (SHIPMENT, ITEMS, FUND)}


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def make_posterior(kind: str = "linear", carry: str | None = "shift", columns: int = 3) -> Posterior:
    """Return a predictor of two outcomes near 100 with 40 particles, and 60 rows of history that carry outcomes."""
    contexts, outcomes = 5 + 3 * draw(60, columns, seed=0), 100 + 10 * draw(60, 2, seed=1)
    predictor = build_predictor(kind, Sample(contexts, outcomes), () if kind == "linear" else (6,))
    particles = 0.3 * draw(40, predictor.dim, seed=2)
    mixture = Mixture(
        FAMILIES["gaussian"], torch.tensor([0.7, 0.3]), particles[:2], torch.full((2, predictor.dim), 0.1)
    )
    history = None
    if carry is not None:
        slopes_ = 0.05 * draw(columns + 1, 2, seed=3) if carry == "scaled" else None
        scales = torch.full((60, 2), 1.0, dtype=torch.float64)
        scales[0], scales[1] = 0.2, 5.0
        carrier = Carrier(carry, None, torch.full((2,), 0.9, dtype=torch.float64), slopes_)
        history = History(
            100 + 5 * draw(60, 2, seed=4),
            outcomes,
            outcomes.std(dim=0),
            carrier,
            scales if slopes_ is not None else None,
        )
    return Posterior(predictor, mixture, particles, 0, history)


def finite_differences(
    posterior: Posterior, problem: DecisionProblem, context: Tensor, options: PrescribeOptions
) -> Tensor:
    """Return ∂(z, cost)/∂x (d_z + 1, d_x) by central differences of whole prescriptions."""
    step = 1e-5
    shifts = step * torch.eye(len(context), dtype=torch.float64)
    found = prescribe(posterior, problem, torch.cat([context + shifts, context - shifts]), options)
    answers = torch.cat([found.decisions, found.costs.mean[:, None]], dim=1)
    up, down = answers.split(len(context))
    return ((up - down) / (2 * step)).T


@pytest.mark.parametrize("carry", [None, "shift", "scaled", "stretch"])
@pytest.mark.parametrize("policy", ["averaged", "map", "bcp", "blended", "predictive"])
def test_newsvendor_derivatives_match_finite_differences(policy: str, carry: str | None) -> None:
    posterior, problem = make_posterior(carry=carry), build_problem(ITEMS)
    options, context = PrescribeOptions(policy, scenarios=40), torch.tensor([4.0, 7.0, 5.5], dtype=torch.float64)
    found = prescribe(posterior, problem, context[None], options)
    exact = slopes(posterior, problem, context, options, posterior.draws(40), found.decisions[0])
    assert exact is not None
    wanted = finite_differences(posterior, problem, context, options)
    assert torch.allclose(torch.cat([exact.decision, exact.cost[None]]), wanted, rtol=1e-4, atol=1e-4)
    assert wanted[:-1].abs().max() > 0.1


@pytest.mark.parametrize("kind", ["shipment", "mean_variance_portfolio"])
@pytest.mark.parametrize("predictor", ["linear", "mlp"])
@pytest.mark.parametrize("policy", ["averaged", "map"])
def test_derivatives_propagate_through_the_problem(kind: str, predictor: str, policy: str) -> None:
    posterior, problem = make_posterior(predictor), build_problem(KINDS[kind])
    options, context = PrescribeOptions(policy, scenarios=30), torch.tensor([4.0, 7.0, 5.5], dtype=torch.float64)
    found = prescribe(posterior, problem, context[None], options)
    exact = slopes(posterior, problem, context, options, posterior.draws(30), found.decisions[0])
    assert exact is not None
    wanted = finite_differences(posterior, problem, context, options)
    assert torch.allclose(torch.cat([exact.decision, exact.cost[None]]), wanted, rtol=1e-3, atol=1e-3)


def test_undefined_derivatives_are_not_reported() -> None:
    context, items = torch.tensor([4.0, 7.0, 5.5], dtype=torch.float64), build_problem(ITEMS)
    posterior = make_posterior()
    options = PrescribeOptions("averaged", scenarios=40)
    decision = prescribe(posterior, items, context[None], options).decisions[0]
    draws = posterior.draws(40)
    assert slopes(posterior, items, context, options, draws, decision) is not None
    assert slopes(posterior, items, context, options, draws, decision + 1) is None
    assert slopes(posterior, items, context, options, draws, decision * math.nan) is None
    assert slopes(posterior, items, context, PrescribeOptions("thompson"), draws, decision) is None
    hedged = PrescribeOptions("bcp", scenarios=40)
    shipment = build_problem(SHIPMENT)
    found = prescribe(posterior, shipment, context[None], hedged).decisions[0]
    assert slopes(posterior, shipment, context, hedged, draws, found) is None


def test_a_summary_of_outcomes_matches_numpy_over_the_scenarios() -> None:
    posterior, problem = make_posterior(), build_problem(ITEMS)
    contexts, options = 5 + draw(3, 3, seed=7), PrescribeOptions("bcp", scenarios=50)
    found = prescribe(posterior, problem, contexts, options)
    atoms = cost_scenarios(posterior, contexts, options, posterior.draws(50))
    outcome_summary = summary(problem, found.decisions, atoms)
    outcomes = atoms.outcomes.numpy()
    assert np.allclose(outcome_summary.mean, outcomes.mean(axis=1))
    assert np.allclose(outcome_summary.deviation, outcomes.std(axis=1))
    for at, level in enumerate(QUANTILES):
        wanted = np.quantile(outcomes, level, axis=1, method="inverted_cdf")
        assert np.allclose(outcome_summary.quantiles[:, :, at], wanted)
    assert outcome_summary.served is not None
    assert np.allclose(outcome_summary.served, (outcomes <= found.decisions.numpy()[:, None]).mean(axis=1))
    costs = problem.cost(found.decisions[:, None], atoms.outcomes)
    assert torch.allclose(costs.mean(dim=1), found.costs.mean, rtol=1e-12)


def exact_shapley(predict: Any, context: Tensor, baseline: Tensor, columns: list[list[int]]) -> Tensor:
    """Return Shapley values by their definition, order by order."""
    total, orders = torch.zeros(len(columns), 2, dtype=torch.float64), list(permutations(range(len(columns))))
    for order in orders:
        at = baseline.clone()
        for j in order:
            before = predict(at[None])[0]
            at[columns[j]] = context[columns[j]]
            total[j] += (predict(at[None])[0] - before) / len(orders)
    return total


@pytest.mark.parametrize(("kind", "method"), [("linear", LINEAR), ("mlp", EXACT)])
def test_contributions_are_the_shapley_values(kind: str, method: str) -> None:
    posterior = make_posterior(kind, columns=5)
    context, columns = 5 + 3 * draw(5, seed=9), [[0], [1, 2], [3], [4]]
    draws = posterior.draws(40).double()
    found = attribute(posterior, context, columns, draws)
    assert found.method == method

    def predict(contexts: Tensor) -> Tensor:
        return posterior.predictor.predict(draws, contexts).mean(dim=0)

    wanted = exact_shapley(predict, context, mean_context(posterior), columns)
    assert torch.allclose(found.contributions, wanted, rtol=1e-6, atol=1e-8)
    assert found.contributions.abs().max() > 0.1
    assert torch.allclose(found.base, predict(mean_context(posterior)[None])[0])
    assert torch.allclose(found.prediction, predict(context[None])[0])
    assert found.residual.abs().max() < 1e-9


def test_sampled_orders_approximate_shapley_and_sum_to_the_prediction() -> None:
    def predict(contexts: Tensor) -> Tensor:
        # Pairs of columns with known value: each gets half of the pair's value.
        pairs = contexts.view(len(contexts), -1, 2)
        return torch.stack([pairs.prod(dim=2).sum(dim=1), contexts.sum(dim=1)], dim=1)

    context, baseline = 1 + draw(12, seed=5), torch.zeros(12, dtype=torch.float64)
    found = shapley(predict, context, baseline, [[j] for j in range(12)])
    assert found.method == PERMUTATIONS
    halves = (context.view(-1, 2).prod(dim=1) / 2).repeat_interleave(2)
    # An order and its reverse each give one column of a pair the whole value, so halves are exact.
    assert torch.allclose(found.contributions[:, 0], halves)
    assert torch.allclose(found.contributions[:, 1], context)
    assert found.residual.abs().max() < 1e-12


def test_the_nearest_rows_match_numpy() -> None:
    history, contexts = 5 + 3 * draw(500, 4, seed=1), 5 + 3 * draw(6, 4, seed=2)
    history[7] = history[3]
    contexts[0] = history[3]
    rows, distances = Neighbourhood.of(history).nearest(contexts, 10)
    scaled = (history - history.mean(dim=0)) / history.std(dim=0, correction=0)
    for context, found, distance in zip(contexts, rows, distances, strict=True):
        own = (context - history.mean(dim=0)) / history.std(dim=0, correction=0)
        wanted = np.sqrt(((scaled - own).numpy() ** 2).mean(axis=1))
        assert found.tolist() == np.argsort(wanted, kind="stable")[:10].tolist()
        assert np.allclose(distance, np.sort(wanted)[:10], atol=1e-6)
    assert rows[0, :2].tolist() == [3, 7]
    few, _ = Neighbourhood(Standardizer.fit(history), history[:4].float()).nearest(contexts, 10)
    assert few.shape == (6, 4)
