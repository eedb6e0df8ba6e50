"""The home page, login and logout, the demo, and static files."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from app import demo
from app.http.security import SESSION_COOKIE, Reader, end_session
from app.keys import service as keys
from app.keys import sessions
from app.pages import forms
from app.pages.api_client import Api, Call
from app.pages.format import one_line
from app.pages.render import ASSETS, render, see_other

router = APIRouter(include_in_schema=False)

# Objects of each kind on the home page, and unfinished jobs.
LATEST, MOST_SHOWN = 5, 10
UNFINISHED = ("running", "queued")
# A demo job in one of these states is reused.
_USABLE = ("queued", "running", "succeeded")


class Assets(StaticFiles):
    """Static files that browsers cache for ever, because their URL has a content hash."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def assets() -> StaticFiles:
    return Assets(directory=ASSETS)


@router.get("/")
async def home(request: Request, caller: Reader) -> Response:
    api = Api(request)
    lists = {name: api.get(f"/v1/{name}", limit=LATEST) for name in ("datasets", "problems", "posteriors")}
    asked = [
        api.get("/v1/status"),
        *lists.values(),
        api.get("/v1/prescriptions", limit=LATEST, first="true"),
        _unfinished(api),
        api.get("/v1/jobs", limit=1),
    ]
    status, *result, kept, unfinished, jobs = await asyncio.gather(*asked)
    here = {name: one["items"] for name, one in zip(lists, result, strict=True)}
    return render(
        request,
        "home.html",
        api=api,
        standing=status,
        here=here,
        prescriptions=[_row_view(one) for one in kept["items"]],
        unfinished=unfinished,
        jobs=jobs["items"],
        demo_calls=demo_calls(),
        demo_name=demo.DEMO_NAME,
    )


@router.get("/home/running")
async def running(request: Request, caller: Reader, jobs: str = "") -> Response:
    """Running jobs, polled by the home page, which reloads once a job has ended."""
    api = Api(request)
    status, unfinished = await asyncio.gather(api.get("/v1/status"), _unfinished(api))
    if jobs != _ids(unfinished):
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    return render(request, "home_running.html", standing=status, unfinished=unfinished)


async def _unfinished(api: Api) -> list[dict[str, Any]]:
    """Return running and queued jobs, newest first."""
    result = await asyncio.gather(*(api.get("/v1/jobs", state=state, limit=MOST_SHOWN) for state in UNFINISHED))
    jobs: list[dict[str, Any]] = [job for one in result for job in one["items"]]
    return jobs


def _ids(jobs: list[dict[str, Any]]) -> str:
    return ",".join(sorted(job["id"] for job in jobs))


def _row_view(one: dict[str, Any]) -> dict[str, Any]:
    """Add the first context and decision of a logged prescription as text."""
    first = one["first"]
    if first is None:
        return one | {"context": "", "decision": ""}
    return one | {"context": one_line(first["context"]), "decision": one_line(first["decision"])}


# the demo


@router.post("/demo")
async def load_demo(request: Request, caller: Reader) -> Response:
    """Create the bakery's problem, data set and job unless they exist, and redirect to the job."""
    await forms.read_form(request)
    api = Api(request)
    jobs = await api.get("/v1/jobs", kind="learn", limit=200)
    there = [job for job in jobs["items"] if job["name"] == demo.DEMO_NAME and job["state"] in _USABLE]
    if there:
        return see_other(f"/jobs/{there[0]['id']}")
    problem = await api.post("/v1/problems", demo.example_problem())
    dataset = await api.post("/v1/datasets", demo.new_dataset(demo.split_history()[0]))
    job = await api.post("/v1/jobs", demo.new_job(problem["id"], dataset["id"]))
    return see_other(f"/jobs/{job['id']}")


def demo_calls() -> list[Call]:
    """Return the calls that load the demo; its rows come from ``bco sample bakery.csv``."""
    fields = {name: value for name, value in demo.new_dataset([]).items() if name != "rows"}
    fields["outcomes"] = ",".join(fields["outcomes"])
    return [
        Call("POST", "/v1/problems", demo.example_problem()),
        Call("POST", "/v1/datasets/upload", file="bakery.csv", fields=fields),
        Call("POST", "/v1/jobs", demo.new_job("prob_…", "data_…")),
    ]


# login and logout


@router.get("/login")
def login_page(request: Request, next: str = "/") -> Response:
    return render(request, "login.html", next=_local(next), wrong="")


@router.post("/login")
async def login(request: Request) -> Response:
    form = await forms.read_form(request)
    key, there = forms.text(form, "key").strip(), _local(forms.text(form, "next"))
    if not key.isascii() or not await _works(request, key):
        wrong = "This key is unknown, revoked or expired. Check it, or ask for a new one."
        return render(request, "login.html", 401, next=there, wrong=wrong)
    row = await run_in_threadpool(keys.recognise, key)
    if row is None or "read" not in row.scopes:
        wrong = "Pages need a key with the scope read." if row else "This key has just expired. Ask for a new one."
        return render(request, "login.html", 401, next=there, wrong=wrong)
    response = see_other(there)
    forms.set_token(request, response, await run_in_threadpool(sessions.begin, row.id))
    return response


async def _works(request: Request, key: str) -> bool:
    """Check a key through the API, which throttles repeated wrong keys."""
    client = request.scope.get("client") or ("127.0.0.1", 0)
    transport = httpx.ASGITransport(request.app, client=tuple(client))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client_of_api:
        answer = await client_of_api.get("/v1/jobs?limit=1", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code != 401


@router.post("/logout")
async def logout(request: Request) -> Response:
    await forms.read_form(request)
    await run_in_threadpool(end_session, request.app.state.lookups, request.cookies.get(SESSION_COOKIE, ""))
    response = see_other("/login")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


def _local(address: str) -> str:
    """Return the address if it is local, else the home page."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"
