"""A worker that is held up wherever it can be: no connection of its pool is free, its main thread waits for a look that
never ends, and threads that compute want Python's own lock. Run as a script by ``test_heartbeat.py``.
"""

from __future__ import annotations

import threading
from typing import Any

import sqlalchemy as sa

from app.db.engine import get_engine
from app.jobs import heartbeat, worker

taken: list[sa.Connection] = []


def spin() -> None:
    while True:
        sum(range(1000))


def never(*_: Any, **__: Any) -> set[str]:
    pool: Any = get_engine().pool
    for _ in range(pool.size() + pool._max_overflow - pool.checkedout()):
        taken.append(get_engine().connect())
    for _ in range(3):
        threading.Thread(target=spin, daemon=True).start()
    worker.log.info("the worker is held up")
    threading.Event().wait()
    return set()


if __name__ == "__main__":
    heartbeat.live_workers = never
    worker.main()
