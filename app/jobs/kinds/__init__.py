"""The kinds of job. A new one is a file here and a line in ``KINDS``."""

from __future__ import annotations

from app.jobs.kinds.backtest import BACKTEST
from app.jobs.kinds.base import JobKind
from app.jobs.kinds.learn import LEARN
from app.jobs.kinds.prescribe import PRESCRIBE

DEFAULT = LEARN.name
KINDS: dict[str, JobKind] = {kind.name: kind for kind in (LEARN, PRESCRIBE, BACKTEST)}
