"""Every kind of job in the same tables: a job names the posterior it uses, and a part its amount of work.

Jobs that may still run keep the options that their method has; before, every job had those of all methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COMMON = {"method", "family", "kl_weight", "inverse_temperature", "particles"}
OF_VI = {"members", "prior_scale", "initial_scale", "epochs", "patience", "batch_size", "learning_rate", "optimizer"}
OF_CHAINS = {"prior_scale", "chains", "steps", "burn_in", "temperature", "scale_costs", "thinning"}
OF_MIXTURES = {"members", "epochs", "draws", "certify"}
# The problems that auto sampled by chains; for all others it learned a mixture.
CHAINED = {"return_constrained_portfolio"}
# The default options that were stored with auto.
UNCHOSEN = {
    "members": None,
    "epochs": 300,
    "draws": 1,
    "certify": False,
    "prior_scale": 1.0,
    "chains": 4,
    "steps": 15_000,
    "burn_in": 5_000,
    "temperature": "settle",
    "scale_costs": True,
    "thinning": "support_points",
}


def _own(options: dict[str, Any], problem: str) -> dict[str, Any]:
    """The options that the method of a job has, and that made a difference for its kind of problem."""
    method = options.get("method", "auto")
    if method == "auto":
        used = OF_CHAINS if problem in CHAINED else OF_MIXTURES
        chosen = {name for name in used if name in options and options[name] != UNCHOSEN[name]}
        if options.get("kl_weight") is not None or options.get("inverse_temperature") is not None:
            chosen -= {"temperature"}
        return {name: value for name, value in options.items() if name in COMMON | chosen}
    known = COMMON | (OF_VI | {"draws", "certify"} if method == "vi" else OF_CHAINS)
    if method == "mh" and (options.get("kl_weight") is not None or options.get("inverse_temperature") is not None):
        known = known - {"temperature"}
    own = {name: value for name, value in options.items() if name in known}
    return own | {"members": 1} if method == "vi" and own.get("members") is None else own


def _chosen(options: dict[str, Any], problem: str) -> dict[str, Any]:
    """The options that were given: the older version takes no null where it has a default."""
    return {name: value for name, value in options.items() if value is not None}


def _rewrite(change: Callable[[dict[str, Any], str], dict[str, Any]]) -> None:
    """Change the options of learning jobs that may run, or run again."""
    texts = [sa.column(name, sa.String) for name in ("id", "kind", "state", "problem_id")]
    jobs = sa.table("jobs", *texts, sa.column("spec", sa.JSON))
    problems = sa.table("problems", sa.column("id", sa.String), sa.column("spec", sa.JSON))
    connection = op.get_bind()
    may_run = sa.select(jobs.c.id, jobs.c.spec, problems.c.spec).join(problems, problems.c.id == jobs.c.problem_id)
    may_run = may_run.where(jobs.c.kind == "learn", jobs.c.state != "succeeded")
    for job_id, spec, problem in connection.execute(may_run).all():
        if "posterior" in spec:
            changed = spec | {"posterior": change(spec["posterior"], problem.get("kind", ""))}
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(spec=changed))
    # Their processes ran the other version, so they start over.
    op.execute("DELETE FROM job_parts WHERE job_id IN (SELECT id FROM jobs WHERE kind = 'learn')")


def upgrade() -> None:
    # In plain SQL, because SQLite would otherwise recreate both tables and delete rows that refer to them.
    op.execute("ALTER TABLE job_parts RENAME COLUMN rows TO work")
    reference = "CONSTRAINT fk_jobs_posterior_id REFERENCES posteriors (id)"
    op.execute(f"ALTER TABLE jobs ADD COLUMN posterior_id VARCHAR {reference}")
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="1"))
    op.execute("UPDATE jobs SET posterior_id = (SELECT posterior_id FROM batches WHERE job_id = jobs.id)")
    op.create_index("ix_jobs_posterior_id", "jobs", ["posterior_id"])
    op.drop_table("batches")
    _rewrite(_own)


def downgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("posterior_id", sa.String, sa.ForeignKey("posteriors.id"), nullable=False, index=True),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("shards", sa.Integer, nullable=False),
    )
    op.execute(
        "INSERT INTO batches (job_id, posterior_id, rows, shards) "
        "SELECT jobs.id, jobs.posterior_id, sum(job_parts.work), count(*) "
        "FROM jobs JOIN job_parts ON job_parts.job_id = jobs.id WHERE jobs.kind = 'prescribe' "
        "GROUP BY jobs.id, jobs.posterior_id"
    )
    op.drop_index("ix_jobs_posterior_id", "jobs")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("posterior_id")
        jobs.drop_column("priority")
    op.execute("ALTER TABLE job_parts RENAME COLUMN work TO rows")
    _rewrite(_chosen)
