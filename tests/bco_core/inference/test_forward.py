"""Forward validation in time: by hand on rows with known costs, and on drifting demand."""

from __future__ import annotations

import pytest
import torch

from bco_core.data import Sample
from bco_core.inference.forward import (
    constant_before,
    distances,
    regression_before,
    report_forward,
    season_costs,
    season_decisions,
)
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.predictive_choice import choose_carrier
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.newsvendor import Newsvendor
from bco_core.timeline import Timeline, blocks

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def days(count: int, outcomes: torch.Tensor | None = None, lead: int = 2, season: int = 7) -> Sample:
    periods = torch.arange(count)
    values = periods.double() if outcomes is None else outcomes
    contexts = torch.nn.functional.one_hot(periods % 7, 7).double()
    return Sample(contexts, values[:, None], Timeline(periods, torch.zeros_like(periods), lead, season))


def test_the_season_is_the_last_eight_known_rows_of_the_same_weekday() -> None:
    sample = days(200, lead=9)
    rows = torch.tensor([150, 30, 5])
    found, known = season_decisions(PROBLEM, sample, rows)
    assert known.tolist() == [True, True, False]
    # At a lead of nine days, the newest known day of the same weekday is two weeks old.
    past = torch.tensor([150.0 - 14 - 7 * k for k in range(8)])
    assert found[0].item() == pytest.approx(past.sort().values[5].item())
    few = torch.tensor([30.0 - 14 - 7 * k for k in range(3)])
    assert found[1].item() == pytest.approx(few.sort().values[2].item())
    assert season_costs(PROBLEM, sample, torch.arange(60, 200)) is not None
    assert season_costs(PROBLEM, days(200, season=0), torch.arange(60, 200)) is None


def test_series_are_independent_of_each_other() -> None:
    one = days(100)
    periods, series = torch.arange(100).repeat(2), torch.arange(2).repeat_interleave(100)
    both = Sample(
        one.contexts.repeat(2, 1),
        torch.cat([one.outcomes, one.outcomes + 1000]),
        Timeline(periods, series, 2, 7),
    )
    found, _ = season_decisions(PROBLEM, both, torch.tensor([90, 190]))
    assert (found[1] - found[0]).item() == pytest.approx(1000)


def test_baseline_rules_use_only_the_past() -> None:
    sample = days(300)
    rows = torch.arange(100, 300, 3)
    before = constant_before(PROBLEM, sample, rows), regression_before(PROBLEM, sample, rows)
    block = blocks(sample.timeline)  # type: ignore[arg-type]
    inside = block[rows] == 3
    first = (block == 3).nonzero()[0].item()
    changed = sample.outcomes.clone()
    # Outcomes within a block, and in the lead before it, change no decision in it.
    changed[int(first) - 1 :] = 0
    other = Sample(sample.contexts, changed, sample.timeline)
    own = rows[inside]
    constant = constant_before(PROBLEM, other, rows)[inside]
    orders = PROBLEM.cost(torch.zeros(1, 1).double(), sample.outcomes[own])
    assert orders.min() > 0
    known = sample.outcomes[: int(first) - 1].flatten().sort().values
    order = known[int(0.75 * len(known))]
    assert constant == pytest.approx(order.expand(len(own)), rel=0.02)
    assert before[1] is not None


def test_distances_count_from_the_last_known_row() -> None:
    timeline = days(1000, lead=5).timeline
    assert timeline is not None
    found = distances(timeline)
    assert found[300].item() == 5
    assert found[439].item() == 144
    assert found[440].item() == 5
    assert not found[:300].any()


def test_stretches_and_distances_compare_promised_and_realised_costs() -> None:
    sample = days(1000)
    rows = torch.arange(440, 1000)
    realised = torch.where(rows < 580, 2.0, 1.0).double()
    expected, tails = torch.ones(560).double(), torch.full((560,), 1.5).double()
    found = report_forward(PROBLEM, sample, rows, {"averaged": realised}, realised, expected, tails)
    assert [line["rows"] for line in found.stretches] == [140] * 4
    assert [line["above_95"] for line in found.stretches] == [1.0, 0.0, 0.0, 0.0]
    assert found.worst_tail == 1.0
    assert found.stretches[0]["cost"]["mean"] == 2.0
    assert [line["promised"] for line in found.distances] == [1.0] * 4
    assert sum(line["rows"] for line in found.distances) >= 560


def random_walk(seed: int, steps: float, count: int = 365, later: int = 60) -> tuple[Sample, Sample]:
    draw = torch.Generator().manual_seed(seed)
    level = 200 + steps * torch.randn(count + later, generator=draw, dtype=torch.float64).cumsum(0)
    pattern = torch.tensor([0, 5, 0, 10, 25, 40, -20.0]).double()
    periods = torch.arange(count + later)
    noise = 8 * torch.randn(count + later, generator=draw, dtype=torch.float64)
    whole = days(count + later, level + pattern[periods % 7] + noise, lead=later)
    return whole.rows(periods[:count]), whole.rows(periods[count:])


@pytest.mark.parametrize("seed", range(3))
def test_drifting_demand_is_not_judged_ok(seed: int) -> None:
    known, _ = random_walk(seed, steps=6.0)
    told = learn(PROBLEM, known, make_options(predictor="linear", epochs=40, members=5)).diagnostics
    assert told.forward is not None
    assert told.quality != "ok"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_stationary_demand_is_ok_and_its_expected_costs_hold(seed: int) -> None:
    known, later = random_walk(seed, steps=0.0, later=90)
    learned = learn(PROBLEM, known, make_options(predictor="linear", epochs=200, members=5))
    assert learned.diagnostics.quality == "ok", learned.diagnostics.reason
    found = prescribe(learned.posterior, PROBLEM, later.contexts, PrescribeOptions(policy="averaged"))
    realised = PROBLEM.cost(found.decisions, later.outcomes)
    assert found.costs.mean.mean() / realised.mean() == pytest.approx(1, abs=0.3)
    assert (realised > found.costs.quantiles[:, -1]).double().mean() < 0.12


def test_a_time_feature_does_not_explain_the_spread() -> None:
    """Errors shrank as more was learned; they will not keep shrinking with the date."""
    draw = torch.Generator().manual_seed(0)
    periods = torch.arange(600)
    noise = torch.randn(600, 1, generator=draw, dtype=torch.float64) * (3 - periods[:, None] / 300)
    features = torch.stack([periods / 100.0, torch.randn(600, generator=draw)], dim=1).double()
    ones = torch.ones(1, dtype=torch.float64)
    zero = torch.zeros(600, 1, dtype=torch.float64)
    blind = choose_carrier(zero, noise, ones, features, ones)
    assert blind.history.carrier.carry == "scaled"
    told = choose_carrier(zero, noise, ones, features, ones, periods=periods)
    slopes = told.history.carrier.slopes
    assert slopes is None or slopes[0].abs().max() < 1e-6
