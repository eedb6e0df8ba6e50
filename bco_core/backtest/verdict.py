"""Two sentences: whether a policy is worth using here, and what a simpler rule would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bco_core.backtest.judge import Judged
from bco_core.backtest.paired import Mean

ACTUAL_DECISION = "actual_decision"
YES, NO, UNCLEAR = "yes", "no", "unclear"
# A share of rows that keep their constraints may be so many standard errors below what was asked.
_ROOM = 2.0


@dataclass(frozen=True)
class Verdict:
    """``worth_using`` is yes, no or unclear; ``first`` and ``second`` say why."""

    worth_using: str
    first: str
    second: str


def speak(
    candidate: str,
    against: str | None,
    found: Mapping[str, Judged],
    differences: Mapping[str, Mean],
    words: Mapping[str, str],
    confidence: float | None,
) -> Verdict:
    """``differences`` are the candidate's cost less each other policy's; ``confidence`` is the share of rows whose
    constraints must be kept, None where these are certain."""
    ours = words[candidate]
    if against is None:
        return Verdict(
            UNCLEAR, f"{_upper(ours)} was judged alone.", "Name a baseline, or what was done, to compare with."
        )
    broken, theirs = (broken_share(found[name], confidence) for name in (candidate, against))
    one = differences[against]
    worth, first = _first(ours, words[against], one, _relative(one, found[against]))
    if theirs is not None:
        worth = YES
        first = (
            f"On {one.rows} rows that it had not seen, {ours} kept its constraints and {words[against]} only in "
            f"{theirs:.1%} of them, where {confidence:.0%} is asked, at a difference of {one.mean:.4g} a row in cost: "
            "it is worth using here."
        )
    if broken is not None:
        worth = NO
        first = (
            f"{_upper(ours)} kept its constraints in {broken:.1%} of the rows, and {confidence:.0%} is asked: it is "
            "not worth using here as it is."
        )
    fair = {name: judged for name, judged in found.items() if broken_share(judged, confidence) is None}
    return Verdict(worth, first, _second(ours, against, found, fair, differences, words, worth))


def _first(ours: str, theirs: str, one: Mean, relative: float | None) -> tuple[str, str]:
    rows = f"On {one.rows} rows that it had not seen, {ours}"
    if not math.isfinite(one.high):
        return UNCLEAR, f"{rows} was compared with {theirs}, and these rows are too few to tell them apart."
    amount = f"{abs(one.mean):.4g} a row" if relative is None else f"{abs(relative):.1%}"
    interval = f"a difference of {one.mean:.4g} a row, 95 % interval {one.low:.4g} to {one.high:.4g}"
    if one.high < 0:
        return YES, f"{rows} would have cost {amount} less than {theirs} ({interval}): it is worth using here."
    if one.low > 0:
        return NO, f"{rows} would have cost {amount} more than {theirs} ({interval}): it is not worth using here."
    apart = "costs the same as" if one.low == one.high == 0 else "cannot be told from"
    return NO if apart.startswith("costs") else UNCLEAR, (
        f"{rows} {apart} {theirs} ({interval}): these rows give no reason to change."
    )


def _second(
    ours: str,
    against: str,
    found: Mapping[str, Judged],
    fair: Mapping[str, Judged],
    differences: Mapping[str, Mean],
    words: Mapping[str, str],
    worth: str,
) -> str:
    """How it does beside the cheapest of the others that keep their constraints."""
    if ACTUAL_DECISION not in found:
        say = "The decisions that were really made were not given, so it is beside the cheapest rule"
        return f"{say}, which was found on these same rows and is favoured by that."
    rest = [name for name in differences if name not in (against, ACTUAL_DECISION) and name in fair]
    if not rest:
        return "No other policy that keeps its constraints was compared."
    best = min(rest, key=lambda name: found[name].cost.nanmean().nan_to_num(math.inf).item())
    one = differences[best]
    relative = _relative(one, found[best])
    beside = f"The cheapest other policy, {words[best]},"
    if one.low > 0:
        return f"{beside} would have cost {_share(-one.mean, relative)} less than {ours}: look at that first."
    if one.high < 0:
        more = f"{beside} would have cost {_share(one.mean, relative)} more than {ours}"
        return f"{more}: no simpler rule does as well." if worth == YES else f"{more}."
    return f"{beside} cannot be told from {ours} on these rows, and may be simpler to run."


def _share(mean: float, relative: float | None) -> str:
    return f"{abs(mean):.4g} a row" if relative is None else f"{abs(relative):.1%}"


def _relative(one: Mean, reference: Judged) -> float | None:
    cost = reference.cost.nanmean().item()
    return one.mean / cost if cost > 0 else None


def broken_share(judged: Judged, confidence: float | None) -> float | None:
    """The share of rows whose constraints were kept, if it is clearly below what is asked."""
    there = ~judged.cost.isnan()
    if confidence is None or not there.any():
        return None
    share = judged.feasible[there].double().mean().item()
    room = _ROOM * math.sqrt(confidence * (1 - confidence) / int(there.sum()))
    return share if share < confidence - room else None


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
