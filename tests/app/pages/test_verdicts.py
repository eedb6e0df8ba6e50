"""Diagnostics as sentences: which differences are significant, and how numbers are written."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.pages.posteriors import charts, verdicts
from app.pages.posteriors.diagnostics import EstimateView, estimate, numbers, value
from app.pages.render import number

Json = dict[str, Any]


def mean_and_error(mean: float, error: float | None) -> Json:
    return {"mean": mean, "standard_error": error}


GOOD: Json = {
    "quality": "ok",
    "reason": "all is well",
    "policy": "averaged",
    "held_out_rows": 400,
    "judged_cost": mean_and_error(20.0, 0.5),
    "constant_decision_cost": mean_and_error(40.0, 1.0),
    "gain_over_constant": mean_and_error(-20.0, 1.0),
    "regression_cost": mean_and_error(21.0, 0.6),
    "gain_over_regression": mean_and_error(-1.0, 0.5),
    "promise": {
        "expected": mean_and_error(19.0, 0.2),
        "realised": mean_and_error(20.0, 0.5),
        "ratio": 0.95,
        "standard_error": 0.02,
    },
    "promise_warning": "",
    "calibration": {"rows": 400, "coverage": {"0.9": 0.91}, "pit": [0.1] * 10},
    "held_out_cost": {"averaged": mean_and_error(20.0, 0.5), "bcp": mean_and_error(24.0, 0.5)},
    "policies": [
        {
            "policy": "averaged",
            "cost": mean_and_error(20.0, 0.5),
            "against_default": mean_and_error(0.0, 0.0),
            "chosen": True,
        },
        {
            "policy": "bcp",
            "cost": mean_and_error(24.0, 0.5),
            "against_default": mean_and_error(4.0, 0.5),
            "chosen": False,
        },
    ],
}


def sentences(problem: Json | None = None, **changes: Any) -> list[tuple[str, str]]:
    found = verdicts.verdict_sentences(GOOD | changes, problem or {"kind": "newsvendor"})
    plain = [re.sub(r'<span class="tip".*?</span>|<[^>]+>', "", str(one.text)) for one in found]
    return [(text.replace("\u00a0", " "), one.tone) for text, one in zip(plain, found, strict=True)]


def test_a_good_posterior_gets_good_verdicts() -> None:
    assert sentences() == [
        ("A decision costs 20 ± 1 on average on 400 held-out rows.", ""),
        ("Compared with one constant decision, which costs 40, it saves 20 ± 2 (50 %), significant.", "ok"),
        (
            "Compared with plain regression with its residuals, which costs 21, it saves 1 ± 1 (5 %), not significant.",
            "",
        ),
        (
            "Costs were as expected: decisions cost 5 % ± 4 % more than expected, and 90 % ranges covered 91 % of "
            "outcomes.",
            "ok",
        ),
    ]


@pytest.mark.parametrize(
    ("more", "words", "tone"),
    [
        (mean_and_error(-2.0, 0.5), "it saves 2 ± 1 (10 %), significant.", "ok"),
        (mean_and_error(-1.2, 0.5), "it saves 1.2 ± 1 (6 %), barely significant.", ""),
        (mean_and_error(0.9, 0.5), "it costs 0.9 ± 1 (4 %) more, not significant.", ""),
        (mean_and_error(2.0, 0.5), "it costs 2 ± 1 (10 %) more, significant.", "bad"),
        (mean_and_error(2.0, None), "it costs 2 (10 %) more, significance unknown.", ""),
    ],
)
def test_differences_say_whether_they_are_significant(more: Json, words: str, tone: str) -> None:
    text, found = sentences(gain_over_regression=more)[2]
    assert (text.partition("costs 21, ")[2], found) == (words, tone)


def test_negative_costs_show_no_percentages() -> None:
    (_, _), (text, _), *_ = sentences(
        constant_decision_cost=mean_and_error(-10.0, 1.0), gain_over_constant=mean_and_error(-3.0, 0.5)
    )
    assert text.endswith("which costs −10, it saves 3 ± 1, significant.")


def test_a_promise_warning_is_quoted_from_the_service() -> None:
    assert sentences(promise_warning="predicted ranges are miscalibrated")[3] == (
        "Costs differed from expectations: predicted ranges are miscalibrated.",
        "warn",
    )


def test_another_policy_is_named_only_if_it_is_clearly_cheaper() -> None:
    text, tone = sentences(policy="bcp")[-1]
    assert text == "It uses the policy bcp; on the same rows averaged would have cost 20 instead of 24."
    assert tone == "warn"
    close = [GOOD["policies"][0], GOOD["policies"][1] | {"against_default": mean_and_error(0.5, 0.5)}]
    assert "It uses" not in str(sentences(policy="bcp", policies=close))


def test_rules_that_may_violate_constraints_raise_no_warning() -> None:
    fund: Json = {"kind": "return_constrained_portfolio", "confidence": 0.9}
    worse = mean_and_error(2.0, 0.1)
    found = sentences(
        fund, gain_over_constant=worse, gain_over_regression=worse, held_out_feasibility=0.93, policy="bcp"
    )
    assert all("need not meet the constraints" in text and tone == "" for text, tone in found[1:3])
    assert found[-1] == (
        "Constraints were met on 93.0 % of held-out rows; 90 % is required.",
        "ok",
    )
    assert sentences(fund, held_out_feasibility=0.8)[-1][1] == "warn"


def test_miscalibration_is_described_only_if_significant() -> None:
    def coverage(pit: list[float], rows: int = 400) -> str:
        return verdicts.coverage_text({"calibration": {"rows": rows, "pit": pit}})

    assert coverage([0.1] * 10).startswith("Ranges are well calibrated")
    assert "too narrow" in coverage([0.2] + [0.075] * 8 + [0.2])
    assert "too wide" in coverage([0.02] + [0.12] * 8 + [0.02])
    assert "above the predicted median" in coverage([0.1, 0.06, 0.06, 0.06, 0.06, 0.14, 0.14, 0.14, 0.14, 0.1])
    assert coverage([0.2] + [0.075] * 8 + [0.2], rows=5).startswith("Ranges are well calibrated")
    assert coverage([]) == ""


def test_readers_skip_missing_and_non_finite_numbers() -> None:
    diagnostics = {"a": {"mean": 1, "standard_error": float("nan")}, "b": [1, None, True, 2.5], "c": "x"}
    assert estimate(diagnostics, "a") == EstimateView(1.0, None)
    assert numbers(diagnostics, "b") == [1.0, 2.5]
    assert value(diagnostics, "c") is value(diagnostics, "a", "b", "c") is estimate(diagnostics, "b") is None


def test_mixture_shares_add_up_to_one() -> None:
    parts = charts.mixture({"network_share": 0.5, "boosted_share": 0.6})
    assert parts[0][0] == "boosted trees with corrections"
    assert [round(share, 3) for _, share in parts] == [0.6, 0.2, 0.2]
    assert charts.mixture({"network_share": 1.0, "boosted_share": None}) == [("network", 1.0)]
    assert charts.mixture({}) == []


@pytest.mark.parametrize(
    ("given", "written"),
    [(0.00006061, "6.061e−5"), (-2.5e-7, "−2.5e−7"), (0.0001234, "0.0001234"), (12345.678, "12,346"), (3e12, "3e12")],
)
def test_numbers_are_formatted_for_readers(given: float, written: str) -> None:
    assert number(given) == written
