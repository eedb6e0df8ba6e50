"""/v1/status"""

from __future__ import annotations

from fastapi import APIRouter

from app.http.security import Reader
from app.jobs import status
from app.jobs.status import StatusAnswer

router = APIRouter(prefix="/v1/status", tags=["health"])


@router.get("")
def read_status(caller: Reader) -> StatusAnswer:
    """The version, how many workers are alive, how many jobs run and wait, and whether the log is on."""
    return status.status(caller.workspace)
