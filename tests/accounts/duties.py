"""What each role is for, as calls under its account. A missing right ends them with the server's error.

What only few roles do comes first, and last what all clients do, which takes longest: so most calls end soon.
"""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.accounts.conftest import Place
from tests.contract.library import Library
from tests.migration.conftest import TABLES, VIEWS, run, scalar
from toc.access.access import Access
from toc.access.audit import AuditEntry
from toc.access.caller import LOOPBACK_CALLER
from toc.access.tokens import TokenStore
from toc.center.center import TimeoutCenter
from toc.domain.declared_type import DeclaredType
from toc.domain.disagreements import Disagreement
from toc.domain.ids import routing_bits_of
from toc.domain.mass_change import JobSelection
from toc.domain.pauses import Pause
from toc.errors import TocError
from toc.retention.purger import Purger, PurgeResult
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import RetentionSettings
from toc.store import (
    alarm_reads,
    archive_status,
    declared_types,
    migrate,
    nightly_status,
    pauses,
    reconcile_status,
)
from toc.store.account_roles import VERSION_TABLE
from toc.store.claims import Outcome, OutcomeKind
from toc.store.countdowns import insert_countdown
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypeCache, DeclaredTypes
from toc.store.ended_jobs import DAY_MS
from toc.store.event_reader import EventRange, EventReader
from toc.store.mass_change_rows import MassChange, end_mass_change, insert_mass_change
from toc.store.row_defects import LEASE_MS_MAX, RowDefects
from toc.store.schema_status import read_schema_statuses
from toc.store.token_rows import record_last_use, revoke_tokens
from toc.store.webhooks import WebhookRow, WebhookTable

LATER = timedelta(days=1)


def as_administrator(place: Place) -> Library:
    return Library([place.url], is_migrated=True)


def new_type() -> str:
    return f"type.{secrets.token_hex(4)}"


def client(place: Place, url: str) -> None:
    """Every verb of the API that changes something."""
    library = as_administrator(place)
    try:
        dead, unwanted = library.dead(biz_id=9), library.dead(biz_id=10)
    finally:
        library.close()
    name = new_type()
    with TimeoutCenter(place.settings(url)) as center:
        job_id = center.schedule(1, LATER, biz_type=name, dedup_key="k", attribute={"a": 1})
        assert center.schedule(1, LATER, biz_type=name, dedup_key="k") == job_id
        center.schedule(1, 2 * LATER, biz_type=name, dedup_key="k", on_duplicate="replace")
        ids = center.schedule_many([{"biz_id": n, "action_time": LATER} for n in range(20)])
        assert center.reschedule(ids[0], 2 * LATER, reason="later")
        assert center.cancel(ids[0], reason="paid")
        assert center.cancel(biz_id=1, biz_type=name, dedup_key="k")
        assert center.find(5)
        assert center.get(ids[1]) is not None
        assert center.redrive(dead, reason="mended")
        assert center.discard(unwanted, reason="nobody wants it")
        assert center.cancel(dead)
        counted = center.countdown(1, count=1, deadline=LATER, biz_type=name)
        assert center.arrive("one", job_id=counted) == "completed"
        assert center.cancel(counted)
        # Another definition replaces the job of the first one: its record is deleted.
        for cron in ("0 3 * * *", "0 4 * * *"):
            assert center.recur("nightly", cron=cron, biz_type=name).job_id
        center.recurring.remove("nightly")
        engine = create_engine(url, poolclass=NullPool)
        with Session(engine) as session:
            center.schedule(77, LATER, session=session)
            session.commit()
        engine.dispose()


def declare_types(library: Library) -> None:
    """A change of a type, and its copy into a database that has missed the change."""
    databases = library.databases
    types = DeclaredTypes(databases, library.database_metadata.types, 1000)
    name = new_type()
    types.change(name, lambda now: DeclaredType(name, mode="pull"), "operator", "a test")
    cache = DeclaredTypeCache(databases)
    cache.read_copy(databases[0])
    cache._copies[0].pop(name)
    assert cache.complete_copy(databases[0]) == 1


def pause_types(library: Library) -> None:
    """A pause, its copy into a database that has missed it, and its end."""
    databases = library.databases
    target = f"type:{new_type()}"
    changes = pauses.Pauses(databases, 100)
    changes.change(target, lambda _, now_ms: Pause(target, now_ms), "operator", "a test")
    cache = pauses.PauseCache(databases)
    cache.read_copy(databases[0])
    missed = cache._newest[target]
    cache._newest[target] = missed._replace(version=missed.version + 1, change_id="missed")
    assert cache.complete_copy(databases[0]) == 1
    end = changes.change(target, lambda _, now_ms: Pause(target, now_ms, now_ms), "operator")
    assert end.row.version == missed.version + 2


def report_peak(library: Library) -> None:
    """What a process adds to a pause that begins."""
    pauses.add_peak(library.databases[0], "all", 1, 60)


def operator(place: Place, url: str) -> None:
    """Reconciliation: a repair, and its note; and what a client does. The commands are in test_roles."""
    library = as_administrator(place)
    try:
        dead = library.dead()
        run(place.url, f"DELETE FROM toc_dead_job WHERE job_id = {dead}")
        shard = library.databases.routing.shard_of_hash(routing_bits_of(dead))
    finally:
        library.close()
    library = Library([url], is_migrated=True)
    try:
        declare_types(library)
        pause_types(library)
    finally:
        library.close()
    write_webhook(Library([url], is_migrated=True))
    databases = Databases.from_settings(place.settings(url), SystemClock())
    try:
        repairs = RowDefects(databases, LEASE_MS_MAX, actor="operator")
        assert repairs.repair_jobs(Disagreement.NO_LETTER, shard, [dead]) == {dead}
        run(place.url, f"DELETE FROM toc_meta WHERE name = '{reconcile_status.RECONCILED}'")
        for _ in range(2):  # an INSERT, and an UPDATE
            reconcile_status.record_reconcile_result(databases, "agreed", 0, 0, 1.0, is_whole=True)
    finally:
        databases.close()
    client(place, url)


def worker(place: Place, url: str) -> None:
    """Every statement that a worker and its nightly run make; a whole node is in test_roles."""
    row = write_webhook(as_administrator(place))
    library = Library([url], is_migrated=True)
    try:
        gone = row._replace(version=row.version + 1, disabled_ms=library.now_ms)
        WebhookTable(library.databases, 100).disable_after_answer(gone, library.pending(), "worker")
    finally:
        library.close()
    run_jobs(place, url)


def write_webhook(library: Library) -> WebhookRow:
    """Writes a destination, and changes it."""
    row = WebhookRow(f"hook-{secrets.token_hex(4)}", 1, "https://shop.example/", "encrypted")
    try:
        WebhookTable(library.databases, 100).write_everywhere(row)
        row = row._replace(version=2, secret="again")
        WebhookTable(library.databases, 100).write_everywhere(row)
    finally:
        library.close()
    return row


def run_jobs(place: Place, url: str) -> None:
    """What a process does that runs jobs."""
    library = Library([url], is_migrated=True)
    try:
        fact = {f"topic.{secrets.token_hex(4)}.slot_amount": "1"}
        library.database_metadata.verify_and_record_meta(library.settings.facts | fact)
        declare_types(library)
        pause_types(library)
        report_peak(library)
        for kind in OutcomeKind:
            job_id = library.running("token")
            assert library.settle(
                Outcome(job_id, "token", kind, due_ms=library.now_ms + 1000, error="it failed")
            )
        again = library.dead()
        assert library.jobs.redrive(again, library.now_ms)
        database = library.databases[0]
        for mark, event_id in (
            (archive_status.ARCHIVED, None),
            (archive_status.EVENTS_ARCHIVED, 7),
        ):
            run(place.url, f"DELETE FROM toc_meta WHERE name = '{mark}'")
            mine = archive_status.begin_archive_run(database, mark)
            now_ms = library.now_ms
            assert archive_status.advance_archived_until(database, mine, now_ms, event_id)
        # It locks rows, which needs no right but SELECT.
        assert EventReader(database).read_day_checksums(EventRange(0, 2**62))
        reconcile_status.record_reconcile_result(
            library.databases, "agreed", 0, 0, 1.0, is_whole=True
        )
        run(place.url, "DELETE FROM toc_meta WHERE name LIKE 'alarm%'")
        for _ in range(2):  # an INSERT, and an UPDATE
            assert alarm_reads.hold_alarms(database, "worker", 1000)
            alarm_reads.write_mark(database, 1)
        assert alarm_reads.read_failures(database, 1, alarm_reads.next_event_id(database))
        run(place.url, f"DELETE FROM toc_meta WHERE name = '{nightly_status.NIGHTLY}'")
        for _ in range(2):  # an INSERT, and an UPDATE
            nightly_status.record_nightly_status(
                library.databases, seconds=1.0, code=0, failed="", findings=0, is_good=True
            )
    finally:
        library.close()
    client(place, url)


def web(place: Place, url: str) -> None:
    """What clients may ask for: all jobs, mass changes; uses and revocations of tokens, and the audit."""
    make_mass_changes(place, url)
    token_id = new_token(place)
    databases = Databases.from_settings(place.settings(url), SystemClock())
    access = Access(place.settings(url), databases, SystemClock())
    try:
        access.refresh_now()
        used = {token_id: databases.now_ms()}
        record_last_use(databases[0], used)
        revoke_tokens(databases[0], [token_id])
        access.audit.record(
            AuditEntry(LOOPBACK_CALLER, "::1", "jobs.cancel", "1", 1, "cancelled", "r")
        )
        access.audit.run_once()
    finally:
        databases.close()
    run_jobs(place, url)


def make_mass_changes(place: Place, url: str) -> None:
    """The rows of two mass changes; the table has room for one."""
    databases = Databases.from_settings(place.settings(url), SystemClock())
    try:
        for _ in range(2):
            change = MassChange(
                secrets.token_hex(8), "redrive", "mail", None, JobSelection("mail", None, 0).to_json(),
                1, 1, 0, 0, "running", None, None, "operator", "a test", 0, 0,
            )  # fmt: skip
            assert insert_mass_change(databases[0], change, 1, rows_max=1)
            end_mass_change(databases[0], change.mass_change_id, "done", None, 1, 0)
    finally:
        databases.close()


def new_token(place: Place) -> str:
    databases = Databases.from_settings(place.settings(place.url), SystemClock())
    try:
        return make_token(databases, "administrator")
    finally:
        databases.close()


def make_token(databases: Databases, person: str) -> str:
    store = TokenStore(databases, 1000, person)
    made = store.create(owner="shop", scopes=["read"], biz_types=["*"], expires_in=LATER)
    return made.token_id


def tokens(place: Place, url: str) -> None:
    """Makes, lists and revokes a token; a client's token cannot be made to last longer."""
    databases = Databases.from_settings(place.settings(url), SystemClock())
    try:
        token_id = make_token(databases, "somebody")
        store = TokenStore(databases, 1000, "somebody")
        assert token_id in {token.caller.token_id for token in store.list()}
        assert store.revoke(token_id).away == ()
    finally:
        databases.close()


def purger(place: Place, url: str) -> None:
    """One pass over jobs, dead jobs and events that are old enough."""
    library = as_administrator(place)
    try:
        library.ended(OutcomeKind.DONE)
        library.dead()
        counted = library.new(key="count:")
        insert_countdown(library.jobs, counted, 1, "keep", None)
        library.jobs.cancel(counted.job_id)
    finally:
        library.close()
    for _ in range(2):  # the newest token stays
        run(
            place.url,
            f"UPDATE toc_token SET revoked_time = '2020-01-01' WHERE token_id = '{new_token(place)}'",
        )
    run(place.url, "UPDATE toc_audit SET audit_time = '2020-01-01'")
    age_by(place, 200)
    columns = ", ".join(declared_types.COLUMNS)
    rows = ", ".join(f"('t', {n}, '{{}}', '2025-01-01', 'c', 'ann', NULL, 0)" for n in (1, 2))
    run(place.url, f"INSERT INTO toc_declared_type ({columns}) VALUES {rows}")
    columns = ", ".join(pauses.COLUMNS)
    rows = ", ".join(f"('all', {n}, '{{}}', '2025-01-01', 'c', 'ann', NULL, 0, 0)" for n in (1, 2))
    run(place.url, f"INSERT INTO toc_pause ({columns}) VALUES {rows}")
    assert pass_under(place, url) == PurgeResult(3, 4, 0, 0, 3)
    # What the count of deleted jobs needs.
    row = "INSERT INTO toc_purge VALUES (CURRENT_DATE, 1, 2, 5, 1, 9) ON DUPLICATE KEY UPDATE jobs = jobs + 5"
    run(url, row, row, "DELETE FROM toc_purge WHERE day < CURRENT_DATE - INTERVAL 1 YEAR")


def pass_under(place: Place, url: str) -> PurgeResult | None:
    clock = SystemClock()
    settings = place.settings(url, retention=RetentionSettings(share=1))
    databases = Databases.from_settings(settings, clock)
    try:
        migrate.refuse_incompatible(databases)
        types = DatabaseMetadata(databases).types
        made = Purger.from_settings(settings, databases, databases[0], types, clock)
        made.set_shards(databases[0].shards, 1)
        return made.run_pass(lambda _: False)
    finally:
        databases.close()


def age_by(place: Place, days: int) -> None:
    """Makes all jobs and events so many days older, in their ids too."""
    shift = days * DAY_MS << 22
    for shard in range(4):
        run(
            place.url,
            f"UPDATE toc_job_{shard:04d} SET job_id = job_id - {shift}, "
            f"gmt_modified = gmt_modified - INTERVAL {days} DAY",
        )
    run(
        place.url,
        f"UPDATE toc_arrival SET job_id = job_id - {shift}",
        f"UPDATE toc_dead_job SET job_id = job_id - {shift}, dead_time = dead_time - INTERVAL {days} DAY",
        f"UPDATE toc_event SET job_id = job_id - {shift}, event_time = event_time - INTERVAL {days} DAY",
    )


def reader(place: Place, url: str) -> None:
    """Tables and views, and what differs. The account sees no row of toc_webhook."""
    for table in (TABLES | {VERSION_TABLE}) - {"toc_webhook"}:
        scalar(url, f"SELECT COUNT(*) FROM {table}")
    for view in VIEWS:
        scalar(url, f"SELECT COUNT(*) FROM {view}")
        scalar(url, f"EXPLAIN SELECT COUNT(*) FROM {view}")
    (found,) = read_schema_statuses(place.settings(url))
    # Of a table on which it has no right an account sees nothing: the table seems to be missing.
    if found.notes or not found.has_no_problem:
        raise TocError(f"denied: {found}")


def migrator(place: Place, url: str) -> None:
    """Up, and all the way down. The database is empty before."""
    settings = place.settings(url)
    migrate.upgrade(settings)
    (found,) = read_schema_statuses(settings)
    assert found.has_no_problem, found
    if found.notes:
        raise TocError(f"denied: {found.notes}")
    assert scalar(url, f"SELECT COUNT(*) FROM {VERSION_TABLE}") == 1
    migrate.downgrade(settings, "base")


DUTIES = {
    "client": client, "operator": operator, "worker": worker, "purger": purger, "reader": reader,
    "migrator": migrator, "web": web, "tokens": tokens,
}  # fmt: skip
