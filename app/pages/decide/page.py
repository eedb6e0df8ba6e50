"""The page that decides: the context form, the decision with its cost, and the comparison of policies.

The URL holds the whole query. Only the button Decide logs the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.ids import is_id
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal
from app.pages.decide import explanation as decide_explanation
from app.pages.decide import table as decide_table
from app.pages.decide import what_if as decide_what_if
from app.pages.decide.answer import MOST_HANDLES, decision_view, get_limits, money_of, share_constraints, warnings_of
from app.pages.decide.fields import FormValues, form_fields, out_of_range, read_fields
from app.pages.decide.query import COMPARED, POLICY_WORDS, DecideQuery, is_part, render_part
from app.pages.decide.what_if import drop_rounding, read_query
from app.pages.render import render, see_other
from bco_core.policies import POLICIES

router = APIRouter(include_in_schema=False)
router.include_router(decide_what_if.router)
router.include_router(decide_explanation.router)
router.include_router(decide_table.router)

INCLUDE = ["scenarios", "outcomes", "recourse"]
# Entries shown in the comparison of policies.
_MOST_NAMED = 4


@router.get("/posteriors/{named}/decide")
async def show(named: str, request: Request, caller: Reader) -> Response:
    """Decide for the query in the URL, or for the period after the history, without logging."""
    api, given = Api(request), request.query_params
    posterior = await api.get(DecideQuery(named, ()).api)
    kept = given.get("kept", "")
    return await _page(
        request, api, named, posterior, given, kept=kept if is_id(kept) and kept.startswith("pres_") else ""
    )


@router.post("/posteriors/{named}/decide")
async def decide(named: str, request: Request, caller: Reader) -> Response:
    """Decide and log the decision."""
    form = await forms.read_form(request)
    api = Api(request)
    posterior = await api.get(DecideQuery(named, ()).api)
    return await _page(request, api, named, posterior, form, keep=True)


async def _page(
    request: Request,
    api: Api,
    named: str,
    posterior: Mapping[str, Any],
    given: FormValues,
    *,
    keep: bool = False,
    kept: str = "",
) -> Response:
    fields, source = read_fields(posterior, given) if is_part(request) or keep else None, ""
    if fields is None:
        fields, source = await form_fields(api, posterior, given)
    query = DecideQuery.of(named, fields, given)
    rules = await get_limits(api, posterior)
    try:
        answer = await api.post(f"{query.api}/prescribe", query.body(include=INCLUDE), kept=keep)
    except ApiRefusal as refusal:
        if source == "" and not is_part(request):
            fields, source = await form_fields(api, posterior, given)
            query = DecideQuery.of(named, fields, given)
        return _render_decision(request, query, posterior, source, refusal.status, refusal=refusal)
    asking = api.calls[-1:]
    if keep and not is_part(request):
        return see_other(query.address(kept=answer["id"] or ""))
    result = decision_view(answer["prescriptions"][0], rules)
    response = _render_decision(
        request,
        query,
        posterior,
        source,
        answer=answer,
        decided=result,
        warnings=warnings_of(answer),
        beyond=[] if answer["prescriptions"][0]["warnings"] else out_of_range(posterior, fields),
        asking=asking,
        kept=(answer["id"] or "") if keep else kept,
        pressed=keep or bool(kept),
        tied=share_constraints(posterior["problem"]) and len(result.entries) > 1,
    )
    response.headers["HX-Replace-Url"] = query.address()
    return response


def _render_decision(
    request: Request, query: DecideQuery, posterior: Mapping[str, Any], source: str, status: int = 200, **given: Any
) -> Response:
    """Render the whole page, or its answer alone."""
    template = "decided.html" if is_part(request) else "decide.html"
    defaults: dict[str, Any] = {
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
        query=query,
        posterior=posterior,
        source=source,
        policies=POLICY_WORDS,
        is_part=is_part(request),
        link=str(request.base_url).rstrip("/") + query.address(),
        most_handles=MOST_HANDLES,
        **defaults | given,
    )


@router.get("/posteriors/{named}/decide/others")
async def others(named: str, request: Request, caller: Reader) -> Response:
    """Compare policies over the same scenarios."""
    api = Api(request)
    query, posterior = await read_query(api, named, request.query_params)
    try:
        tries = await _decisions(api, query)
        body = query.body(alternatives=[{"name": name, "decision": decision} for name, decision in tries.items()])
        answer = await api.post(f"{query.api}/evaluate", body, kept=False)
    except ApiRefusal as refusal:
        return render_part(request, "decide_others.html", query, posterior, refusal.status, refusal=refusal, asking=[])
    result = answer["evaluations"][0]
    money = money_of(result["ours"])
    size = abs(result["ours"]["expected_cost"] or 0.0)
    rows = [
        {
            "name": one["name"],
            "words": POLICY_WORDS[one["name"]],
            "evaluation": one | {"extra_cost": drop_rounding(one["extra_cost"], size)},
        }
        for one in result["alternatives"]
    ]
    largest = sorted(result["ours"]["decision"].items(), key=lambda pair: -abs(pair[1] or 0.0))[:_MOST_NAMED]
    names = [name for name in result["ours"]["decision"] if name in dict(largest)]
    return render_part(
        request,
        "decide_others.html",
        query,
        posterior,
        answer=answer,
        ours=result["ours"],
        money=money,
        rows=rows,
        policies=POLICY_WORDS,
        names=names,
        asking=api.calls[1:],
    )


async def _decisions(api: Api, query: DecideQuery) -> dict[str, dict[str, float]]:
    """Return the decision of each policy; those without a decision are left out."""
    result = {}
    for name in COMPARED:
        options = query.options() | {"policy": name}
        if not POLICIES[name].hedges:
            options.pop("risk", None)
        body = {"contexts": [query.context]} | options
        try:
            answer = await api.post(f"{query.api}/prescribe", body, kept=False)
        except ApiRefusal as refusal:
            if refusal.status != 422:
                raise
            continue
        decision = answer["prescriptions"][0]["decision"]
        if None not in decision.values():
            result[name] = decision
    return result
