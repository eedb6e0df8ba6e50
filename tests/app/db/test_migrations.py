"""Migrations: every step up and down, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from app.db.blobs import checksum
from app.db.engine import create_engine
from app.db.former_names import job_spec
from app.db.migrate import _config, is_current, migrate
from app.db.tables import Base
from app.jobs.kinds.learn import LearnRequest
from app.settings import Settings

# This module depends on the database's own SQL.
pytestmark = pytest.mark.both_databases

OURS = set(Base.metadata.tables)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> str:
    """An empty database."""
    return Settings(database_url=empty_database(request.param)).sqlalchemy_url


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = create_engine(url)
    yield made
    made.dispose()


def database_is_current(url: str) -> bool:
    engine = create_engine(url)
    try:
        return is_current(engine)
    finally:
        engine.dispose()


def tables(engine: sa.Engine) -> set[str]:
    return set(sa.inspect(engine).get_table_names())


def alembic(engine: sa.Engine, act: Callable[..., None], revision: str) -> None:
    config = _config()
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # As migrate does: recreating a table must not delete rows that refer to it.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        config.attributes["connection"] = connection
        act(config, revision)
    # The next connection must be a new one without this pragma.
    engine.dispose()


def test_migrating_an_empty_database_creates_every_table(url: str, engine: sa.Engine) -> None:
    assert tables(engine) == set()
    migrate(url)
    assert tables(engine) >= OURS
    schema = "dbos" if engine.dialect.name == "postgresql" else None
    assert "workflow_status" in sa.inspect(engine).get_table_names(schema)


def test_migrating_again_changes_nothing(url: str, engine: sa.Engine) -> None:
    migrate(url)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO workers (id, beat_at) VALUES ('worker_1', 7.5)"))
    before = tables(engine)
    migrate(url)
    assert tables(engine) == before
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id, beat_at FROM workers")).all() == [("worker_1", 7.5)]


def test_tables_and_migrations_agree(url: str, engine: sa.Engine) -> None:
    migrate(url)
    options = {
        "compare_type": True,
        "compare_server_default": True,
        "include_name": lambda name, kind, parents: kind != "table" or name in OURS,
    }
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_all_migrations_can_be_downgraded_and_upgraded_again(url: str, engine: sa.Engine) -> None:
    migrate(url)
    alembic(engine, command.downgrade, "base")
    assert tables(engine) & OURS == set()
    assert not database_is_current(url)
    migrate(url)
    assert tables(engine) >= OURS
    assert database_is_current(url)


def test_every_migration_upgrades_and_downgrades_on_its_own(url: str, engine: sa.Engine) -> None:
    revisions = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]
    assert revisions
    for revision in revisions:
        alembic(engine, command.upgrade, revision)
        alembic(engine, command.downgrade, "-1")
        alembic(engine, command.upgrade, revision)
    assert database_is_current(url)


def test_objects_from_before_workspaces_go_into_the_default_one(engine: sa.Engine) -> None:
    alembic(engine, command.upgrade, "0001")
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO problems VALUES ('prob_1', 'p', '{}', '2026-01-01')",
            "INSERT INTO datasets VALUES ('data_1', 'd', 3, '[]', '[]', '2026-01-01')",
            "INSERT INTO dataset_chunks (dataset_id, seq, sha256, data) VALUES ('data_1', 0, 'x', 'y')",
        ):
            connection.execute(sa.text(statement))
    alembic(engine, command.upgrade, "head")
    with engine.connect() as connection:
        for table in ("problems", "datasets"):
            assert connection.scalars(sa.text(f"SELECT workspace FROM {table}")).all() == ["default"]  # noqa: S608
        assert connection.scalar(sa.text("SELECT count(*) FROM dataset_chunks")) == 1


def test_data_sets_from_before_revisions_get_one_with_its_digest(engine: sa.Engine) -> None:
    alembic(engine, command.upgrade, "0007")
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO datasets (id, name, rows, columns, warnings, created_at)"
            " VALUES ('data_1', 'd', 3, '[]', '[]', '2026-01-01')",
            "INSERT INTO dataset_chunks (dataset_id, seq, sha256, data) VALUES ('data_1', 1, 'bb', 'y')",
            "INSERT INTO dataset_chunks (dataset_id, seq, sha256, data) VALUES ('data_1', 0, 'aa', 'y')",
        ):
            connection.execute(sa.text(statement))
    alembic(engine, command.upgrade, "0008")
    with engine.connect() as connection:
        row = connection.execute(sa.text("SELECT lead, revision, digest, policy FROM datasets")).one()
        assert connection.scalars(sa.text("SELECT revision FROM dataset_chunks")).all() == [1, 1]
    policy = row.policy if isinstance(row.policy, dict) else json.loads(row.policy)
    assert (*row[:2], policy) == (1, 1, {"missing": "reject", "unseen": "reject"})
    assert row.digest == checksum(b"aabb")


def test_only_a_migrated_database_is_current(url: str) -> None:
    assert not database_is_current(url)
    migrate(url)
    assert database_is_current(url)


def test_a_database_of_another_version_is_not_current(url: str, engine: sa.Engine) -> None:
    migrate(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    assert not database_is_current(url)


def test_the_history_has_one_head() -> None:
    assert len(ScriptDirectory.from_config(_config()).get_heads()) == 1


def test_sqlite_uses_write_ahead_logging_so_that_readers_do_not_wait(empty_database: Callable[[str], str]) -> None:
    url = empty_database("sqlite")
    migrate(url)
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 10000
    engine.dispose()


def test_a_missing_folder_of_a_sqlite_file_is_created(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("sqlite") / "deep" / "deeper" / "bco.db"
    migrate(f"sqlite:///{path}")
    assert path.exists()
    assert database_is_current(f"sqlite:///{path}")


Rows = dict[str, dict[str, object]]

ROWS: Rows = {
    "problems": {"id": "prob_1", "name": "p", "spec": "{}", "created_at": "2026-01-01"},
    "datasets": {
        "id": "data_1",
        "name": "d",
        "rows": 2,
        "columns": "[]",
        "warnings": "[]",
        "created_at": "2026-01-01",
    },
    "dataset_chunks": {"dataset_id": "data_1", "seq": 0, "sha256": "x", "data": b"rows"},
    "jobs": {
        "id": "job_1",
        "problem_id": "prob_1",
        "dataset_id": "data_1",
        "name": "j",
        "spec": "{}",
        "state": "succeeded",
        "attempts": 1,
        "progress": 1.0,
        "message": "",
        "created_at": "2026-01-01",
    },
    "posteriors": {
        "id": "post_1",
        "job_id": "job_1",
        "problem_id": "prob_1",
        "dataset_id": "data_1",
        "name": "j",
        "problem": "{}",
        "columns": "[]",
        "description": "{}",
        "diagnostics": "{}",
        "policy": "bcp",
        "digest": "x",
        "particles": 1,
        "created_at": "2026-01-01",
    },
    "posterior_blocks": {"posterior_id": "post_1", "array": "a", "first_row": 0, "sha256": "x", "data": b"array"},
}


def insert(engine: sa.Engine, rows: Rows) -> None:
    with engine.begin() as connection:
        for table, row in rows.items():
            names = ", ".join(f'"{name}"' for name in row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)  # noqa: S608


def test_an_upgrade_keeps_all_stored_rows(url: str, engine: sa.Engine) -> None:
    """SQLite recreates tables to change them; that must not delete rows that refer to them."""
    migrate(url)
    alembic(engine, command.downgrade, "0002")
    insert(engine, ROWS)
    engine.dispose()
    migrate(url)
    with engine.connect() as connection:
        for table in ROWS:
            assert connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar() == 1, table  # noqa: S608
        job = connection.execute(sa.text("SELECT kind, run_id, attempts_allowed, revision FROM jobs")).one()
        assert tuple(job) == ("learn", "job_1", 3, 0)
        assert connection.execute(sa.text("SELECT data FROM posterior_blocks")).scalar() == b"array"
        if engine.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def test_a_batch_becomes_a_job_with_its_posterior_and_back_again(engine: sa.Engine) -> None:
    alembic(engine, command.upgrade, "0005")
    rows = ROWS | {"jobs": ROWS["jobs"] | {"run_id": "job_1"}}
    insert(engine, rows)
    batch = rows["jobs"] | {"id": "job_2", "run_id": "job_2", "kind": "prescribe", "dataset_id": None}
    insert(engine, {"jobs": batch, "job_log": {"job_id": "job_2", "seq": 0, "at": "2026-01-01", "text": "accepted"}})
    insert(engine, {"batches": {"job_id": "job_2", "posterior_id": "post_1", "rows": 12, "shards": 2}})
    for seq, (count, result) in enumerate(((7, b"done"), (5, None))):
        part = {"job_id": "job_2", "seq": seq, "rows": count, "attempts": 1, "sha256": "x", "data": b"contexts"}
        insert(engine, {"job_parts": part | {"result": result, "result_sha256": result and "y"}})

    def query_rows(query: str) -> list[tuple[object, ...]]:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]

    for _ in range(2):
        alembic(engine, command.upgrade, "0006")
        assert "batches" not in tables(engine)
        jobs = query_rows("SELECT id, kind, posterior_id, priority FROM jobs ORDER BY id")
        assert jobs == [("job_1", "learn", None, 1), ("job_2", "prescribe", "post_1", 1)]
        assert query_rows("SELECT seq, work, data, result FROM job_parts ORDER BY seq") == [
            (0, 7, b"contexts", b"done"),
            (1, 5, b"contexts", None),
        ]
        assert query_rows("SELECT text FROM job_log") == [("accepted",)]
        with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM posteriors"))
        alembic(engine, command.downgrade, "0005")
        assert query_rows("SELECT job_id, posterior_id, rows, shards FROM batches") == [("job_2", "post_1", 12, 2)]
        assert query_rows("SELECT seq, rows, result FROM job_parts ORDER BY seq") == [(0, 7, b"done"), (1, 5, None)]
        assert query_rows("SELECT id FROM posteriors") == [("post_1",)]
        assert query_rows("SELECT text FROM job_log") == [("accepted",)]


# Stored options of jobs before each method had its own.
OLD_OPTIONS: dict[str, object] = {
    "method": "auto",
    "family": "laplace",
    "members": None,
    "kl_weight": None,
    "inverse_temperature": None,
    "prior_scale": 1.0,
    "initial_scale": 0.05,
    "epochs": 300,
    "patience": 20,
    "batch_size": 128,
    "learning_rate": 0.003,
    "optimizer": "adam",
    "draws": 1,
    "particles": 200,
    "certify": False,
    "chains": 4,
    "steps": 15000,
    "burn_in": 5000,
    "temperature": "settle",
    "scale_costs": True,
    "thinning": "support_points",
}
SPEC: dict[str, object] = {"predictor": {"kind": "auto", "hidden": None}, "policy": None, "seed": 7}


@pytest.mark.parametrize("state", ["queued", "failed"])
@pytest.mark.parametrize(
    "chosen",
    [
        {"method": "auto"},
        {"method": "auto", "epochs": 50, "members": 5, "certify": True},
        {"method": "auto", "chains": 8, "steps": 2000, "burn_in": 100, "thinning": "regular", "prior_scale": 0.2},
        {"method": "vi", "epochs": 50, "optimizer": "sgd", "kl_weight": 0.5},
        {"method": "vi", "members": 3, "certify": True},
        {"method": "mh", "chains": 2, "temperature": "validation", "prior_scale": 2.0},
    ],
    ids=json.dumps,
)
def test_a_job_that_may_still_run_keeps_its_options(engine: sa.Engine, chosen: dict[str, object], state: str) -> None:
    alembic(engine, command.upgrade, "0005")
    spec: dict[str, Any] = SPEC | {"posterior": OLD_OPTIONS | chosen}
    kind = "return_constrained_portfolio" if "chains" in chosen else "newsvendor"
    # Options without effect were ignored before, and would be refused now.
    idle = {} if chosen["method"] != "auto" else {"epochs": 77} if "chains" in chosen else {"steps": 777}
    spec["posterior"] |= idle
    before = {name: ROWS[name] for name in ("problems", "datasets", "jobs")}
    before["problems"] = before["problems"] | {"spec": json.dumps({"kind": kind})}
    before["jobs"] = before["jobs"] | {"run_id": "job_1", "state": state, "spec": json.dumps(spec)}
    insert(engine, before)
    part = {"job_id": "job_1", "seq": 0, "rows": 1, "attempts": 1, "sha256": "x", "data": b"half a chain"}
    insert(engine, {"job_parts": part})

    def stored_spec() -> dict[str, Any]:
        jobs = sa.table("jobs", sa.column("spec", sa.JSON))
        with engine.connect() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM job_parts")) == 0
            found: dict[str, Any] = connection.scalars(sa.select(jobs.c.spec)).one()
        return found

    alembic(engine, command.upgrade, "0006")
    request = LearnRequest(problem_id="prob_1", dataset_id="data_1", **job_spec(stored_spec()))
    options = request.learning_options()
    assert {name: getattr(options, name) for name in chosen} == chosen
    assert all(getattr(options, name) is None for name in idle)
    assert (request.seed, options.particles) == (7, 200)
    alembic(engine, command.downgrade, "0005")
    assert OLD_OPTIONS | {"members": stored_spec()["posterior"].get("members")} | stored_spec()["posterior"] == (
        OLD_OPTIONS | {"members": 1 if chosen["method"] == "vi" else None} | chosen
    )


def test_a_succeeded_job_keeps_its_options(engine: sa.Engine) -> None:
    alembic(engine, command.upgrade, "0005")
    spec = json.dumps(SPEC | {"posterior": OLD_OPTIONS})
    rows = {name: ROWS[name] for name in ("problems", "datasets", "jobs")}
    insert(engine, rows | {"jobs": rows["jobs"] | {"run_id": "job_1", "spec": spec}})
    alembic(engine, command.upgrade, "0006")
    with engine.connect() as connection:
        (found,) = connection.scalars(sa.text("SELECT spec FROM jobs"))
    assert (json.loads(found) if isinstance(found, str) else found) == json.loads(spec)
