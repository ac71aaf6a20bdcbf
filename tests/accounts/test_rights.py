"""Each right of each role is needed: without it something fails that the role is for."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

from tests.accounts.conftest import Place, rights_of
from tests.accounts.duties import DUTIES
from tests.migration.conftest import VIEWS, engine_of, run, views
from tests.migration.test_scripts import execute
from tests.migration.test_scripts import statements as script_statements
from toc.errors import TocError
from toc.runtime.clock import SystemClock
from toc.store import migrate, schema_drift_repair
from toc.store.databases import Databases
from toc.store.schema_status import read_schema_statuses
from toc.store.table_check import TableCheck

Duty = Callable[[Place, str], None]


def is_denied(duty: Duty, place: Place, url: str) -> bool:
    try:
        duty(place, url)
    except (TocError, DBAPIError) as error:
        text = f"{error} {error.__cause__}"
        if "denied" in text or "lacking privileges" in text:
            return True
        raise
    return False


@pytest.mark.parametrize(
    "role", ["client", "worker", "web", "operator", "tokens", "reader", "purger"]
)
def test_each_right_is_needed(place: Place, role: str) -> None:
    url, duty = place.make(role), DUTIES[role]
    duty(place, url)
    for right, table in rights_of(role):
        place.clear()
        with place.without(role, right, table):
            assert is_denied(duty, place, url), f"{role} does not need {right} on {table}"
    place.clear()
    duty(place, url)


def test_each_right_of_the_migrator_is_needed(empty: Place) -> None:
    url, duty = empty.make("migrator"), DUTIES["migrator"]
    duty(empty, url)
    for right, table in rights_of("migrator"):
        # CREATE on one table is for the GRANT itself; ALTER and UPDATE are for the next revision and for
        # `--mend`; the two that are for looking have tests of their own.
        if (right == "CREATE" and table is not None) or right in ("SHOW VIEW", "TRIGGER"):
            continue
        if right in ("ALTER", "UPDATE"):
            continue
        with empty.without("migrator", right, table):
            assert is_denied(duty, empty, url), f"the migrator does not need {right} on {table}"
        drop_all(empty)
    duty(empty, url)


def drop_all(place: Place) -> None:
    """A step may have stopped anywhere. What was granted on tables stays."""
    with engine_of(place.url) as engine:
        gone = [f"DROP VIEW {view}" for view in views(engine)]
        gone += [f"DROP TABLE {table}" for table in inspect(engine).get_table_names()]
    run(place.url, *gone)


@pytest.mark.parametrize("role", ["migrator", "reader"])
def test_what_an_account_cannot_see_is_a_note(place: Place, role: str) -> None:
    """Of a view that another has made an account sees the text by SHOW VIEW only."""
    url = place.make(role)
    settings = place.settings(url)
    (found,) = read_schema_statuses(settings)
    assert found.notes == ()
    with place.without(role, "SHOW VIEW", None):
        (found,) = read_schema_statuses(settings)
        assert found.has_no_problem
        assert {note.table for note in found.notes} == VIEWS
        assert {note.text for note in found.notes} == {
            "its SELECT cannot be seen: the account lacks SHOW VIEW"
        }


def test_triggers_are_seen_and_dropped_by_the_right_trigger(empty: Place) -> None:
    url = empty.make("migrator")
    settings = empty.settings(url)
    migrate.upgrade(settings)
    run(
        empty.url,
        "CREATE TRIGGER mine BEFORE INSERT ON toc_job_0000 FOR EACH ROW SET NEW.attempts = 0",
    )
    with empty.without("migrator", "TRIGGER", None):
        (found,) = read_schema_statuses(settings)
        assert found.has_no_problem
    (found,) = read_schema_statuses(settings)
    assert [fault.kind for fault in found.faults] == ["trigger"]
    schema_drift_repair.repair_drift(settings)
    (found,) = read_schema_statuses(settings)
    assert found.has_no_problem


def test_the_migrator_runs_scripts(empty: Place) -> None:
    """What `toc migrate --sql` wrote, which a DBA may run under the same account."""
    url = empty.make("migrator")
    script = io.StringIO()
    migrate.write_migration_scripts(empty.settings(url), script)
    execute(url, script_statements(script.getvalue()))
    (found,) = read_schema_statuses(empty.settings(url))
    assert found.has_no_problem, found


def test_a_worker_sees_what_differs(place: Place) -> None:
    settings = place.settings(place.make("worker"))
    looked = TableCheck(SystemClock(), settings.routing.meta_values())
    databases = Databases.from_settings(settings, SystemClock())
    try:
        looked.check_tables(databases[0])
    finally:
        databases.close()
    assert looked.fault_lines == []


def test_who_may_not_migrate_is_told_so(empty: Place) -> None:
    for role in ("client", "worker", "reader"):
        with pytest.raises(DBAPIError, match="doesn't exist"):
            empty.make(role)  # there is no toc_event yet: first `toc migrate`, then `toc grants`
    url = empty.make("migrator")
    with (
        empty.without("migrator", "CREATE", None),
        pytest.raises(migrate.MigrationFailed, match=r"database 0.*denied") as met,
    ):
        migrate.upgrade(empty.settings(url))
    assert "\n" not in str(met.value)
    assert "secret" not in str(met.value)
