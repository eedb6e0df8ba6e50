"""The page of a decision: a form for the context, the decision with what it may cost, and what others would do.

All that is asked for stands in the address. Who presses the button has the decision kept in the log; whatever else is
looked at here is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.ids import is_id
from app.pages import forms
from app.pages.api_client import Api, Refused
from app.pages.decide import table as decide_table
from app.pages.decide import what_if as decide_what_if
from app.pages.decide import why as decide_why
from app.pages.decide.answer import decided, money_of, warnings_of
from app.pages.decide.entries import MOST_HANDLES, are_tied, rules_of
from app.pages.decide.fields import Given, form_fields, given_fields, outside
from app.pages.decide.parts import is_part, part
from app.pages.decide.query import COMPARED, POLICY_WORDS, Asked
from app.pages.decide.what_if import asked_again, plain
from app.pages.render import render, see_other
from bco_core.policies import POLICIES

router = APIRouter(include_in_schema=False)
router.include_router(decide_what_if.router)
router.include_router(decide_why.router)
router.include_router(decide_table.router)

INCLUDE = ["scenarios", "outcomes", "recourse"]
# So many entries of a decision stand in a comparison.
_MOST_NAMED = 4


@router.get("/posteriors/{named}/decide")
async def show(named: str, request: Request, caller: Reader) -> Response:
    """The decision for what the address says, or for what comes after the history. A look is not kept in the log."""
    api, given = Api(request), request.query_params
    posterior = await api.get(Asked(named, ()).api)
    kept = given.get("kept", "")
    return await _page(
        request, api, named, posterior, given, kept=kept if is_id(kept) and kept.startswith("pres_") else ""
    )


@router.post("/posteriors/{named}/decide")
async def decide(named: str, request: Request, caller: Reader) -> Response:
    """Decide, and keep the decision in the log."""
    form = await forms.submitted(request)
    api = Api(request)
    posterior = await api.get(Asked(named, ()).api)
    return await _page(request, api, named, posterior, form, keep=True)


async def _page(
    request: Request,
    api: Api,
    named: str,
    posterior: Mapping[str, Any],
    given: Given,
    *,
    keep: bool = False,
    kept: str = "",
) -> Response:
    fields, source = given_fields(posterior, given) if is_part(request) or keep else None, ""
    if fields is None:
        fields, source = await form_fields(api, posterior, given)
    asked = Asked.of(named, fields, given)
    rules = await rules_of(api, posterior)
    try:
        answer = await api.post(f"{asked.api}/prescribe", asked.body(include=INCLUDE), kept=keep)
    except Refused as refused:
        if source == "" and not is_part(request):
            fields, source = await form_fields(api, posterior, given)
            asked = Asked.of(named, fields, given)
        return _shown(request, asked, posterior, source, refused.status, refused=refused)
    asking = api.calls[-1:]
    if keep and not is_part(request):
        return see_other(asked.address(kept=answer["id"] or ""))
    found = decided(answer["prescriptions"][0], rules)
    response = _shown(
        request,
        asked,
        posterior,
        source,
        answer=answer,
        decided=found,
        warnings=warnings_of(answer),
        beyond=[] if answer["prescriptions"][0]["warnings"] else outside(posterior, fields),
        asking=asking,
        kept=(answer["id"] or "") if keep else kept,
        pressed=keep or bool(kept),
        tied=are_tied(posterior["problem"]) and len(found.entries) > 1,
    )
    response.headers["HX-Replace-Url"] = asked.address()
    return response


def _shown(
    request: Request, asked: Asked, posterior: Mapping[str, Any], source: str, status: int = 200, **given: Any
) -> Response:
    """The whole page, or its answer alone."""
    template = "decided.html" if is_part(request) else "decide.html"
    told: dict[str, Any] = {
        "answer": None,
        "decided": None,
        "refused": None,
        "asking": [],
        "kept": "",
        "pressed": False,
        "tied": False,
    }
    return render(
        request,
        template,
        status,
        asked=asked,
        posterior=posterior,
        source=source,
        policies=POLICY_WORDS,
        is_part=is_part(request),
        link=str(request.base_url).rstrip("/") + asked.address(),
        most_handles=MOST_HANDLES,
        **told | given,
    )


@router.get("/posteriors/{named}/decide/others")
async def others(named: str, request: Request, caller: Reader) -> Response:
    """What other policies would do, and what that would cost over the same scenarios."""
    api = Api(request)
    asked, posterior = await asked_again(api, named, request.query_params)
    try:
        tries = await _decisions(api, asked)
        body = asked.body(alternatives=[{"name": name, "decision": decision} for name, decision in tries.items()])
        answer = await api.post(f"{asked.api}/evaluate", body, kept=False)
    except Refused as refused:
        return part(request, "decide_others.html", asked, posterior, refused.status, refused=refused, asking=[])
    found = answer["evaluations"][0]
    money = money_of(found["ours"])
    size = abs(found["ours"]["expected_cost"] or 0.0)
    rows = [
        {
            "name": one["name"],
            "words": POLICY_WORDS[one["name"]],
            "told": one | {"extra_cost": plain(one["extra_cost"], size)},
        }
        for one in found["alternatives"]
    ]
    largest = sorted(found["ours"]["decision"].items(), key=lambda pair: -abs(pair[1] or 0.0))[:_MOST_NAMED]
    names = [name for name in found["ours"]["decision"] if name in dict(largest)]
    return part(
        request,
        "decide_others.html",
        asked,
        posterior,
        answer=answer,
        ours=found["ours"],
        money=money,
        rows=rows,
        policies=POLICY_WORDS,
        names=names,
        asking=api.calls[1:],
    )


async def _decisions(api: Api, asked: Asked) -> dict[str, dict[str, float]]:
    """What each policy decides for the context; one that finds no decision, or cannot be asked for it, is left out."""
    found = {}
    for name in COMPARED:
        options = asked.options() | {"policy": name}
        if not POLICIES[name].hedges:
            options.pop("risk", None)
        body = {"contexts": [asked.context]} | options
        try:
            answer = await api.post(f"{asked.api}/prescribe", body, kept=False)
        except Refused as refused:
            if refused.status != 422:
                raise
            continue
        decision = answer["prescriptions"][0]["decision"]
        if None not in decision.values():
            found[name] = decision
    return found
