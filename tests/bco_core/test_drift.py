"""Drift detection: steady when promises hold on later rows, drifting when the data have changed."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from bco_core.data import Sample
from bco_core.drift import (
    DRIFTING,
    LEAST_ROWS,
    STEADY,
    STRETCHES,
    TOO_FEW,
    Drift,
    Promises,
    check_promises,
    judge,
    share_of,
)
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.newsvendor import Newsvendor

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def exponential(rows: int, seed: int, factor: float = 1.0) -> Promises:
    """Draw exponential costs with the promised mean times a factor."""
    generator = torch.Generator().manual_seed(seed)
    mean = 5 + 5 * torch.rand(rows, generator=generator, dtype=torch.float64)
    realised = -mean * torch.rand(rows, generator=generator, dtype=torch.float64).log() * factor
    return Promises(mean, -mean * math.log(0.95), -mean * math.log(0.05), realised)


@pytest.mark.parametrize("rows", [20, 60, 300, 5000])
def test_promises_that_hold_are_steady(rows: int) -> None:
    """The false alarm rate is about 1 %: of two hundred at most four."""
    verdicts = [judge(exponential(rows, seed)).verdict for seed in range(200)]
    assert verdicts.count(STEADY) >= 196


@pytest.mark.parametrize("factor", [2.0, 0.4])
def test_costs_far_from_the_promise_are_drifting(factor: float) -> None:
    verdicts = [judge(exponential(300, seed, factor)).verdict for seed in range(50)]
    assert verdicts == [DRIFTING] * 50


def test_a_change_in_the_newest_rows_is_detected() -> None:
    calm, changed = exponential(2000, 1), exponential(150, 2, 3.0)
    joined = Promises(
        *(torch.cat([getattr(calm, name), getattr(changed, name)]) for name in ("mean", "low", "high", "realised"))
    )
    found = judge(joined)
    assert (found.verdict, found.overall is not None and found.overall.ratio < 1.25) == (DRIFTING, True)
    assert "newest" in found.sentence
    ratios = [one.ratio for one in found.stretches]
    assert max(ratios) == ratios[-1]  # type: ignore[type-var]


def test_shares_have_exact_binomial_bounds() -> None:
    for hits, count in ((0, 7), (3, 40), (12, 12), (250, 5000)):
        exact = binomtest(hits, count).proportion_ci(0.99, "exact")
        found = share_of(hits, count)
        assert (found.share, found.low, found.high) == pytest.approx((hits / count, exact.low, exact.high), abs=1e-12)


def test_the_standard_error_of_the_ratio_matches_resampling() -> None:
    promises = exponential(400, 3)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(400, (4000, 400), generator=generator)
    ratios = promises.realised[drawn].mean(dim=1) / promises.mean[drawn].mean(dim=1)
    found = check_promises(promises)
    assert found.ratio == pytest.approx((promises.realised.mean() / promises.mean.mean()).item())
    assert found.standard_error == pytest.approx(ratios.std().item(), rel=0.06)


def test_stretches_are_ordered_and_hold_every_row_once() -> None:
    promises = exponential(101, 4)
    found = judge(promises)
    assert (len(found.stretches), sum(one.rows for one in found.stretches)) == (STRETCHES, 101)
    first = found.stretches[0]
    assert first.realised == pytest.approx(promises.realised[: first.rows].mean().item())
    assert [one.rows for one in judge(exponential(12, 4)).stretches] == [6, 6]


@pytest.mark.parametrize("rows", [0, 1, LEAST_ROWS - 1])
def test_few_rows_give_no_verdict(rows: int) -> None:
    found = judge(exponential(rows, 5, 30.0))
    assert (found.verdict, found.overall is None) == (TOO_FEW, rows == 0)
    assert str(LEAST_ROWS) in found.sentence


def test_infeasible_rows_count_as_above_the_range_and_not_in_the_means() -> None:
    promises = exponential(100, 6)
    promises.realised[:40] = math.inf
    found = judge(promises)
    assert found.verdict == DRIFTING
    assert found.overall is not None
    assert found.overall.above.share >= 0.4
    assert found.overall.realised == pytest.approx(promises.realised[40:].mean().item())


def test_costs_that_may_be_negative_have_no_ratio_and_use_their_range() -> None:
    promises = exponential(100, 7)
    profits = Promises(promises.mean - 50, promises.low - 50, promises.high - 50, promises.realised - 50)
    found = judge(profits)
    assert (found.verdict, found.overall is not None and found.overall.ratio) == (STEADY, None)
    worse = Promises(profits.mean, profits.low, profits.high, profits.realised + 40)
    assert judge(worse).verdict == DRIFTING


# a posterior learned from a generator


def demand(rows: int, seed: int, shift: float = 0.0) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    noise = torch.randn(rows, 1, dtype=torch.float64, generator=generator)
    slopes = torch.tensor([[8.0], [-5.0], [3.0]], dtype=torch.float64)
    later = shift * torch.arange(rows, dtype=torch.float64)[:, None] / rows
    return Sample(contexts, 100 + contexts @ slopes + 6 * noise + later)


def judge_drift(seed: int, shift: float) -> Drift:
    options = make_options("vi", predictor="linear", members=3, epochs=15, seed=seed)
    learned = learn(PROBLEM, demand(200, seed), options)
    fresh = demand(150, 1000 + seed, shift)
    found = prescribe(
        learned.posterior, PROBLEM, fresh.contexts, PrescribeOptions(policy=learned.diagnostics.policy, scenarios=100)
    )
    realised: Tensor = PROBLEM.cost(found.decisions, fresh.outcomes)
    quantiles = found.costs.quantiles
    return judge(Promises(found.costs.mean, quantiles[:, 0], quantiles[:, -1], realised))


@pytest.mark.slow
def test_fresh_rows_are_steady_and_a_shifted_level_drifts() -> None:
    seeds = range(20)
    assert [judge_drift(seed, 0.0).verdict for seed in seeds].count(STEADY) >= 19
    assert [judge_drift(seed, 30.0).verdict for seed in seeds].count(DRIFTING) >= 19
