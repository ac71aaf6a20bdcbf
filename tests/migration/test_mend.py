"""`toc migrate --mend`: what somebody changed is taken back, and jobs and other people's data stay."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.deep import deep
from tests.migration.conftest import dump, engine_of, run, scalar, settings_of
from tests.migration.test_scripts import execute, statements
from tests.migration.test_wrong_order import INSERT
from tests.servers.fixtures import _database as temporary_database
from toc.errors import SchemaMismatch
from toc.store import migrate, schema_drift_repair
from toc.store.schema_executor import CompletedStep, MigrationFailed
from toc.store.schema_status import read_schema_statuses

T = "toc_job_0001"
ASCII = "CHARACTER SET ascii COLLATE ascii_bin"

DRIFT = {
    "index missing": [f"ALTER TABLE {T} DROP INDEX ix_due"],
    "index over other columns": [f"ALTER TABLE {T} DROP INDEX ix_due, ADD INDEX ix_due (due_time)"],
    "not unique": [
        f"ALTER TABLE {T} DROP INDEX uq_live, ADD INDEX uq_live (biz_id, type_no, live_key)"
    ],
    "no primary key": [f"ALTER TABLE {T} DROP PRIMARY KEY"],
    "live_key by hand": [
        f"ALTER TABLE {T} DROP INDEX uq_live, DROP COLUMN live_key",
        f"ALTER TABLE {T} ADD COLUMN live_key VARCHAR(64) {ASCII}",
        f"ALTER TABLE {T} ADD UNIQUE KEY uq_live (biz_id, type_no, live_key)",
    ],
    "live_key missing": [f"ALTER TABLE {T} DROP INDEX uq_live, DROP COLUMN live_key"],
    "column missing": ["DROP VIEW toc_jobs", f"ALTER TABLE {T} DROP COLUMN claim_time"],
    "column too short": [f"ALTER TABLE {T} MODIFY claim_token VARCHAR(40) {ASCII}"],
    "default missing": [f"ALTER TABLE {T} ALTER status DROP DEFAULT"],
    "account default missing": ["ALTER TABLE toc_event ALTER account DROP DEFAULT"],
    "account missing": ["ALTER TABLE toc_event DROP COLUMN account"],
    "account too short": [
        "ALTER TABLE toc_event MODIFY account VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    ],
    "events do not count": ["ALTER TABLE toc_event MODIFY event_id BIGINT UNSIGNED NOT NULL"],
    "engine": ["ALTER TABLE toc_meta ENGINE = MyISAM"],
    "table missing": ["DROP TABLE toc_job_0000"],
    "view missing": ["DROP VIEW toc_events"],
    "a unique key": [f"ALTER TABLE {T} ADD UNIQUE KEY `o``ne` (biz_id)"],
    "a trigger": [f"CREATE TRIGGER mine BEFORE UPDATE ON {T} FOR EACH ROW SET NEW.attempts = 0"],
    "a CHECK": [f"ALTER TABLE {T} ADD CONSTRAINT mine CHECK (attempts < 30)"],
    "a foreign key": [
        f"ALTER TABLE toc_dead_job ADD CONSTRAINT mine FOREIGN KEY (job_id) REFERENCES {T} (job_id)"
    ],
}


WRITTEN = {
    "live_key by hand",
    "column missing",
    "account too short",
    "view missing",
    "a trigger",
    "a foreign key",
}
"""The drift for which `make test` also tests the script. Scripts have the statements of a run."""


@pytest.mark.parametrize(
    ("how", "name"),
    [
        *(("run", name) for name in DRIFT),
        *(pytest.param("script", name, marks=() if name in WRITTEN else deep) for name in DRIFT),
    ],
)
def test_drift_is_taken_back(server_url: str, name: str, how: str, tmp_path: Path) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, INSERT.format(T, 1))
    run(server_url, *DRIFT[name])
    assert not read_schema_statuses(settings)[0].has_no_problem
    if how == "run":
        assert schema_drift_repair.repair_drift(settings, may_rebuild=True)
    else:
        (path,) = schema_drift_repair.write_repair_scripts(settings, directory=tmp_path)
        script = path.read_text()
        assert not read_schema_statuses(settings)[0].has_no_problem  # nothing was run
        execute(server_url, statements(script))
    assert read_schema_statuses(settings)[0].faults == ()
    assert scalar(server_url, f"SELECT COUNT(*) FROM {T}") == 1
    assert schema_drift_repair.repair_drift(settings) == []


def test_a_column_of_other_people_stays_with_its_values(server_url: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(
        server_url,
        f"ALTER TABLE {T} ADD COLUMN customer VARCHAR(9) NOT NULL",
        f"INSERT INTO {T} (job_id, biz_id, type_no, action_time, customer) "
        "VALUES (1, 1, 1, '2030-01-01', 'Ann')",
    )
    (one,) = schema_drift_repair.repair_drift(settings, may_rebuild=True)
    assert one.note == "the column stays, with its values, and may be NULL"
    assert read_schema_statuses(settings)[0].has_no_problem
    assert scalar(server_url, f"SELECT customer FROM {T}") == "Ann"
    run(server_url, INSERT.format(T, 2))


def test_what_is_dropped_is_told(server_url: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, *DRIFT["a trigger"], *DRIFT["a CHECK"])
    text = io.StringIO()
    schema_drift_repair.write_repair_scripts(settings, text)
    told = [line for line in text.getvalue().splitlines() if line.startswith("-- it was ")]
    assert "-- it was BEFORE UPDATE FOR EACH ROW SET NEW.attempts = 0" in told
    assert len(told) == 2
    notes = {
        one.fault.kind: one.note
        for one in schema_drift_repair.repair_drift(settings, may_rebuild=True)
    }
    assert "SET NEW.attempts = 0" in notes["trigger"]
    assert "`attempts` < 30" in notes["CHECK"]


def test_a_table_is_copied_only_when_that_was_asked_for(server_url: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(server_url, f"ALTER TABLE {T} MODIFY type_no BIGINT NOT NULL")
    with pytest.raises(MigrationFailed, match=rf"table {T}: .*--rebuild"):
        schema_drift_repair.repair_drift(settings)
    schema_drift_repair.repair_drift(settings, may_rebuild=True)
    assert read_schema_statuses(settings)[0].has_no_problem


def test_rows_that_the_index_forbids_stop_the_run_and_it_goes_on_when_they_are_gone(
    server_url: str,
) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    for table in ("toc_job_0000", T):
        run(server_url, f"ALTER TABLE {table} DROP INDEX uq_live")
    row = (
        "INSERT INTO {} (job_id, biz_id, type_no, action_time, dedup_key) "
        "VALUES ({}, 1, 1, '2030-01-01', 'k')"
    )
    run(server_url, row.format(T, 1), row.format(T, 2))
    with pytest.raises(MigrationFailed, match=f"table {T}: .*Duplicate entry"):
        schema_drift_repair.repair_drift(settings)
    assert [fault.table for fault in read_schema_statuses(settings)[0].faults] == [
        T
    ]  # one shard is done
    run(server_url, f"DELETE FROM {T} WHERE job_id = 2")
    schema_drift_repair.repair_drift(settings)
    assert read_schema_statuses(settings)[0].has_no_problem


def test_a_run_that_was_killed_goes_on(server_url: str) -> None:
    settings = settings_of(server_url, shards=4)
    migrate.upgrade(settings)
    run(server_url, *(f"ALTER TABLE toc_job_000{n} DROP INDEX ix_due" for n in range(4)))

    def killed(step: CompletedStep) -> None:
        if step.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        schema_drift_repair.repair_drift(settings, killed)
    assert [fault.table for fault in read_schema_statuses(settings)[0].faults] == [
        "toc_job_0002",
        "toc_job_0003",
    ]
    assert len(schema_drift_repair.repair_drift(settings)) == 2


def test_another_database_is_left_alone(server: object) -> None:
    with temporary_database(server) as first, temporary_database(server) as second:  # type: ignore[arg-type]
        migrate.upgrade(settings_of(first, second, shards=4))
        run(first, "ALTER TABLE toc_job_0000 DROP INDEX ix_due")
        with engine_of(first) as engine:
            before = dump(engine)
            with pytest.raises(SchemaMismatch, match="nothing was changed"):
                schema_drift_repair.repair_drift(settings_of(second, first, shards=4))
            assert dump(engine) == before


def test_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/toc.db"
    settings = settings_of(url)
    migrate.upgrade(settings)
    run(url, "DROP VIEW toc_jobs", "DROP TABLE toc_job_0001")
    schema_drift_repair.repair_drift(settings)
    assert read_schema_statuses(settings)[0].has_no_problem
