"""Parsing numbers typed into forms."""

from __future__ import annotations

import pytest

from app.pages.forms import parse_number


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("1.5", 1.5),
        ("1,5", 1.5),
        (" 12 ", 12),
        ("−3", -3),
        ("1e3", 1000),
        (".5", 0.5),
        ("1\N{NO-BREAK SPACE}200", 1200),
    ],
)
def test_numbers_may_use_a_decimal_point_or_comma(typed: str, number: float) -> None:
    assert parse_number(typed) == number


@pytest.mark.parametrize("typed", ["", "x", "1.234,5", "1,200", "nan", "inf", "1e999", "1_000", "about 3"])
def test_text_that_is_not_a_number_stays_text(typed: str) -> None:
    assert parse_number(f" {typed} ") == typed
