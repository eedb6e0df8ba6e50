"""Progress callbacks: parts of a whole, cancellation and figures in messages."""

from __future__ import annotations

import math

import pytest

from bco_core.errors import Cancelled
from bco_core.progress import Message, figures_of, no_progress, part_of, without_figures


def test_a_part_maps_its_progress_into_its_share_of_the_whole() -> None:
    calls: list[tuple[float, str]] = []
    part = part_of(lambda fraction, message: calls.append((fraction, message)), 0.2, 0.6)
    for fraction in (0.0, 0.5, 1.0):
        part(fraction, f"at {fraction}")
    assert [fraction for fraction, _ in calls] == pytest.approx([0.2, 0.4, 0.6])
    assert [message for _, message in calls] == ["at 0.0", "at 0.5", "at 1.0"]


def test_nested_parts_stay_within_their_share() -> None:
    calls: list[float] = []
    inner = part_of(part_of(lambda fraction, message: calls.append(fraction), 0.5, 1.0), 0.0, 0.5)
    inner(1.0, "")
    assert calls == [0.75]


def test_cancelling_the_whole_stops_the_part() -> None:
    def cancel(fraction: float, message: str) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        part_of(cancel, 0.0, 0.5)(0.1, "")
    no_progress(0.5, "nobody watches")


def test_messages_carry_figures_through_parts_and_stay_strings() -> None:
    calls: list[str] = []
    told = Message("epoch 3", {"epoch": 3, "risk": 1.23456789, "kl": math.inf, "cost": None})
    part_of(lambda fraction, message: calls.append(message), 0.2, 0.6)(0.5, told)
    assert calls == ["epoch 3"]
    assert figures_of(calls[0]) == ({"epoch": 3, "risk": 1.23457},)
    assert figures_of("epoch 3") == figures_of(Message("epoch 3", {"cost": math.nan})) == ()


def test_figures_can_be_omitted() -> None:
    calls: list[str] = []
    without_figures(lambda fraction, message: calls.append(message))(0.5, Message("epoch 3", {"risk": 2.0}))
    assert calls == ["epoch 3"]
    assert figures_of(calls[0]) == ()
