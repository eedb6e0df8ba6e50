"""/v1/posteriors"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.db.tables import PosteriorRow
from app.http.schemas import Limit, Name, Page
from app.http.security import Admin, Reader
from app.posteriors import service
from app.posteriors.schemas import DiagnosticsAnswer, PosteriorAnswer, PosteriorSummary, Quality
from bco_core.inference.diagnostics import LOSSES
from bco_core.problems.surrogate import COST

router = APIRouter(prefix="/v1/posteriors", tags=["posteriors"])


def _answer(row: PosteriorRow) -> PosteriorAnswer:
    fields = {name: getattr(row, name) for name in PosteriorAnswer.model_fields if hasattr(row, name)}
    loss = row.diagnostics.get("loss", COST)
    return PosteriorAnswer(
        quality=row.diagnostics["quality"],
        reason=row.diagnostics["reason"],
        loss=loss,
        loss_meaning=LOSSES[loss],
        aliases=service.names_of(row.id),
        **fields,
    )


@router.get("")
def list_posteriors(
    caller: Reader,
    limit: Limit = 50,
    cursor: str | None = None,
    problem_id: str | None = None,
    dataset_id: str | None = None,
    job_id: str | None = None,
    name: Name | None = None,
    quality: Quality | None = None,
) -> Page[PosteriorSummary]:
    """List posteriors: all, or those of a problem, data set or job, with a name, or of a quality."""
    wanted = {"problem_id": problem_id, "dataset_id": dataset_id, "job_id": job_id, "name": name}
    rows, next_cursor = service.listing(caller.workspace, limit, cursor, quality, **wanted)
    return Page(items=rows, next_cursor=next_cursor)


@router.get("/{posterior_id}")
def read_posterior(posterior_id: str, caller: Reader) -> PosteriorAnswer:
    """Read a posterior by its id or alias: its quality, recommended policy and provenance."""
    return _answer(service.get(caller.workspace, posterior_id))


@router.get("/{posterior_id}/diagnostics")
def read_posterior_diagnostics(posterior_id: str, caller: Reader) -> DiagnosticsAnswer:
    """Read the held-out cost of every policy compared with the best constant decision, and the learning trace."""
    return DiagnosticsAnswer.model_validate(service.get(caller.workspace, posterior_id).diagnostics)


@router.get(
    "/{posterior_id}/particles",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "an .npz file"}},
)
def download_posterior_particles(
    posterior_id: str,
    caller: Reader,
    first: Annotated[int, Query(ge=0, le=2**31, description="number of the first particle")] = 0,
    count: Annotated[int | None, Query(ge=1, le=2**31, description="number of particles; all by default")] = None,
) -> Response:
    """Download particles (K, d) and standardising statistics as NumPy's .npz: ``numpy.load`` reads it."""
    row = service.get(caller.workspace, posterior_id)
    return Response(
        service.particles_file(row, first, count),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{row.id}.npz"'},
    )


@router.delete("/{posterior_id}", status_code=204)
def delete_posterior(posterior_id: str, caller: Admin, http: Request) -> None:
    """Delete a posterior that no batch and no alias uses."""
    http.app.state.posteriors.forget(service.delete(caller.workspace, posterior_id))
