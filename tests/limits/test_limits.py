"""Admission by several processes on one Redis: never above the limit, whatever dies or is wiped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.limits.conftest import SETTLE_MS, LimitRig, MakeLimitRig
from toc.domain.declared_type import DeclaredType
from toc.domain.limit_terms import ONE_PARTITION, make_limit_terms
from toc.errors import TimerUnavailable
from toc.limits.keeper import HOLD_EVERY_S, KEEP_EVERY_S, LimitKeeper
from toc.limits.limits import RESERVED_S, Limits, Taken, Wanted
from toc.limits.waits import GUESS_MIN
from toc.testing.clock import TestClock
from toc.timer.limit_store import LimitStore, PartitionHold, PartitionWish

TYPE = "order.close"
HOLD_MS = 15_000


class Declared:
    """The catalogue of a process."""

    def __init__(self, **fields: Any) -> None:
        self.version = 0
        self.set_fields(**fields)

    def set_fields(self, **fields: Any) -> None:
        self._types = {TYPE: DeclaredType.from_fields(TYPE, fields)}
        self.version += 1

    def all(self) -> Mapping[str, DeclaredType]:
        return self._types


class Process:
    """The limits of one process, with its keeper, whose steps the test makes."""

    def __init__(self, rig: LimitRig, declared: Declared, store: LimitStore | None = None) -> None:
        self.limits = Limits(
            declared, store or rig.store, rig.clock, hold_ms=HOLD_MS, partitions_max=100
        )
        self.keeper = LimitKeeper(self.limits, rig.clock)
        self.token = f"node:{id(self)}"

    def take(self, ids: Iterable[int], partition: str = "", **options: Any) -> Taken:
        wanted = [Wanted(1000 + job_id, job_id, partition) for job_id in ids]
        return self.limits.take(TYPE, wanted, self.token, **options)

    def give_back(self, ids: Iterable[int], taken: Taken) -> None:
        self.limits.give_back(ids, TYPE, self.token, "", taken.time)
        self.keeper.run_once()

    def end(self, *ids: int) -> None:
        for job_id in ids:
            self.limits.job_ended(job_id, self.token)
        self.keeper.run_once()


@pytest.fixture
def rig(make_limit_rig: MakeLimitRig) -> LimitRig:
    return make_limit_rig()


def _settle(rig: LimitRig, *processes: Process) -> None:
    """Time passes until the type may start jobs; meanwhile each process names its holders."""
    for _ in range(int(SETTLE_MS / 1000 / HOLD_EVERY_S) + 1):
        rig.store.hold(TYPE, [])  # Redis learns of the type
        for process in processes:
            process.keeper.run_once()
        rig.clock.advance(HOLD_EVERY_S)


def test_two_processes_share_a_concurrency(rig: LimitRig) -> None:
    declared = Declared(concurrency=3)
    a, b = Process(rig, declared), Process(rig, declared)
    assert a.take([1]).admitted == set()
    _settle(rig, a)
    assert a.take([2, 1]).admitted == {1, 2}
    taken = b.take([3, 4, 5])
    assert taken.admitted == {3}
    assert taken.waits_ms == {4: None, 5: None}
    assert b.limits.count_fetchable(TYPE, 50) == 0
    assert 0 < b.limits.next_fetch_s(TYPE) <= 0.1
    a.end(1)
    rig.clock.advance(b.limits.next_fetch_s(TYPE))
    assert b.limits.count_fetchable(TYPE, 50) > 0
    assert b.take([4, 5]).admitted == {4}


def test_a_job_that_ends_here_lets_the_type_in_at_once(rig: LimitRig) -> None:
    process = Process(rig, Declared(concurrency=1))
    _settle(rig, process)
    process.take([1])
    process.take([2])
    assert process.limits.count_fetchable(TYPE, 50) == 0
    told: list[None] = []
    process.limits.add_listener(lambda: told.append(None))
    process.end(1)
    assert told
    assert process.limits.count_fetchable(TYPE, 50) == 1


def test_two_claims_of_one_job_count_twice_until_the_loser_gives_back(rig: LimitRig) -> None:
    declared = Declared(concurrency=2)
    poller, scanner = Process(rig, declared), Process(rig, declared)
    _settle(rig, poller)
    taken = scanner.take([1])
    assert poller.take([1]).admitted == taken.admitted == {1}
    assert poller.take([2]).admitted == set()
    scanner.give_back([1], taken)
    # The winner still holds: only the loser's place has come back.
    assert poller.take([2, 3]).admitted == {2}


def test_the_holders_of_a_dead_process_end_with_its_leases(rig: LimitRig) -> None:
    declared = Declared(concurrency=2)
    dead, heir = Process(rig, declared), Process(rig, declared)
    _settle(rig, dead)
    assert dead.take([1, 2]).admitted == {1, 2}
    rig.clock.advance(HOLD_MS / 1000 - 0.001)
    assert heir.take([3]).admitted == set()
    rig.clock.advance(0.001)
    assert heir.take([3, 4, 5]).admitted == {3, 4}


def test_a_living_process_holds_for_as_long_as_its_jobs_run(rig: LimitRig) -> None:
    declared = Declared(concurrency=1)
    alive, other = Process(rig, declared), Process(rig, declared)
    _settle(rig, alive)
    assert alive.take([1]).admitted == {1}
    for _ in range(40):
        rig.clock.advance(HOLD_EVERY_S)
        alive.keeper.run_once()
        assert other.take([2]).admitted == set()


def test_a_job_that_goes_first_is_not_overtaken_in_its_process(rig: LimitRig) -> None:
    process = Process(rig, Declared(concurrency=1, per="biz_id"))
    _settle(rig, process)
    assert process.take([1], "a").admitted == {1}
    assert process.take([2], "a", goes_first=True).admitted == set()
    process.end(1)
    assert process.take([3], "a").admitted == set()
    assert process.take([4], "b").admitted == {4}
    assert process.take([2], "a", goes_first=True).admitted == {2}
    process.end(2)
    assert process.take([3], "a").admitted == {3}
    assert process.take([2], "a", goes_first=True).admitted == set()
    process.end(3)
    rig.clock.advance(RESERVED_S)  # it does not come any more
    assert process.take([5], "a").admitted == {5}


def test_a_run_that_is_over_leaves_its_place_to_the_next_run_of_its_job(rig: LimitRig) -> None:
    declared = Declared(concurrency=1)
    dead, heir = Process(rig, declared), Process(rig, declared)
    _settle(rig, dead)
    assert dead.take([1]).admitted == {1}
    taken = heir.limits.take(TYPE, [Wanted(1, 1, "", ended=dead.token)], heir.token)
    assert taken.admitted == {1}
    assert heir.take([2]).admitted == set()


@pytest.mark.parametrize("options", [{}, {"lease_ms": 60_000}])
def test_after_a_wipe_nothing_starts_before_each_process_has_named_its_holders(
    rig: LimitRig, options: dict[str, Any]
) -> None:
    declared = Declared(concurrency=4)
    a, b = Process(rig, declared), Process(rig, declared)
    _settle(rig, a)
    assert a.take([1, 2], **options).admitted == {1, 2}
    assert b.take([3], **options).admitted == {3}
    a.keeper.run_once()
    b.keeper.run_once()
    rig.wipe()
    for _ in range(int(SETTLE_MS / 1000 / HOLD_EVERY_S)):
        rig.clock.advance(HOLD_EVERY_S)
        assert b.take([4, 5, 6]).admitted == set()
        a.keeper.run_once()
        b.keeper.run_once()
    rig.clock.advance(SETTLE_MS / 1000)
    assert b.take([4, 5, 6]).admitted == {4}


def test_a_wipe_leaves_an_empty_bucket(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="10/s", burst=10))
    rig.store.hold(TYPE, [])
    rig.clock.advance(3600)
    assert len(process.take(range(50)).admitted) == 10
    rig.clock.advance(0.5)
    assert len(process.take(range(50)).admitted) == 5
    rig.wipe()
    assert len(process.take(range(50)).admitted) == 0
    rig.clock.advance(0.3)
    assert len(process.take(range(50)).admitted) == 3


def test_a_lease_ends_at_whichever_process_settles_it(rig: LimitRig) -> None:
    declared = Declared(concurrency=1, mode="pull")
    gave, other = Process(rig, declared), Process(rig, declared)
    _settle(rig, gave)
    assert gave.take([1], lease_ms=60_000).admitted == {1}
    gave.keeper.run_once()
    other.limits.lease_ended(TYPE, "", 1, gave.token)
    other.keeper.run_once()
    rig.clock.advance(HOLD_EVERY_S)
    gave.keeper.run_once()  # it still believes in its lease, and must not bring it back
    rig.clock.advance(HOLD_EVERY_S)
    gave.keeper.run_once()
    assert other.take([2]).admitted == {2}


def test_a_start_that_was_not_used_comes_back(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="10/s", burst=10))
    rig.store.hold(TYPE, [])
    rig.clock.advance(3600)
    taken = process.take(range(10))
    assert len(taken.admitted) == 10
    process.give_back(range(4), taken)
    assert len(process.take(range(50)).admitted) == 4


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.25, 0.5, 60.0])
def test_a_start_that_comes_back_late_allows_no_more_than_the_burst_in_a_moment(
    rig: LimitRig, after_s: float
) -> None:
    """Meanwhile the bucket would have been full: 10 starts at once and not one more."""
    one, other = (Process(rig, Declared(rate="10/s", burst=10)) for _ in range(2))
    rig.store.hold(TYPE, [])
    rig.clock.advance(3600)
    taken = one.take(range(4))
    rig.clock.advance(after_s)
    started = len(other.take(range(10, 30)).admitted)
    one.give_back(range(4), taken)
    started += len(other.take(range(30, 50)).admitted)
    assert started == 10


def test_a_start_that_comes_back_late_to_the_share_allows_no_more_than_its_burst(
    rig: LimitRig, silent: SilentStore
) -> None:
    process = Process(rig, Declared(rate="10/s", burst=10), silent)
    assert process.take([1]).admitted == set()  # the bucket of a share begins empty
    rig.clock.advance(3600)
    taken = process.take(range(4))
    rig.clock.advance(0.2)
    started = len(process.take(range(10, 30)).admitted)
    process.limits.give_back(range(4), TYPE, process.token, "", taken.time)
    started += len(process.take(range(30, 50)).admitted)
    assert started == 10


def test_a_full_partition_holds_up_no_other(rig: LimitRig) -> None:
    process = Process(rig, Declared(concurrency=1, per="payload.shop"))
    _settle(rig, process)
    assert process.take([1, 2], "a").waits_ms.keys() == {2}
    assert process.take([3], "b").admitted == {3}
    waits = process.take([2], "a").waits_ms
    assert (waits[2] or 0) > 0
    # Which jobs of the type wait is known from their rows only.
    assert process.limits.count_fetchable(TYPE, 50) == 50


def test_partitions_beyond_the_setting_wait(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="100/s", burst=1, per="biz_id"))
    rig.store.hold(TYPE, [])
    rig.clock.advance(60)
    for n, partition in enumerate("abc"):
        assert process.take([n], partition).admitted == {n}
    assert process.take([9], "d").admitted == set()
    rig.clock.advance(1)
    assert process.take([9], "d").admitted == {9}


@pytest.mark.parametrize("lease_ms", [None, 3_600_000])
def test_a_partition_whose_jobs_have_ended_makes_place(rig: LimitRig, lease_ms: int | None) -> None:
    process = Process(rig, Declared(concurrency=1, per="biz_id"))
    _settle(rig, process)
    for n, partition in enumerate("abc"):
        assert process.take([n], partition, lease_ms=lease_ms).admitted == {n}
    assert process.take([9], "d").admitted == set()
    process.limits.lease_ended(TYPE, "b", 1, process.token)
    process.keeper.run_once()
    assert process.take([9], "d").admitted == {9}
    assert process.take([8], "b").admitted == set()  # the other two still hold


def test_a_partition_is_in_use_until_its_bucket_is_full(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="1/s", burst=1, concurrency=1, per="biz_id"))
    _settle(rig, process)
    for n, partition in enumerate("abc"):
        assert process.take([n], partition).admitted == {n}
    process.end(0, 1, 2)
    assert process.take([9], "d").admitted == set()
    rig.clock.advance(1)
    assert process.take([9], "d").admitted == {9}


def test_keys_end_by_themselves_and_a_type_has_one_hash_slot(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="100/s", concurrency=5, per="biz_id"))
    _settle(rig, process)
    assert process.take([1], "a").admitted == {1}
    process.keeper.run_once()
    keys = rig.read_keys()
    assert len(keys) == 4
    assert len({key[key.index(b"{") : key.index(b"}")] for key in keys}) == 1
    assert all(rig.ttl_ms(key) > 0 for key in keys)


@pytest.mark.parametrize("fields", [{"concurrency": 1}, {"rate": "1/s", "burst": 1}])
def test_redis_learns_of_a_new_type_before_its_first_job(
    rig: LimitRig, fields: dict[str, Any]
) -> None:
    process = Process(rig, Declared(**fields))
    assert process.keeper.run_once() <= HOLD_EVERY_S
    rig.clock.advance(SETTLE_MS / 1000)
    assert process.take([1]).admitted == {1}


def test_redis_does_not_forget_a_type_that_has_no_jobs_for_days(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="1/h", burst=1))
    process.keeper.run_once()
    (key,) = rig.read_keys()
    rig.expire(key, 3600_000)  # most of its time has passed
    rig.clock.advance(KEEP_EVERY_S)
    process.keeper.run_once()
    assert rig.ttl_ms(key) > 3600_000
    assert process.take([1]).admitted == {1}


def test_a_clock_that_is_set_back_stops_no_type(rig: LimitRig) -> None:
    ahead, back = TestClock(), TestClock()
    ahead.advance(24 * 3600)
    terms = make_limit_terms("10/s", 5, None, None)
    assert terms is not None

    def take(clock: TestClock, n: int) -> int:
        store = LimitStore(rig.server, rig.namespace, clock, settle_ms=SETTLE_MS, partitions_max=9)
        wish = PartitionWish(ONE_PARTITION, [str(i) for i in range(n)])
        return store.take(TYPE, terms, HOLD_MS, [wish])[0][0].admitted

    take(ahead, 1)
    ahead.advance(60)
    assert take(ahead, 9) == 5
    assert take(back, 9) == 0
    back.advance(0.5)
    assert take(back, 9) == 5


def test_a_rate_is_used_to_within_two_percent_of_a_minute(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="500/s"))
    rig.store.hold(TYPE, [])
    limits, began_s, count = process.limits, rig.clock.monotonic_s(), 0
    while (passed_s := rig.clock.monotonic_s() - began_s) < 60:
        fetched = limits.count_fetchable(TYPE, 200)
        if not fetched:
            rig.clock.advance(max(0.001, limits.next_fetch_s(TYPE)))
            continue
        count += len(process.take(range(count, count + fetched)).admitted)
        rig.clock.advance(0.004)  # the pop, the claim
        assert count <= 500 + 500 * passed_s
    assert count >= 0.98 * 500 * 60


class SilentStore(LimitStore):
    """A Redis that does not answer."""

    def take(self, *_: Any) -> Any:
        raise TimerUnavailable(ConnectionError("refused"))

    release = hold = take


class UnheardStore(LimitStore):
    """A Redis that does what it is told, and whose answers are lost."""

    def take(self, *args: Any) -> Any:
        super().take(*args)
        raise TimerUnavailable(TimeoutError("the answer was lost"))


@pytest.fixture
def silent(rig: LimitRig) -> SilentStore:
    return SilentStore(rig.server, rig.namespace, rig.clock, settle_ms=0, partitions_max=9)


def test_without_redis_each_node_takes_its_part(rig: LimitRig, silent: SilentStore) -> None:
    declared = Declared(concurrency=5)
    nodes = [Process(rig, declared, silent) for _ in range(3)]
    for index, node in enumerate(nodes):
        node.limits.set_nodes(index, len(nodes))
    taken = [node.take(range(10)).admitted for node in nodes]
    assert [len(ids) for ids in taken] == [2, 2, 1]
    nodes[0].limits.job_ended(0, nodes[0].token)
    assert nodes[0].take([7, 8]).admitted == {7}


def test_what_was_admitted_by_redis_counts_when_redis_is_gone(
    rig: LimitRig, silent: SilentStore
) -> None:
    process = Process(rig, Declared(concurrency=3))
    _settle(rig, process)
    assert process.take([1, 2]).admitted == {1, 2}
    process.limits.store = silent
    assert process.take([3, 4]).admitted == {3}


def test_places_of_leases_come_back_when_the_answer_of_redis_was_lost(rig: LimitRig) -> None:
    declared = Declared(concurrency=5)
    unheard = UnheardStore(rig.server, rig.namespace, rig.clock, settle_ms=0, partitions_max=9)
    process, other = Process(rig, declared), Process(rig, declared)
    process.limits.set_nodes(None, 2)
    _settle(rig, process, other)
    process.limits.store = unheard
    taken = process.take(range(9), lease_ms=3_600_000).admitted
    assert len(taken) == 2  # by its share, and Redis has written down five
    process.limits.store = rig.store
    process.keeper.run_once()
    assert len(other.take(range(10, 19)).admitted) == 3


def test_releases_wait_for_redis(rig: LimitRig, silent: SilentStore) -> None:
    declared = Declared(concurrency=1)
    process, other = Process(rig, declared), Process(rig, declared)
    _settle(rig, process)
    process.take([1])
    process.limits.store = silent
    with pytest.raises(TimerUnavailable):
        process.end(1)
    process.limits.store = rig.store
    process.keeper.run_once()
    assert other.take([2]).admitted == {2}


def test_a_start_whose_return_was_not_answered_is_not_returned_twice(
    rig: LimitRig, silent: SilentStore
) -> None:
    process = Process(rig, Declared(rate="10/s", burst=10))
    rig.store.hold(TYPE, [])
    rig.clock.advance(3600)
    taken = process.take(range(10))
    process.limits.store = silent
    with pytest.raises(TimerUnavailable):
        process.give_back(range(4), taken)
    process.limits.store = rig.store
    process.keeper.run_once()
    assert process.take(range(50)).admitted == set()


def test_a_start_of_the_share_does_not_come_back_to_redis(
    rig: LimitRig, silent: SilentStore
) -> None:
    process = Process(rig, Declared(rate="10/s", burst=10))
    rig.store.hold(TYPE, [])
    rig.clock.advance(3600)
    assert len(process.take(range(10)).admitted) == 10
    process.limits.store = silent
    process.take([])
    assert process.take([90]).admitted == set()
    rig.clock.advance(0.5)
    taken = process.take(range(10, 14))
    assert len(taken.admitted) == 4
    process.limits.store = rig.store
    process.give_back(range(10, 14), taken)
    assert len(process.take(range(50)).admitted) == 5  # what half a second allows


def test_a_hold_is_never_made_shorter(rig: LimitRig) -> None:
    held = [PartitionHold(ONE_PARTITION, [(ms, "7:x")]) for ms in (5000, 500)]
    for each in held:
        rig.store.hold(TYPE, [each])
    rig.clock.advance(1)
    assert rig.store.read_use([TYPE])[TYPE].holders == 1
    rig.clock.advance(4)
    assert rig.store.read_use([TYPE])[TYPE].holders == 0


def test_a_key_of_another_program_costs_no_more_than_redis_away(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="10/s", concurrency=2))
    _settle(rig, process)
    assert process.take([1]).admitted == {1}
    rig.spoil(next(key for key in rig.read_keys() if b"bucket" in key))
    assert process.take([2]).admitted == set()  # this node's share begins with an empty bucket
    rig.clock.advance(1)
    assert process.take([2, 3]).admitted == {2}


def test_a_changed_limit_counts_at_once(rig: LimitRig) -> None:
    declared = Declared(concurrency=1)
    process = Process(rig, declared)
    _settle(rig, process)
    process.take([1, 2])
    declared.set_fields(concurrency=3)
    assert process.take([2, 3, 4]).admitted == {2, 3}
    declared.set_fields()
    assert process.take([4]).admitted == {4}
    assert process.limits.count_fetchable(TYPE, 50) == 50


def test_a_guess_grows_while_all_are_admitted(rig: LimitRig) -> None:
    process = Process(rig, Declared(rate="1000/s", burst=500))
    rig.store.hold(TYPE, [])
    rig.clock.advance(3600)
    assert process.limits.count_fetchable(TYPE, 50) == GUESS_MIN
    process.take(range(GUESS_MIN))
    assert process.limits.count_fetchable(TYPE, 50) == 2 * GUESS_MIN
