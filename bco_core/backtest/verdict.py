"""The verdict of a backtest: whether a policy is worth using, and why, in two sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from bco_core.backtest.paired import Mean
from bco_core.backtest.realised_costs import RealisedCosts

ACTUAL_DECISION = "actual_decision"
YES, NO, UNCLEAR = "yes", "no", "unclear"
# Standard errors by which the share of rows that keep their constraints may fall below the required one.
_ROOM = 2.0


def write_verdict(
    candidate: str,
    against: str | None,
    costs: Mapping[str, RealisedCosts],
    differences: Mapping[str, Mean],
    words: Mapping[str, str],
    confidence: float | None,
) -> dict[str, str]:
    """Return whether the candidate is worth using, yes, no or unclear, and two sentences that say why.

    ``differences`` are the candidate's cost less each other policy's. ``confidence`` is the share of rows whose
    constraints must be kept, None where constraints are certain.
    """
    ours = words[candidate]
    if against is None:
        text = f"{_upper(ours)} was judged alone. Name a baseline, or the decisions actually taken, to compare with."
        return {"worth_using": UNCLEAR, "text": text}
    broken, theirs = (broken_share(costs[name], confidence) for name in (candidate, against))
    one = differences[against]
    worth, first = _first(ours, words[against], one, relative_difference(one, costs[against].cost))
    if theirs is not None:
        worth = YES
        first = (
            f"On {one.rows} rows that it had not seen, {ours} kept its constraints and {words[against]} only in "
            f"{theirs:.1%} of them, where {confidence:.0%} is required, at a difference of {one.mean:.4g} a row in "
            "cost: it is worth using here."
        )
    if broken is not None:
        worth = NO
        first = (
            f"{_upper(ours)} kept its constraints in {broken:.1%} of the rows, and {confidence:.0%} is required: it is "
            "not worth using here."
        )
    fair = {name: judged for name, judged in costs.items() if broken_share(judged, confidence) is None}
    second = _second(ours, against, costs, fair, differences, words, worth)
    return {"worth_using": worth, "text": f"{first} {second}"}


def _first(ours: str, theirs: str, one: Mean, relative: float | None) -> tuple[str, str]:
    rows = f"On {one.rows} rows that it had not seen, {ours}"
    if not math.isfinite(one.high):
        return UNCLEAR, f"{rows} was compared with {theirs}, and these rows are too few to tell them apart."
    amount = _share(one.mean, relative)
    interval = f"a difference of {one.mean:.4g} a row, 95 % interval {one.low:.4g} to {one.high:.4g}"
    if one.high < 0:
        return YES, f"{rows} would have cost {amount} less than {theirs} ({interval}): it is worth using here."
    if one.low > 0:
        return NO, f"{rows} would have cost {amount} more than {theirs} ({interval}): it is not worth using here."
    apart = "costs the same as" if one.low == one.high == 0 else "does not clearly differ from"
    return NO if apart.startswith("costs") else UNCLEAR, (
        f"{rows} {apart} {theirs} ({interval}): these rows give no reason to change."
    )


def _second(
    ours: str,
    against: str,
    costs: Mapping[str, RealisedCosts],
    fair: Mapping[str, RealisedCosts],
    differences: Mapping[str, Mean],
    words: Mapping[str, str],
    worth: str,
) -> str:
    """Compare with the cheapest of the other policies that keep their constraints."""
    if ACTUAL_DECISION not in costs:
        return (
            "The actual decisions were not given, so it is compared with the cheapest rule, which was chosen on these "
            "same rows and is favoured by that."
        )
    rest = [name for name in differences if name not in (against, ACTUAL_DECISION) and name in fair]
    if not rest:
        return "No other policy that keeps its constraints was compared."
    best = min(rest, key=lambda name: costs[name].cost.nanmean().nan_to_num(math.inf).item())
    one = differences[best]
    relative = relative_difference(one, costs[best].cost)
    cheapest = f"The cheapest other policy, {words[best]},"
    if one.low > 0:
        return f"{cheapest} would have cost {_share(-one.mean, relative)} less than {ours}: look at that first."
    if one.high < 0:
        more = f"{cheapest} would have cost {_share(one.mean, relative)} more than {ours}"
        return f"{more}: no simpler rule does as well." if worth == YES else f"{more}."
    return f"{cheapest} does not clearly differ from {ours} on these rows, and may be simpler to run."


def _share(mean: float, relative: float | None) -> str:
    return f"{abs(mean):.4g} a row" if relative is None else f"{abs(relative):.1%}"


def relative_difference(one: Mean, reference: Tensor) -> float | None:
    """Return the difference as a share of the other policy's cost, where that is positive."""
    cost = reference.nanmean().item()
    share = one.mean / cost if cost > 0 else math.nan
    return share if math.isfinite(share) else None


def broken_share(judged: RealisedCosts, confidence: float | None) -> float | None:
    """Return the share of rows whose constraints were kept, if it is clearly below the required one."""
    there = ~judged.cost.isnan()
    if confidence is None or not there.any():
        return None
    share = judged.feasible[there].double().mean().item()
    room = _ROOM * math.sqrt(confidence * (1 - confidence) / int(there.sum()))
    return share if share < confidence - room else None


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
