"""Estimates before learning: size of the posterior and amount of work."""

from __future__ import annotations

import pytest

from bco_core.errors import InvalidInput
from bco_core.inference.learn import estimate, learn, stored_vectors
from bco_core.inference.options import AutoOptions, LearningOptions, MhOptions, ViOptions, make_options
from bco_core.posterior import Posterior
from bco_core.predictors.registry import PredictorOptions
from bco_core.problems.newsvendor import Newsvendor
from tests.support.linear_demand import PROBLEM, STEPWISE, make_sample

LINEAR, MIXED = PredictorOptions("linear"), PredictorOptions("auto", (6,))
LONG, SHORT = {"steps": 420, "burn_in": 20}, {"steps": 60, "burn_in": 20}


def vectors_in(posterior: Posterior) -> int:
    """Count the parameter vectors among the stored arrays, without the particles."""
    arrays = posterior.to_arrays()[1]
    return sum(
        len(values)
        for name, values in arrays.items()
        if name != "particles" and values.ndim == 2 and values.shape[1] == posterior.predictor.dim
    )


@pytest.mark.parametrize(
    ("problem", "options", "expected"),
    [
        (PROBLEM, AutoOptions(predictor=MIXED, epochs=1), 40),
        (PROBLEM, AutoOptions(predictor=MIXED, epochs=1, members=3), 12),
        (PROBLEM, AutoOptions(predictor=LINEAR, epochs=1), 20),
        (PROBLEM, ViOptions(predictor=MIXED, epochs=1), 2),
        (PROBLEM, ViOptions(predictor=LINEAR, epochs=1, members=4), 8),
        (PROBLEM, MhOptions(predictor=LINEAR, chains=3, kl_weight=0.01, **LONG), 3 * 334),
        (PROBLEM, MhOptions(predictor=LINEAR, chains=3, kl_weight=0.01, particles=1200, **LONG), 3 * 400),
        (PROBLEM, MhOptions(predictor=LINEAR, chains=3, kl_weight=0.01, **SHORT), 3 * 40),
        (STEPWISE, MhOptions(predictor=LINEAR, chains=3, kl_weight=0.01, **LONG), 3 * 334),
        (STEPWISE, AutoOptions(predictor=LINEAR, chains=2, kl_weight=0.01, **SHORT), 2 * 40),
    ],
    ids=[
        "auto, mixed",
        "auto, mixed, three members",
        "auto, one kind",
        "vi, one member",
        "vi, four members",
        "mh with a gradient",
        "mh, many particles",
        "mh, chains shorter than what they would keep",
        "mh without a gradient",
        "auto without a gradient",
    ],
)
def test_the_estimated_number_of_vectors_is_the_stored_one(
    problem: Newsvendor, options: LearningOptions, expected: int
) -> None:
    sample = make_sample(60)
    posterior = learn(problem, sample, options).posterior
    # A family with share zero is not stored.
    foretold = stored_vectors(problem, options, len(sample))
    mixes = isinstance(options, AutoOptions) and options.predictor.kind == "auto" and problem.differentiable
    stored = vectors_in(posterior)
    assert foretold == expected
    assert stored in (expected, expected // 2) if mixes else stored == expected


def test_more_rows_need_fewer_members_and_store_fewer_vectors() -> None:
    assert stored_vectors(PROBLEM, AutoOptions(), 999) == 40
    # From a thousand rows on, boosted trees are a third family.
    assert stored_vectors(PROBLEM, AutoOptions(), 3000) == 60
    assert stored_vectors(PROBLEM, AutoOptions(), 3001) == 30


def test_chains_store_no_mixture_even_if_the_problem_has_gradients() -> None:
    chains, mixture = MhOptions(chains=64, particles=10_000), AutoOptions(particles=10_000)
    assert stored_vectors(PROBLEM, chains, 500) > 100 * stored_vectors(PROBLEM, mixture, 500)


def test_many_long_chains_need_far_more_work_than_a_default_job() -> None:
    long = MhOptions(chains=64, steps=1_000_000)
    default = estimate(PROBLEM, AutoOptions(), 1000, 10)
    assert estimate(PROBLEM, long, 1000, 10) > 100 * default
    assert estimate(STEPWISE, AutoOptions(chains=64, steps=1_000_000), 1000, 10) > 100 * default


@pytest.mark.parametrize("method", ["auto", "vi", "mh"])
def test_more_of_any_option_is_more_work(method: str) -> None:
    options = make_options(method=method, predictor="mlp", hidden=(8,))
    least = estimate(PROBLEM, options, 500, 5)
    assert estimate(PROBLEM, options, 1000, 5) > least
    assert estimate(PROBLEM, options, 500, 50) > least
    assert estimate(PROBLEM, make_options(method=method, predictor="mlp", hidden=(64, 64)), 500, 5) > least
    more = {"chains": 40} if method == "mh" else {"members": 40}
    assert estimate(PROBLEM, make_options(method=method, predictor="mlp", hidden=(8,), **more), 500, 5) > 3 * least


def test_a_temperature_search_and_a_solver_add_work() -> None:
    found, given = MhOptions(steps=600, burn_in=100), MhOptions(steps=600, burn_in=100, inverse_temperature=9.0)
    assert estimate(PROBLEM, found, 100, 3) > 2 * estimate(PROBLEM, given, 100, 3)
    small = MhOptions(predictor=LINEAR, inverse_temperature=9.0)
    assert estimate(STEPWISE, small, 100, 3) > 3 * estimate(PROBLEM, small, 100, 3)


def test_unlearnable_input_has_no_estimate() -> None:
    for ask in (lambda: stored_vectors(STEPWISE, ViOptions(), 100), lambda: estimate(STEPWISE, ViOptions(), 100, 3)):
        with pytest.raises(InvalidInput, match="variational inference needs decisions with a gradient"):
            ask()


def test_many_steps_are_much_work_even_with_few_rows() -> None:
    assert estimate(PROBLEM, MhOptions(predictor=LINEAR, chains=64, steps=1_000_000), 20, 2) > 3600
