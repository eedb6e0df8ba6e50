"""Limit the prescribe and evaluate calls under way: 503 beyond the total, 429 beyond a workspace's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.http.errors import TooManyError, UnavailableError
from app.metrics import IN_FLIGHT


class AdmissionLimit:
    """Slots for calls, at most ``most`` of them for one workspace at a time; 0 for all."""

    def __init__(self, total: int, most: int) -> None:
        self._total, self._most = total, most or total
        self._by_workspace: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def slot(self, workspace: str) -> Iterator[None]:
        """Take a slot for the current call and give it back; refuse at once if there is none."""
        if self.taken >= self._total:
            detail = f"{self._total} prescriptions are under way already (BCO_MAX_PRESCRIPTIONS); try again shortly"
            raise UnavailableError(detail, headers={"Retry-After": "1"})
        if self._by_workspace[workspace] >= self._most:
            number = f"{self._most} prescriptions of this workspace are under way already"
            detail = f"{number} (BCO_MAX_WORKSPACE_PRESCRIPTIONS); try again shortly"
            raise TooManyError(detail, headers={"Retry-After": "1"})
        self._count(workspace, 1)
        try:
            yield
        finally:
            self._count(workspace, -1)

    def _count(self, workspace: str, change: int) -> None:
        self.taken += change
        self._by_workspace[workspace] += change
        if not self._by_workspace[workspace]:
            # Workspaces come and go: drop those without a call.
            del self._by_workspace[workspace]
        IN_FLIGHT.set(self.taken)
