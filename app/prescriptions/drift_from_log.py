"""Whether what was prescribed has cost what was promised: the recorded outcomes of kept prescriptions."""

from __future__ import annotations

import sqlalchemy as sa
import torch

from app.db.engine import transaction
from app.db.tables import OutcomeRow, PrescriptionRow
from app.posteriors import service as posteriors
from app.prescriptions.drift import MOST_ROWS, DriftAnswer, stretched
from bco_core.drift import Promises, judge


def judge_log(workspace: str, named: str) -> DriftAnswer:
    """Compare promised with realised costs over the latest prescriptions whose outcome is recorded."""
    posterior = posteriors.get(workspace, named)
    kept, after = PrescriptionRow, OutcomeRow
    whose = kept.workspace == workspace, kept.posterior_id == posterior.id, kept.digest == posterior.digest
    query = sa.select(kept.created_at, after.promised, after.low, after.high, after.realised_cost)
    query = query.join(after, after.prescription_id == kept.id).where(*whose, kept.kind == "prescribe")
    with transaction() as session:
        found = session.execute(query.order_by(kept.id.desc(), after.number.desc()).limit(MOST_ROWS)).all()
    judged = [row for row in reversed(found) if None not in row]
    numbers = torch.tensor([row[1:] for row in judged], dtype=torch.float64).view(-1, 4)
    verdict = judge(Promises(*numbers.unbind(dim=1)))
    return DriftAnswer(
        posterior_id=posterior.id,
        digest=posterior.digest,
        policy=posterior.policy,
        source="log",
        dataset_id=None,
        learned_revision=None,
        revision=None,
        left_out=len(found) - len(judged),
        **stretched(verdict, [row.created_at.isoformat() for row in judged]),
    )
