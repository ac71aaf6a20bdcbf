"""`toc migrate --status`: what somebody changed by hand is found, and named."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from tests.migration.conftest import databases_of, engine_of, run, scalar, settings_of
from tests.servers.process import free_port
from toc.runtime.settings import Settings
from toc.store import drift, migrate, steps
from toc.store.migrating import Stepped
from toc.store.standings import Standing, standings

SQLITE_JOBS = "SELECT {} AS shard, job_id FROM toc_job_000{}"


def standing(settings: Settings) -> Standing:
    (found,) = standings(settings)
    return found


def faults(settings: Settings) -> list[tuple[str, str]]:
    return [(finding.table, finding.text) for finding in standing(settings).faults]


def notes(settings: Settings) -> list[tuple[str, str]]:
    return [(finding.table, finding.text) for finding in standing(settings).notes]


def test_what_the_revisions_made_is_as_declared(settings: Settings) -> None:
    for revision in migrate.revisions():
        migrate.upgrade(settings, to=revision.name)
        found = standing(settings)
        assert (found.revision, found.faults, found.notes) == (revision.name, (), ())
        ahead = [r.name for r in migrate.revisions() if r.name > revision.name]
        assert [pending.revision for pending in found.pending] == ahead
    assert found.is_well


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
    assert not standing(settings).is_well


def test_a_missing_column_on_any_engine(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    run(url, "DROP VIEW toc_jobs", "ALTER TABLE toc_job_0001 DROP COLUMN claim_time")
    assert ("toc_job_0001", "column claim_time is missing") in faults(settings)


VIEW = "CREATE OR REPLACE SQL SECURITY INVOKER VIEW"

ON_A_SERVER = [
    (
        "ALTER TABLE toc_job_0001 MODIFY worker VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin",
        "toc_job_0001",
        "column worker is varchar(40) ascii_bin, declared varchar(96) ascii_bin",
    ),
    (
        "ALTER TABLE toc_job_0001 MODIFY worker VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "toc_job_0001",
        "column worker is varchar(96) utf8mb4_bin, declared varchar(96) ascii_bin",
    ),
    (
        "ALTER TABLE toc_job_0001 MODIFY biz_type INT NULL",
        "toc_job_0001",
        "column biz_type is int, declared int not null",
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
        "ALTER TABLE toc_job_0001 DROP INDEX uq_live, ADD INDEX uq_live (biz_id, biz_type, live_key)",
        "toc_job_0001",
        "index uq_live is (biz_id, biz_type, live_key), declared unique (biz_id, biz_type, live_key)",
    ),
    (
        "ALTER TABLE toc_event MODIFY event_id BIGINT UNSIGNED NOT NULL",
        "toc_event",
        "column event_id is bigint unsigned not null, declared bigint unsigned not null auto_increment",
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
        "it leaves out toc_biz_type; it leaves out toc_dead_job; it stands on toc_job_0000",
    ),
    (
        (
            f"{VIEW} toc_events AS SELECT event_id, event_time, job_id, what, from_status, 'x' AS from_name, "
            "to_status, 'y' AS to_name, attempts, actor, reason FROM toc_event"
        ),
        "toc_events",
        "its SELECT is another one",
    ),
    (
        (
            "ALTER SQL SECURITY DEFINER VIEW toc_dead_jobs AS SELECT d.job_id, d.biz_id, d.biz_type, t.name "
            "AS type_name, d.attempts, d.error, d.dead_time FROM toc_dead_job AS d "
            "LEFT JOIN toc_biz_type AS t ON t.type_no = d.biz_type"
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
        "CREATE INDEX ix_mine ON toc_job_0001 (worker)",
        "CREATE TABLE toc_job_0002 (x INT)",
        "CREATE TABLE others (x INT)",
        "CREATE VIEW toc_mine AS SELECT biz_id FROM toc_job_0000",
    )
    assert standing(settings).is_well
    assert notes(settings) == [
        ("toc_job_0000", "column mine is not one of toc's"),
        ("toc_job_0001", "index ix_mine is not one of toc's"),
        ("toc_job_0002", "the table is not one of toc's here"),
        ("toc_mine", "the view is not one of toc's here"),
    ]


def test_half_a_run_is_no_drift(server_url: str) -> None:
    settings = settings_of(server_url, shards=4)
    migrate.upgrade(settings, to="0001")

    def killed(step: Stepped) -> None:
        if step.table == "toc_job_0001":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(settings, killed)
    found = standing(settings)
    assert (found.faults, found.notes) == ((), ())
    assert [(p.revision, p.phase, p.steps, p.open) for p in found.pending] == [
        ("0002", "pre", 5, ("toc_job_0002", "toc_job_0003")),
        ("0003", "pre", 3, ("toc_jobs", "toc_dead_jobs", "toc_events")),
    ]


def test_a_database_that_is_down_hides_no_other(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    if url.startswith("sqlite"):
        away = "sqlite:////nowhere/toc.db"
    else:
        away = f"mysql+pymysql://u:hidden@127.0.0.1:{free_port()}/toc"
    first, second = standings(settings_of(url, away, shards=4))
    assert first.error is None
    assert first.revision == migrate.head()
    assert second.error is not None
    assert second.error.startswith("database 1 does not answer: ")
    assert "hidden" not in second.error
    assert "\n" not in second.error
    assert not second.is_well


def test_a_revision_that_this_release_does_not_know(settings: Settings, url: str) -> None:
    migrate.upgrade(settings)
    run(url, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    found = standing(settings)
    assert (found.revision, found.pending, found.faults, found.misfit) == ("9999", (), (), None)
    assert found.is_well  # it says that it fits releases as old as this
    run(url, "DELETE FROM toc_meta")
    found = standing(settings)
    assert found.misfit is not None
    assert not found.is_well


def test_an_empty_database(settings: Settings) -> None:
    found = standing(settings)
    assert found.revision is None
    assert [pending.revision for pending in found.pending] == [r.name for r in migrate.revisions()]
    assert (found.faults, found.notes) == ((), ())


def test_unions_of_unions_are_as_declared(
    settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are made for more shards than one union takes."""
    monkeypatch.setattr(steps, "UNION_TERMS_MAX", 4)
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
        found = drift.look(connection, sqlite=False)
    assert len(asked) == 4
    assert len(found) == 4 + 3 + shards


def test_looking_changes_nothing(settings: Settings, url: str) -> None:
    found = standing(settings)
    assert found.revision is None
    with databases_of(settings) as databases:
        assert migrate.revision_of(databases[0]) is None
        assert databases[0].read(lambda c: drift.look(c, sqlite=url.startswith("sqlite"))) == {}
