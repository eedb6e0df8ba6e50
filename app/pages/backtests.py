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

# How a planner may have the candidate made, in the order in which they are offered.
AUTO, QUICK, LIKE, EXISTING = "auto", "quick", "like", "existing"
# A look that takes seconds: good enough to see whether anything can be gained.
QUICK_OPTIONS: dict[str, Any] = {
    "name": "quick",
    "predictor": {"kind": "linear"},
    "posterior": {"method": "vi", "epochs": 30},
}
# What a rule does, for who has never heard of it.
BASELINES = {
    "constant": ("Always the same", "the one decision that would have been best over all that is known"),
    "season": ("Same weekday as before", "the best over the last eight of the same season; needs a time column"),
    "regression": ("Forecast and its errors", "a regression, and a decision that allows for how far it was off"),
    "boosted": ("Boosted trees", "a forecast of the right quantile by LightGBM; where decisions are quantiles"),
    "neighbours": ("Most similar days", "the best over the most similar rows of the history"),
    "kernel": ("Similar days weigh more", "the best over the history, each row weighted by how similar it is"),
    "ieo": ("Trained for cost", "models trained for the cost of decisions, without hedging; takes the longest"),
}
_DONE = re.compile(r"done\.(.+)")


@dataclass
class BacktestForm:
    """What stands in the form, as text."""

    name: str = ""
    dataset: str = ""
    problem: str = ""
    posterior: str = ""
    how: str = AUTO
    posteriors: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=lambda: list(BASELINES))
    done: dict[str, str] = field(default_factory=dict)
    splits: str = "4"
    judged: str = ""
    seed: str = "0"

    @staticmethod
    def of(given: FormData | QueryParams) -> BacktestForm:
        """What was sent. A form that was sent says which boxes are ticked; an address that leads to it does not."""
        plain = {key: value for key, value in given.multi_items() if isinstance(value, str)}
        typed = BacktestForm()
        for name in ("name", "dataset", "problem", "posterior", "how", "splits", "judged", "seed"):
            if name in plain:
                setattr(typed, name, plain[name].strip())
        typed.posteriors = [str(one) for one in given.getlist("posteriors")]
        if "sent" in plain:
            typed.baselines = [name for name in BASELINES if name in given.getlist("baselines")]
        typed.done = {found[1]: value for key, value in plain.items() if (found := _DONE.fullmatch(key))}
        return typed


def request_of(typed: BacktestForm, has_time: bool, like: Mapping[str, Any] | None) -> dict[str, Any]:
    """The job that the form asks for; ``like`` says how a posterior was learned that is to be learned anew."""
    body: dict[str, Any] = {"kind": "backtest", "problem_id": typed.problem, "dataset_id": typed.dataset}
    if typed.name:
        body["name"] = typed.name
    done = {name: column for name, column in typed.done.items() if column}
    if typed.how == EXISTING:
        return body | {"posteriors": typed.posteriors} | ({"done": done} if done else {}) | _seed(typed)
    if typed.how == QUICK:
        body["ours"] = [QUICK_OPTIONS]
    elif typed.how == LIKE and like is not None:
        body |= like
    if len(typed.baselines) < len(BASELINES):
        body["baselines"] = typed.baselines
    if done:
        body["done"] = done
    body["splits"] = parse_number(typed.splits)
    if has_time and typed.judged:
        share = parse_number(typed.judged)
        body["judged"] = share / 100 if isinstance(share, int | float) else share
    return body | _seed(typed)


def _seed(typed: BacktestForm) -> dict[str, Any]:
    seed = parse_number(typed.seed)
    return {} if seed in (0, "") else {"seed": seed}


def learned_like(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the job that has made a posterior was asked for, as a backtest is asked to learn it anew."""
    ours: dict[str, Any] = {"name": name}
    for part in ("predictor", "posterior"):
        ours[part] = {key: value for key, value in spec.get(part, {}).items() if value is not None}
    if spec.get("policy") is not None:
        ours["policy"] = spec["policy"]
    features = spec.get("features", "auto")
    return {"ours": [ours]} | ({} if features == "auto" else {"features": features})


def propose_columns(decisions: list[str], columns: list[str], done: Mapping[str, str]) -> dict[str, str]:
    """Which column holds what was really decided, for each decision: as typed, by its name, or the only one."""
    only = columns[0] if len(columns) == len(decisions) == 1 else ""
    return {name: done.get(name, name if name in columns else only) for name in decisions}


DONE = "done"
# Of more series than so many, the best and the worst are shown first.
FEW_SERIES, ENDS = 20, 10
# So many policies can be told apart in one chart.
MOST_LINES = 7

Json = Mapping[str, Any]


@dataclass(frozen=True)
class BacktestView:
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
        """Policies to draw: as chosen, or the candidate, what was done and the cheapest of the others."""
        chosen = [name for name in self._policies if name in self.show]
        if chosen:
            return chosen[:MOST_LINES]
        rest = [name for name in self.others if name != DONE and self.mean(name) is not None]
        cheapest = min(rest, key=lambda name: self.mean(name) or 0.0, default=None)
        return [name for name in self._policies if name in (self.candidate, DONE, cheapest)]

    @cached_property
    def costs(self) -> Chart | None:
        """The mean cost of some policies over time; None without time."""
        lines = self.summary["over_time"]
        if not lines:
            return None
        x, is_time = parse_times([line["from"] for line in lines])
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
        x, is_time = parse_times(self.over_time["ends"])
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


def parse_times(texts: Sequence[str]) -> tuple[list[float], bool]:
    """Times as seconds since 1970, or numbers of periods as they are; and whether they are times."""
    try:
        return [float(text) for text in texts], False
    except ValueError:
        return [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in texts], True


def repeat_call(job: Json) -> Call:
    """The request that asks for the same backtest: what it was asked for, without what is so by default."""
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
    body |= {name: spec[name] for name in ("done", "seed") if spec[name]}
    return Call("POST", "/v1/jobs", body)


def _drop_defaults(options: Any) -> Any:
    """Options without those that are left to the service."""
    if not isinstance(options, dict):
        return options
    return {name: _drop_defaults(value) for name, value in options.items() if value is not None}


router = APIRouter(include_in_schema=False)

# How many a list shows, and how many of each kind a form offers.
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
    """What the form is about: the data set, the problem and the posterior that are chosen, as far as there are any."""
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
    typed.done = propose_columns(decisions, there["decision_columns"], typed.done)
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
    """Fill in the data set and the problem that were learned from last or, before that, the newest ones."""
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
    """How posteriors that are compared are called, by their ids."""
    ids = job["spec"]["posteriors"]
    found = await asyncio.gather(*(api.find("/v1/posteriors", one) for one in ids))
    return {identifier: one["name"] for identifier, one in zip(ids, found, strict=True) if one is not None}


async def _over_time(api: Api, job_id: str, ended: bool) -> tuple[dict[str, Any] | None, str]:
    """What there is to draw, or why there is nothing any more."""
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
