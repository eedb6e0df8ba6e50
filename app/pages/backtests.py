"""Pages about backtests: the list, the form, and the result."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData, QueryParams

from app.http.security import Reader
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, Call
from app.pages.charts import Chart, Interval, Intervals, Series
from app.pages.forms import parse_number
from app.pages.render import render, see_other, signed

# Ways to make the candidate, in the order of the form.
AUTO, QUICK, LIKE, EXISTING = "auto", "quick", "like", "existing"
# Takes seconds: good enough for a first impression.
QUICK_OPTIONS: dict[str, Any] = {
    "name": "quick",
    "predictor": {"kind": "linear"},
    "inference": {"method": "vi", "epochs": 30},
}
# Names and descriptions of the rules.
BASELINES = {
    "constant": ("Always the same", "the single decision that was best over the training rows"),
    "season": (
        "Same weekday as before",
        "the best decision for the last eight of the same season; needs a time column",
    ),
    "regression": ("Forecast and its errors", "a regression forecast with its past errors"),
    "boosted": ("Boosted trees", "a LightGBM quantile forecast; only where decisions are quantiles"),
    "neighbours": ("Most similar days", "the best decision for the most similar rows of the history"),
    "kernel": ("Similar days weigh more", "the best decision for the history, weighted by similarity"),
    "ieo": ("Trained for cost", "models trained on decision cost, without hedging; slowest"),
}
_ACTUAL_FIELD = re.compile(r"actual_decision\.(.+)")


@dataclass
class BacktestForm:
    """The fields of the form, as text."""

    name: str = ""
    dataset: str = ""
    problem: str = ""
    posterior: str = ""
    how: str = AUTO
    posteriors: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=lambda: list(BASELINES))
    actual_decision: dict[str, str] = field(default_factory=dict)
    splits: str = "4"
    judged: str = ""
    seed: str = "0"

    @staticmethod
    def of(given: FormData | QueryParams) -> BacktestForm:
        """Read a sent form, or a link to it, which leaves checkboxes at their default."""
        plain = {key: value for key, value in given.multi_items() if isinstance(value, str)}
        typed = BacktestForm()
        for name in ("name", "dataset", "problem", "posterior", "how", "splits", "judged", "seed"):
            if name in plain:
                setattr(typed, name, plain[name].strip())
        typed.posteriors = [str(one) for one in given.getlist("posteriors")]
        if "sent" in plain:
            typed.baselines = [name for name in BASELINES if name in given.getlist("baselines")]
        typed.actual_decision = {
            result[1]: value for key, value in plain.items() if (result := _ACTUAL_FIELD.fullmatch(key))
        }
        return typed


def request_of(typed: BacktestForm, has_time: bool, like: Mapping[str, Any] | None) -> dict[str, Any]:
    """Build the job request; ``like`` has the settings of a posterior to retrain."""
    body: dict[str, Any] = {"kind": "backtest", "problem_id": typed.problem, "dataset_id": typed.dataset}
    if typed.name:
        body["name"] = typed.name
    actual = {name: column for name, column in typed.actual_decision.items() if column}
    if typed.how == EXISTING:
        return body | {"posteriors": typed.posteriors} | ({"actual_decision": actual} if actual else {}) | _seed(typed)
    if typed.how == QUICK:
        body["ours"] = [QUICK_OPTIONS]
    elif typed.how == LIKE and like is not None:
        body |= like
    if len(typed.baselines) < len(BASELINES):
        body["baselines"] = typed.baselines
    if actual:
        body["actual_decision"] = actual
    body["splits"] = parse_number(typed.splits)
    if has_time and typed.judged:
        share = parse_number(typed.judged)
        body["judged"] = share / 100 if isinstance(share, int | float) else share
    return body | _seed(typed)


def _seed(typed: BacktestForm) -> dict[str, Any]:
    seed = parse_number(typed.seed)
    return {} if seed in (0, "") else {"seed": seed}


def learned_like(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that retrain a posterior in a backtest, from its job's specification."""
    ours: dict[str, Any] = {"name": name}
    for part in ("predictor", "inference"):
        ours[part] = {key: value for key, value in spec.get(part, {}).items() if value is not None}
    if spec.get("policy") is not None:
        ours["policy"] = spec["policy"]
    features = spec.get("features", "auto")
    return {"ours": [ours]} | ({} if features == "auto" else {"features": features})


def propose_columns(decisions: list[str], columns: list[str], actual: Mapping[str, str]) -> dict[str, str]:
    """Choose the column of each actual decision: as typed, the column of that name, or the only one."""
    only = columns[0] if len(columns) == len(decisions) == 1 else ""
    return {name: actual.get(name, name if name in columns else only) for name in decisions}


ACTUAL_DECISION = "actual_decision"
# Above FEW_SERIES, the ENDS best and worst series are shown first.
FEW_SERIES, ENDS = 20, 10
# More lines cannot be told apart in one chart.
MOST_LINES = 7

Json = Mapping[str, Any]


@dataclass(frozen=True)
class BacktestView:
    """A backtest's verdict, charts and tables.

    ``summary`` is the job's summary, ``over_time`` its course while the rows are stored, and ``named`` the names of
    posteriors by id. The reader chooses the reference policy (``wanted``) and the policies to draw (``show``).
    """

    summary: Json
    over_time: Json | None
    named: Mapping[str, str]
    wanted: str | None = None
    show: Sequence[str] = ()

    # names

    def label(self, policy: str) -> str:
        """Return a policy's label: the name of a candidate, the description of a rule."""
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
        """The candidates: policies whose description is their name."""
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
        """Tone, heading and text of the verdict."""
        verdict = self.summary["verdict"]
        text = str(verdict["text"])
        for identifier, name in self.named.items():
            text = text.replace(identifier, name)
        tone, word = {
            "yes": ("ok", "✓ Worth using here"),
            "no": ("bad", "✕ Not worth using here"),
        }.get(verdict["worth_using"], ("warn", "! No clear difference"))
        return tone, word, text

    @property
    def against(self) -> Json | None:
        """The difference from the policy that the verdict compares with."""
        return next((one for one in self.summary["differences"] if one["against"] == self.summary["against"]), None)

    def mean(self, policy: str) -> float | None:
        cost: float | None = self._policies[policy]["cost"]["mean"]
        return cost

    # tables

    @property
    def policies(self) -> list[dict[str, Any]]:
        """All policies, cheapest first."""
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
        title = f"Cost of {self.label(self.candidate)} compared with other policies"
        return Intervals(title, rows, "per row, 95 % interval", 0.0, "Left of the dashed line it is cheaper.")

    @property
    def series(self) -> list[dict[str, Any]]:
        """Series with their costs, largest gains first."""
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
        """Best and worst series (worst first) of a long list; None if it is short."""
        rows = [row for row in self.series if row["difference"] is not None]
        return None if len(rows) <= FEW_SERIES else (rows[:ENDS], rows[::-1][:ENDS])

    # charts

    @cached_property
    def chart_policies(self) -> list[str]:
        """Policies to draw: as chosen, or the candidate, the actual decisions and the cheapest other policy."""
        chosen = [name for name in self._policies if name in self.show]
        if chosen:
            return chosen[:MOST_LINES]
        rest = [name for name in self.others if name != ACTUAL_DECISION and self.mean(name) is not None]
        cheapest = min(rest, key=lambda name: self.mean(name) or 0.0, default=None)
        return [name for name in self._policies if name in (self.candidate, ACTUAL_DECISION, cheapest)]

    @cached_property
    def costs(self) -> Chart | None:
        """Mean cost of policies over time; None without time."""
        lines = self.summary["over_time"]
        if not lines:
            return None
        x, is_time = parse_times([line["from"] for line in lines])
        series = [
            Series(self.label(name), [line["cost"][name] for line in lines], colour=number)
            for number, name in enumerate(self.chart_policies)
        ]
        note = f"Means over {len(lines)} periods; lower is better."
        return Chart("Cost per row over time", x, series, _line(is_time), "cost per row", is_time, note=note, zero=True)

    @cached_property
    def reference(self) -> str | None:
        """The policy of the cumulative difference."""
        if self.wanted in self.others:
            return self.wanted
        result: str | None = self.summary["against"]
        return result

    @cached_property
    def cumulated(self) -> Chart | None:
        """Cumulative difference of the candidate from the reference, with its band."""
        if self.over_time is None or self.reference is None:
            return None
        difference = next(one for one in self.over_time["differences"] if one["against"] == self.reference)
        x, is_time = parse_times(self.over_time["ends"])
        series = [
            Series("95 % band", difference["low"], "band", 0, difference["high"]),
            Series("equal cost", [0.0] * len(x), colour=None, dashed=True),
            Series("cumulative difference", difference["sum"], colour=0),
        ]
        by_time = self.over_time["by"] == "time"
        return Chart(
            f"Cumulative cost: {self.label(self.candidate)} minus {self.label(self.reference)}",
            x,
            series,
            _line(is_time) if by_time else "row",
            "cumulative cost",
            is_time,
            note="Below zero the candidate is cheaper. The band shows the range of random variation.",
            height=320,
        )


def _line(is_time: bool) -> str:
    return "time" if is_time else "period"


def parse_times(texts: Sequence[str]) -> tuple[list[float], bool]:
    """Return times as seconds since 1970, or period numbers unchanged, and whether they are times."""
    try:
        return [float(text) for text in texts], False
    except ValueError:
        return [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in texts], True


def repeat_call(job: Json) -> Call:
    """Return the request that repeats a backtest, without defaults."""
    spec = job["spec"]
    body: dict[str, Any] = {"kind": "backtest", "name": job["name"]}
    body |= {name: job[name] for name in ("problem_id", "dataset_id")}
    if spec["posteriors"]:
        body["posteriors"] = spec["posteriors"]
    else:
        body["ours"] = [_drop_defaults(one) for one in spec["ours"]]
        body |= {name: spec[name] for name in ("baselines", "judged") if spec[name] is not None}
        body["splits"] = spec["splits"]
        if spec["features"] != "auto":
            body["features"] = (
                _drop_defaults(spec["features"]) if isinstance(spec["features"], dict) else spec["features"]
            )
    body |= {name: spec[name] for name in ("actual_decision", "seed") if spec[name]}
    return Call("POST", "/v1/jobs", body)


def _drop_defaults(options: Any) -> Any:
    """Return options without None values."""
    if not isinstance(options, dict):
        return options
    return {name: _drop_defaults(value) for name, value in options.items() if value is not None}


router = APIRouter(include_in_schema=False)

# Rows of the list, and options of each kind in the form.
LISTED, OFFERED = 25, 200


@router.get("/backtests")
async def list_backtests(request: Request, caller: Reader, cursor: str | None = None) -> Response:
    api = Api(request)
    jobs, datasets, problems = await asyncio.gather(
        api.get("/v1/jobs", kind="backtest", limit=LISTED, cursor=cursor),
        api.get("/v1/datasets", limit=OFFERED),
        api.get("/v1/problems", limit=OFFERED),
    )
    names = {one["id"]: one["name"] for page in (datasets, problems) for one in page["items"]}
    can_be_made = bool(datasets["items"] and problems["items"])
    return render(request, "backtests.html", api=api, jobs=jobs, names=names, can_be_made=can_be_made)


@router.get("/backtests/new")
async def new_backtest(request: Request, caller: Reader) -> Response:
    api = Api(request)
    return await _render_form(request, api, BacktestForm.of(request.query_params))


@router.post("/backtests")
async def create_backtest(request: Request, caller: Reader) -> Response:
    form = await forms.read_form(request)
    api, typed = Api(request), BacktestForm.of(form)
    there = await _get_chosen(api, typed)
    try:
        job = await api.post("/v1/jobs", request_of(typed, there["has_time"], there["like"]))
    except ApiRefusal as refusal:
        if refusal.status in (401, 403):
            raise
        return await _render_form(request, api, typed, refusal)
    return see_other(f"/backtests/{job['id']}")


async def _get_chosen(api: Api, typed: BacktestForm) -> dict[str, Any]:
    """Get the chosen data set, problem and posterior, as far as they exist."""
    posterior = await api.find("/v1/posteriors", typed.posterior)
    if posterior is not None:
        typed.dataset = typed.dataset or posterior["dataset_id"] or ""
        typed.problem = typed.problem or posterior["problem_id"]
    dataset, problem = await asyncio.gather(
        api.find("/v1/datasets", typed.dataset), api.find("/v1/problems", typed.problem)
    )
    job = None if posterior is None else await api.find("/v1/jobs", posterior["job_id"])
    columns = [] if dataset is None else dataset["columns"]
    return {
        "dataset": dataset,
        "problem": problem,
        "posterior": posterior,
        "like": None if posterior is None or job is None else learned_like(posterior["name"], job["spec"]),
        "has_time": any(column["role"] == "time" for column in columns),
        "decision_columns": [column["name"] for column in columns if column["role"] == "decision"],
    }


async def _render_form(request: Request, api: Api, typed: BacktestForm, refusal: ApiRefusal | None = None) -> Response:
    datasets, problems, posteriors = await asyncio.gather(
        *(api.get(f"/v1/{kind}", limit=OFFERED) for kind in ("datasets", "problems", "posteriors"))
    )
    if refusal is None and not typed.posterior:
        await _propose(api, typed, datasets["items"], problems["items"])
    there = await _get_chosen(api, typed)
    decisions = [] if there["problem"] is None else there["problem"]["decisions"]
    typed.actual_decision = propose_columns(decisions, there["decision_columns"], typed.actual_decision)
    body = request_of(typed, there["has_time"], there["like"])
    return render(
        request,
        "backtest_new.html",
        200 if refusal is None else 422,
        refusal=refusal,
        typed=typed,
        datasets=datasets["items"],
        problems=problems["items"],
        posteriors=[one for one in posteriors["items"] if one["problem_id"] == typed.problem],
        baselines=BASELINES,
        asked=Call("POST", "/v1/jobs", body),
        **there,
    )


async def _propose(
    api: Api, typed: BacktestForm, datasets: list[dict[str, Any]], problems: list[dict[str, Any]]
) -> None:
    """Fill in the data set and problem of the last training job, else the newest ones."""
    if typed.dataset and typed.problem:
        return
    about = {"problem_id": typed.problem, "dataset_id": typed.dataset}
    last = (await api.get("/v1/jobs", kind="learn", limit=1, **about))["items"]
    if last:
        typed.dataset, typed.problem = last[0]["dataset_id"], last[0]["problem_id"]
    typed.dataset = typed.dataset or (datasets[0]["id"] if datasets else "")
    typed.problem = typed.problem or (problems[0]["id"] if problems else "")


@router.get("/backtests/{job_id}")
async def show_backtest(request: Request, caller: Reader, job_id: str) -> Response:
    api = Api(request)
    job = await api.get(f"/v1/jobs/{job_id}")
    if job["kind"] != "backtest":
        return see_other(f"/jobs/{job_id}")
    asked, ended = repeat_call(job), job["state"] == "succeeded"
    problem, dataset, named, (over_time, gone) = await asyncio.gather(
        api.get(f"/v1/problems/{job['problem_id']}"),
        api.get(f"/v1/datasets/{job['dataset_id']}"),
        _named(api, job),
        _over_time(api, job_id, ended),
    )
    if not ended:
        return render(request, "backtest_running.html", api=api, job=job, problem=problem, dataset=dataset, asked=asked)
    query = request.query_params
    result = BacktestView(job["summary"], over_time, named, query.get("against"), query.getlist("show"))
    return render(
        request,
        "backtest.html",
        api=api,
        job=job,
        problem=problem,
        dataset=dataset,
        asked=asked,
        result=result,
        gone=gone,
    )


async def _named(api: Api, job: dict[str, Any]) -> dict[str, str]:
    """Return the names of the compared posteriors by id."""
    ids = job["spec"]["posteriors"]
    result = await asyncio.gather(*(api.find("/v1/posteriors", one) for one in ids))
    return {identifier: one["name"] for identifier, one in zip(ids, result, strict=True) if one is not None}


async def _over_time(api: Api, job_id: str, ended: bool) -> tuple[dict[str, Any] | None, str]:
    """Return the course over time, or why it is no longer available."""
    if not ended:
        return None, ""
    try:
        return await api.get(f"/v1/jobs/{job_id}/backtest/over-time"), ""
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        return None, refusal.detail


@router.post("/backtests/{job_id}/cancel")
async def cancel_backtest(request: Request, caller: Reader, job_id: str) -> Response:
    return await _change_state(request, job_id, "cancel")


@router.post("/backtests/{job_id}/retry")
async def retry_backtest(request: Request, caller: Reader, job_id: str) -> Response:
    return await _change_state(request, job_id, "retry")


async def _change_state(request: Request, job_id: str, what: str) -> Response:
    await forms.read_form(request)
    await Api(request).post(f"/v1/jobs/{job_id}/{what}")
    return see_other(f"/backtests/{job_id}")
