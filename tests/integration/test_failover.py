"""Redis fails over to older data, restarts, is wiped or fills up: everything near comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contract.library import Library
from tests.integration.world import World
from tests.scripts.rig import id_in_slot
from tests.scripts.sentinel import SERVICE, start_sentinel
from tests.servers import RedisCluster, Server, ServerUnavailableError, start_redis
from tests.servers.process import free_port
from tests.servers.redis import start_redis_cluster, start_redis_replica
from tests.worker.waiting import wait_until
from toc.errors import TimerUnavailable
from toc.timer import circuit_breaker
from toc.timer import head_watchers as wakeups
from toc.timer.head_watchers import WakeupListener
from toc.timer.loader import Loader, LoadMark
from toc.timer.redis_keys import store_queue_key
from toc.timer.reminders import Reminder, Reminders

MINUTE = timedelta(minutes=1)
MANY = 60


def or_skip(start: Callable[[], Any]) -> Any:
    try:
        return start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])


def texts(world: World) -> dict[int, dict[int, str]]:
    """All marks: slot -> shard -> text."""
    found = world.slots.read_marks("default", range(4))
    return {slot: marks.by_shard for slot, marks in found.items()}


def goes_on(world: World, loader: Loader, jobs: Mapping[int, int]) -> None:
    """Steps, as ticks would, until every job has its reminder."""

    def complete() -> bool:
        try:
            loader.load_due_shards()
            return all(world.reminder(job_id) == in_ms for job_id, in_ms in jobs.items())
        except TimerUnavailable:
            return False

    wait_until(complete, "all reminders are back")


def scheduled(world: World, first: int, amount: int = MANY) -> dict[int, int]:
    """Jobs that are due from now on, a second apart; when, in ms, by id."""
    return {
        world.center.schedule(n, timedelta(seconds=n)): n * 1000
        for n in range(first, first + amount)
    }


def in_step(master: Server) -> None:
    """Waits until the replica has everything."""
    with redis.Redis.from_url(master.url) as client:
        client.config_set("repl-ping-replica-period", 1)  # a write, as far as replicas know
        wait_until(lambda: offsets(client) == 1, "the replica has caught up")


def offsets(client: redis.Redis) -> int:
    """How many distances there are between a master and what its replicas have."""
    info = client.info("replication")
    return len({info["master_repl_offset"], info["slave0"]["offset"]})


def cut_off(master: Server, replica: Server) -> None:
    """From now on the replica misses what its master is told."""
    with redis.Redis.from_url(replica.url) as client:
        client.config_set("masteruser", "nobody")  # to be turned away when it comes again
        client.config_set("masterauth", "wrong")
    with redis.Redis.from_url(master.url) as client:
        client.client_kill_filter(_type="replica")
        assert client.info("replication")["connected_slaves"] == 0


# ---- one Redis and its replica


class Pair:
    """A master and a replica behind one address, as a virtual one is, that can be turned around."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.master = start_redis(directory / "master", "7", port=self.port)
        self.replica = start_redis_replica(directory / "replica", self.master)

    def lag(self) -> None:
        in_step(self.master)
        cut_off(self.master, self.replica)

    def fail_over(self) -> None:
        """The master is lost; what the replica has got so far serves at the address."""
        self.master.kill()
        with redis.Redis.from_url(self.replica.url) as client:
            client.replicaof("NO", "ONE")
            client.save()
        self.replica.kill()
        directory = str((self.directory / "replica").absolute())
        self.master = start_redis(
            self.directory / "promoted", "7", "--dir", directory, port=self.port
        )

    def stop(self) -> None:
        for server in (self.replica, self.master):
            server.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = or_skip(lambda: Pair(tmp_path / "pair"))
    yield pair
    pair.stop()


@pytest.mark.invariant("I1")
def test_a_replica_that_lagged_is_filled_up(small_library: Library, pair: Pair) -> None:
    world = World(small_library, f"redis://127.0.0.1:{pair.port}/0")
    loader = world.loader()
    jobs = scheduled(world, 0)
    far = world.library.pending(999, in_ms=1_000_000)  # the loader's, when it comes near
    goes_on(world, loader, jobs)
    before = texts(world)
    pair.lag()
    jobs |= scheduled(world, MANY)
    world.clock.advance(200)
    jobs = {job_id: in_ms - 200_000 for job_id, in_ms in jobs.items()} | {far: 800_000}
    goes_on(world, loader, jobs)
    assert texts(world) != before
    pair.fail_over()
    assert texts(world) == before  # older data, and marks that agree
    assert world.reminders() == MANY
    loader.load_due_shards()
    assert {job_id: world.reminder(job_id) for job_id in jobs} == jobs
    assert loader.load_due_shards() == 0
    world.close()


@pytest.mark.invariant("I1")
def test_a_replica_reached_by_another_url_is_filled_up(small_library: Library, pair: Pair) -> None:
    world = World(small_library, pair.master.url)
    world.loader().load_due_shards()
    pair.lag()
    jobs = scheduled(world, 0)
    pair.master.kill()
    with redis.Redis.from_url(pair.replica.url) as client:
        client.replicaof("NO", "ONE")
    moved = World(small_library, pair.replica.url, namespace=world.settings.namespace)
    assert moved.reminders() == 0
    assert moved.loader().load_due_shards() == MANY
    assert {job_id: moved.reminder(job_id) for job_id in jobs} == jobs
    moved.close()
    world.center.close()
    world.slots.close()


@pytest.mark.invariant("I1")
def test_a_restart_from_an_older_file_is_filled_up(small_library: Library, tmp_path: Path) -> None:
    server = or_skip(lambda: start_redis(tmp_path / "redis", "7"))
    with server:
        world = World(small_library, server.url)
        loader = world.loader()
        jobs = scheduled(world, 0)
        loader.load_due_shards()
        world.slots.connected_client().save()
        jobs |= scheduled(world, MANY)
        server.kill()
        server.start()
        assert world.reminders() == MANY
        loader.load_due_shards()
        assert {job_id: world.reminder(job_id) for job_id in jobs} == jobs
        world.close()


@pytest.mark.invariant("I1")
def test_sentinels_promote_a_replica_that_lagged(small_library: Library, pair: Pair) -> None:
    sentinel = start_sentinel(pair.directory / "sentinel", pair.master)
    with sentinel:
        host = sentinel.url.partition("://")[2]
        world = World(small_library, f"redis+sentinel://{host}/{SERVICE}")
        loader = world.loader()
        jobs = scheduled(world, 0)
        loader.load_due_shards()
        pair.lag()
        jobs |= scheduled(world, MANY)
        pair.master.kill()
        goes_on(world, loader, jobs)
        assert world.slots.is_available
        world.close()


# ---- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    directory = tmp_path_factory.mktemp("failover")
    # The others' slots are served while one is without a master.
    alone = ("--cluster-require-full-coverage", "no")
    with or_skip(partial(start_redis_cluster, directory, *alone, replicas=True)) as cluster:
        yield cluster


@pytest.fixture
def spread(
    small_library: Library, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A world on a cluster; whatever its nodes are by then, all of them are up at the end."""
    monkeypatch.setattr(circuit_breaker, "PROBE_AFTER_S", 0.1)
    world = World(small_library, cluster.url.replace("redis://", "redis+cluster://"))
    url, namespace = world.settings.redis_url, world.settings.namespace
    world.slots = Reminders(
        url, namespace, world.clock, world.settings.slot_amount_of, timeout_s=0.5
    )
    yield world
    for node in cluster.nodes:
        node.thaw() if node.is_running else node.start()
    wait_until(lambda: served(world.slots), "the cluster is whole again")
    world.close()


def served(slots: Reminders) -> bool:
    try:
        slots.delete_marks("default", range(4))
    except TimerUnavailable:
        return False
    return True


def node_of(world: World, cluster: RedisCluster, slot: int) -> Server:
    client: Any = world.slots.connected_client()
    port = client.get_node_from_key(store_queue_key(world.settings.namespace, "default", slot)).port
    return next(node for node in cluster.nodes if port_of(node) == port)


def replica_of(cluster: RedisCluster, master: Server) -> Server:
    for node in cluster.nodes:
        with redis.Redis.from_url(node.url) as client:
            info = client.info("replication")
            if info["role"] == "slave" and info["master_port"] == port_of(master):
                return node
    raise AssertionError(f"{master} has no replica")


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("how", [Server.kill, Server.freeze], ids=["is killed", "hangs"])
def test_a_replica_in_a_cluster_takes_over_with_older_data(
    spread: World, cluster: RedisCluster, how: Callable[[Server], None]
) -> None:
    loader = spread.loader()
    jobs = scheduled(spread, 0)
    loader.load_due_shards()
    master = node_of(spread, cluster, 0)
    replica = replica_of(cluster, master)
    in_step(master)
    cut_off(master, replica)
    jobs |= scheduled(spread, MANY)
    goes_on(spread, loader, jobs)
    how(master)
    goes_on(spread, loader, jobs)
    assert node_of(spread, cluster, 0) is replica
    with redis.Redis.from_url(replica.url) as client:
        client.config_set("masterauth", "")
        client.config_set("masteruser", "")


@pytest.mark.invariant("I1")
def test_a_wiped_node_of_a_cluster_is_filled_up(spread: World, cluster: RedisCluster) -> None:
    loader = spread.loader()
    jobs = scheduled(spread, 0)
    loader.load_due_shards()
    with redis.Redis.from_url(node_of(spread, cluster, 0).url) as client:
        client.flushall()
    lost = MANY - spread.reminders()
    assert lost > 0
    assert loader.load_due_shards() == lost
    assert {job_id: spread.reminder(job_id) for job_id in jobs} == jobs


@pytest.mark.invariant("I1")
def test_a_restarted_node_of_a_cluster_is_filled_up(spread: World, cluster: RedisCluster) -> None:
    loader = spread.loader()
    jobs = scheduled(spread, 0)
    loader.load_due_shards()
    before = spread.slots.read_marks("default", [0])[0].run_id
    master = node_of(spread, cluster, 0)
    replica_of(cluster, master).kill()  # nobody takes over
    master.kill()
    master.start()
    goes_on(spread, loader, jobs)
    assert spread.slots.read_marks("default", [0])[0].run_id != before


def test_loading_goes_on_beside_a_node_that_is_down(spread: World, cluster: RedisCluster) -> None:
    loader = spread.loader()
    goes_on(spread, loader, {})
    spread.slots.delete_marks("default", range(4))
    jobs = {spread.library.pending(n): 0 for n in range(20)}
    master = node_of(spread, cluster, 0)
    there = [slot for slot in range(4) if node_of(spread, cluster, slot) is master]
    elsewhere = [job_id for job_id in jobs if spread.slot(job_id) not in there]
    assert 0 < len(elsewhere) < len(jobs)
    master.freeze()
    loader.load_due_shards()
    assert [spread.reminder(job_id) for job_id in elsewhere] == [0] * len(elsewhere)
    master.thaw()
    goes_on(spread, loader, jobs)
    assert spread.slots.is_available


# ---- no room


def fill(client: Any, *, left: int) -> None:
    client.config_set("maxmemory", client.info("memory")["used_memory"] + left)


@pytest.mark.invariant("I1")
def test_loading_stops_where_memory_ends_and_goes_on_by_itself(
    small_library: Library, tmp_path: Path
) -> None:
    server = or_skip(lambda: start_redis(tmp_path / "redis", "7"))
    with server:
        world = World(small_library, server.url)
        rows = [world.library.new(n, in_ms=n) for n in range(6000)]
        world.library.insert(*rows)
        loader = world.loader(page_rows=50)
        world.slots.read_slot_depths("default", range(4))  # connected
        client = world.slots.connected_client()
        fill(client, left=300_000)

        def refused() -> bool:
            try:
                return loader.load_due_shards() < 0
            except TimerUnavailable:
                return True

        wait_until(refused, "Redis is full")
        assert (world.slots.takes_reminders, world.slots.is_available) == (False, True)
        # Nothing was lost or done by half: what the marks say has been loaded is there, no more.
        marks = texts(world)
        for row in rows:
            slot = world.slot(row.job_id)
            shard = world.library.shard(row.job_id)
            mark = LoadMark.parse_mark(marks[slot].get(shard, ""))
            loaded = mark is not None and (row.action_ms, row.job_id) <= (mark.due_ms, mark.job_id)
            assert (world.reminder(row.job_id) is not None) == loaded
        assert 0 < world.reminders() < len(rows)
        client.config_set("maxmemory", 0)
        goes_on(world, loader, {row.job_id: row.action_ms - world.now_ms for row in rows})
        assert (world.slots.takes_reminders, world.slots.is_available) == (True, True)
        world.close()


def test_no_load_begins_without_memory(small_library: Library, tmp_path: Path) -> None:
    server = or_skip(lambda: start_redis(tmp_path / "redis", "7"))
    with server:
        world = World(small_library, server.url)
        job_id = world.library.pending(42)
        loader = world.loader()
        client = world.slots.connected_client()
        client.config_set("maxmemory", 1)
        for _ in range(2):
            with pytest.raises(TimerUnavailable):
                loader.load_due_shards()
        assert texts(world) == {slot: {} for slot in range(4)}
        client.config_set("maxmemory", 0)
        assert loader.load_due_shards() == 1
        assert world.reminder(job_id) == 0
        world.close()


# ---- wake-ups


def hearing(slots: Reminders, namespace: str) -> tuple[WakeupListener, list[int]]:
    heard: list[int] = []
    return WakeupListener(slots, namespace, {"default": lambda slot, _: heard.append(slot)}), heard


def wakes(world: World, wakeup: WakeupListener, heard: list[int], slot: int) -> bool:
    """Whether a new head of the slot is heard of."""
    heard.clear()
    try:
        wakeup.run_once()  # subscribes, where it must
        world.slots.ack("default", [id_in_slot(slot)])
        world.slots.arm("default", [Reminder(1, id_in_slot(slot))])
        wakeup.run_once()
    except TimerUnavailable:
        return False
    return heard == [slot]


def test_a_server_that_hangs_is_not_listened_to_for_ever(
    small_library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "SILENT_S", 0.6)
    server = or_skip(lambda: start_redis(tmp_path / "redis", "7"))
    with server:
        world = World(small_library, server.url)
        wakeup, heard = hearing(world.slots, world.settings.namespace)
        assert wakes(world, wakeup, heard, 1)
        for _ in range(6):  # silence is well, as long as the server says that it is there
            wakeup.run_once()
        server.freeze()
        wait_until(lambda: not quiet(wakeup), "the silence is noticed")
        server.thaw()
        wait_until(lambda: wakes(world, wakeup, heard, 2), "it listens again")
        wakeup.stop()
        world.close()


def quiet(wakeup: WakeupListener) -> bool:
    try:
        wakeup.run_once()
    except TimerUnavailable:
        return False
    return True


def test_wake_ups_come_through_whichever_node_is_up(
    spread: World, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "SILENT_S", 0.6)
    wakeup, heard = hearing(spread.slots, spread.settings.namespace)
    client: Any = spread.slots.connected_client()
    for slot in range(4):
        assert wakes(spread, wakeup, heard, slot)
    listening = client.get_primaries()[0].port
    node = next(node for node in cluster.nodes if port_of(node) == listening)
    elsewhere = next(s for s in range(4) if node_of(spread, cluster, s) is not node)
    node.freeze()
    wait_until(lambda: wakes(spread, wakeup, heard, elsewhere), "another node is listened to")
    wakeup.stop()
