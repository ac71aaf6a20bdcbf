"""The purger: what it deletes by the settings, how it rests, and whom it waits for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.library import SHARDS, Library
from toc.access.tokens import TokenStore
from toc.domain.declared_type import DeclaredType
from toc.domain.ids import lowest_id_at
from toc.errors import SchemaMismatch
from toc.retention.purger import Purger, PurgeResult
from toc.retention.replica_lag import ReplicaLag
from toc.runtime.setting_groups import RetentionSettings
from toc.store.archive_status import (
    AHEAD_MS,
    ARCHIVED,
    EVENTS_ARCHIVED,
    MARKS,
    advance_archived_until,
    begin_archive_run,
)
from toc.store.claims import OutcomeKind
from toc.store.declared_types import DeclaredTypes, read_history
from toc.store.purge_pages import PurgePages
from toc.store.replica import Replica

DAY_S = 86_400


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = Library([f"sqlite:///{tmp_path_factory.mktemp('retention')}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def library(migrated: Library) -> Library:
    migrated.reset()
    with migrated.databases[0].engine.begin() as connection:
        for mark in MARKS:
            connection.exec_driver_sql(f"DELETE FROM toc_meta WHERE name = '{mark}'")
    return migrated


Make = Callable[..., Purger]


@pytest.fixture
def make(library: Library) -> Make:
    def make(
        shards: range = range(SHARDS),
        nodes: int = 1,
        replicas: ReplicaLag | None = None,
        archives: bool = False,
        **more: Any,
    ) -> Purger:
        purger = Purger(
            library.databases[0],
            PurgePages(library.databases),
            RetentionSettings(**more),
            library.database_metadata.types.find_name,
            replicas or ReplicaLag([], library.clock),
            library.clock,
            archives=archives,
        )
        purger.set_shards(shards, nodes)
        return purger

    return make


def purge(purger: Purger) -> None:
    """One whole pass."""
    purger.run_once()
    while purger._shards or purger._events_left:
        purger.run_once()


def archive(library: Library, until_ms: int) -> None:
    """As far as the purger can tell."""
    assert advance_archived_until(
        library.databases[0], begin_archive_run(library.databases[0]), until_ms
    )


def left(library: Library, *job_ids: int) -> list[int]:
    return [job_id for job_id in job_ids if library.jobs.get(job_id) is not None]


def test_what_ended_long_ago_goes_and_the_rest_stays(library: Library, make: Make) -> None:
    old = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(20)]
    live = library.pending(in_ms=1000 * DAY_S * 1000)
    library.clock.advance(29 * DAY_S)
    young = library.ended(OutcomeKind.DONE)
    library.clock.advance(1.5 * DAY_S)
    purge(make(days=30))
    assert left(library, *old, live, young) == [live, young]


def test_the_days_count_from_the_end_not_from_the_beginning(library: Library, make: Make) -> None:
    late = library.running()
    library.clock.advance(40 * DAY_S)
    assert library.settle_as(OutcomeKind.DONE, late, "one")
    library.clock.advance(1)
    purger = make(days=30)
    purge(purger)
    assert left(library, late) == [late]
    library.clock.advance(30 * DAY_S)
    purge(purger)
    assert left(library, late) == []


def test_types_and_the_dead_have_days_of_their_own(library: Library, make: Make) -> None:
    close = library.ended(OutcomeKind.DONE)
    report = library.ended(OutcomeKind.DONE, type_no=library.report_no)
    dead = library.dead(type_no=library.report_no)
    library.clock.advance(8 * DAY_S)
    purge(make(days=30, types={"report": 7}, dead_days=9))
    assert left(library, close, report, dead) == [close, dead]
    library.clock.advance(2 * DAY_S)
    purge(make(days="none", dead_days=9))
    assert left(library, close, dead) == [close]


def test_for_good_is_for_good(library: Library, make: Make) -> None:
    job_id = library.ended(OutcomeKind.DONE)
    library.clock.advance(3000 * DAY_S)
    purge(make(days="none", dead_days="none", event_days="none"))
    assert left(library, job_id) == [job_id]


def test_it_purges_only_what_it_owns(library: Library, make: Make) -> None:
    jobs = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(40)]
    library.dead()
    library.clock.advance(100 * DAY_S)
    purger = make(range(2, SHARDS))
    purge(purger)
    assert {library.shard(job_id) for job_id in left(library, *jobs)} == {0, 1}
    assert library.sql(jobs[0], "SELECT COUNT(*) FROM toc_event")[0][0] == 1  # whose are they?
    purger.set_shards(range(1), 1)
    library.clock.advance(DAY_S)
    purge(purger)
    assert {library.shard(job_id) for job_id in left(library, *jobs)} == {1}
    assert library.sql(jobs[0], "SELECT COUNT(*) FROM toc_event")[0][0] == 0


def test_a_page_is_bounded_and_all_pages_are_read(library: Library, make: Make) -> None:
    jobs = [library.ended(OutcomeKind.DONE) for _ in range(7)]  # one shard
    live = library.pending(in_ms=1000 * DAY_S * 1000)
    more = [library.ended(OutcomeKind.DONE) for _ in range(4)]
    library.clock.advance(100 * DAY_S)
    purger = make(range(library.shard(live), library.shard(live) + 1), page=3)
    counts = [12]
    purger.run_once()
    while purger._shards:
        counts.append(len(left(library, *jobs, live, *more)))
        purger.run_once()
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 3
    assert left(library, *jobs, live, *more) == [live]


def test_it_rests_in_proportion_to_its_work(library: Library, make: Make) -> None:
    library.ended(OutcomeKind.DONE)
    library.clock.advance(100 * DAY_S)

    class Slow(PurgePages):
        def read_purge_page(self, *args: Any) -> Any:
            library.clock.advance(2.0)
            return super().read_purge_page(*args)

    purger = make(share=0.25, nodes=1)
    purger._purges = Slow(library.databases)
    assert purger.run_once() == pytest.approx(6.0)
    purger.set_shards(range(SHARDS), 3)
    assert purger.run_once() == pytest.approx(22.0)  # three nodes share the quarter


def test_a_pass_begins_once_an_hour(library: Library, make: Make) -> None:
    purger = make(pass_s=3600)
    purge(purger)
    assert purger.run_once() == pytest.approx(3600)
    job_id = library.ended(OutcomeKind.DONE)
    library.clock.advance(100 * DAY_S)
    purge(purger)
    assert left(library, job_id) == []


def test_a_pass_says_what_it_has_deleted(library: Library, make: Make) -> None:
    jobs = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(3)]
    library.dead()
    library.clock.advance(100 * DAY_S)
    purger = make(days=30)
    assert purger.run_pass(lambda _: False) == PurgeResult(jobs=4, events=1, held=0, events_held=0)
    assert left(library, *jobs) == []
    assert purger.run_pass(lambda _: False) == PurgeResult(0, 0, 0, 0)  # at once, not an hour later


def test_replaced_declarations_go_with_the_events(library: Library, make: Make) -> None:
    types = DeclaredTypes(library.databases, library.database_metadata.types, 10)
    for timeout_s in (1, 2, 3):
        declared = DeclaredType("a", timeout_s=timeout_s, explicit=frozenset({"timeout_s"}))
        types.change("a", lambda now, to=declared: to, "ann")  # type: ignore[misc]
    library.clock.advance(100 * DAY_S)
    assert make(event_days="none").run_pass(lambda _: False) == PurgeResult(0, 0, 0, 0)
    assert make(event_days=90).run_pass(lambda _: False) == PurgeResult(0, 2, 0, 0)
    assert [row.version for row in read_history(library.databases, "a")] == [3]


def test_sessions_go_a_day_after_their_end_also_where_the_audit_is_kept(
    library: Library, make: Make
) -> None:
    store = TokenStore(library.databases, 100, "test")
    for owner in ("oidc:ann", "shop", "oidc:bob"):
        library.clock.advance(1)
        store.create(
            owner=owner, scopes=["read"], biz_types=["*"], expires_in=timedelta(seconds=DAY_S)
        )
    for days, audited, owners in ((1.5, 0, 3), (1, 1, 2)):
        library.clock.advance(days * DAY_S)
        assert make().run_pass(lambda _: False) == PurgeResult(0, 0, 0, 0, audited)
        assert len(store.list()) == owners
    assert {token.caller.owner for token in store.list()} == {"shop", "oidc:bob"}


def test_a_pass_ends_when_it_is_asked_to(library: Library, make: Make) -> None:
    jobs = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(20)]
    library.clock.advance(100 * DAY_S)
    rests: list[float] = []

    def rest(seconds: float) -> bool:
        rests.append(seconds)
        return len(rests) == 2

    assert make(page=1).run_pass(rest) is None
    assert len(left(library, *jobs)) == 18
    assert all(seconds >= 0 for seconds in rests)


class Behind(Replica):
    """A replica as it would answer."""

    def __init__(self, lag_s: float | None) -> None:
        self.name, self.lag = "replica", lag_s

    def read_lag_s(self) -> float | None:
        return self.lag


@pytest.mark.parametrize("lag_s", [6, None])
def test_it_waits_for_a_replica_that_lags_or_stands_still(
    library: Library, make: Make, lag_s: float | None
) -> None:
    job_id = library.ended(OutcomeKind.DONE)
    library.clock.advance(100 * DAY_S)
    slow = Behind(lag_s)
    purger = make(replicas=ReplicaLag([Behind(0), slow], library.clock), lag_s_max=5)
    for _ in range(3):
        assert purger.run_once() == 1.0
    assert left(library, job_id) == [job_id]
    slow.lag = 5
    library.clock.advance(1)
    purge(purger)
    assert left(library, job_id) == []


# ---- with an archive


def test_nothing_goes_that_no_archive_has(
    library: Library, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [library.ended(OutcomeKind.DONE), library.dead()]
    library.clock.advance(100 * DAY_S)
    purge(make(archives=True))
    assert left(library, *jobs) == jobs
    assert "2 jobs are old enough to go and not in the archive, which is empty" in caplog.text
    begin_archive_run(library.databases[0])  # an archive that has come nowhere
    purge(make(archives=True))
    assert left(library, *jobs) == jobs


def test_what_the_archive_has_goes_and_the_rest_waits_for_it(library: Library, make: Make) -> None:
    old = [library.ended(OutcomeKind.DONE), library.ended(OutcomeKind.DROP), library.dead()]
    library.clock.advance(DAY_S)
    until_ms = library.now_ms
    later = library.ended(OutcomeKind.DONE)
    library.clock.advance(100 * DAY_S)
    young = library.ended(OutcomeKind.DONE)
    archive(library, until_ms)
    purger = make(archives=True)
    purge(purger)
    assert left(library, *old, later, young) == [later, young]
    archive(library, until_ms + 1)
    library.clock.advance(3600)
    purge(purger)  # each pass looks anew
    assert left(library, later, young) == [young]


def test_a_dead_job_that_ended_again_waits_to_be_archived_again(
    library: Library, make: Make
) -> None:
    job_id = library.dead()
    library.clock.advance(DAY_S)
    archive(library, library.now_ms)
    assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    library.claim([job_id], "again")
    assert library.settle_as(OutcomeKind.DONE, job_id, "again")
    library.clock.advance(100 * DAY_S)
    purge(make(archives=True))
    assert left(library, job_id) == [job_id]


def test_what_no_archive_can_have_met_stays(library: Library, make: Make) -> None:
    """Its maker's clock was days ahead: the archive's walk ends before such ids."""
    ended = [library.ended(OutcomeKind.DONE) for _ in range(2)]
    ids = [lowest_id_at(library.now_ms + AHEAD_MS), lowest_id_at(library.now_ms + AHEAD_MS + 1)]
    for job_id, ahead in zip(ended, ids, strict=True):
        table = f"toc_job_{library.shard(job_id):04d}"
        values = {"ahead": ahead, "id": job_id}
        library.sql(job_id, f"UPDATE {table} SET job_id = :ahead WHERE job_id = :id", values)
    library.clock.advance(100 * DAY_S)
    archive(library, library.now_ms - DAY_S * 1000)
    purge(make(archives=True))
    table = f"toc_job_{library.shard(ended[0]):04d}"
    assert library.sql(ended[0], f"SELECT job_id FROM {table}") == [(ids[1],)]


def archive_events(library: Library, until_ms: int, event_id: int) -> None:
    """As far as the purger can tell."""
    mine = begin_archive_run(library.databases[0], EVENTS_ARCHIVED)
    assert advance_archived_until(library.databases[0], mine, until_ms, event_id)


def events(library: Library) -> list[int]:
    """The ids of all events."""
    with library.databases[0].engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT event_id FROM toc_event ORDER BY event_id")
        return list(rows.scalars())


def test_no_event_goes_that_no_archive_has(
    library: Library, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    library.dead()
    library.dead()
    first, second = events(library)
    library.clock.advance(100 * DAY_S)
    purge(make(archives=True))
    assert events(library) == [first, second]
    assert "2 events are old enough to go and not in the archive, which is empty" in caplog.text
    archive_events(library, library.now_ms, second)
    caplog.clear()
    purger = make(archives=False)  # the database counts more than the settings of a node
    assert purger.run_pass(lambda _: False) == PurgeResult(2, 1, 0, 1)
    assert events(library) == [second]
    assert (
        "1 events are old enough to go and not in the archive, which is until 2026" in caplog.text
    )


def test_an_event_with_the_number_of_an_archived_one_is_not_that_one(
    library: Library, make: Make
) -> None:
    """The table was emptied, and its numbers began anew. The time tells the events apart."""
    archive_events(library, library.now_ms, 2**40)
    library.dead()
    (event,) = events(library)
    library.clock.advance(100 * DAY_S)
    purge(make(archives=True))
    assert events(library) == [event]


def test_events_wait_where_only_jobs_are_archived_yet(library: Library, make: Make) -> None:
    """The nodes' settings differ, and the first nightly run has not come to the events."""
    library.dead()
    before = events(library)
    archive(library, library.now_ms)
    library.clock.advance(100 * DAY_S)
    purge(make(archives=False))
    assert events(library) == before


def test_the_database_counts_more_than_the_settings_of_a_node(library: Library, make: Make) -> None:
    job_id = library.ended(OutcomeKind.DONE)
    archive(library, library.now_ms)
    library.clock.advance(100 * DAY_S)
    purge(make(archives=False))
    assert left(library, job_id) == [job_id]


def test_a_mark_that_nobody_can_read_keeps_all(library: Library, make: Make) -> None:
    job_id = library.ended(OutcomeKind.DONE)
    library.sql(job_id, f"INSERT INTO toc_meta (name, value) VALUES ('{ARCHIVED}', 'yes')")
    library.clock.advance(100 * DAY_S)
    purger = make(archives=True)
    for _ in range(3):
        with pytest.raises(SchemaMismatch):
            purger.run_once()
    assert left(library, job_id) == [job_id]


def test_counts_outlive_the_jobs_and_go_one_day(library: Library, make: Make) -> None:
    job_id = library.ended(OutcomeKind.DONE)

    def counts() -> list[tuple[str, int]]:
        return [tuple(row) for row in library.sql(job_id, "SELECT day, jobs FROM toc_purge")]

    library.clock.advance(31 * DAY_S)
    purger = make(days=30, count_days=100)
    purge(purger)
    assert counts() == [("2026-02-01", 1)]
    library.clock.advance(100 * DAY_S)
    purge(purger)
    assert counts() == [("2026-02-01", 1)]
    library.clock.advance(DAY_S)
    purge(make(days=30, count_days="none"))
    assert counts() == [("2026-02-01", 1)]
    purge(make(range(1, SHARDS), days=30, count_days=100))
    assert counts() == [("2026-02-01", 1)]  # whose are they?
    purge(purger)
    assert counts() == []
