"""What a newsvendor's decision breaks, misses or pays for, in words that a planner can act on."""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.problems.base import Breach, Price, Status
from bco_core.problems.newsvendor.description import ROUNDING, Rows
from bco_core.problems.newsvendor.program import Found

_SENSES = {-1: "at most", 0: "exactly", 1: "at least"}
# Prices below this share of the largest unit cost are rounding.
_NOTHING = 1e-9


def broken(
    names: tuple[str, ...], low: Tensor, high: Tensor, steps: Tensor, rows: Rows, decision: Tensor
) -> list[Breach]:
    """The bounds, packs and rows that a decision (d,) breaks."""
    found = []
    for j, (name, order, least, most, step) in enumerate(
        zip(names, decision.tolist(), low.tolist(), high.tolist(), steps.tolist(), strict=True)
    ):
        room = ROUNDING * (1 + abs(order))
        if order < least - room:
            sentence = f"{name}: an order of {order:g} is below its minimum of {least:g}"
            found.append(Breach(("items", j, "minimum_order"), least - order, sentence))
        if order > most + room:
            sentence = f"{name}: an order of {order:g} is above its maximum of {most:g}"
            found.append(Breach(("items", j, "maximum_order"), order - most, sentence))
        away = abs(order - round(order / step) * step) if step else 0.0
        if away > ROUNDING * (step + abs(order)):
            what, field = ("a whole number", "integer") if step == 1 else (f"a multiple of {step:g}", "pack_size")
            found.append(Breach(("items", j, field), away, f"{name}: an order of {order:g} is not {what}"))
    if not len(rows):
        return found
    by, rounding = rows.excess(decision.double().numpy())
    for i, (much, room) in enumerate(zip(by.tolist(), rounding.tolist(), strict=True)):
        if much > room:
            used = float(rows.matrix[i] @ decision.double().numpy())
            asked = f"{_SENSES[int(rows.senses[i])]} {rows.limits[i]:g}"
            found.append(Breach(("decision_rows", i), much, f"{rows.names[i]} is {used:g}, and {asked} is asked"))
    return found


def missed(
    names: tuple[str, ...],
    levels: Tensor,
    fill_rate: float,
    served: Tensor,
    short: Tensor,
    outcomes: Tensor,
    weights: Tensor,
    room: Tensor,
) -> list[str]:
    """A sentence for each context about the service level that is missed by most, "" where all are kept.

    Served and short are (B, K, d), weights (K,) or (B, K), and levels may be missed by ``room`` (d,).
    """
    weights = weights.double().expand(outcomes.shape[:2])[..., None]
    shares = (served.double() * weights).sum(1)
    lacking = levels - shares
    lacking = torch.where((levels > 0) & (lacking > room + 1e-9), lacking, 0.0)
    demand = (outcomes.double().clamp_min(0) * weights).sum((1, 2))
    met = torch.where(demand > 0, 1 - (short.double() * weights).sum((1, 2)) / demand, 1.0)
    sentences = []
    for item, by, share, filled in zip(
        lacking.argmax(-1).tolist(), lacking.amax(-1).tolist(), shares.tolist(), met.tolist(), strict=True
    ):
        if by > 0:
            asked = f"{levels[item].item():.1%} is asked"
            sentences.append(f"{names[item]}: demand is met in {share[item]:.1%} of what may happen, and {asked}")
        elif filled < fill_rate - room.max().item() - 1e-6:
            sentences.append(f"{filled:.1%} of all demand is expected to be met, and {fill_rate:.1%} is asked")
        else:
            sentences.append("")
    return sentences


def prices_of(found: Found, floors: Tensor, low: Tensor, dearest: float) -> list[Price]:
    """The prices that bind in what a program without whole numbers found."""
    if found.status is not Status.OPTIMAL or not len(found.bounds):
        return []
    prices = [Price(("decision_rows", i), value) for i, value in enumerate(found.rows.tolist())]
    for j, (value, floor, least) in enumerate(zip(found.bounds.tolist(), floors.tolist(), low.tolist(), strict=True)):
        at_least = "minimum_service_level" if floor > least else "minimum_order"
        prices.append(Price(("items", j, at_least if value > 0 else "maximum_order"), abs(value)))
    prices.append(Price(("minimum_service_level",), found.short))
    return [price for price in prices if price.value > _NOTHING * dearest]
