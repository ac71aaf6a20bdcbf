"""Members come and go; the view follows, and outlives ZooKeeper."""

from __future__ import annotations

import shutil

import pytest
from kazoo.exceptions import NoAuthError

from tests.cluster.conftest import SESSION_S, MakeNode, Node
from tests.servers import Server
from tests.servers.zookeeper import expire_session
from tests.worker.waiting import remains, wait_until
from toc.cluster.membership import MEMBERS
from toc.cluster.roster import roster


def all_see(nodes: list[Node], *names: str) -> None:
    for node in nodes:
        wait_until(lambda node=node: node.members == list(names), f"{node.name} to see {names}")  # type: ignore[misc]


def test_members_are_seen_in_the_order_in_which_they_came(make_node: MakeNode) -> None:
    nodes = []
    for name in ("c:1:x", "a:2:y", "b:3:z"):
        nodes.append(make_node(name).start())
        all_see(nodes, *[node.name for node in nodes])
    assert [node.membership.leads for node in nodes] == [True, False, False]
    nodes[0].membership.stop()
    all_see(nodes[1:], "a:2:y", "b:3:z")
    wait_until(lambda: nodes[1].membership.leads)
    assert not nodes[0].membership.leads


def test_who_dies_is_gone_when_its_session_is_over(make_node: MakeNode) -> None:
    one, two = make_node("one").start(), make_node("two")
    with two.start_elsewhere() as process:
        wait_until(lambda: len(one.members) == 2)
        process.kill()
    assert remains(lambda: len(one.members) == 2, SESSION_S / 4)
    all_see([one], "one")


def test_an_expired_session_joins_anew_and_the_view_never_lacks_itself(make_node: MakeNode) -> None:
    one, two = make_node("one").start(), make_node("two")
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    expire_session(one.membership._zookeeper._client)
    all_see([one, two], "two", "one")  # it comes back as the last: who leads has changed
    wait_until(lambda: two.membership.leads)
    assert not one.membership.leads
    assert all("one" in view.members for view in one.views)


def test_a_lost_answer_leaves_no_second_node(make_node: MakeNode) -> None:
    one = make_node("one")
    one.start()
    wait_until(lambda: one.members == ["one"])
    # As if the create had succeeded twice and the answer of the first had been lost.
    one.membership._zookeeper.create_member(f"{MEMBERS}/one-", b"{}")
    one.membership._node = "one-unheard"
    one.membership.wake()
    zookeeper = one.membership._zookeeper
    wait_until(lambda: zookeeper.children(MEMBERS) == [one.membership._node])


def test_without_zookeeper_the_last_view_stays_and_freezes(
    make_node: MakeNode, zookeeper: Server
) -> None:
    one, two = make_node("one").start(), make_node("two")
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    assert one.membership.leads
    zookeeper.kill()
    wait_until(lambda: not one.membership.view.connected)
    assert not one.membership.leads  # at once: another may lead already
    assert not one.membership.view.frozen
    wait_until(lambda: one.membership.view.frozen, seconds=SESSION_S + 5)
    assert one.members == ["one", "two"]
    zookeeper.start()
    wait_until(lambda: one.membership.view.connected and two.membership.view.connected)
    wait_until(lambda: sorted(one.members) == sorted(two.members) == ["one", "two"])
    assert all("one" in view.members for view in one.views)
    assert all("two" in view.members for view in two.views)
    wait_until(lambda: one.membership.leads or two.membership.leads)


def test_a_short_interruption_changes_nothing(make_node: MakeNode, zookeeper: Server) -> None:
    one = make_node("one").start()
    wait_until(lambda: one.members == ["one"])
    node = one.membership._node
    zookeeper.stop()
    wait_until(lambda: not one.membership.view.connected)
    zookeeper.start()
    wait_until(lambda: one.membership.leads)
    assert one.membership._node == node  # the same session: SUSPENDED is not LOST


def test_who_starts_without_zookeeper_joins_when_it_comes(
    make_node: MakeNode, zookeeper: Server
) -> None:
    zookeeper.stop()
    one = make_node("one").start()
    assert remains(lambda: not one.membership.joined.is_set() and not one.views, 0.5)
    zookeeper.start()
    assert one.membership.joined.wait(20)
    assert one.members == ["one"]


def test_what_a_member_says_is_read_by_the_roster(make_node: MakeNode) -> None:
    one, two = make_node("one"), make_node("two")
    one.text = (
        b'{"version": "1", "handles": ["a"], "http": null,'
        b' "shards": {"0-3": 5}, "slots": {"default": {"1": 6}}}'
    )
    two.text = b"of another release"
    one.start()
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    first, second = roster(one.settings)
    assert (first.identity, first.leads, first.version) == ("one", True, "1")
    assert first.shards == dict.fromkeys(range(4), 5)
    assert first.slots == {"default": {1: 6}}
    assert (second.identity, second.leads, second.shards) == ("two", False, {})
    one.text = one.text.replace(b'"1"', b'"2"', 1)
    one.membership.wake()
    wait_until(lambda: roster(one.settings)[0].version == "2")


def test_with_auth_only_who_has_it_may_write(make_node: MakeNode) -> None:
    one = make_node("one", auth="toc:secret").start()
    wait_until(lambda: one.members == ["one"])
    stranger = make_node("stranger")
    stranger.membership._zookeeper.wait(10)
    zookeeper = stranger.membership._zookeeper
    (node,) = zookeeper.children(MEMBERS)
    assert zookeeper.get(f"{MEMBERS}/{node}") is not None
    client = zookeeper._client
    with pytest.raises(NoAuthError):
        client.delete(zookeeper._path(f"{MEMBERS}/{node}"))


def test_a_zookeeper_that_lost_its_data_is_joined_again(
    make_node: MakeNode, zookeeper: Server
) -> None:
    """A client refuses a server that has seen less than itself, and would do so for ever."""
    one, two = make_node("one").start(), make_node("two")
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    zookeeper.kill()
    shutil.rmtree(zookeeper.log.parent / "data")
    (zookeeper.log.parent / "data").mkdir()
    wait_until(lambda: one.membership.view.frozen and two.membership.view.frozen)
    zookeeper.start()
    for node in (one, two):
        wait_until(lambda node=node: node.membership.view.connected)  # type: ignore[misc]
    wait_until(lambda: sorted(one.members) == sorted(two.members) == ["one", "two"])


@pytest.mark.parametrize("wrong", ["toc:wrong", None])
def test_who_may_not_write_says_so(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture, wrong: str | None
) -> None:
    one = make_node("one", auth="toc:secret").start()
    wait_until(lambda: one.members == ["one"])
    stranger = make_node("stranger", auth=wrong).start()
    wait_until(lambda: stranger.membership.trouble)
    assert "is cluster.auth what its nodes were made with?" in stranger.membership.trouble
    assert sum("is no member" in record.getMessage() for record in caplog.records) == 1
    assert one.members == ["one"]
    assert not stranger.membership.joined.is_set()


def test_a_path_that_is_not_there_is_made_or_named(make_node: MakeNode, zookeeper: Server) -> None:
    one = make_node("one", hosts=f"{zookeeper.url}/a").start()
    two = make_node("two", hosts=f"{zookeeper.url}/b/c").start()
    for node in (one, two):
        wait_until(lambda node=node: node.membership.trouble or node.members)  # type: ignore[misc]
        assert node.members or "does not exist there: create it" in node.membership.trouble
