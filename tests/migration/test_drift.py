"""`toc migrate --status`: what somebody changed by hand is found, and named."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from tests.migration.conftest import (
    SHARED,
    VIEWS,
    databases_of,
    engine_of,
    run,
    scalar,
    settings_of,
)
from tests.servers.process import free_port
from toc.runtime.settings import Settings
from toc.store import migrate, schema_steps
from toc.store.schema_executor import CompletedStep
from toc.store.schema_status import SchemaStatus, read_schema_statuses
from toc.store.table_shapes import read_shapes

SQLITE_JOBS = "SELECT {} AS shard, job_id FROM toc_job_000{}"


def standing(settings: Settings) -> SchemaStatus:
    (found,) = read_schema_statuses(settings)
    return found


def faults(settings: Settings) -> list[tuple[str, str]]:
    return [(finding.table, finding.text) for finding in standing(settings).faults]


def notes(settings: Settings) -> list[tuple[str, str]]:
    return [(finding.table, finding.text) for finding in standing(settings).notes]


@pytest.mark.usefixtures("second_revision")
def test_what_the_revisions_made_is_as_declared(settings: Settings) -> None:
    for revision in migrate.revisions_of_release():
        migrate.upgrade(settings, to=revision.name)
        found = standing(settings)
        assert (found.revision, found.faults, found.notes) == (revision.name, (), ())
        ahead = [r.name for r in migrate.revisions_of_release() if r.name > revision.name]
        assert [pending.revision for pending in found.pending] == ahead
    assert found.has_no_problem


@pytest.mark.parametrize(
    ("change", "table", "text"),
    [
        ("DROP TABLE toc_job_0001", "toc_job_0001", "the table is missing"),
        ("DROP TABLE toc_dead_job", "toc_dead_job", "the table is missing"),
        ("DROP VIEW toc_events", "toc_events", "the view is missing"),
    ],
)
def test_what_is_missing(settings: Settings, url: str, change: str, table: str, text: str) -> None:
    migrate.upgrade(settings)
    run(url, change)
    assert (table, text) in faults(settings)
    assert not standing(settings).has_no_problem


def test_a_missing_column_on_any_engine(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    run(url, "DROP VIEW toc_jobs", "ALTER TABLE toc_job_0001 DROP COLUMN claim_time")
    assert ("toc_job_0001", "column claim_time is missing") in faults(settings)


ACCOUNT = "varchar(288) utf8mb4_bin"
VIEW = "CREATE OR REPLACE SQL SECURITY INVOKER VIEW"

ON_A_SERVER = [
    (
        "ALTER TABLE toc_job_0001 MODIFY claim_token VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin",
        "toc_job_0001",
        "column claim_token is varchar(40) ascii_bin, declared varchar(96) ascii_bin",
    ),
    (
        "ALTER TABLE toc_job_0001 MODIFY claim_token VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "toc_job_0001",
        "column claim_token is varchar(96) utf8mb4_bin, declared varchar(96) ascii_bin",
    ),
    (
        "ALTER TABLE toc_job_0001 MODIFY type_no INT NULL",
        "toc_job_0001",
        "column type_no is int, declared int not null",
    ),
    (
        "ALTER TABLE toc_job_0001 ALTER status DROP DEFAULT",
        "toc_job_0001",
        "column status is smallint not null, declared smallint not null default 0",
    ),
    (
        "ALTER TABLE toc_job_0001 DROP INDEX ix_due",
        "toc_job_0001",
        "index ix_due is missing",
    ),
    (
        "ALTER TABLE toc_job_0001 DROP INDEX ix_due, ADD INDEX ix_due (due_time)",
        "toc_job_0001",
        "index ix_due is (due_time), declared (due_time, job_id)",
    ),
    (
        "ALTER TABLE toc_job_0001 DROP INDEX uq_live, ADD INDEX uq_live (biz_id, type_no, live_key)",
        "toc_job_0001",
        "index uq_live is (biz_id, type_no, live_key), declared unique (biz_id, type_no, live_key)",
    ),
    (
        "ALTER TABLE toc_event MODIFY event_id BIGINT UNSIGNED NOT NULL",
        "toc_event",
        "column event_id is bigint unsigned not null, declared bigint unsigned not null auto_increment",
    ),
    (
        "ALTER TABLE toc_event ALTER account DROP DEFAULT",
        "toc_event",
        f"column account is {ACCOUNT}, declared {ACCOUNT} default current_user",
    ),
    (
        "ALTER TABLE toc_event ALTER account SET DEFAULT 'root@localhost'",
        "toc_event",
        f"column account is {ACCOUNT} default root@localhost, declared {ACCOUNT} default current_user",
    ),
    ("ALTER TABLE toc_meta ENGINE = MyISAM", "toc_meta", "its engine is MyISAM, declared InnoDB"),
    (
        f"{VIEW} toc_dead_jobs AS SELECT 1 AS job_id",
        "toc_dead_jobs",
        "column biz_id is missing",
    ),
    (
        f"{VIEW} toc_dead_jobs AS SELECT * FROM toc_job_0000",
        "toc_dead_jobs",
        "it leaves out toc_biz_type; it leaves out toc_dead_job; it also reads toc_job_0000",
    ),
    (
        (
            f"{VIEW} toc_events AS SELECT event_id, event_time, job_id, what, from_status, 'x' AS from_name, "
            "to_status, 'y' AS to_name, attempts, claim_time, actor, reason, run_id, related_job_id, "
            "account FROM toc_event"
        ),
        "toc_events",
        "its SELECT is another one",
    ),
    (
        (
            "ALTER SQL SECURITY DEFINER VIEW toc_dead_jobs AS SELECT d.job_id, d.biz_id, d.type_no, t.name "
            "AS biz_type, d.attempts, d.error, d.dead_time FROM toc_dead_job AS d "
            "LEFT JOIN toc_biz_type AS t ON t.type_no = d.type_no"
        ),
        "toc_dead_jobs",
        "it runs with its maker's rights (SQL SECURITY DEFINER), declared INVOKER",
    ),
]


@pytest.mark.parametrize(
    ("change", "table", "text"), ON_A_SERVER, ids=[c[2][:30] for c in ON_A_SERVER]
)
def test_what_differs(server_url: str, change: str, table: str, text: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, change)
    found = faults(settings)
    assert (table, text) in found
    assert {name for name, _ in found} == {table}


def test_an_index_that_the_optimizer_may_not_use(server_url: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    mariadb = "mariadb" in str(scalar(server_url, "SELECT VERSION()")).lower()
    run(
        server_url,
        f"ALTER TABLE toc_job_0000 ALTER INDEX ix_due {'IGNORED' if mariadb else 'INVISIBLE'}",
    )
    assert faults(settings) == [
        (
            "toc_job_0000",
            "index ix_due is (due_time, job_id) invisible, declared (due_time, job_id)",
        )
    ]


@pytest.mark.parametrize(
    ("change", "table", "text"),
    [
        ("DROP INDEX ix_due_toc_job_0000", "toc_job_0000", "index ix_due_toc_job_0000 is missing"),
        (
            "DROP VIEW toc_dead_jobs; CREATE VIEW toc_dead_jobs AS SELECT * FROM toc_dead_job",
            "toc_dead_jobs",
            "it leaves out toc_biz_type",
        ),
    ],
)
def test_what_differs_on_sqlite(
    settings_on_sqlite: Settings, change: str, table: str, text: str
) -> None:
    migrate.upgrade(settings_on_sqlite)
    run(settings_on_sqlite.databases[0], *change.split("; "))
    assert (table, text) in faults(settings_on_sqlite)


@pytest.fixture
def settings_on_sqlite(tmp_path: object) -> Settings:
    return settings_of(f"sqlite:///{tmp_path}/toc.db")


def test_what_somebody_added_is_a_note(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    run(
        url,
        "ALTER TABLE toc_job_0000 ADD COLUMN mine INT",
        "CREATE INDEX ix_mine ON toc_job_0001 (claim_token)",
        "CREATE TABLE toc_job_0002 (x INT)",
        "CREATE TABLE others (x INT)",
        "CREATE VIEW toc_mine AS SELECT biz_id FROM toc_job_0000",
    )
    assert standing(settings).has_no_problem
    assert notes(settings) == [
        ("toc_job_0000", "column mine is not one of toc's"),
        ("toc_job_0001", "index ix_mine is not one of toc's"),
        ("toc_job_0002", "the table is not one of toc's here"),
        ("toc_mine", "the view is not one of toc's here"),
    ]


BREAKS_WRITES = [
    (
        "ALTER TABLE toc_job_0001 ADD COLUMN customer INT NOT NULL",
        "toc_job_0001",
        "column customer is not one of toc's, and has no default: each INSERT fails",
    ),
    (
        "ALTER TABLE toc_job_0001 ADD UNIQUE KEY one (biz_id)",
        "toc_job_0001",
        "index one is not one of toc's, and is unique: it refuses rows",
    ),
    (
        "CREATE TRIGGER mine BEFORE UPDATE ON toc_job_0001 FOR EACH ROW SET NEW.attempts = 0",
        "toc_job_0001",
        "trigger mine is not one of toc's: it can refuse or change rows",
    ),
    (
        "ALTER TABLE toc_job_0001 ADD CONSTRAINT mine CHECK (attempts < 3)",
        "toc_job_0001",
        "CHECK mine is not one of toc's: it can refuse or change rows",
    ),
    (
        "ALTER TABLE toc_dead_job ADD CONSTRAINT mine FOREIGN KEY (job_id) REFERENCES toc_job_0001 (job_id)",
        "toc_dead_job",
        "foreign key mine is not one of toc's: it can refuse or change rows",
    ),
    (
        (
            "CREATE TABLE shop (id BIGINT UNSIGNED, "
            "CONSTRAINT mine FOREIGN KEY (id) REFERENCES toc_job_0001 (job_id))"
        ),
        "toc_job_0001",
        "foreign key of another table shop.mine is not one of toc's: it can refuse or change rows",
    ),
]


@pytest.mark.parametrize(
    ("change", "table", "text"), BREAKS_WRITES, ids=[case[2][:25] for case in BREAKS_WRITES]
)
def test_what_breaks_writes_is_a_fault(server_url: str, change: str, table: str, text: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, change)
    assert (table, text) in faults(settings)
    assert not any(finding.silent for finding in standing(settings).faults)


def test_what_cannot_break_a_write_is_a_note(server_url: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(
        server_url,
        "ALTER TABLE toc_job_0001 ADD COLUMN a INT NOT NULL DEFAULT 0, "
        "ADD COLUMN b VARCHAR(9) NOT NULL DEFAULT '', ADD COLUMN c INT AS (attempts + 1), "
        "ADD COLUMN d JSON, ADD UNIQUE KEY both_ids (job_id, biz_id)",
    )
    assert faults(settings) == []
    assert [text for _, text in notes(settings)] == [
        *(f"column {name} is not one of toc's" for name in "abcd"),
        "index both_ids is not one of toc's",
    ]


SILENT = [
    "ALTER TABLE toc_job_0001 DROP INDEX uq_live",
    "ALTER TABLE toc_job_0001 DROP INDEX uq_live, ADD INDEX uq_live (biz_id, type_no, live_key)",
    "ALTER TABLE toc_job_0001 DROP PRIMARY KEY",
    (
        "ALTER TABLE toc_job_0001 DROP INDEX uq_live, DROP COLUMN live_key, "
        "ADD COLUMN live_key VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin, "
        "ADD UNIQUE KEY uq_live (biz_id, type_no, live_key)"
    ),
    "ALTER TABLE toc_job_0001 MODIFY dedup_key VARCHAR(64) CHARACTER SET ascii COLLATE ascii_general_ci",
    "ALTER TABLE toc_event MODIFY event_id BIGINT UNSIGNED NOT NULL",
    "ALTER TABLE toc_event MODIFY event_id BIGINT UNSIGNED NOT NULL, DROP PRIMARY KEY",
    "ALTER TABLE toc_biz_type DROP INDEX uq_name",
    "ALTER TABLE toc_meta ENGINE = MyISAM",
]


@pytest.mark.parametrize("change", SILENT)
def test_what_breaks_a_promise_without_an_error_is_silent(server_url: str, change: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, change)
    assert any(finding.silent for finding in standing(settings).faults)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE toc_job_0001 DROP INDEX ix_due",
        "ALTER TABLE toc_job_0001 DROP COLUMN attribute",
        "ALTER TABLE toc_job_0001 MODIFY claim_token VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin",
        "DROP TABLE toc_job_0001",
        "DROP VIEW toc_jobs",
    ],
)
def test_what_is_slow_or_fails_loudly_is_not_silent(server_url: str, change: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, change)
    assert standing(settings).faults
    assert not any(finding.silent for finding in standing(settings).faults)


@pytest.mark.usefixtures("second_revision")
def test_half_a_run_is_no_drift(server_url: str) -> None:
    settings = settings_of(server_url, shards=4)
    migrate.upgrade(settings, to="0001")

    def killed(step: CompletedStep) -> None:
        if step.table == "toc_job_0001":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(settings, killed)
    found = standing(settings)
    assert (found.faults, found.notes) == ((), ())
    assert [(p.revision, p.phase, p.steps, p.open) for p in found.pending] == [
        ("0002", "pre", 4, ("toc_job_0002", "toc_job_0003")),
    ]


def test_a_database_that_is_down_hides_no_other(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    if url.startswith("sqlite"):
        away = "sqlite:////nowhere/toc.db"
    else:
        away = f"mysql+pymysql://u:hidden@127.0.0.1:{free_port()}/toc"
    first, second = read_schema_statuses(settings_of(url, away, shards=4))
    assert first.error is None
    assert first.revision == migrate.newest_revision()
    assert second.error is not None
    assert second.error.startswith("database 1 does not answer: ")
    assert "hidden" not in second.error
    assert "\n" not in second.error
    assert not second.has_no_problem


def test_a_revision_that_this_release_does_not_know(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    run(url, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    found = standing(settings)
    assert (found.revision, found.pending, found.faults, found.incompatibility) == (
        "9999",
        (),
        (),
        None,
    )
    assert found.has_no_problem  # it says that it fits releases as old as this
    run(url, "DELETE FROM toc_meta")
    found = standing(settings)
    assert found.incompatibility is not None
    assert not found.has_no_problem


def test_an_empty_database(settings: Settings) -> None:
    found = standing(settings)
    assert found.revision is None
    assert [pending.revision for pending in found.pending] == [
        r.name for r in migrate.revisions_of_release()
    ]
    assert (found.faults, found.notes) == ((), ())


def test_unions_of_unions_are_as_declared(
    settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are made for more shards than one union takes."""
    monkeypatch.setattr(schema_steps, "UNION_TERMS_MAX", 4)
    many = settings_of(url, shards=32)
    migrate.upgrade(many)
    assert standing(many).faults == ()
    assert scalar(url, "SELECT COUNT(*) FROM toc_jobs") == 0


@pytest.mark.parametrize("shards", [2, 32])
def test_a_few_queries_for_any_number_of_tables(server_url: str, shards: int) -> None:
    settings = settings_of(server_url, shards=shards)
    migrate.upgrade(settings)
    with engine_of(server_url) as engine, engine.connect() as connection:
        asked: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
        found = read_shapes(connection, sqlite=False)
    assert len(asked) == 8
    assert len(found) == len(SHARED | VIEWS) + shards


def test_looking_changes_nothing(settings: Settings, url: str) -> None:
    found = standing(settings)
    assert found.revision is None
    with databases_of(settings) as databases:
        assert migrate.read_revision(databases[0]) is None
        assert (
            databases[0].run_read(lambda c: read_shapes(c, sqlite=url.startswith("sqlite"))) == {}
        )
