"""Tables of the contract tests: a new problem, policy, predictor, feature kind, method, family or distribution needs
one row here.

Rows hold only what the tests need to start; no contract test knows the kind it runs on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.distributions import FAMILIES, ChainDraws, Distribution, MatrixGaussian, equal_mixture
from bco_core.inference.learn import learn
from bco_core.inference.method import Learned
from bco_core.inference.options import make_options
from bco_core.problems.base import DecisionProblem
from tests.support.seeds import seeded

Spec = dict[str, Any]


# problems


@dataclass(frozen=True)
class ProblemRow:
    """A specification as sent to the API, and outcomes (n, d_y) that such a problem may meet.

    ``certain``: feasibility does not depend on the outcome. ``optimal``: policies that no other beats over the same
    scenarios; not only BCP where the outcome's mean is sufficient.
    """

    spec: Spec
    outcomes: Callable[[int, torch.Generator], Tensor]
    certain: bool = True
    optimal: frozenset[str] = frozenset({"bcp", "predictive"})


def demands(*means: float) -> Callable[[int, torch.Generator], Tensor]:
    """Draw positive, skewed demands, some beyond the order bounds."""
    levels = torch.tensor(means, dtype=torch.float64)
    return lambda n, generator: levels * torch.randn(n, len(means), generator=generator, dtype=torch.float64).exp()


def returns(count: int) -> Callable[[int, torch.Generator], Tensor]:
    """Draw returns around a tenth, with one asset well above, so that a target of 0.08 can be reached."""

    def draw(n: int, generator: torch.Generator) -> Tensor:
        values = 0.1 + 0.03 * torch.randn(n, count, generator=generator, dtype=torch.float64)
        values[:, 0] = values[:, 0].abs() + 0.1
        return values

    return draw


FACTORS = {"loadings": [[0.02], [-0.01], [0.005], [0.03]], "residual_variances": [0.0009, 0.0004, 0.0001, 0.0004]}
ASSETS = [{"name": name} for name in ("shares", "bonds", "cash", "gold")]
HELD = [{"name": "shares", "minimum": 0.1}, *({"name": n, "minimum": -0.2, "maximum": 0.5} for n in ("bonds", "gold"))]

# Two machines, one of them for one product only. Missing products are bought. Overtime is limited.
FACTORY = {
    "kind": "two_stage_linear",
    "decisions": [
        {"name": "shift", "cost": 7, "maximum": 60},
        {"name": "stock", "cost": 2.3, "minimum": -5, "maximum": 40},
        {"name": "reserve", "cost": 0.9, "minimum": None},
    ],
    "decision_rows": [
        {"name": "floor", "coefficients": {"shift": 1, "stock": 0.7}, "sense": "<=", "limit": 70},
        {"name": "kept", "coefficients": {"reserve": 1, "stock": 1}, "sense": ">=", "limit": 1},
    ],
    "outcomes": [{"name": "bolts", "minimum": 0}, {"name": "nuts", "minimum": 0}],
    "recourse": [
        {"name": "overtime", "cost": 11, "maximum": 15},
        {"name": "bought bolts", "cost": 19},
        {"name": "bought nuts", "cost": 8},
        {"name": "scrap", "cost": 0.4},
    ],
    "rows": [
        {
            "name": "bolts",
            "recourse": {"overtime": 1.1, "bought bolts": 1, "scrap": -1},
            "decisions": {"shift": 1.3},
            "sense": "=",
            "outcomes": {"bolts": 1},
        },
        {
            "name": "nuts",
            "recourse": {"bought nuts": -1, "overtime": -0.2},
            "decisions": {"stock": -1, "reserve": -0.3},
            "sense": "<=",
            "constant": 2,
            "outcomes": {"nuts": -1},
        },
    ],
}

# A linear model to maximise, with outcomes in row limits only.
CATERER: Spec = {
    "kind": "linear",
    "sense": "maximize",
    "decisions": [{"name": "cooked", "cost": -4}],
    "recourse": [{"name": "served", "cost": 11}, {"name": "given away", "cost": 1, "maximum": 20}],
    "outcomes": [{"name": "guests", "minimum": 0}],
    "rows": [
        {"decisions": {"cooked": -1}, "recourse": {"served": 1, "given away": 1}, "sense": "<=", "limit": 0},
        {"recourse": {"served": 1}, "sense": "<=", "limit": {"outcomes": {"guests": 1}}},
    ],
}

# Cars kept now or rented later at an uncertain price.
RENTAL: Spec = {
    "kind": "linear",
    "decisions": [{"name": "kept", "cost": 5}],
    "recourse": [{"name": "rented", "cost": {"constant": 7, "outcomes": {"price": 1}}}],
    "outcomes": [{"name": "needed", "minimum": 0}, {"name": "price", "minimum": 0}],
    "rows": [
        {
            "decisions": {"kept": 1},
            "recourse": {"rented": 1},
            "sense": ">=",
            "limit": {"outcomes": {"needed": 1}},
        }
    ],
}

# If the cost is linear in the outcome, only its mean matters, also for rounded averages.
BY_MEAN = frozenset({"bcp", "predictive", "blended"})
BY_MEAN_IN_WHOLE = BY_MEAN | {"averaged"}

PROBLEM_ROWS = {
    "shortest_path": [
        ProblemRow(
            {
                "kind": "shortest_path",
                "source": "home",
                "target": "office",
                "edges": [
                    {"start": "home", "end": "bridge"},
                    {"start": "home", "end": "tunnel"},
                    {"start": "bridge", "end": "office"},
                    {"start": "tunnel", "end": "office", "cost": {"constant": 2, "outcomes": {"home to tunnel": 0.5}}},
                    {"start": "bridge", "end": "tunnel", "cost": 1},
                ],
            },
            demands(10, 12, 8),
            optimal=BY_MEAN_IN_WHOLE,
        )
    ],
    "assignment": [
        ProblemRow(
            {
                "kind": "assignment",
                "agents": ["ann", "bob"],
                "tasks": ["roof", "wall"],
                "sense": "maximize",
                "capacities": {"ann": 2},
                "costs": {"bob": {"wall": 9}},
            },
            demands(10, 12, 8),
            optimal=BY_MEAN_IN_WHOLE,
        )
    ],
    "knapsack": [
        ProblemRow(
            {
                "kind": "knapsack",
                "items": [
                    {"name": "lamps", "weights": {"kg": 4, "litres": 2}, "copies": 2},
                    {"name": "rugs", "weights": {"kg": 7, "litres": 9}},
                    {"name": "books", "weights": {"kg": 3}, "copies": None},
                ],
                "capacities": {"kg": 13, "litres": 10},
                "shares": True,
            },
            demands(8, 15, 5),
            optimal=BY_MEAN,
        )
    ],
    "facility_location": [
        ProblemRow(
            {
                "kind": "facility_location",
                "facilities": [
                    {"name": "north", "opening_cost": 30, "capacity": 12},
                    {"name": "south", "opening_cost": 20, "capacity": 9, "unit_cost": 0.5},
                ],
                "customers": [{"name": "city"}, {"name": "coast", "shortage_cost": 9}],
                "transport_costs": [[1, 3], [2, None]],
                "shortage_cost": 8,
            },
            demands(8, 6),
        )
    ],
    "production": [
        ProblemRow(
            {
                "kind": "production",
                "products": [
                    {"name": "bread", "unit_cost": 1, "uses": {"hours": 0.5}, "price": 4, "holding_cost": 0.2},
                    {
                        "name": "mix",
                        "blend_of": ["oats", "nuts"],
                        "qualities": {"protein": {"minimum": 12}},
                        "price": 7,
                        "shortage_cost": 1,
                    },
                ],
                "resources": [{"name": "hours", "available": 8}],
                "ingredients": [
                    {"name": "oats", "unit_cost": 1, "qualities": {"protein": 10}},
                    {"name": "nuts", "unit_cost": 5, "available": 4, "qualities": {"protein": 20}},
                ],
            },
            demands(10, 12),
        )
    ],
    "unit_commitment": [
        ProblemRow(
            {
                "kind": "unit_commitment",
                "hours": 2,
                "units": [
                    {"name": "coal", "minimum_output": 3, "maximum_output": 8, "unit_cost": 2, "startup_cost": 5},
                    {"name": "gas", "maximum_output": 6, "unit_cost": 4, "fixed_cost": 3, "ramp_up": 2},
                ],
                "shedding_cost": 12,
                "curtailment_cost": 1,
            },
            demands(6, 7),
        )
    ],
    "linear": [ProblemRow(RENTAL, demands(30, 4)), ProblemRow(CATERER, demands(40))],
    "two_stage_linear": [ProblemRow(FACTORY, demands(40, 20))],
    "shipment": [
        ProblemRow(
            {
                "kind": "shipment",
                "sources": [
                    {"name": "north", "order_cost": 5, "emergency_cost": 100},
                    {"name": "south", "order_cost": 6, "emergency_cost": 90, "maximum_order": 25},
                ],
                "destinations": ["port", "market", "mill"],
                "transport_costs": [[1.0, 4.0, 2.5], [3.0, 1.5, 7.0]],
            },
            demands(10, 12, 8),
        )
    ],
    "return_constrained_portfolio": [
        ProblemRow(
            {"kind": "return_constrained_portfolio", "assets": ASSETS, "factors": FACTORS, "target_return": 0.08},
            returns(4),
            certain=False,
        ),
        ProblemRow(
            {
                "kind": "return_constrained_portfolio",
                "assets": HELD,
                "covariance": [[0.04, 0.01, 0.0], [0.01, 0.02, 0.001], [0.0, 0.001, 0.03]],
                "target_return": 0.03,
                "confidence": 0.8,
                "maximum_short": 0.3,
                "infeasible": "error",
            },
            returns(3),
            certain=False,
        ),
        ProblemRow(
            {
                "kind": "return_constrained_portfolio",
                "assets": ASSETS,
                "factors": FACTORS,
                "target_return": 0.08,
                "target_on": "mean",
                "fully_invested": True,
                "groups": [{"assets": ["bonds", "gold"], "maximum": 0.6}],
                "current": {"cash": 1.0},
                "turnover_cost": 0.001,
            },
            returns(4),
            certain=False,
        ),
    ],
    "mean_variance_portfolio": [
        ProblemRow(
            {
                "kind": "mean_variance_portfolio",
                "assets": ASSETS,
                "factors": FACTORS,
                "risk_aversion": 40,
                "fully_invested": True,
                "groups": [{"name": "safe", "assets": ["bonds", "cash"], "minimum": 0.2, "maximum": 0.6}],
                "current": {"shares": 0.4, "bonds": 0.6},
                "turnover_cost": 0.01,
                "maximum_turnover": 1.5,
            },
            returns(4),
            optimal=frozenset({"bcp", "predictive", "blended"}),
        ),
        ProblemRow(
            {"kind": "mean_variance_portfolio", "assets": ASSETS, "factors": FACTORS, "risk_aversion": 40},
            returns(4),
            optimal=frozenset({"bcp", "predictive", "blended"}),
        ),
        ProblemRow(
            {
                "kind": "mean_variance_portfolio",
                "assets": HELD,
                "covariance": [[0.04, 0.01, 0.0], [0.01, 0.02, 0.001], [0.0, 0.001, 0.03]],
                "budget": 2,
                "risk_aversion": 5,
            },
            returns(3),
            optimal=frozenset({"bcp", "predictive", "blended"}),
        ),
    ],
    "newsvendor": [
        ProblemRow(
            {"kind": "newsvendor", "items": [{"name": "rolls", "underage_cost": 3, "overage_cost": 1}]}, demands(50)
        ),
        ProblemRow(
            {
                "kind": "newsvendor",
                "items": [
                    {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6},
                    {"name": "loaves", "underage_cost": 2.4, "overage_cost": 1.2, "maximum_order": 60},
                    {"name": "cakes", "underage_cost": 20, "overage_cost": 9, "minimum_order": 2, "maximum_order": 2},
                    {"name": "credit", "underage_cost": 0.1, "overage_cost": 7, "minimum_order": None},
                ],
            },
            demands(50, 80, 3, 10),
        ),
        ProblemRow(
            {
                "kind": "newsvendor",
                "items": [
                    {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6, "stock": 12},
                    {"name": "loaves", "price": 3.2, "unit_cost": 1.3, "salvage_value": 0.1, "maximum_order": 60},
                    {"name": "credit", "underage_cost": 0.1, "overage_cost": 7, "minimum_order": None},
                    {"name": "cakes", "underage_cost": 20, "overage_cost": 9, "minimum_order": 2},
                ],
                "decision_rows": [
                    {
                        "name": "oven",
                        "coefficients": {"croissants": 1, "loaves": 2, "credit": -0.4},
                        "sense": "<=",
                        "limit": 120,
                    }
                ],
            },
            demands(50, 80, 10, 3),
        ),
        ProblemRow(
            {
                "kind": "newsvendor",
                "items": [
                    {"name": "croissants", "underage_cost": 1.8, "overage_cost": 0.6},
                    {"name": "loaves", "underage_cost": 2.4, "overage_cost": 1.2, "stock": 5, "maximum_order": 60},
                    {"name": "cakes", "underage_cost": 20, "overage_cost": 9},
                ],
                "decision_rows": [
                    {"coefficients": {"croissants": 1, "loaves": 2, "cakes": 3}, "sense": "<=", "limit": 100},
                    {"coefficients": {"croissants": 1, "loaves": 1}, "sense": ">=", "limit": 30},
                ],
            },
            demands(50, 80, 3),
        ),
    ],
}


def learn_quickly(problem: DecisionProblem, row: ProblemRow, **changes: Any) -> Learned:
    """Learn a posterior with a quick method from 60 of the problem's outcomes."""
    quick = {"method": "vi", "members": 2, "epochs": 2}
    if not problem.differentiable:
        quick = {"method": "mh", "chains": 2, "steps": 60, "burn_in": 30, "inverse_temperature": 200.0}
    options = quick | {"predictor": "linear", "particles": 12} | changes
    return learn(problem, history_of(row), make_options(**options))


def history_of(row: ProblemRow) -> Sample:
    """Draw 60 outcomes of the problem, and contexts that are informative about the first."""
    generator = seeded(14)
    outcomes = row.outcomes(60, generator)
    contexts = torch.cat([outcomes[:, :1], torch.randn(60, 2, generator=generator, dtype=torch.float64)], dim=1)
    return Sample(contexts, outcomes)


# policies: whether decisions are random

POLICY_ROWS = {
    "bcp": False,
    "predictive": False,
    "averaged": False,
    "blended": False,
    "map": False,
    "thompson": True,
}

# predictors: hidden layers, and the length of θ for three features and two outcomes

PREDICTOR_ROWS: dict[str, dict[str, Any]] = {
    "linear": {"hidden": (), "dim": 4 * 2},
    "relu_affine": {"hidden": (), "dim": 4 * 2},
    "mlp": {"hidden": (5, 6), "dim": 4 * 5 + 6 * 6 + 7 * 2},
    "skip_mlp": {"hidden": (5,), "dim": 4 * 5 + 6 * 2 + 4 * 2},
}

# features: number of feature columns for three context columns

FEATURE_ROWS = {"standardized": 3, "boosted": 5, "products": 9}


class MethodRow(NamedTuple):
    """Quick options, the kind of problem to learn, and the number of parts if the work is split."""

    problem: str
    options: dict[str, Any]
    parts: int


METHOD_ROWS = {
    "auto": MethodRow("newsvendor", {"predictor": "boosted", "hidden": (4,), "members": 5, "epochs": 2}, 5),
    "vi": MethodRow("newsvendor", {"predictor": "linear", "members": 3, "epochs": 2}, 3),
    "mh": MethodRow(
        "return_constrained_portfolio",
        {"predictor": "linear", "chains": 3, "steps": 120, "burn_in": 60, "inverse_temperature": 200.0},
        3,
    ),
}

# families: mean absolute deviation of the standard member, known in closed form

FAMILY_ROWS = {"gaussian": math.sqrt(2 / math.pi), "laplace": 1.0}


def two_members(family: str) -> Distribution:
    loc = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    return equal_mixture(FAMILIES[family], loc, torch.full_like(loc, 0.1))


# distributions: one over three parameters

DISTRIBUTION_ROWS: dict[str, Distribution] = {
    "gaussian": two_members("gaussian"),
    "laplace": two_members("laplace"),
    "chains": ChainDraws(torch.randn(11, 3, generator=seeded(23)), 4),
    "matrix_gaussian": MatrixGaussian.of(
        torch.tensor([[[0.0], [1.0], [2.0]], [[3.0], [4.0], [5.0]]]),
        0.1 * torch.eye(3).expand(2, 3, 3),
        torch.ones(2, 1, 1),
    ),
}
