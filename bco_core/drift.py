"""Check whether later rows still cost what was promised: realised against promised costs, overall and over time.

A promise is the mean and the quantiles .05 and .95 of a decision's cost. If it holds, realised over promised cost is 1,
one row in twenty costs more than the upper quantile, and one in ten lies outside the two. Promises are never exact, so
rows drift only where they are off by more than is usual (``RATIO``, ``ABOVE``, ``OUTSIDE``), and by more than chance:
the bounds are two-sided at 99 %. All rows are judged, and the newest ones by themselves, because a recent change is a
small part of a long history.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from scipy.special import betaincinv
from torch import Tensor

LEVELS = (0.05, 0.95)
STRETCHES = 12
LEAST_ROWS = 20
# Realised over promised cost, the share of rows above the upper quantile, and the share outside the range.
RATIO, ABOVE, OUTSIDE = 1.25, 0.10, 0.20
_CONFIDENCE = 0.99
_NORMAL = 2.5758
# Share of rows, the newest, that are judged by themselves.
_NEWEST = 0.25
STEADY, DRIFTING, TOO_FEW = "steady", "drifting", "too_few"


@dataclass(frozen=True)
class Promises:
    """Promised and realised costs of rows (n,), oldest first; a realised cost is infinite where nothing was feasible.

    ``low`` and ``high`` are the promised quantiles .05 and .95.
    """

    mean: Tensor
    low: Tensor
    high: Tensor
    realised: Tensor

    def __len__(self) -> int:
        return len(self.mean)

    def rows(self, first: int, last: int) -> Promises:
        part = slice(first, last)
        return Promises(self.mean[part], self.low[part], self.high[part], self.realised[part])


@dataclass(frozen=True)
class Share:
    """Share of rows, with exact binomial bounds."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class PromiseCheck:
    """Realised against promised costs over some rows.

    ``ratio`` is mean realised over mean promised cost, for rows whose cost is finite; None where the promised mean is
    not positive. Its standard error is None for a single row.
    """

    rows: int
    promised: float | None
    realised: float | None
    ratio: float | None
    standard_error: float | None
    above: Share
    outside: Share


@dataclass(frozen=True)
class Drift:
    """Verdict and its sentence, and checks of all rows and of up to twelve stretches of them in order."""

    verdict: str
    sentence: str
    overall: PromiseCheck | None
    stretches: list[PromiseCheck]


def judge(promises: Promises) -> Drift:
    """Check whether the promises of these rows held."""
    count = len(promises)
    if count == 0:
        return Drift(TOO_FEW, f"no later rows; at least {LEAST_ROWS} are needed", None, [])
    overall = check_promises(promises)
    # Stretches of fewer than five rows tell nothing.
    number = max(1, min(STRETCHES, count // 5))
    edges = [count * place // number for place in range(number + 1)]
    stretches = [check_promises(promises.rows(first, last)) for first, last in pairwise(edges)]
    if count < LEAST_ROWS:
        return Drift(
            TOO_FEW, f"{count} row(s) are too few to tell; at least {LEAST_ROWS} are needed", overall, stretches
        )
    newest = max(LEAST_ROWS, math.ceil(_NEWEST * count))
    for rows, words in (
        (overall, f"{count} rows"),
        (check_promises(promises.rows(count - newest, count)), f"newest {newest} rows"),
    ):
        broken = list(_broken(rows))
        if broken:
            return Drift(
                DRIFTING, f"over the {words} {' and '.join(broken)}; learn again from newer rows", overall, stretches
            )
    ratio = "" if overall.ratio is None else f"cost {overall.ratio:.2f} times what was promised, and "
    sentence = f"over {count} rows decisions {ratio}lay above the promised 95 % quantile in {overall.above.share:.1%}"
    return Drift(STEADY, f"{sentence}, within the expected range", overall, stretches)


def check_promises(promises: Promises) -> PromiseCheck:
    """Compare realised with promised costs of these rows, at least one."""
    count = len(promises)
    above = promises.realised > promises.high
    outside = above | (promises.realised < promises.low)
    finite = promises.realised.isfinite() & promises.mean.isfinite()
    promised, realised = promises.mean[finite], promises.realised[finite]
    ratio = error = None
    if len(promised) and promised.mean() > 0:
        ratio = (realised.mean() / promised.mean()).item()
        if len(promised) > 1:
            # Standard error of a ratio of two means over the same rows, to first order.
            error = ((realised - ratio * promised).std() / promised.mean() / math.sqrt(len(promised))).item()
    return PromiseCheck(
        rows=count,
        promised=promised.mean().item() if len(promised) else None,
        realised=realised.mean().item() if len(promised) else None,
        ratio=ratio,
        standard_error=error,
        above=share_of(int(above.sum()), count),
        outside=share_of(int(outside.sum()), count),
    )


def share_of(hits: int, count: int) -> Share:
    """Return a share with the bounds of Clopper and Pearson."""
    tail = (1 - _CONFIDENCE) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return Share(hits / count, low, high)


def _broken(rows: PromiseCheck) -> Iterator[str]:
    """Yield a phrase for each promise that was clearly not kept."""
    if rows.ratio is not None and rows.standard_error is not None:
        room = _NORMAL * rows.standard_error
        if rows.ratio - room > RATIO:
            yield f"decisions cost {rows.ratio:.2f} times what was promised"
        elif rows.ratio + room < 1 / RATIO:
            yield f"decisions cost only {rows.ratio:.2f} times what was promised"
    if rows.above.low > ABOVE:
        yield f"{rows.above.share:.0%} of the costs are above the promised 95 % quantile"
    if rows.outside.low > OUTSIDE:
        yield f"{rows.outside.share:.0%} are outside the promised range, where 10 % belong"
