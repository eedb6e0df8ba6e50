"""In-process client of the HTTP API, with the rights of the person who looks at the page.

Pages call ``/v1`` for everything, so they have the same rights, limits and error messages as an API key, and can show
each call as curl and Python.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.http.security import Caller

# Paths of the API; an id or name with other characters does not exist, and must not change the path.
_ADDRESS = re.compile(r"(/(?!\.{1,2}(/|$))[0-9A-Za-z._~%:@+-]+)+")
# Texts that curl takes literally; it reads others as files, types or quotes.
_PLAIN = re.compile(r"\w[\w .,:/-]*")
# Longer than any call of a page; the API has its own limits.
_SECONDS = 120.0


class ApiRefusal(Exception):
    """The API refused a request: HTTP status and RFC 9457 problem."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem["detail"])
        self.status, self.problem = status, problem

    @property
    def detail(self) -> str:
        """The problem's detail, capitalised."""
        return sentence(str(self.problem["detail"]))

    def at(self, *pointers: str) -> list[str]:
        """Return the errors at JSON pointers such as ``#/items/0/name``."""
        return [sentence(one["detail"]) for one in self.problem.get("errors", []) if one["pointer"] in pointers]

    def elsewhere(self, *pointers: str) -> list[str]:
        """Return the errors at all other pointers, with the pointer."""
        errors = self.problem.get("errors", [])
        return [f"{one['pointer'][2:]}: {one['detail']}" for one in errors if one["pointer"] not in pointers]


@dataclass(frozen=True)
class Call:
    """A request to the API that can be shown as curl or Python."""

    method: str
    path: str
    body: Any = None
    # of a multipart form: the file name and the other fields
    file: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    # names of further files, by field
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        return ({} if self.file is None else {"file": self.file}) | dict(self.beside)

    def curl(self, base: str, with_key: bool) -> str:
        words = ["curl", "-s"]
        if self.method not in ("GET", "POST") or (self.method == "POST" and self.body is None and self.file is None):
            words += ["-X", self.method]
        words.append(shlex.quote(base + self.path))
        if with_key:
            words.append('-H "Authorization: Bearer $BCO_API_KEY"')
        if self.body is not None:
            words += ["-H 'Content-Type: application/json'", "-d", shlex.quote(_short(self.body))]
        words += [f"-F {shlex.quote(f'{name}=@{_quote_for_curl(file)}')}" for name, file in self.files.items()]
        for name, value in self.fields.items():
            words += ["-F" if _PLAIN.fullmatch(value) else "--form-string", shlex.quote(f"{name}={value}")]
        return " ".join(words)

    def python(self, base: str, with_key: bool) -> str:
        given = [repr(self.path)]
        if self.body is not None:
            given.append(f"json={self.body!r}")
        if self.fields:
            given.append(f"data={dict(self.fields)!r}")
        if self.files:
            opened = ", ".join(f"{name!r}: open({file!r}, 'rb')" for name, file in self.files.items())
            given.append(f"files={{{opened}}}")
        lines = ["import httpx"] + ["import os"] * with_key
        headers = ", headers={'Authorization': f\"Bearer {os.environ['BCO_API_KEY']}\"}" if with_key else ""
        lines.append(f"service = httpx.Client(base_url={base!r}{headers}, timeout=120)")
        answer = "status_code" if self.method == "DELETE" else "json()"
        lines.append(f"print(service.{self.method.lower()}({', '.join(given)}).{answer})")
        return "\n".join(lines)


def _quote_for_curl(file: str) -> str:
    """Quote a file name for curl."""
    if _PLAIN.fullmatch(file):
        return file
    escaped = file.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _short(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _refusal(status: int, kind: str, title: str, detail: str) -> ApiRefusal:
    """Build the refusal of a request that cannot be sent to the API."""
    return ApiRefusal(status, {"type": f"urn:bco:error:{kind}", "title": title, "status": status, "detail": detail})


def _invalid_input(detail: str) -> ApiRefusal:
    return _refusal(422, "invalid-input", "The request is invalid", detail)


def _encode_json(body: Any) -> bytes:
    """Encode a body as JSON. The API refuses long integers and lone surrogates at their place."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except RecursionError:
        raise _invalid_input("the JSON is nested too deeply") from None
    except ValueError:
        raise _invalid_input("numbers must be finite") from None


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid_input("the text is not valid UTF-8") from None
    return text


class Api:
    """The API with the rights of a page's caller; ``calls`` lists the requests in order."""

    def __init__(self, request: Request) -> None:
        self._app: FastAPI = request.app
        self._caller: Caller = request.scope["caller"]
        self._client = request.scope.get("client") or ("127.0.0.1", 0)
        self.calls: list[Call] = []

    async def get(self, path: str, **query: Any) -> Any:
        wanted = {name: value for name, value in query.items() if value not in (None, "")}
        address = path + (f"?{httpx.QueryParams(wanted)}" if wanted else "")
        return await self._ask(Call("GET", address))

    async def find(self, path: str, identifier: str | None) -> Any:
        """Get the object with an id below ``path``; None without an id, or where the API knows none."""
        if not identifier:
            return None
        try:
            return await self.get(f"{path}/{identifier}")
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise
            return None

    async def post(self, path: str, body: Any = None, *, kept: bool = True) -> Any:
        """Send JSON; ``kept=False`` keeps the answer out of the prescription log."""
        return await self._ask(Call("POST", path, body), kept=kept)

    async def put(self, path: str, body: Any) -> Any:
        return await self._ask(Call("PUT", path, body))

    async def delete(self, path: str) -> None:
        await self._ask(Call("DELETE", path))

    async def upload(
        self,
        path: str,
        name: str,
        content: bytes,
        fields: Mapping[str, str] | None = None,
        beside: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> Any:
        """Send a file with form fields and, by field, further files (``beside``)."""
        given = {name: value for name, value in (fields or {}).items() if value != ""}
        more = {field: name for field, (name, _) in (beside or {}).items()}
        call = Call("POST", path, file=name, fields=given, beside=more)
        return await self._ask(call, {"file": content} | {field: sent for field, (_, sent) in (beside or {}).items()})

    async def file(self, path: str) -> httpx.Response:
        """Get an answer that is not JSON."""
        return await self._send(Call("GET", path), {}, True)

    async def _ask(self, call: Call, content: Mapping[str, bytes] | None = None, kept: bool = True) -> Any:
        answer = await self._send(call, content or {}, kept)
        return orjson.loads(answer.content) if answer.content else None

    async def _send(self, call: Call, content: Mapping[str, bytes], kept: bool) -> httpx.Response:
        self.calls.append(call)

        async def on_behalf(scope: Scope, receive: Receive, send: Send) -> None:
            await self._app({**scope, "caller": self._caller, "kept": kept}, receive, send)

        if not _ADDRESS.fullmatch(call.path.partition("?")[0]):
            raise _refusal(404, "not-found", "There is no such object", "no object has this id or name")
        given: dict[str, Any] = {}
        if call.file is not None:
            sent = {field: (name, content[field]) for field, name in call.files.items()}
            given = {"files": sent, "data": {name: _check_unicode(value) for name, value in call.fields.items()}}
        elif call.body is not None:
            given = {"content": _encode_json(call.body), "headers": {"Content-Type": "application/json"}}
        transport = httpx.ASGITransport(on_behalf, raise_app_exceptions=False, client=tuple(self._client))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=_SECONDS, trust_env=False
        ) as client:
            answer = await client.request(call.method, call.path, **given)
        if answer.is_error:
            raise ApiRefusal(answer.status_code, answer.json())
        return answer


def install(app: FastAPI) -> None:
    """Answer a refusal that no page handled as the API did."""

    @app.exception_handler(ApiRefusal)
    async def on_refusal(request: Request, refusal: ApiRefusal) -> JSONResponse:
        return JSONResponse(refusal.problem, refusal.status, media_type="application/problem+json")
