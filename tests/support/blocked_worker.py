"""A worker that is blocked in every way: its connection pool is empty, its main thread waits for ever, and computing
threads hold the interpreter lock. Run as a script by ``test_heartbeat.py``."""

from __future__ import annotations

import threading
from typing import Any

import sqlalchemy as sa

from app.db.engine import get_engine
from app.jobs import heartbeat, worker

connections: list[sa.Connection] = []


def spin() -> None:
    while True:
        sum(range(1000))


def never(*_: Any, **__: Any) -> set[str]:
    pool: Any = get_engine().pool
    for _ in range(pool.size() + pool._max_overflow - pool.checkedout()):
        connections.append(get_engine().connect())
    for _ in range(3):
        threading.Thread(target=spin, daemon=True).start()
    worker.log.info("the worker is held up")
    threading.Event().wait()
    return set()


if __name__ == "__main__":
    heartbeat.live_workers = never
    worker.main()
