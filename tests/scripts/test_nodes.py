"""A Redis Cluster whose nodes fail one by one: each takes its own slots along, and no others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError

from tests.scripts.rig import TOPIC, id_in_slot, slot_amount_of
from tests.servers import (
    RedisCluster,
    Server,
    ServerUnavailableError,
    start_redis,
    start_redis_cluster,
)
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.errors import TimerUnavailable
from toc.testing import TestClock
from toc.timer import circuit_breaker, redis_keys, redis_nodes
from toc.timer.redis_client import make_redis_client
from toc.timer.redis_nodes import RedisCommand
from toc.timer.reminders import Reminder, Reminders

SLOTS = range(24)
BREAK = {"is killed": Server.kill, "hangs": Server.freeze}
# One node's silence must not become the whole cluster's: neither voted on nor refused by the others.
ALONE = ("--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    try:
        cluster = start_redis_cluster(tmp_path_factory.mktemp("nodes"), *ALONE)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


class Broken:
    """A cluster whose nodes are whole again at the end, and the slots on it."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.cluster = cluster
        self.url = cluster.url.replace("redis://", "redis+cluster://")
        self.namespace = f"toc-test-{secrets.token_hex(6)}"
        self.clock = TestClock()
        self.now_ms = self.clock.wall_ms()
        self.slots = Reminders(self.url, self.namespace, self.clock, slot_amount_of, timeout_s=0.5)
        self.slots.arm(TOPIC, [Reminder(self.now_ms, id_in_slot(slot)) for slot in SLOTS])
        client: Any = self.slots.connected_client()
        ports = [
            client.get_node_from_key(redis_keys.store_queue_key(self.namespace, TOPIC, slot)).port
            for slot in SLOTS
        ]
        by_port = {int(redis_port(node)): node for node in cluster.nodes}
        self.node_of = {slot: by_port[port] for slot, port in zip(SLOTS, ports, strict=True)}
        assert len(set(ports)) == 3

    def on(self, node: Server) -> list[int]:
        return [slot for slot in SLOTS if self.node_of[slot] is node]

    def off(self, node: Server) -> list[int]:
        return [slot for slot in SLOTS if self.node_of[slot] is not node]

    def popped(self) -> list[int]:
        answers = self.slots.pop(TOPIC, [(slot, 5) for slot in SLOTS], 1000)
        return [answer.slot for answer in answers]

    def all_served(self) -> bool:
        try:
            return self.popped() == list(SLOTS)
        except TimerUnavailable:  # none is
            return False

    def close(self) -> None:
        for node in self.cluster.nodes:
            node.thaw() if node.is_running else node.start()
        self.slots.close()
        clean = make_redis_client(self.url, 5)
        wait_until(lambda: answers_all(clean), "the cluster is whole again")
        clean.close()


def redis_port(node: Server) -> str:
    return node.url.rpartition(":")[2].partition("/")[0]


def answers_all(client: Any) -> bool:
    """Whether each node takes a write: one that has just started refuses them for two seconds."""
    keys_ = [f"probe{n}" for n in range(30)]
    answers = redis_nodes.make_redis_nodes(client).send_commands(
        [RedisCommand(key, ("DEL", key)) for key in keys_]
    )
    return not any(isinstance(answer, Exception) for answer in answers)


@pytest.fixture
def broken(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broken]:
    monkeypatch.setattr(circuit_breaker, "PROBE_AFTER_S", 0.05)
    broken = Broken(cluster)
    yield broken
    broken.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The port of each node that commands were written to."""
    ports: list[str] = []
    write = redis_nodes._NodeBatch.write_commands

    def noted(batch: redis_nodes._NodeBatch) -> None:
        ports.append(str(batch._redis.connection_pool.connection_kwargs["port"]))
        write(batch)

    monkeypatch.setattr(redis_nodes._NodeBatch, "write_commands", noted)
    return ports


@pytest.mark.parametrize("how", BREAK)
def test_looks_leave_out_what_is_on_a_node_that(broken: Broken, how: str) -> None:
    slots, node = broken.slots, broken.cluster.nodes[1]
    for slot in SLOTS:
        slots.write_start_mark(TOPIC, slot, 3, f"mark of {slot}")
    marks = slots.read_marks(TOPIC, SLOTS)
    assert len({found.run_id for found in marks.values()}) == 3
    assert {slot: found.by_shard for slot, found in marks.items()} == {
        slot: {3: f"mark of {slot}"} for slot in SLOTS
    }
    on_node: dict[str, list[int]] = {}
    for slot in SLOTS:
        on_node.setdefault(marks[slot].run_id, []).append(slot)
    ends = {end for held in on_node.values() for end in (held[0], held[-1])}
    assert slots.first_and_last_slot_per_node(TOPIC, SLOTS) == ends
    BREAK[how](node)
    assert slots.is_available
    well = broken.off(node)
    assert broken.popped() == well
    assert not slots.is_available
    assert slots.read_marks(TOPIC, SLOTS) == {slot: marks[slot] for slot in well}
    assert slots.read_heads(TOPIC, SLOTS, 1.0) == dict.fromkeys(well, 1.0)
    assert slots.read_queue_sizes(TOPIC, SLOTS) == (0, 0, len(well))
    assert slots.read_slot_depths(TOPIC, SLOTS) == [(slot, 0, 1, None) for slot in well]
    with pytest.raises(TimerUnavailable):
        slots.read_marks(TOPIC, broken.on(node))
    with pytest.raises(TimerUnavailable):
        slots.pop(TOPIC, [(slot, 1) for slot in broken.on(node)], 1000)
    # What goes well elsewhere does not hide it.
    slots.pop(TOPIC, [(slot, 1) for slot in well], 1000)
    assert not slots.is_available


@pytest.mark.parametrize("how", BREAK)
def test_writes_do_what_they_can_beside_a_node_that(broken: Broken, how: str) -> None:
    slots, node, now_ms = broken.slots, broken.cluster.nodes[2], broken.now_ms
    BREAK[how](node)
    well = broken.off(node)
    with pytest.raises(TimerUnavailable):
        slots.arm(TOPIC, [Reminder(now_ms + 5, id_in_slot(slot, 1)) for slot in SLOTS])
    assert slots.read_slot_depths(TOPIC, SLOTS) == [(slot, 2, 0, now_ms) for slot in well]
    assert broken.popped() == well
    with pytest.raises(TimerUnavailable):
        slots.put_back(TOPIC, [Reminder(now_ms + 7, id_in_slot(slot)) for slot in SLOTS])
    assert slots.read_slot_depths(TOPIC, SLOTS) == [(slot, 2, 0, now_ms + 5) for slot in well]
    with pytest.raises(TimerUnavailable):
        slots.ack(TOPIC, [id_in_slot(slot, 1) for slot in SLOTS])
    assert slots.read_slot_depths(TOPIC, SLOTS) == [(slot, 1, 0, now_ms + 7) for slot in well]
    slots.write_start_mark(TOPIC, well[0], 3, "seen")
    assert slots.load_page(TOPIC, well[0], 3, "seen", "after", [Reminder(now_ms, 900)])
    with pytest.raises(TimerUnavailable):
        slots.write_start_mark(TOPIC, broken.on(node)[0], 3, "seen")
    with pytest.raises(TimerUnavailable):
        slots.load_page(TOPIC, broken.on(node)[0], 3, "seen", "after", [])
    assert slots.takes_reminders  # away is not full
    assert slots.read_time_ms() == now_ms


@pytest.mark.parametrize("how", BREAK)
def test_a_node_that_failed_is_asked_once_and_then_looked_for_beside_the_calls(
    broken: Broken, how: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_AFTER_S", 3600.0)
    node = broken.cluster.nodes[0]
    broken.popped()  # so that each node knows the script
    asked.clear()
    BREAK[how](node)
    for _ in range(5):
        assert broken.popped() == broken.off(node)
    assert asked.count(redis_port(node)) == 1
    assert len(asked) == 3 + 4 * 2


@pytest.mark.parametrize("how", BREAK)
def test_a_node_that_comes_back_is_served_again_after_it(broken: Broken, how: str) -> None:
    node = broken.cluster.nodes[0]
    BREAK[how](node)
    assert broken.popped() == broken.off(node)
    node.thaw() if node.is_running else node.start()
    wait_until(broken.all_served, "all slots are popped again")
    assert broken.slots.is_available


def test_all_nodes_away(broken: Broken) -> None:
    for node in broken.cluster.nodes:
        node.kill()
    for _ in range(2):
        with pytest.raises(TimerUnavailable):
            broken.popped()
        with pytest.raises(TimerUnavailable):
            broken.slots.read_marks(TOPIC, SLOTS)
        with pytest.raises(TimerUnavailable):
            broken.slots.read_heads(TOPIC, SLOTS, 1.0)
        with pytest.raises(TimerUnavailable):
            broken.slots.read_server_info()
    for node in broken.cluster.nodes:
        node.start()
    wait_until(broken.all_served, "all slots are popped again")
    wait_until(lambda: broken.slots.is_available, "the timer is available")


def test_one_node_that_answers_is_enough_to_start_from(broken: Broken) -> None:
    host = broken.url.partition("://")[2].partition("/")[0]
    url = f"redis+cluster://127.0.0.1:{free_port()},{host}"
    slots = Reminders(url, broken.namespace, broken.clock, slot_amount_of)
    assert len(slots.pop(TOPIC, [(slot, 5) for slot in SLOTS], 1000)) == len(SLOTS)
    slots.close()


def test_answers_of_a_call_that_broke_off_are_nobodys(broken: Broken) -> None:
    sender = redis_nodes.make_redis_nodes(broken.slots.connected_client())
    good = [RedisCommand(f"key{n}", ("ECHO", f"{n}")) for n in range(50)]
    last = list(dict.fromkeys(sender.node_name_of_key(command.key) for command in good))[-1]
    key = next(command.key for command in good if sender.node_name_of_key(command.key) == last)
    with pytest.raises(redis.DataError):
        sender.send_commands([*good, RedisCommand(key, ("ECHO", object()))])
    client: Any = broken.slots.connected_client()
    for node in client.get_primaries():  # what was written to some has its answers on the way
        pool = client.get_redis_connection(node).connection_pool
        assert not any(connection._sock for connection in pool._available_connections)
    assert sender.send_commands(good) == [f"{n}".encode() for n in range(50)]


# ---- one Redis


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Server]:
    try:
        server = start_redis(tmp_path, "7")
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server


def test_one_redis_that_hangs_holds_up_a_caller_once(
    lone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_AFTER_S", 3600.0)
    slots = Reminders(lone.url, "toc", TestClock(), slot_amount_of, timeout_s=0.3)
    assert serves(slots, 5)
    client: Any = slots.connected_client()
    asked: list[Any] = []
    send = client.execute_command
    monkeypatch.setattr(client, "execute_command", lambda *args: (asked.append(args), send(*args)))
    lone.freeze()
    for _ in range(4):
        assert not serves(slots, 5)
        assert not slots.is_available
    assert len(asked) == 1
    slots.close()


def test_one_redis_that_hung_is_served_again_after_it(
    lone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_AFTER_S", 0.05)
    slots = Reminders(lone.url, "toc", TestClock(), slot_amount_of, timeout_s=0.3)
    assert serves(slots, 5)
    lone.freeze()
    for _ in range(4):
        assert not serves(slots, 5)
    lone.thaw()
    wait_until(lambda: serves(slots, 5), "the slot is served again")
    assert slots.is_available
    slots.close()


def test_one_redis_that_is_restarted_is_served_at_once(lone: Server) -> None:
    slots = Reminders(lone.url, "toc", TestClock(), slot_amount_of)
    assert serves(slots, 5)
    lone.kill()
    assert not serves(slots, 5)
    lone.start()
    assert serves(slots, 5)
    slots.close()


# ---- hash slots that move


class Moving:
    """The hash slot of one timer slot, on its way from one master to another."""

    def __init__(self, broken: Broken, slot: int) -> None:
        self.hash_slot = key_slot(
            redis_keys.store_queue_key(broken.namespace, TOPIC, slot).encode()
        )
        self.source = broken.node_of[slot]
        self.target = next(n for n in broken.cluster.nodes if n is not self.source)
        self.others = [n for n in broken.cluster.nodes if n is not self.source]
        self.ids = {node: self.tell(node, "MYID").decode() for node in broken.cluster.nodes}

    def tell(self, node: Server, *words: Any) -> Any:
        with redis.Redis.from_url(node.url) as client:
            return client.execute_command(f"CLUSTER {words[0]}", *words[1:])

    def begin(self) -> None:
        self.tell(self.target, "SETSLOT", self.hash_slot, "IMPORTING", self.ids[self.source])
        self.tell(self.source, "SETSLOT", self.hash_slot, "MIGRATING", self.ids[self.target])

    def end(self, owner: Server | None = None) -> None:
        for node in (self.target, self.source, *self.others):
            self.tell(node, "SETSLOT", self.hash_slot, "NODE", self.ids[owner or self.target])


@pytest.fixture
def moving(broken: Broken) -> Iterator[Moving]:
    broken.popped()
    broken.slots.ack(TOPIC, [id_in_slot(slot) for slot in SLOTS])  # its keys need not be migrated
    moving = Moving(broken, 5)
    yield moving
    with redis.Redis.from_url(moving.target.url) as client:
        client.flushall()
    moving.end(moving.source)


def test_a_hash_slot_on_the_move_is_asked_for_where_it_goes(broken: Broken, moving: Moving) -> None:
    slots, now_ms = broken.slots, broken.now_ms
    moving.begin()
    slots.arm(TOPIC, [Reminder(now_ms, id_in_slot(slot)) for slot in SLOTS])
    with redis.Redis.from_url(moving.source.url) as client, pytest.raises(AskError):
        client.exists(redis_keys.store_queue_key(broken.namespace, TOPIC, 5))
    assert slots.read_slot_depths(TOPIC, SLOTS) == [(slot, 1, 0, now_ms) for slot in SLOTS]
    assert slots.is_available
    # Two keys of which one is not there are refused until the move has ended.
    assert broken.popped() == [slot for slot in SLOTS if slot != 5]
    assert not slots.is_available
    moving.end()
    (popped,) = slots.pop(TOPIC, [(5, 5)], 1000)
    assert popped.ids == [id_in_slot(5)]
    assert slots.is_available


def test_a_hash_slot_that_has_moved_is_followed_and_then_known(
    broken: Broken, moving: Moving, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        circuit_breaker.CircuitBreaker, "start_probe_if_due", lambda _: None
    )  # the answer itself is enough
    slots, now_ms = broken.slots, broken.now_ms
    marks = slots.read_marks(TOPIC, SLOTS)
    target = next(slot for slot in SLOTS if broken.node_of[slot] is moving.target)
    moving.end()
    asked.clear()
    slots.arm(TOPIC, [Reminder(now_ms, id_in_slot(5))])
    assert asked == [redis_port(moving.source), redis_port(moving.target)]
    asked.clear()
    (popped,) = slots.pop(TOPIC, [(5, 5)], 1000)
    assert (popped.ids, asked) == ([id_in_slot(5)], [redis_port(moving.target)])
    assert slots.read_marks(TOPIC, [5])[5].run_id == marks[target].run_id
    assert slots.is_available


def test_a_hash_slot_without_a_node_takes_no_other_along(broken: Broken, moving: Moving) -> None:
    for node in broken.cluster.nodes:
        moving.tell(node, "DELSLOTS", moving.hash_slot)
    others = [slot for slot in SLOTS if slot != 5]
    assert broken.popped() == others
    assert not broken.slots.is_available
    fresh = Reminders(broken.url, broken.namespace, broken.clock, slot_amount_of)
    assert len(fresh.pop(TOPIC, [(slot, 5) for slot in SLOTS], 1000)) == len(others)
    moving.tell(moving.source, "ADDSLOTS", moving.hash_slot)
    for slots in (broken.slots, fresh):
        wait_until(lambda slots=slots: serves(slots, 5), "the slot is served again")
        assert slots.is_available
    fresh.close()


def serves(slots: Reminders, slot: int) -> bool:
    try:
        slots.pop(TOPIC, [(slot, 5)], 1000)
    except TimerUnavailable:
        return False
    return True
