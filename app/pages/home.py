"""The way in: the home page, signing in and out, our own files."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import APIRouter, Request, Response
from starlette.staticfiles import StaticFiles

from app.http.security import SESSION_COOKIE, Reader
from app.keys import service as keys
from app.keys import sessions
from app.pages import forms
from app.pages.asking import Api
from app.pages.render import ASSETS, render, see_other

router = APIRouter(include_in_schema=False)


class Assets(StaticFiles):
    """Files whose address changes with their content, so that a browser never asks for one twice."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def assets() -> StaticFiles:
    return Assets(directory=ASSETS)


@router.get("/")
async def home(request: Request, caller: Reader) -> Response:
    api = Api(request)
    return render(request, "home.html", api=api)


@router.get("/login")
def login_page(request: Request, next: str = "/") -> Response:
    return render(request, "login.html", next=_local(next), wrong="")


@router.post("/login")
async def login(request: Request) -> Response:
    form = await forms.submitted(request)
    key, there = forms.text(form, "key").strip(), _local(forms.text(form, "next"))
    if not key.isascii() or not await _works(request, key):
        wrong = "This key does not work: it is unknown, revoked or expired."
        return render(request, "login.html", 401, next=there, wrong=wrong)
    row = keys.recognise(key)
    if row is None:
        return render(request, "login.html", 401, next=there, wrong="This key has just ended.")
    response = see_other(there)
    forms.set_token(request, response, sessions.begin(row.id))
    return response


async def _works(request: Request, key: str) -> bool:
    """Ask the door, which makes who tries many keys wait."""
    client = request.scope.get("client") or ("127.0.0.1", 0)
    transport = httpx.ASGITransport(request.app, client=tuple(client))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as door:
        answer = await door.get("/v1/jobs?limit=1", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code != 401


@router.post("/logout")
async def logout(request: Request) -> Response:
    await forms.submitted(request)
    sessions.end(request.cookies.get(SESSION_COOKIE, ""))
    response = see_other("/login")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


def _local(address: str) -> str:
    """An address of this service, whatever somebody wrote into a link."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"
