"""A node's share of the cluster: taken, kept without ZooKeeper, given away."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cluster.conftest import zookeeper
from tests.servers import Server
from tests.worker.waiting import remains, wait_until
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.errors import SchemaMismatch
from toc.handlers.registry import Registry
from toc.node import node as module
from toc.node.dev_servers import PrivateRedis
from toc.node.health import HealthPart
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store import migrate

__all__ = ["zookeeper"]

SHARDS = 32  # so many that no member is left without any: with 8, one of 128 pairs had one


@pytest.fixture
def settings(tmp_path: Path, zookeeper: Server) -> Iterator[Settings]:
    with PrivateRedis(tmp_path):
        made = Settings(
            databases=(f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db"),
            shards=SHARDS,
            redis_url=f"unix://{tmp_path}/redis.sock",
            namespace=f"t{secrets.token_hex(4)}",
            zookeeper_hosts=zookeeper.url,
            cluster={"session_timeout_s": 1},
            scanner={"tick_s": 0.2, "grace_s": 1},
        )
        migrate.upgrade(made)
        yield made


Start = Callable[..., Node]


@pytest.fixture
def begin(settings: Settings) -> Iterator[Start]:
    """Starts a node whose handler adds its own number to `fired`."""
    nodes: list[Node] = []

    def start(fired: list[int] | None = None, settings: Settings = settings) -> Node:
        handlers, number = Registry(), len(nodes)
        handlers.handler("t")(lambda job: (fired if fired is not None else []).append(number))
        node = Node(settings, handlers=handlers)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


def slots(node: Node) -> set[int]:
    """The slots that its pollers pop as owners."""
    assert node.work_sources is not None
    return {
        slot
        for poller in node.work_sources.pollers.values()
        for slot in poller._due_s
        if slot not in poller._deputy_slots
    }


def loaded(node: Node) -> set[int]:
    assert node.work_sources is not None
    return {slot for loader in node.work_sources.loaders.values() for slot in loader._owned}


def scanned(node: Node) -> set[int]:
    assert node.work_sources is not None
    return {
        shard
        for scanner in node.work_sources.scanners.values()
        for shard in set(scanner._owned) - scanner._deputised
    }


EVERYTHING = set(range(SHARDS))


def share_all(*nodes: Node) -> Callable[[], bool]:
    """Whether each slot is popped and loaded, and each shard scanned, by exactly one of them, and
    all of them have some."""

    def shared() -> bool:
        return all(
            sorted(number for have in parts for number in have) == sorted(EVERYTHING) and all(parts)
            for parts in ([what(node) for node in nodes] for what in (slots, loaded, scanned))
        )

    return shared


def test_nodes_share_and_inherit(begin: Start, settings: Settings) -> None:
    fired: list[int] = []
    one = begin(fired)
    wait_until(share_all(one))
    two = begin(fired)
    wait_until(share_all(one, two))
    with TimeoutCenter(settings) as center:
        jobs = center.schedule_many(
            [{"biz_id": n, "action_time": timedelta()} for n in range(60)], biz_type="t"
        )
        wait_until(lambda: len(fired) == 60)
        assert set(fired) == {0, 1}
        two.stop()
        wait_until(share_all(one))
        late = center.schedule_many(
            [{"biz_id": n, "action_time": timedelta()} for n in range(60)], biz_type="t"
        )
        wait_until(lambda: len(fired) == 120)
        wait_until(lambda: all(center.get(j).status is Status.DONE for j in jobs + late))
    assert set(fired[60:]) == {0}


def test_without_zookeeper_shares_stay_and_all_scan_all(
    begin: Start,
    zookeeper: Server,
) -> None:
    one, two = begin(), begin()
    wait_until(share_all(one, two))
    before = slots(one), slots(two)
    zookeeper.stop()
    wait_until(lambda: scanned(one) == scanned(two) == EVERYTHING, "both to scan everything")
    assert one.work_sources is not None
    assert {scanner._stretch for scanner in one.work_sources.scanners.values()} == {2}
    # A deputy's too: nobody inherits them. A loader takes them at its next step.
    wait_until(lambda: loaded(one) == loaded(two) == EVERYTHING, "both to load everything")
    assert (slots(one), slots(two)) == before
    zookeeper.start()
    wait_until(share_all(one, two))
    assert {scanner._stretch for scanner in one.work_sources.scanners.values()} == {1}


def test_who_starts_without_zookeeper_does_everything_until_it_comes(
    begin: Start,
    zookeeper: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "JOIN_S_MAX", 0.2)
    zookeeper.stop()
    one, two = begin(), begin()
    wait_until(
        lambda: all(what(node) == EVERYTHING for what in (slots, scanned) for node in (one, two))
    )
    assert remains(lambda: slots(one) == EVERYTHING, 0.3)
    zookeeper.start()
    wait_until(share_all(one, two))


def test_who_is_refused_says_so_in_its_health(
    begin: Start, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOIN_S_MAX", 0.2)
    nowhere = Settings(**dict(settings) | {"zookeeper_hosts": f"{settings.zookeeper_hosts}/a/b"})
    node = begin(settings=nowhere)

    def zookeeper_part() -> HealthPart:
        (part,) = [part for part in node.health() if part.part == "zookeeper"]
        return part

    wait_until(lambda: "does not exist there: create it" in zookeeper_part().how)
    assert zookeeper_part().state == "down"
    assert "deputies fire them" in zookeeper_part().means


def test_who_leaves_pops_on_until_the_others_have_taken_over(
    begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HAND_OVER_S", 2.0)
    one, two = begin(), begin()
    wait_until(share_all(one, two))
    leaving = threading.Thread(target=two.stop)
    leaving.start()
    wait_until(share_all(one), "the other to own everything")
    assert two.work_sources is not None
    assert not any(poller.stopping for poller in two.work_sources.pollers.values())
    leaving.join(20)
    assert all(poller.stopping for poller in two.work_sources.pollers.values())


def test_a_start_that_is_refused_leaves_nothing_behind(settings: Settings) -> None:
    other = settings.model_copy(update={"shards": 2 * SHARDS})
    Node(settings, handlers=Registry()).databases.close()
    with TimeoutCenter(settings) as center:
        center.schedule(1, timedelta(days=1))  # writes the fingerprint
    before = set(threading.enumerate())
    node = Node(other, handlers=Registry())
    with pytest.raises(SchemaMismatch):
        node.start()
    assert node.stop()
    wait_until(lambda: not {*threading.enumerate()} - before, "its threads to end")
