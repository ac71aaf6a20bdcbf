"""Long overdue jobs are claimed in all shards, whoever the members say owns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.contract.library import Library
from tests.integration.test_poller import Recording
from tests.unit.test_pauses import known
from toc.domain.pauses import Pause
from toc.runtime.admission import Admission, AdmissionChain
from toc.scanner import fallback as module
from toc.scanner import overdue_page, overdue_search
from toc.scanner.fallback import WASTE, FallbackScanner
from toc.scanner.overdue_page import OverduePages
from toc.worker.admission import ClosedAdmission
from toc.worker.gate import Gate, ScannedTypes

GRACE_MS, PERIOD_S = 70_000, 30.0

Make = Callable[..., FallbackScanner]


@pytest.fixture
def sink() -> Recording:
    return Recording()


@pytest.fixture
def make(small_library: Library, sink: Recording) -> Make:
    def made(
        *,
        start_at: int = 0,
        page_rows: int = 500,
        types: Any = lambda: None,
        restrictions: Any = None,
        in_parts: bool = False,
        rest_s_max: float = 600.0,
    ) -> FallbackScanner:
        return FallbackScanner(
            "toc-fallback-test",
            small_library.pages,
            OverduePages(
                0, small_library.pages, sink, sink.inbox(0), types, page_rows, restrictions
            ),
            0, small_library.databases[0].shards, small_library.clock, start_at=start_at,
            grace_ms=GRACE_MS, period_s=PERIOD_S, rest_s_max=rest_s_max,
            are_limits_in_parts=lambda: in_parts,
        )  # fmt: skip

    return made


def one_round(library: Library, fallback: FallbackScanner, after_s: float = PERIOD_S) -> None:
    """Waits until the next look is due, and steps until there is nothing to do at once."""
    library.clock.advance(after_s)
    for _ in range(100):
        if fallback.run_once() > 0:
            return
    raise AssertionError("it goes round and round")


def overdue_jobs(library: Library, count: int = 30) -> list[int]:
    jobs = [library.pending(biz_id) for biz_id in range(count)]
    library.clock.advance(GRACE_MS / 1000 + 1)
    return jobs


def test_it_claims_what_neither_owner_nor_deputy_has_taken(
    small_library: Library, sink: Recording, make: Make
) -> None:
    fallback = make()
    jobs = [small_library.pending(biz_id) for biz_id in range(30)]
    one_round(small_library, fallback)
    assert sink.ids == []  # it leaves them their time
    small_library.clock.advance(GRACE_MS / 1000)
    one_round(small_library, fallback)
    assert set(sink.ids) == set(jobs)
    assert all(not batch.popped and batch.time_ms is None for _, batch in sink.offers)


def test_what_the_node_scans_itself_it_leaves_to_its_scanner(
    small_library: Library, sink: Recording, make: Make
) -> None:
    fallback, jobs = make(), overdue_jobs(small_library)
    fallback.set_own_shards([0, 2])
    one_round(small_library, fallback)
    assert set(sink.ids) == {job for job in jobs if small_library.shard(job) not in (0, 2)}
    # For health all shards count, whoever scans them.
    assert (fallback.overdue.shards, fallback.overdue.of) == (4, 4)
    assert fallback.overdue.since_ms == small_library.clock.wall_ms()


def test_it_goes_on_until_nothing_overdue_is_left_and_shares_the_room(
    small_library: Library, sink: Recording, make: Make
) -> None:
    fallback, jobs = make(page_rows=2), overdue_jobs(small_library)
    one_round(small_library, fallback)
    assert sorted(sink.ids) == sorted(jobs)
    first = [next(iter(batch.ids)) for _, batch in sink.offers][:4]
    assert sorted(first) == [0, 1, 2, 3]  # no shard waits until another one is empty


def test_nodes_begin_at_different_shards(
    small_library: Library, sink: Recording, make: Make
) -> None:
    overdue_jobs(small_library)
    one_round(small_library, make(start_at=7))
    assert [next(iter(batch.ids)) for _, batch in sink.offers] == [3, 0, 1, 2]


def test_without_room_it_waits_and_is_woken(
    small_library: Library, sink: Recording, make: Make
) -> None:
    fallback, jobs = make(), overdue_jobs(small_library)
    sink.room = 0
    one_round(small_library, fallback)
    assert sink.ids == []
    sink.room = 1000
    fallback.wake_if_waiting_for_permits()
    assert fallback._wake.is_set()
    one_round(small_library, fallback, after_s=0)
    assert set(sink.ids) == set(jobs)
    assert sink.reserved == 0


def test_health_is_well_again_when_nothing_is_overdue(
    small_library: Library, sink: Recording, make: Make
) -> None:
    fallback, (job,) = make(), overdue_jobs(small_library, 1)
    one_round(small_library, fallback)
    since_ms = fallback.overdue.since_ms
    assert fallback.overdue.shards == 1
    one_round(small_library, fallback)
    assert fallback.overdue.since_ms == since_ms  # since when it has been so
    table = f"toc_job_{small_library.shard(job):04d}"
    small_library.sql(job, f"UPDATE {table} SET status = 3, due_time = NULL")
    one_round(small_library, fallback)
    assert fallback.overdue[0::3] == (0, None)


def test_an_idle_round_is_one_statement(
    small_library: Library, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    database = small_library.databases[0]
    read = database.run_read
    monkeypatch.setattr(database, "run_read", lambda work: reads.append(work) or read(work))  # type: ignore[func-returns-value]
    fallback = make()
    for _ in range(3):
        one_round(small_library, fallback)
    assert len(reads) == 3


def test_it_rests_from_reading_what_it_cannot_claim(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the jobs of types that no worker here handles, whose rows it has to walk past."""
    overdue_jobs(small_library)
    overdue = small_library.pages.read_overdue_rows

    def slow(*given: Any) -> Any:
        small_library.clock.advance(0.1)
        return overdue(*given)

    monkeypatch.setattr(small_library.pages, "read_overdue_rows", slow)
    fallback = make(types=lambda: [999])
    one_round(small_library, fallback)
    assert sink.ids == []
    assert fallback.run_once() == pytest.approx(4 * 0.1 * WASTE, abs=1)


def test_it_comes_to_every_shard_though_each_round_is_too_long(
    small_library: Library, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_jobs(small_library)
    read: list[int] = []

    def read_slowly(shard: int, *rest: Any) -> Any:
        read.append(shard)
        small_library.clock.advance(module.FRUITLESS_S_MAX * 0.6)
        return []

    monkeypatch.setattr(small_library.pages, "read_overdue_rows", read_slowly)
    fallback = make(types=lambda: [999])
    one_round(small_library, fallback)
    for _ in range(3):
        one_round(small_library, fallback, after_s=600)
    assert set(read) == {0, 1, 2, 3}


def test_the_last_of_many_shards_has_its_turn_though_each_round_finds_the_first_ones_again(
    small_library: Library, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def read_slowly(shard: int, *rest: Any) -> Any:
        read.append(shard)
        small_library.clock.advance(module.FRUITLESS_S_MAX * 0.6)
        return []

    monkeypatch.setattr(small_library.pages, "find_overdue_shards", frozenset[int])
    monkeypatch.setattr(small_library.pages, "read_overdue_rows", read_slowly)
    fallback = make(types=lambda: [999])
    fallback._shards = list(range(32))
    for _ in range(40):  # each reads two pages, of which one is of the first shards
        one_round(small_library, fallback, after_s=600)
    assert set(read) == set(range(32))


def test_a_job_behind_many_paused_ones_is_claimed_after_a_few_bounded_rests(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row is of a type that no worker here handles: so each round finds the shard, in vain."""
    library = small_library
    monkeypatch.setattr(overdue_page, "ROWS_READ_MAX", 100)
    read_overdue_rows = library.pages.read_overdue_rows

    def slow(*given: Any) -> Any:
        library.clock.advance(0.1)
        return read_overdue_rows(*given)

    monkeypatch.setattr(library.pages, "read_overdue_rows", slow)
    library.pending(42, type_no=999)
    library.clock.advance(1)
    library.insert(*(library.new(42, n, type_no=library.report_no) for n in range(2000)))
    library.clock.advance(3)
    job = library.pending(42)
    library.clock.advance(GRACE_MS / 1000 + 1)
    gate = Gate(clock=library.clock, now_ms=lambda: 1000)
    gate.update_pauses({"type:report": known(Pause("type:report", 0))})
    names = {library.report_no: "report", library.close_no: "order.close"}
    fallback = make(
        types=lambda: list(names), restrictions=ScannedTypes(gate, lambda: names), rest_s_max=40.0
    )
    since_s, rests = library.clock.monotonic_s(), list[float]()
    for _ in range(100):
        if job in sink.ids:
            break
        if (rest_s := fallback.run_once()) > 0:
            rests.append(rest_s)
            library.clock.advance(rest_s)
    assert set(sink.ids) == {job}
    assert max(rests) <= 40.0
    # 20 statements to the job, of which a round makes ten, and half of them before that place.
    assert library.clock.monotonic_s() - since_s < 4 * 42


def test_one_broken_table_hides_no_other(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = overdue_jobs(small_library)
    any_overdue, asked = small_library.pages.find_overdue_shards, []

    def broken(grace_ms: Mapping[int, int]) -> set[int]:
        asked.append([*grace_ms])
        if 2 in grace_ms:
            raise ValueError("no such table")
        return any_overdue(grace_ms)

    monkeypatch.setattr(small_library.pages, "find_overdue_shards", broken)
    fallback = make()
    one_round(small_library, fallback)
    assert set(sink.ids) == {job for job in jobs if small_library.shard(job) != 2}
    asked.clear()
    monkeypatch.setattr(small_library.pages, "database_answers", lambda _: False)
    one_round(small_library, fallback)
    assert asked == [[0, 1, 2, 3]]  # a database that is away is not asked shard by shard


def test_one_broken_table_hides_no_job_behind_many_paused_ones(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small_library
    monkeypatch.setattr(overdue_search, "ROWS_READ_MAX", 8)
    biz_id = next(n for n in range(40) if library.shard(library.new(n).job_id) == 0)
    library.insert(*(library.new(biz_id, type_no=library.report_no) for _ in range(50)))
    library.clock.advance(1)
    job = library.pending(biz_id)
    library.clock.advance(GRACE_MS / 1000 + 1)
    find = library.pages.find_overdue_shards_after

    def broken(grace_ms: Mapping[int, int], *rest: Any) -> set[int]:
        if 3 in grace_ms:
            raise ValueError("no such table")
        return find(grace_ms, *rest)

    monkeypatch.setattr(library.pages, "find_overdue_shards_after", broken)
    gate = Gate(clock=library.clock)
    gate.update_pauses({"type:report": known(Pause("type:report", 0))})
    one_round(library, make(restrictions=restrictions_of_report(library, gate)))
    assert sink.ids == [job]


def test_a_locked_table_is_not_waited_for_in_each_step_of_a_check(
    small_library: Library, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check makes many steps where there are many rows of paused types."""
    library = small_library
    monkeypatch.setattr(overdue_search, "ROWS_READ_MAX", 8)
    biz_id = next(n for n in range(40) if library.shard(library.new(n).job_id) == 3)
    library.insert(*(library.new(biz_id, type_no=library.report_no) for _ in range(100)))
    library.clock.advance(GRACE_MS / 1000 + 1)
    find = library.pages.find_overdue_shards_after

    def wait_for_lock(grace_ms: Mapping[int, int], *rest: Any) -> set[int]:
        if 0 in grace_ms:
            library.clock.advance(25)
            raise ValueError("a lock wait that took too long")
        return find(grace_ms, *rest)

    monkeypatch.setattr(library.pages, "find_overdue_shards_after", wait_for_lock)
    gate = Gate(clock=library.clock)
    gate.update_pauses({"type:report": known(Pause("type:report", 0))})
    fallback = make(restrictions=restrictions_of_report(library, gate))
    since_s = library.clock.monotonic_s()
    fallback._find_overdue_shards()
    assert library.clock.monotonic_s() - since_s == pytest.approx(3 * 25, abs=5)


def test_more_shards_than_one_statement_takes(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARDS_PER_QUERY_MAX", 3)
    jobs = overdue_jobs(small_library)
    one_round(small_library, make())
    assert set(sink.ids) == set(jobs)


def restrictions_of_report(
    library: Library, gate: Gate, admission: Admission | None = None
) -> ScannedTypes:
    """With a limit that admits all jobs of the type, or with another admission."""
    gate.set_limits({"report": admission or AdmissionChain([])})
    names = library.database_metadata.types.known.names
    return ScannedTypes(gate, lambda: names)


@pytest.mark.parametrize("in_parts", [False, True], ids=["redis", "no redis"])
def test_jobs_of_a_restricted_type_are_claimed_and_are_no_fault(
    small_library: Library, sink: Recording, make: Make, in_parts: bool
) -> None:
    """Perhaps no process stands behind the members that own their slot and their shard."""
    library = small_library
    jobs = [library.pending(biz_id, type_no=library.report_no) for biz_id in range(30)]
    library.clock.advance(GRACE_MS / 1000 + 1)
    fallback = make(restrictions=restrictions_of_report(library, Gate()), in_parts=in_parts)
    one_round(library, fallback)
    assert sorted(sink.ids) == sorted(jobs)
    assert fallback.overdue.shards == 0
    # With Redis the owners look for the jobs that may start next.
    wait_s = fallback.run_once()
    assert (wait_s <= module.AGAIN_S) == in_parts


def test_jobs_of_a_paused_type_are_not_claimed_and_not_even_read(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small_library
    read = list[int]()
    read_rows = library.pages.read_overdue_rows

    def recorded(shard: int, *rest: Any) -> Any:
        read.append(shard)
        return read_rows(shard, *rest)

    monkeypatch.setattr(library.pages, "read_overdue_rows", recorded)
    for biz_id in range(30):
        library.pending(biz_id, type_no=library.report_no)
    library.clock.advance(GRACE_MS / 1000 + 1)
    gate = Gate(clock=library.clock)
    gate.update_pauses({"type:report": known(Pause("type:report", 0))})
    fallback = make(restrictions=restrictions_of_report(library, gate))
    one_round(library, fallback)
    assert (sink.ids, read, fallback.overdue.shards) == ([], [], 0)


def test_a_backlog_of_a_limited_type_does_not_stand_before_other_jobs(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small_library
    monkeypatch.setattr(overdue_search, "ROWS_READ_MAX", 8)
    monkeypatch.setattr(overdue_page, "ROWS_READ_MAX", 4)
    for _ in range(30):
        library.pending(42, type_no=library.report_no)
    library.clock.advance(1)
    job = library.pending(42)
    library.clock.advance(GRACE_MS / 1000 + 1)
    pages: list[tuple[int, int]] = []
    read = library.pages.read_overdue_rows

    def recorded(shard: int, after: tuple[int, int], *rest: Any) -> Any:
        if job not in sink.ids:
            pages.append(after)
        return read(shard, after, *rest)

    monkeypatch.setattr(library.pages, "read_overdue_rows", recorded)
    restrictions = restrictions_of_report(library, Gate(), ClosedAdmission())
    one_round(library, make(page_rows=2, restrictions=restrictions))
    assert job in sink.ids
    assert len(pages) < 5


def test_jobs_of_a_limited_type_before_those_that_no_worker_here_handles_are_claimed(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for jobs of other types has passed over the limited ones."""
    library = small_library
    monkeypatch.setattr(overdue_search, "ROWS_READ_MAX", 8)
    limited = [library.pending(42, type_no=library.report_no) for _ in range(10)]
    library.clock.advance(1)
    library.pending(42)
    library.clock.advance(GRACE_MS / 1000 + 1)
    fallback = make(
        types=lambda: [library.report_no], restrictions=restrictions_of_report(library, Gate())
    )
    one_round(library, fallback)
    assert sorted(sink.ids) == sorted(limited)


def test_each_shard_is_read_from_both_keys_though_each_round_is_too_long(
    small_library: Library, sink: Recording, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the limited jobs there are jobs in each shard that no worker here handles."""
    library = small_library
    monkeypatch.setattr(overdue_search, "ROWS_READ_MAX", 8)
    biz_ids = {library.shard(library.pending(number)): number for number in range(40)}
    limited = [
        library.pending(biz_id, -1000, type_no=library.report_no)
        for biz_id in biz_ids.values()
        for _ in range(8)  # all of them are before the first key
    ]
    library.clock.advance(GRACE_MS / 1000 + 1)
    read_overdue_rows = library.pages.read_overdue_rows

    def read_slowly(*given: Any) -> Any:
        rows = [row for row in read_overdue_rows(*given) if row.job_id not in sink.ids]
        if not rows:
            library.clock.advance(module.FRUITLESS_S_MAX * 0.6)
        return rows

    monkeypatch.setattr(library.pages, "read_overdue_rows", read_slowly)
    fallback = make(
        types=lambda: [library.report_no], restrictions=restrictions_of_report(library, Gate())
    )
    for _ in range(12):
        one_round(library, fallback, after_s=600)
    assert set(sink.ids) == set(limited)
