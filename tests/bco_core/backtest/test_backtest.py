"""Backtests: splits without look-ahead, costs and intervals by hand, and verdicts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bco_core.backtest.paired import Clusters, difference, mean_of
from bco_core.backtest.realised_costs import RealisedCosts, judge
from bco_core.backtest.rules import RULES, Origin, learned_decisions
from bco_core.backtest.splits import Split, random_parts, rolling
from bco_core.backtest.summary import BacktestRows, align, summarize
from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.inference.options import make_options
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem
from bco_core.timeline import Timeline

ITEM = {"underage_cost": 3.0, "overage_cost": 1.0}
SHOP = build_problem({"kind": "newsvendor", "items": [ITEM]})
TWO = build_problem({"kind": "newsvendor", "items": [ITEM, {"underage_cost": 1.0, "overage_cost": 2.0}]})
FUND = build_problem(
    {
        "kind": "return_constrained_portfolio",
        "assets": [{"name": "a"}, {"name": "b"}],
        "covariance": [[1.0, 0.0], [0.0, 1.0]],
        "target_return": 0.1,
    }
)
LEAD = 2


def history(days: int = 140, series: int = 2, seed: int = 0) -> Sample:
    """Draw demand with a weekday pattern and a helpful context."""
    draw = np.random.default_rng(seed)
    day, key = np.tile(np.arange(days), series), np.repeat(np.arange(series), days)
    warm = draw.normal(size=len(day))
    demand = 50 + 20 * key + 10 * (day % 7 == 5) + 8 * warm + draw.normal(0, 2, len(day))
    contexts = np.stack([warm, (day % 7 == 5).astype(float), key.astype(float)], axis=1)
    timeline = Timeline(torch.from_numpy(day), torch.from_numpy(key), LEAD, 7)
    return Sample(torch.from_numpy(contexts), torch.from_numpy(demand)[:, None], timeline)


def timeline_of(sample: Sample) -> Timeline:
    assert sample.timeline is not None
    return sample.timeline


def origin_of(sample: Sample, split: Split) -> Origin:
    upto = timeline_of(sample).periods <= timeline_of(sample).periods[split.judged].max()
    assert upto[split.known].all()
    return Origin(sample, split.known, split.judged)


# splits without look-ahead


@settings(max_examples=60, deadline=None)
@given(
    # At least ten rows are known before the first that is judged.
    days=st.integers(40, 80),
    series=st.integers(1, 3),
    lead=st.integers(1, 5),
    count=st.integers(1, 8),
    share=st.floats(0.05, 0.6),
)
def test_rolling_origins_judge_the_newest_rows_once_by_rows_known_in_time(
    days: int, series: int, lead: int, count: int, share: float
) -> None:
    day, key = torch.arange(days).repeat(series), torch.arange(series).repeat_interleave(days)
    splits = rolling(Timeline(day, key, lead), count, share)
    judged = torch.cat([split.judged for split in splits])
    assert len(judged.unique()) == len(judged)
    assert set(day[judged].tolist()) == set(range(int(day[judged].min()), days))
    assert share * days - 1 <= len(judged) / series <= share * days + 1
    for split in splits:
        assert day[split.known].max() == day[split.judged].min() - lead
        assert len(split.known) == series * (int(day[split.judged].min()) - lead + 1)


def test_random_parts_test_every_row_once_on_the_others() -> None:
    splits = random_parts(53, 5, seed=1)
    assert torch.cat([split.judged for split in splits]).sort().values.tolist() == list(range(53))
    for split in splits:
        assert sorted([*split.known.tolist(), *split.judged.tolist()]) == list(range(53))
        assert len(split.judged) in (10, 11)


def test_too_few_rows_are_refused_with_the_required_number() -> None:
    day = torch.arange(12)
    with pytest.raises(InvalidInput, match=r"of 12 rows, \d are known before .* needs 10: send more rows \(about 16\)"):
        rolling(Timeline(day, torch.zeros_like(day), 1), 2, 0.3)
    day = torch.arange(16)
    assert rolling(Timeline(day, torch.zeros_like(day), 1), 2, 0.3)
    with pytest.raises(InvalidInput, match="learning needs 10"):
        random_parts(11, 4, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RULES, "ours"])
def test_decisions_do_not_depend_on_rows_unknown_at_the_time(name: str) -> None:
    """Replace each row's future, its own outcome and the rows within the lead: its decision must not change."""
    sample = history()
    periods = timeline_of(sample).periods
    split = rolling(timeline_of(sample), 3, 0.3)[1]
    before = decide_by_rule(name, SHOP, origin_of(sample, split))
    begin = int(periods[split.judged].min())
    assert len(before) == len(split.judged)
    for moment in (begin, begin + 5):
        later = periods > moment - LEAD
        outcomes = torch.where(later[:, None], 1000 + 7.0 * torch.arange(len(sample))[:, None], sample.outcomes)
        contexts = torch.where((periods > moment)[:, None], -99.0, sample.contexts)
        changed = decide_by_rule(name, SHOP, origin_of(replace(sample, outcomes=outcomes, contexts=contexts), split))
        same = periods[split.judged] <= moment
        assert torch.equal(changed[same], before[same])


def decide_by_rule(name: str, problem: DecisionProblem, origin: Origin) -> Tensor:
    if name == "ours":
        options = make_options("vi", predictor="linear", members=2, epochs=3, particles=20, seed=1)
        return learned_decisions(problem, origin, options)
    return RULES[name].decide(problem, origin)


@pytest.mark.all_variants
@pytest.mark.parametrize("name", RULES)
def test_each_baseline_rule_beats_the_constant_where_its_signal_matters(name: str) -> None:
    """No rule reaches perfect foresight."""
    sample = history(240)
    split = rolling(timeline_of(sample), 1, 0.3)[0]
    costs = {
        one: judge(SHOP, decide_by_rule(one, SHOP, origin_of(sample, split)), sample.outcomes[split.judged]).cost.mean()
        for one in {name, "constant"}
    }
    assert costs[name] > 0
    assert name == "constant" or costs[name] < 0.9 * costs["constant"]


def test_inapplicable_rules_are_refused_with_the_reason() -> None:
    reasons = {name: rule.refusal(FUND, 0) for name, rule in RULES.items()}
    assert {name for name, reason in reasons.items() if reason} == {"season", "boosted", "ieo"}
    assert "no time column" in reasons["season"]
    assert "quantiles" in reasons["boosted"]
    assert "gradient" in reasons["ieo"]
    assert not any(rule.refusal(SHOP, 7) for rule in RULES.values())


# costs and service


def test_costs_regrets_and_service_match_hand_calculation() -> None:
    draw = np.random.default_rng(3)
    demand, orders = draw.uniform(0, 50, (40, 2)), draw.uniform(0, 50, (40, 2))
    orders[5, 1] = math.nan
    found = judge(TWO, torch.from_numpy(orders), torch.from_numpy(demand))
    by_hand = [
        sum(
            under * max(y - z, 0) + over * max(z - y, 0)
            for y, z, under, over in zip(demand[i], orders[i], (3, 1), (1, 2), strict=True)
        )
        for i in range(40)
    ]
    np.testing.assert_allclose(np.delete(found.cost.numpy(), 5), np.delete(by_hand, 5))
    np.testing.assert_allclose(np.delete(found.regret.numpy(), 5), np.delete(by_hand, 5))
    assert found.cost[5].isnan()
    assert found.regret[5].isnan()


def test_regret_is_against_perfect_foresight() -> None:
    bounded = build_problem({"kind": "newsvendor", "items": [ITEM | {"maximum_order": 10.0}]})
    found = judge(bounded, torch.tensor([[8.0], [10.0]]).double(), torch.tensor([[20.0], [20.0]]).double())
    assert found.cost.tolist() == [36.0, 30.0]
    assert found.regret.tolist() == [6.0, 0.0]


class Serving:
    """A newsvendor that serves demand up to its order, whatever the wrapped problem reports."""

    def __init__(self, problem: DecisionProblem) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> object:
        return getattr(self._problem, name)

    def covered(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return outcomes <= decisions


def test_the_service_level_counts_only_rows_with_a_decision() -> None:
    problem = Serving(TWO)
    orders = torch.tensor([[5.0, 5.0], [5.0, 9.0], [math.nan, 1.0]]).double()
    demand = torch.tensor([[4.0, 6.0], [4.0, 6.0], [0.0, 0.0]]).double()
    found = judge(problem, orders, demand)  # type: ignore[arg-type]
    assert found.served is not None
    assert found.served.tolist() == [[True, False], [True, True], [False, False]]
    summary = summarize(
        problem, BacktestRows(torch.zeros(3, dtype=torch.int64)), {"x": found}, ["x"], {"x": "x"}, ["a", "b"]
    )  # type: ignore[arg-type]
    assert summary["policies"][0]["service_level"] == {"mean": 0.75, "outcomes": {"a": 1.0, "b": 0.5}}
    assert summary["verdict"]["worth_using"] == "unclear"


# differences


def clustered_error(values: np.ndarray, *ways: np.ndarray) -> float:
    """Return the clustered standard error of a mean, spelled out."""
    mean, count = values.mean(), len(values)

    def variance(labels: list[object]) -> float:
        groups: dict[object, float] = {}
        for label, value in zip(labels, values, strict=True):
            groups[label] = groups.get(label, 0.0) + value - mean
        size = len(groups)
        return size / (size - 1) * sum(total**2 for total in groups.values()) / count**2

    if len(ways) == 1:
        return math.sqrt(variance(list(ways[0])))
    one, other = (variance(list(way)) for way in ways)
    both = variance(list(zip(*ways, strict=True)))
    return math.sqrt(max(one, other, one + other - both))


def test_paired_differences_have_the_textbook_clustered_error() -> None:
    draw = np.random.default_rng(5)
    days, series = 96, 10
    day, key = np.tile(np.arange(days), series), np.repeat(np.arange(series), days)
    reference = draw.normal(10, 3, days * series)
    costs = reference + draw.normal(-0.3, 1, days * series) + 3 * key / series + draw.normal(0, 1, days)[day // 12]
    clusters = Clusters.of(torch.from_numpy(day), torch.from_numpy(key), lead=3, season=7)
    assert clusters.block_periods == 10
    found = difference(torch.from_numpy(costs), torch.from_numpy(reference), clusters)
    error = clustered_error(costs - reference, day // 10, key)
    np.testing.assert_allclose([found.mean, found.standard_error], [(costs - reference).mean(), error])
    # Student's t with nine degrees of freedom: ten blocks and ten series.
    np.testing.assert_allclose(found.high - found.mean, 2.2621571628 * error)
    assert "two ways" in clusters.sentence

    few = Clusters.of(torch.from_numpy(day[: 2 * days]), torch.from_numpy(key[: 2 * days]), 3, 7)
    assert few.series is None
    found = mean_of(torch.from_numpy(costs[: 2 * days]), few)
    np.testing.assert_allclose(found.standard_error, clustered_error(costs[: 2 * days], day[: 2 * days] // 10))


def test_rows_without_time_are_independent_and_gaps_are_excluded() -> None:
    values = torch.tensor([1.0, math.nan, 2.0, 6.0]).double()
    found = mean_of(values, Clusters.of(None, None))
    assert (found.mean, found.rows) == (3.0, 3)
    np.testing.assert_allclose(found.standard_error, np.std([1, 2, 6], ddof=1) / math.sqrt(3))
    alone = mean_of(values[:1], Clusters.of(None, None))
    assert (alone.low, alone.high) == (-math.inf, math.inf)


def test_intervals_keep_their_coverage_under_autocorrelation() -> None:
    """Differences of mean zero with AR(1) coefficient 0.6 would often mislead if treated as independent."""
    draw, days, held, naive = np.random.default_rng(7), 200, 0, 0
    clusters = Clusters.of(torch.arange(days), None, 1, 7)
    for _ in range(300):
        values = np.zeros(days)
        shocks = draw.normal(size=days)
        for day in range(1, days):
            values[day] = 0.6 * values[day - 1] + shocks[day]
        found = mean_of(torch.from_numpy(values), clusters)
        held += found.low <= 0 <= found.high
        naive += abs(values.mean()) <= 1.96 * values.std() / math.sqrt(days)
    assert naive / 300 < 0.8
    assert held / 300 > 0.88


# the verdict


def verdict_of(ours: Tensor, done: Tensor, other: Tensor) -> dict[str, object]:
    count = len(ours)
    rows = BacktestRows(
        torch.zeros(count, dtype=torch.int64), torch.arange(count), torch.zeros(count, dtype=torch.int64)
    )

    def of(cost: Tensor) -> RealisedCosts:
        return RealisedCosts(cost, cost, torch.ones(count, dtype=torch.bool), None)

    found = {"auto": of(ours), "actual_decision": of(done), "season": of(other)}
    words = {"auto": "auto", "actual_decision": "the decisions actually taken", "season": "the same weekday"}
    return summarize(SHOP, rows, found, ["auto"], words, ["y"])


@pytest.mark.parametrize(
    ("ours", "done", "worth", "words"),
    [
        (8.0, 10.0, "yes", "less than the decisions actually taken"),
        (10.0, 8.0, "no", "more than the decisions actually taken"),
        (9.95, 10.0, "unclear", "no reason to change"),
        (10.05, 10.0, "unclear", "no reason to change"),
    ],
)
def test_the_verdict_follows_the_paired_difference(ours: float, done: float, worth: str, words: str) -> None:
    noise = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 200)))
    noise -= noise.mean(dim=1, keepdim=True)
    summary = verdict_of(ours + noise[0], done + noise[1], 12 + noise[2])
    verdict = summary["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["worth_using"] == worth
    assert words in verdict["text"]
    assert "the same weekday" in verdict["text"]
    assert summary["against"] == "actual_decision"


def test_a_policy_that_copies_current_practice_is_not_worth_using() -> None:
    costs = torch.rand(100, dtype=torch.float64)
    verdict = verdict_of(costs, costs.clone(), costs + 1)["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["worth_using"] == "no"
    assert "costs the same as" in verdict["text"]


@pytest.mark.parametrize(
    ("shares", "against", "worth"),
    [
        ({"auto": 1.0, "kernel": 0.7, "constant": 0.96}, "constant", "no"),
        ({"auto": 1.0, "kernel": 0.7}, "kernel", "yes"),
        ({"auto": 0.7, "kernel": 0.7, "constant": 0.96}, "constant", "no"),
        ({"auto": 0.97, "actual_decision": 0.6, "constant": 1.0}, "actual_decision", "yes"),
    ],
)
def test_an_infeasible_policy_is_not_called_cheaper(shares: dict[str, float], against: str, worth: str) -> None:
    """Costs are 3 for ours, 2 for constant and 1 for others; 95 % of the rows must meet the constraints."""
    found, count = {}, 200
    for name, share in shares.items():
        cost = torch.full((count,), {"auto": 3.0, "constant": 2.0}.get(name, 1.0), dtype=torch.float64)
        found[name] = RealisedCosts(cost, cost, torch.arange(count) < share * count, None)
    summary = summarize(
        FUND, BacktestRows(torch.zeros(count, dtype=torch.int64)), found, ["auto"], {n: n for n in found}, ["y"]
    )
    assert summary["against"] == against
    assert summary["verdict"]["worth_using"] == worth
    assert ("kept its constraints" in summary["verdict"]["text"]) == (against != "constant" or shares["auto"] < 0.9)


def test_gaps_in_actual_decisions_are_excluded_from_that_comparison_only() -> None:
    ours, done = torch.full((100,), 5.0, dtype=torch.float64), torch.full((100,), 7.0, dtype=torch.float64)
    ours[:50], done[:50] = 50.0, math.nan
    summary = verdict_of(ours, done, ours + 1)
    differences = {one["against"]: one for one in summary["differences"]}  # type: ignore[attr-defined]
    assert differences["actual_decision"]["rows"] == 50
    assert differences["actual_decision"]["mean"] == pytest.approx(-2.0)
    assert differences["season"]["rows"] == 100
    assert differences["actual_decision"]["relative"] == pytest.approx(-2 / 7)


def test_pieces_are_reassembled_in_row_order() -> None:
    one = RealisedCosts(torch.tensor([1.0]).double(), torch.tensor([0.5]).double(), torch.tensor([True]), None)
    whole = align(3, [(torch.tensor([2]), one)])
    assert whole.cost[2] == 1
    assert whole.cost[:2].isnan().all()
    assert whole.feasible.tolist() == [False, False, True]


def test_ieo_is_left_out_if_every_decision_needs_a_program() -> None:
    spec = {
        "kind": "mean_variance_portfolio",
        "assets": [{"name": "a"}, {"name": "b"}],
        "covariance": [[0.04, 0.0], [0.0, 0.01]],
    }
    assert RULES["ieo"].refusal(build_problem(spec), 0) == ""
    turned = spec | {"current": {"a": 0.5}, "turnover_cost": 0.01}
    assert "program" in RULES["ieo"].refusal(build_problem(turned), 0)
