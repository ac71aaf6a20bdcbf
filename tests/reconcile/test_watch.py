"""The watch: what it finds within a round, when it counts, whose it is, and how little it asks."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.contract.library import SHARDS, Library
from tests.integration.conftest import _migrated, own_redis, small_library
from tests.integration.conftest import world as _world
from tests.integration.test_database_away import own_mysql
from tests.integration.world import World
from tests.reconcile.test_compare import arm, forget, schedule
from tests.servers import Server
from tests.servers.endpoint import Endpoint
from tests.servers.mysql import execute
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.domain.ids import ROUTING_BITS, SEQUENCE_BITS
from toc.domain.job import Status
from toc.errors import StoreUnavailable, TimerUnavailable
from toc.handlers.registry import Registry
from toc.node.dev_servers import PrivateRedis
from toc.node.node import Node
from toc.reconcile import watch as module
from toc.reconcile.compare import ShardComparer
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.findings import ShardComparison
from toc.reconcile.repair import Repairer
from toc.reconcile.watch import ShardWatch, limit_settings_for_watch
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.timer import redis_keys

__all__ = ["_migrated", "_world", "own_mysql", "own_redis", "small_library"]

WATCH_S, GRACE_S = 60.0, 10.0
PACE_S = WATCH_S / SHARDS
ONE_SHARD = 42  # a biz_id; its jobs lie in one shard


@pytest.fixture
def world(_world: World) -> World:
    """On SQLite and on MySQL."""
    return _world


@pytest.fixture
def small(small_library: Library, own_redis: Server) -> Iterator[World]:
    """On SQLite and a Redis of its own, which may go away."""
    world = World(small_library, own_redis.url)
    yield world
    if not own_redis.is_running:
        own_redis.start()
    world.close()


class Spied(ShardComparer):
    """A real compare; `looks` says which shards were compared, and when by the world's clock."""

    def __init__(self, world: World, **changes: Any) -> None:
        settings = world.settings.model_copy(
            update={"reconcile": world.settings.reconcile.model_copy(update=changes)}
        )
        library = world.library
        find_name = library.database_metadata.types.find_name
        super().__init__(
            DatabasesAndRedis(
                library.databases, world.slots, limit_settings_for_watch(settings), find_name
            )
        )
        self._clock = world.clock
        self.looks: list[tuple[float, int]] = []
        self.second_looks: list[tuple[float, int]] = []
        self.takes_s = 0.0
        self.raises: dict[int, Exception] = {}

    def compare_shard(self, shard: int, *, whole: bool = True) -> ShardComparison:
        self._clock.advance(self.takes_s)
        self.looks.append((self._clock.monotonic_s(), shard))
        if shard in self.raises:
            raise self.raises[shard]
        return super().compare_shard(shard, whole=whole)

    def recheck_findings(self, compared: ShardComparison) -> ShardComparison:
        self._clock.advance(self.takes_s)
        self.second_looks.append((self._clock.monotonic_s(), compared.shard))
        return super().recheck_findings(compared)


def watching(
    world: World, compare: ShardComparer | None = None, *, owned: range = range(SHARDS), **more: Any
) -> ShardWatch:
    watch = ShardWatch(
        0,
        compare or Spied(world),
        world.clock,
        **{"watch_s": WATCH_S, "grace_s": GRACE_S, **more},
    )
    watch.set_shards(owned, 1)
    watch.run_once()  # it takes them in
    return watch


def go(world: World, watch: ShardWatch, seconds: float) -> None:
    """Runs it for so long, by the world's clock, as its loop does."""
    end_s = world.clock.monotonic_s() + seconds
    while True:
        wait_s = watch.run_once()
        left_s = end_s - world.clock.monotonic_s()
        if wait_s > left_s:
            world.clock.advance(max(0.0, left_s))
            return
        world.clock.advance(wait_s)


def a_round(world: World, watch: ShardWatch) -> None:
    """Each shard once, and a second look at the last of them."""
    go(world, watch, WATCH_S + GRACE_S)


def repairing(world: World) -> dict[str, Any]:
    library = world.library
    find_name = library.database_metadata.types.find_name
    sides = DatabasesAndRedis(library.databases, world.slots, world.settings, find_name)
    return {"repair": Repairer(sides, "watch").repair_findings}


class Counted:
    """How much the counters have grown since."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for metric in REGISTRY.collect():
            if metric.name in ("toc_disagreements", "toc_disagreements_repaired"):
                for sample in metric.samples:
                    if sample.name.endswith("_total"):
                        name = f"{metric.name} {sample.labels['kind']}"
                        found[name] += round(sample.value)
            elif metric.name == "toc_shards_compared":
                found[metric.name] += round(metric.samples[0].value)
        return found

    @property
    def found(self) -> dict[str, int]:
        return self._kinds("toc_disagreements")

    @property
    def repaired(self) -> dict[str, int]:
        return self._kinds("toc_disagreements_repaired")

    @property
    def compared(self) -> int:
        return (self._now() - self._before)["toc_shards_compared"]

    def _kinds(self, name: str) -> dict[str, int]:
        grown = self._now() - self._before
        return {
            key.partition(" ")[2]: n for key, n in grown.items() if key.partition(" ")[0] == name
        }


def left(kind: D) -> float | None:
    """The gauge."""
    labels = {"server": "database_0", "kind": str(kind)}
    return REGISTRY.get_sample_value("toc_disagreements_left", labels)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# ---- damage


def healthy(world: World) -> list[int]:
    """Loaded jobs in all shards, due long after the end of each test."""
    ids = [schedule(world, 800_000, biz_id=n) for n in range(60)]
    world.loader().load_due_shards()
    return ids


def lose(world: World, *job_ids: int) -> None:
    for job_id in job_ids:
        forget(world, job_id)


def remind(world: World, job_id: int) -> None:
    """As whoever lost it would have."""
    due_ms = world.library.row(job_id).due_ms
    assert due_ms is not None
    arm(world, job_id, due_ms - world.now_ms)


def delay(world: World, job_id: int) -> None:
    """Its reminder comes a second late: no verb does that."""
    key = redis_keys.store_queue_key(world.settings.namespace, "default", world.slot(job_id))
    world.slots.connected_client().zadd(key, {str(job_id): world.now_ms + 801_000})


def haunt(world: World, job_id: int) -> int:
    """A reminder of a job that never was, in the same shard and slot."""
    ghost = job_id + (1 << (SEQUENCE_BITS + ROUTING_BITS))
    arm(world, ghost, 700_000)
    return ghost


def damage(world: World) -> dict[D, list[int]]:
    ids = healthy(world)
    lose(world, *ids[:5])
    for job_id in ids[5:8]:
        delay(world, job_id)
    ghosts = [haunt(world, job_id) for job_id in ids[8:12]]
    return {D.MISSING: ids[:5], D.LATE: ids[5:8], D.ORPHAN: ghosts}


NUMBERS = {"missing": 5, "late": 3, "orphan": 4}


# ---- what it finds


def test_a_healthy_system_has_none(world: World, caplog: pytest.LogCaptureFixture) -> None:
    healthy(world)
    counted, watch = Counted(), watching(world)
    a_round(world, watch)
    assert counted.compared == SHARDS
    assert (counted.found, watch.unrepaired_counts, warnings(caplog)) == ({}, {}, [])


def test_damage_is_found_within_one_round_and_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = damage(world)
    counted, watch = Counted(), watching(world)
    a_round(world, watch)
    assert counted.found == NUMBERS
    assert watch.unrepaired_counts == {D.MISSING: 5, D.LATE: 3, D.ORPHAN: 4}
    assert [left(kind) for kind in (D.MISSING, D.LATE, D.ORPHAN, D.STUCK)] == [5, 3, 4, 0]
    assert counted.repaired == {}
    assert world.reminder(damaged[D.MISSING][0]) is None
    said = warnings(caplog)
    for kind, job_ids in damaged.items():
        lines = [line for line in said if f": {kind}: " in line]
        shards = {world.library.shard(job_id) for job_id in job_ids}
        assert len(lines) == len(shards)
        assert sum(int(line.partition(f"{kind}: ")[2].partition(",")[0]) for line in lines) == len(
            job_ids
        )
        assert any(f"`toc explain {job_id}`" in line for job_id in job_ids for line in lines)
    go(world, watch, WATCH_S)
    assert counted.found == {kind: 2 * number for kind, number in NUMBERS.items()}
    assert left(D.MISSING) == 5


def test_it_repairs_when_told_to(world: World, caplog: pytest.LogCaptureFixture) -> None:
    damaged = damage(world)
    counted, watch = Counted(), watching(world, **repairing(world))
    a_round(world, watch)
    assert counted.found == counted.repaired == NUMBERS
    assert watch.unrepaired_counts == {}
    assert [left(kind) for kind in (D.MISSING, D.LATE, D.ORPHAN)] == [0, 0, 0]
    assert any("are repaired" in line for line in warnings(caplog))
    for job_id in damaged[D.MISSING] + damaged[D.LATE]:
        due_ms = world.library.row(job_id).due_ms
        assert due_ms is not None
        assert world.reminder(job_id) == due_ms - world.now_ms
    assert [world.reminder(job_id) for job_id in damaged[D.ORPHAN]] == [None] * 4
    before, after = counted.found, Counted()
    a_round(world, watch)
    assert (after.found, after.repaired) == ({}, {})
    assert counted.found == before


def test_what_heals_within_the_grace_does_not_count(
    small: World, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [schedule(small, 800_000, ONE_SHARD) for _ in range(3)]
    shard = small.library.shard(ids[0])
    lose(small, *ids)
    compare = Spied(small)
    counted, watch = Counted(), watching(small, compare)
    go(small, watch, PACE_S * (shard + 1))
    assert compare.looks[-1][1] == shard
    for job_id in ids:
        remind(small, job_id)
    a_round(small, watch)
    assert [seen for _, seen in compare.second_looks] == [shard]
    assert (counted.found, watch.unrepaired_counts, warnings(caplog)) == ({}, {}, [])
    assert counted.compared >= SHARDS


def test_the_second_look_comes_a_grace_later(small: World) -> None:
    ids = [schedule(small, 800_000, ONE_SHARD) for _ in range(3)]
    lose(small, *ids)
    compare = Spied(small)
    counted, watch = Counted(), watching(small, compare)
    a_round(small, watch)
    shard = small.library.shard(ids[0])
    (seen_s,) = [at_s for at_s, seen in compare.looks if seen == shard]
    assert compare.second_looks == [(seen_s + GRACE_S, shard)]
    assert counted.found == {"missing": 3}


def test_a_shard_that_waits_for_its_second_look_is_not_taken_again(small: World) -> None:
    lose(small, schedule(small, 800_000, ONE_SHARD))
    compare = Spied(small)
    counted, watch = Counted(), watching(small, compare, watch_s=1)
    go(small, watch, 9)
    shard = small.library.shard(schedule(small, 0, ONE_SHARD))
    assert [seen for _, seen in compare.looks].count(shard) == 1
    assert len({seen for _, seen in compare.looks}) == SHARDS
    go(small, watch, 4)
    assert counted.found == {"missing": 1}


def test_few_wait_for_their_second_look(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    lose(small, *healthy(small))
    compare = Spied(small)
    watch = watching(small, compare, watch_s=1)
    go(small, watch, 5)
    assert len(compare.looks) == 2
    go(small, watch, 30)
    assert {seen for _, seen in compare.looks} == set(range(SHARDS))


# ---- how little it asks


def test_a_round_is_spread_evenly(small: World) -> None:
    compare = Spied(small)
    watch = watching(small, compare)
    go(small, watch, 3 * WATCH_S)
    assert len(compare.looks) == 3 * SHARDS
    assert [shard for _, shard in compare.looks] == [*range(SHARDS)] * 3
    times = [at_s for at_s, _ in compare.looks]
    assert {round(later - sooner, 3) for sooner, later in pairwise(times)} == {PACE_S}


@pytest.mark.parametrize(
    ("nodes", "watches", "takes_s", "rest_s"),
    [
        (1, 1, 0.3, 59.7), (3, 1, 0.3, 59.7), (30, 1, 0.3, 89.7), (1, 2, 0.3, 119.7), (30, 2, 0.3, 179.7),
        # Its own idleness stretches a round to six times its length, what it costs others without end.
        (1, 1, 3.0, 297.0), (1, 8, 3.0, 297.0), (2, 8, 3.0, 477.0), (3, 8, 3.0, 600.0),
    ],
)  # fmt: skip
def test_it_rests_in_proportion_to_its_work(
    small: World, nodes: int, watches: int, takes_s: float, rest_s: float
) -> None:
    compare = Spied(small)
    watch = watching(small, compare, watch_s=200, watches=watches)
    compare.takes_s = takes_s
    watch.set_shards(range(SHARDS), nodes)
    small.clock.advance(50)
    assert watch.run_once() == pytest.approx(rest_s)
    watch.set_shards(range(SHARDS), 1)  # whoever wakes it does not shorten the rest
    assert watch.run_once() == pytest.approx(rest_s)
    assert len(compare.looks) == 1


def test_it_rests_after_a_second_look_and_after_silence(small: World) -> None:
    lose(small, schedule(small, 800_000, ONE_SHARD))
    compare = Spied(small)
    watch = watching(small, compare, watch_s=40, grace_s=0)
    while not watch._rechecks:
        small.clock.advance(watch.run_once())
    compare.takes_s = 0.1
    assert watch.run_once() == pytest.approx(19.9)
    assert len(compare.second_looks) == 1
    small.clock.advance(19.9)
    compare.takes_s = 0.2
    compare.raises = dict.fromkeys(range(SHARDS), StoreUnavailable(0, OSError("gone")))
    assert watch.run_once() == pytest.approx(39.8)


def test_it_reads_small_pages_and_keeps_little() -> None:
    own = limit_settings_for_watch(
        Settings(reconcile={"page": 200_000, "findings_max": 200_000})
    ).reconcile
    assert (own.page, own.findings_max) == (
        module.PAGE_MAX,
        64 * module.FINDINGS_MAX,
    )  # of 64 shards
    own = limit_settings_for_watch(Settings(reconcile={"page": 3, "findings_max": 2})).reconcile
    assert (own.page, own.findings_max) == (3, 2)


def test_what_is_not_kept_is_counted(small: World) -> None:
    lose(small, *[schedule(small, 800_000, ONE_SHARD) for _ in range(9)])
    counted = Counted()
    watch = watching(small, Spied(small, findings_max=16), **repairing(small))
    a_round(small, watch)
    assert (counted.found["missing"], counted.repaired["missing"]) == (9, 4)
    assert left(D.MISSING) == 5


# ---- whose they are


def test_it_compares_only_what_it_owns(small: World) -> None:
    compare = Spied(small)
    watch = watching(small, compare, owned=range(2))
    go(small, watch, WATCH_S)
    assert {shard for _, shard in compare.looks} == {0, 1}
    compare.looks.clear()
    watch.set_shards(range(1, 4), 1)
    go(small, watch, WATCH_S)
    # First those that are new to it, then the one of before.
    assert [shard for _, shard in compare.looks] == [2, 3, 1]
    compare.looks.clear()
    watch.set_shards((), 1)
    go(small, watch, WATCH_S)
    assert (compare.looks, watch.oldest_compare_age_s) == ([], 0)


def test_a_round_goes_on_when_the_shares_change(small: World) -> None:
    """Begun anew at each change, the last shards might never be compared."""
    compare = Spied(small)
    watch = watching(small, compare)
    for _ in range(SHARDS):
        go(small, watch, PACE_S)
        watch.set_shards(range(SHARDS), 1)
    assert {shard for _, shard in compare.looks} == set(range(SHARDS))


def test_what_is_given_away_is_forgotten(small: World) -> None:
    job_id = schedule(small, 800_000, ONE_SHARD)
    shard = small.library.shard(job_id)
    lose(small, job_id)
    counted, watch = Counted(), watching(small)
    a_round(small, watch)
    assert left(D.MISSING) == 1
    compare = Spied(small)
    watch._compare = compare
    while shard not in [seen for _, seen in compare.looks]:
        small.clock.advance(watch.run_once())
    watch.set_shards([other for other in range(SHARDS) if other != shard], 1)
    watch.run_once()
    assert left(D.MISSING) == 0
    a_round(small, watch)
    assert (compare.second_looks, counted.found) == ([], {"missing": 1})


def test_the_age_is_that_of_the_oldest_look(small: World) -> None:
    watch = watching(small)
    go(small, watch, WATCH_S)
    assert watch.oldest_compare_age_s == pytest.approx(WATCH_S - PACE_S)
    label = {"server": "database_0"}
    assert REGISTRY.get_sample_value("toc_watch_age_seconds", label) == pytest.approx(
        watch.oldest_compare_age_s
    )
    small.clock.advance(1000)
    assert watch.oldest_compare_age_s == pytest.approx(WATCH_S - PACE_S + 1000)


# ---- what does not answer


def test_without_redis_nothing_counts(
    small: World, own_redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [schedule(small, 800_000, ONE_SHARD) for _ in range(3)]
    shard = small.library.shard(ids[0])
    lose(small, *ids)
    compare = Spied(small)
    counted, watch = Counted(), watching(small, compare, **repairing(small))
    go(small, watch, PACE_S * (shard + 1))
    own_redis.stop()  # between the two looks
    compared, age_s = counted.compared, watch.oldest_compare_age_s
    go(small, watch, WATCH_S)
    assert [seen for _, seen in compare.second_looks] == [shard]
    assert len(compare.looks) > SHARDS
    assert (counted.compared, counted.found, watch.unrepaired_counts) == (compared, {}, {})
    assert watch.oldest_compare_age_s >= age_s + WATCH_S - PACE_S
    (line,) = [line for line in warnings(caplog) if line.startswith("watch: ")]  # seldom
    assert "is left out of this round: Redis" in line
    own_redis.start()
    small.loader().load_due_shards()  # it is empty, and its mark is gone
    a_round(small, watch)
    assert (counted.found, watch.unrepaired_counts) == ({}, {})
    assert counted.compared >= compared + SHARDS
    assert watch.oldest_compare_age_s < WATCH_S


def test_a_database_goes_away_in_the_middle(
    own_mysql: Server, redis_server: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"toc_{secrets.token_hex(6)}"
    execute(own_mysql, f"CREATE DATABASE {name}")
    library = Library([f"{own_mysql.url}/{name}"])
    world = World(library, redis_server.url)
    try:
        _goes_away(world, own_mysql, caplog)
    finally:
        if not own_mysql.is_running:
            own_mysql.start()
        world.close()
        library.close()


def _goes_away(world: World, mysql: Server, caplog: pytest.LogCaptureFixture) -> None:
    ids = healthy(world)
    lose(world, *ids[:20])
    compare = Spied(world)
    counted, watch = Counted(), watching(world, compare, **repairing(world))
    go(world, watch, 1.5 * PACE_S)
    assert [shard for _, shard in compare.looks] == [0]
    mysql.stop()  # between the two looks at the first shard
    go(world, watch, WATCH_S)
    assert [shard for _, shard in compare.second_looks] == [0]
    assert {shard for _, shard in compare.looks} == set(range(SHARDS))
    assert (counted.compared, counted.found, counted.repaired, watch.unrepaired_counts) == (
        0,
        {},
        {},
        {},
    )
    (line,) = [line for line in warnings(caplog) if line.startswith("watch: ")]  # seldom
    assert "is left out of this round: database 0" in line
    mysql.start()
    a_round(world, watch)
    assert counted.found == counted.repaired == {"missing": 20}
    assert None not in [world.reminder(job_id) for job_id in ids]


@pytest.mark.parametrize(
    "error", [StoreUnavailable(0, OSError("gone")), TimerUnavailable(OSError("gone"))]
)
def test_one_that_does_not_answer_holds_up_no_other(small: World, error: Exception) -> None:
    ids = healthy(small)
    lose(small, *ids[:8])
    dumb = small.library.shard(ids[0])
    compare = Spied(small)
    compare.raises = {dumb: error}
    counted, watch = Counted(), watching(small, compare)
    a_round(small, watch)
    elsewhere = [job_id for job_id in ids[:8] if small.library.shard(job_id) != dumb]
    assert counted.found == {"missing": len(elsewhere)}
    compare.raises.clear()
    a_round(small, watch)
    assert watch.unrepaired_counts == {D.MISSING: 8}


def test_redis_goes_away_while_it_repairs(small: World, own_redis: Server) -> None:
    lose(small, *[schedule(small, 800_000, ONE_SHARD) for _ in range(5)])
    repair = repairing(small)["repair"]

    def breaking(findings: Any) -> Iterator[Any]:
        for number, mend in enumerate(repair(findings[:2])):
            yield mend
            if number:
                own_redis.stop()
        yield from repair(findings[2:])

    counted, watch = Counted(), watching(small, repair=breaking)
    a_round(small, watch)
    assert (counted.found, counted.repaired) == ({"missing": 5}, {"missing": 2})
    assert (watch.unrepaired_counts, left(D.MISSING)) == ({D.MISSING: 3}, 3)


def test_a_stop_ends_the_repairs(small: World) -> None:
    lose(small, *[schedule(small, 800_000, ONE_SHARD) for _ in range(5)])
    repair, watch = repairing(small)["repair"], watching(small)

    def stopped(findings: Any) -> Iterator[Any]:
        for mend in repair(findings):
            watch.signal_stop()
            yield mend

    watch._repair = stopped
    a_round(small, watch)
    assert watch.unrepaired_counts == {D.MISSING: 4}


# ---- in a node


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Two SQLite databases and a Redis of their own, as `toc dev` has them; rounds of a second."""
    with PrivateRedis(tmp_path):
        made = Settings(
            databases=(f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db"),
            shards=4,
            redis_url=f"unix://{tmp_path}/redis.sock",
            namespace=f"t{secrets.token_hex(4)}",
            timer={"load_tick_s": 60},
            reconcile={"watch_s": 1, "grace_s": 0},
        )
        migrate.upgrade(made)
        yield made


Start = Callable[[Settings], Node]


@pytest.fixture
def start() -> Iterator[Start]:
    nodes: list[Node] = []

    def begin(settings: Settings) -> Node:
        handlers = Registry()
        handlers.handler("t")(lambda job: None)
        nodes.append(Node(settings, handlers=handlers))
        nodes[-1].start()
        return nodes[-1]

    yield begin
    for node in nodes:
        node.stop()


def lost_jobs(settings: Settings) -> list[int]:
    """Jobs that the loader has passed by, and whose reminders are gone."""
    with TimeoutCenter(settings) as center:
        ids = center.schedule_many(
            [{"biz_id": n, "action_time": timedelta(minutes=5)} for n in range(40)], biz_type="t"
        )
        reminders = center._open_connections().reminders
        assert reminders is not None
        for slot in range(settings.shards):
            reminders.connected_client().delete(
                redis_keys.store_queue_key(settings.namespace, "default", slot)
            )
        return ids


def part(node: Node, name: str) -> Any:
    return next((part for part in node.health() if part.part == name), None)


def test_a_node_watches_all_its_databases(start: Start, settings: Settings) -> None:
    node = start(settings)
    assert part(node, "watch").state == "up"
    assert node.work_sources is not None
    loaders = list(node.work_sources.loaders.values())
    wait_until(lambda: all(loader._step for loader in loaders), "the loader's first step")
    lost_jobs(settings)
    wait_until(lambda: "40 missing" in part(node, "watch").how, "the watch to find them")
    assert part(node, "watch").state == "degraded"


def test_a_node_repairs_when_told_to(start: Start, settings: Settings) -> None:
    own = settings.reconcile.model_copy(update={"repair": True})
    node = start(settings.model_copy(update={"reconcile": own}))
    assert node.work_sources is not None
    loaders = list(node.work_sources.loaders.values())
    wait_until(lambda: all(loader._step for loader in loaders), "the loader's first step")
    counted = Counted()
    ids = lost_jobs(settings)
    wait_until(lambda: counted.repaired.get("missing") == len(ids), "the repair")
    with TimeoutCenter(settings) as center:
        assert {center.get(job_id).status for job_id in ids} == {Status.PENDING}
        reminders = center._open_connections().reminders
        assert reminders is not None
        depths = reminders.read_slot_depths("default", range(settings.shards))
        assert sum(depth[1] for depth in depths) == len(ids)
    wait_until(lambda: part(node, "watch").state == "up", "the watch to be content")


@pytest.mark.parametrize("change", [{"reconcile": {"watch_s": "none"}}, {"redis_url": "none"}])
def test_a_node_without_a_watch(start: Start, settings: Settings, change: dict[str, Any]) -> None:
    node = start(Settings(**dict(settings) | change))
    assert node.watches == []
    assert part(node, "watch") is None
