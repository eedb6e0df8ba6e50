"""The shipment experiment: methods, order of runs, results file and report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bco_core.inference.options import make_options
from benchmarks.experiments import harness
from benchmarks.experiments.compare import compare, strongest
from benchmarks.experiments.harness import Finding
from benchmarks.experiments.shipment import run as shipment
from benchmarks.experiments.shipment.report import RIVALS, by_cell, markdown, overall, plot

KEY = (3, 50, 7, 0)
CHEAP = ("saa", "ieo", "tps", "map", "bcp")


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    with patch.context() as changed:
        changed.setattr(shipment, "TEST_CONTEXTS", 20)
        changed.setattr(shipment, "PENALTIES", (0.0, 1e-3))
        brief = make_options(predictor="linear", members=5, epochs=3, particles=40)
        changed.setattr(shipment, "make_options", lambda seed: brief)
        return shipment.perform(KEY, list(shipment.METHODS))


@pytest.mark.slow
def test_every_method_decides_and_none_beats_the_lower_bound(findings: list[Finding]) -> None:
    costs = {finding.method: finding.value for finding in findings}
    assert set(costs) == set(shipment.METHODS)
    assert all(finding.run == KEY and finding.seconds >= 0 for finding in findings)
    assert min(costs.values()) == costs["floor"]
    assert costs["auto"] == pytest.approx(costs["averaged"], rel=0.3)


def test_a_run_is_reproducible_and_runs_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipment, "TEST_CONTEXTS", 10)
    first, again = shipment.perform(KEY, ["saa"]), shipment.perform(KEY, ["saa"])
    other = shipment.perform((3, 50, 7, 1), ["saa"])
    assert first[0].value == again[0].value != other[0].value


def test_every_cell_runs_once_before_any_repeats() -> None:
    planned = shipment.keys((0, 9), (50, 400), 2, 5)
    assert len(set(planned)) == len(planned) == 8
    assert {key[3] for key in planned[:4]} == {0}


@pytest.mark.slow
def test_results_are_stored_in_a_file_and_not_recomputed(tmp_path: Path, findings: list[Finding]) -> None:
    path = tmp_path / "new" / "shipment.csv"
    assert harness.read(path, shipment.NAMES) == []
    harness.append(path, shipment.NAMES, findings[:2])
    harness.append(path, shipment.NAMES, findings[2:4])
    stored = harness.read(path, shipment.NAMES)
    assert [(f.run, f.method) for f in stored] == [(f.run, f.method) for f in findings[:4]]
    assert [f.value for f in stored] == pytest.approx([f.value for f in findings[:4]], rel=1e-5)
    methods = [finding.method for finding in findings[:5]]
    assert harness.missing([KEY], methods, stored) == [(KEY, methods[4:])]
    assert harness.missing([KEY], methods[:4], stored) == []


def test_the_report_pairs_runs_and_counts_cells(tmp_path: Path) -> None:
    made = [
        Finding((dims, 50, 0, run), method, value + run, 0.1)
        for dims in (0, 9)
        for run in (0, 1, 2)
        for method, value in (("auto", 100.0 + dims), ("ieo", 110.0), ("bcp", 105.0), ("floor", 90.0))
    ]
    cells = by_cell([*made, Finding((0, 50, 0, 9), "ieo", 1.0, 0.1)])
    gain = compare(cells[0, 50], "auto", "ieo")
    assert gain is not None
    assert (gain.difference.mean, gain.difference.standard_error, gain.runs) == (-10.0, 0.0, 3)
    assert compare(cells[0, 50], "auto", "enw") is None
    beside = strongest(cells[9, 50], "auto", RIVALS)
    assert beside is not None
    assert (beside.rival, beside.difference.mean) == ("bcp", 4.0)
    figures = overall(cells)
    assert (figures["cells"], figures["cells_below_ieo"], figures["cells_below_bcp"]) == (2, 2, 1)
    assert (figures["cells_clearly_below_strongest"], figures["cells_clearly_above_strongest"]) == (1, 1)
    text = markdown(cells)
    assert "| 9 | 50 | 3 |" in text
    assert "| 0 | 50 | 3–4 |" in text
    assert "| BCP | +4 ± 0 | 3 |" in text
    assert "- BCP: won 1, tied 0, lost 1 of 2 cells" in text
    plot(cells, tmp_path / "boxes.png")
    assert (tmp_path / "boxes.png").stat().st_size > 10_000
