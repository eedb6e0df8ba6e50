"""What came out of a backtest, as a page shows it: the verdict, charts, tables and who did best and worst where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from app.pages.api_client import Call
from app.pages.charts import Chart, Interval, Intervals, Series
from app.pages.render import signed

ACTUAL_DECISION = "actual_decision"
# Of more series than so many, the best and the worst are shown first.
FEW_SERIES, ENDS = 20, 10
# So many policies can be told apart in one chart.
MOST_LINES = 7

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """``summary`` is what the job tells of itself, ``over_time`` its course as long as the rows are kept, and ``named``
    the names of posteriors by id. The reader may choose the policy to sum up against (``wanted``) and those to draw
    (``show``)."""

    summary: Json
    over_time: Json | None
    named: Mapping[str, str]
    wanted: str | None = None
    show: Sequence[str] = ()

    # names

    def label(self, policy: str) -> str:
        """How a policy is called: ours by its name, others in words."""
        if policy in self.named:
            return self.named[policy]
        if policy in self.ours:
            return f"ours ({policy})"
        words: str = self._policies[policy]["words"]
        return words

    @cached_property
    def _policies(self) -> dict[str, Json]:
        return {one["name"]: one for one in self.summary["policies"]}

    @cached_property
    def ours(self) -> list[str]:
        """Policies of ours: they are called by their names, all others in words of their own."""
        return [one["name"] for one in self.summary["policies"] if one["name"] == one["words"]]

    @property
    def candidate(self) -> str:
        return str(self.summary["candidate"])

    @property
    def others(self) -> list[str]:
        return [name for name in self._policies if name != self.candidate]

    # the verdict

    @property
    def verdict(self) -> tuple[str, str, str]:
        """A tone, a word and the sentences."""
        told = self.summary["verdict"]
        text = str(told["text"])
        for identifier, name in self.named.items():
            text = text.replace(identifier, name)
        tone, word = {
            "yes": ("ok", "✓ Worth using here"),
            "no": ("bad", "✕ Not worth using here"),
        }.get(told["worth_using"], ("warn", "! No clear difference"))
        return tone, word, text

    @property
    def against(self) -> Json | None:
        """The difference from what the verdict compares with."""
        return next((one for one in self.summary["differences"] if one["against"] == self.summary["against"]), None)

    def mean(self, policy: str) -> float | None:
        cost: float | None = self._policies[policy]["cost"]["mean"]
        return cost

    # tables

    @property
    def policies(self) -> list[dict[str, Any]]:
        """All policies, the cheapest first."""
        rows = []
        for one in self.summary["policies"]:
            cost = one["cost"]
            reach = None if cost["high"] is None or cost["mean"] is None else cost["high"] - cost["mean"]
            service = one["service_level"]
            rows.append(
                {
                    "name": self.label(one["name"]),
                    "strong": one["name"] == self.candidate,
                    "cost": cost["mean"],
                    "reach": reach,
                    "regret": one["regret"],
                    "served": None if service is None else service["mean"],
                    "feasibility": one["feasibility"],
                    "rows": one["rows"],
                }
            )
        return sorted(rows, key=lambda row: (row["cost"] is None, row["cost"]))

    @property
    def serves(self) -> bool:
        return any(one["service_level"] is not None for one in self.summary["policies"])

    @property
    def differences(self) -> Intervals:
        rows = [
            Interval(
                self.label(one["against"]),
                one["mean"],
                one["low"],
                one["high"],
                "" if one["relative"] is None else f"{signed(round(100 * one['relative'], 1))} %",
                strong=one["against"] == self.summary["against"],
            )
            for one in sorted(self.summary["differences"], key=lambda one: (one["mean"] is None, one["mean"]))
        ]
        title = f"What {self.label(self.candidate)} costs more or less than …"
        return Intervals(title, rows, "a row, with the 95 % interval", 0.0, "Left of the dashed line it is cheaper.")

    @property
    def series(self) -> list[dict[str, Any]]:
        """Series with their costs, those that gain the most first."""
        rows = [
            {
                "name": one["series"],
                "rows": one["rows"],
                "compared": (one.get("difference") or {}).get("rows", one["rows"]),
                "ours": one["cost"].get(self.candidate),
                "other": one["cost"].get(self.summary["against"]),
                "difference": (one.get("difference") or {}).get("mean"),
                "low": (one.get("difference") or {}).get("low"),
                "high": (one.get("difference") or {}).get("high"),
            }
            for one in self.summary["series"]
        ]
        return sorted(rows, key=lambda row: (row["difference"] is None, row["difference"]))

    @property
    def best_and_worst(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """The ends of the list of series, where it is long; the worst first."""
        told = [row for row in self.series if row["difference"] is not None]
        return None if len(told) <= FEW_SERIES else (told[:ENDS], told[::-1][:ENDS])

    # charts

    @cached_property
    def shown(self) -> list[str]:
        """Policies to draw: as chosen, or the candidate, the actual decision and the cheapest of the others."""
        chosen = [name for name in self._policies if name in self.show]
        if chosen:
            return chosen[:MOST_LINES]
        rest = [name for name in self.others if name != ACTUAL_DECISION and self.mean(name) is not None]
        cheapest = min(rest, key=lambda name: self.mean(name) or 0.0, default=None)
        return [name for name in self._policies if name in (self.candidate, ACTUAL_DECISION, cheapest)]

    @cached_property
    def costs(self) -> Chart | None:
        """The mean cost of some policies over time; None without time."""
        lines = self.summary["over_time"]
        if not lines:
            return None
        x, is_time = moments([line["from"] for line in lines])
        series = [
            Series(self.label(name), [line["cost"][name] for line in lines], colour=number)
            for number, name in enumerate(self.shown)
        ]
        note = f"Means over {len(lines)} stretches of time; lower is better."
        return Chart("Cost a row over time", x, series, _line(is_time), "cost a row", is_time, note=note, zero=True)

    @cached_property
    def reference(self) -> str | None:
        """The policy that differences are summed up against."""
        if self.wanted in self.others:
            return self.wanted
        found: str | None = self.summary["against"]
        return found

    @cached_property
    def cumulated(self) -> Chart | None:
        """The candidate less another policy, summed up, with its band."""
        if self.over_time is None or self.reference is None:
            return None
        told = next(one for one in self.over_time["differences"] if one["against"] == self.reference)
        x, is_time = moments(self.over_time["ends"])
        series = [
            Series("95 % band", told["low"], "band", 0, told["high"]),
            Series("as dear as the other", [0.0] * len(x), colour=None, dashed=True),
            Series("difference so far", told["sum"], colour=0),
        ]
        by_time = self.over_time["by"] == "time"
        return Chart(
            f"{self.label(self.candidate)} less {self.label(self.reference)}, summed up",
            x,
            series,
            _line(is_time) if by_time else "row of the data set",
            "cost, summed up",
            is_time,
            note="Below zero it would have been cheaper. Chance alone may have moved the sum within the band.",
            height=320,
        )


def _line(is_time: bool) -> str:
    return "time" if is_time else "period"


def moments(texts: Sequence[str]) -> tuple[list[float], bool]:
    """Times as seconds since 1970, or numbers of periods as they are; and whether they are times."""
    try:
        return [float(text) for text in texts], False
    except ValueError:
        return [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in texts], True


def asked_again(job: Json) -> Call:
    """The request that asks for the same backtest: what it was asked for, without what is so by default."""
    spec = job["spec"]
    body: dict[str, Any] = {"kind": "backtest", "name": job["name"]}
    body |= {name: job[name] for name in ("problem_id", "dataset_id")}
    if spec["posteriors"]:
        body["posteriors"] = spec["posteriors"]
    else:
        body["ours"] = [_given(one) for one in spec["ours"]]
        body |= {name: spec[name] for name in ("baselines", "judged") if spec[name] is not None}
        body["splits"] = spec["splits"]
        if spec["features"] != "auto":
            body["features"] = _given(spec["features"]) if isinstance(spec["features"], dict) else spec["features"]
    body |= {name: spec[name] for name in ("actual_decision", "seed") if spec[name]}
    return Call("POST", "/v1/jobs", body)


def _given(options: Any) -> Any:
    """Options without those that are left to the service."""
    if not isinstance(options, dict):
        return options
    return {name: _given(value) for name, value in options.items() if value is not None}
