"""Ids: format, order and uniqueness."""

from __future__ import annotations

import re

import pytest

from app.ids import new_id, sibling_id


def test_an_id_is_a_prefix_and_26_characters_without_lookalikes() -> None:
    assert re.fullmatch(r"post_[0-9A-HJKMNP-TV-Z]{26}", new_id("post"))


def test_ids_sort_by_the_millisecond_of_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    # Across the carries of the base-32 digits, and from today to the year 5138.
    for milliseconds in (1, 31, 32, 33, 1023, 1024, 1_700_000_000_000, 1_700_000_000_001, 100_000_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=milliseconds: now * 1_000_000 + 999_999)
        made.append(new_id("job"))
    assert made == sorted(made)


def test_ids_created_in_the_same_millisecond_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    assert len({new_id("job") for _ in range(1000)}) == 1000


def test_the_posterior_of_a_job_has_the_jobs_id_with_its_own_prefix() -> None:
    assert sibling_id("job_01JCXV7Q0GZ3M5W8K2T4N6P9RS", "post") == "post_01JCXV7Q0GZ3M5W8K2T4N6P9RS"
