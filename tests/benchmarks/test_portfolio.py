"""The portfolio experiment: market, baselines, control, results file and report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bco_core.data import make_folds
from bco_core.inference.mh.starts import fit_squared_error
from benchmarks.experiments.harness import missing
from benchmarks.experiments.portfolio import baselines
from benchmarks.experiments.portfolio import run as experiment
from benchmarks.experiments.portfolio.report import as_json, markdown, plot, summarize
from benchmarks.experiments.portfolio.run import (
    METHODS,
    Judge,
    Market,
    PortfolioResult,
    PortfolioRun,
    PortfolioTrial,
    append,
    perform,
    plan,
    read,
)

MARKET = Market.make()
SHORT = {"steps": 60, "burn_in": 30, "hidden": 8}


@pytest.fixture(scope="module")
def trial() -> PortfolioTrial:
    return PortfolioTrial(MARKET, Judge.of(MARKET, 200), PortfolioRun(100, 0, 3), **SHORT)


def test_the_market_matches_the_paper() -> None:
    sample = MARKET.draw(50_000, 1)
    assert sample.outcomes.mean().item() == pytest.approx(0.1, abs=0.001)
    residuals = sample.outcomes - 0.1 - sample.contexts @ MARKET.slopes
    expected = MARKET.problem.portfolios.covariance
    assert (torch.cov(residuals.T) - expected).abs().max() < 2e-5
    assert set((MARKET.slopes / (0.05 / 5**0.5)).unique().tolist()) == {0.0, 1.0}
    assert MARKET.loadings.abs().max() <= 0.005
    assert torch.equal(Market.make().slopes, MARKET.slopes)
    assert not torch.equal(MARKET.draw(5, 1).outcomes, MARKET.draw(5, 2).outcomes)


def test_the_oracle_has_regret_one_and_keeps_the_return_where_possible(trial: PortfolioTrial) -> None:
    judge = trial.judge_
    decisions = MARKET.problem.decide(judge.test.outcomes)
    feasibility, regret = judge.judge(decisions)
    assert regret == pytest.approx(1)
    assert feasibility > 0.97


def test_enw_weights_match_the_paper_and_leave_one_row_out() -> None:
    contexts = torch.tensor([[0.0], [1.0], [3.0]]).double()
    weights = baselines._weights(torch.tensor([[0.0]]).double(), contexts, 0.5)
    raw = torch.exp(-torch.tensor([0.0, 1.0, 3.0]).double() / 0.5)
    torch.testing.assert_close(weights[0], raw / raw.sum())
    left = baselines._weights(contexts[:2], contexts, 0.5, leave_out=torch.arange(2))
    assert left[0, 0] == left[1, 1] == 0
    torch.testing.assert_close(left.sum(dim=1), torch.ones(2).double())


@pytest.mark.slow
def test_the_shift_and_the_penalties_raise_feasibility_over_the_plain_fit(trial: PortfolioTrial) -> None:
    judge, target = trial.judge_, trial.target
    theta = fit_squared_error(target, make_folds(100, 1, trial.generator), trial.generator)
    plain = judge.judge(judge.decide(trial.hedge(theta))[0])[0]
    lowered = judge.judge(judge.decide(baselines.shifted(trial.problem, target, trial.contexts, trial.generator))[0])[0]
    each = baselines.penalties(trial.problem, target, trial.contexts, trial.generator, repeats=1)
    penalised = [judge.judge(judge.decide(hedge)[0])[0] for hedge in each]
    assert plain < 0.75
    assert lowered > plain + 0.1
    assert min(penalised) > plain + 0.1


@pytest.mark.slow
def test_every_method_decides_and_the_control_meets_its_feasibility(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "BANDWIDTHS", (0.4, 2.0))
    monkeypatch.setattr(baselines, "_JUDGED_ROWS", 20)
    monkeypatch.setattr(experiment, "_CONTROL_SHIFTS", (-0.2, 0.0, 0.2))
    results = perform(PortfolioRun(100, 1, 3), list(METHODS), 100, **SHORT)
    by_method = {result.method: result for result in results}
    assert set(by_method) == set(METHODS) | {"control_bcp", "control_bcp_cold", "control_bcp_strict", "control_bcp_raw"}
    for result in results:
        assert 0 <= result.feasibility <= 1
        assert 0 <= result.beyond_reach <= 1
        assert result.regret > 0.9
    control, bcp = by_method["control_bcp"], by_method["bcp"]
    assert control.feasibility <= bcp.feasibility + 1e-9
    assert by_method["bcp"].feasibility > by_method["bcp_1_chain"].feasibility - 0.1
    assert by_method["saa"].regret > by_method["shifted"].regret


def results() -> list[PortfolioResult]:
    return [
        PortfolioResult(PortfolioRun(n, number, 0), method, 0.9 + 0.01 * number, 2.0 + number, 0.02, 1.5)
        for n in (100, 400)
        for number in range(3)
        for method in ("enw", "bcp", "control_bcp")
    ]


def test_an_interrupted_experiment_resumes_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "portfolio.csv"
    assert read(path) == []
    append(path, results()[:4])
    append(path, results()[4:])
    assert read(path) == results()
    wanted = plan((100, 400), 4, 0)
    assert [run.n for run in wanted[:2]] == [400, 100]
    todo = missing(wanted, ["enw", "bcp", "saa"], read(path))
    assert len(todo) == 8
    assert todo[0] == (PortfolioRun(400, 0, 0), ["saa"])
    assert todo[-1] == (PortfolioRun(100, 3, 0), ["enw", "bcp", "saa"])
    assert len({run.entropy() for run in wanted}) == 8


def test_the_report_has_means_errors_and_paired_differences(tmp_path: Path) -> None:
    summaries = summarize(results())
    assert [summary.n for summary in summaries] == [100, 400]
    assert summaries[0].differences["bcp"].mean == 0
    table = markdown(summaries, "It reproduces.")
    assert "| 400 | BCP, scaled λn = 1000 | 3 | 0.910 ± 0.006 | 3.00 ± 0.58 | 0.020 | 1.5 |" in table
    assert "It reproduces." in table
    figures = json.loads(json.dumps(as_json(summaries)))
    assert figures["n400"]["bcp"]["feasibility"]["mean"] == pytest.approx(0.91)
    assert as_json(summarize(results()[:3]))["n100"]["bcp"]["regret"]["standard_error"] is None
    plot(results(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_the_settings_match_the_paper() -> None:
    assert (experiment.CHAINS, experiment.STEPS, experiment.BURN_IN) == (4, 15_000, 5_000)
    assert (experiment.TARGET, experiment.CONFIDENCE, experiment.SIZES) == (0.09, 0.95, (100, 200, 400))
    assert PortfolioTrial(MARKET, Judge.of(MARKET, 100), PortfolioRun(100, 0, 0)).target.predictor.dim == 11_250
