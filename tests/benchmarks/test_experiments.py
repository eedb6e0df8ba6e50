"""The newsvendor experiment and the restaurant data: generators, runs, results and reports."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.errors import InvalidInput
from benchmarks.experiments.harness import missing
from benchmarks.experiments.newsvendor import run as newsvendor
from benchmarks.experiments.newsvendor.data import CONTEXT_DIM, DEMANDS, NORMAL, STUDENT, Noise, sobol_contexts
from benchmarks.experiments.newsvendor.report import markdown, overall, plot, summarize
from benchmarks.experiments.newsvendor.run import NewsvendorResult, NewsvendorRun, append, perform, plan, read
from benchmarks.experiments.newsvendor.table1 import CELLS, PAPER, SIZES, TAUS, Cell, PaperFigures
from benchmarks.experiments.yaz import data as yaz_days
from benchmarks.experiments.yaz import run as yaz
from benchmarks.experiments.yaz.data import Days
from tests.support.seeds import seeded

LEVELS = (0.5, 0.75, 0.95)
DRAWS = 400_000


def pinball(level: float, decision: Tensor, outcomes: Tensor) -> Tensor:
    short = outcomes - decision
    return torch.where(short > 0, level * short, (level - 1) * short)


# generators


@pytest.mark.parametrize("noise", [NORMAL, STUDENT])
@pytest.mark.parametrize("level", LEVELS)
def test_noise_quantiles_cut_off_their_share_of_draws(noise: Noise, level: float) -> None:
    draws = noise.draw(DRAWS, seeded(1))
    below = (draws <= noise.quantile(level)).double().mean().item()
    assert below == pytest.approx(level, abs=5 * math.sqrt(level * (1 - level) / DRAWS))


def test_student_t_quantiles_match_the_textbook() -> None:
    assert STUDENT.quantile(0.95) == pytest.approx(2.353363, abs=1e-6)
    assert STUDENT.quantile(0.75) == pytest.approx(0.764892, abs=1e-6)
    assert STUDENT.quantile(0.5) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("dgp", DEMANDS)
@pytest.mark.parametrize("level", LEVELS)
def test_demand_is_below_its_conditional_quantile_with_that_probability(dgp: int, level: float) -> None:
    sample = DEMANDS[dgp].draw(100_000, seeded(dgp))
    assert sample.contexts.min() >= 0
    assert sample.contexts.max() <= 1
    below = (sample.outcomes[:, 0] <= DEMANDS[dgp].quantile(level, sample.contexts)).double().mean().item()
    assert below == pytest.approx(level, abs=5 * math.sqrt(level * (1 - level) / 100_000))


def test_quantile_functions_match_the_paper_at_a_corner() -> None:
    ones = torch.ones(1, CONTEXT_DIM, dtype=torch.float64)
    total_a, total_b = 3.814, 10.05
    normal = NORMAL.quantile(0.75)
    expected = {
        1: 2 * total_a + STUDENT.quantile(0.75),
        2: math.exp(0.1 * total_a) + abs(math.sin(math.pi * total_b)) * normal,
        3: 3 + 4 * 0.25 + 2 * math.sin(math.pi) - 5 * 0.5 + math.exp(0.1 * (total_b - 0.5)) * normal,
    }
    for dgp, value in expected.items():
        assert DEMANDS[dgp].quantile(0.75, ones).item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("dgp", DEMANDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("offset", [-2.0, 0.0, 1.5])
def test_expected_cost_is_the_mean_over_many_outcomes(dgp: int, level: float, offset: float) -> None:
    demand = DEMANDS[dgp]
    context = torch.rand(1, CONTEXT_DIM, generator=seeded(dgp), dtype=torch.float64)
    decision = demand.quantile(level, context) + offset
    noise = demand.noise.draw(DRAWS, seeded(7))
    costs = pinball(level, decision, demand.location(context) + demand.scale(context) * noise)
    exact = demand.expected_cost(level, context, decision).item()
    assert exact == pytest.approx(costs.mean().item(), abs=5 * costs.std().item() / math.sqrt(DRAWS))


def test_certain_demand_costs_exactly_its_shortage_or_surplus() -> None:
    context = torch.zeros(1, CONTEXT_DIM, dtype=torch.float64)
    decisions = torch.tensor([0.4], dtype=torch.float64)
    assert DEMANDS[2].scale(context).item() == 0
    assert DEMANDS[2].expected_cost(0.95, context, decisions).item() == pytest.approx(0.95 * 0.6)
    assert DEMANDS[2].expected_cost(0.95, context, decisions + 1).item() == pytest.approx(0.05 * 0.4)


@pytest.mark.parametrize("dgp", DEMANDS)
def test_only_the_oracle_has_no_gap(dgp: int) -> None:
    contexts = sobol_contexts(2**10)
    oracle = DEMANDS[dgp].quantile(0.75, contexts)
    assert DEMANDS[dgp].gap(0.75, contexts, oracle) == pytest.approx(0, abs=1e-9)
    assert DEMANDS[dgp].gap(0.75, contexts, oracle + 0.1) > 0
    assert DEMANDS[dgp].gap(0.75, contexts, oracle - 0.1) > 0


def test_sobol_contexts_fill_the_cube_evenly_and_repeat() -> None:
    contexts = sobol_contexts(2**12)
    assert contexts.shape == (2**12, CONTEXT_DIM)
    assert torch.equal(contexts, sobol_contexts(2**12))
    assert torch.allclose(contexts.mean(dim=0), torch.full((CONTEXT_DIM,), 0.5, dtype=torch.float64), atol=1e-3)
    assert ((contexts[:, 0] < 0.25).sum() - 2**10).abs() <= 1


# the paper's table


def test_the_papers_table_is_transcribed_correctly() -> None:
    assert len(PAPER) == len(CELLS) == 45
    assert PAPER[Cell(1, 0.5, 256)] == PaperFigures(26.3, 29.9, 5.18, 2.33)
    assert PAPER[Cell(1, 0.95, 4096)] == PaperFigures(3.41, 2.23, 1.82, 0.75)
    assert PAPER[Cell(2, 0.75, 1024)] == PaperFigures(15.4, 5.08, 8.53, 0.45)
    assert PAPER[Cell(3, 0.75, 512)] == PaperFigures(25.8, 4.16, 18.2, 3.16)
    assert PAPER[Cell(3, 0.95, 2048)] == PaperFigures(17.8, 3.75, 12.4, 3.98)
    assert all(published.bcp_mean < published.ieo_mean for published in PAPER.values())


# the experiment


def test_every_run_of_every_cell_has_its_own_data() -> None:
    runs = [NewsvendorRun(cell, number, seed) for cell in CELLS for number in range(10) for seed in (0, 1)]
    assert len({run.entropy() for run in runs}) == len(runs)


def test_runs_are_reproducible_and_saa_is_near_the_best_constant() -> None:
    contexts = sobol_contexts(2**10)
    run = NewsvendorRun(Cell(3, 0.75, 256), 0, 0)
    (first,) = perform(run, ["saa"], contexts)
    (again,) = perform(run, ["saa"], contexts)
    assert first.gap == again.gap
    constants = torch.linspace(0, 10, 101, dtype=torch.float64)
    best = min(DEMANDS[3].gap(0.75, contexts, constant.expand(len(contexts))) for constant in constants)
    assert best - 0.1 < first.gap < best + 3


def test_methods_see_the_same_rows_whatever_other_methods_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sample] = []

    def spy(trial: newsvendor.NewsvendorTrial) -> Tensor:
        seen.append(trial.all_rows)
        assert len(trial.train) == 256
        assert len(trial.validation) == 64
        return torch.zeros(len(trial.contexts), 1, dtype=torch.float64)

    monkeypatch.setitem(newsvendor.METHODS, "spy", spy)
    run = NewsvendorRun(Cell(1, 0.5, 256), 3, 0)
    perform(run, ["saa", "spy"], sobol_contexts(16))
    perform(run, ["spy"], sobol_contexts(16))
    assert torch.equal(seen[0].outcomes, seen[1].outcomes)
    assert torch.equal(seen[0].contexts, seen[1].contexts)


def test_runs_cover_all_cells_before_repeating_any() -> None:
    cells = [Cell(1, 0.5, 256), Cell(1, 0.5, 4096)]
    runs = plan(cells, lambda cell: 3 if cell.n == 256 else 1, seed=0)
    assert [(run.cell.n, run.number) for run in runs] == [(4096, 0), (256, 0), (256, 1), (256, 2)]


def test_results_round_trip_through_the_file_and_are_not_recomputed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.csv"
    cell = Cell(2, 0.95, 512)
    runs = plan([cell], lambda _: 2, seed=4)
    results = [
        NewsvendorResult(runs[0], "saa", 12.5, 0.25),
        NewsvendorResult(runs[0], "ieo", 9.0, 3.0),
        NewsvendorResult(runs[1], "saa", 11.0, 0.5),
    ]
    assert read(path) == []
    append(path, results[:1])
    append(path, results[1:])
    assert read(path) == results
    assert missing(runs, ["saa", "ieo"], read(path)) == [(runs[1], ["ieo"])]
    assert missing(runs, ["saa"], read(path)) == []
    assert missing(plan([cell], lambda _: 1, seed=5), ["saa"], read(path)) != []


@pytest.mark.slow
def test_an_experiment_resumes_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    runs = plan([Cell(1, 0.5, 256)], lambda _: 3, seed=0)
    append(path, perform(runs[0], ["saa"]))
    todo = missing(runs, ["saa"], read(path))
    new = [result for results in newsvendor.perform_all(todo, path, jobs=2) for result in results]
    assert {result.run for result in new} == set(runs[1:])
    assert missing(runs, ["saa"], read(path)) == []
    assert read(path)[0].gap == pytest.approx(perform(runs[0], ["saa"])[0].gap, rel=1e-5)


@pytest.mark.slow
def test_a_failing_run_raises_after_the_others_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    runs = plan([Cell(1, 0.5, 256)], lambda _: 2, seed=0)
    with pytest.raises(KeyError, match="nonsense"):
        list(newsvendor.perform_all([(runs[0], ["nonsense"]), (runs[1], ["saa"])], path, jobs=1))
    assert [result.run for result in read(path)] == [runs[1]]


# the report

CELL = Cell(3, 0.75, 512)
GAPS = {"ieo": (10.0, 12.0, 14.0), "auto": (4.0, 5.0, 9.0), "bcp": (20.0, 20.0, 20.0), "regression": (3.0, 6.0, 8.0)}
RESULTS = [
    NewsvendorResult(NewsvendorRun(CELL, number, 0), method, gap, 1.0)
    for method, gaps in GAPS.items()
    for number, gap in enumerate(gaps)
]


def test_the_summary_compares_auto_with_ieo_and_with_the_strongest() -> None:
    (summary,) = summarize(RESULTS)
    assert (summary.gaps["auto"].mean, summary.gaps["auto"].runs) == (6.0, 3)
    assert summary.gaps["auto"].std == pytest.approx(math.sqrt(7))
    assert summary.ieo is not None
    assert summary.ieo.difference.mean == pytest.approx(-6)
    assert summary.ieo.difference.standard_error == pytest.approx(1 / math.sqrt(3))
    assert summary.strongest is not None
    assert (summary.strongest.rival, summary.strongest.runs) == ("regression", 3)
    assert summary.strongest.difference.mean == pytest.approx(1 / 3)
    assert summary.below_paper("auto")
    assert not summary.below_paper("bcp")


def test_overall_averages_weigh_cells_equally() -> None:
    other = Cell(1, 0.5, 4096)
    worse = [
        NewsvendorResult(NewsvendorRun(other, number, 0), name, 2.0 + number, 1.0)
        for number in range(2)
        for name in ("ieo", "auto")
    ]
    figures = overall(summarize(RESULTS + worse))
    assert figures["cells"] == 2
    assert figures["auto_cells_below_paper"] == figures["cells_below_ieo"] == figures["cells_clearly_below_ieo"] == 1
    assert figures["bcp_cells_above_paper"] == 1
    assert figures["cells_above_strongest"] == 2
    assert figures["cells_clearly_above_strongest"] == 0
    assert figures["auto_mean"] == pytest.approx((6 + 2.5) / 2)
    assert figures["paper_ieo"] == pytest.approx((25.8 + 1.04) / 2)
    assert figures["paper_bcp"] == pytest.approx((18.2 + 0.76) / 2)
    assert figures["over_ieo_mean"] == pytest.approx(-3)
    assert figures["over_ieo_se"] == pytest.approx(1 / math.sqrt(3) / 2)


def test_a_single_run_has_no_standard_error_and_valid_json() -> None:
    figures = overall(summarize(result for result in RESULTS if result.run.number == 0))
    assert figures["over_ieo_se"] is None
    assert "NaN" not in json.dumps(figures)
    assert "Infinity" not in json.dumps(figures)


def test_the_table_shows_the_papers_results_next_to_ours() -> None:
    text = markdown(summarize(RESULTS))
    (row,) = [line for line in text.splitlines() if line.startswith("| 3 ")]
    assert "| 25.8 ± 4.16 | 18.2 ± 3.16 |" in row
    assert "| **6 ± 2.6** |" in row
    assert "| 12 ± 2 |" in row
    assert row.endswith("| regression | +0.33 ± 0.67 | 3 |")
    assert "the paper's BCP: a lower mean in 1 of 1" in text
    assert "Our BCP as printed is above the paper's BCP in 1 of 1 cells." in text
    assert "- the strongest baseline: won 0, tied 1, lost 0 of 1 cells" in text


def test_runs_without_a_method_are_dropped_from_its_comparison_only() -> None:
    partly = [result for result in RESULTS if result.method != "regression" or result.run.number == 1]
    (summary,) = summarize(partly)
    assert summary.strongest is not None
    assert (summary.strongest.rival, summary.strongest.runs) == ("regression", 1)
    assert summary.strongest.difference.mean == -1
    assert not summary.strongest.clear
    (row,) = [line for line in markdown([summary]).splitlines() if line.startswith("| 3 ")]
    assert "| 512 | 1–3 |" in row
    assert row.endswith("| regression | -1 | 1 |")
    (alone,) = summarize(result for result in RESULTS if result.method != "auto")
    assert alone.strongest is None
    assert "strongest baseline:" not in markdown([alone])


@pytest.mark.slow
def test_the_plot_is_written_for_a_partial_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(summarize(RESULTS), tmp_path / "gaps.png")
    assert (tmp_path / "gaps.png").read_bytes().startswith(b"\x89PNG")
    assert len(SIZES) * len(TAUS) == 15


# the restaurant

LENGTH = 120
Design = Callable[[Days], Tensor]


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Days:
    """Read a restaurant with two ingredients, weekends, a holiday and a closed day from files."""
    folder = tmp_path_factory.mktemp("yaz")
    draw = torch.Generator().manual_seed(0)
    known = ["date,weekday,month,year,is_holiday,is_closed,weekend,wind,clouds,rain,sunshine,temperature"]
    demand = ["soup,bread"]
    first = datetime.date(2020, 1, 6)
    for day in range(LENGTH):
        date = first + datetime.timedelta(days=day)
        closed = day == 60
        guests = 0 if closed else (30 if date.weekday() < 5 else 60) + int(torch.randint(10, (1,), generator=draw))
        known.append(f"{date},x,y,2020,{int(day == 50)},{int(closed)},0,2,5,0,100,{10 + day % 20}")
        demand.append(f"{guests},{guests // 3}")
    (folder / "yaz_data.csv").write_text("\n".join(known))
    (folder / "yaz_target.csv").write_text("\n".join(demand))
    return yaz_days.read_days(folder)


@pytest.mark.parametrize("make", [yaz_days.compact_contexts, yaz_days.wide_contexts])
@pytest.mark.parametrize("day", [50, 61, 100])
def test_contexts_use_only_demand_at_least_a_week_old(days: Days, make: Design, day: int) -> None:
    later = torch.arange(LENGTH) > day - 7
    changed = replace(days, demand=torch.where(later[:, None], 1000 + days.demand, days.demand))
    assert torch.equal(make(changed)[7 : day + 1], make(days)[7 : day + 1])
    assert torch.equal(yaz_days.levels(changed)[7 : day + 1], yaz_days.levels(days)[7 : day + 1])
    assert not torch.equal(make(changed)[day + 1 :], make(days)[day + 1 :])


def test_levels_are_the_share_of_all_demand_times_all_demand(days: Days) -> None:
    steady = replace(days, demand=torch.tensor([[30.0, 10.0]], dtype=torch.float64).expand(LENGTH, 2))
    level = yaz_days.levels(steady)
    assert level[:7].isnan().all()
    assert torch.allclose(level[7:], torch.tensor([30.0, 10.0], dtype=torch.float64))


def test_closed_days_are_excluded_from_training_and_decisions(days: Days) -> None:
    split = yaz.split_days(days)
    assert 60 not in split.train
    assert split.train.max() < 90 <= split.test.min()
    hidden = days.demand.clone()
    hidden[60] = 1e6
    changed = replace(days, demand=hidden)
    assert torch.equal(yaz_days.levels(changed)[7:], yaz_days.levels(days)[7:])
    assert torch.equal(yaz_days.wide_contexts(changed)[7:], yaz_days.wide_contexts(days)[7:])


def test_tuning_blocks_hold_out_every_training_day_once(days: Days) -> None:
    split = yaz.split_days(days)
    blocks = list(split.blocks())
    held_out = torch.cat([block.test for block in blocks])
    assert torch.equal(held_out, split.train[split.train >= yaz_days.WARM_UP_DAYS])
    assert all(not set(block.test.tolist()) & set(block.train.tolist()) for block in blocks)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"yaz_data\.csv"):
        yaz_days.read_days(tmp_path)
