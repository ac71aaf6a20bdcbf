"""The compare of a shard: each kind of disagreement, what is legal, and both sides in motion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain

import pytest

from tests.contract.engines import library_on
from tests.contract.library import LEASE_MS, Library
from tests.deep import deep
from tests.integration.world import HORIZON_MS, NEAR_MS, World
from tests.servers.endpoint import Endpoint
from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.domain.ids import ROUTING_BITS, SEQUENCE_BITS
from toc.reconcile.compare import ShardComparer, merge_parts
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.findings import Finding, ShardComparison
from toc.reconcile.reconciliation import Reconciliation
from toc.store.claims import OutcomeKind
from toc.timer import redis_keys
from toc.timer.loader import LoadMark
from toc.timer.reminders import Reminder

OVERDUE_MS = 120_000
LOADED_MS = (
    HORIZON_MS - 70_000
)  # must be armed: the loader reads once a minute, and a grace of 10 s


@pytest.fixture(scope="session", params=["sqlite", "mariadb", "mysql"])
def _migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("compare")) as library:
        yield library


@pytest.fixture
def world(_migrated: Library, redis_server: Endpoint) -> Iterator[World]:
    _migrated.reset()
    world = World(_migrated, redis_server.url)
    yield world
    world.close()


def compare(world: World, **changes: object) -> ShardComparer:
    own = world.settings.reconcile.model_copy(update=changes)
    settings = world.settings.model_copy(update={"reconcile": own})
    find_name = world.library.database_metadata.types.find_name
    return ShardComparer(
        DatabasesAndRedis(world.library.databases, world.slots, settings, find_name)
    )


def found(world: World, *, whole: bool = True, **changes: object) -> list[Finding]:
    """What a whole run would find, without a second look. `whole`: False: what the watch would."""
    one = compare(world, **changes)
    shards = range(world.settings.shards)
    return list(chain.from_iterable(one.compare_shard(s, whole=whole).findings for s in shards))


def kinds(world: World, **changes: object) -> dict[int, list[D]]:
    by_job: dict[int, list[D]] = {}
    for finding in found(world, **changes):
        by_job.setdefault(finding.job_id, []).append(finding.kind)
    return by_job


def counts(world: World, **changes: object) -> Counter[str]:
    one, total = compare(world, **changes), Counter[str]()
    for shard in range(world.settings.shards):
        total += one.compare_shard(shard).counts
    return total


def schedule(world: World, in_ms: int, biz_id: int = 42, biz_type: str = "order.close") -> int:
    return world.center.schedule(biz_id, timedelta(milliseconds=in_ms), biz_type=biz_type)


def forget(world: World, job_id: int, topic: str = "default") -> None:
    world.slots.ack(topic, [job_id])


def arm(
    world: World, job_id: int, in_ms: int, slot: int | None = None, topic: str = "default"
) -> None:
    if slot is None:
        world.slots.arm(topic, [Reminder(world.now_ms + in_ms, job_id)])
    else:
        key = redis_keys.store_queue_key(world.settings.namespace, topic, slot)
        world.slots.connected_client().zadd(key, {str(job_id): world.now_ms + in_ms})


def set_row(world: World, job_id: int, values: str) -> None:
    world.library.sql(
        job_id,
        f"UPDATE toc_job_{world.library.shard(job_id):04d} SET {values} WHERE job_id = {job_id}",
    )


def other_slot(world: World, job_id: int) -> int:
    return (world.slot(job_id) + 1) % world.settings.slot_amount_of("default")


def mixture(world: World) -> list[int]:
    """Jobs of all sorts, of both topics, as a healthy system has them."""
    ids = [schedule(world, 1000 * n, biz_id=n) for n in range(1, 60)]
    ids += [schedule(world, 7000 * n, biz_id=n, biz_type="vip.close") for n in range(40)]
    ids += [schedule(world, 10_000_000 + n, biz_id=n) for n in range(8)]  # far
    for kind in (OutcomeKind.DONE, OutcomeKind.BURY, OutcomeKind.DROP):
        world.library.ended(kind, biz_id=3)
    failed = world.library.running("one", biz_id=3)
    world.library.settle_as(OutcomeKind.RETRY, failed, "one", world.now_ms + 50_000)
    arm(world, failed, 50_000)
    world.library.running("two", biz_id=5)
    for job_id in ids[:9]:
        world.center.cancel(job_id)
    for job_id in ids[9:15]:
        world.center.reschedule(job_id, timedelta(seconds=300))
    for n in range(8):
        schedule(world, 0, biz_id=n)
    world.slots.pop("default", [(slot, 1) for slot in range(4)], 30_000)
    return ids


# ---- what is legal


@pytest.mark.parametrize("page", [1, pytest.param(2, marks=deep), 3, 50_000])
def test_a_healthy_system_has_none(world: World, page: int) -> None:
    mixture(world)
    for loader in (world.loader(), world.loader("vip")):
        loader.load_due_shards()
    assert found(world, page=page) == []


def test_what_is_counted(world: World) -> None:
    mixture(world)
    one = counts(world)
    assert (one["far"], one["early"], one["cancelled"]) == (8, 6, 9)
    assert one["rows"] == 59 + 40 - 9 + 2 + 8  # with the retried one and the running one
    assert one["armed"] + one["out"] == 59 + 40 + 1 + 8
    assert one["out"] > 0
    assert one == counts(world, page=1) | {"suspects": one["suspects"]}


def test_the_far_future_is_not_read_row_by_row(world: World) -> None:
    """Only the server looks there, for rows that are wrong by themselves; and not for the watch."""
    job_id = schedule(world, NEAR_MS + 1000)
    set_row(world, job_id, "action_time = '2001-01-01 00:00:00.000'")
    assert [(finding.kind, finding.job_id) for finding in found(world)] == [(D.MOVED, job_id)]
    assert found(world, whole=False) == []
    assert counts(world)["rows"] == 0
    assert counts(world)["far"] == 1


@pytest.mark.parametrize("in_ms", [LOADED_MS - 1000, LOADED_MS + 1000])
def test_only_what_a_loader_must_have_seen_is_missing(world: World, in_ms: int) -> None:
    job_id = schedule(world, in_ms)
    forget(world, job_id)
    assert kinds(world) == ({job_id: [D.MISSING]} if in_ms < LOADED_MS else {})


def test_a_running_job_needs_no_reminder(world: World) -> None:
    job_id = world.library.running("by the scanner")
    assert found(world) == []
    assert counts(world)["unarmed"] == 1
    arm(world, job_id, 90_000_000)  # nor is a late one of it any harm
    assert found(world) == []


def test_a_popped_job_is_not_missing(world: World) -> None:
    job_id = schedule(world, 0)
    (popped, *_) = world.slots.pop("default", [(world.slot(job_id), 1)], 30_000)
    assert popped.ids == [job_id]
    assert found(world) == []


# ---- the kinds


def damage_of_each_kind(world: World) -> dict[int, list[D]]:
    """Damages jobs in a healthy mixture; returns the kinds by job."""
    mixture(world)
    expected: dict[int, list[D]] = {}

    def damaged(kind: D, in_ms: int = 100_000, biz_type: str = "order.close") -> int:
        topic = world.settings.topic_of_biz_type(biz_type)
        biz_id = len(expected) + 1000
        job_id = schedule(world, in_ms, biz_id, biz_type)
        expected.setdefault(job_id, []).append(kind)
        assert world.reminder(job_id, topic) == in_ms
        return job_id

    for n in range(3):
        forget(world, damaged(D.MISSING, in_ms=100_000 + n))
        forget(world, damaged(D.MISSING, biz_type="vip.close"), "vip")
        for in_ms in (100_001, NEAR_MS - 1, 10 * NEAR_MS):
            late = damaged(D.LATE)
            forget(world, late)
            arm(world, late, in_ms)
        ended = damaged(D.ORPHAN)
        set_row(world, ended, "status = 2, due_time = NULL")
        gone = damaged(D.ORPHAN, in_ms=5 * NEAR_MS // 6)
        table = f"toc_job_{world.library.shard(gone):04d}"
        world.library.sql(gone, f"DELETE FROM {table} WHERE job_id = {gone}")
        never = world.library.new(7000 + n).job_id
        expected[never] = [D.ORPHAN]
        arm(world, never, 20 * NEAR_MS)
        wrong = damaged(D.WRONG_SLOT)
        forget(world, wrong)
        arm(world, wrong, 100_000, other_slot(world, wrong))
        alien = damaged(D.WRONG_SLOT)  # the right slot of the wrong topic
        forget(world, alien)
        arm(world, alien, 100_000, topic="vip")
        arm(world, damaged(D.TWO_SLOTS), 100_000, other_slot(world, max(expected)))
        moved = damaged(D.MOVED)
        set_row(world, moved, "action_time = '2040-01-01 00:00:00.000'")
        misfit = damaged(D.MISFIT)
        set_row(world, misfit, "biz_id = biz_id + 1")
    return expected


@pytest.mark.parametrize("page", [1, 50_000])
def test_each_kind_is_found_among_others(world: World, page: int) -> None:
    """Damage of every kind at once, in a healthy mixture: all of it is found, and nothing else."""
    expected = damage_of_each_kind(world)
    seen = kinds(world, page=page)
    # A wrong slot is met by the shard of that slot; the shard of the row misses its reminder.
    for job_id, some in seen.items():
        if D.WRONG_SLOT in some:
            seen[job_id] = [kind for kind in some if kind is not D.MISSING]
    assert {k: sorted(v) for k, v in seen.items()} == expected


@pytest.mark.parametrize("rows", [1, 4, pytest.param(30, marks=deep)])
def test_in_parts_the_result_is_that_of_the_whole_shard(world: World, rows: int) -> None:
    damage_of_each_kind(world)
    one = compare(world, page=3)
    for shard in range(world.settings.shards):
        parts = one.split_shard(shard, rows)
        assert len(parts) > (2 if rows < 30 else 0)
        merged = merge_parts([one.compare_part(part) for part in parts], 1000)
        whole = one.compare_shard(shard)
        assert {f.identity_key for f in merged.findings} == {f.identity_key for f in whole.findings}
        assert merged.found == whole.found
        ignored = {"suspects": 0}
        assert merged.counts | ignored == whole.counts | ignored
        assert [mark.covered for mark in merged.marks] == [mark.covered for mark in whole.marks]


def test_a_reminder_of_a_cancelled_job_is_an_orphan_when_nobody_pops_it(world: World) -> None:
    job_id = schedule(world, 1000)
    world.center.cancel(job_id)
    world.clock.advance(1 + OVERDUE_MS / 1000 - 0.001)
    assert found(world) == []
    world.clock.advance(0.001)
    assert kinds(world) == {job_id: [D.ORPHAN]}


@pytest.mark.parametrize("ended", [False, True])
def test_stuck_in_a_prepare_queue(world: World, ended: bool) -> None:
    job_id = schedule(world, 0)
    world.slots.pop("default", [(world.slot(job_id), 1)], 30_000)
    if ended:
        set_row(world, job_id, "status = 3, due_time = NULL")
    else:  # not overdue as well
        set_row(
            world, job_id, "due_time = '2030-01-01 00:00:00', action_time = '2030-01-01 00:00:00'"
        )
    world.clock.advance(30 + OVERDUE_MS / 1000)
    assert found(world) == []
    world.clock.advance(0.001)
    (finding,) = found(world)
    assert (finding.kind, finding.job_id) == (D.STUCK, job_id)
    assert finding.out_ms == world.now_ms - OVERDUE_MS - 1


def test_overdue_and_lease_over(world: World) -> None:
    pending = schedule(world, 0)
    running = world.library.running("died", biz_id=8, type_no=world.library.report_no)
    world.clock.advance(OVERDUE_MS / 1000)
    assert found(world) == []
    world.clock.advance(0.001)
    assert kinds(world) == {pending: [D.OVERDUE]}
    world.clock.advance(LEASE_MS / 1000)
    assert kinds(world) == {pending: [D.OVERDUE], running: [D.LEASE_OVER]}


def test_a_row_in_a_table_where_nobody_looks(world: World) -> None:
    job_id = schedule(world, 100_000)
    shard = world.library.shard(job_id)
    there, here = f"toc_job_{shard ^ 1:04d}", f"toc_job_{shard:04d}"
    columns = "job_id, biz_id, type_no, status, action_time, due_time, attempts"
    world.library.sql(job_id, f"INSERT INTO {there} ({columns}) SELECT {columns} FROM {here}")
    world.library.sql(job_id, f"DELETE FROM {here}")
    (finding,) = (f for f in found(world) if f.kind is D.MISFIT)
    assert (finding.job_id, finding.shard) == (job_id, shard ^ 1)


def test_a_job_that_a_node_without_its_handler_has_put_back_is_on_its_way(world: World) -> None:
    """Due already, and reminded of in ten seconds: that is neither late nor lost."""
    job_id = schedule(world, -1000)
    forget(world, job_id)
    arm(world, job_id, 10_000)
    assert found(world) == []
    forget(world, job_id)
    arm(world, job_id, 15_001)
    assert kinds(world) == {job_id: [D.LATE]}


def test_a_reminder_at_the_end_of_a_lease_that_is_over_is_legal_for_a_while(world: World) -> None:
    """Another worker popped the job while it ended, and has put its reminder back at the lease's end."""
    job_id = world.library.ended(OutcomeKind.DONE)
    arm(world, job_id, 7_200_000)
    assert found(world) == []
    world.clock.advance(3600)
    assert kinds(world) == {job_id: [D.ORPHAN]}


def test_all_odd_rows_are_counted(world: World) -> None:
    """Those that are moved hide no misfits, and what is not kept is counted."""
    ids = [schedule(world, 50_000, biz_id=42) for _ in range(30)]
    for job_id in ids[:20]:
        set_row(world, job_id, "action_time = '2040-01-01 00:00:00.000'")
    for job_id in ids[20:]:
        set_row(world, job_id, "biz_id = biz_id + 1")
    one = compare(world, findings_max=4 * 5)
    first = one.compare_shard(world.library.shard(ids[0]))
    assert first.found == {D.MOVED: 20, D.MISFIT: 10}
    assert Counter(f.kind for f in first.findings) == {D.MOVED: 5, D.MISFIT: 5}
    assert one.recheck_findings(first).found == first.found


def test_each_wrong_place_is_a_finding(world: World) -> None:
    never = world.library.new(7).job_id
    arm(world, never, 50_000)
    arm(world, never, 60_000, topic="vip")
    places = {(f.topic, f.slot) for f in found(world) if f.job_id == never}
    assert places == {("default", world.slot(never)), ("vip", world.slot(never, "vip"))}


# ---- marks


def lose_a_slot(world: World) -> tuple[list[int], int]:
    """Forty loaded jobs, those of a slot with their mark standing; then its StoreQueue is gone."""
    ids = [schedule(world, 100_000 + n, biz_id=n) for n in range(40)]
    loader = world.loader()
    loader.load_due_shards()
    while loader.load_due_shards():
        pass
    slot = world.slot(ids[0])
    world.slots.connected_client().delete(
        redis_keys.store_queue_key(world.settings.namespace, "default", slot)
    )
    return [job_id for job_id in ids if world.slot(job_id) == slot], slot


def test_a_mark_ahead_of_what_its_slot_holds(world: World) -> None:
    lost, slot = lose_a_slot(world)
    expected = {job_id: [D.MISSING] for job_id in lost} | {0: [D.MARK_AHEAD]}
    assert kinds(world) == expected
    (finding,) = (f for f in found(world) if f.kind is D.MARK_AHEAD)
    assert (finding.topic, finding.slot, finding.shard) == ("default", slot, slot)
    assert kinds(world, findings_max=4)[0] == [D.MARK_AHEAD]
    for job_id in lost[: len(lost) // 2 + 1]:  # half of them: then the mark is right
        arm(world, job_id, 100_000)
    assert D.MARK_AHEAD not in chain.from_iterable(kinds(world).values())


def test_a_mark_of_another_server_is_nobodys_fault(world: World) -> None:
    lost, slot = lose_a_slot(world)
    mark = LoadMark("load", "another", world.now_ms + HORIZON_MS, 1)
    world.slots.write_start_mark("default", slot, slot, str(mark))
    assert kinds(world) == {job_id: [D.MISSING] for job_id in lost}


# ---- both sides move


def healed(world: World, first: ShardComparison) -> ShardComparison:
    return compare(world).recheck_findings(first)


def test_what_heals_until_the_second_look_does_not_count(world: World) -> None:
    ids = [schedule(world, 50_000, biz_id=42) for _ in range(4)]
    for job_id in ids:
        forget(world, job_id)
    shard = world.library.shard(ids[0])
    first = compare(world).compare_shard(shard)
    assert first.found == {D.MISSING: 4}
    arm(world, ids[0], 50_000)  # its client was slow
    world.center.cancel(ids[1])  # it has ended
    arm(world, ids[2], 60_000)  # now it is another disagreement, which has been seen but once
    again = healed(world, first)
    assert [(f.kind, f.job_id) for f in again.findings] == [(D.MISSING, ids[3])]
    assert again.found == {D.MISSING: 1}


def test_what_is_only_counted_is_believed_with_the_kept_ones(world: World) -> None:
    ids = [schedule(world, 50_000, biz_id=42) for _ in range(9)]
    for job_id in ids:
        forget(world, job_id)
    one = compare(world, findings_max=12)
    first = one.compare_shard(world.library.shard(ids[0]))
    assert (first.found[D.MISSING], len(first.findings)) == (9, 3)
    assert one.recheck_findings(first).found[D.MISSING] == 9
    for finding in first.findings[:2]:
        arm(world, finding.job_id, 50_000)
    assert one.recheck_findings(first).found[D.MISSING] == 1


def test_many_jobs_of_one_millisecond(world: World) -> None:
    """They are more than a page: rows and reminders still pair off."""
    ids = [schedule(world, 50_000, biz_id=42) for _ in range(25)]
    forget(world, ids[7])
    assert kinds(world, page=4) == {ids[7]: [D.MISSING]}


def test_strangers_in_the_queues_are_counted(world: World) -> None:
    client, key = (
        world.slots.connected_client(),
        redis_keys.store_queue_key(world.settings.namespace, "default", 1),
    )
    job_id = schedule(world, 50_000)
    client.zadd(key, {"order-42": 5, str(2**70): 7})
    client.zadd(
        redis_keys.store_queue_key(world.settings.namespace, "default", 2), {"x": float("inf")}
    )
    assert counts(world)["foreign"] == 3
    client.zadd(key, {str(job_id + 1): float("inf"), str(job_id + 2): -1.5})
    assert {job for job in kinds(world) if job} == {job_id + 1, job_id + 2}


# ---- a whole run


def reconciled(world: World, **changes: object) -> Reconciliation:
    own = world.settings.reconcile.model_copy(update=changes)
    settings = world.settings.model_copy(update={"reconcile": own})
    run = Reconciliation(settings, None, repair=False, actor="test", clock=world.clock)
    run.run()
    return run


def test_a_whole_run_sums_up(world: World) -> None:
    ids = mixture(world)
    for loader in (world.loader(), world.loader("vip")):
        loader.load_due_shards()
    assert reconciled(world).outcome.verdict == 0
    wrong = schedule(world, 77_000, biz_id=77)
    forget(world, wrong)
    arm(world, wrong, 77_000, other_slot(world, wrong))
    live = ids[40]
    forget(world, live)
    outcome = reconciled(world).outcome
    assert outcome.found == {D.MISSING: 1, D.WRONG_SLOT: 1}
    assert {f.job_id: f.kind for f in outcome.findings} == {live: D.MISSING, wrong: D.WRONG_SLOT}
    assert (outcome.compared, outcome.verdict) == (4, 1)


def test_a_slot_is_shared_by_shards(world: World) -> None:
    """Topic vip has two slots for four shards: each reminder is one shard's, strangers one shard's."""
    ids = [schedule(world, 50_000, biz_id=n, biz_type="vip.close") for n in range(30)]
    shift = 1 << (SEQUENCE_BITS + ROUTING_BITS)
    ghosts = {job_id + shift for job_id in ids}
    for job_id in ghosts:
        arm(world, job_id, 9000, topic="vip")
    outcome = reconciled(world).outcome
    assert outcome.counts["armed"] == 60
    assert {f.job_id for f in outcome.findings} == ghosts
    assert outcome.found == {D.ORPHAN: 30}
