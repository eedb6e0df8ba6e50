"""So many prescriptions at a time; who comes beyond that is asked to come again instead of waiting without end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import Unavailable
from app.metrics import IN_FLIGHT


class Places:
    def __init__(self) -> None:
        self._taken = 0
        self._lock = threading.Lock()

    @contextmanager
    def one(self, limit: int) -> Iterator[None]:
        """Take a place and give it back, or refuse at once if all are taken."""
        with self._lock:
            if self._taken >= limit:
                detail = f"{limit} prescriptions are being made already (BCO_MAX_PRESCRIPTIONS); try again shortly"
                raise Unavailable(detail, headers={"Retry-After": "1"})
            self._taken += 1
        IN_FLIGHT.set(self._taken)
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1
            IN_FLIGHT.set(self._taken)
