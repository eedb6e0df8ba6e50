"""The trust benchmark: false optima, certificates and independence of shipments."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bench import trust
from benchmarks.experiments.shipment.data import draw_contexts


def test_every_hard_program_runs_once_and_none_is_falsely_optimal() -> None:
    assert trust._optimal(100) == {"false_optimal": 0.0, "hard_programs": 100}


def test_one_wrong_optimum_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def one_of_the_first(count: int, seed: int) -> tuple[int, int]:
        seeds.append(seed)
        return int(len(seeds) == 1), count

    monkeypatch.setattr(trust, "false_optimal", one_of_the_first)
    assert trust._optimal(200) == {"false_optimal": 1 / 200, "hard_programs": 200}
    assert len(set(seeds)) == 3


@pytest.mark.slow
def test_certificates_hold_and_are_tight() -> None:
    torch.set_num_threads(1)
    found = trust._certificates(1)
    assert 1 < found["certificate_ratio_least"] == found["certificate_ratio"] < 2


@pytest.mark.slow
def test_shipments_are_sampled_far_enough_apart_to_be_independent() -> None:
    def memory(contexts: torch.Tensor) -> float:
        centred = contexts - contexts.mean(dim=0)
        lagged = (centred[1:] * centred[:-1]).mean(dim=0) / centred.square().mean(dim=0)
        return lagged.abs().max().item()

    generator = torch.Generator().manual_seed(0)
    assert memory(draw_contexts(2000, 0, generator)) > 0.3
    assert memory(trust._shipment(2000, 0).contexts) < 0.1
