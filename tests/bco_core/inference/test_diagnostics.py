"""Diagnostics of a mixture: held-out costs, comparison with the constant decision, and the verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bco_core.data import Sample, make_folds
from bco_core.distributions import Mixture
from bco_core.estimates import Estimate
from bco_core.inference.diagnostics import FEW_ROWS, judge_held_out, promise_warning
from bco_core.inference.held_out import autocorrelation, beyond_bounds
from bco_core.inference.options import LearningOptions
from bco_core.policies import POLICIES
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.registry import build_problem
from tests.support.held_out_report import HELD_OUT, PROMISE
from tests.support.linear_demand import (
    AUTO,
    LINEAR,
    OPTIONS,
    PROBLEM,
    constant_cost,
    learn_diagnostics,
    learn_mixture,
    make_sample,
)

BRIEF = replace(OPTIONS, epochs=3, members=2)


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize(
    ("rows", "gain", "verdict", "reason"),
    [
        (FEW_ROWS, Estimate(-2.6, 1.0), None, ""),
        (FEW_ROWS - 1, Estimate(-2.6, 1.0), "warn", f"only {FEW_ROWS - 1} rows of history"),
        (1000, Estimate(-2.4, 1.0), "warn", "do not clearly beat one constant decision"),
        (1000, Estimate(-0.5, 1.0), "warn", "do not clearly beat one constant decision"),
        (1000, Estimate(0.5, 1.0), "warn", "do not clearly beat one constant decision"),
        (1000, Estimate(-3.0, math.inf), "warn", "do not clearly beat one constant decision"),
        (1000, Estimate(1.5, 1.0), "bad", "cost more than one constant decision"),
        (FEW_ROWS - 1, Estimate(1.5, 1.0), "bad", "cost more than one constant decision"),
    ],
)
def test_the_verdict_names_the_most_important_warning(
    rows: int, gain: Estimate, verdict: str | None, reason: str
) -> None:
    quality = judge_held_out(rows, replace(HELD_OUT, over_constant=gain))
    assert (quality.verdict if quality else None) == verdict
    assert reason in (quality.reason if quality else "")


def test_an_exact_tie_with_the_constant_decision_is_no_gain() -> None:
    quality = judge_held_out(1000, replace(HELD_OUT, over_constant=Estimate(0.0, 0.0)))
    assert quality is not None
    assert quality.verdict == "warn"


@pytest.mark.parametrize(("gain", "warned"), [(Estimate(2.6, 1.0), True), (Estimate(2.4, 1.0), False), (None, False)])
def test_decisions_clearly_worse_than_plain_regression_are_warned_of(gain: Estimate | None, warned: bool) -> None:
    quality = judge_held_out(1000, replace(HELD_OUT, over_regression=gain))
    assert (quality is not None) == warned
    if quality is not None:
        assert (quality.verdict, "plain regression" in quality.reason) == ("warn", True)


@pytest.mark.parametrize(
    ("order", "rows", "warned"),
    [(0.26, 1000, True), (0.24, 1000, False), (-0.9, 1000, False), (0.34, 100, False), (0.36, 100, True)],
)
def test_rows_with_correlated_errors_look_ordered_in_time(order: float, rows: int, warned: bool) -> None:
    quality = judge_held_out(rows, replace(HELD_OUT, order=order))
    assert (quality is not None) == warned
    if quality is not None:
        assert (quality.verdict, "judged forward" in quality.reason) == ("warn", True)


@pytest.mark.parametrize(
    ("covered", "rows", "ratio", "error", "words"),
    [
        (0.90, 300, 1.0, 0.05, ""),
        # The tolerance is 0.04 plus two standard errors of a share of 0.9, 0.035 for 300 rows.
        (0.83, 300, 1.0, 0.05, ""),
        (0.82, 300, 1.0, 0.05, "the 90 % range covered 82% of held-out outcomes"),
        (0.98, 300, 1.0, 0.05, "the 90 % range covered 98% of held-out outcomes"),
        (0.82, 100, 1.0, 0.05, ""),
        (0.90, 300, 1.24, 0.05, ""),
        (0.90, 300, 1.26, 0.05, "1.26 times the realised costs"),
        (0.90, 300, 0.74, 0.05, "0.74 times the realised costs"),
        (0.90, 300, 0.74, 0.06, ""),
        (0.90, 300, math.inf, 0.0, "inf times the realised costs"),
    ],
)
def test_promises_off_by_more_than_chance_are_warned_of(
    covered: float, rows: int, ratio: float, error: float, words: str
) -> None:
    coverage = HELD_OUT.calibration.coverage | {"0.9": covered}
    calibration = replace(HELD_OUT.calibration, rows=rows, coverage=coverage)
    promise = replace(PROMISE, ratio=ratio, standard_error=error)
    warning = promise_warning(calibration, promise)
    assert words in warning
    assert bool(warning) == bool(words)
    quality = judge_held_out(1000, replace(HELD_OUT, calibration=calibration, promise=promise))
    assert (quality.reason if quality else "") == warning


def test_outcomes_beyond_their_bounds_are_reported_as_clipped() -> None:
    problem = build_problem(
        {
            "kind": "two_stage_linear",
            "decisions": [{"name": "order", "cost": 1, "maximum": 400}],
            "outcomes": [{"name": "demand", "minimum": 0, "maximum": 250}],
            "recourse": [{"name": "express", "cost": 4}],
            "rows": [{"recourse": {"express": 1}, "decisions": {"order": 1}, "sense": ">=", "outcomes": {"demand": 1}}],
        }
    )
    outcomes = torch.tensor([[250.0], [251.0], [-1.0], [100.0]], dtype=torch.float64)
    assert beyond_bounds(problem, outcomes) == 2
    assert beyond_bounds(PROBLEM, outcomes) == 0
    quality = judge_held_out(1000, replace(HELD_OUT, beyond=2))
    assert quality is not None
    assert "2 of 1000 rows have an outcome beyond the bounds" in quality.reason


def test_the_order_of_rows_is_detected_from_all_rows() -> None:
    walk = torch.randn(4000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    walk[:, 1] = torch.cat([walk[:1, 1], 0.6 * walk[:-1, 1] + 0.8 * walk[1:, 1]])
    shuffled = torch.randperm(4000, generator=torch.Generator().manual_seed(4))
    true = np.corrcoef(walk[1:, 1], walk[:-1, 1])[0, 1]
    assert autocorrelation(walk[shuffled], shuffled) == pytest.approx(true, abs=0.01)
    assert autocorrelation(walk[::2], torch.arange(4000)[::2]) == 0.0


def test_decisions_fixed_by_bounds_are_not_called_better_than_the_constant() -> None:
    fixed = Newsvendor.from_spec(
        {"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 210, "maximum_order": 210}]}
    )
    diagnostics = learn_diagnostics(make_sample(), replace(OPTIONS, epochs=5, patience=2, members=2), fixed)
    assert diagnostics.gain_over_constant.mean == pytest.approx(0, abs=1e-9)
    assert diagnostics.quality == "warn"


def test_a_good_fit_on_many_rows_is_ok_and_noise_is_not() -> None:
    options = replace(OPTIONS, predictor=LINEAR, epochs=300, patience=8)
    assert learn_diagnostics(make_sample(), options).quality == "ok"
    sample = make_sample()
    shuffled = torch.randperm(len(sample), generator=torch.Generator().manual_seed(4))
    unrelated = Sample(sample.contexts, sample.outcomes[shuffled])
    assert learn_diagnostics(unrelated, options).quality != "ok"


def test_a_network_worse_than_plain_regression_is_warned_of() -> None:
    diagnostics = learn_diagnostics(make_sample(), replace(OPTIONS, epochs=300, patience=5))
    assert diagnostics.gain_over_regression is not None
    assert diagnostics.gain_over_regression.mean > 2.5 * diagnostics.gain_over_regression.standard_error
    assert diagnostics.gain_over_constant.mean < -10
    assert diagnostics.quality == "warn"
    assert "plain regression" in diagnostics.reason


def test_stopping_at_the_epoch_limit_is_reported() -> None:
    diagnostics = learn_diagnostics(make_sample(), replace(OPTIONS, epochs=12, patience=12))
    assert diagnostics.stopped_early is False
    assert diagnostics.quality == "warn"


@pytest.mark.parametrize("options", [BRIEF, replace(AUTO, epochs=3)], ids=["vi", "auto"])
def test_diagnostics_are_finite_plain_json(options: LearningOptions) -> None:
    diagnostics = learn_diagnostics(make_sample(), options)
    plain = diagnostics.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    numbers = numbers_in(plain)
    assert len(numbers) > 20
    assert all(math.isfinite(number) for number in numbers)
    assert set(diagnostics.held_out_cost) == set(POLICIES)
    assert plain["held_out_cost"]["map"]["mean"] == diagnostics.held_out_cost["map"].mean
    assert [point["epoch"] for point in plain["trace"]] == [1, 2, 3]
    assert plain["certificate"] == diagnostics.certificate.to_json()


@pytest.mark.parametrize(("members", "rows"), [(1, 10), (2, 20), (5, 50), (7, 50)])
def test_a_row_is_judged_if_every_full_partition_holds_it_out(members: int, rows: int) -> None:
    diagnostics = learn_diagnostics(make_sample(rows=53), replace(BRIEF, epochs=1, members=members))
    assert diagnostics.held_out_rows == rows


def test_auto_recommends_a_policy_from_its_table_unless_one_is_given() -> None:
    diagnostics = learn_diagnostics(make_sample(), replace(AUTO, epochs=3))
    chosen = [row["policy"] for row in diagnostics.policies if row["chosen"]]
    assert chosen == [diagnostics.policy]
    assert diagnostics.policies[0]["policy"] == "averaged"
    cost = diagnostics.held_out_cost[diagnostics.policy].mean
    gain = cost - diagnostics.constant_decision_cost.mean
    assert diagnostics.gain_over_constant.mean == pytest.approx(gain)
    obedient = learn_diagnostics(make_sample(), replace(AUTO, epochs=3, policy="thompson"))
    assert obedient.policy == "thompson"


def test_held_out_cost_uses_only_members_that_held_the_row_out() -> None:
    sample, options = make_sample(), replace(BRIEF, members=5)
    posterior, diagnostics = learn_mixture(sample, options)
    folds = make_folds(len(sample), 5, torch.Generator().manual_seed(options.seed))
    costs: dict[int, float] = {}
    assert isinstance(posterior.distribution, Mixture)
    for loc, rows in zip(posterior.distribution.loc, folds.validation.tolist(), strict=True):
        held_out = sample.rows(torch.tensor(rows))
        decisions = posterior.predictor.predict(loc[None], held_out.contexts)[0]
        for row, cost in zip(rows, PROBLEM.cost(decisions, held_out.outcomes).tolist(), strict=True):
            costs[row] = cost
    by_row = torch.tensor([costs[row] for row in sorted(costs)], dtype=torch.float64)
    reported = diagnostics.held_out_cost["map"]
    assert reported.mean == pytest.approx(by_row.mean().item(), rel=1e-5)
    assert reported.standard_error == pytest.approx(by_row.std().item() / math.sqrt(len(by_row)), rel=1e-4)


def test_the_constant_decision_is_judged_on_rows_it_has_not_seen() -> None:
    sample = make_sample()
    diagnostics = learn_diagnostics(sample, replace(BRIEF, members=5))
    in_sample = constant_cost(sample, sample)
    assert in_sample < diagnostics.constant_decision_cost.mean < 1.1 * in_sample
    assert diagnostics.cost_scale == pytest.approx(constant_cost(sample, sample))
    gain = diagnostics.held_out_cost["bcp"].mean - diagnostics.constant_decision_cost.mean
    assert diagnostics.gain_over_constant.mean == pytest.approx(gain)
